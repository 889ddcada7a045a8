"""Checks of an SGLang launch command."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches

from eaglediag.analysis.launch_lint.command import Command
from eaglediag.analysis.launch_lint.finding import Finding, Rules

#: A maximum that is set this low is more often copied from a model card than meant.
CARD_MAXIMUM = 32
#: What SGLang sets for --max-running-requests when it speculates.
SPECULATIVE_RUNNING = 48

_NO_GRAPHS = {
    "torch_native": "the torch_native attention backend",
    "flex_attention": "the flex attention backend",
}
_EAGLE_FAMILY = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE")
_KNOWN = (*_EAGLE_FAMILY, "NGRAM", "DFLASH", "DSPARK", "FROZEN_KV_MTP", "UNO")


def check(command: Command, asked: int, rules: Rules) -> Iterator[Finding]:
    """All checks. `asked` is the highest concurrency, 0 when it is not known."""
    yield from _options(command, rules)
    yield from _speculation(command)
    yield from _width(command)
    yield from _graphs(command, asked, rules)
    yield from _honesty(command)


def _options(command: Command, rules: Rules) -> Iterator[Finding]:
    if rules.options is None:
        if rules.at_least("0.5.20") and "--cuda-graph-max-bs" in command.written:
            yield Finding(
                "error",
                "unknown_option",
                "--cuda-graph-max-bs is gone since SGLang 0.5.20 (it is ambiguous there: the server does not start)",
                "--cuda-graph-max-bs-decode",
            )
        return
    for name in dict.fromkeys(command.written):
        # argparse takes an abbreviation that fits one option alone.
        fits = sum(option.startswith(name) for option in rules.options)
        if name.startswith("--") and name not in rules.options and fits != 1:
            close = get_close_matches(name, rules.options, 1, cutoff=0.8)
            yield Finding(
                "error",
                "unknown_option",
                f"SGLang {rules.release} has no option {name}",
                f"did you mean {close[0]}?" if close else "see its --help",
            )


def _speculation(command: Command) -> Iterator[Finding]:
    algorithm = command.text("--speculative-algorithm") or command.text("--speculative-algo")
    settings = [name for name in command.options if name.startswith("--speculative-")]
    if algorithm is None:
        if settings:
            yield Finding(
                "error",
                "speculation_off",
                f"{', '.join(settings)} without --speculative-algorithm: the server will not speculate",
                "add --speculative-algorithm EAGLE3 (or the drafter's own)",
            )
        return
    if algorithm.upper() not in _KNOWN:
        yield Finding("warning", "unknown_algorithm", f"--speculative-algorithm {algorithm} is not one known here")
    if algorithm.upper() in ("EAGLE3", "STANDALONE") and not command.has("--speculative-draft-model-path"):
        yield Finding(
            "error",
            "no_draft_model",
            f"{algorithm} needs --speculative-draft-model-path",
            "give the draft model that was trained for this target",
        )
    if command.has("--enable-mixed-chunk"):
        yield Finding("warning", "mixed_chunk_off", "--enable-mixed-chunk is turned off when the server speculates")
    running = command.number("--max-running-requests")
    if running is None:
        yield Finding(
            "note",
            "running_requests_48",
            f"without --max-running-requests a speculating server runs at most {SPECULATIVE_RUNNING} requests at once",
            "set it in both arms, or the baseline runs more at a time",
        )
    if command.has("--num-continuous-decode-steps") and command.text("--num-continuous-decode-steps") != "1":
        yield Finding(
            "warning",
            "continuous_decode_steps",
            "--num-continuous-decode-steps serves plain decoding only: an arm that has it and one that speculates "
            "differ in more than speculation",
            "leave it out of both arms",
        )
    if command.has("--enable-dp-attention") and algorithm.upper() == "STANDALONE":
        yield Finding("error", "standalone_dp_attention", "STANDALONE does not run with --enable-dp-attention")


def _width(command: Command) -> Iterator[Finding]:
    """Whether steps, topk and draft tokens fit: the tree has topk + (steps - 1) x topk^2 drafts to choose from."""
    steps = command.number("--speculative-num-steps")
    topk = command.number("--speculative-eagle-topk")
    tokens = command.number("--speculative-num-draft-tokens")
    algorithm = (command.text("--speculative-algorithm") or "").upper()
    if algorithm not in _EAGLE_FAMILY:
        return
    given = {
        "--speculative-num-steps": steps,
        "--speculative-eagle-topk": topk,
        "--speculative-num-draft-tokens": tokens,
    }
    missing = [name for name, value in given.items() if value is None]
    if missing and len(missing) < 3:
        level = "error" if steps is None else "warning"
        yield Finding(
            level,  # type: ignore[arg-type]
            "incomplete_speculation",
            f"{', '.join(missing)} missing beside {', '.join(set(given) - set(missing))}",
            "give all three, or none to let SGLang choose",
        )
        return
    if steps is None or topk is None or tokens is None:
        return
    if 0 in (steps, topk, tokens):
        yield Finding("error", "zero_width", "steps, topk and draft tokens must each be at least 1")
    elif topk == 1 and tokens != steps + 1:
        yield Finding(
            "warning",
            "draft_tokens_adjusted",
            f"with topk 1 and {steps} steps a verify is {steps + 1} tokens wide; {tokens} is silently changed to that",
            f"--speculative-num-draft-tokens {steps + 1}",
        )
    elif tokens - 1 > topk + (steps - 1) * topk * topk:
        most = topk + (steps - 1) * topk * topk
        yield Finding(
            "error",
            "draft_tokens_do_not_fit",
            f"{steps} steps at topk {topk} draft at most {most} tokens; {tokens - 1} are to be verified",
            f"--speculative-num-draft-tokens {most + 1} or less",
        )
    page = command.number("--page-size")
    if topk > 1 and page is not None and page > 1 and command.text("--attention-backend") not in ("flashinfer", "fa3"):
        yield Finding(
            "error",
            "tree_with_pages",
            f"topk {topk} with --page-size {page} is refused except with the flashinfer or fa3 backend",
            "--page-size 1, or topk 1",
        )


def _graphs(command: Command, asked: int, rules: Rules) -> Iterator[Finding]:
    speculative = command.has("--speculative-algorithm")
    if command.has("--disable-cuda-graph") or command.has("--disable-decode-cuda-graph"):
        yield Finding(
            "warning",
            "graphs_disabled",
            "CUDA graphs are disabled: every decode, verify and draft step is launched kernel by kernel",
            "leave --disable-cuda-graph out",
        )
        return
    for option in ("--attention-backend", "--decode-attention-backend"):
        if backend := _NO_GRAPHS.get(command.text(option) or ""):
            yield Finding("warning", "graphs_disabled", f"{backend} silently disables CUDA graphs")
            return
    if command.text("--deepep-mode") == "normal":
        yield Finding("warning", "graphs_disabled", "--deepep-mode normal silently disables CUDA graphs")
        return
    if command.has("--debug-tensor-dump-output-folder"):
        yield Finding("warning", "graphs_disabled", "dumping tensors silently disables CUDA graphs")
        return
    padding = not command.has("--disable-cuda-graph-padding")
    explicit = command.numbers("--cuda-graph-bs")
    maximum = command.number("--cuda-graph-max-bs")
    if explicit:
        sizes = sorted(set(explicit))
    elif maximum:
        sizes = rules.captured(maximum, speculative, padding)
        if sizes and sizes[-1] < maximum:
            yield Finding(
                "warning",
                "maximum_off_grid",
                f"a maximum of {maximum} is not on {rules.release}'s grid: the largest graph is {sizes[-1]}",
                f"{rules.maximum_option} {_next_on_grid(rules, maximum, speculative)}",
            )
    else:
        return
    per_rank = _per_rank(command, asked)
    if sizes and per_rank > sizes[-1]:
        yield Finding(
            "warning",
            "beyond_largest_graph",
            f"at concurrency {asked}{' (over the DP ranks)' if per_rank != asked else ''} every decode and verify step "
            f"is eager: the largest captured batch size is {sizes[-1]}",
            f"{rules.maximum_option} {per_rank}",
        )
    elif explicit and not padding and per_rank and per_rank not in sizes:
        yield Finding(
            "warning",
            "size_not_captured",
            f"without padding a batch of {per_rank} has no graph: captured are {', '.join(map(str, sizes[:12]))}",
        )
    if (
        maximum
        and not asked
        and maximum <= CARD_MAXIMUM
        and (command.number("--max-running-requests") or 256) > maximum
    ):
        yield Finding(
            "warning",
            "maximum_from_a_model_card",
            f"a maximum of {maximum} leaves every larger batch without graphs; model cards set it for demonstrations",
            "leave it out, or give --concurrency to have it checked against your load",
        )


def _honesty(command: Command) -> Iterator[Finding]:
    for name in ("--speculative-accept-threshold-single", "--speculative-accept-threshold-acc"):
        value = command.text(name)
        if value is None:
            continue
        try:
            threshold = float(value)
        except ValueError:
            yield Finding("error", "not_a_number", f"{name} {value} is not a number")
            continue
        if threshold < 1:
            yield Finding(
                "warning",
                "lossy_acceptance",
                f"{name} {threshold:g} accepts drafts that the model would not have sampled: lengths are inflated",
                "leave it at 1.0 to compare",
            )
    if "SGLANG_SIMULATE_ACC_LEN" in command.environment:
        yield Finding(
            "warning",
            "accept_length_pinned",
            "SGLANG_SIMULATE_ACC_LEN pins the accept length: the tokens are not the model's",
            "unset it for anything but timing",
        )


def _per_rank(command: Command, asked: int) -> int:
    """With data parallelism each DP rank sees its share of the requests."""
    ranks = command.number("--dp-size") or 1
    return -(-asked // max(1, ranks))


def _next_on_grid(rules: Rules, maximum: int, speculative: bool) -> int:
    return next((size for size in rules.captured(2 * maximum + 64, speculative, True) if size >= maximum), maximum)
