"""How many bytes a frame takes on the line, by transport: with all that is really there, or as peers count.

The one place that knows; the loop, the ideal completion time and the bounds all ask here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from emulator import ideal, roce
from emulator.packet import LINE_ONLY_BYTES
from emulator.transports import PROFILES
from emulator.world import ROCE, TTPOE
from ttpoe._jit import kernel
from ttpoe.constants import FCS_BYTES, HEADER_BYTES, MIN_FRAME_BYTES, PREAMBLE_AND_GAP_BYTES
from ttpoe.fsm import Opcode

if TYPE_CHECKING:
    from emulator.config import ScenarioConfig

PEER_CONTROL_BYTES = 64
"""With ``frame_overhead = "peer"`` a data frame is its payload and nothing else, and any answer has 64 bytes, on the
line as in a buffer; PFC frames are as they are. So count simulators such as htsim, whose figures compare with nothing
else."""

_PAYLOAD = int(Opcode.PAYLOAD)


@kernel(inline=True)
def is_data_frame(protocol, opcode):
    """1 for a frame with payload."""
    if protocol == TTPOE:
        return opcode == _PAYLOAD
    return opcode != roce.ACKNOWLEDGE


@kernel(export=True, inline=True)
def frame_wire_bytes(protocol, is_peer, opcode, payload_bytes):
    """Bytes on the line of one frame (int64); ``is_peer``: 1 to count as peers do."""
    if is_peer != 0:
        return payload_bytes if is_data_frame(protocol, opcode) else PEER_CONTROL_BYTES
    if protocol == TTPOE:
        return max(HEADER_BYTES + payload_bytes, MIN_FRAME_BYTES) + FCS_BYTES + PREAMBLE_AND_GAP_BYTES
    return roce.wire_bytes(opcode, payload_bytes)


def mtu_of(transport: str, scenario: ScenarioConfig) -> int:
    """Payload of a transport's full frames."""
    return scenario.ttpoe.mtu_bytes if PROFILES[transport].is_ttpoe else scenario.roce.mtu_bytes


def line_only_bytes(scenario: ScenarioConfig) -> int:
    """What a frame takes on the line and not in a buffer."""
    return 0 if scenario.frame_overhead == "peer" else LINE_ONLY_BYTES


def data_wire_bytes(transport: str, scenario: ScenarioConfig) -> int:
    """Bytes on the line of a transport's largest frame."""
    protocol = PROFILES[transport].protocol
    opcode = _PAYLOAD if protocol == TTPOE else roce.WRITE_ONLY
    is_peer = scenario.frame_overhead == "peer"
    return max(
        int(frame_wire_bytes(protocol, is_peer, opcode, mtu_of(transport, scenario))),
        control_wire_bytes(transport, scenario),
    )


def control_wire_bytes(transport: str, scenario: ScenarioConfig) -> int:
    """Bytes on the line of an acknowledgement, and of all of TTPoE's frames without payload."""
    protocol = PROFILES[transport].protocol
    opcode = int(Opcode.ACK) if protocol == TTPOE else roce.ACKNOWLEDGE
    return int(frame_wire_bytes(protocol, scenario.frame_overhead == "peer", opcode, 0))


def message_frames(protocol: int, mtu_bytes: int, size_bytes: int, is_peer: bool = False) -> ideal.Frames:
    """Bytes on the line of a message's data frames."""
    count = -(-size_bytes // mtu_bytes)
    last_bytes = size_bytes - (count - 1) * mtu_bytes
    first_bytes = min(mtu_bytes, size_bytes)
    opcodes = (_PAYLOAD,) * 3
    if protocol == ROCE:
        opcodes = (roce.WRITE_FIRST if count > 1 else roce.WRITE_ONLY, roce.WRITE_MIDDLE, roce.WRITE_LAST)
    first, middle, last = (
        int(frame_wire_bytes(protocol, is_peer, opcode, payload))
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
