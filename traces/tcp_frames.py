"""iWARP packets of the emulator become frames: IPv4, TCP with SACK options, MPA, DDP and RDMAP, all checksums right.

Conventions beyond those of :mod:`traces.frames`:

- TCP: ports 0xC000 to 0xFFFF, by seed and end of flow, both ways; initial sequence numbers likewise. The handshake, and
  MPA's, are not part of a run. The window field is what was granted, as if scaled by 2^14 (the most RFC 7323 has).
- MPA: no markers, CRC on (RFC 5044). DDP: tagged, version 1, a message's last packet with the L bit; RDMAP: version
  1, RDMA Write; STag 0x10000 + flow, tagged offset (flow + 1) << 40 and what lies before (RFC 5041, 5040).
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING

import numpy as np

from emulator.tcp_rows import FLAG_PSH, fpdu_bytes
from ttpoe._jit import kernel

if TYPE_CHECKING:
    from collections.abc import Sequence

TCP = 6
WINDOW_SHIFT = 14
FPDU_HEAD_BYTES = 2 + 14
PAYLOAD_OFFSET = 14 + 20 + 20 + FPDU_HEAD_BYTES
"""Where a data frame's payload begins."""

_HEADER = struct.Struct(">HHIIBBHHH")
_PSEUDO = struct.Struct(">IIHH")
_FPDU_HEAD = struct.Struct(">HBBIQ")


def _crc32c_table() -> np.ndarray:
    table = np.arange(256, dtype=np.int64)
    for _ in range(8):
        table = np.where(table & 1, table >> 1 ^ 0x82F63B78, table >> 1)
    return table


_TABLE = _crc32c_table()


@kernel(export=True)
def crc32c(data):
    """CRC-32C (Castagnoli) of bytes, as RFC 3720 defines it and MPA uses it.

    Parameters
    ----------
    data : uint8 array

    Returns
    -------
    int64
    """
    crc = 0xFFFFFFFF
    for k in range(len(data)):
        crc = _TABLE[(crc ^ int(data[k])) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def _checksum(data: bytes) -> int:
    """RFC 1071: the ones' complement sum is the remainder by 2**16 - 1, 0 as 0xFFFF."""
    return 0xFFFF - (int.from_bytes(data if len(data) % 2 == 0 else data + b"\0", "big") % 0xFFFF or 0xFFFF)


class TcpFrames:
    """Turns TCP rows into what follows the Ethernet header.

    Parameters
    ----------
    seed : int
    mtu_bytes, window_bytes : int
        Of the scenario's ``tcp``.
    message_bytes : sequence of int
        Message of each flow.
    """

    def __init__(self, *, seed: int, mtu_bytes: int, window_bytes: int, message_bytes: Sequence[int]) -> None:
        self._seed = seed
        self._mtu_bytes = mtu_bytes
        self._full_bytes = int(fpdu_bytes(mtu_bytes))
        self._window = min(max(window_bytes >> WINDOW_SHIFT, 1), 0xFFFF)
        self._message_bytes = message_bytes

    def _port(self, end: int) -> int:
        return 0xC000 | zlib.crc32(f"{self._seed} {end}".encode()) & 0x3FFF

    def _first_seq(self, end: int) -> int:
        return zlib.crc32(f"{self._seed} seq {end}".encode()) + 1

    def _offset(self, flow: int, index: int) -> int:
        """Bytes of the stream before packet ``index`` of a flow's message."""
        count = -(-self._message_bytes[flow] // self._mtu_bytes)
        if index < count:
            return index * self._full_bytes
        last_bytes = self._message_bytes[flow] - (count - 1) * self._mtu_bytes
        return (count - 1) * self._full_bytes + int(fpdu_bytes(last_bytes))

    def build(
        self, src_ip: int, dst_ip: int, end: int, traffic_class: int, flags: int, third_block: int, index: int,
        blocks: int, payload: bytes,
    ) -> bytes:  # fmt: skip
        """The IPv4 packet of a TCP row that is for ``end``."""
        flow, source = end >> 1, end ^ 1
        options = body = b""
        if payload:
            seq, ack = self._first_seq(source) + self._offset(flow, index), self._first_seq(end)
            body = self._fpdu(flow, index, flags, payload)
        else:
            seq, ack = self._first_seq(source), self._first_seq(end) + self._offset(flow, index)
            options = self._sack(self._first_seq(end), flow, index, blocks, third_block)
        header = _HEADER.pack(
            self._port(source), self._port(end), seq & 0xFFFFFFFF, ack & 0xFFFFFFFF, 5 + len(options) // 4 << 4, flags,
            self._window, 0, 0,
        )  # fmt: skip
        segment = header + options + body
        checksum = _checksum(_PSEUDO.pack(src_ip, dst_ip, TCP, len(segment)) + segment)
        ip = struct.pack(
            ">BBHHHBBHII", 0x45, traffic_class, 20 + len(segment), 0, 0x4000, 64, TCP, 0, src_ip, dst_ip
        )
        ip = ip[:10] + _checksum(ip).to_bytes(2, "big") + ip[12:]
        return ip + segment[:16] + checksum.to_bytes(2, "big") + segment[18:]

    def _fpdu(self, flow: int, index: int, flags: int, payload: bytes) -> bytes:
        """RFC 5044, 4.4: length, ULPDU, pad, CRC."""
        is_last = 0x40 if flags & FLAG_PSH else 0
        offset = (flow + 1 << 40) + index * self._mtu_bytes
        head = _FPDU_HEAD.pack(14 + len(payload), 0x81 | is_last, 0x40, 0x10000 + flow, offset)
        body = head + payload + bytes(-len(payload) % 4)
        return body + int(crc32c(np.frombuffer(body, np.uint8))).to_bytes(4, "little")

    def _sack(self, first_seq: int, flow: int, index: int, blocks: int, third_block: int) -> bytes:
        """RFC 2018, 3, behind two NOPs; nothing without a block."""
        edges = []
        for block in (blocks & 0xFFFFFFFF, blocks >> 32, third_block):
            if block:
                edges += [index + (block & 0xFFFF), index + (block >> 16)]
        if not edges:
            return b""
        seqs = [(first_seq + self._offset(flow, edge)) & 0xFFFFFFFF for edge in edges]
        return struct.pack(f">BBBB{len(seqs)}I", 1, 1, 5, 2 + 4 * len(seqs), *seqs)
