"""The pcapng format: sections, interfaces and packet blocks to frames, and frames to blocks.

Owns the block layout of draft-ietf-opsawg-pcapng (sections 3 and 4). Does not open files and decides no format:
that is `traces.pcap`, where users import from.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from math import gcd
from operator import index
from typing import BinaryIO, NamedTuple

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

SECTION_MAGIC = b"\x0a\x0d\x0d\x0a"
BYTE_ORDERS = {b"\x4d\x3c\x2b\x1a": "<", b"\x1a\x2b\x3c\x4d": ">"}

SECTION, INTERFACE, OLD_PACKET, SIMPLE_PACKET, STATISTICS, PACKET = 0x0A0D0D0A, 1, 2, 3, 5, 6
_MIN_BYTES = {SECTION: 28, INTERFACE: 20, OLD_PACKET: 32, SIMPLE_PACKET: 16, STATISTICS: 24, PACKET: 32}
_NAMES = {SECTION: "section header", INTERFACE: "interface description", OLD_PACKET: "packet",
          SIMPLE_PACKET: "simple packet", STATISTICS: "interface statistics", PACKET: "enhanced packet"}

_END, _COMMENT = 0, 1
_USER_APPLICATION = 4  # section header
_NAME, _DESCRIPTION, _SPEED, _RESOLUTION, _FCS_LENGTH, _OFFSET = 2, 3, 8, 9, 13, 14  # interface description
_FLAGS, _DROP_COUNT = 2, 4  # packet
_RECEIVED, _DROPPED = 4, 5  # interface statistics

_new_frame = tuple.__new__  # a third of the time of Frame(...)


class _Clock(NamedTuple):
    """An interface of the current section with the fraction that turns its ticks into picoseconds."""

    interface: Interface
    numerator: int
    denominator: int
    offset_ps: int


class PcapngReader:
    """The frames of a pcapng file; reads the first section header at once.

    Parameters
    ----------
    source : Source
        At the first byte of the file.
    interfaces : list of Interface
        Grows as interface descriptions are read; modified in place.
    """

    def __init__(self, source: Source, interfaces: list[Interface]):
        self.application: str | None = None
        self.comment: str | None = None
        self._source = source
        self._interfaces = interfaces
        self._section = -1
        self._order = "<"
        self._clocks: list[_Clock] = []
        self._on_block()

    def frames(self) -> Iterator[Frame]:
        """Yield frames in file order.

        Raises
        ------
        CaptureError
            After the last whole frame, if the file is cut or broken.
        """
        source, number = self._source, 0
        while True:
            # The common case, a whole enhanced packet block, is in this loop alone; any other leaves it.
            unpack = struct.Struct(self._order + "7I").unpack_from
            unpack_word = struct.Struct(self._order + "I").unpack_from
            clocks, buffer, position = self._clocks, source.buffer, source.position
            known, limit = len(clocks), len(buffer)
            while limit - position >= 28:
                kind, length, interface_id, high, low, captured, original = unpack(buffer, position)
                stop = position + length
                options_bytes = length - ((captured + 35) & ~3)
                if (kind != PACKET or stop > limit or options_bytes < 0 or interface_id >= known or length & 3
                        or length > MAX_RECORD_BYTES or unpack_word(buffer, stop - 4)[0] != length):
                    break
                flags = comment = dropped = None
                if options_bytes:
                    source.position, source.frames_read = position, number
                    flags, comment, dropped = self._packet_options(stop - 4 - options_bytes, stop - 4)
                interface, numerator, denominator, offset_ps = clocks[interface_id]
                ticks = high << 32 | low
                start = position + 28
                number += 1
                yield _new_frame(Frame, (number, ticks * numerator // denominator + offset_ps, ticks, interface,
                                         buffer[start:start + captured], original, flags, comment, dropped))
                position = stop
            source.position, source.frames_read = position, number
            if not source.fill(1):
                return
            if self._on_block() in (SIMPLE_PACKET, OLD_PACKET):
                number += 1
                yield self._old_frame(number)

    def _on_block(self) -> int:
        """Check the next block, read it whole, and react to it and pass it, unless it is a packet; returns its type."""
        source = self._source
        if not source.fill(12):
            raise source.error(f"the file ends inside a block, {len(source.buffer)} bytes of it are there")
        if source.buffer.startswith(SECTION_MAGIC, source.position):
            mark = source.buffer[source.position + 8:source.position + 12]
            if mark not in BYTE_ORDERS:
                raise source.error(f"a section header has the byte order mark {mark.hex()}, not 1a2b3c4d either way")
            self._order = BYTE_ORDERS[mark]
        kind, length = self._unpack("II", 0)
        name, least = f"{_NAMES.get(kind, f'type {kind:#x}')} block", _MIN_BYTES.get(kind, 12)
        if length % 4 or not least <= length <= MAX_RECORD_BYTES:
            raise source.error(f"the {name} claims an absurd length of {length} bytes, it must be a multiple of 4 from "
                               f"{least} to {MAX_RECORD_BYTES}")
        if not source.fill(length):
            raise source.error(f"the file ends inside the {name}, {len(source.buffer)} of its {length} bytes are there")
        trailer, = self._unpack("I", length - 4)
        if trailer != length:
            raise source.error(f"the {name} begins with the length {length} and ends with the length {trailer}")
        if kind == PACKET:
            interface_id, _, _, captured = self._unpack("4I", 8)
            self._check(name, interface_id, captured, length - 32)
        elif kind not in (SIMPLE_PACKET, OLD_PACKET):
            start, stop = source.position, source.position + length
            if kind == SECTION:
                self._on_section(start + 24, stop - 4)
            elif kind == INTERFACE:
                self._on_interface(start + 16, stop - 4)
            elif kind == STATISTICS:
                self._on_statistics(name, start + 20, stop - 4)
            source.position = stop
        return kind

    def _unpack(self, letters: str, offset: int) -> tuple[int, ...]:
        """Numbers at an offset of the current block."""
        return struct.unpack_from(self._order + letters, self._source.buffer, self._source.position + offset)

    def _check(self, name: str, interface_id: int, captured: int, room: int) -> None:
        if interface_id >= len(self._clocks):
            raise self._source.error(f"the {name} names interface {interface_id}, and its section has "
                                     f"{len(self._clocks)} so far")
        if captured > room:
            raise self._source.error(f"the {name} claims {captured} captured bytes and has room for {room}")

    def _options(self, start: int, stop: int) -> Iterator[tuple[int, bytes]]:
        """Code and value of each option between two positions of the buffer."""
        buffer, unpack = self._source.buffer, struct.Struct(self._order + "HH").unpack_from
        while stop - start >= 4:
            code, size = unpack(buffer, start)
            if code == _END:
                return
            start += 4
            if start + size > stop:
                raise self._source.error(f"option {code} of {size} bytes does not fit in its block")
            yield code, buffer[start:start + size]
            start += (size + 3) & ~3

    def _number(self, code: int, value: bytes, letter: str) -> int:
        size = struct.calcsize("=" + letter)
        if len(value) != size:
            raise self._source.error(f"option {code} has {len(value)} bytes, it must have {size}")
        number: int = struct.unpack(self._order + letter, value)[0]
        return number

    def _packet_options(self, start: int, stop: int) -> tuple[int | None, str | None, int | None]:
        flags = comment = dropped = None
        if stop - start == 12:  # most often the flags alone, at a third of the time
            code, size, flags, end = struct.unpack_from(self._order + "HHII", self._source.buffer, start)
            if (code, size, end) == (_FLAGS, 4, _END):
                return flags, None, None
            flags = None
        for code, value in self._options(start, stop):
            if code == _FLAGS:
                flags = self._number(code, value, "I")
            elif code == _COMMENT:
                comment = _text(value) if comment is None else f"{comment}\n{_text(value)}"
            elif code == _DROP_COUNT:
                dropped = self._number(code, value, "Q")
        return flags, comment, dropped

    def _on_section(self, start: int, stop: int) -> None:
        major, minor = self._unpack("HH", 12)
        if major != 1:
            raise self._source.error(f"pcapng version {major}.{minor} is unknown, this reads version 1")
        self._section += 1
        self._clocks = []
        self.application = self.comment = None
        for code, value in self._options(start, stop):
            if code == _USER_APPLICATION:
                self.application = _text(value)
            elif code == _COMMENT:
                self.comment = _text(value)

    def _on_interface(self, start: int, stop: int) -> None:
        link_type, _, snaplen = self._unpack("HHI", 8)
        interface = Interface(len(self._interfaces), link_type=link_type, snaplen_bytes=snaplen,
                              section=self._section, id_in_section=len(self._clocks))
        for code, value in self._options(start, stop):
            if code == _NAME:
                interface.name = _text(value)
            elif code == _DESCRIPTION:
                interface.description = _text(value)
            elif code == _SPEED:
                interface.rate_bps = self._number(code, value, "Q")
            elif code == _FCS_LENGTH:
                interface.fcs_bytes = self._number(code, value, "B")
            elif code == _OFFSET:
                interface.offset_s = self._number(code, value, "q")
            elif code == _RESOLUTION:
                digits = self._number(code, value, "B")
                interface.ticks_per_second = 2 ** (digits & 0x7F) if digits & 0x80 else 10**digits
        common = gcd(PS_PER_S, interface.ticks_per_second)
        self._interfaces.append(interface)
        self._clocks.append(_Clock(interface, PS_PER_S // common, interface.ticks_per_second // common,
                                   interface.offset_s * PS_PER_S))

    def _on_statistics(self, name: str, start: int, stop: int) -> None:
        interface_id, = self._unpack("I", 8)
        self._check(name, interface_id, 0, 0)
        interface = self._clocks[interface_id].interface
        for code, value in self._options(start, stop):
            if code == _RECEIVED:
                interface.received_frames = self._number(code, value, "Q")
            elif code == _DROPPED:
                interface.dropped_frames = self._number(code, value, "Q")

    def _old_frame(self, number: int) -> Frame:
        """Pass the simple or obsolete packet block that comes next, and return its frame."""
        source = self._source
        kind, length, original = self._unpack("III", 0)
        if kind == SIMPLE_PACKET:
            start, comment, drops = 12, None, 0xFFFF
            self._check("simple packet block", 0, 0, 0)
            interface = self._clocks[0].interface
            captured = min(original, interface.snaplen_bytes or original)
            self._check("simple packet block", 0, captured, length - 16)
            flags = ticks = None
            time_ps = 0
        else:
            start = 28
            interface_id, drops, high, low, captured, original = self._unpack("HHIIII", 8)
            self._check("packet block", interface_id, captured, length - 32)
            interface, numerator, denominator, offset_ps = self._clocks[interface_id]
            options = source.position + start + ((captured + 3) & ~3)
            flags, comment, _ = self._packet_options(options, source.position + length - 4)
            ticks = high << 32 | low
            time_ps = ticks * numerator // denominator + offset_ps
        start += source.position
        source.position += length
        return Frame(number, time_ps, ticks, interface, source.buffer[start:start + captured], original, flags, comment,
                     None if drops == 0xFFFF else drops)


def _text(value: bytes) -> str:
    return value.rstrip(b"\0").decode("utf-8", "replace")


class PcapngWriter(CaptureWriter):
    """Writes a pcapng file of one little-endian section; the same on any machine.

    Parameters
    ----------
    path : str, PathLike or binary file object
        See `CaptureWriter`: written beside and renamed by `close`; ``-`` is standard output.
    comment : str, optional
        Kept in the section header, for instance the command that made the file.
    """

    def __init__(self, path: str | os.PathLike[str] | BinaryIO, *, comment: str | None = None):
        options = _option(_COMMENT, comment) + _option(_USER_APPLICATION, f"ttpoe {_version()}")
        super().__init__(path)
        self._interfaces: list[tuple[int, int]] = []  # picoseconds per tick, snap length
        self._append(_block(SECTION, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1), options))

    def add_interface(self, name: str, *, link_type: int = LinkType.ETHERNET, snaplen: int = 0,
                      resolution_digits: int = 9, rate_bps: int | None = None,
                      description: str | None = None) -> int:
        """Describe an interface; may also come after frames of others.

        Parameters
        ----------
        name : str
        link_type : int
        snaplen : int
            Longer frames are cut to this many bytes; 0 is no limit.
        resolution_digits : int
            Timestamps count units of 10 to the minus this many seconds, 0 to 12. At 12 they reach 213 days, so that
            suits emulated time, not the time of day.
        rate_bps : int, optional
            Bit rate.
        description : str, optional

        Returns
        -------
        int
            The id to give to `write`.
        """
        if not 0 <= resolution_digits <= 12:
            raise ValueError(f"resolution_digits is {resolution_digits}; it must be from 0 to 12")
        if not (0 <= link_type < 2**16 and 0 <= snaplen < 2**32 and 0 <= (rate_bps or 0) < 2**64):
            raise ValueError(f"link_type {link_type}, snaplen {snaplen} or rate_bps {rate_bps} is out of range")
        options = _option(_NAME, name) + _option(_DESCRIPTION, description)
        if rate_bps is not None:
            options += _option(_SPEED, struct.pack("<Q", rate_bps))
        options += _option(_RESOLUTION, bytes([resolution_digits]))
        self._append(_block(INTERFACE, struct.pack("<HHI", link_type, 0, snaplen), options))
        self._interfaces.append((10 ** (12 - resolution_digits), snaplen))
        return len(self._interfaces) - 1

    def write(self, interface_id: int, time_ps: int, frame: bytes | bytearray | memoryview, *,
              original_bytes: int | None = None, comment: str | None = None, direction: str | None = None) -> None:
        """Append a frame.

        Parameters
        ----------
        interface_id : int
            From `add_interface`.
        time_ps : int
            Picoseconds, floored to the resolution of the interface.
        frame : bytes, bytearray or memoryview of bytes
        original_bytes : int, optional
            Length on the link, if `frame` is only its beginning.
        comment : str, optional
        direction : {'in', 'out'}, optional
        """
        ps_per_tick, snaplen = self._interface(interface_id)
        ticks = self._ticks(time_ps, ps_per_tick)
        captured, original = lengths_to_write(frame, snaplen, original_bytes)
        options = b""
        if comment is not None or direction is not None:
            if direction not in (None, "in", "out"):
                raise ValueError(f"direction is {direction!r}; it must be 'in', 'out' or None")
            if direction is not None:
                options = _option(_FLAGS, struct.pack("<I", 1 if direction == "in" else 2))
            options += _option(_COMMENT, comment) + bytes(4)
        length = 32 + ((captured + 3) & ~3) + len(options)
        if length > MAX_RECORD_BYTES:
            raise ValueError(f"a frame of {captured} bytes with its comment is too long for a capture")
        head = _PACKET_HEAD(PACKET, length, interface_id, ticks >> 32, ticks & 0xFFFFFFFF, captured, original)
        self._append(b"".join((head, frame[:captured], bytes(-captured % 4), options, _WORD(length))), length)

    def write_statistics(self, interface_id: int, time_ps: int, *, received_frames: int | None = None,
                         dropped_frames: int | None = None) -> None:
        """Append what an interface counted so far: frames seen, and frames lost for want of resources."""
        ps_per_tick, _ = self._interface(interface_id)
        ticks = self._ticks(time_ps, ps_per_tick)
        options = b"".join(_option(code, struct.pack("<Q", count))
                           for code, count in ((_RECEIVED, received_frames), (_DROPPED, dropped_frames))
                           if count is not None)
        self._append(_block(STATISTICS, struct.pack("<3I", interface_id, ticks >> 32, ticks & 0xFFFFFFFF), options))

    def _interface(self, interface_id: int) -> tuple[int, int]:
        if not 0 <= interface_id < len(self._interfaces):
            raise ValueError(f"interface {interface_id} is unknown; this file has {len(self._interfaces)} so far")
        return self._interfaces[interface_id]

    @staticmethod
    def _ticks(time_ps: int, ps_per_tick: int) -> int:
        ticks = index(time_ps) // ps_per_tick  # neither floats nor NumPy integers that wrap
        if not 0 <= ticks < 2**64:
            raise ValueError(f"time_ps {time_ps} does not fit in 64 bits at this interface's resolution; "
                             "it must not be negative, and 12 digits reach 213 days")
        return ticks


_PACKET_HEAD = struct.Struct("<7I").pack
_WORD = struct.Struct("<I").pack


def _option(code: int, value: str | bytes | None) -> bytes:
    if value is None:
        return b""
    data = value.encode("utf-8", "replace") if isinstance(value, str) else value
    if len(data) >= 2**16:
        raise ValueError(f"a name or comment of {len(data)} bytes is too long for a capture; the limit is 65535")
    return struct.pack("<HH", code, len(data)) + data + bytes(-len(data) % 4)


def _block(kind: int, body: bytes, options: bytes) -> bytes:
    tail = options + bytes(4) if options else b""
    length = _WORD(12 + len(body) + len(tail))
    return _WORD(kind) + length + body + tail + length


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version  # slow to import, and readers do not need it

    try:
        return version("ttpoe")
    except PackageNotFoundError:  # run from a source tree that is not installed
        return "(not installed)"


__all__ = ["CaptureError", "PcapngReader", "PcapngWriter"]
