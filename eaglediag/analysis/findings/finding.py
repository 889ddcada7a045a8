"""What a finding is, and what findings are made from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from eaglediag.analysis.comparability import Comparability
from eaglediag.analysis.measured import Arm
from eaglediag.analysis.pairing import Load, Row
from eaglediag.capture.model import Capture, Phase

Sure = Literal["certain", "likely", "possible"]
#: What the time between a cycle and its break-even can be charged to.
Part = Literal["verify", "draft", "draft_extend", "decode", "gap", "cycle", "acceptance"]


@dataclass(frozen=True)
class Evidence:
    """One number or fact, and where it comes from."""

    fact: str
    source: str


@dataclass(frozen=True)
class Finding:
    """What is the matter, why we say so, how sure that is, what to do, and what would refute it.

    `part` is the share of the gap that the finding explains, if one; `batch_size` where it was seen, if at one.
    `denied` names the (arm, phase) pairs whose denied graphs the finding is about.
    """

    code: str
    what: str
    evidence: tuple[Evidence, ...]
    sure: Sure
    advice: str
    refuted_by: str
    part: Part | None = None
    batch_size: int | None = None
    denied: tuple[tuple[str, Phase], ...] = ()


@dataclass(frozen=True)
class Case:
    """Everything there is to judge: both captures, pooled and paired, and their differences."""

    baseline: Capture
    candidate: Capture
    base: Arm
    other: Arm
    rows: tuple[Row, ...]
    loads: tuple[Load, ...]
    comparability: Comparability

    @property
    def alike(self) -> bool:
        """Both arms speculate, or neither does: an older and a newer capture of the same arm."""
        return self.base.speculative == self.other.speculative
