"""What commands write: whole or not at all, never over their inputs; and a reader that goes away ends them quietly."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from eaglediag.capture import store
from eaglediag.whole_file import whole_file
from tests.invoke import eaglediag
from tests.report_material import full_pair, raw_rows, with_steps
from tests.waiting import wait_for


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """A capture with its raw steps beside it."""
    folder = tmp_path / "captures"
    folder.mkdir()
    eagle, _, path = with_steps(folder, [("c1", raw_rows(steps=40))])
    store.write(eagle, path)
    return path


def test_what_was_there_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"old")
    path.chmod(0o640)
    with contextlib.suppress(ZeroDivisionError), whole_file(path) as stream:
        stream.write(b"half")
        raise ZeroDivisionError
    assert (path.read_bytes(), list(tmp_path.iterdir())) == (b"old", [path])
    with whole_file(path) as stream:
        stream.write(b"new")
    assert (path.read_bytes(), path.stat().st_mode & 0o777, list(tmp_path.iterdir())) == (b"new", 0o640, [path])


def test_a_link_goes_on_being_one(tmp_path: Path) -> None:
    path, link = tmp_path / "x", tmp_path / "link"
    link.symlink_to(path)
    with whole_file(link) as stream:
        stream.write(b"new")
    assert (link.is_symlink(), path.read_bytes()) == (True, b"new")


def test_what_no_other_file_can_stand_in_for_is_written_in_place(tmp_path: Path) -> None:
    path, other = tmp_path / "x", tmp_path / "other name"
    path.write_bytes(b"old")
    other.hardlink_to(path)
    with whole_file(path) as stream:
        stream.write(b"new")
    assert other.read_bytes() == b"new"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
def test_owners_and_permissions_are_kept(tmp_path: Path) -> None:
    """As another user: a read-only file stays, and a writable one in a folder that takes no new files is written."""
    folder = tmp_path / "folder"
    folder.mkdir()
    for name, mode in (("fixed", 0o444), ("free", 0o644)):
        (folder / name).write_text("old")
        os.chown(folder / name, 65534, 65534)
        (folder / name).chmod(mode)
    with whole_file(folder / "free") as stream:
        stream.write(b"by root")
    assert (folder / "free").stat().st_uid == 65534
    for parent in (folder, *folder.parents):
        if parent.stat().st_mode & 0o005 != 0o005:
            parent.chmod(0o755)
    script = (
        "import os, sys; from pathlib import Path; from eaglediag.whole_file import whole_file; os.setuid(65534)\n"
        "for name in ('fixed', 'free'):\n"
        "    try:\n"
        "        with whole_file(Path(sys.argv[1]) / name) as stream: stream.write(b'new')\n"
        "    except PermissionError: print('refused', name)\n"
    )
    ran = subprocess.run([sys.executable, "-c", script, folder], capture_output=True, text=True, check=True)
    assert (ran.stdout, (folder / "fixed").read_text(), (folder / "free").read_text()) == (
        "refused fixed\n",
        "old",
        "new",
    )


@pytest.mark.parametrize("damage", [b"", b"not gzip"])
def test_an_export_that_fails_leaves_the_old_file(recorded: Path, damage: bytes) -> None:
    out = recorded.with_name("t.json")
    out.write_text("KEEP")
    recorded.with_name("eagle.steps.jsonl.gz").write_bytes(damage)
    for option in ("--trace", "--csv", "--parquet"):
        assert eaglediag("export", recorded, option, out).code == 2
    assert out.read_text() == "KEEP"
    assert len(list(recorded.parent.iterdir())) == 3


def test_nothing_is_written_over_an_input_or_twice(recorded: Path, tmp_path: Path) -> None:
    steps, link = recorded.with_name("eagle.steps.jsonl.gz"), tmp_path / "link.csv"
    link.symlink_to(steps)
    before = recorded.read_bytes(), steps.read_bytes()
    for command in (
        ("export", recorded, "--csv", steps),
        ("export", recorded, "--csv", link),
        ("export", recorded, "--trace", recorded),
        ("export", recorded, "--trace", tmp_path / "x", "--csv", tmp_path / "x"),
        ("report", recorded, "--markdown", recorded),
        ("compare", recorded, recorded, "--markdown", recorded),
        ("import", recorded, "-o", recorded),
        ("check", recorded, "--baseline", recorded, "--junit", recorded),
        ("check", recorded, "--baseline", recorded, "--junit", tmp_path / "x", "--markdown", tmp_path / "x"),
        ("report", recorded, "--html", steps),
        ("report", recorded, "--issue", recorded, "--yes"),
    ):
        ran = eaglediag(*command)
        assert (ran.code, ran.err.count("\n")) == (2, 1), ran.err
        assert "would overwrite it" in ran.err
    assert (recorded.read_bytes(), steps.read_bytes()) == before
    assert not (tmp_path / "x").exists()


def test_a_dash_is_standard_output(recorded: Path) -> None:
    for redirected in (None, recorded.with_name("printed.csv")):
        with open(redirected or os.devnull, "wb") as out:
            ran = subprocess.run(
                [sys.executable, "-m", "eaglediag", "export", recorded, "--csv", "-"],
                stdout=out if redirected else subprocess.PIPE,
                stderr=subprocess.PIPE,
                check=True,
            )
        text = redirected.read_bytes() if redirected else ran.stdout
        assert text.startswith(b"window,rank,row,step,")
        assert ran.stderr == b""
    assert not (recorded.parent / "-").exists()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full on this system")
def test_an_output_that_cannot_be_written(recorded: Path) -> None:
    for more in ([], ["--json"], ["--markdown", "-"]):
        with open("/dev/full", "wb") as full:
            ran = subprocess.run(
                [sys.executable, "-m", "eaglediag", "report", recorded, *more], stdout=full, stderr=subprocess.PIPE
            )
        assert (ran.returncode, ran.stderr.count(b"\n")) == (2, 1), ran.stderr
        assert b"cannot write to standard output: No space left on device" in ran.stderr


@pytest.mark.parametrize("more", [(), ("--json",), ("--markdown", "-")])
def test_a_reader_that_is_gone_is_no_failed_gate(tmp_path: Path, more: tuple[str, ...]) -> None:
    paths = [tmp_path / "baseline.json", tmp_path / "eagle.json"]
    for path, one in zip(paths, full_pair(), strict=True):
        store.write(one, path)
    reading, writing = os.pipe()
    os.close(reading)
    ran = subprocess.run(
        [sys.executable, "-m", "eaglediag", "report", *paths, *more], stdout=writing, stderr=subprocess.PIPE
    )
    os.close(writing)
    assert (ran.returncode, ran.stderr) == (141, b"")


def test_a_file_that_nobody_reads_any_more(recorded: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "eaglediag", "report", str(recorded), "--html", "/dev/stdout"]
    ran = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert (ran.returncode, ran.stderr) == (141, b"")


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_cancelled_job_is_interrupted(recorded: Path, how: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "eaglediag", "report", recorded, "--watch"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(how)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (99, b"eaglediag: interrupted\n")


@pytest.mark.parametrize("option", ["--json", "--html", "--markdown", "--issue"])
def test_watching_writes_nothing(recorded: Path, option: str) -> None:
    ran = eaglediag("report", recorded, "--watch", *([option] if option == "--json" else [option, "x"]))
    assert (ran.code, "--watch prints on the terminal" in ran.err) == (2, True)


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A capture whose steps, in parcels of this size, take seconds."""
    eagle, _, path = with_steps(tmp_path_factory.mktemp("long"), [("c1", raw_rows(steps=20_000))])
    store.write(eagle, path)
    return path


@pytest.mark.parametrize("later_s", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_workers_end_with_the_export(long: Path, tmp_path: Path, how: signal.Signals, later_s: float) -> None:
    """A large export works in several processes; none may be left behind, whenever it is stopped."""
    script = (
        "import os; from eaglediag.reports import steps_file; "
        "steps_file.PARALLEL_BYTES = 0; steps_file.PARCEL_BYTES = 4000; "
        "os.cpu_count = lambda: 2; from eaglediag.cli import main; main()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, "export", str(long), "--csv", str(tmp_path / "s.csv")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    wait_for(lambda: len(group(process.pid)) >= 3 and any(tmp_path.glob(".s.csv.*")), 60)
    time.sleep(later_s)
    os.killpg(process.pid, how) if how == signal.SIGINT else process.send_signal(how)
    assert process.wait(60) == (99 if how == signal.SIGINT else -9)
    wait_for(lambda: not group(process.pid), 60)
    assert not (tmp_path / "s.csv").exists()


def group(leader: int) -> list[int]:
    """The processes of its group that still run."""
    listing = subprocess.run(["ps", "-A", "-o", "pid=,pgid=,stat="], check=True, capture_output=True, text=True).stdout
    rows = [line.split() for line in listing.splitlines()]
    return [int(pid) for pid, pgid, state in rows if int(pgid) == leader and not state.startswith("Z")]
