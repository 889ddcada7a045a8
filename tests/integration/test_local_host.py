"""LocalHost, and a container behind a stand-in for the docker command."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from eaglediag.errors import HostError, UsageError
from eaglediag.hosts import open_host
from eaglediag.hosts.base import Host
from tests.sshd import Sshd, free_port
from tests.waiting import wait_for


@pytest.fixture
def host() -> Host:
    return open_host("local")


class TestLocalHost:
    def test_arguments_arrive_as_they_are(self, host: Host) -> None:
        arguments = ["", "two words", "it's", "new\nline", "$(id)", "*", "-n", "a\\b"]
        assert host.run(["printf", "%s\\0", *arguments]).stdout.decode().split("\0")[:-1] == arguments

    def test_exit_status_and_standard_error(self, host: Host) -> None:
        done = host.run(["sh", "-c", "echo no >&2; exit 7"])
        assert (done.returncode, done.stdout, done.stderr) == (7, b"", b"no\n")

    def test_unknown_command_is_127_as_over_ssh(self, host: Host) -> None:
        done = host.run(["no-such-command"])
        assert done.returncode == 127
        assert b"no-such-command" in done.stderr

    def test_large_input_and_output(self, host: Host) -> None:
        data = os.urandom(5_000_000)
        assert host.run(["cat"], stdin=data).stdout == data
        assert host.run(["true"], stdin=data).returncode == 0

    def test_timeout_ends_the_whole_group(self, host: Host, tmp_path: Path) -> None:
        with pytest.raises(HostError, match=r"took longer than 0\.5 s"):
            host.run(["sh", "-c", f"sleep 300 & echo $! > {tmp_path}/pid; wait"], timeout=0.5)
        assert_gone(int((tmp_path / "pid").read_text()))

    def test_output_held_open_by_a_process_left_behind(self, host: Host) -> None:
        with pytest.raises(HostError, match="took longer"):
            host.run(["sh", "-c", "sleep 300 &"], timeout=0.5)

    def test_closing_stdin_is_end_of_file(self, host: Host) -> None:
        with host.popen(["cat"]) as process:
            assert process.poll() is None
            with pytest.raises(TimeoutError):
                process.wait(0.05)
            process.stdin.close()
            assert process.wait(10) == 0

    def test_death_by_signal_is_negative(self, host: Host) -> None:
        with host.popen(["sleep", "300"]) as process:
            process.kill()
            process.kill()
            assert process.wait(5) == -9

    def test_own_session(self, host: Host) -> None:
        session = host.run([sys.executable, "-c", "import os; print(os.getsid(0))"]).stdout
        assert int(session) != os.getsid(0)

    def test_files(self, host: Host, tmp_path: Path) -> None:
        path = tmp_path / "it's"
        host.write_file(str(path), b"text", 0o755)
        assert path.stat().st_mode & 0o777 == 0o755
        assert host.read_file(str(path)) == b"text"
        with pytest.raises(HostError, match=r"cannot write .*absent"):
            host.write_file(str(tmp_path / "absent" / "file"), b"")

    def test_connect(self, host: Host) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            host.connect(server.getsockname()[1]).close()
        with pytest.raises(ConnectionRefusedError):
            host.connect(free_port())


# Runs `docker exec -i box COMMAND` here, behind a name of its own in the environment, and knows one container.
DOCKER = """#!/bin/sh
echo "$*" >> "$(dirname "$0")/calls"
case "$1" in
    inspect)
        shift $(($# - 1))
        [ "$1" = box ] || { echo "Error: No such container: $1" >&2; exit 1; }
        cat "$(dirname "$0")/state.json";;
    exec)
        shift 3
        IN_CONTAINER=yes exec "$@";;
esac
"""


class TestContainer:
    @pytest.fixture
    def engine(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """The folder of a stand-in docker, first on PATH; `state.json` is what its inspect prints."""
        folder = tmp_path / "engine"
        folder.mkdir()
        (folder / "docker").write_text(DOCKER)
        (folder / "docker").chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        set_state(folder)
        return folder

    @pytest.fixture
    def listener(self) -> Iterator[int]:
        with socket.create_server(("127.0.0.1", 0)) as server:
            yield server.getsockname()[1]

    def test_commands_run_inside(self, engine: Path) -> None:
        with open_host("local", container="box") as host:
            done = host.run(["sh", "-c", 'echo "$IN_CONTAINER $0"; cat', "two words"], stdin=b"in")
        assert done.stdout == b"yes two words\nin"
        assert host.label == "container box on local"
        assert "exec -i box sh -c" in (engine / "calls").read_text()

    def test_files(self, engine: Path, tmp_path: Path) -> None:
        with open_host("local", container="box") as host:
            host.write_file(str(tmp_path / "file"), b"text")
            assert host.read_file(str(tmp_path / "file")) == b"text"

    def test_absent_and_stopped(self, engine: Path) -> None:
        with pytest.raises(HostError, match="No such container: other"):
            open_host("local", container="other")
        set_state(engine, running=False)
        with pytest.raises(HostError, match="not running; start it: docker start box"):
            open_host("local", container="box")
        with pytest.raises(UsageError, match="no container name"):
            open_host("local", container="--privileged")

    def test_no_engine(self) -> None:
        with pytest.raises(HostError, match=r"no-engine.*not found"):
            open_host("local", container="box", container_runtime="no-engine")

    def test_host_network(self, engine: Path, listener: int) -> None:
        set_state(engine, mode="host")
        with open_host("local", container="box") as host:
            host.connect(listener).close()
            with pytest.raises(ConnectionRefusedError):
                host.connect(free_port())

    def test_published_port(self, engine: Path, listener: int) -> None:
        set_state(engine, ports={"30000/tcp": [{"HostIp": "0.0.0.0", "HostPort": str(listener)}]}, address="192.0.2.1")
        with open_host("local", container="box") as host:
            host.connect(30000).close()

    def test_own_address_never_the_hosts_port(self, engine: Path, listener: int) -> None:
        set_state(engine, address="127.0.0.2")  # nobody listens there, though the host has the same port open
        with open_host("local", container="box") as host, pytest.raises(ConnectionRefusedError):
            host.connect(listener)
        set_state(engine, address="127.0.0.1")
        with open_host("local", container="box") as host:
            host.connect(listener).close()

    def test_no_address(self, engine: Path) -> None:
        with open_host("local", container="box") as host, pytest.raises(ConnectionRefusedError, match="no address"):
            host.connect(30000)

    @pytest.mark.sshd
    def test_over_ssh(self, engine: Path, sshd: Sshd) -> None:
        runtime = str(engine / "docker")
        with open_host("testhost", ssh_config=sshd.ssh_config, container="box", container_runtime=runtime) as host:
            assert host.run(["printenv", "IN_CONTAINER"]).stdout == b"yes\n"
            assert host.label == "container box on testhost"


def set_state(
    engine: Path,
    *,
    running: bool = True,
    mode: str = "bridge",
    ports: dict[str, list[dict[str, str]]] | None = None,
    address: str = "",
) -> None:
    state = {
        "State": {"Running": running},
        "HostConfig": {"NetworkMode": mode},
        "NetworkSettings": {"Ports": ports or {}, "Networks": {"bridge": {"IPAddress": address}}},
    }
    (engine / "state.json").write_text(json.dumps([state]))


def assert_gone(pid: int) -> None:
    wait_for(lambda: not Path(f"/proc/{pid}").exists(), 5)
