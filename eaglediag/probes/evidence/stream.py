"""Reading a file of any size in pieces of whole lines: plain or compressed, whatever bytes it holds."""

from __future__ import annotations

import bz2
import codecs
import gzip
import lzma
import zlib
from collections.abc import Callable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import Protocol

from eaglediag.errors import UsageError

CHUNK = 4 * 1024 * 1024
#: A line longer than this is not a log line; what is beyond is dropped so that a file without newlines stays harmless.
LONGEST_LINE = 8 * 1024 * 1024

#: Called with the bytes of the file (as it lies on the disk) that were read so far, and with all there are.
Progress = Callable[[int, int], None]


class Stream(Protocol):
    """A file, or what decompresses one."""

    def read1(self, size: int, /) -> bytes: ...
    def tell(self) -> int: ...


def chunks(path: Path, progress: Progress | None = None) -> Iterator[str]:
    """The text of a file in pieces that end where a line ends. Bytes that are not UTF-8 become U+FFFD.

    Raises UsageError when the file cannot be opened or its compression is damaged from the start; a compressed file
    that is cut off yields what can be read of it.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as raw:
            stream = _decompressed(raw)
            rest = b""
            while piece := _read(stream, path, CHUNK):
                if progress is not None:
                    progress(raw.tell(), size)
                cut = piece.rfind(b"\n") + 1
                if cut == 0:
                    rest = (rest + piece)[:LONGEST_LINE]
                    continue
                yield _text(rest + piece[:cut])
                rest = piece[cut:]
            if rest:
                yield _text(rest)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}", "check the path") from error


def pieces(path: Path, progress: Progress | None = None) -> Iterator[str]:
    """The text of a file in pieces that end anywhere. Raises UsageError as `chunks` does."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    try:
        size = path.stat().st_size
        with path.open("rb") as raw:
            stream = _decompressed(raw)
            while piece := _read(stream, path, CHUNK):
                if progress is not None:
                    progress(raw.tell(), size)
                yield decoder.decode(piece)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}", "check the path") from error


def head(path: Path, size: int = 256 * 1024) -> str:
    """The first `size` bytes of a file, decompressed. Raises UsageError."""
    try:
        with path.open("rb") as raw:
            return _text(_read(_decompressed(raw), path, size))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}", "check the path") from error


def whole(path: Path, limit: int = 256 * 1024 * 1024) -> str:
    """A whole file of at most `limit` bytes once decompressed. Raises UsageError."""
    text = head(path, limit + 1)
    if len(text) > limit:
        raise UsageError(
            f"{path} is larger than {limit / 1e6:.0f} MB, too large for what it seems to be", "check the file"
        )
    return text


def _decompressed(raw: BufferedReader) -> Stream:
    magic = raw.read(6)
    raw.seek(0)
    if magic.startswith(b"\x1f\x8b"):
        return gzip.GzipFile(fileobj=raw)
    if magic.startswith(b"BZh"):
        return bz2.BZ2File(raw)
    if magic.startswith(b"\xfd7zXZ"):
        return lzma.LZMAFile(raw)
    return raw


def _read(stream: Stream, path: Path, size: int) -> bytes:
    """Up to `size` bytes: what could be read before the compressed stream broke off, b"" at the end."""
    pieces: list[bytes] = []
    missing = size
    try:
        # read1 hands over what was decompressed before a stream broke off; read would lose it.
        while missing > 0 and (piece := stream.read1(min(missing, 1024 * 1024))):
            pieces.append(piece)
            missing -= len(piece)
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        if not pieces and stream.tell() == 0:
            raise UsageError(f"{path} is compressed and damaged: {error}", "copy it again") from error
    return b"".join(pieces)


def _text(data: bytes) -> str:
    text = data.decode("utf-8", "replace")
    # tqdm redraws its bar with carriage returns.
    return text.replace("\r", "\n") if "\r" in text else text
