"""The main job on the real thing: the real SGLang with EAGLE-3 on a CPU, behind a real sshd."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from eaglediag.capture import store
from eaglediag.capture.model import BatchStats, Capture, Window
from eaglediag.hosts import open_host
from eaglediag.probes.launch import LaunchCommand
from eaglediag.probes.run import Arm, probe_arms
from eaglediag.probes.session import Plan, Session
from eaglediag.probes.workload import Load, built_in_prompts
from eaglediag.reports.summary import share_ms
from tests.engine import launch_command, server_port, start_server
from tests.invoke import eaglediag
from tests.sshd import ALIAS, Sshd, running_sshd

pytestmark = [pytest.mark.engine, pytest.mark.sshd, pytest.mark.timeout(600)]

TOKENS = 40
StartProbe = Callable[[Sshd, Path, str], subprocess.Popen[str]]


def load(requests: int = 8) -> Load:
    return Load(
        built_in_prompts(),
        concurrency=(1, 4),
        requests=requests,
        max_new_tokens=TOKENS,
        endpoint="generate",
        ignore_eos=True,
    )


@dataclass
class Probed:
    """Both arms as the command line would probe them, and what the command line does not show."""

    folder: Path
    baseline: Session
    eagle: Session
    captures: dict[str, Capture]


@pytest.fixture(scope="module")
def server_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    with running_sshd(tmp_path_factory.mktemp("sshd")) as sshd:
        yield sshd


@pytest.fixture(scope="module")
def probed(server_host: Sshd, tmp_path_factory: pytest.TempPathFactory) -> Probed:
    folder = tmp_path_factory.mktemp("captures")
    command = LaunchCommand.parse(launch_command("eagle", server_port()))
    sessions = {}
    with open_host(ALIAS, ssh_config=server_host.ssh_config) as host:
        for arm, launch in (("baseline", command.without_speculation()), ("eagle", command)):
            session = sessions[arm] = Session(Plan(launch, load(), arm, ready_timeout_s=180.0, overhead_pairs=2))
            session.run([host])
            store.write(session.capture(), folder / f"{arm}.json")
    captures = {arm: store.read(folder / f"{arm}.json") for arm in sessions}
    return Probed(folder, sessions["baseline"], sessions["eagle"], captures)


def batches(capture: Capture) -> list[tuple[Window, BatchStats]]:
    return [(window, batch) for window in capture.windows for rank in window.ranks for batch in rank.batches]


def test_both_arms_are_complete_and_every_rank_is_seen(probed: Probed) -> None:
    for capture in probed.captures.values():
        assert capture.status == "complete"
        assert capture.instrumentation.ranks_expected == 1
        assert [rank.seen for rank in capture.instrumentation.ranks] == [True]
        assert [rank.refused for rank in capture.instrumentation.ranks] == [[]]
        assert [rank.errors for rank in capture.instrumentation.ranks] == [[]]
        assert capture.instrumentation.route == "plugin"
        assert capture.server.release == "0.5.20"
        assert capture.server.model.layers == 8
        assert [window.id for window in capture.windows] == ["c1", "c4"]
        assert all(window.failed_requests == 0 for window in capture.windows)
    speculation = probed.captures["eagle"].server.speculation
    assert speculation is not None
    assert (speculation.algorithm, speculation.num_steps, speculation.max_accept_length) == ("EAGLE3", 3, 4)
    assert probed.captures["baseline"].server.speculation is None


def test_every_phase_of_each_arm_is_there(probed: Probed) -> None:
    for _, batch in batches(probed.captures["baseline"]):
        assert batch.kind == "decode"
        assert {part.phase for part in batch.parts} == {"decode"}
    for _, batch in batches(probed.captures["eagle"]):
        assert batch.kind == "cycle"
        assert {part.phase for part in batch.parts} == {"draft", "verify", "draft_extend"}
        verify = next(part for part in batch.parts if part.phase == "verify")
        assert verify.tokens == 4 * batch.batch_size
    for capture in probed.captures.values():
        assert {phase.phase for window in capture.windows for rank in window.ranks for phase in rank.phases} >= {
            "extend"
        }


def test_parts_and_gap_add_up_to_the_period(probed: Probed) -> None:
    for capture in probed.captures.values():
        for _, batch in batches(capture):
            assert batch.gap_ms is not None
            total = sum(share_ms(part, batch) for part in batch.parts) + batch.gap_ms.mean
            assert total == pytest.approx(batch.period_ms.mean, rel=1e-3)
            assert batch.gap_ms.mean > 0
            blocks = batch.blocks
            assert sum(blocks.steps) == batch.count
            assert sum(blocks.period_ms) == pytest.approx(batch.period_ms.mean * batch.count, rel=1e-3)


def test_accepted_tokens_are_those_emitted(probed: Probed) -> None:
    for window in probed.captures["eagle"].windows:
        accepted = [batch.accept for rank in window.ranks for batch in rank.batches]
        # A step without a period (the last before a request ends) still has its accept lengths in the raw rows.
        rows = [row for name, rows in probed.eagle.rows if name == window.id for row in rows.rows if row[0] == "accept"]
        lengths = [length for row in rows for length in row[-1]]
        assert len(lengths) == sum(request.verify_passes or 0 for request in window.requests)
        emitted = sum(request.completion_tokens - 1 for request in window.requests)  # the prefill emits the first
        overshoot = sum(lengths) - emitted  # accepted beyond the last token asked for
        assert 0 <= overshoot <= 3 * len(window.requests)
        for accept in accepted:
            assert accept is not None
            assert sum(accept.histogram) == accept.passes
            assert sum((position + 1) * count for position, count in enumerate(accept.histogram)) == accept.tokens


def test_the_agent_changes_no_token(probed: Probed) -> None:
    prompts = load()
    with start_server("eagle") as server, open_host("local") as local:
        from eaglediag.probes.workload import Client

        plain = Client(local, server.port, prompts).run(1, prompts.count(1))
    assert plain.texts == probed.eagle.texts["c1"]
    assert plain.texts == probed.baseline.texts["c1"]


def test_nothing_stays_on_the_host(probed: Probed) -> None:
    for session in (probed.baseline, probed.eagle):
        assert session.server is not None
        assert not Path(session.server.folder.path).exists()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", session.plan.launch.port), 1)


@pytest.mark.alone
def test_what_the_agent_costs_is_stated(probed: Probed) -> None:
    overhead = probed.captures["eagle"].instrumentation.overhead
    assert overhead.ratio is not None
    assert overhead.interval is not None
    assert overhead.hook_us_per_step is not None
    assert overhead.gate_us_per_step is not None
    assert overhead.share_of_step is not None
    of_hooks = overhead.hook_us_per_step / (overhead.hook_us_per_step + overhead.gate_us_per_step)
    assert overhead.share_of_step * of_hooks < 0.02
    # On a CPU every gate denies, some ten times a cycle.
    assert overhead.share_of_step < 0.04


def test_compare_and_breakeven_take_the_captures(probed: Probed) -> None:
    paths = [probed.folder / f"{arm}.json" for arm in ("baseline", "eagle")]
    compared = eaglediag("compare", *paths, "--json")
    assert compared.code in (0, 3), compared.err
    assert json.loads(compared.out)
    priced = eaglediag("breakeven", paths[1], "--baseline", paths[0], "--json")
    assert priced.code in (0, 3), priced.err
    answer = json.loads(priced.out)
    assert 1 < answer["accept_length"] < 4
    assert answer["break_even_accept_length"] > 1


def test_why_every_phase_ran_eagerly(probed: Probed) -> None:
    """On a CPU only decoding is a graph mode, and there is no runner for it, nor for the draft."""
    said = {}
    for name, capture in probed.captures.items():
        for denial in capture.denials:
            if denial.decides and denial.phase != "extend":
                assert denial.explained
                said[name, denial.phase] = denial.frames[-1]
    assert {phase for _, phase in said} == {"decode", "draft", "verify", "draft_extend"}
    assert (said["baseline", "decode"].text, said["baseline", "decode"].shown) == (
        "self.decode_cuda_graph_runner",
        "None",
    )
    assert (said["eagle", "draft"].text, said["eagle", "draft"].shown) == ("cuda_graph_runner", "None")
    assert said["eagle", "draft_extend"].text == "self.cuda_graph_runner_for_draft_extend"
    assert said["eagle", "draft_extend"].shown == "None"
    assert said["eagle", "verify"].shown == "ForwardMode.TARGET_VERIFY.is_cpu_graph() is False"
    for (name, phase), leaf in said.items():
        assert leaf.file.startswith("sglang/srt/"), (name, phase)
        assert leaf.line > 0
        assert leaf.source


# -- what ends a probe early -------------------------------------------------------------------------------------


@pytest.fixture
def start_probe() -> Iterator[StartProbe]:
    """Starts probes in processes of their own; one that a failed test left behind is interrupted, as a user would."""
    started: list[subprocess.Popen[str]] = []

    def start(host: Sshd, output: Path, launch: str) -> subprocess.Popen[str]:
        argv = [
            *(sys.executable, "-m", "eaglediag", "probe", "--host", ALIAS, "--ssh-config", str(host.ssh_config)),
            *("--launch", launch, "-o", str(output), "--concurrency", "1", "--requests", "400", "--ignore-eos"),
            *("--endpoint", "generate", "--max-new-tokens", str(TOKENS), "--overhead-pairs", "0"),
        ]
        started.append(subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.wait(90)


def until_measuring(port: int, process: subprocess.Popen[str]) -> None:
    """Wait until the server has answered a few requests beyond its own and ours that warm it up."""
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        for log in folders_of(port, "server.log"):
            if log.read_text(errors="replace").count('"POST /generate') >= 10:
                return
        time.sleep(0.3)
    raise AssertionError("the server did not come up")


def folders_of(port: int, pattern: str) -> list[Path]:
    """Other probes may be at work on this machine, and their folders come and go."""
    found: list[Path] = []
    for log in Path("/tmp").glob("eaglediag-*/server.log"):
        with contextlib.suppress(FileNotFoundError):
            if str(port) in log.read_text(errors="replace"):
                found += log.parent.glob(pattern)
    return found


def assert_gone(port: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) and not folders_of(port, "*"):
                return
        time.sleep(0.5)
    raise AssertionError("the server or its folder is still there")


def test_ctrl_c_keeps_what_was_measured_and_leaves_nothing(
    server_host: Sshd, tmp_path: Path, start_probe: StartProbe
) -> None:
    port, output = server_port(), tmp_path / "eagle.json"
    process = start_probe(server_host, output, launch_command("eagle", port))
    until_measuring(port, process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=90)
    assert process.returncode == 99, err
    assert err.count("\n") == 1
    assert "Traceback" not in err
    capture = store.read(output)
    assert capture.status == "partial"
    [problem] = [problem for problem in capture.problems if problem.code != "preflight"]
    assert (problem.code, problem.message) == ("interrupted", "interrupted before all was measured")
    [window] = capture.windows
    assert window.ranks[0].steps_recorded > 20
    assert len(window.requests) >= 5
    assert window.throughput is None
    assert_gone(port)


def test_a_server_that_dies_leaves_its_last_words(server_host: Sshd, tmp_path: Path, start_probe: StartProbe) -> None:
    port, output = server_port(), tmp_path / "eagle.json"
    process = start_probe(server_host, output, launch_command("eagle", port))
    until_measuring(port, process)
    [marker] = folders_of(port, "agents/*.json")
    os.kill(json.loads(marker.read_text())["pid"], signal.SIGKILL)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 5, err
    assert "Traceback" not in err
    capture = store.read(output)
    assert capture.status == "partial"
    assert capture.server.last_log_lines
    assert capture.server.exit_code is not None
    assert_gone(port)


def test_a_lost_connection_stops_the_server_all_the_same(
    server_host: Sshd, tmp_path: Path, start_probe: StartProbe
) -> None:
    port, output = server_port(), tmp_path / "eagle.json"
    process = start_probe(server_host, output, launch_command("eagle", port))
    until_measuring(port, process)
    server_host.drop_connections()
    _, err = process.communicate(timeout=120)
    assert process.returncode == 4, err
    assert "Traceback" not in err
    assert store.read(output).status == "partial"
    assert_gone(port)


def test_a_launch_command_that_fails_at_once(server_host: Sshd, tmp_path: Path, start_probe: StartProbe) -> None:
    port, output = server_port(), tmp_path / "eagle.json"
    launch = launch_command("eagle", port, ["--no-such-argument"])
    process = start_probe(server_host, output, launch)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 5, err
    assert "--no-such-argument" in err
    assert any("--no-such-argument" in line for line in store.read(output).server.last_log_lines)


def test_a_server_that_ends_with_an_exception_is_quoted(
    server_host: Sshd, tmp_path: Path, start_probe: StartProbe
) -> None:
    """0.5.12 adds 10,000 to its port, for gRPC, and wants a port still."""
    process = start_probe(server_host, tmp_path / "c.json", launch_command("baseline", 60_020, release="0.5.12"))
    _, err = process.communicate(timeout=120)
    assert process.returncode == 5, err
    assert "exit code 1: ValueError: SGLANG_GRPC_PORT (70020) must be between" in err


# -- what keeps a probe from starting ----------------------------------------------------------------------------


def refused(host: Sshd, output: Path, launch: str, *more: str) -> tuple[int, str]:
    argv = [
        "probe",
        "--host",
        ALIAS,
        "--ssh-config",
        str(host.ssh_config),
        "--launch",
        launch,
        "-o",
        str(output),
        *more,
    ]
    ran = eaglediag(*argv)
    assert "Traceback" not in ran.err
    assert len(ran.err.strip().splitlines()) == 1, ran.err
    return ran.code, ran.err


def test_no_sglang_there(server_host: Sshd, tmp_path: Path) -> None:
    code, err = refused(server_host, tmp_path / "x.json", f"{sys.executable} -m sglang.launch_server")
    assert code == 5
    assert "has no SGLang" in err


def test_no_such_python(server_host: Sshd, tmp_path: Path) -> None:
    code, err = refused(server_host, tmp_path / "x.json", "/nowhere/python -m sglang.launch_server")
    assert code == 5
    assert "/nowhere/python is not there" in err


def test_port_taken(server_host: Sshd, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, err = refused(server_host, tmp_path / "x.json", launch_command("eagle", port))
    assert code == 5
    assert f"port {port} is taken" in err


def test_unknown_and_changed_host_keys(tmp_path: Path) -> None:
    launch = launch_command("eagle", server_port())
    with running_sshd(tmp_path / "sshd") as sshd:
        sshd.known_hosts.write_text("")
        code, err = refused(sshd, tmp_path / "x.json", launch)
        assert code == 4
        assert sshd.fingerprint() in err
        assert "--accept-new-host-key" in err
        sshd.trust()
        sshd.restart_with_new_host_key()
        code, err = refused(sshd, tmp_path / "x.json", launch, "--accept-new-host-key")
        assert code == 4
        assert "known_hosts" in err


@pytest.mark.skipif(
    os.getuid() != 0 or shutil.which("mount") is None, reason="a full disk is a tiny tmpfs, which only root can mount"
)
def test_disk_full(server_host: Sshd, tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(full)], check=True)
    try:
        code, err = refused(
            server_host, tmp_path / "x.json", launch_command("eagle", server_port()), "--remote-parent", str(full)
        )
        assert code == 4
        assert "No space left on device" in err
        assert not list(full.iterdir())
    finally:
        subprocess.run(["umount", str(full)], check=True)


def test_clean_removes_what_a_killed_probe_left(server_host: Sshd, tmp_path: Path) -> None:
    left = tmp_path / "eaglediag-0123456789ab"
    (left / "agents").mkdir(parents=True)
    busy = tmp_path / "eaglediag-ba9876543210"
    busy.mkdir()
    (busy / "supervisor.pid").write_text(str(os.getpid()))
    arguments = ("clean", "--host", ALIAS, "--ssh-config", server_host.ssh_config, "--remote-parent", tmp_path)
    assert "would be removed" in eaglediag(*arguments, "--dry-run").out
    assert left.exists()
    ran = eaglediag(*arguments)
    assert f"{left} removed" in ran.out
    assert not left.exists()
    assert busy.exists()


# -- other ways in ------------------------------------------------------------------------------------------------


def test_ab_over_the_command_line_writes_both_captures_and_steps(server_host: Sshd, tmp_path: Path) -> None:
    output = tmp_path / "results"
    launch = launch_command("ngram", server_port())
    argv = [
        *("probe", "--host", ALIAS, "--ssh-config", server_host.ssh_config, "--launch", launch, "-o", output, "--ab"),
        *("--arm", "ngram", "--concurrency", "2", "--requests", "4", "--max-new-tokens", "24", "--overhead-pairs", "0"),
        *("--ignore-eos", "--steps"),
    ]
    ran = eaglediag(*argv)
    assert ran.code == 0, ran.err
    baseline, ngram = store.read(output / "baseline.json"), store.read(output / "ngram.json")
    assert "--speculative" not in " ".join(baseline.server.command)
    assert {part.phase for _, batch in batches(ngram) for part in batch.parts} == {"draft", "verify"}
    assert all(batch.accept is not None for _, batch in batches(ngram))
    assert ngram.steps_file == "ngram.steps.jsonl.gz"
    with gzip.open(output / ngram.steps_file, "rt") as stream:
        header, *rows = (json.loads(line) for line in stream)
    assert header["window"] == "c2"
    assert len(header["columns"]) == len(rows[0])


@pytest.mark.parametrize(
    ("release", "arm", "route", "phases", "where"),
    [
        ("0.5.9", "baseline", "sitecustomize", {"decode"}, "model_runner.py"),
        ("0.5.12", "baseline", "plugin", {"decode"}, "model_runner.py"),
        ("0.5.23", "eagle", "plugin", {"draft", "verify", "draft_extend"}, "eagle_worker_common.py"),
    ],
)
def test_other_releases(
    server_host: Sshd, tmp_path: Path, release: str, arm: str, route: str, phases: set[str], where: str
) -> None:
    launch = launch_command(arm, server_port(), release=release)
    argv = [
        *(
            "probe",
            "--host",
            ALIAS,
            "--ssh-config",
            server_host.ssh_config,
            "--launch",
            launch,
            "-o",
            tmp_path / "c.json",
        ),
        *("--concurrency", "2", "--requests", "4", "--max-new-tokens", "24", "--overhead-pairs", "0", "--ignore-eos"),
        *("--endpoint", "generate"),
    ]
    ran = eaglediag(*argv)
    assert ran.code == 0, ran.err
    capture = store.read(tmp_path / "c.json")
    assert (capture.server.release, capture.instrumentation.route) == (release, route)
    assert {part.phase for _, batch in batches(capture) for part in batch.parts} == phases
    for phase in phases:
        deciding = [denial for denial in capture.denials if denial.phase == phase and denial.decides]
        assert deciding, phase
        assert all(denial.explained for denial in deciding)
    assert any(where in frame.file for denial in capture.denials for frame in denial.frames)


def test_two_ranks_are_recorded_and_can_be_watched_meanwhile(server_host: Sshd, tmp_path: Path) -> None:
    launch = LaunchCommand.parse(launch_command("eagle", server_port(), ["--tp-size", "2"]))
    output = tmp_path / "eagle.json"
    meanwhile: list[tuple[Capture, str]] = []

    def progress(stage: str, detail: str = "", fraction: float | None = None) -> None:
        if stage == "measuring" and output.exists() and not meanwhile:
            meanwhile.append((store.read(output), eaglediag("report", output).out))

    with open_host(ALIAS, ssh_config=server_host.ssh_config) as host:
        small = Load(
            built_in_prompts(), concurrency=(2, 1), requests=4, max_new_tokens=24, endpoint="generate", ignore_eos=True
        )
        [capture] = probe_arms(
            [host],
            [Arm("eagle", launch, output)],
            lambda arm, turn: Plan(arm.launch, small, arm.name, overhead_pairs=0),
            1,
            keep_steps=False,
            progress=progress,
        )
    [(unfinished, said)] = meanwhile
    assert (unfinished.status, len(unfinished.windows)) == ("partial", 1)
    assert [problem.code for problem in unfinished.problems if problem.code != "preflight"] == ["unfinished"]
    assert "still being measured" in said
    assert (capture.status, len(capture.windows)) == ("complete", 2)
    assert store.read(output).model_dump() == capture.model_dump()
    assert capture.instrumentation.ranks_expected == 2
    assert [rank.tp for rank in capture.instrumentation.ranks] == [0, 1]
    counts = [sum(batch.count for batch in rank.batches) for rank in capture.windows[0].ranks]
    assert counts[0] > 5
    assert abs(counts[0] - counts[1]) <= 1
    assert shlex.join(capture.server.command).endswith("--tp-size 2")


def test_a_server_on_two_nodes(server_host: Sshd, tmp_path: Path) -> None:
    """Both nodes are this machine: one over SSH and one without, so that each has its own connection and folder."""
    first, rendezvous = server_port(), server_port()
    more = ["--tp-size", "2", "--nnodes", "2", "--dist-init-addr", f"127.0.0.1:{rendezvous}"]
    launch = launch_command("eagle", first, more)
    launch = launch.replace(f"--port {first}", f"--port {str(first)[:-1]}{{node_rank}}")
    argv = [
        *("probe", "--host", ALIAS, "--host", "local", "--ssh-config", server_host.ssh_config, "--launch", launch),
        *("-o", tmp_path / "c.json", "--concurrency", "2", "--requests", "4", "--max-new-tokens", "24"),
        *("--overhead-pairs", "0", "--ignore-eos", "--endpoint", "generate"),
    ]
    ran = eaglediag(*argv)
    assert ran.code == 0, ran.err
    capture = store.read(tmp_path / "c.json")
    assert [(rank.rank, rank.host) for rank in capture.instrumentation.ranks] == [(0, ALIAS), (1, "local")]
    assert [window.steps_recorded > 5 for window in capture.windows[0].ranks] == [True, True]
