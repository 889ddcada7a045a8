"""Logs and pages of real servers: what `import` makes of them agrees with what the client saw."""

from __future__ import annotations

import json
import time
import urllib.request
from pathlib import Path

import pytest

from eaglediag.probes.evidence.assemble import assemble, read
from tests.engine import start_server
from tests.sglang_lines import codes

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]

NEW_TOKENS = 240
INTERVAL = 5


@pytest.mark.parametrize(
    ("release", "arm"),
    [
        ("0.5.20", "eagle"),
        ("0.5.20", "baseline"),
        ("0.5.23", "eagle"),
        ("0.5.12", "baseline"),
        ("0.5.9", "baseline"),
    ],
)
def test_a_real_server_s_own_words(release: str, arm: str, tmp_path: Path) -> None:
    options = ["--decode-log-interval", str(INTERVAL), "--enable-metrics"]
    with start_server(arm, release=release, extra_args=options) as server:
        server.generate("Warm up.", 20)
        started = time.perf_counter()
        answer = server.generate("Say something about rain.", NEW_TOKENS)
        latency_ms = 1000 * (time.perf_counter() - started)
        log, info, metrics = (tmp_path / name for name in ("server.log", "server_info.json", "metrics.txt"))
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/get_server_info", timeout=30) as page:
            info.write_bytes(page.read())
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=30) as page:
            metrics.write_bytes(page.read())
        log.write_text(server.log_text())
    capture = assemble(read([log, info, metrics]), arm)
    assert capture.server.release == release
    assert not {"contradiction", "unreadable_lines", "no_decode_lines"} & set(codes(capture)), capture.problems
    (batch,) = [b for w in capture.windows if w.concurrency == 1 for r in w.ranks for b in r.batches]
    assert batch.count % INTERVAL == 0
    verify_passes = answer["meta_info"].get("spec_verify_ct")
    passes = verify_passes or NEW_TOKENS - 1
    # The request's steps but the first and last few, which share a line with the idle time before or are not logged.
    assert passes - 4 * INTERVAL <= batch.count <= passes + 20
    assert batch.period_ms.mean * passes == pytest.approx(latency_ms, rel=0.35)
    if arm == "eagle":
        assert verify_passes
        assert batch.accept is not None
        assert batch.accept.tokens / batch.accept.passes == pytest.approx((NEW_TOKENS - 1) / verify_passes, rel=0.08)
        assert "unknown_draft_graphs" in codes(capture)
    else:
        assert batch.accept is None
        assert capture.server.speculation is None
    assert json.loads(capture.model_dump_json())["source"]["files"] == ["server_info.json", "server.log", "metrics.txt"]
