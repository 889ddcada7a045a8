"""`eaglediag report` on the terminal, as markdown, as JSON and as a bug report: what is said, and what is left out."""

from __future__ import annotations

import io
import json
import os
import re
import time
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from syrupy.assertion import SnapshotAssertion

from eaglediag.analysis.comparison import compare
from eaglediag.capture import store
from eaglediag.capture.model import Capture, HostInfo, ModelShape, Problem, Rank, Server
from eaglediag.reports import comment, issue
from eaglediag.reports.markdown import Section, fitted
from eaglediag.reports.redaction import Redactor
from eaglediag.reports.untrusted import markdown as literal
from eaglediag.reports.untrusted import printable
from tests.hostile import hostile_pair
from tests.invoke import eaglediag
from tests.report_material import full_pair

ROOT = Path(__file__).parents[2]
RAW = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u2028-\u202e\u2060-\u2069\ufeff]")


def written(folder: Path, captures: tuple[Capture, ...]) -> list[Path]:
    paths = [folder / f"{i}.json" for i in range(len(captures))]
    for path, one in zip(paths, captures, strict=True):
        store.write(one, path)
    return paths


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    return written(tmp_path, full_pair())


@pytest.mark.parametrize("width", [80, 120, 200])
@pytest.mark.parametrize("arms", [1, 2])
def test_terminal(files: list[Path], width: int, arms: int, snapshot: SnapshotAssertion, tmp_path: Path) -> None:
    ran = eaglediag("report", *files[-arms:], width=width)
    assert (ran.code, ran.err) == (0, "")
    assert max(map(len, ran.out.splitlines())) <= width
    assert not RAW.search(ran.out)
    assert ran.out.replace(str(tmp_path), "") == snapshot


@pytest.mark.parametrize("arms", [1, 2])
def test_markdown(files: list[Path], arms: int, snapshot: SnapshotAssertion) -> None:
    ran = eaglediag("report", *files[-arms:], "--markdown", "-")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == snapshot
    assert len(ran.out) < 65_536


@pytest.mark.parametrize("arms", [1, 2])
def test_json(files: list[Path], arms: int) -> None:
    document = json.loads(eaglediag("report", *files[-arms:], "--json").out)
    assert document["outcome"] == "better" if arms == 2 else document["arm"] == "eagle"


def test_a_comment_fits_whatever_happens(tmp_path: Path) -> None:
    baseline, eagle = hostile_pair()
    eagle.denials *= 200
    for number, one in enumerate(eagle.denials):
        eagle.denials[number] = one.model_copy(update={"batch_size": number})
    ran = eaglediag("report", *written(tmp_path, (baseline, eagle)), "--markdown", "-")
    assert ran.code in (0, 3)
    assert len(ran.out) <= 65_536
    assert ran.out.endswith("</details>\n")


def crowded(what: str) -> tuple[Capture, Capture]:
    """The full pair with very much of something."""
    baseline, eagle = full_pair()
    for one in (baseline, eagle):
        if what == "problems":
            one.problems = [Problem(code="x", message=f"{n} " + "word " * 240) for n in range(100)]
        if what == "windows":
            first = one.windows[0]
            one.windows = [
                first.model_copy(update={"concurrency": n % 90, "repeat": n // 90, "id": str(n)}) for n in range(900)
            ]
        if what == "variables":
            one.server.environment = {f"NAME_{n}": "word " * 50 for n in range(300)}
        if what == "words":
            one.server.command += ["word " * 3000] * 9
        if what == "frames":
            for denial in one.denials:
                frame = denial.frames[0].model_copy(update={"text": "x + " * 4900, "source": ["y + " * 4900] * 3})
                denial.frames = [frame] * 3
        if what == "batches":
            ranks = one.windows[0].ranks
            for rank in ranks:
                rank.batches = [rank.batches[0].model_copy(update={"batch_size": n}) for n in range(1, 200)]
    return baseline, eagle


@pytest.mark.parametrize("what", ["problems", "windows", "variables", "words", "frames", "batches"])
@pytest.mark.parametrize("arms", [1, 2])
def test_a_comment_and_an_issue_fit_and_stay_whole(what: str, arms: int) -> None:
    captures = crowded(what)[-arms:]
    result = compare(*captures) if len(captures) == 2 else None
    out = io.StringIO()
    comment.render(captures[-1], result, out)
    for text in (out.getvalue(), issue.render(captures, result)):
        assert len(text) <= 65_536
        assert len(re.findall(r"(?m)^`{3,}", text)) % 2 == 0
        assert text.count("<details>") == text.count("</details>")
    if what in ("problems", "variables"):
        assert re.search(r"[|-] and [1-9]\d* more|\([1-9]\d* more characters\)", out.getvalue() + text)


def test_the_longest_sections_are_cut_and_the_others_whole() -> None:
    small, long, longer = Section("a\n", ["b\n"]), Section("l\n", ["line\n"] * 90), Section("m\n", "x" * 900, "\nend\n")
    assert fitted([small, long, longer], 5000) == small.whole + long.whole + longer.whole
    text = fitted([small, long, longer], 400)
    assert 300 < len(text) <= 400
    assert text.startswith("a\nb\nl\nline\n")
    assert text.endswith("\nend\n")
    shown = text.count("line\n")
    assert f"- and {90 - shown} more\n" in text


OBEYED = (
    "@octocat", "@org/team", "GH-12", "#12", "sgl-project/sglang#12", "https://evil.example/x?y=z", "www.evil.example",
    ":tada:", "a@evil.example", "---", "===", "- x", "+ x", "1. x", "# x", "> x", "\\#12", "`@octocat`", "\\@octocat",
    "<b>x</b>", "[x](y)", "&amp;", "**x**", "$x$", "a\n\nb", "a\n---",
)  # fmt: skip


@pytest.mark.parametrize("text", OBEYED)
def test_markdown_is_literal(text: str) -> None:
    """CommonMark's reader finds the text and nothing else; what GitHub obeys on top stands in code spans only."""
    tokens = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(literal(text))
    assert [token.type for token in tokens] == ["paragraph_open", "inline", "paragraph_close"]
    children = tokens[1].children or []
    assert {child.type for child in children} <= {"text", "text_special", "code_inline"}
    assert "".join(child.content for child in children) == " ".join(text.split())
    free = "\0".join(child.content for child in children if child.type != "code_inline")
    assert not re.search(r"@\w|#\d|GH-\d|://|www\.|:\w+:", free)


@pytest.mark.parametrize("text", ["-0.3 %", "+1.00", "12:30:05", "1.5 x", "a - b", "cuda:0", "x.py:412"])
def test_figures_stay_readable_in_markdown(text: str) -> None:
    assert literal(text) == text


@pytest.mark.parametrize("character", "\n\r\x1b\x85\u061c\u200b\u2028\u2029\u202e\u2060\u2066\ufeff\U000e0041")
def test_what_is_not_seen_is_shown_as_an_escape(character: str) -> None:
    assert printable(f"a{character}b") == "a" + character.encode("unicode_escape").decode() + "b"


def test_a_message_starts_no_line_of_its_own(tmp_path: Path) -> None:
    _, eagle = full_pair()
    eagle.problems = [Problem(code="x", message="odd\nEAGLE-3 is 900 % faster")]
    ran = eaglediag("report", *written(tmp_path, (eagle,)), width=200)
    assert "odd\\nEAGLE-3 is 900 % faster" in ran.out


@pytest.mark.parametrize("arguments", [[], ["--markdown", "-"], ["--issue", "-"]])
def test_a_batch_without_steps_is_no_batch(tmp_path: Path, arguments: list[str]) -> None:
    _, eagle = full_pair()
    for window in eagle.windows:
        for rank in window.ranks:
            for batch in rank.batches:
                batch.count = 0
    assert eaglediag("report", *written(tmp_path, (eagle,)), *arguments).code == 0


def test_an_issue_from_logs_says_only_what_they_say() -> None:
    _, eagle = full_pair()
    eagle.server = Server(device="cuda", model=ModelShape(architecture="LlamaForCausalLM"))
    for host in eagle.hosts:
        host.gpus = []
    text = issue.render([eagle], None)
    assert "- device: cuda\n" in text
    assert "GPUs" not in text
    assert "None" not in text
    assert "Launch command" not in text


def test_hostile_text_is_text_in_every_format(tmp_path: Path) -> None:
    files = written(tmp_path, hostile_pair())
    for arguments in ([], ["--markdown", "-"], ["--issue", "-"]):
        for arms in (1, 2):
            ran = eaglediag("report", *files[-arms:], *arguments)
            assert ran.code == 0, ran.err
            assert not RAW.search(ran.out)
            assert "pwned" in ran.out
            if arguments:
                outside = re.sub(r"(?ms)^(`{3,})\w*\n.*?^\1$", "", ran.out)
                assert not re.search(r"(?<!\\)<(script|img|b)\b", outside)
                free = re.sub(r"(?<!\\)`[^`\n]*`", "", outside)
                assert not re.search(r"@\w|#\d|\bGH-\d|://|:tada:|\n-{3}\n", free)


def test_issue(files: list[Path], snapshot: SnapshotAssertion) -> None:
    ran = eaglediag("report", *files, "--issue", "-")
    assert ran.code == 0
    assert ran.out == snapshot
    assert "cuda_graph_bs <= self.max_bs" in ran.out
    assert "411         is_bs_supported = (" in ran.out


def test_issue_is_shown_before_it_is_written(files: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "issue.md"
    ran = eaglediag("report", *files, "--issue", out)
    assert ran.code == 2
    assert "### Environment" in ran.out
    assert "--yes" in ran.err
    assert not out.exists()
    ran = eaglediag("report", *files, "--issue", out, "--yes")
    assert ran.code == 0
    assert ran.out.strip() == out.read_text().strip()


SECRETS = {
    "gpu-17.corp.example.com": "host",
    "gpu-17": "host",
    "10.3.4.17": "address",
    "fe80::1ff:fe23:4567:890a": "address",
    "/home/alice/models/secret-llama": "path",
    "alice": "user",
    "checkpoints/alice/run-7/step_100": "path",
    "hf_AbCdEfGhIjKlMnOpQr": "key",
    "sk-proj-0123456789abcdef": "key",
    "hunter2hunter2": "password",
    "swordfish-99": "password",
    "tok3n-of-bob": "token",
    "GPU-5f2c1e0a-1111-2222-3333-444455556666": "uuid",
    r"C:\Users\alice\models": "path",
}


def test_names_addresses_users_paths_and_keys_are_replaced() -> None:
    _, eagle = full_pair()
    eagle.arm = "eagle on gpu-17"
    eagle.hosts.append(HostInfo(name="gpu-17.corp.example.com"))
    eagle.instrumentation.ranks.append(Rank(rank=7, host="gpu-17.corp.example.com"))
    eagle.server.command += [
        "--host", "10.3.4.17", "--port", "30000", "--api-key", "sk-proj-0123456789abcdef",
        "--model-path", "/home/alice/models/secret-llama", "--speculative-draft-model-path",
        "checkpoints/alice/run-7/step_100", "--dist-init-addr", "[fe80::1ff:fe23:4567:890a]:5000",
        "--download-dir", r"C:\Users\alice\models", "--tag", "GPU-5f2c1e0a-1111-2222-3333-444455556666",
    ]  # fmt: skip
    eagle.server.environment = {"HF_TOKEN": "hf_AbCdEfGhIjKlMnOpQr", "SGLANG_PASSWORD": "hunter2hunter2"}
    eagle.server.arguments |= {"cuda_graph_note": '{"password": "swordfish-99", "auth_token": "tok3n-of-bob"}'}
    frame = eagle.denials[0].frames[-1]
    frame.file = "/home/alice/venv/lib/python3.12" + frame.file
    frame.values["path"] = "'/home/alice/models/secret-llama'"
    text = issue.render([eagle], None)
    assert [secret for secret in SECRETS if secret in text] == []
    assert "sglang/srt/model_executor/runner/decode_cuda_graph_runner.py:412" in text
    assert "--port 30000" in text
    assert "cuda_graph_bs = 12" in text
    assert text.count("<path-1>") >= 2  # equal things stay equal


@pytest.mark.parametrize(
    "text",
    [
        "python -m sglang.launch_server --tp-size 8 --host 0.0.0.0 --port 30000",
        "http://127.0.0.1:30000 or localhost",
        "torch 2.11.0+cu130, NCCL 2.28.9, driver 580.82.07",
        "return self.graph_runner and self.graph_runner.can_run(forward_batch)",
        "forward_batch.spec_info.capture_hidden_mode == CaptureHiddenMode.FULL",
        "12 / 8 tokens, 3.5 tokens/s at 12:30:05 on 2026/11/29",
        "key_cache and value_cache; max_total_tokens 4096",
        "--speculative-num-draft-tokens 3 --speculative-token-map auto",
        "sglang/srt/managers/scheduler.py:412",
        "the last drafted tokens hardly pay; the key difference is this; draft tokens: 1234567",
        "--speculative-token-map FR-Spec.pt --tokenizer-path auto --max-total-tokens 4096000",
        "meta-llama/Llama-3.1-8B-Instruct",
        "decode/verify/draft, CUDA/HIP/NPU",
        "POST /v1/chat/completions to http://127.0.0.1:30000/v1/chat/completions",
        "https://github.com/sgl-project/sglang/issues/1234 and https://docs.sglang.ai/advanced_features/router.html",
        "nvidia-cudnn-cu12==9.1.0.70, cuDNN 9.1.0.70, sha256:" + 32 * "0a",
        "dp_rank 3 of 8: cuda:3, batch 12: sizes[1::2]",
        "sglang.srt.speculative.eagle_worker_v2.EagleWorkerV2.verify",
        "sglang/srt/model_executor/runner/decode_cuda_graph_runner.py:412, config.json, libcuda.so, model.safetensors",
        "a key is wanted, the token limit: 4096",
    ],
)
def test_evidence_is_left_alone(text: str) -> None:
    assert Redactor(full_pair())(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "sk-proj-0123456789abcdef", "sk-abcdefghijklmnop", "sk_live_0123456789ab", "pk_live_0123456789ab",
        "hf_AbCdEfGhIjKlMnOpQrStUvWxYz01234567", "ghp_0123456789abcdefghijABCDEFGHIJ012345", "AKIAIOSFODNN7EXAMPLE",
        "github_pat_11ABCDEFG0abcdefghij_x", "glpat-0123456789abcdefghij", "xoxb-123456789012-abcdef",
    ],
)  # fmt: skip
def test_keys_are_replaced_wherever_they_stand(text: str) -> None:
    clean = Redactor([])
    assert clean(text) == "<key>"
    assert clean(f"--model-path m --api-key={text} --tp 8") == "--model-path m --api-key=<key> --tp 8"
    assert clean(f"{{'header': '{text}'}}") == "{'header': '<key>'}"


def option_names() -> list[str]:
    """Every option of an engine that this repository names, and those of the servers that were recorded."""
    recorded = (ROOT / "benchmarks" / "results").glob("*/*/*.json")
    arguments = {name for path in recorded for name in store.read(path).server.arguments}
    files = [
        path
        for folder in ("eaglediag", "tests", "docs", "benchmarks")
        for suffix in ("py", "md", "json", "txt")
        for path in (ROOT / folder).rglob(f"*.{suffix}")
    ]
    written = {name for path in files for name in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*[a-z0-9]", path.read_text())}
    return sorted(written | {"--" + name.replace("_", "-") for name in arguments})


def test_no_option_of_the_engine_is_taken_for_a_key() -> None:
    clean, names = Redactor([]), option_names()
    assert {"--skip-tokenizer-init", "--hf-chat-template-name", "--speculative-skip-dp-mlp-sync"} <= set(names)
    for name in names:
        for text in (name, f"{name}=1", f"{name} 1 --tp 8", f"--tp 8 {name} --attention-backend triton"):
            assert clean(text) == text
        argument = f"{name[2:].replace('-', '_')} = true"
        assert clean(argument) == argument


def test_more_than_two_captures_and_unwritable_files_are_said(files: list[Path], tmp_path: Path) -> None:
    assert eaglediag("report", *files, files[0]).code == 2
    for option in ("--html", "--markdown"):
        ran = eaglediag("report", *files, option, tmp_path / "no" / "x")
        assert (ran.code, "cannot write" in ran.err) == (2, True)


def test_watch_prints_again_when_a_capture_changes(
    files: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A half-written capture is waited for; the next whole one is shown."""
    whole = files[1].read_bytes()
    files[1].write_bytes(whole[: len(whole) // 2])
    sleeps = iter(range(4))

    def sleep(seconds: float) -> None:
        turn = next(sleeps)
        if turn == 1:
            files[1].write_bytes(whole)
            os.utime(files[1], (1, time.time() + 5))
        if turn == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", sleep)
    ran = eaglediag("report", *files, "--watch")
    assert ran.code == 99
    assert ran.out.index("waiting: ") < ran.out.index("EAGLE-3 is")
    assert ran.out.count("EAGLE-3 is") == 1
