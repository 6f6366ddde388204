"""How many bytes a frame takes on the line, by transport: with all that is really there, or as peers count.

The one place that knows; the loop, the ideal completion time and the bounds all ask here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from emulator import ideal, roce, tcp_rows
from emulator.packet import LINE_ONLY_BYTES
from emulator.world import ROCE, TCP, TTPOE
from ttpoe._jit import kernel
from ttpoe.constants import FCS_BYTES, HEADER_BYTES, MIN_FRAME_BYTES, PREAMBLE_AND_GAP_BYTES
from ttpoe.fsm import Opcode

if TYPE_CHECKING:
    from emulator.config import ScenarioConfig

PEER_CONTROL_BYTES = 64
"""With ``frame_overhead = "peer"`` a data frame is its payload and nothing else, and any answer has 64 bytes, on the
line as in a buffer; PFC frames are as they are. So count simulators such as htsim, whose figures compare with nothing
else."""

ETHERNET, PEER, INFINIBAND, ROCE_V1 = range(4)
"""What is around a frame. RoCEv1 has a GRH of 40 bytes in place of IPv4 and UDP. InfiniBand's have LRH 8 and VCRC 2 in
place of Ethernet 14, IPv4 20, UDP 8, FCS 4, preamble and gap 20; the symbols that delimit them are left out, so all of
a frame is also in the buffer."""
_NOT_INFINIBAND_BYTES = 14 + 20 + 8 + 4 + 20 - (8 + 2)

_PAYLOAD = int(Opcode.PAYLOAD)


@kernel(inline=True)
def is_data_frame(protocol, opcode):
    """1 for a frame with payload."""
    if protocol == TTPOE:
        return opcode == _PAYLOAD
    return opcode < roce.ACKNOWLEDGE


@kernel(export=True, inline=True)
def frame_wire_bytes(protocol, framing, opcode, payload_bytes):
    """Bytes on the line of one frame (int64); ``framing``: one of the four above."""
    if framing == PEER:
        return payload_bytes if is_data_frame(protocol, opcode) else PEER_CONTROL_BYTES
    if protocol == TTPOE:
        return max(HEADER_BYTES + payload_bytes, MIN_FRAME_BYTES) + FCS_BYTES + PREAMBLE_AND_GAP_BYTES
    header_bytes = roce.ETHERNET_GRH_BYTES if framing == ROCE_V1 else roce.ETHERNET_IP_UDP_BYTES
    size = roce.wire_bytes(opcode, payload_bytes, header_bytes)
    return size - _NOT_INFINIBAND_BYTES if framing == INFINIBAND else size


@kernel(export=True, inline=True)
def tcp_wire_bytes(framing, payload_bytes, blocks, third_block):
    """As :func:`frame_wire_bytes`, of TCP: data by its payload, an acknowledgement by its SACK blocks."""
    if framing == PEER:
        return payload_bytes if payload_bytes > 0 else PEER_CONTROL_BYTES
    if payload_bytes > 0:
        return tcp_rows.data_wire_bytes(payload_bytes)
    return tcp_rows.ack_wire_bytes(blocks, third_block)


def mtu_of(transport: str, scenario: ScenarioConfig) -> int:
    """Payload of a transport's full frames."""
    by_protocol = {TTPOE: scenario.ttpoe.mtu_bytes, ROCE: scenario.roce.mtu_bytes, TCP: scenario.tcp.mtu_bytes}
    return by_protocol[scenario.profile(transport).protocol]


def framing_of(transport: str, scenario: ScenarioConfig) -> int:
    """What is around a transport's frames: `ETHERNET`, `PEER`, `INFINIBAND` or `ROCE_V1`."""
    profile = scenario.profile(transport)
    if scenario.frame_overhead == "peer":
        return PEER
    if profile.is_infiniband:
        return INFINIBAND
    return ROCE_V1 if profile.protocol == ROCE and scenario.roce.version == 1 else ETHERNET


def line_only_bytes(transport: str, scenario: ScenarioConfig) -> int:
    """What a frame takes on the line and not in a buffer."""
    return LINE_ONLY_BYTES if framing_of(transport, scenario) in (ETHERNET, ROCE_V1) else 0


def data_wire_bytes(transport: str, scenario: ScenarioConfig) -> int:
    """Bytes on the line of a transport's largest frame."""
    protocol = scenario.profile(transport).protocol
    framing, mtu_bytes = framing_of(transport, scenario), mtu_of(transport, scenario)
    if protocol == TCP:
        largest = tcp_wire_bytes(framing, mtu_bytes, 0, 0)
    else:
        largest = frame_wire_bytes(protocol, framing, _PAYLOAD if protocol == TTPOE else roce.WRITE_ONLY, mtu_bytes)
    return max(int(largest), control_wire_bytes(transport, scenario))


def control_wire_bytes(transport: str, scenario: ScenarioConfig) -> int:
    """Bytes on the line of an acknowledgement, and of all of TTPoE's frames without payload."""
    protocol = scenario.profile(transport).protocol
    if protocol == TCP:
        return int(tcp_wire_bytes(framing_of(transport, scenario), 0, 0, 0))
    opcode = int(Opcode.ACK) if protocol == TTPOE else roce.ACKNOWLEDGE
    return int(frame_wire_bytes(protocol, framing_of(transport, scenario), opcode, 0))


def message_frames(
    protocol: int, mtu_bytes: int, size_bytes: int, framing: int = ETHERNET, is_selective: bool = False
) -> ideal.Frames:
    """Bytes on the line of a message's data frames; where RoCE is selective, each is a WRITE of its own."""
    count = -(-size_bytes // mtu_bytes)
    last_bytes = size_bytes - (count - 1) * mtu_bytes
    first_bytes = min(mtu_bytes, size_bytes)
    if protocol == TCP:
        full, last = (int(tcp_wire_bytes(framing, payload, 0, 0)) for payload in (first_bytes, last_bytes))
        return ideal.Frames(count, full, full, last)
    opcodes = (_PAYLOAD,) * 3
    if protocol == ROCE and is_selective:
        opcodes = (roce.WRITE_ONLY,) * 3
    elif protocol == ROCE:
        opcodes = (roce.WRITE_FIRST if count > 1 else roce.WRITE_ONLY, roce.WRITE_MIDDLE, roce.WRITE_LAST)
    first, middle, last = (
        int(frame_wire_bytes(protocol, framing, opcode, payload))
        for opcode, payload in zip(opcodes, (first_bytes, first_bytes, last_bytes), strict=True)
    )
    return ideal.Frames(count, first, middle, last)


def message_wire_bytes(protocol: int, mtu_bytes: int, size_bytes: int) -> np.ndarray:
    """int64 (n,): bytes on the line of each data frame of a message, with all that is really there."""
    frames = message_frames(protocol, mtu_bytes, size_bytes)
    wire = np.full(frames.count, frames.middle, np.int64)
    wire[-1] = frames.last
    wire[0] = frames.first
    return wire
