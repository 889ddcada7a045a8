"""What the agent costs: the same load with the agent active and dormant, in alternation, on one server.

usage: overhead.py --launch COMMAND [--host HOST] [--concurrency 1] [--pairs 10] [--requests 8]

Prints the ratio of times per token, active over dormant, with a 95 % interval. Without --launch it runs on the
embedded host (a CPU, where a step takes a few milliseconds: on a GPU host give your own command).
"""

from __future__ import annotations

import argparse
from pathlib import Path

from eaglediag.cli.demo import find_embedded_host, launch_command
from eaglediag.hosts import open_host
from eaglediag.probes.agents import Agents
from eaglediag.probes.folder import RemoteFolder
from eaglediag.probes.launch import LaunchCommand
from eaglediag.probes.overhead import alternated, interval
from eaglediag.probes.preflight import find_python, preflight
from eaglediag.probes.server import Server
from eaglediag.probes.workload import Client, Load, built_in_prompts


def main() -> None:
    """Run the alternation and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--host", default="local")
    parser.add_argument("--launch")
    parser.add_argument("--concurrency", type=int, default=1)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--requests", type=int, default=8)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    options = parser.parse_args()
    launch = LaunchCommand.parse(options.launch or launch_command(Path(find_embedded_host()), "eagle", 31200))
    load = Load(built_in_prompts(), max_new_tokens=options.max_new_tokens, endpoint="generate", ignore_eos=True)
    with open_host(options.host) as host:
        python = find_python(host, launch, None)
        with RemoteFolder(host) as folder:
            folder.ship(python)
            checked = preflight(host, folder, launch, python)
            with Server(host, folder, launch, python, checked.route) as server:
                server.start()
                server.wait_ready(1800.0)
                agents = Agents([(host, folder, python)])
                client = Client(host, launch.port, load)
                client.run(options.concurrency, options.requests)
                ratios = []
                print("pair   active ms/token   dormant ms/token   ratio")
                for active, dormant in alternated(agents, client, options.concurrency, options.requests, options.pairs):
                    ratios.append(active / dormant)
                    print(f"{len(ratios):4d}   {1000 * active:15.4f}   {1000 * dormant:16.4f}   {ratios[-1]:.4f}")
    middle, low, high = interval(ratios)
    print(f"active / dormant: {middle:.4f}, 95 % interval [{low:.4f}, {high:.4f}], {len(ratios)} pairs")


if __name__ == "__main__":
    main()
