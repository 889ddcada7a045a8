"""Collectives of one rank and window: eager calls as they were counted, and a graph's calls times its replays."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, cast

from eaglediag.capture.model import Collective, OutsideCollective, Phase, RankWindow

Key = tuple[str, int | None]


def add_collectives(window: RankWindow, report: dict[str, Any]) -> None:
    """Put what the agent counted into the window, by the passes that the window already has.

    Calls launched from Python are spread over the passes that ran eagerly; where every pass replayed a graph, they are
    what is left outside of it. A replay of b requests uses the smallest graph captured for b or more.
    """
    passes: dict[Key, dict[bool, int]] = defaultdict(lambda: {True: 0, False: 0})
    for stats in window.phases:
        passes[stats.phase, stats.batch_size][stats.graph is True] += stats.count
    for phase, batch, backend, operation, calls, size in report["eager"]:
        seen = passes.get((phase, batch))
        if phase and seen is not None:
            steps = seen[False] or seen[True]
            window.collectives.append(_collective((phase, batch), backend, operation, False, calls, size, steps))
        else:
            window.collectives_outside.append(
                OutsideCollective(backend=backend, operation=operation, calls=calls, bytes=size)
            )
    graphs: dict[str, dict[int, list[list[Any]]]] = defaultdict(dict)
    for phase, size, counts in report["captured"]:
        graphs[phase][size] = counts
    unseen: set[str] = set()
    for (phase, batch), seen in passes.items():
        if not seen[True] or batch is None:
            continue
        replayed = min((size for size in graphs[phase] if size >= batch), default=None)
        if replayed is None:
            unseen.add(phase)
            continue
        for backend, operation, calls, size in graphs[phase][replayed]:
            window.collectives.append(
                _collective((phase, batch), backend, operation, True, calls * seen[True], size * seen[True], seen[True])
            )
    if report["complete"]:
        phases = {phase for phase, _ in passes} - unseen
        window.collectives_counted = sorted(cast("set[Phase]", phases))


def _collective(
    key: Key, backend: str, operation: str, in_graph: bool, calls: int, size: int, steps: int
) -> Collective:
    return Collective(
        phase=cast(Phase, key[0]),
        batch_size=key[1],
        backend=backend,
        operation=operation,
        in_graph=in_graph,
        calls=calls,
        steps=steps,
        calls_per_step=calls / steps,
        bytes_per_step=size / steps,
    )
