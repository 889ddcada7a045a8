"""Host specs, ssh config and known_hosts, without a connection."""

from __future__ import annotations

import getpass
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import paramiko
import pytest

from eaglediag.errors import HostError, UsageError
from eaglediag.hosts.ssh import known_hosts
from eaglediag.hosts.ssh.config import Settings, Target, parse_target, resolve
from eaglediag.hosts.ssh.known_hosts import Entry, admit, fingerprint, preferred, read


@pytest.mark.parametrize(
    ("spec", "target"),
    [
        ("gpu", Target("gpu")),
        ("gpu:2222", Target("gpu", None, 2222)),
        ("bob@gpu.example.com:2222", Target("gpu.example.com", "bob", 2222)),
        ("bob@corp@gpu", Target("gpu", "bob@corp")),
        ("[2001:db8::1]:22", Target("2001:db8::1", None, 22)),
        ("bob@[2001:db8::1]", Target("2001:db8::1", "bob")),
        ("2001:db8::1", Target("2001:db8::1")),
        ("[fe80::1%eth0]:22", Target("fe80::1%eth0", None, 22)),
        ("ssh://bob@gpu:22/", Target("gpu", "bob", 22)),
    ],
)
def test_spec(spec: str, target: Target) -> None:
    assert parse_target(spec) == target
    assert parse_target(str(target)) == target


@pytest.mark.parametrize(
    "spec",
    ["", "@gpu", "bob@", "gpu:", "gpu:ssh", "gpu:0", "gpu:65536", "gpu:٣", "-oProxyCommand=id", "-l@gpu", "a b", "a/b"],
)
def test_unusable_spec(spec: str) -> None:
    with pytest.raises(UsageError):
        parse_target(spec)


CONFIG = """
Host box
  HostName %h.example.com
  User bob
  Port 2200
  IdentityFile ~/keys/%r_%n
  IdentityFile /keys/%h
  IdentitiesOnly yes
  UserKnownHostsFile ~/kh1 /kh2
  GlobalKnownHostsFile /dev/null
  ProxyJump a@first:22,second
  ConnectTimeout 7
  HashKnownHosts yes
Host tunnel
  ProxyCommand nc %h %p
  HostKeyAlias alias
  UserKnownHostsFile none
Host direct
  ProxyCommand none
"""


@pytest.fixture(params=["openssh", "paramiko"])
def config(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """CONFIG behind an Include, to be read in both ways."""
    if request.param == "paramiko":
        monkeypatch.setattr("shutil.which", lambda name: None)
    (tmp_path / "included").write_text(CONFIG)
    (tmp_path / "config").write_text(f"Include {tmp_path}/inc*\nHost *\n  BatchMode yes\n")
    return tmp_path / "config"


def test_config(config: Path) -> None:
    box = resolve(Target("box"), config)
    home = Path.home()
    assert (box.name, box.hostname, box.port, box.user) == ("box", "box.example.com", 2200, "bob")
    assert box.identity_files == (home / "keys/bob_box", Path("/keys/box.example.com"))
    assert box.known_hosts == (home / "kh1", Path("/kh2"))
    assert box.global_known_hosts == (Path("/dev/null"),)
    assert box.proxy_jump == ("a@first:22", "second")
    assert box.connect_timeout == 7
    assert box.identities_only
    assert box.hash_known_hosts
    assert box.batch_mode
    assert box.host_key_name == "[box.example.com]:2200"


def test_spec_overrides_config(config: Path) -> None:
    box = resolve(Target("box", "eve", 23), config)
    assert (box.user, box.port) == ("eve", 23)
    assert box.identity_files[0] == Path.home() / "keys/eve_box"


def test_proxy_command(config: Path) -> None:
    tunnel = resolve(Target("tunnel"), config)
    assert tunnel.proxy_command == "nc tunnel 22"
    assert tunnel.known_hosts == ()
    assert tunnel.host_key_name == "alias"
    assert resolve(Target("direct"), config).proxy_command is None


def test_defaults(config: Path) -> None:
    plain = resolve(Target("Plain"), config)
    assert (plain.hostname.lower(), plain.port, plain.user) == ("plain", 22, getpass.getuser())
    assert plain.host_key_name == "plain"
    assert plain.connect_timeout == 15
    assert Path.home() / ".ssh/id_ed25519" in plain.identity_files
    assert plain.known_hosts[0] == Path.home() / ".ssh/known_hosts"


def test_agent_of_the_config(tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text(
        "Host a\n IdentityAgent /a.sock\nHost b\n IdentityAgent none\nHost c\n IdentityAgent SSH_AUTH_SOCK\n"
    )
    agents = [resolve(Target(name), file).identity_agent for name in "abcd"]
    assert agents == ["/a.sock", "none", None, None]


def test_include_in_a_circle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    file = tmp_path / "config"
    file.write_text(f"Include {file}\n")
    with pytest.raises(UsageError, match="includes itself"):
        resolve(Target("x"), file)


BLOB = paramiko.RSAKey.generate(1024).asbytes()


@pytest.mark.parametrize(
    ("hosts", "name", "matches"),
    [
        ("gpu", "gpu", True),
        ("gpu", "GPU", True),
        ("gpu", "gpu2", False),
        ("a,gpu,b", "gpu", True),
        ("*.example.com", "gpu.example.com", True),
        ("*.example.com,!gpu.example.com", "gpu.example.com", False),
        ("gpu?", "gpu1", True),
        ("[gpu]:2222", "[gpu]:2222", True),
        ("[gpu]:2222", "g", False),
        ("[*]:2222", "[gpu]:2222", True),
        ("gpu", "[gpu]:2222", False),
        pytest.param(paramiko.HostKeys.hash_host("[gpu]:2222"), "[gpu]:2222", True, id="hashed"),
        pytest.param(paramiko.HostKeys.hash_host("gpu"), "[gpu]:2222", False, id="hashed, another port"),
        ("|1|not base64|at all", "gpu", False),
    ],
)
def test_known_hosts_patterns(hosts: str, name: str, matches: bool) -> None:
    assert Entry(Path("f"), 1, "", hosts, "ssh-rsa", BLOB).matches(name) is matches


def test_known_hosts_lines(tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    file.write_text(
        "\n# comment\ngpu ssh-rsa AAAA words\n@revoked * ssh-rsa AAAA\nbroken\n@cert-authority\nx ssh-rsa A\n"
    )
    entries = read([tmp_path / "absent", file])
    assert [(entry.line, entry.marker, entry.hosts) for entry in entries] == [(3, "", "gpu"), (4, "@revoked", "*")]


def test_known_types_come_first() -> None:
    supported = ["ssh-ed25519", "ecdsa-sha2-nistp256", "rsa-sha2-512", "rsa-sha2-256"]
    assert preferred(supported, ["ssh-rsa"]) == ["rsa-sha2-512", "rsa-sha2-256", "ssh-ed25519", "ecdsa-sha2-nistp256"]
    assert preferred(supported, []) == supported


def test_fingerprint_is_openssh_s(tmp_path: Path) -> None:
    key = paramiko.RSAKey.generate(2048)
    (tmp_path / "key.pub").write_text(f"ssh-rsa {key.get_base64()}\n")
    printed = subprocess.run(["ssh-keygen", "-lf", tmp_path / "key.pub"], capture_output=True, text=True, check=True)
    assert fingerprint(key.asbytes()) == printed.stdout.split()[1]


class TestAdmit:
    key = paramiko.ECDSAKey.generate()

    def settings(self, file: Path, port: int = 22) -> Settings:
        config = file.with_name("config")
        config.write_text(f"Host *\n UserKnownHostsFile {file}\n GlobalKnownHostsFile /dev/null\n")
        return resolve(Target("gpu", "bob", port), config)

    def test_a_key_known_without_the_port_vouches(self, tmp_path: Path) -> None:
        file = tmp_path / "known_hosts"
        file.write_text(f"gpu {self.key.get_name()} {self.key.get_base64()}\n")
        admit(self.key, self.settings(file, 2222), accept_new=False)

    def test_another_key_without_the_port_is_not_held_against_it(self, tmp_path: Path) -> None:
        file = tmp_path / "known_hosts"
        file.write_text(f"gpu {self.key.get_name()} {paramiko.ECDSAKey.generate().get_base64()}\n")
        with pytest.raises(HostError, match="unknown host key"):
            admit(self.key, self.settings(file, 2222), accept_new=False)
        with pytest.raises(HostError, match="has changed"):
            admit(self.key, self.settings(file), accept_new=True)

    def test_only_another_type_on_file_is_a_change(self, tmp_path: Path) -> None:
        file = tmp_path / "known_hosts"
        file.write_text(f"gpu ssh-rsa {paramiko.RSAKey.generate(2048).get_base64()}\n")
        with pytest.raises(HostError, match=r"line 1 has ssh-rsa"):
            admit(self.key, self.settings(file), accept_new=True)

    def test_one_of_several_keys_is_enough(self, tmp_path: Path) -> None:
        file = tmp_path / "known_hosts"
        others = [paramiko.ECDSAKey.generate(), self.key, paramiko.ECDSAKey.generate()]
        file.write_text("".join(f"gpu {key.get_name()} {key.get_base64()}\n" for key in others))
        admit(self.key, self.settings(file), accept_new=False)

    def test_host_certificates_are_named(self, tmp_path: Path) -> None:
        file = tmp_path / "known_hosts"
        file.write_text(f"@cert-authority * {self.key.get_name()} {paramiko.ECDSAKey.generate().get_base64()}\n")
        with pytest.raises(HostError, match="host certificates are not supported"):
            admit(self.key, self.settings(file), accept_new=False)

    def test_nowhere_to_record(self, tmp_path: Path) -> None:
        settings = replace(self.settings(tmp_path / "known_hosts"), known_hosts=())
        with pytest.raises(HostError, match="UserKnownHostsFile is none"):
            admit(self.key, settings, accept_new=True)

    @pytest.mark.skipif(os.getuid() == 0, reason="root reads every file")
    def test_unreadable_file(self, tmp_path: Path) -> None:
        file = tmp_path / "known_hosts"
        file.touch(mode=0)
        with pytest.raises(HostError, match="cannot read the known host keys"):
            known_hosts.known_types(self.settings(file))
