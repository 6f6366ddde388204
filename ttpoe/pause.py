"""PAUSE (IEEE 802.3x, annex 31B) and PFC (802.1Qbb): the frames, and what a port that honours them has been told.

Real interfaces take these frames and stop by themselves; virtual ones hand them on and do nothing, so there the driver
stops. Sans-I/O: the caller brings frames and the clock.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from ttpoe.constants import (
    ETHERNET_HEADER_BYTES,
    ETHERTYPE_MAC_CONTROL,
    MIN_ETHERNET_BYTES,
    OPCODE_PAUSE,
    OPCODE_PFC,
    PAUSE_DESTINATION,
    PAUSE_QUANTUM_BITS,
)
from ttpoe.units import PS_PER_S

ALL = -1
"""In place of a priority: PAUSE stops them all."""
PRIORITIES = 8
MAX_QUANTA = 0xFFFF


def parse_mac_control(body: bytes | bytearray | memoryview) -> tuple[int, dict[int, int] | None]:
    """Read what follows the EtherType of a MAC control frame.

    Returns
    -------
    tuple
        Opcode, or -1 if there is none; and the quanta for each priority that is named, `ALL` for a PAUSE, or None if
        the frame is cut short or of another kind.
    """
    if len(body) < 2:
        return -1, None
    opcode = body[0] << 8 | body[1]
    if opcode == OPCODE_PAUSE and len(body) >= 4:
        return opcode, {ALL: body[2] << 8 | body[3]}
    if opcode == OPCODE_PFC and len(body) >= 4 + 2 * PRIORITIES:
        enabled, *times = struct.unpack_from(f">{1 + PRIORITIES}H", body, 2)
        return opcode, {priority: quanta for priority, quanta in enumerate(times) if enabled >> priority & 1}
    return opcode, None


def build_pause(src_mac: int, quanta: Mapping[int, int]) -> bytes:
    """PFC frame with quanta by priority, or a PAUSE if the one priority is `ALL`; padded to 60 bytes, without FCS."""
    if any(not 0 <= time <= MAX_QUANTA for time in quanta.values()):
        raise ValueError(f"a pause of {max(quanta.values())} quanta does not fit into a frame; at most {MAX_QUANTA} do")
    if ALL in quanta:
        body = struct.pack(">2H", OPCODE_PAUSE, quanta[ALL])
    else:
        times = [quanta.get(priority, 0) for priority in range(PRIORITIES)]
        enabled = sum(1 << priority for priority in quanta)
        body = struct.pack(f">{2 + PRIORITIES}H", OPCODE_PFC, enabled, *times)
    head = PAUSE_DESTINATION.to_bytes(6, "big") + src_mac.to_bytes(6, "big")
    return (head + ETHERTYPE_MAC_CONTROL.to_bytes(2, "big") + body).ljust(MIN_ETHERNET_BYTES, b"\0")


def quanta_of(time_ps: int, rate_bps: int) -> int:
    """Quanta that last for a time at least."""
    return -(-time_ps * rate_bps // (PAUSE_QUANTUM_BITS * PS_PER_S))


class PortPause:
    """Until when a port must not send.

    Parameters
    ----------
    mac : int
        Our address.
    rate_bps : int
        Rate of the line: a quantum is 512 bit times.
    priority : int
        Priority of our frames, for PFC. PAUSE stops any.

    Attributes
    ----------
    rate_bps : int
    pauses, resumes : int
        Frames that told us to stop (or to stay so for longer), and those that let us go on before the time.
    malformed : int
        MAC control frames that are cut short, for somebody else, or of an unknown opcode.
    """

    def __init__(self, mac: int, rate_bps: int, priority: int) -> None:
        self.rate_bps = rate_bps
        self.pauses = self.resumes = self.malformed = 0
        self._destinations = (PAUSE_DESTINATION, mac)
        self._priority = priority
        self._until_ps = {ALL: 0, priority: 0}
        self._paused_ps = self._seen_ps = 0

    def take(self, frame: bytes | bytearray | memoryview, now_ps: int) -> None:
        """Take a MAC control frame, from its destination MAC on. PFC for other priorities changes nothing."""
        _, quanta = parse_mac_control(frame[ETHERNET_HEADER_BYTES:])
        if quanta is None or int.from_bytes(frame[:6], "big") not in self._destinations:
            self.malformed += 1
            return
        for priority in quanta.keys() & self._until_ps.keys():
            self._count_to(now_ps)
            if quanta[priority] == 0:
                self.resumes += 1
            else:
                self.pauses += 1
            bits = quanta[priority] * PAUSE_QUANTUM_BITS
            self._until_ps[priority] = now_ps + -(-bits * PS_PER_S // self.rate_bps)

    @property
    def until_ps(self) -> int:
        """When the port may send again."""
        return max(self._until_ps.values())

    def is_paused(self, now_ps: int) -> bool:
        """Whether the port must not send now."""
        return now_ps < self.until_ps

    def paused_ps(self, now_ps: int) -> int:
        """Time that the port has been paused, in all."""
        self._count_to(now_ps)
        return self._paused_ps

    def _count_to(self, now_ps: int) -> None:
        self._paused_ps += max(0, min(now_ps, self.until_ps) - self._seen_ps)
        self._seen_ps = max(now_ps, self._seen_ps)
