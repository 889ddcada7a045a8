"""SshHost against a real sshd on loopback."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from eaglediag.errors import EaglediagError, HostError, UsageError
from eaglediag.hosts import open_host
from eaglediag.hosts.base import Ask, Host
from eaglediag.hosts.ssh.config import Target
from eaglediag.hosts.ssh.host import SshHost
from tests.sshd import ALIAS, PASSPHRASE, Account, Sshd, free_port, generate_key
from tests.waiting import wait_for

pytestmark = pytest.mark.sshd

NASTY = [
    "",
    " ",
    "two words",
    "it's",
    'say "hi"',
    "new\nline",
    "$(id)",
    "`id`",
    "$HOME",
    "*",
    "~",
    "a\\b",
    "; exit 3",
    "é",
]


def login(server: Sshd, spec: str = ALIAS, *, accept_new_host_key: bool = False, ask: Ask | None = None) -> Host:
    return open_host(spec, ssh_config=server.ssh_config, accept_new_host_key=accept_new_host_key, ask=ask)


def refusal(server: Sshd, spec: str = ALIAS, *, accept_new_host_key: bool = False, ask: Ask | None = None) -> str:
    """The message of the HostError that the login ends in: one line, exit status 4."""
    with pytest.raises(HostError) as caught:
        login(server, spec, accept_new_host_key=accept_new_host_key, ask=ask)
    assert caught.value.exit_code == 4
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def host(sshd: Sshd) -> Iterator[Host]:
    with login(sshd) as host:
        yield host


class TestCommands:
    def test_arguments_arrive_as_they_are(self, host: Host) -> None:
        done = host.run(["printf", "%s\\0", *NASTY])
        assert done.stdout.decode().split("\0")[:-1] == NASTY
        assert (done.returncode, done.stderr) == (0, b"")

    def test_exit_status_and_standard_error(self, host: Host) -> None:
        done = host.run(["sh", "-c", "echo no >&2; exit 7"])
        assert (done.returncode, done.stdout, done.stderr) == (7, b"", b"no\n")

    def test_unknown_command_is_127(self, host: Host) -> None:
        done = host.run(["no-such-command"])
        assert done.returncode == 127
        assert b"no-such-command" in done.stderr

    def test_large_input_and_output(self, host: Host) -> None:
        data = os.urandom(5_000_000)
        assert host.run(["cat"], stdin=data).stdout == data

    def test_large_output_on_both_streams(self, host: Host) -> None:
        done = host.run(["sh", "-c", "head -c 3000000 /dev/zero >&2; head -c 3000000 /dev/zero"])
        assert (len(done.stdout), len(done.stderr)) == (3_000_000, 3_000_000)

    def test_input_nobody_reads(self, host: Host) -> None:
        assert host.run(["true"], stdin=bytes(5_000_000)).returncode == 0

    def test_timeout_kills(self, host: Host, tmp_path: Path) -> None:
        with pytest.raises(HostError, match=r"took longer than 0\.5 s"):
            host.run(["sh", "-c", f"echo $$ > {tmp_path}/pid; exec sleep 300"], timeout=0.5)
        assert_gone(int((tmp_path / "pid").read_text()))

    def test_closing_stdin_is_end_of_file(self, host: Host) -> None:
        process = host.popen(["cat"])
        process.stdin.write(b"so far\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"so far\n"
        assert process.poll() is None
        with pytest.raises(TimeoutError):
            process.wait(0.1)
        process.stdin.close()
        assert process.wait(10) == 0
        assert process.poll() == 0
        assert process.stdout.read() == b""

    def test_kill_reaches_the_process(self, host: Host) -> None:
        process = host.popen(["sh", "-c", "echo $$; exec sleep 300"])
        pid = int(process.stdout.readline())
        process.kill()
        assert process.wait(5) == -1
        assert_gone(pid)

    def test_death_by_signal_is_negative(self, host: Host) -> None:
        assert host.run(["sh", "-c", "kill -9 $$"]).returncode == -1

    def test_many_threads_share_the_connection(self, host: Host) -> None:
        def echo(number: int) -> bytes:
            return host.run(["sh", "-c", "sleep 0.05; cat"], stdin=b"%d" % number * 1000).stdout

        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(echo, range(40))) == [b"%d" % number * 1000 for number in range(40)]

    def test_session_limit_is_named(self, start_sshd: Callable[..., Sshd]) -> None:
        with login(start_sshd("MaxSessions 1")) as host:
            first = host.popen(["cat"])
            with pytest.raises(HostError, match="MaxSessions"):
                host.popen(["true"])
            first.stdin.close()
            assert first.wait(10) == 0


class TestFiles:
    def test_write_replaces_whole_files_with_the_mode_asked(self, host: Host, tmp_path: Path) -> None:
        path = tmp_path / "it's a file"
        path.write_bytes(b"old")
        before = path.stat().st_ino
        data = os.urandom(100_000)
        host.write_file(str(path), data, 0o640)
        assert path.read_bytes() == data == host.read_file(str(path))
        assert path.stat().st_mode & 0o777 == 0o640
        assert path.stat().st_ino != before
        assert list(tmp_path.glob("*.part")) == []

    def test_disk_full_is_told_and_leaves_the_old_file(self, host: Host, tmp_path: Path) -> None:
        path = tmp_path / "file"
        path.write_bytes(b"old")
        (tmp_path / "file.part").symlink_to("/dev/full")
        with pytest.raises(HostError, match=f"cannot write {path}: .*No space left"):
            host.write_file(str(path), bytes(1_000_000))
        assert path.read_bytes() == b"old"
        assert [child.name for child in tmp_path.iterdir() if child.name.startswith("file")] == ["file"]

    def test_absent_and_too_large(self, host: Host, tmp_path: Path) -> None:
        with pytest.raises(HostError, match="No such file"):
            host.read_file(str(tmp_path / "absent"))
        (tmp_path / "large").write_bytes(bytes(11))
        assert host.read_file(str(tmp_path / "large"), limit=11) == bytes(11)
        with pytest.raises(HostError, match="larger than 10 bytes"):
            host.read_file(str(tmp_path / "large"), limit=10)


class TestHostKeys:
    def test_unknown(self, sshd: Sshd) -> None:
        sshd.known_hosts.write_text("")
        message = refusal(sshd)
        assert f"unknown host key ssh-ed25519 {sshd.fingerprint()}" in message
        assert "--accept-new-host-key" in message
        assert f"ssh -p {sshd.port}" in message
        assert sshd.known_hosts.read_text() == ""

    def test_accept_new_records_it(self, sshd: Sshd) -> None:
        sshd.known_hosts.write_text("other ssh-ed25519 AAAA")  # without an end of line
        login(sshd, accept_new_host_key=True).close()
        assert sshd.known_hosts.read_text() == "other ssh-ed25519 AAAA\n" + sshd.host_key_line()
        login(sshd).close()

    def test_accept_new_makes_the_file(self, sshd: Sshd) -> None:
        sshd.known_hosts.unlink()
        login(sshd, accept_new_host_key=True).close()
        assert sshd.known_hosts.stat().st_mode & 0o777 == 0o600

    def test_accept_new_hashes_names_when_the_config_does(self, sshd: Sshd) -> None:
        sshd.known_hosts.write_text("")
        sshd.write_config(f"Host {ALIAS}\n{sshd.login_lines()}  HashKnownHosts yes\n")
        login(sshd, accept_new_host_key=True).close()
        assert sshd.known_hosts.read_text().startswith("|1|")
        login(sshd).close()
        found = subprocess.run(["ssh-keygen", "-F", f"[127.0.0.1]:{sshd.port}", "-f", sshd.known_hosts])
        assert found.returncode == 0

    @pytest.mark.parametrize("accept_new", [False, True])
    def test_changed_is_never_accepted(self, sshd: Sshd, accept_new: bool) -> None:
        old = sshd.fingerprint()
        sshd.known_hosts.write_text("# mine\n" + sshd.host_key_line())
        sshd.restart_with_new_host_key()
        before = sshd.known_hosts.read_text()
        message = refusal(sshd, accept_new_host_key=accept_new)
        assert "has changed" in message
        assert f"shows ssh-ed25519 {sshd.fingerprint()}" in message
        assert f"{sshd.known_hosts} line 2 has ssh-ed25519 {old}" in message
        assert sshd.known_hosts.read_text() == before

    def test_the_advice_for_a_changed_key_works(self, sshd: Sshd) -> None:
        sshd.restart_with_new_host_key()
        command = refusal(sshd).partition("remove the old key: ")[2]
        subprocess.run(["sh", "-c", command], check=True, capture_output=True)
        assert "unknown host key" in refusal(sshd)

    def test_hashed_by_openssh(self, sshd: Sshd) -> None:
        subprocess.run(["ssh-keygen", "-H", "-f", sshd.known_hosts], check=True, capture_output=True)
        assert sshd.known_hosts.read_text().startswith("|1|")
        login(sshd).close()

    def test_revoked(self, sshd: Sshd) -> None:
        sshd.known_hosts.write_text(f"{sshd.host_key_line()}@revoked * {sshd.host_key_line().split(' ', 1)[1]}")
        assert f"revoked in {sshd.known_hosts} line 2" in refusal(sshd, accept_new_host_key=True)

    def test_alias(self, sshd: Sshd) -> None:
        sshd.write_config(f"Host {ALIAS}\n{sshd.login_lines()}  HostKeyAlias gpu-box\n")
        assert "unknown host key" in refusal(sshd)
        sshd.known_hosts.write_text(sshd.host_key_line().replace(f"[127.0.0.1]:{sshd.port}", "gpu-box"))
        login(sshd).close()

    def test_the_known_type_is_asked_for_first(self, start_sshd: Callable[..., Sshd], tmp_path: Path) -> None:
        rsa = generate_key(tmp_path / "rsa", kind="rsa")
        server = start_sshd(f"HostKey {rsa}")
        kind, blob, *_ = Path(f"{rsa}.pub").read_text().split()
        server.known_hosts.write_text(f"[127.0.0.1]:{server.port} {kind} {blob}\n")
        login(server).close()


class TestLogin:
    def test_plain_address_and_identity(self, sshd: Sshd) -> None:
        sshd.write_config("")
        with open_host(sshd.spec, ssh_config=sshd.ssh_config, identities=[sshd.client_key]) as host:
            assert host.run(["true"]).returncode == 0
            assert host.label == sshd.spec

    def test_identity_that_is_not_there(self, sshd: Sshd) -> None:
        with pytest.raises(UsageError, match="no key file at /nowhere"):
            open_host(sshd.spec, ssh_config=sshd.ssh_config, identities=[Path("/nowhere")])

    def test_wrong_key_names_what_was_tried(self, sshd: Sshd, tmp_path: Path) -> None:
        other = generate_key(tmp_path / "other")
        sshd.write_config(f"Host {ALIAS}\n{sshd.login_lines(key=other)}")
        message = refusal(sshd)
        assert f"{sshd.user}@{ALIAS}: login refused; tried publickey ({other}); the server accepts publickey" in message

    def test_unreadable_key_is_named(self, sshd: Sshd, tmp_path: Path) -> None:
        (tmp_path / "junk").write_text("not a key")
        sshd.write_config(f"Host {ALIAS}\n{sshd.login_lines(key=tmp_path / 'junk')}")
        assert f"{tmp_path / 'junk'} (" in refusal(sshd)

    @pytest.mark.parametrize("kind", ["rsa", "ecdsa"])
    def test_other_kinds_of_key(self, sshd: Sshd, kind: str) -> None:
        generate_key(sshd.client_key, kind=kind)
        (sshd.folder / "authorized_keys").write_text(Path(f"{sshd.client_key}.pub").read_text())
        login(sshd).close()

    def test_pass_phrase(self, sshd: Sshd) -> None:
        sshd.write_config(f"Host {ALIAS}\n{sshd.login_lines(key=sshd.encrypted_key)}")
        asked = Answers("wrong", PASSPHRASE)
        login(sshd, ask=asked).close()
        assert asked.prompts == [(f"Pass-phrase for {sshd.encrypted_key}: ", True)] * 2

    def test_wrong_pass_phrase(self, sshd: Sshd) -> None:
        sshd.write_config(f"Host {ALIAS}\n{sshd.login_lines(key=sshd.encrypted_key)}")
        assert f"{sshd.encrypted_key} (wrong pass-phrase)" in refusal(sshd, ask=Answers("a", "b", "c"))

    def test_nobody_to_ask_for_the_pass_phrase(self, sshd: Sshd) -> None:
        sshd.write_config(f"Host {ALIAS}\n{sshd.login_lines(key=sshd.encrypted_key)}")
        message = refusal(sshd)
        assert "could not be asked for: no terminal" in message
        assert "ssh-agent" in message

    def test_batch_mode_asks_nothing(self, sshd: Sshd) -> None:
        sshd.write_config(f"Host {ALIAS}\n{sshd.login_lines(key=sshd.encrypted_key)}  BatchMode yes\n")
        assert "no terminal" in refusal(sshd, ask=Answers())

    def test_a_key_without_pass_phrase_is_tried_before_one_is_asked_for(self, sshd: Sshd) -> None:
        sshd.write_config(f"Host {ALIAS}\n{sshd.login_lines(key=sshd.encrypted_key)}  IdentityFile {sshd.client_key}\n")
        login(sshd, ask=Answers()).close()

    def test_agent(self, sshd: Sshd, agent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        add_to_agent(agent, sshd.client_key)
        sshd.write_config(f"Host {ALIAS}\n  HostName 127.0.0.1\n  Port {sshd.port}\n  User {sshd.user}\n")
        assert "tried nothing" in refusal(sshd)
        monkeypatch.setenv("SSH_AUTH_SOCK", str(agent))
        login(sshd).close()

    def test_agent_named_in_the_config(self, sshd: Sshd, agent: Path) -> None:
        add_to_agent(agent, sshd.client_key)
        # The encrypted file is not asked for: the agent holds its key.
        add_to_agent(agent, sshd.encrypted_key)
        sshd.write_config(f"Host {ALIAS}\n{sshd.login_lines(key=sshd.encrypted_key)}  IdentityAgent {agent}\n")
        login(sshd, ask=Answers()).close()

    def test_identities_only_keeps_the_agents_other_keys_back(
        self, sshd: Sshd, agent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(agent))
        add_to_agent(agent, sshd.client_key)
        sshd.write_config(f"Host {ALIAS}\n{sshd.login_lines(key=generate_key(tmp_path / 'other'))}")
        assert "agent" not in refusal(sshd)

    def test_too_many_keys(self, start_sshd: Callable[..., Sshd], tmp_path: Path) -> None:
        server = start_sshd("MaxAuthTries 2")
        keys = "".join(f"  IdentityFile {generate_key(tmp_path / f'k{number}')}\n" for number in range(4))
        server.write_config(f"Host {ALIAS}\n{server.login_lines(key=tmp_path / 'k0')}{keys}")
        assert "it hung up" in refusal(server)

    def test_password(self, start_sshd: Callable[..., Sshd], password_user: Account) -> None:
        server = start_sshd("PasswordAuthentication yes")
        asked = Answers("wrong", password_user.password)
        spec = f"{password_user.name}@127.0.0.1:{server.port}"
        server.write_config("")
        with login(server, spec, ask=asked) as host:
            assert host.run(["id", "-un"]).stdout.decode().strip() == password_user.name
        assert asked.prompts == [(f"{password_user.name}@127.0.0.1's password: ", True)] * 2

    def test_wrong_password(self, start_sshd: Callable[..., Sshd], password_user: Account) -> None:
        server = start_sshd("PasswordAuthentication yes")
        server.write_config("")
        spec = f"{password_user.name}@127.0.0.1:{server.port}"
        assert "login refused; tried password; the server accepts publickey, password" in refusal(
            server, spec, ask=Answers("a", "b", "c")
        )
        assert "password (could not be asked for: no terminal)" in refusal(server, spec)

    def test_keyboard_interactive(self, start_sshd: Callable[..., Sshd], password_user: Account) -> None:
        if not Path("/etc/pam.d/sshd").exists():
            pytest.skip("keyboard-interactive logins need PAM's sshd service")
        server = start_sshd("UsePAM yes", "KbdInteractiveAuthentication yes")
        server.write_config("")
        spec = f"{password_user.name}@127.0.0.1:{server.port}"
        asked = Answers(password_user.password)
        login(server, spec, ask=asked).close()
        assert [secret for _, secret in asked.prompts] == [True]
        assert "assword" in asked.prompts[0][0]
        assert "tried keyboard-interactive;" in refusal(server, spec, ask=Answers("a", "b", "c"))

    def test_two_factors(self, start_sshd: Callable[..., Sshd], password_user: Account) -> None:
        server = start_sshd("PasswordAuthentication yes", "AuthenticationMethods publickey,password")
        spec = f"{password_user.name}@127.0.0.1:{server.port}"
        server.write_config(f"Host *\n  IdentityFile {server.client_key}\n")
        readable_by_all(server.folder)
        login(server, spec, ask=Answers(password_user.password)).close()


class TestConfig:
    def test_include(self, sshd: Sshd) -> None:
        (sshd.folder / "included").write_text(sshd.ssh_config.read_text())
        sshd.ssh_config.write_text(f"Include {sshd.folder}/included\n")
        login(sshd).close()

    def test_without_the_openssh_client(self, sshd: Sshd, monkeypatch: pytest.MonkeyPatch) -> None:
        (sshd.folder / "included").write_text(sshd.ssh_config.read_text())
        sshd.ssh_config.write_text(f"Include {sshd.folder}/included\n")
        monkeypatch.setattr("shutil.which", lambda name: None)
        login(sshd).close()

    def test_proxy_jump(self, sshd: Sshd, start_sshd: Callable[..., Sshd]) -> None:
        gateway, inner = sshd, start_sshd()
        gateway.write_config(
            f"Host gateway\n{gateway.login_lines()}Host {ALIAS}\n{inner.login_lines()}  ProxyJump gateway\n"
        )
        assert f"{ALIAS}: unknown host key" in refusal(gateway)
        gateway.known_hosts.write_text(gateway.host_key_line() + inner.host_key_line())
        with login(gateway) as host:
            assert host.run(["printf", "%s", "$SSH"]).stdout == b"$SSH"
            data = os.urandom(1_000_000)
            assert host.run(["cat"], stdin=data).stdout == data
        gateway.known_hosts.write_text(inner.host_key_line())
        assert "gateway: unknown host key" in refusal(gateway)

    def test_a_chain_of_jumps(self, sshd: Sshd, start_sshd: Callable[..., Sshd]) -> None:
        second, third = start_sshd(), start_sshd()
        sshd.write_config(
            f"Host one\n{sshd.login_lines()}Host two\n{second.login_lines()}"
            f"Host {ALIAS}\n{third.login_lines()}  ProxyJump one,two\n"
        )
        sshd.known_hosts.write_text("".join(server.host_key_line() for server in (sshd, second, third)))
        with login(sshd) as host:
            assert host.run(["echo", "through"]).stdout == b"through\n"
        assert "Accepted publickey" in second.log.read_text()

    def test_a_gateway_for_every_host_is_reached_directly(self, sshd: Sshd, start_sshd: Callable[..., Sshd]) -> None:
        inner = start_sshd()
        sshd.write_config(
            f"Host gateway\n{sshd.login_lines()}Host {ALIAS}\n{inner.login_lines()}Host *\n  ProxyJump gateway\n"
        )
        sshd.known_hosts.write_text(sshd.host_key_line() + inner.host_key_line())
        login(sshd).close()
        login(sshd, "gateway").close()

    def test_jumps_in_a_circle(self, sshd: Sshd) -> None:
        sshd.write_config("Host a\n  ProxyJump b\nHost b\n  ProxyJump a\n")
        assert "round in circles" in refusal(sshd, "a")

    def test_jump_to_a_closed_port(self, sshd: Sshd) -> None:
        sshd.write_config(
            f"Host gateway\n{sshd.login_lines()}Host {ALIAS}\n  HostName 127.0.0.1\n  Port {free_port()}\n"
            "  ProxyJump gateway\n"
        )
        assert "Connect failed (asked from gateway)" in refusal(sshd)

    def test_proxy_command(self, sshd: Sshd) -> None:
        sshd.write_config(
            f"Host {ALIAS}\n{sshd.login_lines()}"
            f"  ProxyCommand ssh -F {sshd.ssh_config} -W %h:%p direct\nHost direct\n{sshd.login_lines()}"
        )
        with login(sshd) as host:
            data = os.urandom(1_000_000)
            assert host.run(["cat"], stdin=data).stdout == data

    def test_proxy_command_that_fails(self, sshd: Sshd) -> None:
        sshd.write_config(
            f"Host {ALIAS}\n{sshd.login_lines()}  ProxyCommand sh -c 'echo no tunnel to %h >&2; exit 1'\n"
        )
        assert "ProxyCommand gave no connection: no tunnel to 127.0.0.1" in refusal(sshd)


class TestUnreachable:
    def test_refused(self, sshd: Sshd) -> None:
        port = free_port()
        assert f"cannot connect to 127.0.0.1 port {port}: " in refusal(sshd, f"127.0.0.1:{port}")

    def test_not_resolvable(self, sshd: Sshd) -> None:
        assert "cannot resolve no-such-host.invalid" in refusal(sshd, "no-such-host.invalid")

    def test_not_an_ssh_server(self, sshd: Sshd, web: int) -> None:
        assert "did not complete the SSH handshake" in refusal(sshd, f"127.0.0.1:{web}")

    def test_no_common_algorithm(self, start_sshd: Callable[..., Sshd]) -> None:
        assert "no algorithm in common" in refusal(start_sshd("KexAlgorithms sntrup761x25519-sha512@openssh.com"))

    def test_nothing_is_printed(self, sshd: Sshd, capfd: pytest.CaptureFixture[str]) -> None:
        port = free_port()
        refusal(sshd, f"127.0.0.1:{port}")
        sshd.known_hosts.write_text("")
        refusal(sshd)
        assert capfd.readouterr() == ("", "")


class TestLostConnection:
    def test_everything_says_so(self, sshd: Sshd, host: Host, capfd: pytest.CaptureFixture[str]) -> None:
        process = host.popen(["sleep", "60"])
        threading.Timer(0.3, sshd.drop_connections).start()
        started = time.monotonic()
        with pytest.raises(HostError, match=f"lost the connection to {ALIAS}"):
            process.wait(30)
        assert time.monotonic() - started < 5
        for use in (process.poll, lambda: host.run(["true"]), lambda: host.connect(1), lambda: host.popen(["true"])):
            with pytest.raises(HostError, match="lost the connection"):
                use()
        assert process.stdout.read() == b""
        process.kill()
        host.close()
        assert capfd.readouterr() == ("", "")

    def test_in_the_middle_of_a_run(self, sshd: Sshd, host: Host) -> None:
        threading.Timer(0.3, sshd.drop_connections).start()
        with pytest.raises(HostError, match="lost the connection"):
            host.run(["cat", "/dev/zero"])

    def test_an_exit_status_without_all_of_the_output_is_no_success(self, sshd: Sshd, host: Host) -> None:
        process = host.popen(["sh", "-c", "sleep 5 & exit 0"])
        assert process.wait(10) == 0  # though the output is still open
        sshd.drop_connections()
        assert process.stdout.read() == b""
        with pytest.raises(HostError, match="lost the connection"):
            process.wait(10)

    def test_a_response_cut_short_is_no_end_of_file(self, sshd: Sshd, host: Host, web: int) -> None:
        connection = over(host, web)
        connection.request("GET", "/endless")
        response = connection.getresponse()
        response.read(1000)
        sshd.drop_connections()
        with pytest.raises(ConnectionResetError):
            response.read()

    def test_a_silent_machine_is_noticed(self, sshd: Sshd) -> None:
        with SshHost(Target(ALIAS), ssh_config=sshd.ssh_config, keepalive=0.3) as host:
            process = host.popen(["sleep", "60"])
            with pytest.raises(TimeoutError):
                process.wait(1.5)  # a machine that answers is left alone
            sshd.drop_connections(signal.SIGSTOP)
            with pytest.raises(HostError, match="lost the connection"):
                process.wait(20)

    def test_the_other_side_sees_the_end_of_its_input(self, sshd: Sshd, host: Host, tmp_path: Path) -> None:
        process = host.popen(["sh", "-c", f"cat > /dev/null; echo gone > {tmp_path}/note"])
        assert process.poll() is None
        sshd.drop_connections()
        wait_for((tmp_path / "note").exists)


class TestStreams:
    def test_http_with_a_body_read_after_the_connection_closed(self, host: Host, web: int) -> None:
        connection = over(host, web)
        connection.request("GET", "/large")
        response = connection.getresponse()
        assert connection.sock is None
        assert response.read() == LARGE

    def test_http_keep_alive(self, host: Host, web: int) -> None:
        connection = over(host, web)
        channel = connection.sock
        for text in (b"one", b"two"):
            connection.request("POST", "/echo", body=text)
            assert connection.getresponse().read() == text
        assert connection.sock is channel
        connection.close()

    def test_http_chunks_arrive_as_they_are_sent(self, host: Host, web: int) -> None:
        connection = over(host, web)
        connection.request("GET", "/events")
        started, seen = time.monotonic(), []
        for line in connection.getresponse():
            seen.append((line, time.monotonic() - started))
        assert [line for line, _ in seen] == [b"data: 0\n", b"data: 1\n", b"data: 2\n"]
        assert seen[2][1] - seen[0][1] > 0.3
        connection.close()

    def test_large_request(self, host: Host, web: int) -> None:
        connection = over(host, web)
        connection.request("POST", "/echo", body=LARGE)
        assert connection.getresponse().read() == LARGE
        connection.close()

    def test_read_timeout(self, host: Host, web: int) -> None:
        connection = over(host, web)
        connection.sock.settimeout(0.2)
        connection.request("GET", "/slow")
        with pytest.raises(TimeoutError):
            connection.getresponse()

    def test_nobody_listens(self, host: Host) -> None:
        with pytest.raises(ConnectionRefusedError):
            host.connect(free_port())
        assert host.run(["true"]).returncode == 0

    def test_refused_connections_and_commands_do_not_mix_up(self, host: Host) -> None:
        def refused(_: int) -> str:
            with pytest.raises(ConnectionRefusedError) as caught:
                host.connect(free_port())
            return str(caught.value)

        with ThreadPoolExecutor(8) as pool:
            assert all("Connect failed" in text for text in pool.map(refused, range(24)))

    def test_forwarding_not_allowed(self, start_sshd: Callable[..., Sshd], web: int) -> None:
        with login(start_sshd("AllowTcpForwarding no")) as host, pytest.raises(HostError, match="AllowTcpForwarding"):
            host.connect(web)


def test_usage_errors_exit_with_2(sshd: Sshd) -> None:
    for spec in ("", "-oProxyCommand=id", "a b", "host:0", "@host"):
        with pytest.raises(EaglediagError) as caught:
            login(sshd, spec)
        assert caught.value.exit_code == 2
    with pytest.raises(UsageError, match="no ssh config"):
        open_host("host", ssh_config=Path("/nowhere"))
    sshd.ssh_config.write_text("Host x\n  Nonsense yes\n")
    with pytest.raises(UsageError, match=r"(?i)nonsense"):
        login(sshd)


class Answers:
    """Answers prompts in order and fails the login when asked once too often."""

    def __init__(self, *replies: str) -> None:
        self.prompts: list[tuple[str, bool]] = []
        self._replies = iter(replies)

    def __call__(self, prompt: str, secret: bool) -> str:
        self.prompts.append((prompt, secret))
        return next(self._replies)


LARGE = os.urandom(3_000_000)


class Web(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        if self.path == "/large":
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(LARGE)
        elif self.path == "/endless":
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(LARGE)
            time.sleep(3)
        elif self.path == "/events":
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for number in range(3):
                self.wfile.write(b"8\r\ndata: %d\n\r\n" % number)
                time.sleep(0.2)
            self.wfile.write(b"0\r\n\r\n")
        else:
            time.sleep(1)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@pytest.fixture
def web() -> Iterator[int]:
    """The port of an HTTP server on loopback."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Web) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


def over(host: Host, port: int) -> HTTPConnection:
    connection = HTTPConnection("127.0.0.1", port)
    connection.sock = host.connect(port)
    return connection


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Path]:
    """The socket of a real ssh-agent."""
    path = tmp_path / "agent"
    process = subprocess.Popen(["ssh-agent", "-D", "-a", path], stdout=subprocess.DEVNULL)
    wait_for(lambda: listened_on(path))
    yield path
    process.terminate()
    process.wait(10)


def listened_on(path: Path) -> bool:
    """Whether somebody accepts connections there. A socket's file is made before its owner listens."""
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


def add_to_agent(agent: Path, key: Path) -> None:
    askpass = agent.parent / "askpass"
    askpass.write_text(f"#!/bin/sh\necho '{PASSPHRASE}'\n")
    askpass.chmod(0o700)
    environment = {
        **os.environ,
        "SSH_AUTH_SOCK": str(agent),
        "SSH_ASKPASS": str(askpass),
        "SSH_ASKPASS_REQUIRE": "force",
    }
    subprocess.run(["ssh-add", "-q", key], env=environment, check=True, capture_output=True)


def readable_by_all(folder: Path) -> None:
    """Let sshd, which reads authorized_keys as the user who logs in, get at it."""
    (folder / "authorized_keys").chmod(0o644)
    for parent in (folder, *folder.parents):
        if parent.stat().st_uid == os.getuid() and parent.stat().st_mode & 0o005 != 0o005:
            parent.chmod(0o755)


def assert_gone(pid: int) -> None:
    wait_for(lambda: subprocess.run(["kill", "-0", str(pid)], capture_output=True).returncode != 0)
