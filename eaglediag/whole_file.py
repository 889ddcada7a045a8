"""Files that are whole or not there: nobody reads half a capture, and what was there stays until it is replaced."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

#: Files in here are open in this process: another in their place would not be the one that the shell redirected to.
OPEN_ALREADY = (Path("/dev"), Path("/dev/fd"), Path("/proc/self/fd"))


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write that takes the place of `path` at the end; nothing does when an exception ends it before.

    What is no plain file, as a pipe or standard output, is written as it comes, and so is a file that no other can
    stand in for. Raises OSError.
    """
    if path.parent in OPEN_ALREADY or (path.exists() and not _replaceable(path.resolve())):
        with path.open("wb") as stream:
            yield stream
        return
    target = path.resolve()  # a link goes on being one
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:200]}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, _mode(target))
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _replaceable(target: Path) -> bool:
    """Whether it may be written, is ours, has no other name, and lies where a new file can be made."""
    there = target.stat()
    ours = there.st_uid == os.geteuid() and there.st_nlink == 1
    return target.is_file() and ours and os.access(target, os.W_OK) and os.access(target.parent, os.W_OK)


def _mode(target: Path) -> int:
    """What the file had, or what a new one gets: mkstemp makes a private one."""
    if target.exists():
        return target.stat().st_mode & 0o777
    umask = os.umask(0)
    os.umask(umask)
    return 0o666 & ~umask
