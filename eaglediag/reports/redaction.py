"""Takes out of a text what names people, machines and places, the same thing by the same stand-in throughout."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence

from eaglediag.capture.model import Capture

#: What a key looks like wherever it stands. The mark between prefix and rest is asked for, and Hugging Face's and
#: GitHub's keys have none further on: `--skip-tokenizer-init` and `hf_transformers_utils` are no keys.
KEYS = re.compile(
    r"\b(?:sk|pk|glpat|nvapi|xox[abeoprs])-[\w-]{12,}"
    r"|\b(?:sk|pk|github_pat)_[\w-]{12,}"
    r"|\b(?:hf|gh[oprsu])_[A-Za-z0-9]{16,}(?!\w)"
    r"|\b(?:AKIA|ASIA|AIza)[\w-]{12,}"
    r"|\beyJ[\w-]{8,}\.[\w-]+\.[\w-]*"
    r"|\b[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}\b"
)
#: What says that a key follows; `--max-deferred-experts-per-token 2` counts.
WORDS = r"(?:(?:api)?key|(?<!per[-_])(?<!first[-_])token|secret|password|passwd|credentials?|authorization)"
QUOTE = r"\\*[\"']?"
#: A value behind an option (`--api-key x`) or a name (`HF_TOKEN=x`, `"password": "x"`) that says it is secret; behind a
#: blank another option is none.
SECRET = re.compile(
    rf"(?i)((?:--[\w-]*{WORDS}[=\s]\s*|\b\w*(?<![a-z]){WORDS}{QUOTE}\s*[=:]\s*){QUOTE}(?:bearer\s+)?)"
    r"(?!<|\s)(?:(?<=[=:\"'])|(?!--[a-z]))([^\s\"',;\\]{6,})"
)
BEARER = re.compile(r"(?i)(\bbearer\s+)(?!<)\S+")
#: What may be an address; `ipaddress` has the last word.
ADDRESS = re.compile(
    r"(?<![\w.:])[0-9A-Fa-f:.]{3,}[0-9A-Fa-f](?![\w:])|(?<![\w:])(?:[0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}(?![\w:])"
)
URL = re.compile(r"(?i)\b([a-z][a-z0-9+.-]*://)([^/\s\"'<>@]+@)?([^/:\s\"'<>@]+)((?::\d+)?)(/[^\s\"'<>]*)?")
#: Addresses that every machine has say nothing about one.
EVERYWHERE = {"127.0.0.1", "0.0.0.0", "255.255.255.255", "::1", "localhost"}
LOGIN = re.compile(r"(?<![\w.])[\w.+-]+@[\w-][\w.-]*\w")
DOMAIN = re.compile(
    r"(?<![\w.@/-])(?:[a-zA-Z0-9-]+\.)+(?:com|net|org|io|ai|cloud|dev|edu|gov|internal|intra|local|lan|corp|home|example)"
    r"\b(?![\w(-])"
)
PACKAGES = re.compile(r"(?:[A-Za-z]:)?(?:/[^\s\"'`:,;=()]*)?/(?:site|dist)-packages/")
PATH = re.compile(
    r"(?<![\w.<>/\\])(?:~|\.{1,2})?/(?!/)(?:[^\s\"'`:,;=()<>\[\]{}|]+/?)+"
    r"|(?<![\w])[A-Za-z]:\\[^\s\"'`:,;=()<>]+"
    r"|(?<![\w./<>-])[\w.-]+(?:/[\w.-]+){2,}/?"
)
DATE = re.compile(r"^\d{1,4}/\d{1,2}/\d{1,4}$")
#: Absolute paths that are the same everywhere.
COMMON = ("/dev/null", "/tmp", "/usr/bin/env")


class Redactor:
    """Replaces host names, addresses, logins, paths and keys by numbered stand-ins; equal things stay equal."""

    def __init__(self, captures: Sequence[Capture]) -> None:
        self._stand_ins: dict[tuple[str, str], str] = {}
        names = _host_names(captures)
        self._hosts = re.compile("|".join(rf"(?<![\w]){re.escape(name)}(?![\w])" for name in names)) if names else None

    def __call__(self, text: str) -> str:
        """The text without what names anybody. Paths inside site-packages keep what follows the package."""
        text = SECRET.sub(lambda found: f"{found[1]}<key>", BEARER.sub(r"\1<key>", text))
        text = KEYS.sub("<key>", text)
        text = URL.sub(self._url, text)
        text = LOGIN.sub(lambda found: self._as("login", found[0]), text)
        text = PATH.sub(lambda found: self._path(found[0]), PACKAGES.sub("", text))
        if self._hosts is not None:
            text = self._hosts.sub(lambda found: self._as("host", found[0]), text)
        text = DOMAIN.sub(lambda found: self._as("host", found[0]), text)
        return ADDRESS.sub(lambda found: self._address(found[0]), text)

    def _as(self, kind: str, value: str) -> str:
        number = 1 + sum(known == kind for known, _ in self._stand_ins)
        return self._stand_ins.setdefault((kind, value), f"<{kind}-{number}>")

    def _address(self, value: str) -> str:
        try:
            ipaddress.ip_address(value)
        except ValueError:
            if value.count(":") != 5 or len(value) != 17:  # nor a network card's
                return value
        return value if value in EVERYWHERE else self._as("address", value)

    def _url(self, found: re.Match[str]) -> str:
        scheme, user, host, port, path = found.groups(default="")
        shown = host if host in EVERYWHERE else self._as("host", host)
        return f"{scheme}{'<user>@' if user else ''}{shown}{port}{self._as('path', path) if len(path) > 1 else path}"

    def _path(self, value: str) -> str:
        # A file of the engine, relative to its package, is evidence and no secret.
        if value in COMMON or DATE.match(value) or value.startswith(("sglang/", "vllm/", "torch/")):
            return value
        return self._as("path", value.rstrip("/."))


def _host_names(captures: Sequence[Capture]) -> list[str]:
    """Every name the captures give to a machine, the longest first; `local` is none."""
    found: set[str] = set()
    for capture in captures:
        found |= {host.name for host in capture.hosts} | {rank.host for rank in capture.instrumentation.ranks}
        for name, value in capture.server.arguments.items():
            if isinstance(value, str) and ("host" in name or "addr" in name or "url" in name):
                found.add(_machine(value))
    found |= {name.partition(".")[0] for name in found if not name.replace(".", "").isdigit()}
    return sorted(
        (name for name in found if len(name) > 2 and name not in ORDINARY), key=lambda name: (-len(name), name)
    )


#: Words that a setting may hold and that name no machine.
ORDINARY = {"local", "localhost", "auto", "none", "null", "true", "false", "cuda", "cpu", *EVERYWHERE}


def _machine(value: str) -> str:
    bare = value.rpartition("@")[2].partition("://")[2] or value.rpartition("@")[2]
    bare = bare.partition("/")[0]
    return bare.partition(":")[0] if bare.count(":") == 1 else bare
