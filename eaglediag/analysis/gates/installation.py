"""An SGLang installation as the payload's listing describes it: its launch options and its gates, source included."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from eaglediag.analysis.gates.source import Place, places

Status = Literal["known", "changed", "not understood"]


@dataclass(frozen=True)
class Condition:
    """One reason a gate may say no, in the words of the code; it denies when it comes out `denies_when`."""

    text: str
    line: int
    denies_when: bool


@dataclass(frozen=True)
class Gate:
    """A gate, or a caller that asks one. `file` is relative to what holds the package; `attributes` are self's.

    `known` says that a checked release has the very same source, `decides` that a decision was found in it. `device`
    names what a gate is for that is not for CUDA: cpu, npu, xpu.
    """

    module: str
    qualname: str
    kind: Literal["gate", "caller"]
    phases: tuple[str, ...]
    file: str
    line: int
    source_hash: str
    conditions: tuple[Condition, ...]
    how: Literal["table", "pattern"]
    known: bool
    decides: bool
    settles: bool
    device: str
    source: str
    attributes: Mapping[str, str]

    @property
    def target(self) -> str:
        """How captures name it: `model_executor.cuda_graph_runner:CudaGraphRunner.can_run`."""
        return self.module.removeprefix("sglang.srt.") + ":" + self.qualname

    @property
    def status(self) -> Status:
        """Known; changed since the checked releases (or new), but parsed; or of a shape in which nothing decides."""
        if self.known:
            return "known"
        return "changed" if self.decides else "not understood"

    @cached_property
    def places(self) -> dict[tuple[str, int], Place]:
        """Where each condition stands in the function, by text and line."""
        return places(self.source, self.line, [(one.text, one.line) for one in self.conditions])

    def when(self, condition: Condition) -> tuple[str, ...]:
        """The tests inside the gate that must hold for the condition to be asked at all."""
        place = self.places.get((condition.text, condition.line))
        return tuple(guard.text for guard in place.guards) if place else ()


@dataclass(frozen=True)
class Installation:
    """What was found. `where` says where it was read; `missing` are listed gates that its source does not have."""

    where: str
    release: str
    commit: str | None
    package: str
    known: bool
    missing: tuple[tuple[str, str], ...]
    options: frozenset[str]
    gates: tuple[Gate, ...]

    @classmethod
    def from_json(cls, listed: Mapping[str, Any], where: str) -> Installation:
        """From what the payload's `listing.py` printed; LookupError, TypeError or ValueError for anything else."""
        return cls(
            where=where,
            release=listed["release"],
            commit=listed["commit"],
            package=listed["package"],
            known=listed["known"],
            missing=tuple((what, why) for what, why in listed["missing"]),
            options=frozenset(listed["options"]),
            gates=tuple(
                Gate(
                    **{
                        **gate,
                        "phases": tuple(gate["phases"]),
                        "conditions": tuple(Condition(**condition) for condition in gate["conditions"]),
                    }
                )
                for gate in listed["gates"]
            ),
        )

    @property
    def name(self) -> str:
        """`SGLang 0.5.9`, with the commit of a checkout."""
        return f"SGLang {self.release or 'of an unknown release'}" + (f" ({self.commit})" if self.commit else "")

    def of_phase(self, phase: str | None) -> Iterator[Gate]:
        """The gates that are asked in a phase; all without one."""
        return (gate for gate in self.gates if phase is None or phase in gate.phases)
