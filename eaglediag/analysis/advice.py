"""What to do about a denied graph: the flag and the value that would have allowed what was seen, and what that costs.

Everything is derived from the values in the denial and from the server's settings. A condition that the table does not
know, or whose values do not tell, gets no advice.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Literal

from eaglediag.analysis.launch_lint.finding import Rules
from eaglediag.capture.model import Capture, Denial, Frame, Phase, Server
from eaglediag.errors import UsageError

#: How far above the size that is needed a captured one is looked for.
_REACH = 512
#: Numbers of more digits are no sizes, and a capture may hold anything.
_COMPARED = re.compile(r"(\d{1,6}) (<=|<|==|!=|>) (\d{1,6})")
_SIZE = re.compile(r"ShapeKey\(size=(\d{1,6})(.*)\)|'?(?:\d{1,6}_)?(\d{1,6})'?")

_ITEMS = re.compile(r"[\[\]]|, (?=ShapeKey|'|\d)")

Kind = Literal["add", "remove", "structural"]


@dataclass(frozen=True)
class Advice:
    """What would have allowed the graph.

    `add`: `flag` as one would type it, value included; `remove`: the flag that would have to go; `structural`: no flag
    changes this, and `why` says what it is. `cost` says what the flag costs and how that is known, or why it is not;
    "" if nothing is on record.
    """

    code: str
    kind: Kind
    flag: str = ""
    why: str = ""
    cost: str = ""
    note: str = ""

    @property
    def sentence(self) -> str:
        """The advice in one clause, fit to stand behind the condition and a semicolon."""
        if self.kind == "structural":
            return f"structural, no flag changes this: {self.why}"
        head = f"`{self.flag}` would allow it" if self.kind == "add" else f"without `{self.flag}` it would be allowed"
        behind = "; ".join(part for part in (self.why, self.cost, self.note) if part)
        return f"{head} ({behind})" if behind else head

    @property
    def short(self) -> str:
        """The same without why, cost and notes, for one line among many."""
        return self.sentence.partition(" (")[0] if self.kind != "structural" else self.sentence

    def as_json(self) -> dict[str, str]:
        """For machines."""
        return {**asdict(self), "sentence": self.sentence}


@dataclass(frozen=True)
class Seen:
    """A denial beside the server it happened on. `alone` is as `alone_on_gpus` says."""

    denial: Denial
    leaf: Frame
    server: Server
    alone: bool | None = None

    @property
    def rules(self) -> Rules:
        """How the server's release behaves; the newest one's when the release is not known."""
        return Rules(self.server.release) if self.server.release else Rules()

    @property
    def compared(self) -> tuple[int, int] | None:
        """The two numbers of `12 <= 8`."""
        found = _COMPARED.fullmatch(self.leaf.shown)
        return (int(found[1]), int(found[3])) if found else None

    def argument(self, *names: str) -> object:
        """The first of these arguments that the server has a value for."""
        values = (self.server.arguments.get(name) for name in names)
        return next((value for value in values if value is not None), None)

    @property
    def speculative(self) -> bool:
        """Whether the server speculates; a phase other than decode says so too."""
        return self.server.speculation is not None or self.denial.phase in ("verify", "draft", "draft_extend")

    @property
    def padding(self) -> bool:
        """Whether batches are padded to the next captured size."""
        return not self.argument("disable_cuda_graph_padding")


Advisor = Callable[[Seen], "Advice | None"]


@dataclass(frozen=True)
class Known:
    """A known condition: `pattern` is searched in the leaf's text; `what` is what it asks, in plain words."""

    code: str
    pattern: re.Pattern[str]
    what: str
    advise: Advisor


def alone_on_gpus(capture: Capture) -> bool | None:
    """Whether only the server's own ranks were seen on its GPUs; None when the capture does not say.

    Of an arm that was started several times the ranks are the first start's, and the processes those of all.
    """
    ranks = {(rank.host, rank.pid) for rank in capture.instrumentation.ranks}
    several = any(window.repeat for window in capture.windows)
    seen = [(gpu.host, one) for host in capture.hosts for gpu in host.gpus for one in gpu.processes]
    return all(one.ours if several else (where, one.pid) in ranks for where, one in seen) if seen else None


def advise(denial: Denial, server: Server, alone: bool | None = None) -> Advice | None:
    """What would have allowed what was seen; None for a condition that is not known, or whose values do not tell.

    `alone`: whether the server had its GPUs for itself, without which the memory of its graphs is not its own.
    """
    if not denial.frames:
        return None
    seen = Seen(denial, denial.frames[-1], server, alone)
    known = known_condition(seen.leaf.text, seen.leaf.shown)
    return None if known is None else known.advise(seen)


def room_for(wanted: int, most: int, phase: Phase, server: Server, alone: bool | None = None) -> Advice:
    """What makes a release capture sizes up to `wanted` requests when `most` is the largest that it captured."""
    frame = Frame(file="", line=0, function="", text="", shown="")
    return _raise_maximum(Seen(Denial(phase=phase, gate=""), frame, server, alone), "batch_too_large", wanted, most)


def switched_off(server: Server) -> Advice | None:
    """The argument with which the server was told to capture no graphs for decode and verify; None without one."""
    if server.arguments.get("disable_cuda_graph"):
        return Advice("no_runner", "remove", "--disable-cuda-graph")
    if server.arguments.get("disable_decode_cuda_graph"):
        return Advice("no_runner", "remove", "--disable-decode-cuda-graph")
    if _backend(server, "decode") == "disabled":
        return Advice("no_runner", "remove", "--cuda-graph-backend-decode disabled")
    return None


def known_condition(text: str, shown: str = "") -> Known | None:
    """The table's row for a condition, by its source text (and, for `return False` and the like, its values)."""
    return next((known for known in KNOWN if known.pattern.search(text) or known.pattern.search(shown)), None)


# -- sizes ------------------------------------------------------------------------------------------------------------


def _too_large(seen: Seen) -> Advice | None:
    if seen.compared is None:
        return None
    wanted, most = seen.compared
    if "cpu_graph_runner" in seen.leaf.file:
        return _cpu_size(seen, wanted)
    return _raise_maximum(seen, "batch_too_large", wanted, most)


def _raise_maximum(seen: Seen, code: str, wanted: int, most: int) -> Advice:
    listed = next((flag for flag in _LISTS if flag in seen.server.command), None)
    if listed is not None:
        sizes = sorted({*_captured(seen), wanted})
        flag = f"{listed} {' '.join(map(str, sizes))}"
        return Advice(code, "add", flag, cost=_cost(seen, 1), note="the list of sizes is given, so no maximum counts")
    option, value = seen.rules.maximum_option, wanted
    if not seen.server.release and "cuda_graph_max_bs" in seen.server.arguments:
        option = "--cuda-graph-max-bs"
    try:
        while (sizes := _grid(seen, value)) and max(sizes) < wanted and value < wanted + _REACH:
            value += 1
        before = set(_captured(seen)) or set(_grid(seen, most))
    except UsageError:
        sizes, before = [], set()
    note = f"{wanted} is not a size that this release captures, and below {value} it stays denied"
    note = "" if value == wanted else note
    more = sum(size > most and size not in before for size in sizes)
    return Advice(code, "add", f"{option} {value}", cost=_cost(seen, more), note=_joined(note, _dropped(seen)))


#: The options that name every size.
_LISTS = ("--cuda-graph-bs-decode", "--cuda-graph-bs")


def _grid(seen: Seen, most: int) -> list[int]:
    return seen.rules.captured(most, seen.speculative, seen.padding)


def _captured(seen: Seen) -> list[int]:
    """The sizes captured for the denial's phase, in requests; none when the capture does not say."""
    graphs = seen.server.captured.get(seen.denial.phase)
    return [] if graphs is None else graphs.requests


def _cost(seen: Seen, more: int) -> str:
    """What `more` sizes take: the captured ones' mean, phase by phase, as they are captured for every phase.

    The engine tells by how much the GPU's free memory fell, whoever took it.
    """
    told = [
        (phase, graphs.memory_gb, len(graphs.sizes))
        for phase, graphs in seen.server.captured.items()
        # Prefill's graphs are of tokens and have an option of their own.
        if graphs.memory_gb is not None and graphs.sizes and phase != "extend"
    ]
    if not told or not more:
        return ""
    if seen.alone is False:
        return "what it takes is not known: the engine counts the GPU's free memory, and other processes were on it"
    extra = sum(more * memory / sizes for _, memory, sizes in told)
    basis = ", ".join(f"{sizes} of {phase.replace('_', '-')} {memory:.2f} GB" for phase, memory, sizes in told)
    what = "1 more size" if more == 1 else f"{more} more sizes"
    whose = "" if seen.alone else ", counted for the whole GPU"
    return f"about {extra:.2f} GB more for {what}, at the mean of those captured{whose}: {basis}"


def _dropped(seen: Seen) -> str:
    if seen.argument("enable_dp_attention", "enable_two_batch_overlap"):
        return "sizes that do not divide among the attention ranks or the two batches are left out"
    return ""


def _joined(*notes: str) -> str:
    return "; ".join(note for note in notes if note)


def _cpu_size(seen: Seen, wanted: int) -> Advice:
    if wanted <= 16:
        return Advice("batch_too_large", "add", f"--torch-compile-max-bs {wanted}")
    return Advice("batch_too_large", "structural", why=f"CPU graphs are captured for up to 16 requests, not {wanted}")


def _not_captured(seen: Seen) -> Advice | None:
    left, among, right = seen.leaf.shown.partition(" in ")
    size = _size(left)
    sizes = [found for part in _ITEMS.split(right) if (found := _size(part))]
    if not among or size is None or not sizes:
        return None
    if "cpu_graph_runner" in seen.leaf.file:
        return _cpu_size(seen, size)
    largest = max(sizes)
    if size in sizes:
        return Advice(
            "variant_not_captured",
            "structural",
            why=f"a graph of size {size} exists, but of another variant (stream, LoRA or attention) than {left}",
        )
    if size > largest:
        return _raise_maximum(seen, "size_not_captured", size, largest)
    next_size = min(one for one in sizes if one > size)
    why = f"the batch would be padded from {size} to {next_size}, which is captured"
    return Advice("size_not_captured", "remove", "--disable-cuda-graph-padding", why=why)


def _size(text: str) -> int | None:
    found = _SIZE.fullmatch(text.strip())
    return int(found[1] or found[3]) if found else None


def _too_many_tokens(seen: Seen) -> Advice | None:
    """Prefill: `num_tokens <= self.max_num_tokens`, or `>` with the sides of a refusal."""
    if seen.compared is None:
        return None
    wanted, most = seen.compared
    option = "--cuda-graph-max-bs-prefill" if seen.rules.at_least("0.5.14") else "--piecewise-cuda-graph-max-tokens"
    # Sizes off this grid are silently lower in every release.
    stride = next((stride for most_of, stride in _PREFILL_GRID if wanted <= most_of), 512)
    value = -(-wanted // stride) * stride
    note = "" if value == wanted else f"the next size captured above {wanted}"
    return Advice("prefill_too_large", "add", f"{option} {value}", f"{most} tokens is the most captured", note=note)


_PREFILL_GRID = ((32, 4), (256, 16), (512, 32), (1024, 64), (4096, 256))


def _ragged(seen: Seen) -> Advice | None:
    if seen.compared is None:
        return None
    tokens, most = seen.compared
    why = f"the verify pass has {tokens} tokens, and graphs exist for up to {most}"
    graphs = seen.server.captured.get("verify")
    speculation = seen.server.speculation
    width = (graphs and graphs.tokens_per_request) or (speculation and speculation.num_draft_tokens)
    if not width:
        return None
    raised = _raise_maximum(seen, "ragged_too_large", -(-tokens // width), most // width)
    return Advice(raised.code, raised.kind, raised.flag, f"{why}, {width} for each request", raised.cost, raised.note)


# -- runners and modes ------------------------------------------------------------------------------------------------


def _no_runner(seen: Seen) -> Advice | None:
    """No graph runner exists: switched off, or nothing to capture for this phase on this device."""
    if "is not None" in seen.leaf.text and "None is not None" not in seen.leaf.shown:
        return None
    if "is not None" not in seen.leaf.text and seen.leaf.shown not in ("None", "EagerRunner"):
        return None
    phase, cpu = seen.denial.phase, seen.server.device.startswith("cpu")
    if cpu and phase == "decode" and seen.argument("enable_torch_compile") is False:
        return Advice("no_runner", "add", "--enable-torch-compile", why="on a CPU only a compiled decode has graphs")
    if cpu and phase != "decode":
        return Advice("no_runner", "structural", why="no graphs are made for this phase on a CPU")
    off = switched_off(seen.server)
    if off is not None:
        return off
    speculation = seen.server.speculation
    if phase == "draft" and speculation is not None and speculation.num_steps == 1:
        return Advice("no_runner", "structural", why="with one draft step there is nothing to capture")
    return None


def _no_prefill_runner(seen: Seen) -> Advice | None:
    if seen.server.device.startswith("cpu"):
        return Advice("no_prefill_runner", "structural", why="no prefill graphs are made on a CPU")
    if seen.argument("disable_piecewise_cuda_graph") and "--disable-piecewise-cuda-graph" in seen.server.command:
        return Advice("no_prefill_runner", "remove", "--disable-piecewise-cuda-graph")
    if seen.argument("disable_prefill_cuda_graph") and "--disable-prefill-cuda-graph" in seen.server.command:
        return Advice("no_prefill_runner", "remove", "--disable-prefill-cuda-graph")
    if seen.argument("enable_piecewise_cuda_graph") is False and not seen.rules.at_least("0.5.10"):
        return Advice("no_prefill_runner", "add", "--enable-piecewise-cuda-graph")
    return None


def _backend(server: Server, phase: str) -> object:
    config = server.arguments.get("cuda_graph_config")
    one = config.get(phase) if isinstance(config, dict) else None
    return one.get("backend") if isinstance(one, dict) else None


def _mode(seen: Seen) -> Advice:
    mode = seen.leaf.values.get("forward_batch.forward_mode", "this forward mode").rpartition(".")[2]
    if "is_cpu_graph" in seen.leaf.text:
        return Advice("mode", "structural", why=f"on a CPU only DECODE is a graph mode, not {mode}")
    return Advice("mode", "structural", why=f"{mode} is not a graph mode")


# -- everything else --------------------------------------------------------------------------------------------------


def _hidden_mode(seen: Seen) -> Advice | None:
    values = seen.leaf.values.items()
    modes = {text: value.rpartition(".")[2] for text, value in values if value.startswith("CaptureHiddenMode.")}
    asked = next((mode for text, mode in modes.items() if text != "self.capture_hidden_mode" and "." in text), None)
    asked = modes.get("requested_capture_hidden_mode", asked)
    captured = modes.get("self.capture_hidden_mode")
    if asked is None or captured is None:
        return None
    if asked == "FULL" and captured == "NULL" and not seen.speculative:
        why = "the batch returns hidden states, and the graph was captured without"
        return Advice("hidden_mode", "add", "--enable-return-hidden-states", why=why)
    return Advice("hidden_mode", "structural", why=f"hidden states were asked as {asked} and captured as {captured}")


def _tbo(seen: Seen) -> Advice:
    why = "this batch could not be split in two"
    return Advice("two_batch_overlap", "remove", "--enable-two-batch-overlap", why=why, cost="costs the overlap")


def _width(seen: Seen) -> Advice | None:
    asked = seen.leaf.values.get("spec_info.num_tokens_per_req")
    captured = next((seen.leaf.values[name] for name in _WIDTHS if name in seen.leaf.values), None)
    if asked is None or captured is None:
        return None
    why = f"{asked} tokens a request were asked, and the graphs were captured with {captured}"
    return Advice("width", "structural", why=why)


_WIDTHS = ("self.captured_req_width", "self.num_tokens_per_bs")


def _ngram(seen: Seen) -> Advice | None:
    if seen.compared is None:
        return None
    full, tokens = seen.compared
    why = f"the drafts of this batch are uneven: {tokens} tokens instead of {full}"
    return Advice("ngram_width", "structural", why=why)


def _structural(code: str, why: str) -> Advisor:
    return lambda _: Advice(code, "structural", why=why)


def _lora(seen: Seen) -> Advice:
    return Advice("lora", "remove", "--enable-lora", why="this batch's adapters have no prefill graph")


def _mixed(seen: Seen) -> Advice:
    return Advice("mixed_chunk", "remove", "--enable-mixed-chunk", why="the pass mixed prefill and decode")


def _table(rows: Iterable[tuple[str, str, str, Advisor]]) -> tuple[Known, ...]:
    return tuple(Known(code, re.compile(pattern), what, advisor) for code, pattern, what, advisor in rows)


#: The first row whose pattern is found in the condition's text speaks.
KNOWN: tuple[Known, ...] = _table(
    (
        ("mode", r"\.is_(cpu|cuda)_graph\(\)", "is this forward mode one that graphs are made for?", _mode),
        ("batch_too_large", r"<= self\.max_bs\b", "is the batch within the largest captured size?", _too_large),
        ("size_not_captured", r"(graph_key|shape_key|_bs|batch_size) in self\._?graphs\b|\bbackend\.can_run\(",
         "was exactly this size captured?", _not_captured),
        ("prefill_too_large", r"\bnum_tokens (<=|>) self\.max_num_tokens\b",
         "is the prefill within the largest captured number of tokens?", _too_many_tokens),
        ("ragged_too_large", r"admission_tokens <= self\.capture_num_tokens\[-1\]",
         "are the tokens to verify within the largest captured number?", _ragged),
        ("dp_sync", r"can_run_(dp|decode)_cuda_graph\b(?!\()",
         "can every data-parallel rank run a graph in this step?",
         _structural("dp_sync", "another data-parallel rank was not decoding in this step, and all must run alike")),
        ("encoder", r"encoder_lens > 0", "has every request of the batch an encoder input?",
         _structural("encoder", "a request of the batch has no encoder input, and graphs do not mix the two")),
        ("hidden_mode", r"capture_hidden_mode", "are the hidden states captured those that are asked for?",
         _hidden_mode),
        ("two_batch_overlap", r"can_run_tbo\b", "can the batch be split for two-batch overlap?", _tbo),
        ("ngram_width", r"== forward_batch\.input_ids\.numel\(\)", "has every request the full width of drafts?",
         _ngram),
        ("width", r"num_tokens_per_req != self\.", "is the width asked the width captured?", _width),
        ("replace_embeds", r"replace_embeds is not None", "does the batch bring embeddings of its own?",
         _structural("replace_embeds", "requests with embeddings of their own run eagerly")),
        ("input_embeds", r"\binput_embeds is not None", "does the batch bring embeddings instead of tokens?",
         _structural("input_embeds", "requests with embeddings instead of tokens run eagerly")),
        ("ragged_layout", r"ragged_verify_mode and forward_batch\.forward_mode\.is_target_verify\(\)",
         "has a ragged verify pass its layout?",
         _structural("ragged_layout", "the verify pass came without the layout that ragged graphs need")),
        ("logprob_start", r"start_len is not None and start_len < seq_len",
         "do requests want log-probabilities of their prompt?",
         _structural("logprob_start", "log-probabilities of prompt tokens need an eager prefill")),
        ("lora", r"^lora_ineligible$", "can the batch's adapters run in the prefill graph?", _lora),
        ("mixed_chunk", r"^is_mixed\b", "does the pass mix prefill and decode?", _mixed),
        ("no_prefill_runner", r"(piecewise|prefill)_cuda_graph_runner\b(?!.*\.can_)",
         "is there a prefill graph runner?", _no_prefill_runner),
        ("no_runner", r"(?:^|\.)((decode_)?(cuda_)?graph_runner(_for_draft_extend)?)( is not None)?$",
         "is there a graph runner?", _no_runner),
        ("eager_runner", r"EagerRunner\.can_run_graph\(", "has this model a graph runner of its own?",
         _structural("eager_runner", "this runner captures no graphs; the phase's own runner decides")),
    )
)  # fmt: skip
