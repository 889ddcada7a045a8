"""The formats of every SGLang release, generated from its own source: a release with a new field fails by its name.

The statements that build a log message are found in the release's syntax tree and carried out with sample values, once
for every way through their branches. Nothing of the release is run.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import pytest

from eaglediag.analysis.launch_lint import Rules
from eaglediag.probes.evidence import sglang_log as log
from eaglediag.probes.evidence.release_source import read_rules
from tests.wheels import RELEASES, release_source

pytestmark = pytest.mark.wheels

#: Fields that a decode line may hold. What is not here is new: read what it means, then add it.
DECODE_FIELDS = {
    "#running-req", "#token", "token usage", "#full token", "full token usage", "#swa token", "swa token usage",
    "mamba num", "mamba usage", "#gpu token", "gpu token usage", "#cpu token", "cpu token usage", "accept len",
    "accept rate", "cap len", "block accept len", "pre-allocated usage", "#prealloc-req", "#transfer-req",
    "#host-receive-req", "#retracted-req", "waiting-image-req", "cuda graph", "gen throughput (token/s)", "#queue-req",
    "est. decode TFLOPS/s (per GPU)", "est. read BW (GB/s per GPU)", "est. write BW (GB/s per GPU)", "fwd occupancy",
}  # fmt: skip
PREFILL_FIELDS = {
    "#new-seq", "#new-token", "#cached-token", "token usage", "full token usage", "swa token usage", "mamba usage",
    "#running-req", "#queue-req", "#pending-token", "#unbootstrapped-req", "#transferring-req", "#prealloc-req",
    "#inflight-req", "#bootstrap-req", "#optimistic-req", "#replay-token", "input throughput (token/s)",
    "waiting-image-req", "cuda graph", "est. prefill TFLOPS/s (per GPU)", "fwd occupancy", "usage",
}  # fmt: skip

#: What the expressions in a message stand for, by a part of their text; the first that fits counts.
VALUES = (
    ("can_run_cuda_graph", "True"),
    ("graph_backend", "cuda graph"),
    ("cuda graph", "cuda graph"),
    ("num_running_reqs", "7"),
    ("running_bs", "7"),
    ("waiting_queue", "5"),
    ("spec_accept_length", "2.17"),
    ("spec_accept_rate", "0.54"),
    ("last_gen_throughput", "341.05"),
    ("num_used /", "0.02"),
    ("full_num_used", "900"),
    ("num_used", "900"),
)


@pytest.fixture(params=RELEASES)
def release(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_decode_lines(release: str) -> None:
    lines = list(messages(release, "Decode batch"))
    assert lines
    with_length = 0
    for line in lines:
        unknown = fields(line, "Decode batch") - DECODE_FIELDS
        assert not unknown, f"SGLang {release} prints new fields in a decode line: {sorted(unknown)}: {line}"
        (event,) = log.parse_line(f"[2026-11-29 16:01:47 TP0] {line}")
        assert isinstance(event, log.DecodeLine), line
        assert (event.running, event.gen_throughput, event.queue, event.graph) == (7, 341.05, 5, True), line
        assert event.token == 900 or "#gpu token" in line or "#full token" in line, line
        if "accept len" in line:
            with_length += 1
            assert event.accept_len == 2.17, line
            assert event.accept_rate == (0.54 if "accept rate" in line else None), line
        else:
            assert event.accept_len is None, line
    assert with_length


def test_prefill_lines(release: str) -> None:
    lines = list(messages(release, "Prefill batch"))
    assert lines
    for line in lines:
        unknown = fields(line, "Prefill batch") - PREFILL_FIELDS
        assert not unknown, f"SGLang {release} prints new fields in a prefill line: {sorted(unknown)}: {line}"
        (event,) = log.parse_line(f"[2026-11-29 16:01:47 TP0] {line}")
        assert isinstance(event, log.PrefillLine), line
        assert event.running == (7 if "#running-req" in line else None), line
        assert event.graph == (True if "cuda graph" in line else None), line


def test_capture_lines(release: str) -> None:
    found: dict[str, set[str]] = {"begin": set(), "end": set()}
    for line in capture_messages(release):
        (event,) = log.parse_line(f"[2026-11-29 16:01:47 TP0] {line}")
        assert isinstance(event, (log.CaptureBegin, log.CaptureEnd)), f"SGLang {release} words a capture newly: {line}"
        found["begin" if isinstance(event, log.CaptureBegin) else "end"].add(event.phase)
        if isinstance(event, log.CaptureBegin) and re.search(r"\bbs=\[", line):
            assert event.sizes == [1, 2, 8], line
        if isinstance(event, log.CaptureEnd):
            assert event.seconds == 1.0 or "elapsed" not in line.lower(), line
    assert found["begin"] == found["end"]
    assert found["begin"] >= ({"draft", "draft_extend"} if Rules(release).at_least("0.5") else {"draft"})


def test_start_up_lines(release: str) -> None:
    seen: set[str] = set()
    for text in start_messages(release):
        events = log.parse_line(f"[2026-11-29 16:01:47 TP0] {text}")
        seen.update(type(event).__name__ for event in events)
        assert not [event for event in events if isinstance(event, log.Unreadable)], text
    assert {"WeightsLoading", "WeightsLoaded", "Ready"} <= seen
    assert ("StartupTimings" in seen) == (Rules(release).at_least("0.5.18")), seen


def test_meaning_of_accept_rate(release: str) -> None:
    """0.54 with the bonus token and 0.39 without it are the same run."""
    source = ast.unparse(message_function(release, "Decode batch"))
    if "accept rate" not in source:
        assert Rules(release).at_least("0.5.4") is False
        return
    drafts_only = "num_draft_tokens - 1" in source
    assert log.accept_rate_with_bonus(release) is not drafts_only


def test_captured_sizes(release: str) -> None:
    rules = read_rules(release_source(release))
    assert rules.release == release
    assert rules.options is not None
    assert {"--speculative-algorithm", rules.maximum_option, "--attention-backend"} <= rules.options
    # From 0.5.20 argparse finds it ambiguous between -decode and -prefill.
    assert ("--cuda-graph-max-bs" in rules.options) is not Rules(release).at_least("0.5.20")
    if rules.grid is None:
        assert not Rules(release).at_least("0.5.4"), "the generator of the captured sizes has moved"
        return
    for most, speculative, padding in itertools.product(
        (1, 7, 8, 9, 33, 50, 160, 200, 256, 500, 512), (True, False), (True, False)
    ):
        assert rules.captured(most, speculative, padding) == Rules(release).captured(most, speculative, padding)


# From the release's syntax tree to the lines it prints.


@lru_cache(maxsize=4096)
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def files(release: str, *folders: str) -> list[Path]:
    package = release_source(release) / "sglang" / "srt"
    return [path for folder in folders for path in sorted((package / folder).glob("**/*.py"))]


def texts(path: Path, *marks: str) -> list[ast.expr]:
    """The strings in a file that holds one of the marks, an f-string whole."""
    if not any(mark in path.read_text(encoding="utf-8") for mark in marks):
        return []
    nodes = list(ast.walk(tree(path)))
    inner = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    return [node for node in nodes if isinstance(node, (ast.JoinedStr, ast.Constant)) and id(node) not in inner]


def message_function(release: str, mark: str) -> ast.FunctionDef:
    """The function whose message begins with `mark`."""
    for path in files(release, "managers", "observability"):
        if mark not in path.read_text(encoding="utf-8"):
            continue
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef) and any(
                isinstance(part, ast.Constant) and isinstance(part.value, str) and part.value.startswith(mark)
                for part in ast.walk(node)
            ):
                return node
    raise AssertionError(f"SGLang {release} has no message {mark!r} any more")


def messages(release: str, mark: str) -> Iterator[str]:
    """Every form of a message, one for each way through the branches that add to it."""
    function = message_function(release, mark)
    usages = usage_messages(release, function, "decode" if mark.startswith("Decode") else "prefill")
    for iteration, usage in itertools.product(("", " [812]"), usages):
        names = {"iter_msg": iteration, "token_usage_msg": usage, "token_msg": usage}
        for text in ways(function.body, names):
            if text.startswith(mark):
                yield text


def usage_messages(release: str, function: ast.FunctionDef, kind: str) -> list[str]:
    """The forms of the token usage: assigned in the function itself, or parts of the pool's statistics."""
    found = [
        render(node.value, {})
        for node in ast.walk(function)
        if isinstance(node, ast.Assign)
        and ast.unparse(node.targets[0]) in ("token_usage_msg", "token_msg")
        and isinstance(node.value, ast.JoinedStr)
    ]
    # 0.5.10 builds them in place, list by list.
    for node in ast.walk(function):
        if isinstance(node, ast.List) and node.elts and all(isinstance(part, ast.JoinedStr) for part in node.elts):
            found.append(", ".join(render(part, {}) for part in node.elts) + ", ")
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "msg_parts.append":
            found.append(render(node.args[0], {}) + ", ")
    found = [text for text in found if re.match(r"#?(full )?token(: | usage: )", text)]
    for path in files(release, "managers"):
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef) and node.name == f"get_{kind}_usage_msg_parts":
                parts = [
                    render(part, {})
                    for part in ast.walk(node)
                    if isinstance(part, ast.JoinedStr) and ": " in render(part, {})
                ]
                plain = [part for part in parts if re.match(r"#?token( usage)?:", part)]
                others = [part for part in parts if part not in plain]
                found += [", ".join(plain) + ", ", ", ".join(dict.fromkeys(others)) + ", "]
    return found or [""]


def ways(statements: list[ast.stmt], names: dict[str, str]) -> list[str]:
    """The texts that the statements may leave in the message."""
    texts = [""]
    for statement in statements:
        if isinstance(statement, ast.If):
            either = [*ways(statement.body, names), *ways(statement.orelse, names)]
            texts = list(dict.fromkeys(text + more for text, more in itertools.product(texts, dict.fromkeys(either))))
        elif isinstance(statement, ast.With):
            texts = [text + more for text, more in itertools.product(texts, ways(statement.body, names))]
        elif isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) in ("msg", "f"):
            texts = [render(statement.value, names)]
        elif isinstance(statement, ast.AugAssign) and ast.unparse(statement.target) in ("msg", "f"):
            texts = [text + render(statement.value, names) for text in texts]
    return texts


def render(node: ast.expr, names: dict[str, str]) -> str:
    """A message with sample values in the place of its expressions."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.BinOp):
        return render(node.left, names) + render(node.right, names)
    if not isinstance(node, ast.JoinedStr):
        return ""
    text = ""
    for part in node.values:
        if isinstance(part, ast.Constant):
            text += str(part.value)
        elif isinstance(part, ast.FormattedValue):
            text += value(ast.unparse(part.value), part, names)
    return text


def value(expression: str, part: ast.FormattedValue, names: dict[str, str]) -> str:
    if expression in names:
        return names[expression]
    for mark, sample in VALUES:
        if mark in expression:
            return sample
    if "estimate_suffix" in expression:
        return "est uncap acc len: 3.20 [3.00, 3.40]"
    if "capture_bs" in expression or "capture_num_tokens" in expression:
        return "[1, 2, 8]"
    if "quant_str" in expression:
        return ""
    return "1.00" if part.format_spec is not None else "1"


def fields(line: str, mark: str) -> set[str]:
    """The names of a line's fields."""
    body = re.sub(r"est uncap acc len: [^\]]*\]", "", line.removeprefix(mark))
    body = re.sub(r"^[.,]?(?: \[\d+\])?[.,]? ", "", body)
    return {part.split(": ")[0].strip() for part in body.split(", ") if part.strip(" ,")}


def capture_messages(release: str) -> Iterator[str]:
    """The lines in which a phase's capture begins or ends; of the target's, one for each use of its graphs."""
    roles = ("target verify", "target decode", "target prefill", "draft decode", "draft prefill")
    for path in files(release, "model_executor", "speculative"):
        for node in texts(path, "Capture "):
            names = {"capture_name": "ROLE", "graph_backend[self.device]": "CUDA graph"}
            text = render(node, names)
            if not re.match(r"Capture [\w -]*(?:graph|draft extend) (?:begin|end)\b", text):
                continue
            for role in roles if "ROLE" in text else ("",):
                yield text.replace("ROLE", role)


def start_messages(release: str) -> Iterator[str]:
    for path in files(release, "model_executor", "entrypoints"):
        for node in texts(path, "Load weight", "fired up", "startup timings"):
            text = render(node, {})
            if re.match(r"Load weight |The server is fired up|Engine startup timings", text):
                yield text.replace("%.2f", "1.00").replace("%s", "prefill=0.00")
