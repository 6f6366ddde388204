"""Kernels of the search: which steps a state allows, and one of them taken with the machine's own kernels."""

from __future__ import annotations

from ttpoe._jit import kernel
from ttpoe.check.layout import INCARNATIONS, LATE, LINE, NOW_PS, SLOTS, SPAN, Step, Violation
from ttpoe.check.packing import copy_flight
from ttpoe.check.promises import watch
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

_PAYLOAD, _NACK = int(Opcode.PAYLOAD), int(Opcode.NACK)
_CLOSED, _CLOSE_RECD = int(State.CLOSED), int(State.CLOSE_RECD)
_F_PEER_RESTARTED = int(Failure.PEER_RESTARTED)

_DO_OPEN, _SUBMIT, _CLOSE, _READ, _POLL = (
    int(Step.OPEN), int(Step.SUBMIT), int(Step.CLOSE), int(Step.READ), int(Step.POLL),
)  # fmt: skip
_TIMEOUT, _EARLY_TIMEOUT, _LONG_TIMEOUT = (
    int(Step.TIMEOUT), int(Step.EARLY_TIMEOUT), int(Step.LONG_TIMEOUT),
)  # fmt: skip
_DELIVER, _LOSE, _DUPLICATE, _DELAY, _CRASH = (
    int(Step.DELIVER), int(Step.LOSE), int(Step.DUPLICATE), int(Step.DELAY), int(Step.CRASH),
)  # fmt: skip
_LATE, _DELIVER_EARLY, _LATE_EARLY = int(Step.LATE), int(Step.DELIVER_EARLY), int(Step.LATE_EARLY)

_V_CUT, _V_STATUS, _V_TWICE = int(Violation.CUT), int(Violation.STATUS), int(Violation.TWICE)
_V_WRONG_BYTES, _V_GAVE_UP = int(Violation.WRONG_BYTES), int(Violation.GAVE_UP)
_CHANNEL = 2


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
    copy_flight(flights[k], spare)
    n = w.counts[side, where] - 1
    for j in range(k, n):
        copy_flight(flights[j + 1], flights[j])
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
        copy_flight(w.line[side, 0], w.late[side, w.counts[side, 1]])
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
    return watch(w, side, had_ended)
