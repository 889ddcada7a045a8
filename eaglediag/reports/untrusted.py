"""Text from captures, made safe to show: a capture is untrusted input, and a terminal obeys escape sequences."""

from __future__ import annotations

import re

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069]")
_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>()#!|~&$])")


def printable(text: str) -> str:
    """The text with control and direction-changing characters shown as their escapes."""
    return _CONTROL.sub(lambda found: found.group().encode("unicode_escape").decode(), text)


def markdown(text: str) -> str:
    """The text as literal markdown on one line, fit for a table cell."""
    return _MARKDOWN.sub(r"\\\1", " ".join(printable(text).split()))
