"""How promptly `eaglediag --help` answers, side by side with a bare typer application, alternated.

Run it: python benchmarks/startup.py [--runs 20]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

BARE = """
import typer
app = typer.Typer()
@app.command()
def one() -> None:
    "One."
@app.command()
def two() -> None:
    "Two."
app()
"""
OURS = "from eaglediag.cli import main; main()"


def seconds(script: str) -> float:
    """How long a fresh interpreter takes to print the help."""
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", script, "--help"], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def main() -> None:
    """Alternate the two and print medians and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    runs = parser.parse_args().runs
    for script in (BARE, OURS):
        seconds(script)
    pairs = [(seconds(BARE), seconds(OURS)) for _ in range(runs)]
    bare, ours = (1000 * statistics.median(column) for column in zip(*pairs, strict=True))
    ratio = statistics.median(our / their for their, our in pairs)
    print(f"bare typer --help   {bare:6.1f} ms")
    print(f"eaglediag --help    {ours:6.1f} ms")
    print(f"ratio               {ratio:6.2f} (median of {runs} alternated pairs)")


if __name__ == "__main__":
    main()
