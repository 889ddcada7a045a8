"""Saved metrics pages as evidence: one speaks of the server's life, two of what happened between them."""

from __future__ import annotations

from collections.abc import Iterator

from eaglediag.capture.model import ModelShape, Problem, Server, Window
from eaglediag.errors import UsageError
from eaglediag.probes.evidence.evidence import Evidence, Fact
from eaglediag.probes.evidence.metrics_page import MetricsSnapshot, drafting, verified

#: Passes by which a page counts as a later one of the same server.
_COUNTERS = ("vllm:generation_tokens", "vllm:generation_tokens_total", "sglang:generation_tokens_total")


def of_pages(pages: list[MetricsSnapshot], files: list[str]) -> Evidence:
    """The capture's part. Of several pages the first and the last (by their counters) are differenced.

    Raises UsageError when the pages are of different engines.
    """
    if len({page.engine for page in pages}) > 1:
        raise UsageError("metrics pages of SGLang and of vLLM cannot be one capture", "import them apart")
    pages = sorted(pages, key=_age)
    last, first = pages[-1], pages[0] if len(pages) > 1 else None
    found = Evidence(
        method="metrics", files=files, server=Server(engine=last.engine, model=ModelShape(path=last.model))
    )
    if last.model:
        found.facts.append(Fact("the model", last.model))
    over = "between the pages" if first else "average since the server started"
    length = _accept_length(last, first)
    if length is not None:
        found.facts.append(Fact("the accept length", length, 0.05, over))
        found.windows.append(
            Window(
                id="metrics",
                agent="absent",
                started=0.0,
                duration_s=0.0,
                throughput_method="metrics",
                accept_length=length,
            )
        )
    for name, label in (("sglang:spec_num_steps", "draft steps"), ("sglang:spec_num_draft_tokens", "draft tokens")):
        values = last.by_dp_rank(name)
        if values and values[min(values)] > 0:
            found.facts.append(Fact(label, values[min(values)]))
    found.problems += _problems(last, first, length)
    found.unparsed = sum(len(page.unreadable) for page in pages)
    found.unparsed_lines = [line for page in pages for line in page.unreadable][:1000]
    return found


def _age(page: MetricsSnapshot) -> float:
    return next((value for name in _COUNTERS if (value := page.total(name)) is not None), 0.0)


def _accept_length(last: MetricsSnapshot, first: MetricsSnapshot | None) -> float | None:
    counted = drafting(last, first)
    if counted is not None:
        return counted.tokens / counted.passes if counted.passes > 0 else None
    pairs = verified(last, first)
    if pairs is not None:
        passes, tokens = pairs
        return tokens / passes
    return last.accept_length


def _problems(last: MetricsSnapshot, first: MetricsSnapshot | None, length: float | None) -> Iterator[Problem]:
    if first is None and length is not None and (drafting(last) or verified(last)):
        yield Problem(
            code="lifetime_accept_length",
            message=f"the counters give an accept length of {length:.2f} over the server's life, warm-up and every "
            "earlier load included",
            advice="save /metrics before and after the load and give both",
        )
    counts, before = last.graph_passes, first.graph_passes if first else {}
    eager = counts.get("decode_none", 0) - before.get("decode_none", 0)
    graph = counts.get("decode_cuda_graph", 0) - before.get("decode_cuda_graph", 0)
    if eager:
        yield Problem(
            code="eager_passes",
            message=f"{eager} of {eager + graph} decode or verify passes ran without a graph (cuda_graph_passes_total)",
            advice="`eaglediag probe` shows which condition said no",
        )
