"""Takes out of a text what names people, machines and places, the same thing by the same stand-in throughout."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise

from pydantic import JsonValue

from eaglediag.capture.model import Capture

#: How the name of an option, a variable or a field ends that holds a key. `--max-deferred-experts-per-token 2` counts.
SECRET = (
    r"(?i:key|(?<!per[-_])(?<!first[-_])token|secret|passw(?:or)?d|passphrase|credentials?|authorization"
    r"|(?:\b|[-_])(?:pass|pwd|auth))\d*"
)
SECRET_NAME = re.compile(SECRET + "$")
#: Settings of a switch; no key.
SWITCHES = {"", "0", "1", "true", "false", "none", "null", "auto"}
#: A value up to its closing quote, or up to the next blank; not another option, and nothing that was replaced.
UNQUOTED = r"(?![\"']|--[a-z]|(?i:none|null|true|false|auto|[01])(?![\w-]))(?:[^\s\"'\\;,]|,(?=\S))+"
VALUE = rf"(?!<)(?:(?<=[\"'])[^\"'\\\n]+|(?<![\"']){UNQUOTED})"
QUOTE = r"\\{0,8}[\"']"
#: Names that say so in running text, where SGLang's own code calls a token id `draft_token` and a graph `graph_key`.
STRONG = (
    r"(?i:(?:api|access|auth|admin|private|encryption|secret|signing|session|hf)[-_]?(?:key|token)"
    r"|passw(?:or)?d|passphrase|(?<![a-z])pwd|secret|credentials?)"
)
COUNTRIES = "de|uk|fr|ch|at|nl|be|it|es|pl|cz|se|no|fi|dk|ie|eu|jp|cn|kr|tw|hk|sg|au|nz|ca|br|ru|il|gr|hu|ro|tr|za|us"
LABEL = r"[a-zA-Z0-9-]+"
#: The letters of a Kubernetes pod's suffixes.
POD = "[bcdfghjklmnpqrstvwxz2456789]"
IN_PATH = r"[^\s\"'`:,;=()<>\[\]{}|]"

#: What is taken out, in this order: (kind, pattern). A group `before` stays.
RULES = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        # the header of a request
        ("key", rf"(?P<before>(?i:authorization)(?:{QUOTE})?\s*[:=]\s*(?:{QUOTE})?(?i:(?:bearer|basic|token)\s+)?)"
                rf"{VALUE}"),
        ("key", rf"(?P<before>\b(?i:bearer)\s+){VALUE}"),
        # `--api-key x`
        ("key", rf"(?P<before>(?<![\w-])--[\w-]*{SECRET}(?:=|\s+)(?:{QUOTE})?){VALUE}"),
        # `HF_TOKEN=x`, as a shell writes it
        ("key", rf"(?P<before>\b[A-Z0-9_]*(?:KEY|TOKEN|SECRET|PASSW(?:OR)?D|PASSPHRASE|_PASS|PWD)\d*=(?:{QUOTE})?)"
                rf"{VALUE}"),
        # `api_key = x`, `"accessToken": "x"`
        ("key", rf"(?P<before>{STRONG}\d*(?:{QUOTE})?\s*[=:]\s*(?:{QUOTE})?){VALUE}"),
        # `"token": "x"`
        ("key", rf"(?P<before>{QUOTE}[\w-]*(?i:key|token){QUOTE}\s*:\s*{QUOTE}){VALUE}"),
        ("key", r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?s:.*?)(?:-----END [A-Z ]*-----|\Z)"),
        # What a key looks like wherever it stands. The mark between prefix and rest is asked for, and some keys have
        # none further on: `--skip-tokenizer-init` and `hf_transformers_utils` are no keys.
        ("key", r"\b(?:sk|pk|glpat|nvapi|xox[abeoprs])-[\w-]{12,}"),
        ("key", r"\b(?:sk|pk|github_pat|dckr_pat)_[\w-]{12,}"),
        ("key", r"\b(?:hf|gh[oprsu]|npm|gsk|r8)_[A-Za-z0-9]{16,}(?!\w)"),
        ("key", r"\b(?:AKIA|ASIA|AIza)[\w-]{12,}|\beyJ[\w-]{8,}\.[\w-]+\.[\w-]*"),
        ("key", r"\b[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}\b"),
        # A long number of hexadecimal digits that says neither of a file nor of a commit that it is its.
        ("hex", r"(?<!\w)(?<!sha256:)(?<!/blob/)(?<!/tree/)(?<!/commit/)(?=\d*[a-fA-F])(?=[a-fA-F]*\d)"
                r"[0-9a-fA-F]{32,64}(?!\w)"),
        ("url", r"(?i)(?<![a-z0-9+.-])(?P<scheme>[a-z][a-z0-9+.-]*://)(?P<user>[^/\s\"'<>@]+@)?"
                r"(?P<host>\[[^\]\s]*\]|[^/:\s\"'<>@`,;()]*)(?P<port>(?::\d+)?)(?P<path>/(?:[^\s\"'<>`]*[^\s\"'<>`.,;:)\]}])?)?"),
        ("login", r"(?<![\w./+-])[\w.+-]+@[\w-][\w.-]*\w(?::(?!\d)[\w~./-]+)?"),
        # Where a package lies; its own files are evidence.
        ("nothing", rf"(?<!{IN_PATH})(?:[A-Za-z]:)?{IN_PATH}*/(?:(?:site|dist)-packages/|(?=sglang/srt/))"),
        ("path", rf"(?<![\w.<>/\\)\]])(?:~[\w.-]*|\.{{1,2}})?/(?!/){IN_PATH}+"),
        ("path", rf"(?<![\w:<>/\\)\]])//[\w.-]+/{IN_PATH}+"),
        ("path", r"(?<!\w)[A-Za-z]:\\[^\s\"'`:,;=()<>]+|(?<![\w\\])\\{2,}[\w.$-]+(?:\\+[^\s\"'`\\:,;=()<>\[\]]+)+"),
        # Three words and two slashes may be three words; with a digit or a mark in one, or in quotes, they are a path.
        ("path", r"(?<![\w./<>-])(?<!:(?=\d{2,5}/))(?:(?<=[\"'])|(?=[A-Za-z/]*[\d_.-]))[\w.-]+(?:/[\w.-]+){2,}/?"),
        ("host", rf"(?<![\w.@/-])(?!self\.|cls\.)(?:{LABEL}\.)+(?:com|net|org|io|ai|cloud|dev|edu|gov|internal|intra"
                 r"|local|lan|corp|home|example)\b(?![\w(-])"),
        # Three labels, or a digit or hyphen in one of two: `x.at` is an attribute.
        ("host", rf"(?<![\w.@/-])(?!self\.|cls\.)(?:(?:{LABEL}\.){{2,}}|[a-zA-Z]+[\d-]{LABEL}\.)(?:{COUNTRIES})\b"
                 r"(?![\w(\[-]|\.\w)"),
        ("name", r"(?!)"),  # the captures' own names, see Redactor
        ("host", r"\bip-\d{1,3}-\d{1,3}-\d{1,3}-\d{1,3}\b"),
        ("host", rf"(?<![\w.-])[a-z][a-z0-9-]*-{POD}{{8,10}}-{POD}{{5}}(?![\w-])"),
        # `node7:5000`
        ("host", r"(?<![\w.\[<-])(?=[a-zA-Z-]+\d)[a-zA-Z][a-zA-Z0-9-]*(?=:\d{4,5}(?![\w.]))"),
        ("address", r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?!\w|\.\d)"),
        ("address", r"(?<![\w.:])[0-9A-Fa-f:.]{3,}[0-9A-Fa-f](?![\w:])"),
    )
)  # fmt: skip

#: Addresses that every machine has say nothing about one.
EVERYWHERE = {"127.0.0.1", "0.0.0.0", "255.255.255.255", "::1", "[::1]", "[::]", "localhost"}
#: Hosts that everybody knows, and what is evidence there: manuals, and the pages of these projects.
PROJECTS = ("/sgl-project/", "/vllm-project/", "/pytorch/", "/flashinfer-ai/", "/NVIDIA/", "/huggingface/")
PUBLIC: dict[str, tuple[str, ...]] = {
    "github.com": PROJECTS, "huggingface.co": (), "pypi.org": ("/",), "docs.sglang.ai": ("/",), "docs.vllm.ai": ("/",),
    "docs.pytorch.org": ("/",), "pytorch.org": ("/",), "docs.nvidia.com": ("/",), "www.apache.org": ("/",),
}  # fmt: skip
#: Paths that are the same everywhere: of a system, and of an engine's HTTP interface.
COMMON = {
    "/dev/null", "/dev/shm", "/tmp", "/usr/bin/env", "/bin/sh", "/bin/bash", "/v1/chat/completions", "/v1/completions",
    "/v1/models", "/generate", "/health", "/health_generate", "/metrics", "/server_info", "/get_server_info",
    "/get_model_info", "/model_info", "/flush_cache", "/start_profile", "/stop_profile",
}  # fmt: skip
PACKAGES = ("sglang/", "python/sglang/", "vllm/", "torch/")
RELATIVE = re.compile(r"[\w.-]+(?:/[\w.-]+){2,}/?")
DATE = re.compile(r"\d{1,4}/\d{1,2}/\d{1,4}$")
#: What stands before a version of four parts.
VERSION = re.compile(r"(?i)(?:[=<>~!]=\s?|\bv|version:?\s|(?:cudnn|nccl|cublas|cuda|driver|-cu1\d)[ :=/-])$")
#: Words that name no machine and nobody, whoever is called so: they say nothing, and a report cannot do without them.
_ORDINARY = """
address and arm attention auto baseline bash batch cache candidate capture certain client cluster cold commit
completions container core cpu cuda cycle data decode default dev device docker draft draft-extend driver dtype
eager eagle eagle3 engine evidence extend false for from gap generate gpu gpus graph graphs head home host idle
issue key kubernetes latency launch launch_server layers likely load local localhost login main master mem memory
model models nccl new nextn node none not null nvidia off old options pass passes path pod port possible prefill
probe prompt python python3 rank ranks release remote replay request requests result results rocm root run runner
runs scheduler server sglang share size slurm spec speculation speculative srt ssh start step steps system target
test the throughput time tmp token tokens torch train triton true user verify version via vllm warm weights window
with without work worker workers
"""
ORDINARY = frozenset(_ORDINARY.split())


class Redactor:
    """Replaces host names, addresses, logins, paths and keys by numbered stand-ins; equal things stay equal."""

    def __init__(self, captures: Sequence[Capture]) -> None:
        self._stand_ins: dict[tuple[str, str], str] = {}
        self._names = _names(captures)
        self._known = {word for capture in captures for word in _releases(capture)}
        patterns = {"name": _pattern(self._names)}
        replace: dict[str, Callable[[re.Match[str]], str]] = {
            "key": self._key, "hex": self._hex, "url": self._url, "host": self._host, "address": self._address,
            "nothing": lambda _: "", "path": lambda found: self._path(found[0]),
            "login": lambda found: self._as("login", found[0]),
            "name": lambda found: self._as(self._names[found[0].lower()], found[0]),
        }  # fmt: skip
        self._rules = [(patterns.get(kind, pattern), replace[kind]) for kind, pattern in RULES]

    def __call__(self, text: str) -> str:
        """The text without what names anybody. Paths inside site-packages keep what follows the package."""
        for pattern, replace in self._rules:
            text = pattern.sub(replace, text)
        return text

    def words(self, argv: Sequence[str]) -> list[str]:
        """A command's words; what follows an option or a variable whose name says that it is secret goes whole."""
        cleaned: list[str] = []
        option = ""
        for word in argv:
            name, equals, value = word.partition("=")
            if option and not re.match(r"--[a-z]", word):
                cleaned.append(self._setting(option, word))
            elif equals and re.fullmatch(r"-*[A-Za-z][\w-]*", name):
                cleaned.append(f"{name}={self._setting(name, value)}")
            else:
                cleaned.append(self(word))
            option = word if re.fullmatch(r"--?[A-Za-z][\w-]*", word) else ""
        return cleaned

    def value(self, name: str, value: JsonValue) -> JsonValue:
        """The value of an argument, a field or a variable, at any depth."""
        if isinstance(value, dict):
            return {self(key): self.value(key, inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [self.value(name, inner) for inner in value]
        return self._setting(name, value) if isinstance(value, str) else value

    def _setting(self, name: str, value: str) -> str:
        if SECRET_NAME.search(name) and value.lower() not in SWITCHES:
            return "<key>"
        # Only here is it known where a path with blanks ends, and that words with slashes are one.
        if re.match(r"(?:~[\w.-]*)?/[\w.][^ ]* ", value) or RELATIVE.fullmatch(value):
            return self._path(value)
        return self(value)

    def _as(self, kind: str, value: str) -> str:
        known = (kind, value if kind == "path" else value.lower())
        if known not in self._stand_ins:
            self._stand_ins[known] = f"<{kind}-{1 + sum(other == kind for other, _ in self._stand_ins)}>"
        return self._stand_ins[known]

    def _key(self, found: re.Match[str]) -> str:
        return found.groupdict().get("before", "") + "<key>"

    def _hex(self, found: re.Match[str]) -> str:
        return found[0] if found[0] in self._known else "<key>"

    def _host(self, found: re.Match[str]) -> str:
        return found[0] if found[0].lower() in {*PUBLIC, *ORDINARY, *self._known} else self._as("host", found[0])

    def _address(self, found: re.Match[str]) -> str:
        value = found[0]
        try:
            ipaddress.ip_address(value)
        except ValueError:
            if value.count(":") != 5 or len(value) != 17:  # nor a network card's
                return value
        numbers = [part for part in value.split(":") if part]
        sliced = "::" in value and len(numbers) < 3 and all(part.isdecimal() and len(part) < 4 for part in numbers)
        release = value in self._known or VERSION.search(found.string[max(0, found.start() - 16) : found.start()])
        return value if value in EVERYWHERE or sliced or release else self._as("address", value)

    def _url(self, found: re.Match[str]) -> str:
        scheme, user, host, port, path = (found[name] or "" for name in ("scheme", "user", "host", "port", "path"))
        if "{" in host:  # a template in a source line
            return found[0]
        known = host in EVERYWHERE or host.lower() in PUBLIC or not host
        kind = "address" if re.match(r"[\d.]+$|\[", host) else "host"
        shown = host if known else self._as(kind, host.strip("[]"))
        told = len(path) < 2 or path in COMMON or path.startswith(PUBLIC.get(host.lower(), ()))
        return f"{scheme}{'<user>@' if user else ''}{shown}{port}{path if told else self._as('path', path.rstrip('/'))}"

    def _path(self, found: str) -> str:
        # A file of the engine, relative to its package, is evidence and no secret; `draft/verify/decode` is no file.
        value = found.rstrip("/.")
        ordinary = all(part.lower() in ORDINARY for part in value.split("/"))
        if value in COMMON or DATE.match(value) or value.startswith(PACKAGES) or ordinary:
            return found
        return self._as("path", value) + ("." if found.endswith(".") else "")


def _names(captures: Sequence[Capture]) -> dict[str, str]:
    """Every name the captures give to a machine, a container, a user or a folder, in small letters, and its kind."""
    found: dict[str, str] = {}
    ordinary = ORDINARY | {word for capture in captures for word in _vocabulary(capture)}
    for capture in captures:
        for name, kind in _named(capture):
            for one in (name, name.partition(".")[0]):
                if len(one) > 2 and one.lower() not in ordinary and not re.match(r"-|[\d.:]+$", one):
                    found.setdefault(one.lower(), kind)
    return found


def _named(capture: Capture) -> Iterator[tuple[str, str]]:
    """(name, kind) for every one, ordinary words among them. `alice@gpu1:2222` and `container a on b` hold several."""
    hosts = [host.name for host in capture.hosts] + [gpu.host for host in capture.hosts for gpu in host.gpus]
    for label in hosts + [rank.host for rank in capture.instrumentation.ranks]:
        yield label, "host"
        for user in re.findall(r"([^\s@]+)@", label):
            yield user, "login"
        for part in re.split(r"[\s@:/,]+", label):
            yield part, "host"
    for name, value in _settings(capture):
        if re.search(r"(?i)(?:host|hostname|addr|address|url|endpoint|nodename)$", name):
            yield _machine(value), "host"
        if name in ("USER", "LOGNAME", "USERNAME"):
            yield value, "login"
        for user in re.findall(r"/(?:home|Users)/([\w.-]+)", value):
            yield user, "login"
    # Arms of one name are told apart by their folders.
    for folder in capture.arm.split("/")[:-1]:
        yield folder, "path"


def _settings(capture: Capture) -> Iterator[tuple[str, str]]:
    """(name, value) of every argument and variable that is a text, and of the command's words."""
    server = capture.server
    for name, value in (*server.arguments.items(), *server.environment.items()):
        if isinstance(value, str):
            yield name, value
    yield from pairwise(server.command)
    for word in server.command:
        name, equals, text = word.partition("=")
        if equals:
            yield name, text


def _machine(value: str) -> str:
    bare = value.rpartition("@")[2].partition("://")[2] or value.rpartition("@")[2]
    bare = bare.partition("/")[0]
    return bare.partition(":")[0] if bare.count(":") == 1 else bare


def _vocabulary(capture: Capture) -> Iterator[str]:
    """Words without which this report would say nothing: of its options, devices, packages, backends, and models."""
    server = capture.server
    texts = [
        *server.arguments, *server.versions, server.device, server.attention_backend, server.model.architecture,
        *(gpu.name for host in capture.hosts for gpu in host.gpus),
        *(server.speculation.algorithm if server.speculation else "",),
    ]  # fmt: skip
    for text in texts:
        yield from re.split(r"[\W_]+", text.lower())


def _releases(capture: Capture) -> Iterator[str]:
    """Versions and commits, which look like addresses and keys."""
    server = capture.server
    revisions = [value for name, value in _settings(capture) if name.endswith("revision")]
    drivers = [host.driver or "" for host in capture.hosts]
    for text in (server.commit or "", server.release, *server.versions.values(), *drivers, *revisions):
        yield from (text, *re.findall(r"[0-9a-fA-F]{32,}|\d+(?:\.\d+){3}", text))


def _pattern(names: Iterable[str]) -> re.Pattern[str]:
    """The names, the longest first. One that is a plain word is none inside an option, a module or an attribute."""
    patterns = [
        rf"(?<![\w./-]){re.escape(name)}(?!\w|\.\w)" if name.isalpha() else rf"(?<!\w){re.escape(name)}(?!\w)"
        for name in sorted(names, key=lambda name: (-len(name), name))
    ]
    return re.compile("|".join(patterns) or r"(?!)", re.IGNORECASE)
