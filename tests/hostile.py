"""Captures whose every text tries to be something else: markup, escapes, formulas, enormous names."""

from __future__ import annotations

from eaglediag.capture.model import Capture, Problem
from tests.report_material import full_pair

MARKUP = "</title></style></svg><script>window.pwned = 1</script><img src=x onerror=window.pwned=1><b>"
ESCAPES = "\x1b[2J\x1b]0;owned\x07\x00\x08\u202egnp.exe\x9b31m\u061c\u2028\u2060\ufeff"
MARKDOWN = "|``` [click](http://evil.example) <details> @everyone #1 GH-1 :tada:\n# heading\n---\n"
HOSTILE = MARKUP + ESCAPES + MARKDOWN + "{{ 7 * 7 }}{% raw %}"
ENORMOUS = ("W" * 400 + HOSTILE)[:499]


def hostile_pair() -> tuple[Capture, Capture]:
    """The full pair with hostile text wherever text can be."""
    baseline, eagle = full_pair()
    for one in (baseline, eagle):
        one.arm = (one.arm + HOSTILE)[:499]
        one.server.release = HOSTILE[:499]
        one.server.command = ["python", HOSTILE, ENORMOUS]
        one.server.arguments[HOSTILE[:400]] = HOSTILE
        one.server.environment["X" + HOSTILE[:300]] = HOSTILE
        one.server.model.path = ENORMOUS
        one.server.versions = {HOSTILE[:200]: HOSTILE[:200]}
        one.problems = [Problem(code="x", message=HOSTILE, advice=HOSTILE)]
        one.workload.source = HOSTILE[:499]
        for host in one.hosts:
            host.name = HOSTILE[:499]
            for gpu in host.gpus:
                gpu.name = ENORMOUS
        for window in one.windows:
            window.id = (window.id + HOSTILE)[:499]
            for rank in window.ranks:
                for call in rank.collectives:
                    call.backend = (call.backend + HOSTILE)[:499]
                    call.operation = HOSTILE[:499]
        for denial in one.denials:
            denial.reason = HOSTILE
            for frame in denial.frames:
                frame.file = (frame.file + HOSTILE)[:499]
                frame.function = HOSTILE[:499]
                frame.text += HOSTILE
                frame.shown += HOSTILE
                frame.values = {HOSTILE[:300]: HOSTILE}
                frame.source = [*frame.source, HOSTILE]
    return baseline, eagle
