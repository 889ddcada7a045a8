"""Logging in: agent, key files, password, keyboard-interactive, in that order, as far as the server accepts them."""

from __future__ import annotations

import base64
import binascii
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from queue import SimpleQueue
from threading import Thread

import paramiko

from eaglediag.errors import HostError
from eaglediag.hosts.base import Ask
from eaglediag.hosts.ssh.config import Settings

_PROMPTS = 3
"""How often a password or pass-phrase is asked for, OpenSSH's default."""

_Fields = list[tuple[str, bool]]


def log_in(transport: paramiko.Transport, settings: Settings, ask: Ask | None) -> None:
    """Authenticate as `settings.user`. Raises HostError naming what was tried and what the server accepts."""
    with ExitStack() as held:
        _Login(transport, settings, None if settings.batch_mode else ask, held).run()


class _Login:
    def __init__(self, transport: paramiko.Transport, settings: Settings, ask: Ask | None, held: ExitStack) -> None:
        self._transport, self._settings, self._ask, self._held = transport, settings, ask, held
        self._accepted: list[str] = []
        self._tried: list[str] = []
        self._unasked = False
        transport.auth_timeout = 120.0  # sshd's own patience (LoginGraceTime); a second factor takes its time

    def run(self) -> None:
        try:
            self._transport.auth_none(self._settings.user)
        except paramiko.BadAuthenticationType as error:
            self._accepted = error.allowed_types
        except paramiko.SSHException as error:
            raise self._refusal(str(error)) from error
        else:
            return  # the server asks for nothing
        methods = {
            "publickey": self._public_key,
            "password": self._password,
            "keyboard-interactive": self._keyboard_interactive,
        }
        while True:
            for name in [name for name in methods if name in self._accepted]:
                next_methods = methods.pop(name)()
                if next_methods is None:
                    continue
                if not next_methods:
                    return
                self._accepted = next_methods  # one factor accepted, another is wanted
                break
            else:
                raise self._refusal()

    def _refusal(self, why: str = "") -> HostError:
        who = f"{self._settings.user}@{self._settings.name}"
        tried = ", ".join(self._tried) or "nothing (no key or agent at hand)"
        accepted = ", ".join(self._accepted) or "nothing"
        message = f"{who}: login refused{f' ({why})' if why else ''}; tried {tried}; the server accepts {accepted}"
        if not self._transport.is_active():
            return HostError(
                f"{message}; it hung up", "it allows few attempts: name the key with --identity, or set IdentitiesOnly"
            )
        if self._unasked:
            return HostError(message, "run it in a terminal to be asked for the secret, or add the key to ssh-agent")
        return HostError(message, "check the user name, and name the right key with --identity")

    def _attempt(self, key: paramiko.PKey) -> list[str] | None:
        """The methods still wanted after `key` was accepted (usually none), or None when it was refused."""
        try:
            return self._transport.auth_publickey(self._settings.user, key)
        except paramiko.SSHException as error:
            if not self._transport.is_active():
                raise self._refusal() from error
            return None

    def _public_key(self) -> list[str] | None:
        agent_keys = self._agent_keys()
        held = {key.asbytes() for key in agent_keys}
        wanted = {blob for path in self._settings.identity_files if (blob := _public_blob(path))}
        agent_keys.sort(key=lambda key: key.asbytes() not in wanted)
        for key in agent_keys:
            if self._settings.identities_only and key.asbytes() not in wanted:
                continue
            self._tried.append(f"publickey ({getattr(key, 'comment', '') or key.get_name()} from the agent)")
            accepted = self._attempt(key)
            if accepted is not None:
                return accepted
        files = [path for path in self._settings.identity_files if path.exists() and _public_blob(path) not in held]
        for path, loaded in self._key_files(files):
            self._tried.append(f"publickey ({path})")
            accepted = self._attempt(loaded)
            if accepted is not None:
                return accepted
        return None

    def _agent_keys(self) -> list[paramiko.PKey]:
        path = self._settings.identity_agent or os.environ.get("SSH_AUTH_SOCK")
        if not path or path == "none":
            return []
        agent = paramiko.agent.AgentSSH()
        connection = self._held.enter_context(socket.socket(socket.AF_UNIX))
        connection.settimeout(30.0)
        try:
            connection.connect(path)
            # paramiko's own Agent knows no other socket than SSH_AUTH_SOCK's, hence no IdentityAgent.
            agent._connect(connection)  # type: ignore[attr-defined]
        except (OSError, paramiko.SSHException) as error:
            self._tried.append(f"the agent at {path} ({error})")
            return []
        return list(agent.get_keys())

    def _key_files(self, paths: Sequence[Path]) -> Iterator[tuple[Path, paramiko.PKey]]:
        """The keys that can be read, those without a pass-phrase first."""
        locked = []
        for path in paths:
            if path.suffix == ".pub":
                continue  # a public key names one of the agent's
            try:
                yield path, _load(path, None)
            except paramiko.PasswordRequiredException:
                locked.append(path)
            except _UNREADABLE as error:
                self._tried.append(f"{path} ({' '.join(str(error).split()) or type(error).__name__})")
        for path in locked:
            if self._ask is None:
                self._unasked = True
                self._tried.append(f"{path} (its pass-phrase could not be asked for: no terminal)")
                continue
            for _ in range(_PROMPTS):
                try:
                    yield path, _load(path, self._ask(f"Pass-phrase for {path}: ", True))
                    break
                except _UNREADABLE:
                    continue
            else:
                self._tried.append(f"{path} (wrong pass-phrase)")

    def _password(self) -> list[str] | None:
        if self._ask is None:
            self._unasked = True
            self._tried.append("password (could not be asked for: no terminal)")
            return None
        self._tried.append("password")
        for _ in range(_PROMPTS):
            password = self._ask(f"{self._settings.user}@{self._settings.name}'s password: ", True)
            try:
                return self._transport.auth_password(self._settings.user, password, fallback=False)
            except paramiko.SSHException as error:
                if not self._transport.is_active():
                    raise self._refusal() from error
        return None

    def _keyboard_interactive(self) -> list[str] | None:
        if self._ask is None:
            self._unasked = True
            self._tried.append("keyboard-interactive (could not be asked: no terminal)")
            return None
        self._tried.append("keyboard-interactive")
        for _ in range(_PROMPTS):
            try:
                return self._converse(self._ask)
            except paramiko.SSHException as error:
                if not self._transport.is_active():
                    raise self._refusal() from error
        return None

    def _converse(self, ask: Ask) -> list[str]:
        """One keyboard-interactive attempt. The user is asked in this thread, where Ctrl-C arrives, not paramiko's."""
        questions: SimpleQueue[tuple[str, _Fields] | list[str] | Exception] = SimpleQueue()
        answers: SimpleQueue[list[str] | None] = SimpleQueue()

        def handle(title: str, instructions: str, fields: _Fields) -> list[str]:
            questions.put((" ".join(f"{title} {instructions}".split()), fields))
            replies = answers.get()
            if replies is None:
                raise paramiko.SSHException("the user gave up")
            return replies

        def attempt() -> None:
            try:
                questions.put(self._transport.auth_interactive(self._settings.user, handle))
            except Exception as error:
                questions.put(error)

        Thread(target=attempt, daemon=True).start()
        try:
            while True:
                event = questions.get()
                if isinstance(event, Exception):
                    raise event
                if isinstance(event, list):
                    return event
                heading, fields = event
                prompts = [f"{heading} {prompt}".lstrip() for prompt, _ in fields]
                answers.put([ask(prompt, not echo) for prompt, (_, echo) in zip(prompts, fields, strict=True)])
        finally:
            answers.put(None)


_UNREADABLE = (paramiko.SSHException, ValueError, OSError, paramiko.pkey.UnknownKeyType)


def _load(path: Path, passphrase: str | None) -> paramiko.PKey:
    """Read a private key with the certificate beside it. Raises PasswordRequiredException, or one of _UNREADABLE."""
    try:
        # Annotated as str, but what it calls wants bytes.
        secret = passphrase.encode() if passphrase is not None else None
        return paramiko.PKey.from_path(path, secret)  # type: ignore[arg-type]
    except TypeError as error:  # the cryptography package's word for a missing pass-phrase
        raise paramiko.PasswordRequiredException(str(error)) from error


def _public_blob(path: Path) -> bytes | None:
    """The public half of a key file, from the .pub file beside it when there is one."""
    public = path if path.suffix == ".pub" else path.with_name(path.name + ".pub")
    with suppress(OSError, ValueError, IndexError, binascii.Error):
        return base64.b64decode(public.read_text().split()[1])
    return None
