"""What a log's tracebacks end with: the line that says what was raised, which no log prints with a mark of its own."""

from __future__ import annotations

import re
from typing import Final

from eaglediag.probes.evidence.bare_line import bare

#: The line that opens a traceback ends so, whatever the logger wrote before it (Python's `traceback` module).
OPENING: Final = "Traceback (most recent call last):"
#: Frames and their source lines; a recursion's are folded by Python itself.
LONGEST_TRACEBACK: Final = 500
LONGEST_LINE: Final = 2000
#: A class of Python's naming, qualified by its module unless it is a builtin, at the line's start or behind what a
#: logger or a wrapper put there. A frame is indented, a log's level is written in capitals.
_RAISED: Final = re.compile(r"(?:^|[\])|:-] )((?:[A-Za-z_]\w*\.)*[A-Z]\w*[a-z]\w*(?:: .*)?)$")


class Exceptions:
    """Follows a log line by line; of each traceback, `take` gives what was raised."""

    def __init__(self) -> None:
        self._lines_left = 0

    def take(self, line: str) -> str:
        """The exception whose traceback ends with this line, such as `ValueError: no such port`; else empty."""
        if OPENING in line:
            self._lines_left = LONGEST_TRACEBACK
            return ""
        if not self._lines_left:
            return ""
        self._lines_left -= 1
        found = _RAISED.search(bare(line[:LONGEST_LINE]).rstrip())
        if found is None:
            return ""
        self._lines_left = 0
        return found.group(1)

    @property
    def cut_off(self) -> str:
        """What to say when the log is over and a traceback still open; else empty."""
        return "a traceback whose end is not in the log" if self._lines_left else ""
