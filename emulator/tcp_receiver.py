"""The receiving half of :mod:`emulator.tcp`: places packets, keeps blocks for SACK, and says what it must acknowledge.

Source: RFC 5681, 4.2 (when to acknowledge); RFC 2018, 4 (which blocks); RFC 3168, 6.1.3 and RFC 8257, 3.2 (marks).
"""

from __future__ import annotations

from emulator.packet import CE
from emulator.tcp_congestion import DCTCP
from emulator.tcp_rows import BLOCK_WORDS, BLOCKS, FLAG_ACK, FLAG_CWR, FLAG_ECE, slot_of
from ttpoe._jit import kernel
from ttpoe.units import NEVER


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
    kept = min(kept, BLOCKS - 1)
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
def acknowledgement(tcp, blocks, out, n_out):
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
                n_out = acknowledgement(tcp, blocks, out, n_out)
            tcp["is_ece"] = is_ce
        return n_out
    if flags & FLAG_CWR != 0:
        tcp["is_ece"] = 0
    if is_ce != 0:
        tcp["is_ece"] = 1
    return n_out


@kernel
def take_data(tcp, params, received, blocks, frame, ecn, now_ps, out, n_out):
    """The receiver: place the packet; acknowledge at once what is out of order, a repeat, or fills a gap (RFC 5681)."""
    n_out = _note_mark(tcp, params, blocks, int(frame["flags"]), ecn, out, n_out)
    index = frame["index"]
    expected = tcp["expected"]
    if index - expected > tcp["mask"]:
        tcp["dropped_stale"] += 1
        return n_out
    is_plain = index == expected and tcp["highest"] <= expected
    if index < expected or received[slot_of(tcp, index)] != 0:
        tcp["duplicates_received"] += 1
    else:
        tcp["rx_bytes"] += frame["payload_bytes"]
        tcp["highest"] = max(tcp["highest"], index + 1)
        if index != expected:
            received[slot_of(tcp, index)] = 1
            _remember(tcp, blocks, index)
        else:
            expected += 1
            while expected < tcp["highest"] and received[slot_of(tcp, expected)] != 0:
                received[slot_of(tcp, expected)] = 0
                expected += 1
            tcp["expected"] = expected
            if tcp["block_count"] > 0:
                _forget(tcp, blocks)
    tcp["unacknowledged"] += 1
    if not is_plain or tcp["unacknowledged"] >= params["ack_every_packets"]:
        return acknowledgement(tcp, blocks, out, n_out)
    if tcp["timer_at_ps"] == NEVER:
        tcp["timer_at_ps"] = now_ps + params["ack_delay_ps"]
    return n_out
