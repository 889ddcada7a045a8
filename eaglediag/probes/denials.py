"""Denials as every rank counted them in every window, made one list."""

from __future__ import annotations

import json
from typing import Any

from eaglediag.capture.model import Denial, Frame


def merge_denials(counted: dict[str, list[tuple[int, list[dict[str, Any]]]]]) -> list[Denial]:
    """Aggregate by phase, batch size, gate, frames and values; `counted[window]` is (rank, denials) pairs."""
    merged: dict[str, Denial] = {}
    for window, ranks in counted.items():
        for rank, denials in ranks:
            for entry in denials:
                frames = entry.get("frames", [])
                shown = [[frame["file"], frame["line"], frame["shown"]] for frame in frames]
                key = json.dumps([entry["phase"], entry["batch_size"], entry["gate"], shown, entry.get("reason", "")])
                denial = merged.get(key)
                if denial is None:
                    denial = merged[key] = Denial(
                        phase=entry["phase"],
                        batch_size=entry["batch_size"],
                        gate=entry["gate"],
                        frames=[Frame(**frame) for frame in frames],
                        explained=entry["explained"],
                        decides=entry.get("decides", True),
                        reason=entry.get("reason", ""),
                    )
                denial.counts[rank] = denial.counts.get(rank, 0) + entry["count"]
                denial.windows[window] = denial.windows.get(window, 0) + entry["count"]
    return sorted(
        merged.values(), key=lambda denial: (denial.phase, denial.batch_size or 0, -sum(denial.counts.values()))
    )
