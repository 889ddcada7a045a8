"""How long each report of a million recorded steps takes, and the memory of all its processes together.

Run it: python benchmarks/report_million_steps.py [--steps 1000000] [--keep FOLDER]

Eight ranks of speculative cycles with CUDA events: three phases, a step and its accept lengths, so five rows a step.
The goal is 10 s and 1 GB on two cores. Wall-clock time says little on a busy machine, so CPU time over two cores is
given beside it.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from eaglediag.capture import store
from eaglediag.reports.steps_file import COLUMNS
from tests.report_material import full_pair

RANKS, BATCH, WINDOW = 8, 4, "c4"
GOAL_S, GOAL_MB = 10.0, 1000.0


def write_steps(path: Path, steps: int) -> None:
    """The raw steps, as a probe writes them."""
    generator = random.Random(1)
    with gzip.open(path, "wt", compresslevel=5, encoding="utf-8") as stream:
        for rank in range(RANKS):
            header = {"window": WINDOW, "rank": rank, "clock": "cuda_event", "columns": COLUMNS,
                      "epoch_minus_perf_ns": 1_750_000_000_000_000_000}  # fmt: skip
            stream.write(json.dumps(header) + "\n")
            at = 1_697_237_287_252
            for step in range(steps // RANKS):
                late = generator.randrange(100_000)
                us, verify = late / 1000, 496_792 + late
                lengths = f"[{late % 4 + 1},{late % 3 + 1},2,1]"
                stream.write(
                    f'["phase",{step},"draft",4,4,true,{at + 1000},{324845 + late},{300.1 + us:.1f},null,null,null]\n'
                    f'["phase",{step},"verify",4,16,true,{at + 430000},{verify},{5123.4 + us:.1f},null,null,null]\n'
                    f'["accept",{step},"verify",4,null,null,{at + 1040000},null,null,null,null,{lengths}]\n'
                    f'["phase",{step},"draft_extend",4,16,true,{at + 1050000},{112027 + late},361.4,null,null,null]\n'
                    f'["step",{step},"cycle",4,null,true,{at},{1300000 + late},{5900.1 + us:.1f},{6121345 + late},'
                    f"{6121.3 + us:.1f},null]\n"
                )
                at += 6_121_345 + late


class Peak(threading.Thread):
    """The largest sum of the resident memory of a process and its children, in MB, looked at ten times a second."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid, self.mb = pid, 0.0

    def run(self) -> None:
        """Look until the process is gone."""
        while (now := self._now()) > 0:
            self.mb = max(self.mb, now)
            time.sleep(0.1)

    def _now(self) -> float:
        pages, waiting = 0, [self.pid]
        while waiting:
            pid = waiting.pop()
            try:
                pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
                waiting += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
            except (OSError, IndexError):
                continue
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def measured(arguments: list[str]) -> tuple[float, float, float]:
    """(wall seconds, CPU seconds, peak MB) of one command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "eaglediag", *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    peak = Peak(process.pid)
    peak.start()
    if process.wait():
        raise SystemExit(f"eaglediag {' '.join(arguments)} failed")
    wall = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, peak.mb


def main() -> None:
    """Write the steps, then time every report of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--keep", type=Path, help="a folder for the files, which stay there")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        baseline, eagle = full_pair()
        eagle.steps_file = "eagle.steps.jsonl.gz"
        window = next(one for one in eagle.windows if one.concurrency == BATCH)
        window.id = WINDOW
        window.ranks = [
            window.ranks[0].model_copy(update={"rank": rank, "steps_recorded": given.steps // RANKS})
            for rank in range(RANKS)
        ]
        if not (folder / eagle.steps_file).exists():
            write_steps(folder / eagle.steps_file, given.steps)
        paths = folder / "baseline.json", folder / "eagle.json"
        for path, one in zip(paths, (baseline, eagle), strict=True):
            store.write(one, path)
        two, one_alone = [str(path) for path in paths], str(paths[1])
        print(f"{given.steps} steps, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
        print(f"{'report':22}{'wall, s':>10}{'CPU / 2, s':>12}{'memory, MB':>12}")
        for name, arguments in (
            ("html", ["report", *two, "--html", str(folder / "r.html")]),
            ("markdown", ["report", *two, "--markdown", str(folder / "r.md")]),
            ("issue", ["report", *two, "--issue", str(folder / "i.md"), "--yes"]),
            ("trace.json.gz", ["export", one_alone, "--trace", str(folder / "t.json.gz")]),
            ("csv", ["export", one_alone, "--csv", str(folder / "s.csv")]),
            ("csv.gz", ["export", one_alone, "--csv", str(folder / "s.csv.gz")]),
            ("parquet", ["export", one_alone, "--parquet", str(folder / "s.parquet")]),
        ):
            wall, cpu, mb = measured(arguments)
            verdict = "" if min(wall, cpu / 2) < GOAL_S and mb < GOAL_MB else "  beyond the goal"
            print(f"{name:22}{wall:10.1f}{cpu / 2:12.1f}{mb:12.0f}{verdict}", flush=True)


if __name__ == "__main__":
    main()
