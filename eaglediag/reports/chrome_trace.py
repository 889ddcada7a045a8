"""Raw steps in Chrome's trace format, on the clock of the traces that SGLang's own profiler (torch's Kineto) writes.

Kineto writes `ts` in microseconds since a base that is the same for all traces of a quarter: the last multiple of
7,889,238 s (three mean months) of Unix time before it was written, given as `baseTimeNanoseconds`. Viewers look at
`ts` alone, so the same base is used here and both files line up when they are opened together.

Every rank is a process with one track for each kind of step; draft, verify and draft-extend lie inside their cycle.
Where the device's time was measured there is a second track of it. Its durations are measured, its places are not: a
span is put at the earliest moment it can have begun, when it was enqueued and the one before it had ended.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from eaglediag.analysis.sentences import PHASE_NAMES, condition
from eaglediag.capture.model import Capture, Denial, Rank
from eaglediag.reports.steps_file import Parcel, Reading, over
from eaglediag.reports.text_rows import chosen, decimal, joined
from eaglediag.reports.untrusted import printable
from eaglediag.whole_file import whole_file

if TYPE_CHECKING:
    import pandas as pd

#: Kineto's quarter: three months of 2,629,746 s.
QUARTER_S = 7_889_238
#: Process numbers above Linux's largest, so that ours never meet those of another trace.
FIRST_PROCESS = 10_000_000
CLOCKS = FIRST_PROCESS - 1
TRACKS: dict[str, int] = {"extend": 1, "decode": 2, "cycle": 3, "idle": 4, "verify": 5, "draft": 6, "draft_extend": 7}
#: The device's own tracks.
ON_DEVICE = 10
#: What the events of one kind on one track have in common.
KIND = ["phase", "batch", "tokens", "graph"]
#: (phase, batch size as JSON) -> the condition that denied its graph, as JSON
Conditions = dict[tuple[str, str], str]


def base_ns(created: float) -> int:
    """The time that `ts` counts from, in ns of Unix time, for a trace of that day."""
    return int(created // QUARTER_S) * QUARTER_S * 1_000_000_000


def write(capture: Capture, steps: Path, out: Path, reading: Reading | None = None) -> None:
    """Write the trace, compressed when the name ends with .gz.

    Raises CaptureError for a damaged file of steps and OSError when `out` cannot be written.
    """
    base = base_ns(capture.created)
    packed = out.suffix == ".gz"
    work = partial(_events, base=base, conditions=_conditions(capture), packed=packed)
    head = {
        "schemaVersion": 1,
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": base,
        "traceName": printable(capture.arm),
    }
    with whole_file(out) as stream:

        def put(text: str) -> None:
            stream.write(gzip.compress(text.encode(), 1) if packed else text.encode())

        # Metadata goes last: which tracks there are is known when all steps have been seen.
        put(json.dumps(head)[:-1] + ', "traceEvents": [\n')
        tracks: set[tuple[int, int]] = set()
        for seen, text in over(steps, work, reading):
            tracks |= seen
            stream.write(text)
        rest = [*_counters(capture, base), *_names(capture, tracks)]
        put(",\n".join(rest) + "\n]}\n")


def _conditions(capture: Capture) -> Conditions:
    """What to say at an eager pass: the condition that decided most often, by phase and batch size."""
    chosen: dict[tuple[str, int | None], Denial] = {}
    for denial in capture.denials:
        place = (denial.phase, denial.batch_size)
        known = chosen.get(place)
        if denial.decides and (known is None or sum(known.counts.values()) < sum(denial.counts.values())):
            chosen[place] = denial
    return {
        (phase, json.dumps(batch)): json.dumps(printable(condition(denial))[:500])
        for (phase, batch), denial in chosen.items()
    }


def _events(parcel: Parcel, base: int, conditions: Conditions, packed: bool) -> tuple[set[tuple[int, int]], bytes]:
    """(tracks met, events as text) of one parcel. Runs in a process of its own for large files."""
    section, rows = parcel.section, parcel.steps()
    process = FIRST_PROCESS + section.rank
    rows["ts_ns"] = rows["start_ns"] + (section.epoch_ns - base)
    is_step = rows["row"] == "step"
    kinds = rows.loc[is_step].drop_duplicates("step").set_index("step")["phase"]
    rows["tid"] = rows["step"].map(kinds.astype("object").map(TRACKS)).fillna(TRACKS["cycle"]).astype("int64")
    # A step that was recorded phase by phase only frames them.
    bare = rows[~is_step | ~rows["step"].isin(rows.loc[~is_step, "step"])]
    device = bare[bare["device_us"].notna()]
    spent_ns = (device["device_us"] * 1e3).round().astype("int64")
    # A parcel does not know when the device finished the one before: neighbours take turns on two tracks.
    device = device.assign(tid=ON_DEVICE + parcel.number % 2, ts_ns=_earliest(device["ts_ns"], spent_ns))
    text = _spans(rows, rows["host_ns"].fillna(0), process) + _spans(device, spent_ns, process)
    eager = bare[bare["graph"] == "false"]
    for (phase, batch, tid), passes in eager.groupby(["phase", "batch", "tid"], observed=True) if len(eager) else ():
        if said := conditions.get((phase, batch)) or conditions.get((phase, "null")):
            head = f'{{"ph":"i","s":"t","pid":{process},"tid":{tid},"name":"no graph","args":'
            head += f'{{"phase":"{phase}","condition":{said}}},"ts":'
            text += joined(len(passes), head.encode(), decimal(passes["ts_ns"].to_numpy(), 3), b"},\n")
    tracks = {(section.rank, int(track)) for part in (rows, device) for track in part["tid"].unique()}
    return tracks, gzip.compress(text, 1) if packed else text


def _spans(rows: pd.DataFrame, spent_ns: pd.Series[float] | pd.Series[int], process: int) -> bytes:
    """Complete events. There are few kinds of them, so most of each line is made once a kind."""
    kind = rows["tid"].to_numpy()
    for name in KIND:
        kind = kind * len(rows[name].cat.categories) + rows[name].cat.codes.to_numpy()
    _, first, kind = np.unique(kind, return_index=True, return_inverse=True)
    heads, tails = [], []
    for tid, phase, batch, tokens, graph in rows[["tid", *KIND]].iloc[first].itertuples(index=False):
        heads.append(f'{{"ph":"X","pid":{process},"tid":{tid},"name":"{phase}","ts":'.encode())
        tails.append(f',"args":{{"batch":{batch},"tokens":{tokens},"graph":{graph},"step":'.encode())
    return joined(
        len(rows),
        chosen(heads, kind),
        decimal(rows["ts_ns"].to_numpy(), 3),
        b',"dur":',
        decimal(spent_ns.to_numpy(), 3),
        chosen(tails, kind),
        decimal(rows["step"].to_numpy()),
        b"}},\n",
    )


def _earliest(starts: pd.Series[int], spent: pd.Series[int]) -> pd.Series[int]:
    """Where spans of `spent` lie when each begins at its start or when the one before has ended, whichever is later."""
    before = spent.cumsum() - spent
    return before + (starts - before).cummax()


def _counters(capture: Capture, base: int) -> Iterator[str]:
    """Clocks, power and clock event reasons of every GPU, as counters; viewers put the unit behind the name."""
    for host in capture.hosts:
        for gpu in host.gpus:
            series = gpu.series
            name = printable(f"GPU {gpu.index}" + (f" of {host.name}" if len(capture.hosts) > 1 else ""))
            columns = (
                ("SM clock", "MHz", series.sm_mhz),
                ("power", "W", series.power_w),
                ("clock event reasons", "bits", series.reasons),
            )
            for what, unit, values in columns:
                for t, value in zip(series.t, values, strict=False):
                    if value is not None:
                        event = {
                            "ph": "C",
                            "pid": CLOCKS,
                            "ts": round((t * 1e9 - base) / 1000, 3),
                            "name": f"{name} {what}",
                            "args": {unit: value},
                        }
                        yield json.dumps(event)


def _names(capture: Capture, tracks: set[tuple[int, int]]) -> Iterator[str]:
    """The names of processes and tracks, and their order."""
    known = {rank.rank: rank for rank in capture.instrumentation.ranks}
    phases = {str(phase): name for phase, name in PHASE_NAMES.items()}
    names = {number: phases.get(phase, phase) for phase, number in TRACKS.items()}
    names |= {ON_DEVICE: "device (earliest place)", ON_DEVICE + 1: "device (earliest place), continued"}
    processes = {FIRST_PROCESS + rank: _process(capture.arm, rank, known.get(rank)) for rank, _ in sorted(tracks)}
    if any(gpu.series.t for host in capture.hosts for gpu in host.gpus):
        processes[CLOCKS] = f"{capture.arm}: GPU clocks"
    for process, name in processes.items():
        yield _meta(process, 0, "process_name", {"name": printable(name)})
        yield _meta(process, 0, "process_sort_index", {"sort_index": process - CLOCKS - 1000})
    for rank, track in sorted(tracks):
        yield _meta(FIRST_PROCESS + rank, track, "thread_name", {"name": names[track]})
        yield _meta(FIRST_PROCESS + rank, track, "thread_sort_index", {"sort_index": track})


def _process(arm: str, number: int, rank: Rank | None) -> str:
    where = "" if rank is None or rank.gpu is None else f", cuda:{rank.gpu}"
    pid = "" if rank is None or rank.pid is None else f", pid {rank.pid}"
    return f"{arm}: rank {number}{where}{pid}"


def _meta(process: int, track: int, name: str, arguments: dict[str, str | int]) -> str:
    return json.dumps({"ph": "M", "pid": process, "tid": track, "ts": 0, "name": name, "args": arguments})
