"""Run on the host: send one command to every agent in a folder and print their replies as one JSON object.

usage: python control.py FOLDER '{"command": "start"}'
"""

from __future__ import annotations

import glob
import json
import os
import socket
import sys
import threading
from typing import Any


def ask(path: str, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
    """One agent's reply; {"ok": False, "error": ...} when it cannot be reached."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.settimeout(timeout_s)
            client.connect(path)
            client.sendall(json.dumps(request).encode() + b"\n")
            with client.makefile("rb") as lines:
                reply: dict[str, Any] = json.loads(lines.readline() or b'{"ok": false, "error": "it hung up"}')
                return reply
    except OSError as error:
        return {"ok": False, "error": str(error)}


def main() -> None:
    """Ask all agents at once: a window should begin on every rank at the same time."""
    folder, request = sys.argv[1], json.loads(sys.argv[2])
    replies: dict[str, dict[str, Any]] = {}

    def one(path: str) -> None:
        pid = os.path.basename(path)[: -len(".sock")]
        own = {**request, "file": f"{pid}.{request['file']}"} if "file" in request else request
        replies[pid] = ask(path, own, timeout_s=60.0)

    threads = [
        threading.Thread(target=one, args=(path,)) for path in glob.glob(os.path.join(folder, "agents", "*.sock"))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    failed = {}
    for path in glob.glob(os.path.join(folder, "agents", "*.failed")):
        with open(path, encoding="utf-8") as stream:
            failed[os.path.basename(path)[: -len(".failed")]] = stream.read().strip()
    print(json.dumps({"replies": replies, "failed": failed}))


if __name__ == "__main__":
    main()
