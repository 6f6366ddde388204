"""Kernels of the search: unpack a state, take one step with the machine's own kernels, look for broken promises."""

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
    Step,
    Violation,
)
from ttpoe.constants import SEQ_MASK
from ttpoe.fsm import Opcode, State
from ttpoe.machine import (
    next_payload_bytes,
    on_close,
    on_frame,
    on_open,
    on_read,
    on_submit,
    on_timeout,
    poll_payload,
    release,
)
from ttpoe.state import Failure
from ttpoe.units import NEVER

_FIXED, _SMALL, _SEQ = int(Kept.FIXED), int(Kept.SMALL), int(Kept.SEQ)
_CONSTANT = int(Kept.CONSTANT)
_BYTES, _ARMED, _SAMPLED = int(Kept.BYTES), int(Kept.ARMED), int(Kept.SAMPLED)
_PAYLOAD, _NACK = int(Opcode.PAYLOAD), int(Opcode.NACK)
_CLOSED, _OPEN_SENT, _OPEN_RECD, _OPEN = int(State.CLOSED), int(State.OPEN_SENT), int(State.OPEN_RECD), int(State.OPEN)
_CLOSE_SENT, _CLOSE_RECD = int(State.CLOSE_SENT), int(State.CLOSE_RECD)
_F_RETRY_LIMIT, _F_REFUSED, _F_LINK_DOWN = int(Failure.RETRY_LIMIT), int(Failure.REFUSED), int(Failure.LINK_DOWN)
_F_PEER_RESTARTED, _F_CLOSED_UNSENT = int(Failure.PEER_RESTARTED), int(Failure.CLOSED_UNSENT)

_DO_OPEN, _SUBMIT, _CLOSE, _READ, _POLL = (
    int(Step.OPEN), int(Step.SUBMIT), int(Step.CLOSE), int(Step.READ), int(Step.POLL),
)  # fmt: skip
_TIMEOUT, _EARLY_TIMEOUT, _DELIVER, _LOSE = (
    int(Step.TIMEOUT), int(Step.EARLY_TIMEOUT), int(Step.DELIVER), int(Step.LOSE),
)  # fmt: skip
_DUPLICATE, _DELAY, _CRASH = int(Step.DUPLICATE), int(Step.DELAY), int(Step.CRASH)
_LATE, _DELIVER_EARLY, _LATE_EARLY = int(Step.LATE), int(Step.DELIVER_EARLY), int(Step.LATE_EARLY)
_LONG_TIMEOUT = int(Step.LONG_TIMEOUT)

_V_CUT, _V_STATUS, _V_TWICE = int(Violation.CUT), int(Violation.STATUS), int(Violation.TWICE)
_V_WRONG_BYTES, _V_ACKNOWLEDGED = int(Violation.WRONG_BYTES), int(Violation.ACKNOWLEDGED)
_V_WINDOW, _V_OFFSETS, _V_UNDRIVEN = int(Violation.WINDOW), int(Violation.OFFSETS), int(Violation.UNDRIVEN)
_V_HOLDS, _V_RESTS, _V_REVIVED = int(Violation.HOLDS), int(Violation.RESTS), int(Violation.REVIVED)
_V_RETRIES, _V_GAVE_UP, _V_UNTOLD = int(Violation.RETRIES), int(Violation.GAVE_UP), int(Violation.UNTOLD)
_V_BUFFER, _V_OUTSIDE, _V_STUCK = int(Violation.BUFFER), int(Violation.OUTSIDE), int(Violation.STUCK)
_V_OWES, _V_CLOSE_FORGOTTEN = int(Violation.OWES), int(Violation.CLOSE_FORGOTTEN)
_V_HALF_CLOSED, _V_UNREAD = int(Violation.HALF_CLOSED), int(Violation.UNREAD)

_CHANNEL = 2
_CODE_NEVER = 255


# Bytes of a state


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
def _copy_flight(source, target):
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
                        _copy_flight(flights[j], spare)
                        _copy_flight(flights[j - 1], flights[j])
                        _copy_flight(spare, flights[j - 1])
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


# Steps


@kernel
def renew(w, side):
    """The endpoint makes the row new, with an opening id far from those before."""
    for f in range(w.kinds.size):
        w.words[side, f] = w.fresh[side, f]
    owner = w.owners[side]
    owner["incarnation"] += 1
    owner["delivered_bytes"] = 0
    link = w.links[side]
    link["initial_seq"] = w.bases[side * INCARNATIONS + owner["incarnation"]]
    link["tx_una"] = (link["initial_seq"] + 1) & SEQ_MASK
    link["tx_next"] = link["tx_una"]
    link["tx_max"] = link["tx_una"]
    w.pools[side]["held_bytes"] = 0


@kernel
def _can_poll(w, side):
    if w.counts[1 - side, 0] >= w.model[0]["line_frames"]:
        return False
    return next_payload_bytes(w.links[side], w.pools[side], w.params[0], w.ring) > 0


@kernel
def _may_be_early(w, side, flight):
    """A NACK of an id that was sent again: it may be about an earlier pass, and only the clock tells."""
    link = w.links[side]
    if flight["opcode"] != _NACK or link["min_rtt_ps"] == NEVER:
        return False
    ahead = (flight["rx_seq"] - link["tx_una"]) & SEQ_MASK
    return ahead < SLOTS and w.ring[side * SLOTS + (flight["rx_seq"] & (SLOTS - 1))]["is_resent"] != 0


@kernel
def enabled_steps(w, side):
    """Bit mask of the steps that can be taken at ``side``."""
    link = w.links[side]
    owner = w.owners[side]
    budget = w.budget[0]
    state = link["state"]
    mask = 0
    if owner["opens"] > 0 and state == _CLOSED and link["has_ended"] == 0:
        mask |= 1 << _DO_OPEN
    if state != _CLOSED and link["is_closing"] == 0:
        if owner["submits"] > 0 and state != _CLOSE_RECD:
            mask |= 1 << _SUBMIT
        if owner["closes"] > 0:
            mask |= 1 << _CLOSE
    if link["rx_bytes"] != link["rx_read_bytes"]:
        mask |= 1 << _READ
    if _can_poll(w, side):
        mask |= 1 << _POLL
    n = w.counts[side, 0]
    n_late = w.counts[side, 1]
    if link["timer_at_ps"] != NEVER:
        is_idle = w.counts[0, 0] == 0 and w.counts[1, 0] == 0 and not _can_poll(w, 0) and not _can_poll(w, 1)
        if is_idle and owner["timed_out"] == 0:
            mask |= 1 << _TIMEOUT
            if link["proven_at_byte"] != NEVER and w.counts[0, 1] == 0 and w.counts[1, 1] == 0:
                mask |= 1 << _LONG_TIMEOUT
        elif budget["early_timeouts"] > 0:
            mask |= 1 << _EARLY_TIMEOUT
    if n > 0:
        mask |= 1 << _DELIVER
        if _may_be_early(w, side, w.line[side, 0]):
            mask |= 1 << _DELIVER_EARLY
        if budget["losses"] > 0:
            mask |= 1 << _LOSE
        if n_late < LATE:
            if budget["duplicates"] > 0:
                mask |= 1 << _DUPLICATE
            if budget["delays"] > 0:
                mask |= 1 << _DELAY
    for k in range(n_late):
        mask |= 1 << (_LATE + k)
        if _may_be_early(w, side, w.late[side, k]):
            mask |= 1 << (_LATE_EARLY + k)
    was_used = state != _CLOSED or link["has_ended"] != 0
    if budget["crashes"] > 0 and was_used and owner["incarnation"] + 1 < INCARNATIONS:
        mask |= 1 << _CRASH
    return mask


@kernel
def _emit(w, side, n_out, start_byte):
    """Put what the machine appended on the line to the peer."""
    if n_out < 0:
        return _V_STATUS
    peer = 1 - side
    for k in range(n_out):
        n = w.counts[peer, 0]
        if n >= LINE:
            return _V_CUT
        flight = w.line[peer, n]
        flight["opcode"] = w.out[k]["opcode"]
        flight["tx_seq"] = w.out[k]["tx_seq"]
        flight["rx_seq"] = w.out[k]["rx_seq"]
        flight["payload_bytes"] = w.out[k]["payload_bytes"]
        flight["start_byte"] = start_byte
        w.counts[peer, 0] = n + 1
    return 0


@kernel
def _take_off(w, side, where, k):
    """Move a frame from its line or detour into the spare row behind the line."""
    flights = w.line[side] if where == 0 else w.late[side]
    spare = w.line[side, LINE]
    _copy_flight(flights[k], spare)
    n = w.counts[side, where] - 1
    for j in range(k, n):
        _copy_flight(flights[j + 1], flights[j])
    w.counts[side, where] = n


@kernel
def _deliver(w, side):
    """The frame in the spare row arrives at ``side``; what it makes the machine deliver must be the next bytes."""
    flight = w.line[side, LINE]
    frame = w.inbox[0]
    frame["opcode"] = flight["opcode"]
    frame["vc"] = _CHANNEL
    frame["tx_seq"] = flight["tx_seq"]
    frame["rx_seq"] = flight["rx_seq"]
    frame["payload_bytes"] = flight["payload_bytes"]
    link = w.links[side]
    n_out = 0
    before = 0
    for _ in range(2):
        before = link["rx_bytes"]
        n_out = on_frame(link, w.ring, w.pools[side], w.params[0], frame, NOW_PS, w.out, 0)
        if link["failure"] != _F_PEER_RESTARTED or link["has_ended"] == 0:
            break
        if w.model[0]["crashes"] == w.budget[0]["crashes"]:
            return _V_GAVE_UP
        if w.owners[side]["incarnation"] + 1 == INCARNATIONS:
            break
        # The owner is told; the endpoint makes the row new and hands it the same frame, as ttpoe.batch does
        renew(w, side)
    delivered = link["rx_bytes"] - before
    if delivered != 0:
        peer = 1 - side
        if flight["start_byte"] < before:
            return _V_TWICE
        if frame["opcode"] != _PAYLOAD or delivered != frame["payload_bytes"] or flight["start_byte"] != before:
            return _V_WRONG_BYTES
        if (frame["tx_seq"] - w.links[peer]["initial_seq"]) & SEQ_MASK < SPAN:  # of the stream that the peer sends now
            w.owners[peer]["delivered_bytes"] = max(w.owners[peer]["delivered_bytes"], before + delivered)
        if link["rx_limit_bytes"] == NEVER:
            on_read(link, delivered)
    return _emit(w, side, n_out, 0)


@kernel
def take_step(w, side, kind):
    """Take an enabled step on the unpacked state; returns 0, CUT, or the Violation that it brings about."""
    link = w.links[side]
    owner = w.owners[side]
    budget = w.budget[0]
    code = 0
    had_ended = link["has_ended"]
    if kind == _DO_OPEN:
        owner["opens"] -= 1
        code = _emit(w, side, on_open(link, NOW_PS, w.out, 0), 0)
    elif kind == _SUBMIT:
        owner["submits"] -= 1
        if on_submit(link, w.model[0]["submit_bytes"]) != 0:
            code = _V_STATUS
    elif kind == _CLOSE:
        owner["closes"] -= 1
        owner["submits"] = 0
        code = _emit(w, side, on_close(link, NOW_PS, w.out, 0), 0)
    elif kind == _READ:
        on_read(link, 1)
    elif kind == _POLL:
        start_byte = link["sent_bytes"]
        n_out = poll_payload(link, w.ring, w.pools[side], w.params[0], NOW_PS, w.out, 0)
        code = _emit(w, side, n_out, start_byte)
    elif kind == _TIMEOUT or kind == _EARLY_TIMEOUT or kind == _LONG_TIMEOUT:
        if kind == _LONG_TIMEOUT:
            link["proven_at_ps"] = NOW_PS - w.params[0]["rto_max_ps"]
        if kind == _EARLY_TIMEOUT:
            budget["early_timeouts"] -= 1
        else:
            owner["timed_out"] = 1
            w.owners[1 - side]["timed_out"] = 0
        link["timer_at_ps"] = NOW_PS
        n_out = on_timeout(link, w.params[0], NOW_PS, w.out, 0)
        release(link, w.pools[side])
        code = _emit(w, side, n_out, 0)
    elif kind == _LOSE:
        budget["losses"] -= 1
        _take_off(w, side, 0, 0)
    elif kind == _DUPLICATE or kind == _DELAY:
        _copy_flight(w.line[side, 0], w.late[side, w.counts[side, 1]])
        w.counts[side, 1] += 1
        if kind == _DUPLICATE:
            budget["duplicates"] -= 1
        else:
            budget["delays"] -= 1
            _take_off(w, side, 0, 0)
    elif kind == _CRASH:
        budget["crashes"] -= 1
        renew(w, side)
        owner["opens"] = 1
        owner["submits"] = 1
        owner["closes"] = 1
    else:
        if kind == _DELIVER_EARLY or kind >= _LATE_EARLY:
            for k in range(SLOTS):
                w.ring[side * SLOTS + k]["sent_at_ps"] = NOW_PS
        if kind == _DELIVER or kind == _DELIVER_EARLY:
            _take_off(w, side, 0, 0)
        else:
            _take_off(w, side, 1, kind - (_LATE if kind < _DELIVER_EARLY else _LATE_EARLY))
        code = _deliver(w, side)
    if code != 0:
        return code
    if link["has_ended"] != 0:
        owner["opens"] = 0
        owner["submits"] = 0
        owner["closes"] = 0
    return _watch(w, side, had_ended)


# Promises


@kernel
def _has_reason(w, side):
    """Whether a failure of this end has a reason that the bounds brought about."""
    link = w.links[side]
    peer = w.links[1 - side]
    model = w.model[0]
    budget = w.budget[0]
    failure = link["failure"]
    trouble = model["trouble"] - budget["losses"] - budget["delays"] - budget["early_timeouts"]
    if budget["crashes"] != model["crashes"]:
        # Not the end that it was linked to; or copies and stragglers of frames from before the crash, which no id of
        # two messages can tell from news
        if (link["rx_seq"] - peer["initial_seq"]) & SEQ_MASK >= SPAN or failure == _F_REFUSED:
            return True
        if trouble != 0 or budget["duplicates"] != model["duplicates"]:
            return True
    if failure == _F_RETRY_LIMIT:
        # A frame costs three timeouts at most: its own, one of a resend that came before the OPEN_ACK, and one of a
        # resend that came while the peer's CLOSE was unanswered
        return 3 * trouble > w.params[0]["retry_limit"] or (peer["has_ended"] != 0 and peer["failure"] != 0)
    if failure == _F_LINK_DOWN:
        return peer["has_ended"] != 0
    if failure == _F_REFUSED or failure == _F_CLOSED_UNSENT:
        return peer["is_closing"] != 0 or peer["has_ended"] != 0
    return failure == _F_PEER_RESTARTED and budget["crashes"] != model["crashes"]


@kernel
def _watch(w, side, had_ended):
    """What must hold after every step, of the link that took it."""
    link = w.links[side]
    params = w.params[0]
    state = link["state"]
    armed = link["timer_at_ps"] != NEVER
    if link["has_ended"] != 0:
        if state != _CLOSED:
            return _V_REVIVED
        if armed:
            return _V_UNDRIVEN
        if link["failure"] == 0 and link["acked_bytes"] != link["submitted_bytes"]:
            return _V_UNTOLD
        if link["failure"] != 0 and had_ended == 0 and not _has_reason(w, side):
            return _V_GAVE_UP
    elif link["failure"] != 0:
        return _V_REVIVED
    if link["acked_bytes"] > w.owners[side]["delivered_bytes"]:
        return _V_ACKNOWLEDGED
    if link["has_ended"] != 0:
        return 0
    held = link["cut_bytes"] - link["acked_bytes"]
    if held > params["window_bytes"]:
        return _V_WINDOW
    outstanding = (link["tx_max"] - link["tx_una"]) & SEQ_MASK
    in_flight = (link["tx_next"] - link["tx_una"]) & SEQ_MASK
    if in_flight > outstanding or outstanding > SLOTS or (outstanding == 0) != (held == 0):
        return _V_OFFSETS
    if not link["acked_bytes"] <= link["sent_bytes"] <= link["cut_bytes"] <= link["submitted_bytes"]:
        return _V_OFFSETS
    if w.pools[side]["held_bytes"] != held:
        return _V_OFFSETS
    unread = link["rx_bytes"] - link["rx_read_bytes"]
    if unread < 0 or (link["rx_limit_bytes"] != NEVER and unread > max(link["rx_limit_bytes"], params["mtu_bytes"])):
        return _V_BUFFER
    if link["retries"] > params["retry_limit"]:
        return _V_RETRIES
    if state == _OPEN_RECD:
        return _V_RESTS
    if link["peer_room_bytes"] == 0 and not (armed and outstanding > 0 and in_flight == 0):
        return _V_HOLDS
    if not armed:
        if state == _OPEN_SENT or state == _CLOSE_SENT or in_flight > 0:
            return _V_UNDRIVEN
        if state == _CLOSE_RECD and outstanding == 0:
            return _V_UNDRIVEN
    return 0


@kernel
def judge(w):
    """What must have come of it where nothing can happen any more, without trouble or another wish of an owner."""
    for side in range(2):
        link = w.links[side]
        peer = w.links[1 - side]
        state = link["state"]
        if link["has_ended"] != 0:
            lost_touch = w.budget[0]["crashes"] != w.model[0]["crashes"]
            if link["failure"] == 0 and peer["state"] == _OPEN and not lost_touch:
                return _V_HALF_CLOSED
            continue
        if state != _CLOSED and state != _OPEN:
            return _V_STUCK
        if link["acked_bytes"] != link["submitted_bytes"]:
            return _V_OWES
        if link["is_closing"] != 0:
            return _V_CLOSE_FORGOTTEN
        if link["rx_bytes"] != link["rx_read_bytes"]:
            return _V_UNREAD
    return 0
