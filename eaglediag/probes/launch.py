"""The user's launch command: what it starts, on which port, and the same without speculation."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, replace

from eaglediag.errors import UsageError

#: Anything of the shell's beyond words and quotes: such a command is run by bash as it stands.
_SHELL = re.compile(r"[;&|<>`\n]|\$[\w({]")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
#: Environment that only speculation reads.
_SPECULATIVE_ENVIRONMENT = re.compile(r"SGLANG_(SIMULATE_ACC_\w+|ENABLE_SPEC_V2|SPEC_\w+|\w*SPECULATIVE\w*)$")
DEFAULT_PORT = 30000


@dataclass(frozen=True)
class LaunchCommand:
    """A launch command, taken apart: leading assignments, the words, and, when only a shell can run it, the text."""

    text: str
    environment: dict[str, str]
    argv: tuple[str, ...]
    shell: bool = False

    @classmethod
    def parse(cls, text: str) -> LaunchCommand:
        """Read a command as a shell would. Raises UsageError for unbalanced quotes or nothing to run."""
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise UsageError(f"--launch cannot be read: {error}", "quote it as one argument of the shell") from error
        if words and words[0] == "env" and not any(word.startswith("-") for word in words[1:2]):
            words = words[1:]
        environment: dict[str, str] = {}
        while words and _ASSIGNMENT.match(words[0]):
            name, _, value = words.pop(0).partition("=")
            environment[name] = value
        if not words:
            raise UsageError("--launch names nothing to run", "give the command that starts the server")
        return cls(text, environment, tuple(words), shell=bool(_SHELL.search(_without_quoted(text))))

    @property
    def python(self) -> str:
        """The interpreter that runs the server, or the script whose first line names it."""
        for word in self.argv:
            if re.fullmatch(r"(.*/)?python[\d.]*", word):
                return word
        return self.argv[0]

    def option(self, *names: str) -> str | None:
        """The value of the last of these options, as `--name value` or `--name=value`."""
        found = None
        for position, word in enumerate(self.argv):
            for name in names:
                if word == name and position + 1 < len(self.argv):
                    found = self.argv[position + 1]
                elif word.startswith(name + "="):
                    found = word[len(name) + 1 :]
        return found

    @property
    def port(self) -> int:
        """The HTTP port. Raises UsageError when it is not a number."""
        value = self.option("--port")
        if value is None:
            return DEFAULT_PORT
        if not value.isdigit():
            raise UsageError(f"--port {value} in the launch command is not a number", "give --port a number")
        return int(value)

    @property
    def api_key(self) -> str | None:
        """The key that requests must carry."""
        return self.option("--api-key")

    @property
    def speculative(self) -> bool:
        """Whether speculation is asked for."""
        return any(word.startswith("--speculative-algo") for word in self.argv)

    def without_speculation(self) -> LaunchCommand:
        """The baseline: the same command without its --speculative-* arguments and environment.

        Raises UsageError when the command is a shell script, whose words cannot be told apart safely.
        """
        if self.shell:
            raise UsageError(
                "--ab needs a plain command, without pipes, && or variables",
                "probe the two arms one after the other, each with its own --launch",
            )
        kept: list[str] = []
        dropping = False
        for word in self.argv:
            if word.startswith("--"):
                dropping = word.startswith("--speculative-")
            if not dropping:
                kept.append(word)
        environment = {
            name: value for name, value in self.environment.items() if not _SPECULATIVE_ENVIRONMENT.match(name)
        }
        words = [f"{name}={shlex.quote(value)}" for name, value in environment.items()]
        return LaunchCommand(" ".join([*words, shlex.join(kept)]), environment, tuple(kept))

    def with_environment(self, **values: str) -> LaunchCommand:
        """The same command with more environment."""
        return replace(self, environment={**self.environment, **values})

    def on_node(self, node: int, nodes: int) -> LaunchCommand:
        """The command for one of several hosts: `{node_rank}` is filled in, and `--node-rank` added behind --nnodes.

        Raises UsageError when several hosts were given and nothing tells them apart.
        """
        if nodes == 1:
            return self
        told = LaunchCommand.parse(self.text.replace("{node_rank}", str(node)))
        if not told.shell and told.option("--nnodes") is not None and told.option("--node-rank") is None:
            return replace(told, argv=(*told.argv, "--node-rank", str(node)))
        if told.text == self.text:
            raise UsageError(
                f"{nodes} hosts were given, but --launch does not say what differs between them",
                "put {node_rank} where the node's number belongs, or --nnodes and no --node-rank",
            )
        return told

    def redacted(self) -> list[str]:
        """The words for the capture, keys and passwords left out."""
        words: list[str] = []
        hide = False
        for word in self.argv:
            name, equals, _ = word.partition("=")
            secret = re.search(r"(api-?key|password|secret|token$|credential)", name) is not None and name.startswith(
                "--"
            )
            if hide:
                words.append("<redacted>")
            elif secret and equals:
                words.append(f"{name}=<redacted>")
            else:
                words.append(word)
            hide = secret and not equals
        return words


def _without_quoted(text: str) -> str:
    return re.sub(r"'[^']*'|\"[^\"$`]*\"|\\.", "", text)
