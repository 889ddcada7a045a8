"""`eaglediag gates` on a tiny package of our own: what it lists, what changed, what the values decide on paper."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from eaglediag.analysis.gates import Installation, answers, parse_question
from eaglediag.errors import HostError, UsageError
from eaglediag.hosts.local import LocalHost
from eaglediag.probes import release as releases
from eaglediag.probes.installation import in_folder, on_host
from tests.invoke import Ran, eaglediag

ARGUMENTS = """
class ServerArgs:
    cuda_graph_max_bs: int = 8
    cuda_graph_bs: list = None
    disable_cuda_graph_padding: bool = False
    enable_dp_attention: bool = False
    dp_size: int = 1
    enable_window: bool = False
"""

RUNNER = '''
class CudaGraphRunner:
    def __init__(self, model_runner, sizes):
        self.capture_bs = sizes
        self.max_bs = max(self.capture_bs)
        self.disable_padding = model_runner.server_args.disable_cuda_graph_padding
        self.windowed = model_runner.server_args.enable_window
        self.graphs = {size: None for size in sizes}

    def can_run(self, forward_batch):
        """Whether there is a graph.
A line at the margin, inside the string.
"""
        if self.gathers:
            size = max(forward_batch.global_sizes)
        else:
            size = forward_batch.batch_size
        fits = size in self.graphs if self.disable_padding else size <= self.max_bs
        if self.windowed and forward_batch.batch_size > 4:
            return False
        if self.syncs:
            fits = fits and forward_batch.can_run_dp_cuda_graph
        return fits and forward_batch.plain
'''

DRAFT = """
class EAGLEDraftCudaGraphRunner:
    def can_run(self, forward_batch):
        return forward_batch.batch_size <= self.max_bs
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """An unpacked wheel that calls itself 0.5.9 and has two gates of its own."""
    return make(tmp_path / "wheel")


def make(folder: Path, runner: str = RUNNER, version: str = "0.5.9") -> Path:
    for file, text in {
        "version.py": f'__version__ = "{version}"\n',
        "__init__.py": "raise RuntimeError('imported')\n",
        "srt/server_args.py": ARGUMENTS,
        "srt/model_executor/cuda_graph_runner.py": runner,
        "srt/speculative/eagle_draft_cuda_graph_runner.py": DRAFT,
    }.items():
        path = folder / "sglang" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def told(ran: Ran) -> Any:
    assert ran.code == 0, ran.err
    return json.loads(ran.out)


def gate(document: Any, name: str) -> Any:
    return next(one for one in document["gates"] if one["gate"].endswith(f":{name}"))


# -- listing ----------------------------------------------------------------------------------------------------------


def test_conditions_with_place_guard_and_options(package: Path) -> None:
    document = told(eaglediag("gates", "--source", package, "--json"))
    assert (document["release"], document["checked_release"]) == ("0.5.9", True)
    runner = gate(document, "CudaGraphRunner.can_run")
    assert runner["file"] == "sglang/srt/model_executor/cuda_graph_runner.py"
    assert (runner["line"], runner["status"], runner["found_by"]) == (10, "changed", "table")
    assert [
        (one["text"], one["line"], one["denies_when"], one["asked_if"], one["depends_on"])
        for one in runner["conditions"]
    ] == [
        ("size in self.graphs", 18, False, ["self.disable_padding"],
         ["--cuda-graph-max-bs", "--cuda-graph-bs", "--disable-cuda-graph-padding"]),
        ("size <= self.max_bs", 18, False, ["not self.disable_padding"],
         ["--cuda-graph-max-bs", "--cuda-graph-bs", "--disable-cuda-graph-padding"]),
        ("self.windowed and forward_batch.batch_size > 4", 19, True, [], ["--enable-window"]),
        ("forward_batch.can_run_dp_cuda_graph", 22, False, ["self.syncs"], ["--enable-dp-attention", "--dp-size"]),
        ("forward_batch.plain", 23, False, [], []),
    ]  # fmt: skip
    assert [one["asks"] for one in runner["conditions"]] == [
        None,  # `size` is no name that SGLang uses
        "is the batch within the largest captured size?",
        None,
        "can every data-parallel rank run a graph in this step?",
        None,
    ]
    assert len(runner["source_hash"]) == 64
    assert "model_executor/model_runner.py: ModelRunner._forward_raw" in [one["gate"] for one in document["missing"]]


@pytest.mark.parametrize("inside", ["", "sglang", "checkout"])
def test_any_folder_that_holds_the_package(package: Path, inside: str) -> None:
    folder = package / inside
    if inside == "checkout":
        folder.mkdir()
        (folder / "python").symlink_to(package)
    assert gate(told(eaglediag("gates", "--source", folder, "--json")), "CudaGraphRunner.can_run")


def test_only_the_gates_of_one_phase(package: Path) -> None:
    document = told(eaglediag("gates", "--source", package, "--phase", "draft", "--json"))
    assert [one["gate"] for one in document["gates"]] == [
        "speculative.eagle_draft_cuda_graph_runner:EAGLEDraftCudaGraphRunner.can_run"
    ]


@pytest.mark.parametrize("width", [80, 120, 200])
def test_the_list_fits_and_says_the_state_first(package: Path, width: int) -> None:
    ran = eaglediag("gates", "--source", package, width=width)
    assert ran.code == 0
    lines = ran.out.splitlines()
    assert lines[0].startswith("SGLang 0.5.9, a checked release: 2 gates; 2 changed, but parsed;")
    assert max(map(len, lines)) <= width
    text = " ".join(ran.out.split())
    assert "18 needs size <= self.max_bs asked only if not self.disable_padding;" in text
    assert "19 refuses self.windowed and forward_batch.batch_size > 4 depends on --enable-window" in text
    assert "decode, verify, idle" in lines


def test_a_gate_in_which_nothing_decides_is_not_understood(tmp_path: Path) -> None:
    yields = "class CudaGraphRunner:\n    def can_run(self, forward_batch):\n        self.answer(forward_batch)\n"
    document = told(eaglediag("gates", "--source", make(tmp_path, yields), "--json"))
    assert gate(document, "CudaGraphRunner.can_run")["status"] == "not understood"
    assert "1 not understood" in document["headline"]


def test_source_that_obeys_no_terminal(tmp_path: Path) -> None:
    evil = RUNNER.replace("forward_batch.plain", "forward_batch.named('\x1b[2J\u202e')")
    ran = eaglediag("gates", "--source", make(tmp_path, evil))
    assert ran.code == 0
    assert "\x1b" not in ran.out
    assert "\u202e" not in ran.out


# -- differences ------------------------------------------------------------------------------------------------------


def test_what_changed_between_two(package: Path, tmp_path: Path) -> None:
    moved = RUNNER.replace("class CudaGraphRunner", "class NewGraphRunner").replace(
        "fits and forward_batch.plain", "fits and forward_batch.simple and forward_batch.whole"
    )
    other = make(tmp_path / "other", moved, "0.5.99")
    (other / "sglang/srt/speculative/eagle_draft_cuda_graph_runner.py").unlink()
    (other / "sglang/srt/server_args.py").write_text("")
    document = told(eaglediag("gates", "--diff", package, other, "--json"))
    assert [one["gate"].rpartition(":")[2] for one in document["removed"]] == ["EAGLEDraftCudaGraphRunner.can_run"]
    assert document["added"] == []
    (change,) = document["changed"]
    assert change["moved"]
    assert change["old"]["gate"].endswith("CudaGraphRunner.can_run")
    assert change["new"]["gate"].endswith("NewGraphRunner.can_run")
    assert change["conditions_removed"] == ["forward_batch.plain"]
    assert change["conditions_added"] == ["forward_batch.simple", "forward_batch.whole"]
    ran = eaglediag("gates", "--diff", package, other)
    assert ran.out.startswith("From SGLang 0.5.9 to SGLang 0.5.99: 0 gates added, 1 removed, 1 moved or renamed, 1 ask")
    assert "was model_executor.cuda_graph_runner:CudaGraphRunner.can_run" in ran.out


def test_nothing_changed(package: Path, tmp_path: Path) -> None:
    document = told(eaglediag("gates", "--diff", package, make(tmp_path / "other"), "--json"))
    assert (document["added"], document["removed"], document["changed"], document["same"]) == ([], [], [], 2)


# -- on paper ---------------------------------------------------------------------------------------------------------


def explained(package: Path, question: str) -> dict[str, Any]:
    document = told(eaglediag("gates", "--source", package, "--explain", question, "--json"))
    return {one["text"]: one for one in document["conditions"] if ":CudaGraphRunner" in one["gate"]}


def test_what_the_values_decide_and_what_they_do_not(package: Path) -> None:
    found = explained(package, "phase=verify batch=12 max_bs=8")
    denied = found["size <= self.max_bs"]
    assert (denied["verdict"], denied["shown"]) == ("denies", "12 <= 8")
    assert denied["assuming"] == ["not self.disable_padding", "not self.gathers"]
    assert denied["advice"]["flag"] == "--cuda-graph-max-bs 12"
    assert (found["size in self.graphs"]["verdict"], found["size in self.graphs"]["needs"]) == (
        "unknown",
        ["self.graphs"],
    )
    windowed = found["self.windowed and forward_batch.batch_size > 4"]
    assert (windowed["verdict"], windowed["assuming"]) == ("denies", ["self.windowed"])
    assert windowed["shown"] == "self.windowed and 12 > 4"
    assert windowed["advice"] is None
    assert found["forward_batch.plain"]["verdict"] == "unknown"


def test_values_choose_the_branch(package: Path) -> None:
    found = explained(package, "batch=3 capture_bs=1,2,4 disable_padding=1 gathers=0 windowed=0")
    assert (found["size in self.graphs"]["verdict"], found["size in self.graphs"]["shown"]) == (
        "denies",
        "3 in [1, 2, 4]",
    )
    assert found["size in self.graphs"]["assuming"] == []
    assert found["size <= self.max_bs"]["verdict"] == "not asked"
    assert found["self.windowed and forward_batch.batch_size > 4"]["verdict"] == "allows"


def test_the_maximum_follows_from_the_captured_sizes_as_the_constructor_says(package: Path) -> None:
    found = explained(package, "batch=5 capture_bs=1,2,4")
    assert found["size <= self.max_bs"]["shown"] == "5 <= 4"


def test_both_outcomes_of_what_was_not_given_are_followed(package: Path) -> None:
    found = explained(package, "global_sizes=3,9 max_bs=8")
    assert found["size <= self.max_bs"]["shown"] == "9 <= 8"
    assert "self.gathers" in found["size <= self.max_bs"]["assuming"]


def test_the_verdict_comes_first_and_advice_with_it(package: Path) -> None:
    ran = eaglediag("gates", "--source", package, "--explain", "phase=verify batch=12 max_bs=8", width=80)
    assert ran.code == 0
    text = " ".join(ran.out.split())
    assert text.startswith("With these values verify is denied its graph by 2 conditions, with the provisos below.")
    assert "`size <= self.max_bs` is `12 <= 8` (cuda_graph_runner.py:18, CudaGraphRunner.can_run)" in text
    assert "provided that not self.disable_padding and not self.gathers" in text
    assert "`--cuda-graph-max-bs 12` would allow it" in text
    assert max(map(len, ran.out.splitlines())) <= 80


def test_values_that_decide_nothing(package: Path) -> None:
    ran = eaglediag("gates", "--source", package, "--explain", "phase=verify capture_bs=1,2")
    assert ran.code == 3
    assert ran.out.startswith("These values decide no condition of verify.")


def test_paper_says_what_the_code_says(package: Path) -> None:
    """All values given: a condition denies on paper exactly when the code, run for once, says no."""
    namespace: dict[str, Any] = {}
    exec(RUNNER, namespace)
    installation = in_folder(package)
    yes = (0, 1)
    for size, gathers, padding_off, windowed, syncs in itertools.product((1, 3, 4, 6, 9), yes, yes, yes, yes):
        for dp, plain in itertools.product(yes, yes):
            runner = object.__new__(namespace["CudaGraphRunner"])
            runner.__dict__.update(
                gathers=gathers, disable_padding=padding_off, windowed=windowed, syncs=syncs, max_bs=6,
                graphs={1: None, 4: None, 6: None},
            )  # fmt: skip
            batch = types.SimpleNamespace(
                batch_size=size, global_sizes=(size, 2), can_run_dp_cuda_graph=dp, plain=plain
            )
            question = (
                f"phase=verify batch={size} global_sizes={size},2 gathers={gathers} disable_padding={padding_off} "
                f"windowed={windowed} syncs={syncs} can_run_dp_cuda_graph={dp} plain={plain} max_bs=6 capture_bs=1,4,6"
            )
            found = answers(installation, parse_question(question, installation))
            assert {one.verdict for one in found} <= {"denies", "allows", "not asked"}, question
            assert not any(one.assuming for one in found)
            assert any(one.verdict == "denies" for one in found) is not bool(runner.can_run(batch)), question


# -- where it looks ---------------------------------------------------------------------------------------------------


def test_the_python_of_this_machine(package: Path, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={package} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    parent = tmp_path / "parent"
    parent.mkdir()
    with LocalHost() as host:
        installation = on_host(host, str(python), str(parent))
    assert isinstance(installation, Installation)
    assert installation.where == f"local, {python}"
    assert [one.qualname for one in installation.of_phase("verify")] == ["CudaGraphRunner.can_run"]
    assert list(parent.iterdir()) == []
    ran = eaglediag("gates", "--host", "local", "--python", python, "--remote-parent", parent, "--json")
    assert gate(told(ran), "CudaGraphRunner.can_run")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["gates"], 2, "no installation given"),
        (["gates", "--release", "0.5.9", "--source", "x"], 2, "--source and --release given"),
        (["gates", "--source", "/nowhere"], 2, "/nowhere is no folder"),
        (["gates", "--source", "/etc"], 2, "/etc holds no sglang"),
        (["gates", "--release", "newest"], 2, "newest is no release"),
        (["gates", "--release", "0.5.9", "--python", "p"], 2, "--python needs --host"),
        (["gates", "--release", "0.5.9", "--phase", "sleep"], 2, "sleep is no phase"),
        (["gates", "--diff", "0.5.9", "0.5.12", "--explain", "batch=1"], 2, "--explain works on one"),
        (["gates", "--host", "local", "--python", "/no/python"], 5, "/no/python is not there"),
        (["gates", "--host", "local", "--python", sys.executable], 5, "has no SGLang"),
    ],
)
def test_refused_in_one_line(arguments: list[str], code: int, message: str) -> None:
    ran = eaglediag(*arguments)
    assert (ran.code, ran.out) == (code, "")
    assert message in ran.err
    assert len(ran.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ("batch", "`batch` is no name=value"),
        ("phase=sleep batch=1", "sleep is no phase"),
        ("phase=verify", "no value was given"),
        ("colour=3", "no gate of SGLang 0.5.9 reads `colour`"),
    ],
)
def test_questions_that_cannot_be_answered(package: Path, question: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_question(question, in_folder(package))
    assert message in str(caught.value)


def test_a_release_is_fetched_once_and_only_its_source_kept(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pip is asked for the wheel; what is not the server's source stays in it."""
    (package / "sglang" / "lang").mkdir()
    (package / "sglang" / "lang" / "api.py").write_text("")
    calls: list[list[str]] = []
    run = subprocess.run

    def pip(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        if "download" not in command:
            return run(command, **options)
        calls.append(command)
        wheel = Path(command[command.index("--dest") + 1]) / "sglang-0.5.9-py3-none-any.whl"
        run([sys.executable, "-m", "zipfile", "-c", str(wheel), str(package / "sglang")], check=True)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", pip)
    monkeypatch.setenv("EAGLEDIAG_CACHE", str(tmp_path / "cache"))
    stages: list[str] = []
    for _ in range(2):
        folder = releases.release_source(
            "0.5.9", lambda stage, detail="", fraction=None: stages.append(f"{stage} {detail}")
        )
    assert len(calls) == 1
    assert "--no-deps" in calls[0]
    assert stages[0] == "fetching SGLang 0.5.9"
    assert folder == tmp_path / "cache" / "releases" / "0.5.9"
    assert list(folder.parent.iterdir()) == [folder]
    assert not (folder / "sglang" / "lang").exists()
    assert gate(told(eaglediag("gates", "--release", "0.5.9", "--json")), "CudaGraphRunner.can_run")


def test_a_host_that_prints_something_else(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\ncase "$1" in *listing.py) echo hello;; *) exec python3 "$@";; esac\n')
    python.chmod(0o755)
    with LocalHost() as host, pytest.raises(HostError, match="printed no list of gates"):
        on_host(host, str(python), str(tmp_path))
    assert list(tmp_path.iterdir()) == [python]


def test_a_release_that_pip_does_not_find(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pip(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, int("download" in command), "", "ERROR: No matching distribution\n")

    monkeypatch.setattr(subprocess, "run", pip)
    monkeypatch.setenv("EAGLEDIAG_CACHE", str(tmp_path))
    with pytest.raises(UsageError, match=r"pip cannot fetch SGLang 9\.9: ERROR: No matching distribution"):
        releases.release_source("9.9")
    assert list((tmp_path / "releases").iterdir()) == []


def test_help_has_working_examples() -> None:
    ran = eaglediag("gates", "--help", width=200)
    assert ran.code == 0
    assert "eaglediag gates --release 0.5.9 --explain 'phase=verify batch=12 max_bs=8'" in ran.out
