"""A bug report names nobody, and still holds its evidence."""

from __future__ import annotations

import re
import shlex
import time

import pytest

from eaglediag.capture.model import Capture, HostInfo
from eaglediag.reports import issue
from eaglediag.reports.redaction import Redactor
from tests.report_material import full_pair


def eagle(*hosts: str) -> Capture:
    _, capture = full_pair()
    capture.hosts += [HostInfo(name=name) for name in hosts]
    return capture


@pytest.mark.parametrize(
    "line",
    [
        # Of SGLang 0.5.14's gates and their operands.
        "graph_key = cuda_graph_bs",
        "            graph_key=graph_key,",
        "shape_key: ShapeKey = ShapeKey(size=bs)",
        "max_num_token=self.max_num_token",
        "self.req_to_token = req_to_token_pool.req_to_token",
        "spec_info.draft_token = torch.int64,(36,)",
        "cuda_graph_bs in self.graphs if self.disable_padding else cuda_graph_bs <= self.max_bs",
        "num_tokens = bs * self.num_tokens_per_bs  # first_token: bs // 2",
        "batch.spec_info.hidden_states[1::2], tokens[::4], out[10::20]",
        'self.enable_pdmux = "pdmux" in backends; key = "decode"',
        "@torch.no_grad()",
        "self.net.weight, x.at[0], layer.input.id, torch.ops.sgl_kernel.all_reduce.default",
    ],
)
def test_source_lines_of_a_gate_are_left_alone(line: str) -> None:
    assert Redactor(full_pair())(line) == line


LEAKS = {
    "10.1.2.3:30000": "<address-1>:30000",
    "--dist-init-addr 10.1.2.3:5000": "--dist-init-addr <address-1>:5000",
    "tcp://[fe80::1]:5000": "tcp://<address-1>:5000",
    "-H 'Authorization: Bearer x'": "-H 'Authorization: Bearer <key>'",
    "{'Authorization': 'Basic dXNlcjpwYXNz'}": "{'Authorization': 'Basic <key>'}",
    "curl --api-key abc12 --tp 8": "curl --api-key <key> --tp 8",
    "--api-key 'my secret phrase' --tp 8": "--api-key '<key>' --tp 8",
    "--api-key abc,defghijklm --tp 8": "--api-key <key> --tp 8",
    "MYTOKEN=abc DB_PASS=abc": "MYTOKEN=<key> DB_PASS=<key>",
    "accessToken=abc, pwd=hunter2, passphrase: 'a b'": "accessToken=<key>, pwd=<key>, passphrase: '<key>'",
    '{"token": "abc", "n": 1}': '{"token": "<key>", "n": 1}',
    "0123456789abcdef0123456789abcdef01234567": "<key>",
    "file:///home/alice/m": "file://<path-1>",
    "ipc:///tmp/alice.sock": "ipc://<path-1>",
    r"\\server\share\alice": "<path-1>",
    r"'\\\\server\\share\\alice'": "'<path-1>'",
    "//server/share/alice": "<path-1>",
    "~alice/models": "<path-1>",
    "'data/alice/models'": "'<path-1>'",
    "gpu9.uni-bonn.de": "<host-1>",
    "login.hpc.cam.ac.uk": "<host-1>",
    "node7:5000": "<host-1>:5000",
    "ip-10-1-2-3": "<host-1>",
    "sglang-6d4cf56db6-x7k2p": "<host-1>",
    "git@github.com:acme/rocket.git": "<login-1>",
    "https://github.com/acme/rocket": "https://github.com<path-1>",
    "http://alice:pw@node7:300/x?token=abc": "http://<user>@<host-1>:300<path-1>",
}


@pytest.mark.parametrize(("text", "clean"), LEAKS.items(), ids=LEAKS.keys())
def test_what_names_somebody_is_replaced(text: str, clean: str) -> None:
    assert Redactor([])(text) == clean


@pytest.mark.parametrize("key", ["npm", "gsk", "dckr_pat", "r8"])
def test_keys_are_known_by_their_prefix(key: str) -> None:
    assert Redactor([])(f"at {key}_abcdefGHIJKL0123456789.") == "at <key>."


def test_commits_and_releases_on_record_are_no_keys_and_no_addresses() -> None:
    capture = eagle()
    capture.server.commit = "0123456789abcdef0123456789abcdef01234567"
    revision = "89abcdef0123456789abcdef0123456789abcdef"
    capture.server.command += ["--revision", revision]
    capture.server.versions["cudnn"] = "9.1.0.70"
    text = issue.render([capture], None)
    assert capture.server.commit in text
    assert f"--revision {revision}" in text
    assert "cudnn 9.1.0.70" in text
    assert Redactor([capture])("at 9.1.0.71") == "at <address-1>"
    assert Redactor([])("nvidia-cudnn-cu12==9.1.0.70") == "nvidia-cudnn-cu12==9.1.0.70"


COMMANDS = {
    "quoted": ["--encryption-key", "S3cr#t!passw0rd"],
    "joined": ["--api-key=my secret phrase"],
    "short": ["--admin-api-key", "abc12"],
    "a header": ["-H", "Authorization: Bearer hunter22"],
    "a variable": ["env", "MYTOKEN=hunter22"],
    "nested": ["--json-model-override-args", '{"hub": {"token": "hunter22"}}'],
    "a path with blanks": ["--model-path", "/data/hunter22/my models/x"],
    "words with slashes": ["--model-path", "data/hunter22/models"],
    "a host": ["--dist-init-addr", "hunter22:5000"],
    "a shell's": ["bash", "-c", "python -m x --api-key 'hunter 22' --host hunter22.lan"],
}


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS.keys())
def test_no_word_of_the_command_leaks_however_it_must_be_quoted(words: list[str]) -> None:
    capture = eagle()
    capture.server.command += [*words, "--tp", "8"]
    capture.server.environment = {"DB_PASS": "hunter 22", "HF_TOKEN": "x,y", "HOSTNAME": "hunter22", "USER": "hunter22"}
    text = issue.render([capture], None)
    for secret in ("hunter", "S3cr", "passw0rd", "phrase", "abc12", "my models", "x,y"):
        assert secret not in text
    for fence in re.findall(r"(?ms)^```sh\n(.*?)^```$", text):
        shlex.split(fence.replace("\\\n", " "))
    launch = re.search(r"(?ms)^Launch command:\s+```sh\n(.*?)\n```", text)
    assert launch is not None
    assert len(shlex.split(launch[1])) == len(capture.server.command)
    assert launch[1].endswith("--tp 8")


def test_parts_of_a_label_are_names_too_in_either_case() -> None:
    clean = Redactor([eagle("alice@gpu1:2222", "container bob-dev on GPU-18")])
    assert clean("gpu1 and GPU1") == "<host-1> and <host-1>"
    assert clean("alice, bob-dev, gpu-18") == "<login-1>, <host-2>, <host-3>"
    assert clean("container x on y") == "container x on y"


@pytest.mark.parametrize("alias", ["sglang", "python", "triton", "verify", "batch", "h200", "host", "launch_server"])
def test_a_host_called_by_an_ordinary_word_ruins_nothing(alias: str) -> None:
    plain = issue.render([eagle()], None)
    assert issue.render([eagle(alias)], None) == plain


def test_an_option_behind_an_option_for_a_host_is_no_host() -> None:
    capture = eagle()
    capture.server.command += ["--dist-init-addr", "--tp", "8"]
    assert "--dist-init-addr --tp 8" in issue.render([capture], None)


def test_a_host_called_by_a_word_is_replaced_outside_options_and_modules() -> None:
    clean = Redactor([eagle("athena")])
    assert (
        clean("on athena: --use-athena=1 pkg.athena.x athena.run")
        == "on <host-1>: --use-athena=1 pkg.athena.x athena.run"
    )


def test_the_folders_that_name_an_arm_are_replaced() -> None:
    baseline, capture = full_pair()
    baseline.arm, capture.arm = "bob/eagle", "alice/eagle"
    text = issue.render([baseline, capture], None)
    assert "alice" not in text
    assert "/eagle" in text


def test_a_hosts_name_leaks_from_no_table() -> None:
    from eaglediag.analysis.comparison import compare

    baseline, capture = full_pair()
    baseline.arm, capture.arm = "plain on gpu17", "eagle on gpu_17"
    for one in (baseline, capture):
        one.hosts += [HostInfo(name="gpu17"), HostInfo(name="gpu_17")]
    text = issue.render([baseline, capture], compare(baseline, capture))
    assert "gpu17" not in text
    assert "gpu_17" not in text.replace("\\", "")
    assert "eagle on \\<host-" in text
    assert not re.search(r"(?<!\\)<host", re.sub(r"(?ms)^```\w*\n.*?^```$", "", text))


@pytest.mark.parametrize(
    "unit", ["a", "/", "-", "\\", "'", "a.", "a@", "1:", "A_", "key=", "a+", "//a", "http://", "a/b/"]
)
def test_long_texts_take_no_long_time(unit: str) -> None:
    clean, started = Redactor(full_pair()), time.process_time()
    clean(unit * (20_000 // len(unit)))
    assert time.process_time() - started < 1
