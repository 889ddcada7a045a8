"""`eaglediag probe`: start the server, measure it, write the capture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from eaglediag.cli import options, read_only
from eaglediag.errors import UsageError

if TYPE_CHECKING:
    from eaglediag.probes.workload import Endpoint, Load


def probe(
    context: typer.Context,
    host: options.HostOption,
    launch: Annotated[
        str | None, typer.Option(help="The command that starts the server, as you would type it on the host.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            help="Where the capture goes; with --ab, the folder for baseline.json and eagle.json. "
            "With --read-only it may be left out.",
        ),
    ] = None,
    url: read_only.Url = None,
    only_read: read_only.ReadOnlyFlag = False,
    log: read_only.Log = None,
    drive: read_only.Drive = False,
    duration: read_only.Duration = 60.0,
    api_key: read_only.ApiKey = None,
    ab: Annotated[
        bool,
        typer.Option(
            "--ab",
            help="Probe both arms: the command as it is, and without its --speculative-* arguments and environment.",
        ),
    ] = False,
    repeat: Annotated[
        int,
        typer.Option(min=1, metavar="N", help="Start the server N times; with --ab, both arms in the order ABBA."),
    ] = 1,
    arm: Annotated[
        str | None,
        typer.Option(help="What the capture calls this arm.", show_default="eagle with speculation, else baseline"),
    ] = None,
    concurrency: Annotated[str, typer.Option(metavar="N,N,..", help="Concurrent requests to measure at.")] = "1,4,12",
    requests: Annotated[
        int | None,
        typer.Option(min=1, help="Requests per concurrency.", show_default="4 for each concurrent one, at least 16"),
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(min=2, help="Tokens to generate per request.")] = 128,
    temperature: Annotated[float, typer.Option(min=0.0, help="Sampling temperature.")] = 0.0,
    seed: Annotated[
        int, typer.Option(help="Orders the prompts and draws the random ones; the same seed, the same load.")
    ] = 0,
    prompts: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help='Your own prompts: JSON lines of {"text": ...} or {"token_ids": [...]}.'),
    ] = None,
    random_input_len: Annotated[
        int | None, typer.Option(min=1, help="Send random token ids of this length, for a server without a tokenizer.")
    ] = None,
    endpoint: Annotated[str, typer.Option(help="auto, generate or chat.")] = "auto",
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Generate all tokens even when the model would stop.")
    ] = False,
    python: Annotated[
        str | None, typer.Option(help="The server's Python, when the launch command does not show it.")
    ] = None,
    ready_timeout: Annotated[float, typer.Option(min=1.0, help="Seconds the server may take to get ready.")] = 1800.0,
    overhead_pairs: Annotated[
        int, typer.Option(min=0, help="Pairs of windows, agent active and dormant, that measure the agent's own cost.")
    ] = 3,
    gpu_hz: Annotated[
        float,
        typer.Option("--gpu-hz", min=0.1, max=100.0, help="GPU clocks, power and throttling, samples per second."),
    ] = 10.0,
    profile_steps: Annotated[
        int,
        typer.Option(
            min=0, metavar="N", help="After measuring, profile N steps per concurrency through SGLang's own endpoint."
        ),
    ] = 0,
    sweep_accept_length: Annotated[
        str | None,
        typer.Option(
            metavar="X,X,..",
            help="Measure at each of these simulated accept lengths. The text is then not the model's.",
        ),
    ] = None,
    steps: Annotated[
        bool, typer.Option("--steps", help="Keep the raw steps beside the capture, in NAME.steps.jsonl.gz.")
    ] = False,
    remote_parent: Annotated[
        str, typer.Option(metavar="DIR", help="The folder on the host in which the probe makes its own.")
    ] = "/tmp",
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
    accept_new_host_key: options.AcceptHostKey = False,
    identity: options.Identity = None,
    ssh_config: options.SshConfig = None,
    container: options.Container = None,
    container_runtime: options.ContainerRuntime = "docker",
) -> None:
    """Start an SGLang server with instruments in it, load it, and write down what every step cost and why.

    The server is started on the host, measured at each concurrency, and stopped; nothing stays there.

    Example: eaglediag probe --host gpu1 --ab -o results --launch 'python -m sglang.launch_server --model-path /m/target
    --speculative-algorithm EAGLE3 --speculative-draft-model-path /m/draft --speculative-num-steps 2
    --speculative-eagle-topk 1 --speculative-num-draft-tokens 3 --tp 8'

    A server that must not be restarted is only read, with what it tells by itself:

    eaglediag probe --host gpu1 --url http://127.0.0.1:30000 --read-only --log /var/log/sglang.log -o capture.json
    """
    read_only.check(context, launch, url, only_read)
    load = _load(
        concurrency, requests, max_new_tokens, temperature, seed, prompts, random_input_len, endpoint, ignore_eos
    )
    if url is not None:
        with options.open_hosts(
            host,
            accept_new_host_key=accept_new_host_key,
            identities=identity or (),
            ssh_config=ssh_config,
            container=container,
            container_runtime=container_runtime,
        ) as hosts:
            read_only.run(
                hosts,
                url,
                output,
                arm=arm,
                log=log,
                load=load if drive else None,
                duration_s=duration,
                api_key=api_key,
                python=python,
                gpu_hz=gpu_hz,
                remote_parent=remote_parent,
                as_json=as_json,
            )
        return
    from eaglediag.cli.progress import TerminalProgress
    from eaglediag.probes.launch import LaunchCommand
    from eaglediag.probes.run import Arm, probe_arms
    from eaglediag.probes.session import Plan

    if launch is None or output is None:
        raise UsageError("-o is missing", "name the capture to write, or with --ab a folder")
    command = LaunchCommand.parse(launch)
    sweep = _sweep(sweep_accept_length)
    if sweep and "SGLANG_SIMULATE_ACC_LEN" not in command.environment:
        command = command.with_environment(SGLANG_SIMULATE_ACC_LEN=f"{sweep[0]:g}")
    if ab:
        if not command.speculative:
            raise UsageError("--ab needs a launch command with speculation", "add its --speculative-* arguments")
        baseline = command.without_speculation()
        if output.exists() and not output.is_dir():
            raise UsageError(f"{output} is a file; with --ab, -o names a folder", "choose a folder")
        output.mkdir(parents=True, exist_ok=True)
        arms = [
            Arm("baseline", baseline, output / "baseline.json"),
            Arm(arm or "eagle", command, output / f"{arm or 'eagle'}.json"),
        ]
        typer.echo(
            f"baseline: {' '.join(baseline.redacted())}\n{arms[1].name}: {' '.join(command.redacted())}", err=True
        )
    else:
        if not output.parent.is_dir():
            raise UsageError(f"{output.parent} is not a folder", "choose another -o")
        arms = [Arm(arm or ("eagle" if command.speculative else "baseline"), command, output)]

    def plan(one: Arm, turn: int) -> Plan:
        return Plan(
            launch=one.launch,
            load=load,
            arm=one.name,
            python=python,
            ready_timeout_s=ready_timeout,
            overhead_pairs=overhead_pairs if turn == 0 else 0,
            repeat=turn,
            remote_parent=remote_parent,
            gpu_hz=gpu_hz,
            profile_steps=profile_steps if turn == 0 else 0,
            sweep=sweep,
        )

    with (
        options.open_hosts(
            host,
            accept_new_host_key=accept_new_host_key,
            identities=identity or (),
            ssh_config=ssh_config,
            container=container,
            container_runtime=container_runtime,
        ) as hosts,
        TerminalProgress() as progress,
    ):
        captures = probe_arms(hosts, arms, plan, repeat, keep_steps=steps, progress=progress)
    if as_json:
        import json

        from eaglediag.reports import summary

        typer.echo(json.dumps([summary.as_json(capture) for capture in captures], indent=2))
        return
    from eaglediag.reports import summary, terminal

    for capture, one in zip(captures, arms, strict=True):
        summary.render(capture, one.output, terminal.console())
    if ab:
        typer.echo(f"next: eaglediag compare {arms[0].output} {arms[1].output}", err=True)


def _sweep(lengths: str | None) -> tuple[float, ...]:
    if lengths is None:
        return ()
    try:
        values = tuple(dict.fromkeys(float(length) for length in lengths.split(",")))
    except ValueError:
        values = ()
    if not values or not all(1.0 <= value < 1000.0 for value in values):
        raise UsageError(
            f"--sweep-accept-length {lengths} is not a list of accept lengths", "write it like 1,1.5,2: 1 and more"
        )
    return values


def _load(
    concurrency: str,
    requests: int | None,
    max_new_tokens: int,
    temperature: float,
    seed: int,
    prompts: Path | None,
    random_input_len: int | None,
    endpoint: str,
    ignore_eos: bool,
) -> Load:
    from eaglediag.probes.workload import Load, built_in_prompts, prompts_from_file

    try:
        levels = tuple(dict.fromkeys(int(level) for level in concurrency.split(",")))
    except ValueError:
        levels = ()
    if not levels or min(levels) < 1:
        raise UsageError(f"--concurrency {concurrency} is not a list of numbers", "write it like 1,4,12")
    if endpoint not in ("auto", "generate", "chat"):
        raise UsageError(f"--endpoint {endpoint} is not known", "auto, generate or chat")
    if prompts is not None and random_input_len is not None:
        raise UsageError("--prompts and --random-input-len exclude each other", "give one of them")
    if prompts is not None:
        texts, source = prompts_from_file(prompts), prompts.name
    elif random_input_len is not None:
        texts, source, ignore_eos = [], f"random ids, {random_input_len} tokens", True
    else:
        texts, source = built_in_prompts(), "built-in prompts"
    return Load(
        prompts=texts,
        concurrency=levels,
        requests=requests,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        seed=seed,
        endpoint=cast("Endpoint", endpoint),
        ignore_eos=ignore_eos,
        source=source,
        random_input_len=random_input_len,
    )
