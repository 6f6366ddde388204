"""TCP hosts, as iWARP has them: one message a connection, selective acknowledgement, Reno, CUBIC or DCTCP.

Same verbs as :mod:`emulator.roce`, on TCP rows. A message is cut once, into packets of ``mtu_bytes`` of payload with an
RDMA WRITE's MPA, DDP and RDMAP framing around each, so kernels count packets; captures show the bytes of the stream.
Sequence numbers are 64 bits wide inside. Connections are up at the start.

Source: RFC 9293; RFC 2018 and 6675 (SACK and what it repairs); RFC 6298 (timer); RFC 3168 and 8257 (ECN);
RFC 5044, 5041, 5040 (MPA, DDP, RDMAP). Our readings are in docs/model.md.
"""

from __future__ import annotations

from emulator.tcp_congestion import DCTCP, PACKET_Q20, count_marks, grow, on_loss, on_mark
from emulator.tcp_receiver import acknowledgement, take_data
from emulator.tcp_rows import (
    FLAG_ACK,
    FLAG_CWR,
    FLAG_ECE,
    FLAG_PSH,
    LOSS,
    OPEN,
    RECOVERY,
    RESENT,
    SACKED,
    TWICE,
    payload_bytes_at,
    slot_of,
)  # fmt: skip
from ttpoe._jit import kernel
from ttpoe.units import NEVER

_DUP_THRESH = 3
_RETRY_LIMIT = 1  # Failure.RETRY_LIMIT


@kernel
def _next_lost(tcp, slots):
    """The first lost packet that was not resent since, or -1; RFC 6675's NextSeg, rule 1."""
    while tcp["scan"] < tcp["edge"]:
        if int(slots[slot_of(tcp, tcp["scan"])]["flags"]) & (SACKED | RESENT) == 0:
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
        slot = slots[slot_of(tcp, index)]
        slot["flags"] = RESENT | TWICE
        tcp["scan"] = index + 1
        tcp["packets_resent"] += 1
        tcp["bytes_resent"] += payload_bytes_at(tcp, params, index)
    else:
        index = tcp["max"]
        slot = slots[slot_of(tcp, index)]
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
    slot = slots[slot_of(tcp, ack - 1)]
    if int(slot["flags"]) & (TWICE | SACKED) == 0:
        _sample_rtt(tcp, now_ps - slot["sent_at_ps"])
    for index in range(tcp["una"], ack):
        flags = int(slots[slot_of(tcp, index)]["flags"])
        if flags & SACKED != 0:
            tcp["sacked"] -= 1 if index >= tcp["edge"] else 0
        elif index >= tcp["edge"] or flags & RESENT != 0:
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
        slot = slots[slot_of(tcp, begin)]
        flags = int(slot["flags"])
        if flags & SACKED != 0:
            begin = max(int(slot["run_end"]), begin + 1)
            continue
        if begin >= tcp["edge"]:
            tcp["sacked"] += 1
            tcp["pipe"] -= 1
        elif flags & RESENT != 0:
            tcp["pipe"] -= 1
        slot["flags"] = flags | SACKED
        slot["run_end"] = begin + 1
        begin += 1
    slots[slot_of(tcp, first)]["run_end"] = max(int(slots[slot_of(tcp, first)]["run_end"]), end)


@kernel
def _find_lost(tcp, slots):
    """Move ``edge`` to where fewer than three later packets are known to have come; returns how many are lost anew.

    Source: RFC 6675, IsLost, in packets.
    """
    lost = 0
    while tcp["edge"] < tcp["max"]:
        is_sacked = int(slots[slot_of(tcp, tcp["edge"])]["flags"]) & SACKED
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
    return take_data(tcp, params, received, blocks, frame, ecn, now_ps, out, n_out)


@kernel
def tcp_on_timeout(tcp, params, slots, blocks, now_ps, out, n_out):
    """A delayed ACK, or the retransmission timer: all that is not known to have come is lost. Early calls do nothing.

    Source: RFC 6298, 5.4 to 5.7; RFC 6675, 5.1. What was selectively acknowledged stays so: our receivers keep it.
    """
    if now_ps < tcp["timer_at_ps"]:
        return n_out
    tcp["timer_at_ps"] = NEVER
    if tcp["unacknowledged"] > 0:
        return acknowledgement(tcp, blocks, out, n_out)
    tcp["timeouts"] += 1
    tcp["retries"] += 1
    if tcp["retries"] > params["retry_limit"]:
        tcp["failure"] = _RETRY_LIMIT
        return n_out
    on_loss(tcp, params, tcp["max"] - tcp["una"], 1)
    for index in range(tcp["una"], tcp["max"]):
        slot = slots[slot_of(tcp, index)]
        slot["flags"] = int(slot["flags"]) & SACKED | TWICE
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
