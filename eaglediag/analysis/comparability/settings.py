"""Differences in what was run: model, parallelism, engine, launch arguments, environment, workload, instruments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pydantic import JsonValue

from eaglediag.analysis.comparability.difference import Difference, Grade
from eaglediag.capture.model import Capture, Workload

NOT_SET = "not set"
#: What a capture holds where it does not say.
UNKNOWN: tuple[object, ...] = (None, "", [], {})
#: Values longer than this are cut where they are shown.
LONGEST = 80

#: Arguments that say where and how to log or listen, not how to compute.
NEUTRAL_ARGUMENTS = frozenset(
    {
        "host",
        "port",
        "nccl_port",
        "grpc_port",
        "engine_info_bootstrap_port",
        "dist_init_addr",
        "log_level",
        "log_level_http",
        "log_requests",
        "log_requests_level",
        "show_time_cost",
        "served_model_name",
        "api_key",
        "admin_api_key",
        "file_storage_path",
        "download_dir",
        "random_seed",
        "watchdog_timeout",
        "enable_metrics",
        "enable_metrics_for_all_schedulers",
        "decode_log_interval",
        "crash_dump_folder",
        "collect_tokens_histogram",
        "trust_remote_code",
        "skip_server_warmup",
        "warmups",
        "tokenizer_path",
        "revision",
        "base_gpu_id",
        "tokenizer_worker_num",
    }
)
#: Arguments that are compared as facts about the server, under their own names.
COMPARED_ELSEWHERE = frozenset(
    {
        "model_path",
        "model",
        "tp_size",
        "tensor_parallel_size",
        "tp",
        "dp_size",
        "data_parallel_size",
        "dp",
        "pp_size",
        "pipeline_parallel_size",
        "pp",
    }
)
#: Arguments that SGLang sets by itself when it speculates: their cost is part of speculation's.
SETTLED_BY_SPECULATION = frozenset(
    {
        "disable_overlap_schedule",
        "max_running_requests",
        "cuda_graph_max_bs",
        "cuda_graph_bs",
        "cuda_graph_config",
        "mem_fraction_static",
        "max_total_tokens",
        "page_size",
        "enable_mixed_chunk",
        "max_prefill_tokens",
    }
)
SPECULATION = ("speculative_", "enable_multi_layer_eagle")
SPECULATION_ENVIRONMENT = ("SGLANG_SIMULATE_ACC", "SGLANG_ENABLE_SPEC", "SGLANG_SPEC", "SGLANG_RETURN_ORIGINAL_LOGPROB")
PERFORMANCE_ENVIRONMENT = ("SGLANG_", "SGL_", "NCCL_", "CUDA_", "TORCH", "PYTORCH_", "OMP_", "MKL_", "FLASHINFER_")
#: Which of the machine's GPUs a server sees: those are compared by themselves, or said not to be on record.
DEVICES = "CUDA_VISIBLE_DEVICES"
#: Without clocks on record, arms this far apart in time may have met the GPUs in different states.
APART_S = 3600.0


def setting_differences(baseline: Capture, candidate: Capture, speculation_differs: bool) -> Iterator[Difference]:
    """Every difference in settings.

    With `speculation_differs`, its settings are what is compared, and what the engine sets because of it is harmless.
    """
    yield from _model(baseline, candidate)
    yield from _engine(baseline, candidate)
    yield from _arguments(baseline, candidate, speculation_differs)
    yield from _environment(baseline.server.environment, candidate.server.environment, speculation_differs)
    yield from _workload(baseline, candidate)
    yield from _instruments(baseline, candidate)


def known_of_one(baseline: Capture, candidate: Capture) -> Iterator[str]:
    """What one capture says and the other does not: it may differ."""
    facts = []
    for capture in (baseline, candidate):
        server = capture.server
        code = {f"{server.engine} release": server.release, f"{server.engine} commit": server.commit}
        facts.append(code | {f"workload {what}": value for what, value in _asked(capture.workload).items()})
    mine, theirs = facts
    for what, value in mine.items():
        silent = candidate if value not in UNKNOWN else baseline
        if what in theirs and (value in UNKNOWN) != (theirs[what] in UNKNOWN):
            yield f"{what} of {silent.arm}"


def flags(command: Sequence[str]) -> dict[str, str]:
    """The `--flag value` arguments of a command by name, with underscores; a flag without a value is "on"."""
    found: dict[str, str] = {}
    name = None
    for word in command:
        if word.startswith("--"):
            name, _, value = word[2:].partition("=")
            name = name.replace("-", "_")
            found[name] = value or "on"
        elif name is not None:
            found[name] = word if found[name] == "on" else f"{found[name]} {word}"
    return found


def _differ(
    what: str, one: object, other: object, grade: Grade, why: str, *, known_only: bool = True
) -> Iterator[Difference]:
    """A difference, unless the values are equal or (with `known_only`) one of them is not known."""
    if one == other or (known_only and (one in UNKNOWN or other in UNKNOWN)):
        return
    yield Difference(what, _shown(one), _shown(other), grade, why)


def _shown(value: object) -> str:
    if value in UNKNOWN:
        return NOT_SET
    text = ("off", "on")[value] if isinstance(value, bool) else str(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def _model(baseline: Capture, candidate: Capture) -> Iterator[Difference]:
    one, other = baseline.server.model, candidate.server.model
    told = bool(one.architecture and one.layers and other.architecture and other.layers)
    shape = one.model_dump(exclude={"path"})
    for name, value in shape.items():
        yield from _differ(
            f"model {name.replace('_', ' ')}",
            value,
            getattr(other, name),
            "not_comparable",
            "another model",
            # A model whose shape is on record and has no quantization is not quantized.
            known_only=not (told and name == "quantization"),
        )
    grade: Grade = "harmless" if told else "confounding"
    yield from _differ(
        "model path",
        one.path,
        other.path,
        grade,
        "same shapes" if told else "shapes not on record; maybe another model",
    )


def _engine(baseline: Capture, candidate: Capture) -> Iterator[Difference]:
    one, other = baseline.server, candidate.server
    yield from _differ("engine", one.engine, other.engine, "not_comparable", "another engine")
    yield from _differ("device", one.device, other.device, "not_comparable", "another kind of device")
    for name in ("tp", "dp", "pp"):
        yield from _differ(f"{name} size", getattr(one, name), getattr(other, name), "not_comparable", "other shards")
    yield from _differ(f"{one.engine} release", one.release, other.release, "confounding", "other code")
    yield from _differ(f"{one.engine} commit", one.commit, other.commit, "confounding", "other code")
    yield from _differ(
        "attention backend", one.attention_backend, other.attention_backend, "confounding", "other kernels"
    )
    for name in sorted(one.versions.keys() | other.versions.keys()):
        grade: Grade = "confounding" if name in ("torch", "cuda", "nccl", "sgl_kernel", "flashinfer") else "harmless"
        why = "other kernels" if grade == "confounding" else "not in the model's path"
        yield from _differ(f"{name} version", one.versions.get(name), other.versions.get(name), grade, why)
    drivers = [{host.driver for host in capture.hosts if host.driver} for capture in (baseline, candidate)]
    yield from _differ("driver", _joined(drivers[0]), _joined(drivers[1]), "confounding", "other driver")
    names = [{host.name for host in capture.hosts} for capture in (baseline, candidate)]
    yield from _differ("host", _joined(names[0]), _joined(names[1]), "confounding", "another machine")


def _joined(names: set[str]) -> str:
    return ", ".join(sorted(names))


def _arguments(baseline: Capture, candidate: Capture, speculation_differs: bool) -> Iterator[Difference]:
    typed = flags(baseline.server.command), flags(candidate.server.command)
    for name in sorted(typed[0].keys() | typed[1].keys()):
        if not (speculation_differs and _about_speculation(name)) and name not in COMPARED_ELSEWHERE:
            neutral = name in NEUTRAL_ARGUMENTS
            both = name in typed[0] and name in typed[1]
            where = "with other values in the launch commands" if both else "in the launch command of one arm"
            beside = ", and not speculation" if speculation_differs else ""
            yield from _differ(
                f"--{name.replace('_', '-')}",
                typed[0].get(name),
                typed[1].get(name),
                "harmless" if neutral else "confounding",
                "says nothing about speed" if neutral else where + beside,
                known_only=False,
            )
    settled = _leaves(baseline.server.arguments), _leaves(candidate.server.arguments)
    for path in sorted(settled[0].keys() | settled[1].keys()):
        name = path.partition(".")[0]
        written = name in typed[0] or name in typed[1]
        if written or name in COMPARED_ELSEWHERE or name in NEUTRAL_ARGUMENTS:
            continue
        if speculation_differs and _about_speculation(name):
            continue
        if name not in baseline.server.arguments or name not in candidate.server.arguments:
            continue
        if all(" object at 0x" in str(settled[i].get(path)) for i in (0, 1)):
            # An object that prints its address differs from run to run.
            continue
        brought = speculation_differs and name in SETTLED_BY_SPECULATION
        yield from _differ(
            f"argument {path}",
            settled[0].get(path),
            settled[1].get(path),
            "harmless" if brought else "confounding",
            "what the engine sets because of speculation is part of its cost" if brought else "settled by the engine",
            known_only=False,
        )


def _leaves(arguments: Mapping[str, JsonValue], prefix: str = "") -> dict[str, JsonValue]:
    """Nested settings by dotted name, so that a difference names what differs and no more."""
    found: dict[str, JsonValue] = {}
    for name, value in arguments.items():
        if isinstance(value, dict):
            found.update(_leaves(value, f"{prefix}{name}."))
        else:
            found[prefix + name] = value
    return found


def _about_speculation(name: str) -> bool:
    return name.startswith(SPECULATION)


def _environment(one: Mapping[str, str], other: Mapping[str, str], speculation_differs: bool) -> Iterator[Difference]:
    for name in sorted(one.keys() | other.keys()):
        speculates = name.startswith(SPECULATION_ENVIRONMENT)
        if speculation_differs and speculates:
            continue
        grade: Grade = "confounding"
        if name == DEVICES:
            grade, why = "harmless", "which GPUs those are is compared by itself"
        elif speculates:
            why = "changes what speculation does"
        elif name.startswith(PERFORMANCE_ENVIRONMENT):
            why = "may change kernels or communication"
        else:
            grade, why = "harmless", "not known to change speed"
        yield from _differ(f"environment {name}", one.get(name), other.get(name), grade, why, known_only=False)


def _workload(baseline: Capture, candidate: Capture) -> Iterator[Difference]:
    one, other = baseline.workload, candidate.workload
    # Prompts of a file or our own have no such length, so that not to say one says nothing.
    length = "random input length"
    mine, theirs = _asked(one) | {length: one.random_input_len}, _asked(other) | {length: other.random_input_len}
    for what, value in mine.items():
        yield from _differ(f"workload {what}", value, theirs[what], "confounding", "the arms did not do the same work")
    yield from _differ("seed", one.seed, other.seed, "harmless", "prompts are compared by their digest")
    yield from _differ("concurrency", one.concurrency, other.concurrency, "harmless", "only shared ones are compared")


def _asked(work: Workload) -> dict[str, object]:
    """What decides how much work a request is."""
    return {
        "prompts": work.digest or work.prompts,
        "max new tokens": work.max_new_tokens,
        "temperature": work.temperature,
        "endpoint": work.endpoint,
        "ignore EOS": work.ignore_eos,
    }


def _instruments(baseline: Capture, candidate: Capture) -> Iterator[Difference]:
    agents = [
        _joined({window.agent for window in capture.windows if window.agent != "dormant"})
        for capture in (baseline, candidate)
    ]
    yield from _differ("agent", agents[0], agents[1], "confounding", "only one arm bore the agent's cost")
    clocks = [
        _joined(
            {batch.period_ms.method for window in capture.windows for rank in window.ranks for batch in rank.batches}
        )
        for capture in (baseline, candidate)
    ]
    yield from _differ("clock", clocks[0], clocks[1], "confounding", "times were taken in different ways")
    apart = abs(baseline.created - candidate.created)
    watched = all(
        any(gpu.series.sm_mhz for host in capture.hosts for gpu in host.gpus) for capture in (baseline, candidate)
    )
    if apart > APART_S and not watched and baseline.server.device != "cpu":
        yield Difference(
            "time",
            "measured",
            f"{apart / 3600:.1f} h {'later' if candidate.created > baseline.created else 'earlier'}",
            "confounding",
            "no clocks on record: the GPUs may have been in another state",
        )
