"""Kernels of the search: a state as bytes from a `World`, and back."""

from __future__ import annotations

from ttpoe._jit import kernel
from ttpoe.check.layout import (
    BASES,
    BELOW,
    INCARNATIONS,
    LATE,
    LINE,
    NOW_PS,
    RTO_PS,
    RTT_PS,
    SLOTS,
    SPAN,
    Kept,
    Violation,
)
from ttpoe.constants import SEQ_MASK
from ttpoe.units import NEVER

_FIXED, _SMALL, _SEQ, _CONSTANT = int(Kept.FIXED), int(Kept.SMALL), int(Kept.SEQ), int(Kept.CONSTANT)
_BYTES, _ARMED, _SAMPLED = int(Kept.BYTES), int(Kept.ARMED), int(Kept.SAMPLED)
_V_OUTSIDE = int(Violation.OUTSIDE)
_CODE_NEVER = 255


@kernel(inline=True)
def _encode_seq(bases, seq):
    """An id as a byte, or -1 if it is near none of the ids that the bounds bring about."""
    for b in range(BASES):
        distance = (seq - bases[b] + BELOW) & SEQ_MASK
        if distance < SPAN:
            return b * SPAN + distance
    return -1


@kernel(inline=True)
def _decode_seq(bases, code):
    return (bases[code // SPAN] + code % SPAN - BELOW) & SEQ_MASK


@kernel(inline=True)
def _encode(kind, value, bases):
    """A field as a byte, or a number beyond it."""
    if kind == _SEQ:
        return _encode_seq(bases, value)
    if kind == _BYTES:
        return _CODE_NEVER if value == NEVER else (value if value < _CODE_NEVER else -1)
    if kind == _ARMED:
        return 0 if value == NEVER else 1
    if kind == _SAMPLED:
        return 0 if value == 0 else 1
    return value


@kernel(inline=True)
def _decode(kind, code, bases):
    if kind == _SEQ:
        return _decode_seq(bases, code)
    if kind == _BYTES:
        return NEVER if code == _CODE_NEVER else code
    if kind == _ARMED:
        return NEVER if code == 0 else RTT_PS
    if kind == _SAMPLED:
        return 0 if code == 0 else RTT_PS
    return code


@kernel(inline=True)
def _forget_the_dead(link):
    """Give values that no rule will read again one form, so that states which differ in them alone are one."""
    if link["rx_nacked"] == 0:
        link["rx_gap_seq"] = 0
    if link["has_rx_closing"] == 0:
        link["rx_closing_seq"] = 0
    if link["has_ended"] != 0:
        link["is_closing"] = 0
        link["close_answered"] = 0
        link["rx_nacked"] = 0
        link["rx_is_full"] = 0
        link["has_rx_closing"] = 0
        link["timer_is_probe"] = 0
        link["retries"] = 0
        link["payloads_received"] = 0
        link["rx_seq"] = 0
        link["rx_gap_seq"] = 0
        link["rx_closing_seq"] = 0
        link["tx_una"] = 0
        link["tx_next"] = 0
        link["tx_max"] = 0
        link["proven_at_byte"] = 0
        link["rx_bytes"] = 0
        link["rx_read_bytes"] = 0
        link["peer_room_bytes"] = NEVER
        link["tail_bytes"] = 0
        link["probed_byte"] = 0
        link["min_rtt_ps"] = NEVER
        link["srtt_ps"] = 0


@kernel(inline=True)
def _is_before(one, other):
    """Any total order of frames: what is on a detour has no order of its own."""
    if one["opcode"] != other["opcode"]:
        return one["opcode"] < other["opcode"]
    if one["tx_seq"] != other["tx_seq"]:
        return one["tx_seq"] < other["tx_seq"]
    return one["rx_seq"] < other["rx_seq"]


@kernel(inline=True)
def copy_flight(source, target):
    target["opcode"] = source["opcode"]
    target["tx_seq"] = source["tx_seq"]
    target["rx_seq"] = source["rx_seq"]
    target["payload_bytes"] = source["payload_bytes"]
    target["start_byte"] = source["start_byte"]


@kernel(inline=True)
def _pack_flight(bases, flight, state, at):
    """Four bytes of a frame; returns 0, or 1 if something is out of range."""
    tx = _encode_seq(bases, flight["tx_seq"])
    rx = _encode_seq(bases, flight["rx_seq"])
    if tx < 0 or rx < 0 or not 0 <= flight["payload_bytes"] < 16 or not 0 <= flight["start_byte"] < 256:
        return 1
    state[at] = flight["opcode"] + 16 * flight["payload_bytes"]
    state[at + 1] = tx
    state[at + 2] = rx
    state[at + 3] = flight["start_byte"]
    return 0


@kernel
def pack(w, state):
    """Write ``w`` into ``state`` (uint8, modified in place); returns 0, or a Violation if a number is out of range."""
    bad = 0
    at = 0
    for side in range(2):
        link = w.links[side]
        _forget_the_dead(link)
        for f in range(w.kinds.size):
            kind = int(w.kinds[f])
            if kind == _CONSTANT:
                if w.words[side, f] != w.fresh[side, f]:
                    bad = 1
            elif kind != _FIXED:
                code = _encode(kind, w.words[side, f], w.bases)
                if code < 0 or code > 255:
                    bad = 1
                state[at] = code & 255
                at += 1
        held = 0 if link["has_ended"] != 0 else (link["tx_max"] - link["tx_una"]) & SEQ_MASK
        for k in range(SLOTS):
            state[at + k] = 0
        for k in range(min(held, SLOTS)):
            slot = w.ring[side * SLOTS + ((link["tx_una"] + k) & (SLOTS - 1))]
            if slot["end_byte"] > 127:
                bad = 1
            state[at + k] = (slot["end_byte"] & 127) + 128 * slot["is_resent"]
        at += SLOTS
        owner = w.owners[side]
        state[at] = owner["opens"]
        state[at + 1] = owner["submits"]
        state[at + 2] = owner["closes"]
        state[at + 3] = owner["incarnation"]
        state[at + 4] = owner["delivered_bytes"]
        if link["has_ended"] != 0 or w.links[1 - side]["timer_at_ps"] == NEVER:
            owner["timed_out"] = 0
        state[at + 5] = owner["timed_out"]
        at += 6
        for where in range(2):
            flights = w.line[side] if where == 0 else w.late[side]
            n = w.counts[side, where]
            if where == 1:
                for i in range(1, n):  # a few at most
                    for j in range(i, 0, -1):
                        if not _is_before(flights[j], flights[j - 1]):
                            break
                        spare = w.line[side, LINE]
                        copy_flight(flights[j], spare)
                        copy_flight(flights[j - 1], flights[j])
                        copy_flight(spare, flights[j - 1])
            state[at] = n
            at += 1
            room = LINE if where == 0 else LATE
            for k in range(room):
                if k < n:
                    bad |= _pack_flight(w.bases, flights[k], state, at)
                else:
                    state[at] = 0
                    state[at + 1] = 0
                    state[at + 2] = 0
                    state[at + 3] = 0
                at += 4
    budget = w.budget[0]
    state[at] = budget["losses"]
    state[at + 1] = budget["duplicates"]
    state[at + 2] = budget["delays"]
    state[at + 3] = budget["early_timeouts"]
    state[at + 4] = budget["crashes"]
    for k in range(at + 5, len(state)):
        state[k] = 0
    return _V_OUTSIDE if bad != 0 else 0


@kernel
def unpack(w, state):
    """Write ``state`` (uint8) into ``w`` (modified in place), with times that say no more than the state does."""
    at = 0
    for side in range(2):
        link = w.links[side]
        for f in range(w.kinds.size):
            kind = int(w.kinds[f])
            if kind == _FIXED or kind == _CONSTANT:
                w.words[side, f] = w.fresh[side, f]
            else:
                w.words[side, f] = _decode(kind, int(state[at]), w.bases)
                at += 1
        if link["timer_at_ps"] != NEVER:
            link["timer_at_ps"] = NOW_PS + RTO_PS - RTT_PS
        link["rto_ps"] = RTO_PS
        link["rttvar_ps"] = link["srtt_ps"] // 2
        link["last_sent_at_ps"] = NOW_PS - RTT_PS
        link["proven_at_ps"] = NOW_PS - RTT_PS
        for k in range(SLOTS):
            slot = w.ring[side * SLOTS + ((link["tx_una"] + k) & (SLOTS - 1))]
            code = int(state[at + k])
            slot["end_byte"] = code & 127
            slot["is_resent"] = code >> 7
            slot["sent_at_ps"] = NOW_PS - RTT_PS
        at += SLOTS
        w.pools[side]["held_bytes"] = link["cut_bytes"] - link["acked_bytes"] if link["has_ended"] == 0 else 0
        owner = w.owners[side]
        owner["opens"] = state[at]
        owner["submits"] = state[at + 1]
        owner["closes"] = state[at + 2]
        owner["incarnation"] = state[at + 3]
        owner["delivered_bytes"] = state[at + 4]
        owner["timed_out"] = state[at + 5]
        link["initial_seq"] = w.bases[side * INCARNATIONS + owner["incarnation"]]
        at += 6
        for where in range(2):
            flights = w.line[side] if where == 0 else w.late[side]
            n = int(state[at])
            w.counts[side, where] = n
            at += 1
            for k in range(n):
                here = at + 4 * k
                flight = flights[k]
                flight["opcode"] = int(state[here]) % 16
                flight["payload_bytes"] = int(state[here]) // 16
                flight["tx_seq"] = _decode_seq(w.bases, int(state[here + 1]))
                flight["rx_seq"] = _decode_seq(w.bases, int(state[here + 2]))
                flight["start_byte"] = state[here + 3]
            at += 4 * (LINE if where == 0 else LATE)
    budget = w.budget[0]
    budget["losses"] = state[at]
    budget["duplicates"] = state[at + 1]
    budget["delays"] = state[at + 2]
    budget["early_timeouts"] = state[at + 3]
    budget["crashes"] = state[at + 4]
