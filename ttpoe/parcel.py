"""A file inside a link's bytes: what ``ttpoe send`` and ``ttpoe recv`` say to each other, laid out in docs/formats.md.

Sans-I/O: bytes in, bytes out. Knows nothing of links, sockets and directories; whatever a peer sends, nothing but
ParcelError is raised, and no more than a record's head is kept.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

MAGIC, REPLY_MAGIC, VERSION = b"TTPF", b"TTPR", 1
MAX_NAME_BYTES = 240
"""Of 255 that file systems hold; the rest is for what a temporary name adds."""
MAX_RECORD_BYTES = 1 << 20
_SIZE_UNKNOWN = 2**64 - 1
_HEAD, _RECORD, _END = struct.Struct(">4sBBHQ"), struct.Struct(">BI"), struct.Struct(">Q32s")
_REPLY = struct.Struct(">4sBBH")
_CRC_BYTES = 4


class ParcelError(ValueError):
    """The peer's bytes are not a parcel of ours, or its name is one that we do not take."""


class Record(IntEnum):
    """Kinds of records after the header."""

    DATA = 1
    END = 2  # size and SHA-256
    KEEPALIVE = 3  # empty: the sender lives, but has nothing to send


class Verdict(IntEnum):
    """What the receiver made of a parcel."""

    STORED = 0
    REFUSED = 1
    CHANGED = 2  # size or SHA-256 differ
    FAILED = 3


@dataclass(frozen=True)
class Header:
    """What comes first. ``name`` is "" and ``size_bytes`` None where the sender does not know them."""

    name: str
    size_bytes: int | None


@dataclass(frozen=True)
class End:
    """What comes last."""

    size_bytes: int
    sha256: bytes


Item = Header | bytes | End

KEEPALIVE = _RECORD.pack(Record.KEEPALIVE, 0)


def encode_header(header: Header) -> bytes:
    """Bytes of a header, its CRC-32 behind it."""
    name = header.name.encode("utf-8", "replace")
    size = _SIZE_UNKNOWN if header.size_bytes is None else header.size_bytes
    head = _HEAD.pack(MAGIC, VERSION, 0, len(name), size) + name
    return head + zlib.crc32(head).to_bytes(_CRC_BYTES, "big")


def encode_data(data: bytes) -> bytes:
    """A record of data, 1 byte to `MAX_RECORD_BYTES`."""
    return _RECORD.pack(Record.DATA, len(data)) + data


def encode_end(end: End) -> bytes:
    """The last record."""
    return _RECORD.pack(Record.END, _END.size) + _END.pack(end.size_bytes, end.sha256)


class Decoder:
    """Takes a parcel apart as its bytes come, in pieces of any size."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._data_left = 0  # of the record that is being read
        self._has_header = False
        self.has_ended = False

    def feed(self, data: bytes) -> Iterator[Item]:
        """What is complete by now: the header, then pieces of data, then the end; raises ParcelError."""
        self._buffer += data
        buffer = self._buffer
        while True:
            if self._data_left:
                piece = bytes(buffer[: self._data_left])
                if not piece:
                    return
                del buffer[: len(piece)]
                self._data_left -= len(piece)
                yield piece
                continue
            item = self._next_record() if self._has_header else self._read_header()
            if item is None:
                return
            if not isinstance(item, Record):
                yield item

    def _read_header(self) -> Header | None:
        buffer = self._buffer
        if bytes(buffer[:4]) != MAGIC[: len(buffer)]:
            raise ParcelError("the peer does not speak the format of `ttpoe send`")
        if len(buffer) < _HEAD.size:
            return None
        _, version, flags, name_bytes, size = _HEAD.unpack_from(buffer)
        if version != VERSION or flags:
            raise ParcelError(f"the peer sends version {version} (flags {flags}) of the format; we know {VERSION}")
        if name_bytes > 255:
            raise ParcelError(f"the sender's name has {name_bytes} bytes; 255 is the limit")
        end = _HEAD.size + name_bytes
        if len(buffer) < end + _CRC_BYTES:
            return None
        if zlib.crc32(buffer[:end]) != int.from_bytes(buffer[end : end + _CRC_BYTES], "big"):
            raise ParcelError("the header arrived changed (CRC-32)")
        try:
            name = buffer[_HEAD.size : end].decode()
        except UnicodeDecodeError:
            raise ParcelError("the sender's name is not UTF-8") from None
        del buffer[: end + _CRC_BYTES]
        self._has_header = True
        return Header(name, None if size == _SIZE_UNKNOWN else size)

    def _next_record(self) -> End | Record | None:
        """Read the head of a record, and all of it but for data."""
        buffer = self._buffer
        if len(buffer) < _RECORD.size:
            return None
        kind, length = _RECORD.unpack_from(buffer)
        if kind == Record.KEEPALIVE and length == 0:
            del buffer[: _RECORD.size]
            return Record.KEEPALIVE
        if self.has_ended:
            raise ParcelError("there is more behind the end")
        if kind == Record.DATA and 1 <= length <= MAX_RECORD_BYTES:
            del buffer[: _RECORD.size]
            self._data_left = length
            return Record.DATA
        if kind == Record.END and length == _END.size:
            if len(buffer) < _RECORD.size + length:
                return None
            size, digest = _END.unpack_from(buffer, _RECORD.size)
            del buffer[: _RECORD.size + length]
            self.has_ended = True
            return End(size, digest)
        raise ParcelError(f"the record arrived changed (kind {kind}, {length} bytes)")


@dataclass(frozen=True)
class Reply:
    """The receiver's answer, with a sentence for people."""

    verdict: Verdict
    text: str = ""


def encode_reply(reply: Reply) -> bytes:
    """Bytes of a reply; a long text is cut."""
    text = reply.text.encode("utf-8", "replace")[:1000].decode("utf-8", "ignore").encode()
    return _REPLY.pack(REPLY_MAGIC, VERSION, reply.verdict, len(text)) + text


def decode_reply(data: bytes) -> Reply | None:
    """The reply in ``data``, or None if more must come; raises ParcelError."""
    if data[:4] != REPLY_MAGIC[: len(data)]:
        raise ParcelError("the peer does not answer in the format of `ttpoe recv`")
    if len(data) < _REPLY.size:
        return None
    _, version, verdict, length = _REPLY.unpack_from(data)
    if version != VERSION or verdict not in tuple(Verdict) or length > 1000:
        raise ParcelError("the peer's answer arrived changed")
    if len(data) < _REPLY.size + length:
        return None
    text = data[_REPLY.size : _REPLY.size + length].decode("utf-8", "replace")
    return Reply(Verdict(verdict), "".join(c if c.isprintable() else "?" for c in text))


def safe_name(name: str) -> str:
    """Name for a file in a directory of the receiver's choice: the last part of the sender's path, if that is harmless.

    Raises
    ------
    ParcelError
        There is none, it is hidden (a dot in front), too long, or has characters that steer terminals.
    """
    base = name.replace("\\", "/").rpartition("/")[2]
    if not base:
        raise ParcelError("the sender gave no name; give --out a file name")
    if base.startswith("."):
        raise ParcelError(f"the sender's name {base!r} begins with a dot; give --out a file name")
    if not base.isprintable():
        raise ParcelError(f"the sender's name {base!r} has control characters; give --out a file name")
    if len(base.encode()) > MAX_NAME_BYTES:
        raise ParcelError(f"the sender's name has more than {MAX_NAME_BYTES} bytes; give --out a file name")
    return base
