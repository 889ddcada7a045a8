"""A launch command as its engine would read it, as far as a check needs."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from typing import Literal

from eaglediag.errors import UsageError

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
#: Short spellings of the options that the checks look at.
ALIASES = {
    "--tp": "--tp-size",
    "--tensor-parallel-size": "--tp-size",
    "-tp": "--tp-size",
    "--dp": "--dp-size",
    "--data-parallel-size": "--dp-size",
    "--model": "--model-path",
    "--speculative-draft-model": "--speculative-draft-model-path",
    "--cuda-graph-max-bs-decode": "--cuda-graph-max-bs",
    "--cuda-graph-bs-decode": "--cuda-graph-bs",
    "-O": "--compilation-config",
    "-sc": "--speculative-config",
}


@dataclass(frozen=True)
class Command:
    """`options[name]` are the words after an option, () for a flag; the last occurrence counts, as in argparse."""

    engine: Literal["sglang", "vllm"]
    options: dict[str, tuple[str, ...]]
    written: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)

    def has(self, name: str) -> bool:
        """Whether the option is there."""
        return name in self.options

    def text(self, name: str) -> str | None:
        """An option's first word."""
        words = self.options.get(name)
        return words[0] if words else None

    def number(self, name: str) -> int | None:
        """An option's value as a count. Raises UsageError when it is no count."""
        value = self.text(name)
        if value is None:
            return None
        if not re.fullmatch(r"\d{1,9}", value):
            raise UsageError(f"{name} {value} is not a number", f"give {name} a number")
        return int(value)

    def numbers(self, name: str) -> list[int] | None:
        """An option's values as counts. Raises UsageError when one is no count."""
        words = self.options.get(name)
        if not words:
            return None
        found = [word for one in words for word in one.split(",") if word]
        if not all(re.fullmatch(r"\d{1,9}", word) for word in found):
            raise UsageError(f"{name} {' '.join(words)} are not numbers", f"give {name} numbers")
        return [int(word) for word in found]


def parse(text: str) -> Command:
    """Read a command as a shell would. Raises UsageError when it starts neither SGLang nor vLLM."""
    try:
        words = shlex.split(text.replace("\\\n", " "), comments=True)
    except ValueError as error:
        raise UsageError(f"the command cannot be read: {error}", "quote it as one argument of the shell") from error
    environment: dict[str, str] = {}
    for i, word in enumerate(words):
        found = _ASSIGNMENT.fullmatch(word)
        if found and (_leads(words[:i]) or words[i - 1] in ("-e", "--env")):
            environment[found.group(1)] = found.group(2)
    engine = _engine(words)
    options: dict[str, tuple[str, ...]] = {}
    written: list[str] = []
    name = ""
    for word in words[_first_argument(words) :]:
        if word.startswith("-") and not re.fullmatch(r"-\d+(\.\d+)?", word):
            name, has_value, value = word.partition("=")
            written.append(name)
            name = ALIASES.get(name, name)
            options[name] = (value,) if has_value else ()
        elif name:
            options[name] += (word,)
        elif engine == "vllm" and "--model-path" not in options:
            options["--model-path"] = (word,)
    return Command(engine, options, tuple(written), environment)


def _engine(words: list[str]) -> Literal["sglang", "vllm"]:
    joined = " ".join(words)
    if re.search(r"sglang[./\w]*launch_server|\bsglang serve\b|sglang_router|-m sglang", joined):
        return "sglang"
    if re.search(r"\bvllm serve\b|vllm\.entrypoints|-m vllm", joined):
        return "vllm"
    raise UsageError(
        "the command starts neither SGLang nor vLLM",
        "give `python -m sglang.launch_server ...`, `sglang serve ...` or `vllm serve ...`",
    )


def _first_argument(words: list[str]) -> int:
    """Where the server's own arguments begin: behind `serve`, or the module's name."""
    for i, word in enumerate(words):
        if word == "serve" or re.search(r"launch_server|api_server", word):
            return i + 1
    return 0


def _leads(before: list[str]) -> bool:
    """Whether a word behind these can still be an assignment of the shell or of `env`."""
    return all(_ASSIGNMENT.fullmatch(word) or word in ("env", "sudo", "export") for word in before)
