"""What an endpoint can be told: one frozen, validated dataclass. Knows nothing of how it is used."""

from __future__ import annotations

from dataclasses import dataclass, fields
from numbers import Integral
from typing import Any, Self

from ttpoe.constants import MAX_PAYLOAD_BYTES, TOTAL_LENGTH_BASE, WINDOW_BYTES
from ttpoe.rules import MODULE, PROFILES, REFERENCE, SPECIFICATION, Rule
from ttpoe.state import CONGESTION_CONTROLS, MAX_TIMEOUT_PS
from ttpoe.units import NEVER, PS_PER_MS, PS_PER_S

MAX_BUFFER_BYTES = 2**40
_MAX_WINDOW_PACKETS = 2**30  # a quarter of all ids: which of two is older stays clear
_BOUNDS = {
    "mtu_bytes": (1, 0xFFFF - TOTAL_LENGTH_BASE),  # the total length has 16 bits
    "rto_max_ps": (1, NEVER // 4 - 1),
    "retry_limit": (1, 2**31 - 1),
    "tag_ways": (1, 2**16),
    "idle_timeout_ps": (1, NEVER),
    "victim_idle_ps": (1, NEVER),
    "backlog": (1, 2**31 - 1),
    "burst_frames": (1, 2**10),
    "pfc_priority": (0, 7),
    "line_rate_bps": (0, 10**13),
    "initial_window_packets": (1, 10**6),
    "open_timeout_ps": (0, MAX_TIMEOUT_PS),
    "close_timeout_ps": (0, MAX_TIMEOUT_PS),
    "answer_repeat_ps": (0, MAX_TIMEOUT_PS),
}


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
    tag_sets, tag_ways : int
        Shape of the tag table of each virtual channel: sets, a power of two, and links in a set. The default of 256
        sets of two is the specification's; more of either is for an endpoint with more peers. A peer whose set is full
        gets the place of a link that its peer never used, or has not used for long, else OPEN_NACK.
    idle_timeout_ps : int
        Silence of a peer, on a link on which nothing waits, after which it is asked whether it still has the link. It
        is asked as often as data is sent again, then the link fails. So an idle link lives as long as both ends do.
        `ttpoe.units.NEVER`: no asking, and what a dead peer leaves behind stays.
    victim_idle_ps : int
        A link on which no payload moved for this long, that owes nothing, and that its peer opened, is closed in order
        when another peer needs its place in the tag table.
    backlog : int
        Links opened by peers that :meth:`Endpoint.accept` has not given out yet; a further OPEN gets OPEN_NACK.
    burst_frames : int
        PAYLOAD frames that a link sends before the next link's turn.
    pfc_priority : int
        Priority that our frames have in the network, for PFC frames that are honoured. Untagged frames have 0 unless a
        switch gives them another.
    line_rate_bps : int
        Rate that the quanta of PAUSE and PFC count by; 0 for the interface's own, or 10 Gb/s where it names none.
    congestion_control : str
        ``fixed``: the window alone limits what is in flight. ``reno``: a congestion window does as well (RFC 5681).
        ``swift``: one by delay, which may be less than a payload (Kumar et al., 2020). ``dctcp``: one by the share of
        frames that switches mark (RFC 8257), in IPv4 mode, between ends of ours: receivers echo marks whatever they
        have here, but nothing is negotiated.
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
    rules : Rule
        Where links follow the reference module in place of the specification: see :meth:`profile`.
    open_timeout_ps, close_timeout_ps : int
        Fixed timeouts of OPEN and CLOSE; 0 for the retransmission timeout.
    answer_repeat_ps : int
        First wait before the last answer is repeated to a peer that may have lost its only timer, as the reference
        module does on receiving PAYLOAD; the waits double, eight times at most. 0 for never.
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
    tag_sets: int = 256
    tag_ways: int = 2
    idle_timeout_ps: int = 30 * PS_PER_S
    victim_idle_ps: int = 60 * PS_PER_S
    backlog: int = 128
    burst_frames: int = 32
    pfc_priority: int = 0
    line_rate_bps: int = 0
    congestion_control: str = "fixed"
    initial_window_packets: int = 10
    target_delay_ps: int = 10 * PS_PER_MS
    flow_scaling_ps: int = 10 * PS_PER_MS
    tail_loss_probe: bool = True
    probe_min_ps: int = 5 * PS_PER_MS
    rules: Rule = SPECIFICATION
    open_timeout_ps: int = 0
    close_timeout_ps: int = 0
    answer_repeat_ps: int = 0

    @classmethod
    def profile(cls, name: str, **changes: Any) -> Self:
        """Defaults of a profile, with changes.

        Parameters
        ----------
        name : {'spec', 'reference', 'module'}
            ``spec``: the specification with our readings, the default. ``reference``: for peers that are the reference
            module. ``module``: as that module itself, its faults included, for tests.
        **changes
            Any fields. ``rules`` replaces the profile's switches; combine them with :data:`ttpoe.rules.REFERENCE`.

        Notes
        -----
        Source: timers, retries and the largest payload as the module was seen to have them. Ours: 400 ms before an
        answer is repeated, a little more than the module's timeout.
        """
        if name not in PROFILES:
            raise ValueError(f"profile is {name!r}; it must be {', '.join(PROFILES[:-1])} or {PROFILES[-1]}")
        fields: dict[str, Any] = {}
        if name == "reference":
            fields = {"rules": REFERENCE, "answer_repeat_ps": 400 * PS_PER_MS}
        elif name == "module":
            timeout_ps = 375 * PS_PER_MS
            fields = {
                "rules": MODULE, "mtu_bytes": 1008, "rto_initial_ps": timeout_ps, "rto_min_ps": timeout_ps,
                "rto_max_ps": timeout_ps, "open_timeout_ps": 250 * PS_PER_MS, "close_timeout_ps": 500 * PS_PER_MS,
                "retry_limit": 1000, "tail_loss_probe": False, "idle_timeout_ps": NEVER,
            }  # fmt: skip
        return cls(**fields | changes)

    def __post_init__(self) -> None:
        self._check_kinds()
        for name, (least, most) in _BOUNDS.items():
            value = getattr(self, name)
            if not least <= value <= most:
                raise ValueError(f"{name} is {value}; it must be from {least} to {most}")
        for name in ("window_bytes", "send_buffer_bytes", "receive_buffer_bytes"):
            value = getattr(self, name)
            if not self.mtu_bytes <= value <= MAX_BUFFER_BYTES:
                raise ValueError(
                    f"{name} is {value}; it must hold a payload of mtu_bytes {self.mtu_bytes}, and be at most 2**40"
                )
        if self.window_bytes // self.mtu_bytes >= _MAX_WINDOW_PACKETS:
            raise ValueError(
                f"window_bytes is {self.window_bytes}; of payloads of mtu_bytes {self.mtu_bytes} it must hold fewer "
                "than 2**30, since ids wrap"
            )
        if not 0 < self.rto_min_ps <= self.rto_initial_ps <= self.rto_max_ps:
            raise ValueError(
                f"rto_min_ps {self.rto_min_ps}, rto_initial_ps {self.rto_initial_ps} and rto_max_ps {self.rto_max_ps} "
                "must be above zero and in this order"
            )
        if self.congestion_control not in CONGESTION_CONTROLS:
            known = " or ".join(CONGESTION_CONTROLS)
            raise ValueError(f"congestion_control is {self.congestion_control!r}; it must be {known}")
        if self.congestion_control == "dctcp" and self.rules:
            raise ValueError(
                "congestion_control is 'dctcp' beside rules of the reference module, which echoes no marks; take "
                "fixed, reno or swift"
            )
        if not 0 <= self.probe_min_ps <= self.rto_max_ps:
            raise ValueError(f"probe_min_ps is {self.probe_min_ps}; it must be from 0 to rto_max_ps {self.rto_max_ps}")
        for name in ("target_delay_ps", "flow_scaling_ps"):
            if not 0 < getattr(self, name) <= self.rto_max_ps:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be from 1 to rto_max_ps {self.rto_max_ps}")
        if Rule.SKIP_LOST in self.rules and Rule.STOP_AND_WAIT not in self.rules:
            raise ValueError("rules has SKIP_LOST without STOP_AND_WAIT; only a single id can be dropped, so add that")
        if not 1 <= self.tag_sets <= 1 << 24 or self.tag_sets & (self.tag_sets - 1):
            raise ValueError(f"tag_sets is {self.tag_sets}; it must be a power of two, up to 2**24")
        if self.tag_sets * self.tag_ways > 1 << 24:
            raise ValueError(
                f"tag_ways is {self.tag_ways}; with tag_sets {self.tag_sets} there must be at most 2**24 places"
            )

    def check_mode(self, *, is_ipv4: bool) -> None:
        """Raise ValueError if frames of the mode cannot carry what this config needs."""
        if self.congestion_control == "dctcp" and not is_ipv4:
            raise ValueError(
                "congestion_control is 'dctcp', which answers ECN marks; frames in Ethernet mode have no field for "
                "them, so use IPv4 mode, or take fixed, reno or swift"
            )

    def _check_kinds(self) -> None:
        """Kernels take whole numbers, and would round others or fail at the first frame."""
        for each in fields(self):
            value = getattr(self, each.name)
            if each.type == "int" and (not isinstance(value, Integral) or isinstance(value, bool)):
                raise ValueError(f"{each.name} is {value!r}; it must be a whole number")
        if not isinstance(self.rules, Rule):
            raise ValueError(f"rules is {self.rules!r}; it must be of ttpoe.rules.Rule")
