"""The record dtypes that every kernel works on, and the integers that kernels return.

A link is one row of a LINK array: plain int64 fields, so that the emulator's compiled loop and the facade of a real
socket share it. Knows nothing of bytes on a wire.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from ttpoe.units import NEVER


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


def _int64(*names: str) -> list[tuple[str, str]]:
    return [(name, "i8") for name in names]


FRAME = np.dtype([("opcode", "i4"), ("vc", "i4"), *_int64("tx_seq", "rx_seq", "payload_bytes")], align=True)
"""What the machine sees of a frame, and what it appends to its output. 32 bytes."""

LINK = np.dtype(
    _int64(
        # identity and state
        "state", "vc", "failure",
        "initial_seq",  # our opening id, drawn by the owner; our first PAYLOAD is the id after it
        "has_ended",  # closed after having been up or tried: an OPEN cannot raise it again, init_links can
        "proven_at_byte",  # cut_bytes when the peer was first known to be open (NEVER: not yet); see NACK_NOLINK
        "is_closing",  # the owner asked for a close, to be sent when all is acknowledged
        "close_answered",  # our CLOSE was answered by a CLOSE_NACK: the peer still sends
        # receiving
        "rx_seq",  # last id delivered in order
        "rx_gap_seq",  # highest id of the sender's pass beyond rx_seq + 1; see MAX_OVERTAKING
        "rx_nacked",  # 1 while a NACK for rx_seq + 1 is out
        "rx_bytes",  # delivered in order
        "rx_closing_seq", "has_rx_closing",  # the last id we still accept
        # sending: ids tx_una <= tx_next <= tx_max, and the stream offsets at each
        "tx_una", "tx_next", "tx_max",
        "acked_bytes", "sent_bytes", "cut_bytes", "submitted_bytes",
        "ring_base", "ring_mask",  # this link's slots in the SENT array; the mask is slots - 1, a power of two
        # recovery (RFC 6298)
        "timer_at_ps", "rto_ps", "srtt_ps", "rttvar_ps", "min_rtt_ps", "retries",
        # counters
        "payloads_sent", "payloads_resent", "bytes_resent", "timeouts",
        "acks_sent", "nacks_sent", "nacks_received", "nacks_stale",
        "payloads_received", "duplicates_received", "gaps_received",
        "dropped_illegal", "dropped_stale", "dropped_lost",
    ),
    align=True,
)

SENT = np.dtype(_int64("end_byte", "sent_at_ps", "is_resent"), align=True)
"""One slot per unacknowledged id: stream offset after its payload, when it was last sent, whether more than once."""

POOL = np.dtype(_int64("held_bytes", "limit_bytes"), align=True)
"""Payload held until acknowledged, summed over the links of an endpoint (SRAM); limit NEVER: no sharing."""

PARAMS = np.dtype(
    _int64("mtu_bytes", "window_bytes", "rto_initial_ps", "rto_min_ps", "rto_max_ps", "retry_limit"), align=True
)


def make_params(
    *, mtu_bytes: int, window_bytes: int, rto_initial_ps: int, rto_min_ps: int, rto_max_ps: int, retry_limit: int
) -> np.ndarray:
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
    params = np.zeros(1, PARAMS)
    params[0] = (mtu_bytes, window_bytes, rto_initial_ps, rto_min_ps, rto_max_ps, retry_limit)
    return params


def ring_slots(window_bytes: int, mtu_bytes: int) -> int:
    """Slots of the SENT ring for a window: a power of two above the full frames that fit."""
    return 1 << (max(window_bytes // mtu_bytes, 1)).bit_length()


def init_links(
    links: np.ndarray, initial_seq: np.ndarray | int, vc: np.ndarray | int, params: np.ndarray, slots: int
) -> np.ndarray:
    """Reset ``links`` (LINK, modified in place) to closed links; returns the SENT array for all of their rings.

    Parameters
    ----------
    links : LINK array, shape (n,)
    initial_seq, vc : int or integer array, shape (n,)
        Opening ids and virtual channels.
    params : PARAMS array, shape (1,)
    slots : int
        Ring slots per link, a power of two.
    """
    if slots < 1 or slots & (slots - 1):
        raise ValueError(f"slots is {slots}; give a power of two")
    links[:] = 0
    links["vc"] = vc
    links["initial_seq"] = initial_seq
    first = (np.asarray(initial_seq, np.int64) + 1) & 0xFFFFFFFF
    for name in ("tx_una", "tx_next", "tx_max"):
        links[name] = first
    links["ring_base"] = np.arange(links.size) * slots
    links["ring_mask"] = slots - 1
    links["timer_at_ps"] = NEVER
    links["min_rtt_ps"] = NEVER
    links["proven_at_byte"] = NEVER
    links["rto_ps"] = params[0]["rto_initial_ps"]
    return np.zeros(links.size * slots, SENT)
