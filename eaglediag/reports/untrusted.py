"""Text from captures, made safe to show: a capture is untrusted input, and a terminal obeys escape sequences."""

from __future__ import annotations

import re

#: The longest text that markdown shows whole, in characters.
LONGEST = 1000
#: Control characters, line ends among them, and whatever is not seen or turns the direction of what is.
_CONTROL = re.compile(
    r"[\x00-\x08\x0a-\x1f\x7f-\x9f\xad\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f"
    r"\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U000e0000-\U000e0fff]"
)
_MARKDOWN = re.compile(r"[\\`*_{}\[\]<>()#!|~&$]")
#: What GitHub makes links, notifications and pictures of, after backslashes are gone; not in a code span.
_OBEYED = re.compile(
    r"[\w.+-]*@[\w/.-]+"
    r"|(?:[\w.-]+/)?[\w.-]*#\d+|\b(?i:GH)-\d+"
    r"|\b[a-zA-Z][a-zA-Z0-9+.-]*://[\w./:%?=,+@~#-]*|\b(?i:www)\.[\w./:%?=,+@~#-]*"
    r"|(?<![\w.]):[\w+-]+:(?!\w)"
)
#: What makes a heading, a rule, a quotation or a list of the line that it begins.
_BEGINNING = re.compile(r"[-+](?=\s|$)|[-=](?=[-=\s]*$)|\d+(?=[.)](?:\s|$))")


def printable(text: str) -> str:
    """The text on one line: control, invisible and direction-changing characters are shown as their escapes."""
    return _CONTROL.sub(lambda found: found.group().encode("unicode_escape").decode(), text)


def markdown(text: str) -> str:
    """The text as literal markdown on one line, fit for a table cell; of a long one the beginning.

    Mentions, references, links and emoji are code spans, which can be copied as they are.
    """
    text = printable(re.sub(r"[ \t\r\n]+", " ", text).strip(" "))
    if len(text) > LONGEST:
        text = text[:LONGEST] + "…"
    parts, end = [], 0
    for found in _OBEYED.finditer(text):
        parts += [_escaped(text[end : found.start()]), f"`{found.group()}`"]
        end = found.end()
    literal = "".join([*parts, _escaped(text[end:])])
    beginning = _BEGINNING.match(literal)
    if beginning is None:
        return literal
    mark = literal[: beginning.end()]
    return (f"\\{mark}" if not mark.isdigit() else f"{mark}\\") + literal[beginning.end() :]


def _escaped(text: str) -> str:
    return _MARKDOWN.sub(r"\\\g<0>", text)
