"""A bug report ready to paste into an engine's tracker, with what names people, machines and places replaced."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace

from eaglediag import __version__
from eaglediag.analysis.comparison import Comparison
from eaglediag.analysis.denials import refusals
from eaglediag.analysis.sentences import PHASE_NAMES
from eaglediag.capture.model import Capture, Denial, ModelShape, Server, Workload
from eaglediag.reports import summary, tables
from eaglediag.reports.markdown import Section, fenced, fitted, table
from eaglediag.reports.redaction import Redactor
from eaglediag.reports.untrusted import markdown

#: Denials shown with their source; the rest are counted.
MOST = 6
#: The longest argument value that is shown.
LONGEST = 300
#: A name that a shell can give to a variable.
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: What a file of prompts is called in the command to reproduce.
PROMPTS = "prompts.jsonl"
#: Arguments that say how the engine was run; the rest are defaults, or in the command.
RELEVANT = ("cuda_graph", "speculative", "attention", "overlap", "radix", "chunked", "moe", "dtype", "quantization",
            "max_running", "all_reduce", "dp_", "tp_", "pp_", "ep_", "page_size", "torch_compile", "lora")  # fmt: skip


def render(captures: Sequence[Capture], result: Comparison | None) -> str:
    """The report on the last capture, as GitHub markdown; with `result`, against the first.

    Everything is replaced before it is quoted or escaped, and escaped before it is cut to fit.
    """
    capture, clean = captures[-1], Redactor(captures)
    title = clean(result.headline if result else f"{capture.arm}: measured with eaglediag")
    environment = [f"- {name}: {markdown(clean(value))}\n" for name, value in _environment(capture)]
    sections = [Section(f"**{markdown(title)}**\n\n### Environment\n\n", environment), *_settings(capture, clean)]
    sections.append(Section("\n### Evidence\n"))
    sections += _evidence(capture, clean) if result is None else _comparison(result, clean)
    sections += _denials(capture, clean)
    sections += _reproduce(capture, clean)
    replaced = "host names, addresses, logins, paths and keys are replaced as far as they were recognised"
    sections.append(Section(f"\n<sub>eaglediag {__version__}; {replaced}: look it over before you paste it.</sub>\n"))
    return fitted(sections)


def _environment(capture: Capture) -> list[tuple[str, str]]:
    server = capture.server
    gpus = [gpu.name for host in capture.hosts for gpu in host.gpus]
    pairs = [
        ("engine", f"{server.engine} {server.release}{f' at {server.commit}' if server.commit else ''}"),
        ("versions", ", ".join(f"{name} {version}" for name, version in server.versions.items())),
        ("GPUs", ", ".join(f"{gpus.count(name)} x {name}" for name in dict.fromkeys(gpus))),
        ("device", "" if gpus else server.device),
        ("driver", ", ".join(dict.fromkeys(host.driver for host in capture.hosts if host.driver))),
        ("system", ", ".join(dict.fromkeys(host.system for host in capture.hosts if host.system))),
        ("Python", ", ".join(dict.fromkeys(host.python for host in capture.hosts if host.python))),
        ("model", _model(server.model)),
        ("parallel", f"tp {server.tp}, dp {server.dp}, pp {server.pp}"),
        ("attention backend", server.attention_backend),
    ]
    if server.speculation is not None:
        spec = server.speculation
        pairs.append(
            (
                "speculation",
                f"{spec.algorithm}, {spec.num_steps} steps, top-k {spec.topk}, {spec.num_draft_tokens} draft tokens",
            )
        )
    for phase, graphs in server.captured.items():
        sizes = ", ".join(map(str, graphs.sizes[:60]))
        pairs.append((f"graphs captured for {PHASE_NAMES[phase]}", f"{sizes} ({graphs.unit})"))
    return [pair for pair in pairs if pair[1]]


def _model(model: ModelShape) -> str:
    layers = "layers not known" if model.layers is None else f"{model.layers} layers"
    return f"{model.architecture} ({layers}, {model.dtype or 'dtype not known'})" if model.architecture else ""


def _settings(capture: Capture, clean: Redactor) -> Iterator[Section]:
    server = capture.server
    if server.command:
        yield fenced("sh", shlex.join(clean.words(server.command)), "\nLaunch command:\n")
    if server.environment:
        yield fenced("sh", "\n".join(_assignments(server, clean)), "\nEnvironment variables:\n")
    if arguments := _arguments(server, clean):
        yield fenced("text", arguments, "\nArguments the engine ended up with:\n")


def _assignments(server: Server, clean: Redactor) -> list[str]:
    return [
        f"{clean(name)}={shlex.quote(str(clean.value(name, value)))}"
        for name, value in sorted(server.environment.items())
    ]


def _arguments(server: Server, clean: Redactor) -> str:
    lines = []
    for name, value in sorted(server.arguments.items()):
        if value not in (None, "", [], {}) and any(word in name for word in RELEVANT):
            shown = json.dumps(clean.value(name, value), ensure_ascii=False)
            lines.append(f"{clean(name)} = {shown if len(shown) <= LONGEST else shown[:LONGEST] + '…'}")
    return "\n".join(lines)


def _comparison(result: Comparison, clean: Redactor) -> Iterator[Section]:
    for one in tables.tables(result):
        headers = tuple(map(clean, one.headers))
        rows = tuple(tuple(map(clean, row)) for row in one.rows)
        yield table(replace(one, headers=headers, rows=rows), f"\n**{markdown(clean(one.title))}**\n\n")
    lines = []
    for finding in result.findings[:8]:
        facts = "; ".join(f"{one.fact} ({one.source})" for one in finding.evidence)
        lines.append(f"- {markdown(clean(finding.what))} ({finding.sure}): {markdown(clean(facts))}\n")
    yield Section("\n", lines)


def _evidence(capture: Capture, clean: Redactor) -> Iterator[Section]:
    lines = []
    for window in capture.windows:
        batch = summary.typical(window)
        if batch is not None:
            graphs = f"graph: {summary.graphs(batch)}"
            length = f", accept length {summary.accept_length(batch)}" if batch.kind == "cycle" else ""
            words = f"a {'cycle' if batch.kind == 'cycle' else 'step'} takes {batch.period_ms.mean:.2f} ms"
            line = f"batch {batch.batch_size}: {words} ({summary.parts(batch)}){length}; {graphs}"
            lines.append(f"- {markdown(clean(line))}\n")
    yield Section("\n", lines)


def _denials(capture: Capture, clean: Redactor) -> Iterator[Section]:
    kinds = refusals(capture)
    for one in kinds[:MOST]:
        yield Section(f"\n**No graph**: {markdown(clean(one.line))}\n")
        if text := _gate(one.denial):
            yield fenced("python", clean(text))
    if len(kinds) > MOST:
        yield Section(f"\n{len(kinds) - MOST} rarer kinds of refusal were recorded.\n")


def _gate(denial: Denial) -> str:
    """The way from the gate to the condition, and the source lines around it."""
    parts = []
    for frame in denial.frames:
        parts.append(f"# {frame.file}:{frame.line}, in {frame.function}")
        parts += frame.source or [frame.text]
        values = ", ".join(f"{name} = {value}" for name, value in frame.values.items())
        parts.append(f"# was: {frame.shown}" + (f"   ({values})" if values else ""))
    return "\n".join(parts)


def _reproduce(capture: Capture, clean: Redactor) -> Iterator[Section]:
    heading = "\n### How to reproduce\n"
    if not capture.server.command:
        yield Section(f"{heading}\nThe launch command is not on record; the figures come from files.\n")
        return
    name = clean(capture.arm.rpartition("/")[2]) + ".json"
    ab = " --ab -o results" if capture.server.speculation is not None else f" -o {shlex.quote(name)}"
    launch = _quoted(_launch(capture.server, clean))
    command = f"eaglediag probe --host local{ab} {' '.join(_options(capture))} \\\n  --launch {launch}"
    yield fenced("sh", f"pip install eaglediag\n{command}", heading)
    work = capture.workload
    if _own_prompts(work):
        yield Section(f"\n`{PROMPTS}`: {work.prompts} prompts from a file; attach it, one JSON object a line.\n")
    elif not work.requests_per_window and not work.concurrency:
        yield Section("\nThe load that was measured came from other clients; the command sends prompts of its own.\n")


def _launch(server: Server, clean: Redactor) -> str:
    """The command with its variables in front: those that a shell exports are in no capture."""
    variables = {name: value for name, value in server.environment.items() if VARIABLE.fullmatch(clean(name))}
    assignments = _assignments(server.model_copy(update={"environment": variables}), clean)
    return " ".join([*assignments, shlex.join(clean.words(server.command))])


def _quoted(text: str) -> str:
    """One word of the shell; in double quotes where that spares the single ones in it."""
    return f'"{text}"' if "'" in text and not re.search(r'["$`\\!]', text) else shlex.quote(text)


def _options(capture: Capture) -> list[str]:
    """The options of `eaglediag probe` that make it measure what this capture holds."""
    lengths = [window.simulated_accept_length for window in capture.windows]
    swept = [f"{length:g}" for length in dict.fromkeys(lengths) if length is not None]
    options = _load(capture)
    # A single one is that of the launch command's variables.
    if len(swept) > 1:
        options.append(f"--sweep-accept-length {','.join(swept)}")
    if capture.profiles:
        options.append(f"--profile-steps {max(one.steps for one in capture.profiles)}")
    return options


def _load(capture: Capture) -> list[str]:
    """The options of `eaglediag probe` that make its load this capture's."""
    work = capture.workload
    options = [f"--concurrency {','.join(map(str, work.concurrency))}"] if work.concurrency else []
    if work.requests_per_window is not None:
        options.append(f"--requests {work.requests_per_window}")
    if starts := max((window.repeat for window in capture.windows), default=0):
        options.append(f"--repeat {starts + 1}")
    if work.max_new_tokens is not None:
        options.append(f"--max-new-tokens {work.max_new_tokens}")
    if work.temperature is not None:
        options.append(f"--temperature {work.temperature:g}")
    if work.random_input_len is not None:
        options.append(f"--random-input-len {work.random_input_len}")
    elif work.ignore_eos:
        options.append("--ignore-eos")
    if _own_prompts(work):
        options.append(f"--prompts {PROMPTS}")
    if work.endpoint is not None:
        options.append(f"--endpoint {work.endpoint}")
    if work.seed is not None:
        options.append(f"--seed {work.seed}")
    return options


def _own_prompts(work: Workload) -> bool:
    """Whether the prompts came from a file, whose name is nobody else's business."""
    return bool(work.prompts) and work.random_input_len is None and not work.source.startswith("built-in")
