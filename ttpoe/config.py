"""What an endpoint can be told: one frozen, validated dataclass. Knows nothing of how it is used."""

from __future__ import annotations

from dataclasses import dataclass

from ttpoe.constants import MAX_PAYLOAD_BYTES, TOTAL_LENGTH_BASE, WINDOW_BYTES
from ttpoe.units import NEVER, PS_PER_MS


@dataclass(frozen=True, kw_only=True)
class EndpointConfig:
    """Everything that an endpoint can be told; every default is ours, unless a source is named.

    Parameters
    ----------
    mtu_bytes : int
        Largest payload of a frame. The specification allows 1024; more is a jumbo variant that only our own peers
        understand.
    window_bytes : int
        Payload that may wait for its acknowledgement; 10**6 as published for the hardware.
    shared_window : bool
        The window is one for all links of the endpoint, as the hardware's memory is, instead of one for each.
    rto_initial_ps, rto_min_ps, rto_max_ps : int
        Retransmission timeout before the first round-trip sample, its floor, and its ceiling (RFC 6298). Timers under
        about 20 ms misfire on a busy host.
    retry_limit : int
        Timeouts in a row without progress before a link fails. With the defaults a peer that dies is noticed within
        10 s, and a peer that never answered an OPEN within 18 s.
    send_buffer_bytes : int
        What a link holds of its owner's bytes until they are acknowledged; above the window, so that the line does
        not wait for the owner.
    receive_buffer_bytes : int
        What a link holds for its reader. A PAYLOAD for a full buffer is dropped as if lost, and the peer's timeout
        sends it again; a reader that pauses for longer than the peer's retry limit loses the link. (NACK_FULL, which
        avoids this, is not sent yet.)
    max_links : int
        Links at a time; a further OPEN is answered by OPEN_NACK.
    backlog : int
        Links opened by peers that :meth:`Endpoint.accept` has not given out yet; a further OPEN gets OPEN_NACK.
    burst_frames : int
        PAYLOAD frames that a link sends before the next link's turn.
    """

    mtu_bytes: int = MAX_PAYLOAD_BYTES
    window_bytes: int = WINDOW_BYTES
    shared_window: bool = False
    rto_initial_ps: int = 250 * PS_PER_MS
    rto_min_ps: int = 20 * PS_PER_MS
    rto_max_ps: int = 2000 * PS_PER_MS
    retry_limit: int = 10
    send_buffer_bytes: int = 2 * WINDOW_BYTES
    receive_buffer_bytes: int = 4 * WINDOW_BYTES
    max_links: int = 1024
    backlog: int = 128
    burst_frames: int = 32

    def __post_init__(self) -> None:
        largest = 0xFFFF - TOTAL_LENGTH_BASE  # the total length has 16 bits
        if not 1 <= self.mtu_bytes <= largest:
            raise ValueError(f"mtu_bytes is {self.mtu_bytes}; it must be from 1 to {largest}")
        for name in ("window_bytes", "send_buffer_bytes", "receive_buffer_bytes"):
            value = getattr(self, name)
            if not self.mtu_bytes <= value <= 2**40:
                raise ValueError(f"{name} is {value}; it must hold a payload of mtu_bytes {self.mtu_bytes} at least")
        if not 0 < self.rto_min_ps <= self.rto_initial_ps <= self.rto_max_ps < NEVER // 4:
            raise ValueError(
                f"rto_min_ps {self.rto_min_ps}, rto_initial_ps {self.rto_initial_ps} and rto_max_ps {self.rto_max_ps} "
                "must be above zero and in this order"
            )
        for name in ("retry_limit", "max_links", "backlog", "burst_frames"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
