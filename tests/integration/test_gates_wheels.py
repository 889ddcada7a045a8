"""Every gate of every checked release, found in the published wheels: by table, by pattern, by name."""

from __future__ import annotations

import ast
import json
import shutil
from functools import cache
from pathlib import Path

import pytest

from eaglediag.probes.payload import gates
from eaglediag.probes.payload.gate_table import CHECKED, TABLE
from eaglediag.probes.payload.rewrite import Rewriter
from tests.wheels import release_source

pytestmark = [pytest.mark.wheels, pytest.mark.timeout(600)]

EXPECTED = json.loads((Path(__file__).parents[1] / "data" / "gates.json").read_text())


def package(release: str) -> Path:
    return release_source(release) / "sglang"


@cache
def found_in(release: str) -> gates.Found:
    return gates.find(str(package(release)))


def _listed(found: gates.Found) -> dict[str, list[str]]:
    listed: dict[str, list[str]] = {}
    for gate in found.gates:
        listed.setdefault(f"{'+'.join(gate.phases)} {gate.kind}", []).append(gate.target)
    return {key: sorted(names) for key, names in sorted(listed.items())}


@pytest.mark.parametrize("release", CHECKED)
def test_the_gates_of_a_release_are_these(release: str) -> None:
    found = found_in(release)
    assert found.release == release
    assert found.known
    assert found.missing == ()
    assert _listed(found) == EXPECTED[release]
    assert [gate.target for gate in found.gates if not gate.known] == []


@pytest.mark.parametrize("release", CHECKED)
def test_every_gate_has_lines_and_conditions_and_can_be_rewritten(release: str) -> None:
    for gate in found_in(release).gates:
        source = Path(gate.file).read_text()
        name = gate.qualname.rpartition(".")[2]
        assert source.splitlines()[gate.line - 1].strip().startswith(f"def {name}(")
        for condition in gate.conditions:
            assert gate.line <= condition.line
        function = next(
            node
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.FunctionDef) and node.lineno == gate.line
        )
        rewritten = Rewriter(function, gate.kind, lambda _: True).rewrite(0)
        compile(ast.Module([rewritten.tree], []), gate.file, "exec")
        # A gate that always says the same, and a caller that only hands on, have decisions but no conditions.
        assert rewritten.decisions or name == "can_run", gate.target


@pytest.mark.parametrize("release", ["0.5.2", "0.5.9", "0.5.12", "0.5.14", "0.5.23"])
def test_the_pattern_alone_finds_what_the_table_names(release: str, monkeypatch: pytest.MonkeyPatch) -> None:
    by_table = {gate.target for gate in found_in(release).gates}
    monkeypatch.setattr(gates, "rows", lambda _: ())
    found = gates.find(str(package(release)))
    assert {gate.target for gate in found.gates} == by_table
    assert {gate.how for gate in found.gates} == {"pattern"}


def test_a_release_that_moved_a_gate_is_told_by_name(tmp_path: Path) -> None:
    moved = tmp_path / "sglang"
    shutil.copytree(package("0.5.23"), moved)
    file = moved / "srt" / "speculative" / "eagle_draft_cuda_graph_runner.py"
    file.write_text(file.read_text().replace("def can_run_graph(", "def may_replay("))
    found = gates.find(str(moved), "0.5.24")
    assert not found.known
    assert found.missing == (
        (
            "speculative/eagle_draft_cuda_graph_runner.py: EAGLEDraftCudaGraphRunner.can_run_graph",
            "not in the source of 0.5.24",
        ),
    )


def test_a_changed_gate_is_found_but_not_known(tmp_path: Path) -> None:
    changed = tmp_path / "sglang"
    shutil.copytree(package("0.5.9"), changed)
    file = changed / "srt" / "model_executor" / "cuda_graph_runner.py"
    file.write_text(file.read_text().replace("cuda_graph_bs <= self.max_bs", "cuda_graph_bs < self.max_bs"))
    gate = next(gate for gate in gates.find(str(changed), "0.5.9").gates if gate.qualname == "CudaGraphRunner.can_run")
    assert not gate.known
    assert "cuda_graph_bs < self.max_bs" in [condition.text for condition in gate.conditions]


def test_conditions_are_those_of_the_source() -> None:
    gate = next(gate for gate in found_in("0.5.9").gates if gate.qualname == "CudaGraphRunner.can_run")
    assert [(condition.line, condition.text) for condition in gate.conditions] == [
        (401, "graph_key in self.graphs"),
        (403, "cuda_graph_bs <= self.max_bs"),
        (407, "forward_batch.can_run_dp_cuda_graph"),
        (413, "torch.all(forward_batch.encoder_lens > 0)"),
        (
            428,
            "requested_capture_hidden_mode == CaptureHiddenMode.NULL"
            " or requested_capture_hidden_mode == self.capture_hidden_mode",
        ),
        (432, "forward_batch.can_run_tbo"),
        (437, "forward_batch.batch_size * self.num_tokens_per_bs == forward_batch.input_ids.numel()"),
    ]


def test_who_asks_a_gate() -> None:
    found = found_in("0.5.9")
    gate = next(gate for gate in found.gates if gate.qualname == "EAGLEDraftCudaGraphRunner.can_run")
    assert {one.qualname for one in gates.callers(gate, found)} >= {
        "EAGLEWorker.draft",
        "EagleDraftInputV2Mixin.prepare_for_v2_draft",
    }


def test_the_table_names_only_checked_releases() -> None:
    assert {row.since for row in TABLE} | {row.until for row in TABLE if row.until} <= set(CHECKED)
