"""A log line as the server wrote it, without what terminals and containers put around it."""

from __future__ import annotations

import json
import re
from typing import Final

_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_JSON_FILE: Final = '{"log":'


def bare(line: str) -> str:
    """`line` without terminal colours, taken out of a line of docker's json-file driver. Never raises."""
    if "\x1b" in line:
        line = _COLOUR.sub("", line)
    if not line.startswith(_JSON_FILE):
        return line
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        return line
    return _COLOUR.sub("", str(document["log"])).rstrip("\n") if isinstance(document, dict) else line
