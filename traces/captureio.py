"""What the capture formats share: frames, interfaces, the error, reading by chunks, and writing beside then renaming.

Owns bytes in and out of files. Knows neither pcap nor pcapng; users import everything from `traces.pcap`.
"""

from __future__ import annotations

import os
import secrets
import stat
import sys
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from typing import BinaryIO, NamedTuple, Self

PS_PER_S = 1_000_000_000_000

MAX_RECORD_BYTES = 16 * 1024 * 1024
"""Longest frame record or pcapng block read or written; our choice: 64 times the largest snap length of libpcap."""

CHUNK_BYTES = 256 * 1024
"""Bytes per read and per write; our choice: it stays within a core's cache."""

GZIP_MAGIC = b"\x1f\x8b"


class LinkType(IntEnum):
    """The link types that matter here; the full list is https://www.tcpdump.org/linktypes.html."""

    NULL = 0
    ETHERNET = 1
    RAW = 101
    LINUX_SLL = 113
    LINUX_SLL2 = 276


class CaptureError(ValueError):
    """A capture that cannot be read, or not past some byte; its text is one sentence for the user.

    Attributes
    ----------
    path : str
        The file as the caller named it.
    offset_bytes : int
        Where the broken record begins, in the data after any gzip.
    frames_read : int
        Whole frames read before it.
    """

    def __init__(self, message: str, path: str, offset_bytes: int = 0, frames_read: int = 0):
        super().__init__(message)
        self.path = path
        self.offset_bytes = offset_bytes
        self.frames_read = frames_read


@dataclass(slots=True)
class Interface:
    """Where frames were captured.

    Attributes
    ----------
    id : int
        Index in the table of the capture, unique over all sections of a pcapng file.
    name, description : str or None
        As the file tells; classic pcap tells neither.
    link_type : int
        See `LinkType`.
    snaplen_bytes : int
        Frames were cut to this length; 0 is no limit.
    ticks_per_second : int
        Resolution of the timestamps in the file.
    offset_s : int
        Seconds that the file asks to add to each timestamp; `Frame.time_ps` has them already.
    rate_bps : int or None
        Speed of the interface.
    fcs_bytes : int or None
        FCS bytes at the end of each frame, if the file tells.
    section, id_in_section : int
        Number of the pcapng section from 0, and the id within it, as the file has it.
    received_frames, dropped_frames : int or None
        From the last interface statistics block read so far: frames seen, and frames lost for want of resources.
    """

    id: int
    name: str | None = None
    description: str | None = None
    link_type: int = LinkType.ETHERNET
    snaplen_bytes: int = 0
    ticks_per_second: int = 1_000_000
    offset_s: int = 0
    rate_bps: int | None = None
    fcs_bytes: int | None = None
    section: int = 0
    id_in_section: int = 0
    received_frames: int | None = None
    dropped_frames: int | None = None


class Frame(NamedTuple):
    """One captured frame.

    Attributes
    ----------
    number : int
        From 1, over all sections.
    time_ps : int
        Picoseconds since the epoch of the capture, floored where the file's ticks are finer; 0 if it tells no time.
    ticks : int or None
        The timestamp as the file has it, in units of `Interface.ticks_per_second`; None if it tells no time
        (a simple packet block of pcapng).
    interface : Interface
    data : bytes
        What was captured.
    original_bytes : int
        Length of the frame on the link; above ``len(data)`` if the capture cut it.
    flags : int or None
        The pcapng flags word, see `direction`.
    comment : str or None
        Several comments are joined by newlines.
    dropped_frames : int or None
        Frames lost between the previous frame of this interface and this one.
    """

    number: int
    time_ps: int
    ticks: int | None
    interface: Interface
    data: bytes
    original_bytes: int
    flags: int | None = None
    comment: str | None = None
    dropped_frames: int | None = None

    @property
    def time_ns(self) -> int:
        """Nanoseconds since the epoch of the capture, floored."""
        return self.time_ps // 1000

    @property
    def interface_id(self) -> int:
        """Index in the interface table of the capture."""
        return self.interface.id

    @property
    def direction(self) -> str | None:
        """``'in'``, ``'out'``, or None where the file does not tell."""
        return (None, "in", "out", None)[(self.flags or 0) & 3]


class Source:
    """A file read forward in chunks, gunzipped if need be.

    The unread bytes are those of `buffer` from `position`; a reader moves `position` record by record and counts in
    `frames_read`, which `error` tells.

    Parameters
    ----------
    path : str, PathLike or binary file object
        ``-`` is standard input.
    """

    def __init__(self, path: str | os.PathLike[str] | BinaryIO):
        self.buffer = b""
        self.position = 0
        self.frames_read = 0
        self.is_gzip = False
        self._base_bytes = 0  # offset of buffer[0] in the (decompressed) data
        self.bytes_read = 0
        self._owned: BinaryIO | None = None
        if isinstance(path, (str, os.PathLike)):
            self.name = os.fspath(path)
            if self.name == "-":
                self.name = "standard input"
                raw: BinaryIO = sys.stdin.buffer
            else:
                try:
                    raw = self._owned = open(self.name, "rb", buffering=0)  # noqa: SIM115 - a read is a chunk already
                except (OSError, ValueError) as error:  # ValueError: a NUL in the name
                    reason = getattr(error, "strerror", None) or str(error)
                    raise CaptureError(f"{self.name} cannot be opened: {reason}", self.name) from error
        else:
            raw = path
            self.name = str(getattr(raw, "name", "the capture"))
        self._chunks = self._read(raw)
        try:
            self.fill(4)
            if self.buffer.startswith(GZIP_MAGIC):
                self.is_gzip = True
                self._chunks = _gunzip(self.buffer, self._chunks)
                self.buffer = b""
                self.fill(4)
        except BaseException:
            self.close()
            raise

    def _read(self, raw: BinaryIO) -> Iterator[bytes]:
        read = getattr(raw, "read1", raw.read)  # read1 returns what a live pipe has, without waiting for a whole chunk
        while chunk := read(CHUNK_BYTES):
            self.bytes_read += len(chunk)
            yield chunk

    def fill(self, need_bytes: int) -> bool:
        """Have `need_bytes` unread bytes in the buffer; False if the file ends before that."""
        have = len(self.buffer) - self.position
        if have >= need_bytes:
            return True
        parts = [self.buffer[self.position:]]
        self._base_bytes += self.position
        self.position = 0
        try:
            while have < need_bytes and (chunk := next(self._chunks, b"")):
                parts.append(chunk)
                have += len(chunk)
        except (OSError, EOFError, zlib.error, ValueError) as error:  # ValueError: the file object was closed
            reason = getattr(error, "strerror", None) or str(error)
            raise self.error(f"reading on failed, {reason}") from error
        self.buffer = b"".join(parts)
        return have >= need_bytes

    def error(self, what: str) -> CaptureError:
        """The error to raise for the record at `position`."""
        offset = self._base_bytes + self.position
        where = f"byte {offset} of the gunzipped data" if self.is_gzip else f"byte {offset}"
        plural = "frame" if self.frames_read == 1 else "frames"
        return CaptureError(f"{self.name}, {where}: {what} ({self.frames_read} whole {plural} read before it)",
                            self.name, offset, self.frames_read)

    def close(self) -> None:
        """Close the file if this opened it."""
        if self._owned is not None:
            self._owned.close()


def _gunzip(head: bytes, chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Decompressed bytes of all members of a gzip stream, at most a chunk at a time."""
    inflator, is_inside = zlib.decompressobj(31), False
    chunk = head
    while chunk:
        while chunk:
            is_inside = True
            if data := inflator.decompress(chunk, CHUNK_BYTES):
                yield data
            chunk = inflator.unconsumed_tail
            if inflator.eof:
                chunk = inflator.unused_data.lstrip(b"\0")  # zero padding may follow a member
                inflator, is_inside = zlib.decompressobj(31), False
        chunk = next(chunks, b"")
        if not is_inside:
            chunk = chunk.lstrip(b"\0")
    if is_inside:
        if data := inflator.flush():
            yield data
        raise EOFError("the gzip data ends early")


class CaptureWriter:
    """A capture file written beside its name and renamed by `close`, so that no half-written file has the name.

    As a context manager it also closes, and keeps the frames so far, when Ctrl-C or another `BaseException` that is
    not an `Exception` leaves the block; on an `Exception` it discards them.

    Parameters
    ----------
    path : str, PathLike or binary file object
        ``-`` is standard output. A device, pipe or file object is written directly and has nothing to rename;
        a file object is flushed, not closed.
    """

    def __init__(self, path: str | os.PathLike[str] | BinaryIO):
        self._final: str | None = None
        self._beside: str | None = None
        self._is_closed = False
        self._is_owned = False
        self._whole_bytes = 0
        if not isinstance(path, (str, os.PathLike)):
            self._file: BinaryIO = path
        elif os.fspath(path) == "-":
            self._file = sys.stdout.buffer
        else:
            self._is_owned = True
            self._file = self._open(os.fspath(path))

    def _open(self, path: str) -> BinaryIO:
        final = os.path.realpath(path)  # a symbolic link stays, and what it names is replaced
        try:
            if os.path.exists(final) and not stat.S_ISREG(os.stat(final).st_mode):
                return open(final, "wb", buffering=CHUNK_BYTES)
            # found by whoever lost the process; cut, so that the suffix fits into a name's 255 bytes
            beside = os.path.join(os.path.dirname(final), f"{os.path.basename(final)[:50]}.{secrets.token_hex(4)}.part")
            descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from None  # the user knows this name, not the other
        self._final, self._beside = final, beside
        return open(descriptor, "wb", buffering=CHUNK_BYTES)

    def _append(self, record: bytes, length: int | None = None) -> None:
        if self._is_closed:
            raise ValueError("this capture is closed; open another to write more frames")
        if length is not None and len(record) != length:
            raise ValueError("a frame to write must be bytes, or a view or array of single bytes")
        self._file.write(record)
        self._whole_bytes += len(record)

    def flush(self) -> None:
        """Hand buffered frames to the system, for a reader at the other end of a pipe."""
        self._file.flush()

    def close(self) -> None:
        """Write what is buffered and give the file its name; a second call does nothing."""
        if self._is_closed:
            return
        try:
            self._file.flush()
            if self._beside is not None:
                self._file.truncate(self._whole_bytes)  # Ctrl-C may have cut the last record
            if self._is_owned:
                self._file.close()
            if self._beside is not None and self._final is not None:
                os.replace(self._beside, self._final)
        except OSError:
            self.discard()
            raise
        self._is_closed = True

    def discard(self) -> None:
        """Drop the file; one that had the name before is left as it was."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._is_owned:
            with suppress(OSError):
                self._file.close()
        if self._beside is not None:
            with suppress(FileNotFoundError):
                os.unlink(self._beside)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None or not issubclass(kind, Exception):
            self.close()
        else:
            self.discard()


def lengths_to_write(frame: bytes | bytearray | memoryview, snaplen_bytes: int,
                     original_bytes: int | None) -> tuple[int, int]:
    """Check the lengths of a frame to be written; returns the captured and the original length."""
    size = len(frame)
    original = size if original_bytes is None else original_bytes
    if not size <= original < 2**32:
        raise ValueError(f"original_bytes is {original} for a frame of {size} bytes; it cannot be shorter")
    captured = min(size, snaplen_bytes) if snaplen_bytes else size
    if captured > MAX_RECORD_BYTES - 1024:
        raise ValueError(f"a frame of {size} bytes is too long for a capture; the limit is 16 MiB less 1 KiB")
    return captured, original
