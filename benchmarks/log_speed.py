"""How fast `eaglediag import` reads an SGLang server log, against `grep -c` on the same file in the same run.

    python benchmarks/log_speed.py [--gigabytes 1] [--decode-only]

Writes a log as a busy server would (four data-parallel ranks, decode and prefill lines, access log lines, times that
advance), reads it with one process, and prints seconds, MB/s and the peak of resident memory. `--decode-only` leaves
out all but decode lines: the most expensive log there can be.
"""

from __future__ import annotations

import argparse
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RANKS = 4


def write_log(path: Path, size: int, decode_only: bool) -> int:
    """Write `size` bytes of log; returns the number of decode lines."""
    generator = random.Random(7)
    written = decodes = 0
    token = [0] * RANKS
    running = [8] * RANKS
    now = 0.0
    with path.open("w") as out:
        while written < size:
            lines = []
            for _ in range(2000):
                now += 0.09
                second = int(now)
                clock = f"{second // 3600 % 24:02}:{second // 60 % 60:02}:{second % 60:02}"
                rank = generator.randrange(RANKS)
                prefix = f"[2026-01-{1 + second // 86400 % 28:02} {clock} DP{rank} TP{rank}]"
                kind = generator.random()
                if kind < 0.5 or decode_only:
                    token[rank] += round(40 * running[rank] * 2.5)
                    decodes += 1
                    lines.append(
                        f"{prefix} Decode batch, #running-req: {running[rank]}, #token: {token[rank]}, "
                        f"token usage: 0.21, accept len: {generator.uniform(2.2, 2.8):.2f}, accept rate: 0.50, "
                        f"cuda graph: True, gen throughput (token/s): {generator.uniform(1500, 1700):.2f}, "
                        "#queue-req: 0\n"
                    )
                elif kind < 0.6:
                    running[rank] = generator.randint(1, 64)
                    token[rank] = 1000
                    lines.append(
                        f"{prefix} Prefill batch, #new-seq: 1, #new-token: 812, #cached-token: 64, token usage: 0.20, "
                        f"#running-req: {running[rank]}, #queue-req: 0, #pending-token: 0, cuda graph: False, "
                        "input throughput (token/s): 5123.90\n"
                    )
                else:
                    lines.append(
                        f"[2026-01-02 {clock}] INFO:     10.0.0.{rank}:{generator.randrange(1 << 16)} - "
                        '"POST /v1/chat/completions HTTP/1.1" 200 OK\n'
                    )
            text = "".join(lines)
            out.write(text)
            written += len(text)
    return decodes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--decode-only", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        log, capture = Path(folder) / "server.log", Path(folder) / "capture.json"
        decodes = write_log(log, int(asked.gigabytes * 1e9), asked.decode_only)
        size = log.stat().st_size
        started = time.perf_counter()
        counted = subprocess.run(["grep", "-c", "Decode batch", str(log)], capture_output=True, text=True, check=True)
        grep = time.perf_counter() - started
        assert int(counted.stdout) == decodes
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        started = time.perf_counter()
        subprocess.run([sys.executable, "-m", "eaglediag", "import", str(log), "-o", str(capture), "-q"], check=True)
        took = time.perf_counter() - started
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        print(f"log: {size / 1e9:.2f} GB, {decodes} decode lines; capture: {capture.stat().st_size / 1e6:.2f} MB")
        print(f"grep -c: {grep:.2f} s ({size / grep / 1e6:.0f} MB/s)")
        print(f"eaglediag import: {took:.2f} s ({size / took / 1e6:.0f} MB/s), {cpu:.2f} s of one core")
        print(f"per GB: {1e9 * took / size:.1f} s ({1e9 * cpu / size:.1f} s of one core); {took / grep:.0f} times grep")
        print(f"peak memory: {after.ru_maxrss / 1024:.0f} MB")


if __name__ == "__main__":
    main()
