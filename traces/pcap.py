"""Captures: open one of any kind, iterate its frames, write one. Import all that concerns files from here.

>>> from traces.pcap import open_capture
>>> with open_capture("run.pcapng") as capture:           # doctest: +SKIP
...     for frame in capture:
...         print(frame.number, frame.time_ns, frame.interface.name, frame.data.hex())

Owns the choice of format, by the first bytes and never by the file's name, and the classic pcap format
(draft-ietf-opsawg-pcap). `traces.pcapng` owns the other. Knows nothing of what is in a frame. Time is integers.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from operator import index
from typing import BinaryIO, Self

from traces.captureio import (
    MAX_RECORD_BYTES,
    PS_PER_S,
    CaptureError,
    CaptureWriter,
    Frame,
    Interface,
    LinkType,
    Source,
    lengths_to_write,
)
from traces.pcapng import SECTION_MAGIC, PcapngReader, PcapngWriter

__all__ = ["Capture", "CaptureError", "Frame", "Interface", "LinkType", "PcapWriter", "PcapngWriter", "open_capture"]

MAGICS = {
    b"\xd4\xc3\xb2\xa1": ("<", 1_000_000),
    b"\xa1\xb2\xc3\xd4": (">", 1_000_000),
    b"\x4d\x3c\xb2\xa1": ("<", 1_000_000_000),
    b"\xa1\xb2\x3c\x4d": (">", 1_000_000_000),
}
"""First bytes of classic pcap: byte order, ticks per second."""

_HINTS = {
    b"\x34\xcd\xb2\xa1": "it is a modified pcap, convert it with editcap -F pcapng",
    b"\xa1\xb2\xcd\x34": "it is a modified pcap, convert it with editcap -F pcapng",
    b"\x28\xb5\x2f\xfd": "it is zstd data, decompress it with zstd -d",
    b"\x04\x22\x4d\x18": "it is lz4 data, decompress it with lz4 -d",
    b"\xfd7zX": "it is xz data, decompress it with xz -d",
    b"BZh9": "it is bzip2 data, decompress it with bzip2 -d",
    b"snoo": "it is a snoop capture, convert it with editcap -F pcapng",
}

_HEADER_BYTES = 24
_RECORD_BYTES = 16

_new_frame = tuple.__new__  # a third of the time of Frame(...)


class Capture:
    """An open capture: an iterator over its frames, once, forward, in flat memory; and a context manager.

    Attributes
    ----------
    name : str
        The file as the caller named it.
    format : {'pcap', 'pcapng'}
    interfaces : list of Interface
        Indexed by `Frame.interface_id`. Classic pcap has one. A pcapng file tells of an interface before its
        first frame, so the list grows during the iteration, as do its counters of lost frames.
    """

    def __init__(self, source: Source):
        self.name = source.name
        self.interfaces: list[Interface] = []
        self._source = source
        self._pcapng: PcapngReader | None = None
        magic = source.buffer[:4]
        if magic == SECTION_MAGIC:
            self.format = "pcapng"
            self._pcapng = PcapngReader(source, self.interfaces)
            self._frames = self._pcapng.frames()
        elif magic in MAGICS:
            self.format = "pcap"
            self._frames = _classic_frames(source, self._on_classic_header(*MAGICS[magic]), MAGICS[magic][0])
        elif not magic:
            raise CaptureError(f"{self.name} is empty, a capture has a header of at least {_HEADER_BYTES} bytes",
                               self.name)
        else:
            reason = _HINTS.get(magic, "a pcap begins with a1b2c3d4 or a1b23c4d in either byte order, a pcapng with "
                                       "0a0d0d0a")
            inside = "gunzipped, " if source.is_gzip else ""
            raise CaptureError(f"{self.name} is not a capture that this reads: {inside}it begins with {magic.hex()}, "
                               f"{reason}", self.name)

    @property
    def bytes_read(self) -> int:
        """Bytes taken from the file so far, by chunks: what a progress bar needs."""
        return self._source.bytes_read

    @property
    def application(self) -> str | None:
        """The program that wrote the current pcapng section, if it tells."""
        return self._pcapng.application if self._pcapng else None

    @property
    def comment(self) -> str | None:
        """The comment on the current pcapng section."""
        return self._pcapng.comment if self._pcapng else None

    def _on_classic_header(self, order: str, ticks_per_second: int) -> Interface:
        source = self._source
        if not source.fill(_HEADER_BYTES):
            raise source.error(f"the file ends inside its header, {len(source.buffer)} of {_HEADER_BYTES} bytes are "
                               "there")
        _, major, minor, _, _, snaplen, link = struct.unpack_from(order + "IHHIIII", source.buffer)
        if (major, minor) != (2, 4):
            raise source.error(f"pcap version {major}.{minor} is not read here, only 2.4; convert it with "
                               "editcap -F pcapng")
        # the high half of the link type tells the FCS length in 16-bit words, where bit 26 says that it is known
        interface = Interface(0, link_type=link & 0xFFFF, snaplen_bytes=snaplen, ticks_per_second=ticks_per_second,
                              fcs_bytes=(link >> 28) * 2 if link & 0x04000000 else None)
        self.interfaces.append(interface)
        source.position = _HEADER_BYTES
        return interface

    def __iter__(self) -> Iterator[Frame]:
        return self._frames

    def __next__(self) -> Frame:
        return next(self._frames)

    def close(self) -> None:
        """End the iteration and close the file; standard input and file objects are left open."""
        self._frames.close()  # type: ignore[attr-defined]
        self._source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_capture(path: str | os.PathLike[str] | BinaryIO) -> Capture:
    """Open a pcap (microseconds or nanoseconds) or pcapng file of either byte order, gzip-compressed or not.

    Parameters
    ----------
    path : str, PathLike or binary file object
        ``-`` is standard input, which may be a live pipe.

    Returns
    -------
    Capture
        An iterator of `Frame` and a context manager.

    Raises
    ------
    CaptureError
        If the file cannot be opened or does not begin as a capture; by the iteration, after the last whole frame,
        if the file is cut or broken later.
    """
    source = Source(path)
    try:
        return Capture(source)
    except BaseException:
        source.close()
        raise


def _classic_frames(source: Source, interface: Interface, order: str) -> Iterator[Frame]:
    unpack = struct.Struct(order + "4I").unpack_from
    per_second = interface.ticks_per_second
    ps_per_tick = PS_PER_S // per_second
    number = captured = 0
    while True:
        buffer, position = source.buffer, source.position
        limit, is_header = len(buffer), False
        while limit - position >= _RECORD_BYTES:
            seconds, fraction, captured, original = unpack(buffer, position)
            start = position + _RECORD_BYTES
            stop = start + captured
            if stop > limit or captured > MAX_RECORD_BYTES:
                is_header = True
                break
            number += 1
            ticks = seconds * per_second + fraction
            yield _new_frame(Frame, (number, ticks * ps_per_tick, ticks, interface, buffer[start:stop], original,
                                     None, None, None))
            position = stop
        source.position, source.frames_read = position, number
        if not is_header:
            if not source.fill(1):
                return
            if not source.fill(_RECORD_BYTES):
                raise source.error(f"the file ends inside the header of a frame, {len(source.buffer)} of its "
                                   f"{_RECORD_BYTES} bytes are there")
        elif captured > MAX_RECORD_BYTES:
            raise source.error(f"a frame claims an absurd length of {captured} bytes, the limit is {MAX_RECORD_BYTES}")
        elif not source.fill(_RECORD_BYTES + captured):
            raise source.error(f"the file ends inside a frame, {len(source.buffer) - _RECORD_BYTES} of its {captured} "
                               "bytes are there")


class PcapWriter(CaptureWriter):
    """Writes a classic little-endian pcap file, for tools that do not read pcapng.

    Parameters
    ----------
    path : str, PathLike or binary file object
        See `CaptureWriter`: written beside and renamed by `close`; ``-`` is standard output.
    link_type : int
    snaplen : int
        Longer frames are cut to this many bytes.
    resolution_digits : {9, 6}
        Nanoseconds, or microseconds for old tools.
    """

    def __init__(self, path: str | os.PathLike[str] | BinaryIO, *, link_type: int = LinkType.ETHERNET,
                 snaplen: int = 262_144, resolution_digits: int = 9):
        if resolution_digits not in (6, 9):
            raise ValueError(f"resolution_digits is {resolution_digits}; classic pcap has 6 or 9")
        if not (0 <= link_type < 2**16 and 0 < snaplen < 2**32):
            raise ValueError(f"link_type {link_type} or snaplen {snaplen} is out of range")
        super().__init__(path)
        self._snaplen = snaplen
        self._per_second = 10**resolution_digits
        magic = 0xA1B23C4D if resolution_digits == 9 else 0xA1B2C3D4
        self._append(struct.pack("<IHHIIII", magic, 2, 4, 0, 0, snaplen, link_type))

    def write(self, time_ps: int, frame: bytes | bytearray | memoryview, *,
              original_bytes: int | None = None) -> None:
        """Append a frame.

        Parameters
        ----------
        time_ps : int
            Picoseconds, floored to the resolution of the file.
        frame : bytes, bytearray or memoryview of bytes
        original_bytes : int, optional
            Length on the link, if `frame` is only its beginning.
        """
        seconds, fraction = divmod(index(time_ps) * self._per_second // PS_PER_S, self._per_second)
        if not 0 <= seconds < 2**32:
            raise ValueError(f"time_ps {time_ps} does not fit in a classic pcap, which has 32 bits of seconds from 0")
        captured, original = lengths_to_write(frame, self._snaplen, original_bytes)
        head = struct.pack("<4I", seconds, fraction, captured, original)
        self._append(b"".join((head, frame[:captured])), _RECORD_BYTES + captured)
