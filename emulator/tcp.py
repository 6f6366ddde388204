"""TCP hosts, as iWARP has them: one message a connection, selective acknowledgement, Reno, CUBIC or DCTCP.

Same verbs as :mod:`emulator.roce`, on TCP rows. A message is cut once, into packets of ``mtu_bytes`` of payload with an
RDMA WRITE's MPA, DDP and RDMAP framing around each, so kernels count packets; captures show the bytes of the stream.
Sequence numbers are 64 bits wide inside. Connections are up at the start.

Source: RFC 9293; RFC 2018 and 6675 (SACK and what it repairs); RFC 6298 (timer); RFC 3168 and 8257 (ECN);
RFC 5044, 5041, 5040 (MPA, DDP, RDMAP). Our readings are in docs/model.md.
"""

from __future__ import annotations

import numpy as np

from emulator.packet import CE
from emulator.tcp_congestion import DCTCP, PACKET_Q20, count_marks, grow, on_loss, on_mark
from ttpoe._jit import kernel
from ttpoe.units import NEVER

TCP_FRAME = np.dtype(
    [
        ("flags", "i2"),
        ("marks", "i2"),  # not used
        ("third_block", "i4"),
        ("index", "i8"),  # number of a data packet; of an ACK, that of the next one expected
        ("blocks", "i8"),  # SACK: 16 bits from ``index`` to a block's begin, 16 to its end; two here, 0 for none
        ("payload_bytes", "i8"),
    ],
    align=True,
)
"""A header row that lies in memory like a TTPoE FRAME."""

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

_SACKED, _RESENT, _TWICE = 1, 2, 4
"""Known to have come; resent since it was lost last; sent more than once, so no round-trip sample (Karn)."""

_DUP_THRESH = 3
_BLOCKS = 4
"""That a receiver keeps; three fit into a row."""
BLOCK_WORDS = 2 * _BLOCKS
"""Of ``blocks``, a receiver."""
MAX_WINDOW_PACKETS = (1 << 15) - 1
"""So that offsets of blocks fit into 15 bits."""
_RETRY_LIMIT = 1  # Failure.RETRY_LIMIT

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
def _slot(tcp, index):
    return tcp["first_slot"] + (index & tcp["mask"])


@kernel
def _next_lost(tcp, slots):
    """The first lost packet that was not resent since, or -1; RFC 6675's NextSeg, rule 1."""
    while tcp["scan"] < tcp["edge"]:
        if int(slots[_slot(tcp, tcp["scan"])]["flags"]) & (_SACKED | _RESENT) == 0:
            return tcp["scan"]
        tcp["scan"] += 1
    return -1


@kernel(inline=True)
def tcp_is_ready(tcp, params, slots):
    """1 if :func:`tcp_poll` would append a packet. Moves ``scan``, which changes no answer."""
    if tcp["failure"] != 0:
        return 0
    has_room = tcp["pipe"] < tcp["cwnd_q20"] >> 20
    if (has_room or tcp["is_urgent"] != 0) and _next_lost(tcp, slots) >= 0:
        return 1
    fits = tcp["max"] < tcp["packets"] and tcp["max"] - tcp["una"] < params["window_packets"]
    return 1 if has_room and fits else 0


@kernel
def tcp_poll(tcp, params, slots, now_ps, out, n_out):
    """Append what is to be sent next, if anything may be: a lost packet before a new one."""
    if tcp_is_ready(tcp, params, slots) == 0:
        return n_out
    index = _next_lost(tcp, slots)
    flags = FLAG_ACK
    if index >= 0:
        slot = slots[_slot(tcp, index)]
        slot["flags"] = _RESENT | _TWICE
        tcp["scan"] = index + 1
        tcp["packets_resent"] += 1
        tcp["bytes_resent"] += payload_bytes_at(tcp, params, index)
    else:
        index = tcp["max"]
        slot = slots[_slot(tcp, index)]
        slot["flags"] = 0
        tcp["max"] = index + 1
        if tcp["is_cwr_due"] != 0:
            tcp["is_cwr_due"] = 0
            flags |= FLAG_CWR
    slot["sent_at_ps"] = now_ps
    tcp["is_urgent"] = 0
    tcp["pipe"] += 1
    if tcp["timer_at_ps"] == NEVER or index == tcp["una"]:
        tcp["timer_at_ps"] = now_ps + tcp["rto_ps"]
    row = out[n_out]
    row["flags"] = flags | FLAG_PSH if index == tcp["packets"] - 1 else flags
    row["third_block"] = 0
    row["index"] = index
    row["blocks"] = 0
    row["payload_bytes"] = payload_bytes_at(tcp, params, index)
    return n_out + 1


@kernel
def _sample_rtt(tcp, rtt_ps):
    """RFC 6298, 2.3; the clock granularity is an eighth of srtt, as in :mod:`ttpoe.recovery`."""
    error_ps = rtt_ps - tcp["srtt_ps"]
    tcp["rttvar_ps"] += (abs(error_ps) - tcp["rttvar_ps"]) // 4
    tcp["srtt_ps"] += error_ps // 8


@kernel
def _acknowledge(tcp, params, slots, ack, now_ps):
    """Packets below ``ack`` have come: out of the pipe, a sample of the round trip, the timer anew."""
    slot = slots[_slot(tcp, ack - 1)]
    if int(slot["flags"]) & (_TWICE | _SACKED) == 0:
        _sample_rtt(tcp, now_ps - slot["sent_at_ps"])
    for index in range(tcp["una"], ack):
        flags = int(slots[_slot(tcp, index)]["flags"])
        if flags & _SACKED != 0:
            tcp["sacked"] -= 1 if index >= tcp["edge"] else 0
        elif index >= tcp["edge"] or flags & _RESENT != 0:
            tcp["pipe"] -= 1
    tcp["una"] = ack
    tcp["edge"] = max(tcp["edge"], ack)
    tcp["scan"] = max(tcp["scan"], ack)
    tcp["retries"] = 0
    rto_ps = tcp["srtt_ps"] + max(4 * tcp["rttvar_ps"], tcp["srtt_ps"] // 8)
    tcp["rto_ps"] = min(max(rto_ps, params["rto_min_ps"]), params["rto_max_ps"])
    tcp["timer_at_ps"] = NEVER if tcp["una"] == tcp["max"] else now_ps + tcp["rto_ps"]


@kernel
def _take_block(tcp, slots, begin, end):
    """Packets ``begin`` up to ``end`` are known to have come; what was known is stepped over, run by run."""
    first = begin
    while begin < end:
        slot = slots[_slot(tcp, begin)]
        flags = int(slot["flags"])
        if flags & _SACKED != 0:
            begin = max(int(slot["run_end"]), begin + 1)
            continue
        if begin >= tcp["edge"]:
            tcp["sacked"] += 1
            tcp["pipe"] -= 1
        elif flags & _RESENT != 0:
            tcp["pipe"] -= 1
        slot["flags"] = flags | _SACKED
        slot["run_end"] = begin + 1
        begin += 1
    slots[_slot(tcp, first)]["run_end"] = max(int(slots[_slot(tcp, first)]["run_end"]), end)


@kernel
def _find_lost(tcp, slots):
    """Move ``edge`` to where fewer than three later packets are known to have come; returns how many are lost anew.

    Source: RFC 6675, IsLost, in packets.
    """
    lost = 0
    while tcp["edge"] < tcp["max"]:
        is_sacked = int(slots[_slot(tcp, tcp["edge"])]["flags"]) & _SACKED
        if tcp["sacked"] - is_sacked < _DUP_THRESH:
            break
        tcp["sacked"] -= is_sacked
        if is_sacked == 0:
            lost += 1
            tcp["pipe"] -= 1
        tcp["edge"] += 1
    return lost


@kernel
def _on_ack(tcp, params, slots, frame, now_ps):
    """The sender: what came, what is lost, and how much may be in flight now."""
    ack = frame["index"]
    if ack > tcp["max"] or ack < tcp["una"] or tcp["failure"] != 0:
        tcp["dropped_stale"] += 1
        return
    acked = ack - tcp["una"]
    flight = tcp["max"] - tcp["una"]
    if acked > 0:
        _acknowledge(tcp, params, slots, ack, now_ps)
    for k in range(3):
        block = int(frame["third_block"]) if k == 2 else (frame["blocks"] >> (32 * k)) & 0xFFFFFFFF
        if block == 0 or ack + (block >> 16) > tcp["max"]:
            break
        _take_block(tcp, slots, ack + (block & 0xFFFF), ack + (block >> 16))
    if tcp["phase"] != OPEN and tcp["una"] >= tcp["recover"]:
        tcp["phase"] = OPEN
        tcp["is_urgent"] = 0
    is_marked = int(frame["flags"]) & FLAG_ECE
    if is_marked != 0:
        tcp["eces_received"] += 1
    if params["policy"] == DCTCP:
        count_marks(tcp, acked, is_marked)
    if _find_lost(tcp, slots) > 0 and tcp["phase"] == OPEN:
        tcp["phase"] = RECOVERY
        tcp["recover"] = tcp["mark_until"] = tcp["max"]
        tcp["is_urgent"] = 1
        tcp["is_cwr_due"] = 1 if is_marked != 0 else int(tcp["is_cwr_due"])
        tcp["recoveries"] += 1
        on_loss(tcp, params, flight, 0)
    elif is_marked != 0:
        if tcp["phase"] == OPEN and tcp["una"] > tcp["mark_until"]:
            tcp["mark_until"] = tcp["max"]
            tcp["is_cwr_due"] = 1
            on_mark(tcp, params, flight)
    elif acked > 0 and tcp["phase"] != RECOVERY and 2 * flight * PACKET_Q20 >= tcp["cwnd_q20"]:
        grow(tcp, params, acked, now_ps)


@kernel
def _remember(tcp, blocks, index):
    """Put packet ``index`` into the receiver's list of blocks, the newest first, joined with those that it touches."""
    base = tcp["first_slot"] // (tcp["mask"] + 1) * BLOCK_WORDS
    begin, end = index, index + 1
    kept = 0
    for k in range(tcp["block_count"]):
        b, e = blocks[base + 2 * k], blocks[base + 2 * k + 1]
        if b <= end and e >= begin:
            begin, end = min(b, begin), max(e, end)
        else:
            blocks[base + 2 * kept], blocks[base + 2 * kept + 1] = b, e
            kept += 1
    kept = min(kept, _BLOCKS - 1)
    for k in range(kept, 0, -1):
        blocks[base + 2 * k], blocks[base + 2 * k + 1] = blocks[base + 2 * k - 2], blocks[base + 2 * k - 1]
    blocks[base], blocks[base + 1] = begin, end
    tcp["block_count"] = kept + 1


@kernel
def _forget(tcp, blocks):
    """Drop the blocks that lie below what is expected."""
    base = tcp["first_slot"] // (tcp["mask"] + 1) * BLOCK_WORDS
    kept = 0
    for k in range(tcp["block_count"]):
        if blocks[base + 2 * k] >= tcp["expected"]:
            blocks[base + 2 * kept], blocks[base + 2 * kept + 1] = blocks[base + 2 * k], blocks[base + 2 * k + 1]
            kept += 1
    tcp["block_count"] = kept


@kernel
def _acknowledgement(tcp, blocks, out, n_out):
    """Append an ACK of all that came in order, with the newest blocks of the rest."""
    row = out[n_out]
    row["flags"] = FLAG_ACK | FLAG_ECE if tcp["is_ece"] != 0 else FLAG_ACK
    row["index"] = tcp["expected"]
    row["payload_bytes"] = 0
    base = tcp["first_slot"] // (tcp["mask"] + 1) * BLOCK_WORDS
    two = third = 0
    for k in range(min(tcp["block_count"], 3)):
        block = (blocks[base + 2 * k] - tcp["expected"]) | ((blocks[base + 2 * k + 1] - tcp["expected"]) << 16)
        if k == 2:
            third = block
        else:
            two |= block << (32 * k)
    row["blocks"] = two
    row["third_block"] = third
    tcp["unacknowledged"] = 0
    tcp["timer_at_ps"] = NEVER
    tcp["acks_sent"] += 1
    return n_out + 1


@kernel
def _note_mark(tcp, params, blocks, flags, ecn, out, n_out):
    """What the next ACK says of congestion; DCTCP acknowledges at once what came before a change (RFC 8257, 3.2)."""
    is_ce = 1 if ecn == CE else 0
    tcp["marks_received"] += is_ce
    if params["policy"] == DCTCP:
        if is_ce != tcp["is_ece"]:
            if tcp["unacknowledged"] > 0:
                n_out = _acknowledgement(tcp, blocks, out, n_out)
            tcp["is_ece"] = is_ce
        return n_out
    if flags & FLAG_CWR != 0:
        tcp["is_ece"] = 0
    if is_ce != 0:
        tcp["is_ece"] = 1
    return n_out


@kernel
def _on_data(tcp, params, received, blocks, frame, ecn, now_ps, out, n_out):
    """The receiver: place the packet; acknowledge at once what is out of order, a repeat, or fills a gap (RFC 5681)."""
    n_out = _note_mark(tcp, params, blocks, int(frame["flags"]), ecn, out, n_out)
    index = frame["index"]
    expected = tcp["expected"]
    if index - expected > tcp["mask"]:
        tcp["dropped_stale"] += 1
        return n_out
    is_plain = index == expected and tcp["highest"] <= expected
    if index < expected or received[_slot(tcp, index)] != 0:
        tcp["duplicates_received"] += 1
    else:
        tcp["rx_bytes"] += frame["payload_bytes"]
        tcp["highest"] = max(tcp["highest"], index + 1)
        if index != expected:
            received[_slot(tcp, index)] = 1
            _remember(tcp, blocks, index)
        else:
            expected += 1
            while expected < tcp["highest"] and received[_slot(tcp, expected)] != 0:
                received[_slot(tcp, expected)] = 0
                expected += 1
            tcp["expected"] = expected
            if tcp["block_count"] > 0:
                _forget(tcp, blocks)
    tcp["unacknowledged"] += 1
    if not is_plain or tcp["unacknowledged"] >= params["ack_every_packets"]:
        return _acknowledgement(tcp, blocks, out, n_out)
    if tcp["timer_at_ps"] == NEVER:
        tcp["timer_at_ps"] = now_ps + params["ack_delay_ps"]
    return n_out


@kernel
def tcp_on_frame(tcp, params, slots, received, blocks, frame, ecn, now_ps, out, n_out):
    """React to one packet; answers are appended to ``out`` (TCP_FRAME array).

    Parameters
    ----------
    tcp : TCP row, modified in place
    params : TCP_PARAMS row
    slots : SLOT array, modified in place
        Of the senders.
    received : int8 array, modified in place
        Of the receivers: packets beyond the next expected that have come.
    blocks : int64 array, modified in place
        Of the receivers: begins and ends of the blocks that were added to last.
    frame : TCP_FRAME row
    ecn : int64
        The frame's ECN field.
    now_ps, n_out : int64

    Returns
    -------
    int64
        Rows of ``out`` in use afterwards.
    """
    if frame["payload_bytes"] == 0:
        _on_ack(tcp, params, slots, frame, now_ps)
        return n_out
    return _on_data(tcp, params, received, blocks, frame, ecn, now_ps, out, n_out)


@kernel
def tcp_on_timeout(tcp, params, slots, blocks, now_ps, out, n_out):
    """A delayed ACK, or the retransmission timer: all that is not known to have come is lost. Early calls do nothing.

    Source: RFC 6298, 5.4 to 5.7; RFC 6675, 5.1. What was selectively acknowledged stays so: our receivers keep it.
    """
    if now_ps < tcp["timer_at_ps"]:
        return n_out
    tcp["timer_at_ps"] = NEVER
    if tcp["unacknowledged"] > 0:
        return _acknowledgement(tcp, blocks, out, n_out)
    tcp["timeouts"] += 1
    tcp["retries"] += 1
    if tcp["retries"] > params["retry_limit"]:
        tcp["failure"] = _RETRY_LIMIT
        return n_out
    on_loss(tcp, params, tcp["max"] - tcp["una"], 1)
    for index in range(tcp["una"], tcp["max"]):
        slot = slots[_slot(tcp, index)]
        slot["flags"] = int(slot["flags"]) & _SACKED | _TWICE
    tcp["pipe"] = tcp["sacked"] = tcp["is_urgent"] = 0
    tcp["edge"] = tcp["recover"] = tcp["mark_until"] = tcp["max"]
    tcp["scan"] = tcp["una"]
    tcp["phase"] = LOSS
    tcp["rto_ps"] = min(2 * tcp["rto_ps"], params["rto_max_ps"])
    return n_out


@kernel
def tcp_on_submit(tcp, params, length_bytes):
    """Hand over the connection's message."""
    tcp["message_bytes"] = length_bytes
    tcp["packets"] = (length_bytes + params["mtu_bytes"] - 1) // params["mtu_bytes"]
