"""Queue pairs that resend only what is lost: IRN, and a NIC that puts reordered packets in place.

Verbs on QP rows as :mod:`emulator.roce`, with a SELECTIVE row and a ring of bits for each end: packets beyond the
cumulative acknowledgement that have come (receiver) or are known to have come (sender). Each packet is a WRITE ONLY
with a RETH of its own, so that it can be placed whenever it comes.

An answer to a packet out of order has four bytes behind its AETH with that packet's PSN. Its row keeps the PSN above
the message count, and has a ``payload_bytes`` of 4.

Source: Mittal et al., "Revisiting network support for RDMA", SIGCOMM 2018, sections 3.1 and 3.2. The format of the
answer and all of `REORDERING` are our readings.
"""

from __future__ import annotations

from emulator.roce import (
    ACKNOWLEDGE,
    PSN_MASK,
    REORDERING,
    SELECTIVE_REPEAT,
    SYNDROME_ACK,
    SYNDROME_NAK_SEQUENCE,
    psn_diff,
    retry,
    roce_poll,
    rto_ps,
)  # fmt: skip
from emulator.rows import whole_lines
from ttpoe._jit import kernel
from ttpoe.units import NEVER

SELECTIVE = whole_lines(
    [
        (name, "i8")
        for name in (
            "first_word", "mask",  # the ring: packet i is bit i & mask from there on
            "highest",  # one beyond the highest packet that came
            "is_recovering", "recovery", "scan",  # sender: until beyond packet ``recovery``; resent up to ``scan``
            "mark",  # receiver, `REORDERING`: a packet below that is still missing when its timer fires is lost
        )
    ],
)  # fmt: skip

WORD_SHIFT = 5
"""32 bits of each int64, so that no shift touches the sign."""
SACK_BYTES = 4
SACK_SHIFT = 24
MAX_WINDOW_PACKETS = 1 << 16


@kernel(inline=True)
def _has(words, sel, index):
    at = index & sel["mask"]
    return (words[sel["first_word"] + (at >> WORD_SHIFT)] >> (at & 31)) & 1


@kernel(inline=True)
def _put(words, sel, index, bit):
    at = index & sel["mask"]
    k = sel["first_word"] + (at >> WORD_SHIFT)
    words[k] = (words[k] & ~(1 << (at & 31))) | (bit << (at & 31))


@kernel
def _next_lost(qp, sel, words, params):
    """The next packet to send: the first from ``scan`` on that is lost, or a new one.

    Lost is, in recovery, what a later packet overtook; where packets are reordered, only below what was told.
    """
    if sel["is_recovering"] != 0:
        sel["scan"] = max(sel["scan"], qp["una"])
        end = sel["highest"]
        if params["recovery"] != SELECTIVE_REPEAT:
            end = min(end, sel["recovery"])  # what is beyond may just be late
        while sel["scan"] < end:
            if _has(words, sel, sel["scan"]) == 0:
                return sel["scan"]
            sel["scan"] += 1
    return qp["max"]


@kernel
def selective_poll(qp, sel, words, params, now_ps, out, n_out):
    """As :func:`emulator.roce.roce_poll`."""
    is_resending = qp["next"] < qp["max"]
    n = roce_poll(qp, params, now_ps, out, n_out)
    if n != n_out and is_resending:
        sel["scan"] = qp["next"]
        qp["next"] = _next_lost(qp, sel, words, params)
    return n


@kernel(inline=True)
def _await(qp, sel, params, now_ps):
    """Give all that is missing now a while to come."""
    sel["mark"] = sel["highest"]
    qp["timer_at_ps"] = now_ps + params["reorder_ps"] if sel["highest"] > qp["expected"] else NEVER


@kernel(inline=True)
def _answer(qp, syndrome, told_psn, sack_bytes, out, n_out):
    row = out[n_out]
    row["opcode"] = ACKNOWLEDGE
    row["syndrome"] = syndrome
    row["psn"] = (qp["initial_psn"] + qp["expected"]) & PSN_MASK
    if syndrome == SYNDROME_ACK:
        qp["acks_sent"] += 1
        row["psn"] = (qp["initial_psn"] + qp["expected"] - 1) & PSN_MASK
    else:
        qp["naks_sent"] += 1
    row["msn"] = (qp["msn"] & PSN_MASK) | (told_psn << SACK_SHIFT if sack_bytes else 0)
    row["payload_bytes"] = sack_bytes
    return n_out + 1


@kernel
def _on_data(qp, sel, words, params, frame, now_ps, out, n_out):
    """The responder: place the packet, tell what came."""
    expected = qp["expected"]
    index = expected + psn_diff(frame["psn"], (qp["initial_psn"] + expected) & PSN_MASK)
    if index - expected > sel["mask"]:
        qp["dropped_stale"] += 1
        return n_out
    syndrome = SYNDROME_ACK
    sack_bytes = 0
    if index < expected or _has(words, sel, index) != 0:
        qp["duplicates_received"] += 1
    else:
        qp["rx_bytes"] += frame["payload_bytes"]
        qp["unacknowledged"] += 1
        had_gap = sel["highest"] > expected
        sel["highest"] = max(sel["highest"], index + 1)
        if index == expected:
            expected += 1
            while expected < sel["highest"] and _has(words, sel, expected) != 0:
                _put(words, sel, expected, 0)
                expected += 1
            qp["expected"] = expected
            qp["msn"] = expected
            if params["recovery"] == REORDERING and expected >= sel["mark"]:
                _await(qp, sel, params, now_ps)
            if not had_gap and qp["unacknowledged"] < params["ack_every_packets"] and int(frame["syndrome"]) == 0:
                return n_out
        else:
            _put(words, sel, index, 1)
            sack_bytes = SACK_BYTES
            if params["recovery"] == SELECTIVE_REPEAT:
                syndrome = SYNDROME_NAK_SEQUENCE
            elif qp["timer_at_ps"] == NEVER:
                _await(qp, sel, params, now_ps)
    qp["unacknowledged"] = 0
    return _answer(qp, syndrome, frame["psn"], sack_bytes, out, n_out)


@kernel
def selective_on_frame(qp, sel, words, params, frame, now_ps, out, n_out):
    """React to one packet; as :func:`emulator.roce.roce_on_frame`."""
    if int(frame["opcode"]) != ACKNOWLEDGE:
        return _on_data(qp, sel, words, params, frame, now_ps, out, n_out)
    is_nak = int(frame["syndrome"]) == SYNDROME_NAK_SEQUENCE
    base = (qp["initial_psn"] + qp["una"]) & PSN_MASK
    acknowledged = qp["una"] + psn_diff(frame["psn"], base) + (0 if is_nak else 1)
    if acknowledged > qp["max"] or qp["failure"] != 0:
        qp["dropped_stale"] += 1
        return n_out
    sacked = qp["una"]
    if frame["payload_bytes"] != 0:  # an answer that was overtaken still tells of its packet
        sacked = qp["una"] + psn_diff((frame["msn"] >> SACK_SHIFT) & PSN_MASK, base)
        if qp["una"] <= sacked < qp["max"]:
            _put(words, sel, sacked, 1)
            sel["highest"] = max(sel["highest"], sacked + 1)
    if acknowledged < qp["una"]:
        qp["dropped_stale"] += 1
    elif acknowledged > qp["una"]:
        for index in range(qp["una"], acknowledged):
            _put(words, sel, index, 0)
        qp["una"] = acknowledged
        qp["retries"] = 0
        if sel["is_recovering"] != 0 and acknowledged > sel["recovery"]:
            sel["is_recovering"] = 0
        qp["timer_at_ps"] = NEVER if acknowledged == qp["max"] else now_ps + rto_ps(qp, params)
    is_told = is_nak and acknowledged == qp["una"]
    if is_told:
        qp["naks_received"] += 1
        if params["recovery"] != SELECTIVE_REPEAT or sel["is_recovering"] == 0:
            sel["is_recovering"] = 1
            sel["recovery"] = qp["max"] - 1 if params["recovery"] == SELECTIVE_REPEAT else sacked
            sel["scan"] = acknowledged
            qp["timer_at_ps"] = NEVER
    if sel["is_recovering"] != 0 or qp["next"] < acknowledged or qp["next"] >= qp["max"]:
        qp["next"] = _next_lost(qp, sel, words, params)
    return n_out


@kernel
def selective_on_timeout(qp, sel, params, now_ps, out, n_out):
    """The requester sends its oldest packet again, then what was overtaken; the responder tells what stays away.

    Where packets are reordered the requester sends all again that is not known to have come: the tail may be lost,
    and a responder that nothing reaches tells of nothing.

    Returns the rows of ``out`` in use. Early calls change nothing.
    """
    if qp["packets"] == 0:
        if now_ps < qp["timer_at_ps"]:
            return n_out
        told_psn = (qp["initial_psn"] + sel["mark"] - 1) & PSN_MASK
        _await(qp, sel, params, now_ps)
        return _answer(qp, SYNDROME_NAK_SEQUENCE, told_psn, SACK_BYTES, out, n_out)
    if retry(qp, params, now_ps) != 0:
        sel["is_recovering"] = 1
        sel["recovery"] = qp["max"] - 1
        if params["recovery"] != SELECTIVE_REPEAT:
            sel["recovery"] = sel["highest"] = qp["max"]  # all of it is late beyond any reordering
        sel["scan"] = qp["next"] = qp["una"]
    return n_out
