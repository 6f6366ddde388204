"""Kernels of the search: what must hold after every step, and where nothing can happen any more."""

from __future__ import annotations

from ttpoe._jit import kernel
from ttpoe.check.layout import SLOTS, SPAN, Violation
from ttpoe.constants import SEQ_MASK
from ttpoe.fsm import State
from ttpoe.state import Failure
from ttpoe.units import NEVER

_CLOSED, _OPEN_SENT, _OPEN_RECD, _OPEN = int(State.CLOSED), int(State.OPEN_SENT), int(State.OPEN_RECD), int(State.OPEN)
_CLOSE_SENT, _CLOSE_RECD = int(State.CLOSE_SENT), int(State.CLOSE_RECD)
_F_RETRY_LIMIT, _F_REFUSED, _F_LINK_DOWN = int(Failure.RETRY_LIMIT), int(Failure.REFUSED), int(Failure.LINK_DOWN)
_F_PEER_RESTARTED, _F_CLOSED_UNSENT = int(Failure.PEER_RESTARTED), int(Failure.CLOSED_UNSENT)

_V_ACKNOWLEDGED, _V_WINDOW, _V_OFFSETS = (
    int(Violation.ACKNOWLEDGED), int(Violation.WINDOW), int(Violation.OFFSETS),
)  # fmt: skip
_V_UNDRIVEN, _V_HOLDS, _V_RESTS, _V_REVIVED = (
    int(Violation.UNDRIVEN), int(Violation.HOLDS), int(Violation.RESTS), int(Violation.REVIVED),
)  # fmt: skip
_V_RETRIES, _V_GAVE_UP, _V_UNTOLD = int(Violation.RETRIES), int(Violation.GAVE_UP), int(Violation.UNTOLD)
_V_BUFFER, _V_STUCK, _V_OWES = int(Violation.BUFFER), int(Violation.STUCK), int(Violation.OWES)
_V_CLOSE_FORGOTTEN = int(Violation.CLOSE_FORGOTTEN)
_V_HALF_CLOSED, _V_UNREAD = int(Violation.HALF_CLOSED), int(Violation.UNREAD)


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
def watch(w, side, had_ended):
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
