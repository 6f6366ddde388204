"""The record dtypes that every kernel works on, and the integers that kernels return.

A link is one row of a LINK array: plain int64 fields, so that the emulator's compiled loop and the facade of a real
socket share it. Knows nothing of bytes on a wire.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag

import numpy as np

from ttpoe.rules import Rule
from ttpoe.units import NEVER, PS_PER_US


class Status(IntEnum):
    """Negative results of kernels; the facade maps them to exceptions."""

    OK = 0
    OUT_FULL = -1  # the caller's output array has no row left
    NOT_OPEN = -2  # the caller submits to a link that is closed or closing
    ILLEGAL_SEND = -3  # the sent table forbids it in this state


class Failure(IntEnum):
    """Why a link ended other than by an orderly close: ``link["failure"]``."""

    NONE = 0
    RETRY_LIMIT = 1  # no progress through retry_limit timeouts and one more
    REFUSED = 2  # OPEN_NACK
    LINK_DOWN = 3  # NACK_NOLINK: the peer does not know this link
    PEER_RESTARTED = 4  # an OPEN that is no duplicate came on an open link
    CLOSED_UNSENT = 5  # the peer closed while we still had data to send
    VICTIM = 6  # never used, and another peer needed its place in the tag table


class CongestionControl(IntEnum):
    """What moves a link's congestion window: ``params["congestion_control"]``; see :mod:`ttpoe.congestion`."""

    FIXED = 0  # nothing: the window of the transmit memory alone
    RENO = 1  # RFC 5681
    SWIFT = 2  # Kumar et al., SIGCOMM 2020
    DCTCP = 3  # RFC 8257; where frames can be marked, which is in IPv4 mode


CONGESTION_CONTROLS = tuple(kind.name.lower() for kind in CongestionControl)
"""Their names, as a user types them."""


class Mark(IntFlag):
    """What a frame tells of congestion: ``frame["marks"]``."""

    ECHO = 1  # of an ACK: the PAYLOAD that it answers came marked
    REDUCED = 2  # of a PAYLOAD: the first one since its sender reduced its window
    CE = 4  # received, and a switch marked it; of what carries the frame, not of its own header
    ECT = 8  # to be sent such that switches may mark it; likewise


HEADER_MARKS = Mark.ECHO | Mark.REDUCED
"""Those that the transport header carries."""


def _int64(*names: str) -> list[tuple[str, str]]:
    return [(name, "i8") for name in names]


MAX_CWND_PACKETS = 1 << 22
"""Of ``cwnd_q20``, so that its products stay in int64."""

FRAME = np.dtype(
    [("opcode", "i2"), ("marks", "i2"), ("vc", "i4"), *_int64("tx_seq", "rx_seq", "payload_bytes")], align=True
)
"""What the machine sees of a frame, and what it appends to its output. ``marks``: `Mark` bits. 32 bytes."""

LINK = np.dtype(
    _int64(
        # identity and state
        "state", "vc", "failure",
        "rules",  # `ttpoe.rules.Rule` bits, 0 by the specification; here, as not every call brings PARAMS
        "initial_seq",  # our opening id, drawn by the owner; our first PAYLOAD is the id after it
        "has_ended",  # closed after having been up or tried: an OPEN cannot raise it again, init_links can
        "proven_at_byte",  # first byte whose NACK_NOLINK counts: cut_bytes when the peer was first known to be open
        "proven_at_ps",  # and when that was
        "is_closing",  # the owner asked for a close, to be sent when all is acknowledged
        "close_answered",  # our CLOSE was answered by a CLOSE_NACK: the peer still sends
        # receiving
        "rx_seq",  # last id delivered in order
        "rx_gap_seq",  # highest id of the sender's pass beyond rx_seq + 1; see MAX_OVERTAKING
        "rx_nacked",  # 1 while a NACK for rx_seq + 1 is out
        "rx_bytes", "rx_read_bytes",  # delivered in order, and of that taken by the owner
        "rx_limit_bytes",  # what may wait for the owner, NEVER without a limit
        "rx_is_full",  # 1 from a NACK_FULL on until the id that it refused is delivered
        "rx_closing_seq", "has_rx_closing",  # the last id we still accept
        # sending: ids tx_una <= tx_next <= tx_max, and the stream offsets at each
        "tx_una", "tx_next", "tx_max",
        "acked_bytes", "sent_bytes", "cut_bytes", "submitted_bytes",
        "cwnd_bytes",  # congestion window: limits sent_bytes - acked_bytes; NEVER under FIXED
        "peer_room_bytes",  # the same for the peer's buffer: 0 while we hold after a NACK_FULL, NEVER when it has room
        "tail_bytes",  # payload of the newest id
        "last_sent_at_ps",  # when a PAYLOAD last went out
        "ring_base", "ring_mask",  # this link's slots in the SENT array; the mask is slots - 1, a power of two
        # recovery (RFC 6298)
        "timer_at_ps", "rto_ps", "srtt_ps", "rttvar_ps", "min_rtt_ps", "retries",
        "timer_is_probe",  # the timer asks for a tail-loss probe (RFC 8985), not for a retransmission
        "probed_byte",  # cut_bytes at the last tail-loss probe; no other before this is acknowledged
        "full_wait_ps",  # last wait before asking a full peer again; 0 between episodes
        "open_timeout_ps", "close_timeout_ps",  # fixed ones of OPEN and CLOSE, in place of rto_ps where not 0
        # congestion control
        "ssthresh_bytes",
        "ca_acked_bytes",  # acknowledged since congestion avoidance last grew the window (RFC 3465)
        "cwnd_q20",  # SWIFT: the window in 2**-20 payloads, which may be less than one
        "pace_at_ps",  # SWIFT: no PAYLOAD before; 0 with a window of one payload or more
        "rtt_ps",  # sample of the last acknowledgement, or 0
        "decreased_at_ps",  # SWIFT
        "recover_until_ps",  # a round trip after the last loss: one of what was sent before is of the same window
        # getting along with the reference module; see ttpoe.reference
        "repeat_at_ps", "repeats", "repeat_rx_seq",  # our last answer repeated: when next; how often; rx_seq at first
        "reopens", "reopened_at_byte",  # OPENs after NACK_NOLINK in a row; bytes acknowledged and received at the last
        "skipped_bytes",  # dropped after the retry limit, and not yet given back to the pool
        # counters
        "payloads_sent", "payloads_resent", "bytes_resent", "timeouts",
        "probes_sent",
        "resends_spurious",  # ACKs too early for the resend: what was sent before had arrived
        "acks_sent", "acks_repeated", "nacks_sent", "nacks_received", "nacks_stale",
        "nack_fulls_sent", "nack_fulls_received",
        "payloads_received", "duplicates_received", "gaps_received",
        "marks_received", "echoes_received",  # PAYLOADs that came marked; ACKs that echo one
        "dropped_illegal", "dropped_stale", "dropped_lost",
        # DCTCP; here, so that what every link touches stays together
        "alpha_q20",  # the share of marked bytes, in 2**-20
        "marked_bytes",  # acknowledged with an echo, since
        "share_from_byte", "share_until_byte",  # where that count began, and what ends it when acknowledged
        "reduced_until_byte",  # no further decrease until this is acknowledged
        "is_reduction_due",  # the next PAYLOAD is to tell of a decrease
    ),
    align=True,
)

SENT = np.dtype(_int64("end_byte", "sent_at_ps", "is_resent"), align=True)
"""One slot per unacknowledged id: stream offset after its payload, when it was last sent, whether more than once."""

POOL = np.dtype(_int64("held_bytes", "limit_bytes"), align=True)
"""Payload held until acknowledged, summed over the links of an endpoint (SRAM); limit NEVER: no sharing."""

PARAMS = np.dtype(
    _int64(
        "mtu_bytes", "window_bytes", "rto_initial_ps", "rto_min_ps", "rto_max_ps", "retry_limit",
        "congestion_control", "initial_cwnd_bytes", "has_tail_probe", "probe_min_ps",
        "rules", "open_timeout_ps", "close_timeout_ps", "answer_repeat_ps",
        "target_delay_ps", "flow_scaling_ps",
    ),
    align=True,
)


MAX_TIMEOUT_PS = NEVER >> 16
"""About 70 s; doubled ten times it is still far from NEVER."""


def make_params(
    *, mtu_bytes: int, window_bytes: int, rto_initial_ps: int, rto_min_ps: int, rto_max_ps: int, retry_limit: int,
    congestion_control: str = "fixed", initial_window_packets: int = 10, tail_loss_probe: bool = False,
    probe_min_ps: int = 0, rules: int = 0, open_timeout_ps: int = 0, close_timeout_ps: int = 0,
    answer_repeat_ps: int = 0,
    target_delay_ps: int = 25 * PS_PER_US, flow_scaling_ps: int = 125 * PS_PER_US,
) -> np.ndarray:  # fmt: skip
    """One PARAMS row in an array of shape (1,).

    Parameters
    ----------
    mtu_bytes : int
        Largest payload of one frame.
    window_bytes : int
        Payload a link may hold unacknowledged; at least one mtu.
    rto_initial_ps, rto_min_ps, rto_max_ps : int
        Retransmission timeout before the first sample, its floor and its ceiling (RFC 6298).
    retry_limit : int
        Timeouts in a row without progress that are retried; one more and the link fails.
    congestion_control : str
        One of `CONGESTION_CONTROLS`.
    initial_window_packets : int
        Congestion window at the start and after idling, in payloads of ``mtu_bytes``; 10 is RFC 6928's.
    tail_loss_probe : bool
        Send the last id of what was submitted once more, two round trips after the last sign of life (RFC 8985, 7).
    probe_min_ps : int
        Least wait before such a probe, and before asking a full peer again.
    rules : int
        `ttpoe.rules.Rule` bits: where links follow the reference module.
    open_timeout_ps, close_timeout_ps : int
        Fixed timeouts of OPEN and CLOSE; 0 for the retransmission timeout.
    answer_repeat_ps : int
        First wait before the last answer is repeated to a peer that may have lost its timer; 0 for never.
    target_delay_ps, flow_scaling_ps : int
        SWIFT: the round trip that it aims at, and how much longer at most it may be for small windows.
    """
    if mtu_bytes < 1:
        raise ValueError(f"mtu_bytes is {mtu_bytes}; a payload has at least 1 byte")
    if window_bytes < mtu_bytes:
        raise ValueError(f"window_bytes is {window_bytes}, below one payload of mtu_bytes {mtu_bytes}; raise it")
    if not 0 < rto_min_ps <= rto_initial_ps <= rto_max_ps:
        raise ValueError("rto_min, rto_initial and rto_max must be positive and in this order")
    if rto_max_ps > NEVER // 4:
        raise ValueError(f"rto_max_ps is {rto_max_ps}; above {NEVER // 4} its double and srtt + 4 rttvar leave int64")
    if retry_limit < 0:
        raise ValueError(f"retry_limit is {retry_limit}; give 0 to fail at the first timeout, or more")
    if congestion_control not in CONGESTION_CONTROLS:
        known = ", ".join(CONGESTION_CONTROLS)
        raise ValueError(f"congestion_control is {congestion_control!r}; choose one of {known}")
    if not 1 <= initial_window_packets <= 10**6:
        raise ValueError(f"initial_window_packets is {initial_window_packets}; it must be from 1 to 10**6")
    if not 0 <= probe_min_ps <= rto_max_ps:
        raise ValueError(f"probe_min_ps is {probe_min_ps}; it must be from 0 to rto_max_ps {rto_max_ps}")
    for name, value in (("open_timeout_ps", open_timeout_ps), ("close_timeout_ps", close_timeout_ps),
                        ("answer_repeat_ps", answer_repeat_ps)):  # fmt: skip
        if not 0 <= value <= MAX_TIMEOUT_PS:
            raise ValueError(f"{name} is {value}; it must be from 0 to {MAX_TIMEOUT_PS}")
    if congestion_control == "swift" and not (0 < target_delay_ps <= rto_max_ps and 0 <= flow_scaling_ps <= rto_max_ps):
        raise ValueError("target_delay_ps and flow_scaling_ps must be at most rto_max_ps, and a target above zero")
    kind = CongestionControl[congestion_control.upper()]
    params = np.zeros(1, PARAMS)
    params[0] = (
        mtu_bytes, window_bytes, rto_initial_ps, rto_min_ps, rto_max_ps, retry_limit,
        kind, NEVER if kind == CongestionControl.FIXED else initial_window_packets * mtu_bytes,
        tail_loss_probe, probe_min_ps, rules, open_timeout_ps, close_timeout_ps, answer_repeat_ps,
        target_delay_ps, flow_scaling_ps,
    )  # fmt: skip
    return params


def ring_slots(window_bytes: int, mtu_bytes: int) -> int:
    """Slots of the SENT ring for a window: a power of two above the full frames that fit."""
    return 1 << (max(window_bytes // mtu_bytes, 1)).bit_length()


def init_links(
    links: np.ndarray, initial_seq: np.ndarray | int, vc: np.ndarray | int, params: np.ndarray, slots: np.ndarray | int
) -> np.ndarray:
    """Reset ``links`` (LINK, modified in place) to closed links; returns the SENT array for all of their rings.

    Parameters
    ----------
    links : LINK array, shape (n,)
    initial_seq, vc : int or integer array, shape (n,)
        Opening ids and virtual channels.
    params : PARAMS array, shape (1,)
    slots : int or integer array, shape (n,)
        Ring slots of each link, a power of two.

    Notes
    -----
    Under `Rule.START_AT_ONE` opening ids are 1, whatever ``initial_seq`` says; under `Rule.STOP_AND_WAIT` a link uses
    one slot of its ring.
    """
    counts = np.broadcast_to(np.asarray(slots, np.int64), links.shape)
    if np.any((counts < 1) | (counts & (counts - 1) != 0)):
        raise ValueError(f"slots is {slots}; give a power of two")
    links[:] = 0
    rules = Rule(int(params[0]["rules"]))
    if rules & Rule.START_AT_ONE:
        initial_seq = 1
        links["rx_seq"] = 1
    links["rules"] = rules
    links["vc"] = vc
    links["initial_seq"] = initial_seq
    first = (np.asarray(initial_seq, np.int64) + 1) & 0xFFFFFFFF
    for name in ("tx_una", "tx_next", "tx_max"):
        links[name] = first
    links["ring_base"] = np.cumsum(counts) - counts
    links["ring_mask"] = 0 if rules & Rule.STOP_AND_WAIT else counts - 1
    links["timer_at_ps"] = NEVER
    links["min_rtt_ps"] = NEVER
    links["proven_at_byte"] = NEVER
    links["repeat_at_ps"] = NEVER
    links["rx_limit_bytes"] = NEVER
    links["peer_room_bytes"] = NEVER
    links["ssthresh_bytes"] = NEVER
    links["cwnd_bytes"] = params[0]["initial_cwnd_bytes"]
    links["cwnd_q20"] = min(int(params[0]["initial_cwnd_bytes"] // params[0]["mtu_bytes"]), MAX_CWND_PACKETS) << 20
    for name in ("open_timeout_ps", "close_timeout_ps"):
        links[name] = params[0][name]
    links["alpha_q20"] = 1 << 20  # 1, as RFC 8257 has it at first
    links["rto_ps"] = params[0]["rto_initial_ps"]
    return np.zeros(int(counts.sum()), SENT)
