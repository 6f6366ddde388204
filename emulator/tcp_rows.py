"""Rows of TCP hosts, and the sizes of their packets: what :mod:`emulator.tcp` and its receiver work on.

Source: RFC 9293; RFC 2018 (SACK); RFC 6298 (timer); RFC 5044, 5041, 5040 (MPA, DDP, RDMAP).
"""

from __future__ import annotations

import numpy as np

from emulator.tcp_congestion import PACKET_Q20
from ttpoe._jit import kernel
from ttpoe.units import NEVER

TCP_FRAME = np.dtype(
    [
        ("flags", "i4"),
        ("third_block", "i4"),
        ("index", "i8"),  # number of a data packet; of an ACK, that of the next one expected
        ("blocks", "i8"),  # SACK: 16 bits from ``index`` to a block's begin, 16 to its end; two here, 0 for none
        ("payload_bytes", "i8"),
    ],
    align=True,
)
"""A header row of the same size as a TTPoE FRAME."""

TCP = np.dtype(
    [
        (name, "i8")
        for name in (
            "failure",  # a ttpoe.state.Failure
            # sender: packets below una are acknowledged, those below max were sent
            "message_bytes", "packets", "una", "max",
            "pipe",  # in flight: sent, and neither acknowledged, lost, nor known to have come
            "sacked",  # of those from ``edge`` on
            "edge",  # packets below it that are not known to have come are lost
            "scan",  # no lost packet below waits to be resent
            "phase", "recover",  # until una passes ``recover``
            "is_urgent",  # the first resend of a recovery goes whatever the window
            "cwnd_q20", "ssthresh_q20",
            "timer_at_ps",  # of a receiver: a delayed ACK
            "rto_ps", "srtt_ps", "rttvar_ps", "retries",
            "mark_until", "is_cwr_due",  # no other reaction to a mark until una passes; the next packet says CWR
            "alpha_q20", "window_end", "window_acked", "window_marked",  # DCTCP
            "epoch_ps", "k_ticks", "w_max_q20", "w_est_q20", "prior_q20",  # CUBIC
            # receiver
            "expected", "highest", "rx_bytes", "unacknowledged", "block_count", "is_ece",
            "first_slot", "mask",  # of SLOT rows, and of bytes of ``received``; packet i is at i & mask
            # counters
            "packets_resent", "bytes_resent", "timeouts", "recoveries", "acks_sent", "duplicates_received",
            "dropped_stale", "marks_received", "eces_received",
        )
    ],
    align=True,
)  # fmt: skip

TCP_PARAMS = np.dtype(
    [
        (name, "i8")
        for name in (
            "mtu_bytes", "window_packets", "initial_cwnd_q20", "policy",
            "rto_min_ps", "rto_max_ps", "retry_limit",
            "ack_every_packets", "ack_delay_ps",
        )
    ],
    align=True,
)  # fmt: skip

SLOT = np.dtype([("sent_at_ps", "i8"), ("run_end", "i4"), ("flags", "i4")], align=True)
"""A packet at its sender. ``run_end``: of a packet known to have come, that all up to there are."""

OPEN, RECOVERY, LOSS = range(3)
"""Phases; LOSS follows a timeout."""

FLAG_PSH, FLAG_ACK, FLAG_ECE, FLAG_CWR = 0x08, 0x10, 0x40, 0x80

SACKED, RESENT, TWICE = 1, 2, 4
"""Known to have come; resent since it was lost last; sent more than once, so no round-trip sample (Karn)."""

BLOCKS = 4
"""That a receiver keeps; three fit into a row."""
BLOCK_WORDS = 2 * BLOCKS
"""Of ``blocks``, a receiver."""
MAX_WINDOW_PACKETS = (1 << 15) - 1
"""So that offsets of blocks fit into 15 bits."""

ETHERNET_IP_TCP_BYTES = 14 + 20 + 20
FPDU_BYTES = 2 + 14 + 4
"""MPA's length, the tagged header of DDP and RDMAP, MPA's CRC; no markers."""
LINE_BYTES = 4 + 20
"""FCS, preamble and gap."""


def init_connections(handshakes_ps: np.ndarray, slots: int, params: np.void) -> np.ndarray:
    """TCP rows, shape (2 * flows,), of connections that are up; sender 2f and receiver 2f + 1 share their slots.

    Parameters
    ----------
    handshakes_ps : int64 array, shape (flows,)
        Round trip of each connection's SYN: the first sample (RFC 6298, 2.2).
    slots : int
        Packets that a connection may have outstanding, a power of two.
    params : TCP_PARAMS row
    """
    rows = np.zeros(2 * len(handshakes_ps), TCP)
    rows["first_slot"] = np.arange(len(rows)) // 2 * slots
    rows["mask"] = slots - 1
    rows["timer_at_ps"] = NEVER
    rows["ssthresh_q20"] = NEVER
    rows["cwnd_q20"] = params["initial_cwnd_q20"]
    rows["srtt_ps"] = np.repeat(handshakes_ps, 2)
    rows["rttvar_ps"] = rows["srtt_ps"] // 2
    rows["rto_ps"] = np.clip(rows["srtt_ps"] + 4 * rows["rttvar_ps"], params["rto_min_ps"], params["rto_max_ps"])
    rows["alpha_q20"] = PACKET_Q20
    rows["epoch_ps"] = -1
    return rows


@kernel(export=True, inline=True)
def fpdu_bytes(payload_bytes):
    """Bytes of the stream for so much payload: framing, and padding to 4."""
    return FPDU_BYTES + ((payload_bytes + 3) & ~3)


@kernel(export=True, inline=True)
def data_wire_bytes(payload_bytes):
    """Bytes on the line of a data packet."""
    return max(ETHERNET_IP_TCP_BYTES + fpdu_bytes(payload_bytes), 60) + LINE_BYTES


@kernel(export=True, inline=True)
def ack_wire_bytes(blocks, third_block):
    """Bytes on the line of an acknowledgement: two NOPs, kind, length and 8 bytes a SACK block."""
    options = 0
    if blocks != 0:
        options = 4 + 8 + (8 if blocks >> 32 else 0) + (8 if third_block else 0)
    return max(ETHERNET_IP_TCP_BYTES + options, 60) + LINE_BYTES


@kernel(inline=True)
def payload_bytes_at(tcp, params, index):
    """Payload of packet ``index`` of the message."""
    if index == tcp["packets"] - 1:
        return tcp["message_bytes"] - index * params["mtu_bytes"]
    return params["mtu_bytes"]


@kernel(inline=True)
def slot_of(tcp, index):
    """Row of packet ``index``, and its place in ``received``."""
    return tcp["first_slot"] + (index & tcp["mask"])
