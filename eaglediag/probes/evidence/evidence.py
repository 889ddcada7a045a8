"""What one file (or several of one log) says, before it is put together with what others say."""

from __future__ import annotations

from dataclasses import dataclass, field

from eaglediag.capture.model import Denial, Method, Problem, Profile, Rank, Server, Window


@dataclass(frozen=True)
class Fact:
    """A value that another file may contradict. `tolerance` is relative, for numbers; `note` says what the value is."""

    name: str
    value: str | float
    tolerance: float = 0.0
    note: str = ""


@dataclass
class Evidence:
    """One source's part of a capture. `files` are its names for messages; `unparsed` the lines it could not read."""

    method: Method
    files: list[str]
    server: Server = field(default_factory=Server)
    windows: list[Window] = field(default_factory=list)
    ranks: list[Rank] = field(default_factory=list)
    denials: list[Denial] = field(default_factory=list)
    profiles: list[Profile] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    facts: list[Fact] = field(default_factory=list)
    unparsed: int = 0
    unparsed_lines: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """What messages call the source."""
        return ", ".join(self.files)


def server_facts(server: Server) -> list[Fact]:
    """What two descriptions of the same server must agree on."""
    found: list[Fact] = []
    if server.release:
        found.append(Fact("the release", server.release))
    if server.model.path:
        found.append(Fact("the model", server.model.path))
    if server.arguments:
        found += [Fact("tensor parallelism", server.tp), Fact("data parallelism", server.dp)]
        settings = server.speculation
        found.append(Fact("the speculative algorithm", settings.algorithm if settings else "none"))
        if settings:
            for name, value in (
                ("draft steps", settings.num_steps),
                ("topk", settings.topk),
                ("draft tokens", settings.num_draft_tokens),
            ):
                if value is not None:
                    found.append(Fact(name, value))
    return found
