"""What the checks need and what they say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from packaging.version import InvalidVersion, Version

from eaglediag.errors import UsageError

#: The oldest and the newest release whose source these rules were read in.
OLDEST, NEWEST = "0.5.2", "0.5.23"

Level = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Finding:
    """`error`: it will not start or not do what is asked. `warning`: it costs speed or correctness. `note`: know it."""

    level: Level
    code: str
    message: str
    advice: str = ""


@dataclass(frozen=True)
class Rules:
    """How one SGLang release behaves.

    `options` are the launch options it knows, None when its source was not read. `grid(max_bs, speculative, padding)`
    are the batch sizes it captures; `source` says where the rules come from.
    """

    release: str = NEWEST
    options: frozenset[str] | None = None
    grid: Callable[[int, bool, bool], list[int]] | None = field(default=None, compare=False)
    source: str = "built in"

    def at_least(self, release: str) -> bool:
        """Whether this release is that one or later."""
        try:
            return Version(self.release) >= Version(release)
        except InvalidVersion:
            return True

    @property
    def judged_as(self) -> str:
        """The release whose rules these are: with the built-in ones the nearest that was read.

        Raises UsageError for a release that is no version.
        """
        try:
            version = Version(self.release)
        except InvalidVersion:
            raise UsageError(f"{self.release} is not a release", f"give one like {NEWEST}") from None
        if self.options is not None:
            return self.release
        return OLDEST if version < Version(OLDEST) else NEWEST if version > Version(NEWEST) else self.release

    @property
    def basis(self) -> str:
        """By what a command is judged, for the line behind the findings."""
        judged = f"by the rules of {self.judged_as}, {self.source}"
        if self.judged_as != self.release:
            judged += f": {self.release} is not known, only {OLDEST} to {NEWEST}"
        if self.options is None:
            judged += "; options are not checked for existence, which --source FOLDER does"
        return judged

    @property
    def maximum_option(self) -> str:
        """What the option for the largest captured batch size is called."""
        return "--cuda-graph-max-bs-decode" if self.at_least("0.5.14") else "--cuda-graph-max-bs"

    def captured(self, max_bs: int, speculative: bool, padding: bool) -> list[int]:
        """The batch sizes captured with this maximum."""
        if self.grid is not None:
            return self.grid(max_bs, speculative, padding)
        return captured_sizes(self, max_bs, speculative, padding)


def captured_sizes(rules: Rules, max_bs: int, speculative: bool, padding: bool) -> list[int]:
    """The built-in grid: from 0.5.4 that of ServerArgs._generate_cuda_graph_batch_sizes, before of cuda_graph_runner.

    From 0.5.10 the maximum itself is captured when it is not on the grid. Before 0.5.4 sizes above 160 depend on the
    GPU's memory and are not judged.
    """
    if not rules.at_least("0.5.4"):
        return _older_sizes(max_bs, speculative, padding)
    if not padding:
        sizes = list(range(1, max_bs + 1))
    elif speculative:
        sizes = [*range(1, 9), *range(10, 33, 2), *range(40, 65, 4), *range(72, 257, 8), *range(272, max_bs + 1, 16)]
    else:
        sizes = [1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 512, 16), *range(512, max_bs + 1, 32)]
    sizes = [size for size in sizes if size <= max_bs]
    if rules.at_least("0.5.10") and max_bs not in sizes:
        sizes.append(max_bs)
    return sizes


def _older_sizes(max_bs: int, speculative: bool, padding: bool) -> list[int]:
    if speculative:
        sizes = [*range(1, 9), *range(10, 33, 2), *range(40, 64, 8), *range(80, 161, 16)]
    elif padding:
        sizes = [1, 2, 4, 8, *range(16, 161, 8)]
    else:
        sizes = [*range(1, 33), *range(48, 161, 16)]
    return [size for size in sizes if size <= max_bs] + ([max_bs] if max_bs > max(sizes) else [])
