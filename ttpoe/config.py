"""What an endpoint can be told: one frozen, validated dataclass. Knows nothing of how it is used."""

from __future__ import annotations

from dataclasses import dataclass

from ttpoe.constants import MAX_PAYLOAD_BYTES, TOTAL_LENGTH_BASE, WINDOW_BYTES
from ttpoe.state import CONGESTION_CONTROLS
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
        What a link holds for its reader. A PAYLOAD that finds it full is answered by NACK_FULL: the peer holds, and
        asks again from time to time, for as long as the reader pauses. Above the peer's window the buffer fills only
        if the reader is slow.
    max_links : int
        Links at a time; a further OPEN is answered by OPEN_NACK.
    backlog : int
        Links opened by peers that :meth:`Endpoint.accept` has not given out yet; a further OPEN gets OPEN_NACK.
    burst_frames : int
        PAYLOAD frames that a link sends before the next link's turn.
    congestion_control : str
        ``fixed``: the window alone limits what is in flight. ``reno``: a congestion window does as well (RFC 5681).
        ``swift``: one by delay, which may be less than a payload (Kumar et al., 2020).
    initial_window_packets : int
        Congestion window at the start and after idling, in payloads of ``mtu_bytes`` (RFC 6928).
    target_delay_ps, flow_scaling_ps : int
        ``swift``: the round trip that it aims at, and how much longer that may be at most, for small windows. A busy
        host alone adds milliseconds.
    tail_loss_probe : bool
        Send the last frame of what was submitted once more before the timeout, since nothing behind it can show its
        loss (RFC 8985, 7).
    probe_min_ps : int
        Least wait before that, and before asking a full peer again; at most ``rto_min_ps`` to be of use. A quarter of
        it: late timers of a busy host make a probe spurious now and then, which costs a frame, and a receive buffer of
        the default size does not run dry below 5 Gb/s while we hold.
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
    congestion_control: str = "fixed"
    initial_window_packets: int = 10
    target_delay_ps: int = 10 * PS_PER_MS
    flow_scaling_ps: int = 10 * PS_PER_MS
    tail_loss_probe: bool = True
    probe_min_ps: int = 5 * PS_PER_MS

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
        if self.congestion_control not in CONGESTION_CONTROLS:
            known = " or ".join(CONGESTION_CONTROLS)
            raise ValueError(f"congestion_control is {self.congestion_control!r}; it must be {known}")
        if not 0 <= self.probe_min_ps <= self.rto_max_ps:
            raise ValueError(f"probe_min_ps is {self.probe_min_ps}; it must be from 0 to rto_max_ps {self.rto_max_ps}")
        for name in ("target_delay_ps", "flow_scaling_ps"):
            if not 0 < getattr(self, name) <= self.rto_max_ps:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be from 1 to rto_max_ps {self.rto_max_ps}")
        for name in ("retry_limit", "max_links", "backlog", "burst_frames", "initial_window_packets"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
