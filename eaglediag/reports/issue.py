"""A bug report ready to paste into an engine's tracker, with what names people, machines and places replaced."""

from __future__ import annotations

import io
import json
import shlex
from collections.abc import Sequence

from eaglediag import __version__
from eaglediag.analysis.comparison import Comparison
from eaglediag.analysis.denials import refusals
from eaglediag.analysis.sentences import PHASE_NAMES
from eaglediag.capture.model import Capture, Denial, ModelShape, Server, Workload
from eaglediag.reports import summary, tables
from eaglediag.reports.markdown import table_text
from eaglediag.reports.redaction import Redactor
from eaglediag.reports.untrusted import markdown, printable

#: Denials shown with their source; the rest are counted.
MOST = 6
#: The longest argument value that is shown.
LONGEST = 300
#: What a file of prompts is called in the command to reproduce.
PROMPTS = "prompts.jsonl"
#: Arguments that say how the engine was run; the rest are defaults, or in the command.
RELEVANT = ("cuda_graph", "speculative", "attention", "overlap", "radix", "chunked", "moe", "dtype", "quantization",
            "max_running", "all_reduce", "dp_", "tp_", "pp_", "ep_", "page_size", "torch_compile", "lora")  # fmt: skip


def render(captures: Sequence[Capture], result: Comparison | None) -> str:
    """The report on the last capture, as GitHub markdown; with `result`, against the first.

    Fenced text is kept from closing its fence.
    """
    capture, clean = captures[-1], Redactor(captures)
    out = io.StringIO()
    server = capture.server
    title = clean(result.headline if result else f"{capture.arm}: measured with eaglediag")
    out.write(f"**{markdown(title)}**\n\n### Environment\n\n")
    for name, value in _environment(capture):
        out.write(f"- {name}: {markdown(clean(value))}\n")
    if server.command:
        out.write("\nLaunch command:\n" + _fenced("sh", clean(shlex.join(server.command))))
    if server.environment:
        variables = "\n".join(f"{name}={value}" for name, value in sorted(server.environment.items()))
        out.write("\nEnvironment variables:\n" + _fenced("sh", clean(variables)))
    if arguments := _arguments(capture):
        out.write("\nArguments the engine ended up with:\n" + _fenced("text", clean(arguments)))
    out.write("\n### Evidence\n")
    _evidence(capture, result, clean, out)
    _denials(capture, clean, out)
    out.write("\n### How to reproduce\n")
    _reproduce(capture, clean, out)
    out.write(f"\n<sub>eaglediag {__version__}; names, addresses, paths and keys are replaced.</sub>\n")
    return out.getvalue()


def _environment(capture: Capture) -> list[tuple[str, str]]:
    server = capture.server
    gpus = [gpu.name for host in capture.hosts for gpu in host.gpus]
    pairs = [
        ("engine", f"{server.engine} {server.release}{f' at {server.commit}' if server.commit else ''}"),
        ("versions", ", ".join(f"{name} {version}" for name, version in server.versions.items())),
        ("GPUs", ", ".join(f"{gpus.count(name)} x {name}" for name in dict.fromkeys(gpus)) or server.device),
        ("driver", ", ".join(dict.fromkeys(host.driver for host in capture.hosts if host.driver))),
        ("system", ", ".join(dict.fromkeys(host.system for host in capture.hosts if host.system))),
        ("Python", ", ".join(dict.fromkeys(host.python for host in capture.hosts if host.python))),
        ("model", _model(server.model)),
        ("parallel", f"tp {server.tp}, dp {server.dp}, pp {server.pp}"),
        ("attention backend", server.attention_backend),
    ]
    if server.speculation is not None:
        spec = server.speculation
        pairs.append(
            (
                "speculation",
                f"{spec.algorithm}, {spec.num_steps} steps, top-k {spec.topk}, {spec.num_draft_tokens} draft tokens",
            )
        )
    for phase, graphs in server.captured.items():
        sizes = ", ".join(map(str, graphs.sizes[:60]))
        pairs.append((f"graphs captured for {PHASE_NAMES[phase]}", f"{sizes} ({graphs.unit})"))
    return [pair for pair in pairs if pair[1]]


def _model(model: ModelShape) -> str:
    layers = "layers not known" if model.layers is None else f"{model.layers} layers"
    return f"{model.architecture} ({layers}, {model.dtype or 'dtype not known'})" if model.architecture else ""


def _arguments(capture: Capture) -> str:
    lines = []
    for name, value in sorted(capture.server.arguments.items()):
        if value not in (None, "", [], {}) and any(word in name for word in RELEVANT):
            lines.append(f"{name} = {json.dumps(value)[:LONGEST]}")
    return "\n".join(lines)


def _evidence(capture: Capture, result: Comparison | None, clean: Redactor, out: io.StringIO) -> None:
    if result is not None:
        for table in tables.tables(result):
            out.write(f"\n**{markdown(table.title)}**\n\n")
            out.write(clean(table_text(table)))
        for finding in result.findings[:8]:
            facts = "; ".join(f"{one.fact} ({one.source})" for one in finding.evidence)
            out.write(f"\n- {markdown(clean(finding.what))} ({finding.sure}): {markdown(clean(facts))}")
        out.write("\n")
        return
    out.write("\n")
    for window in capture.windows:
        batch = summary.typical(window)
        if batch is not None:
            graphs = f"graph: {summary.graphs(batch)}"
            length = f", accept length {summary.accept_length(batch)}" if batch.kind == "cycle" else ""
            words = f"a {'cycle' if batch.kind == 'cycle' else 'step'} takes {batch.period_ms.mean:.2f} ms"
            line = f"batch {batch.batch_size}: {words} ({summary.parts(batch)}){length}; {graphs}"
            out.write(f"- {markdown(clean(line))}\n")


def _denials(capture: Capture, clean: Redactor, out: io.StringIO) -> None:
    kinds = refusals(capture)
    for one in kinds[:MOST]:
        out.write(f"\n**No graph**: {markdown(clean(one.line))}\n")
        if text := _gate(one.denial):
            out.write(_fenced("python", clean(text)))
    if len(kinds) > MOST:
        out.write(f"\n{len(kinds) - MOST} rarer kinds of refusal were recorded.\n")


def _gate(denial: Denial) -> str:
    """The way from the gate to the condition, and the source lines around it."""
    parts = []
    for frame in denial.frames:
        parts.append(f"# {frame.file}:{frame.line}, in {frame.function}")
        parts += frame.source or [frame.text]
        values = ", ".join(f"{name} = {value}" for name, value in frame.values.items())
        parts.append(f"# was: {frame.shown}" + (f"   ({values})" if values else ""))
    return "\n".join(parts)


def _reproduce(capture: Capture, clean: Redactor, out: io.StringIO) -> None:
    if not capture.server.command:
        out.write("\nThe launch command is not on record; the figures come from files.\n")
        return
    ab = " --ab -o results" if capture.server.speculation is not None else f" -o {capture.arm}.json"
    options = clean(" ".join(_options(capture)))
    command = f"eaglediag probe --host local{ab} {options} \\\n  --launch {shlex.quote(clean(_launch(capture.server)))}"
    out.write(_fenced("sh", f"pip install eaglediag\n{command}"))
    work = capture.workload
    if _own_prompts(work):
        out.write(f"\n`{PROMPTS}`: {work.prompts} prompts from a file; attach it, one JSON object a line.\n")
    elif not work.requests_per_window and not work.concurrency:
        out.write("\nThe load that was measured came from other clients; the command sends prompts of its own.\n")


def _launch(server: Server) -> str:
    """The command with its variables in front: those that a shell exports are in no capture."""
    assignments = [f"{name}={shlex.quote(value)}" for name, value in sorted(server.environment.items())]
    return " ".join([*assignments, shlex.join(server.command)])


def _options(capture: Capture) -> list[str]:
    """The options of `eaglediag probe` that make it measure what this capture holds."""
    lengths = [window.simulated_accept_length for window in capture.windows]
    swept = [f"{length:g}" for length in dict.fromkeys(lengths) if length is not None]
    options = _load(capture)
    # A single one is that of the launch command's variables.
    if len(swept) > 1:
        options.append(f"--sweep-accept-length {','.join(swept)}")
    if capture.profiles:
        options.append(f"--profile-steps {max(one.steps for one in capture.profiles)}")
    return options


def _load(capture: Capture) -> list[str]:
    """The options of `eaglediag probe` that make its load this capture's."""
    work = capture.workload
    options = [f"--concurrency {','.join(map(str, work.concurrency))}"] if work.concurrency else []
    if work.requests_per_window is not None:
        options.append(f"--requests {work.requests_per_window}")
    if starts := max((window.repeat for window in capture.windows), default=0):
        options.append(f"--repeat {starts + 1}")
    if work.max_new_tokens is not None:
        options.append(f"--max-new-tokens {work.max_new_tokens}")
    if work.temperature is not None:
        options.append(f"--temperature {work.temperature:g}")
    if work.random_input_len is not None:
        options.append(f"--random-input-len {work.random_input_len}")
    elif work.ignore_eos:
        options.append("--ignore-eos")
    if _own_prompts(work):
        options.append(f"--prompts {PROMPTS}")
    if work.endpoint is not None:
        options.append(f"--endpoint {work.endpoint}")
    if work.seed is not None:
        options.append(f"--seed {work.seed}")
    return options


def _own_prompts(work: Workload) -> bool:
    """Whether the prompts came from a file, whose name is nobody else's business."""
    return bool(work.prompts) and work.random_input_len is None and not work.source.startswith("built-in")


def _fenced(language: str, text: str) -> str:
    text = "\n".join(printable(line) for line in text.splitlines())
    fence = "```"
    while fence in text:
        fence += "`"
    return f"\n{fence}{language}\n{text}\n{fence}\n"
