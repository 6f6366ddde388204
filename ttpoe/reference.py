"""Getting along with the reference module: answers in its manner, its way to close and to open again, and repeating our
last answer to a peer that may have lost its only timer.

Nothing here runs for a link whose ``rules`` are 0 and an endpoint that repeats no answers.
"""

from __future__ import annotations

from ttpoe._jit import kernel
from ttpoe.control import end, open_wait_ps, send, send_open
from ttpoe.fsm import Opcode, State
from ttpoe.recovery import go_back
from ttpoe.rules import Rule
from ttpoe.sequence import seq_add, seq_diff
from ttpoe.state import Failure
from ttpoe.units import NEVER

_OPEN_ACK, _PAYLOAD, _ACK, _NACK = int(Opcode.OPEN_ACK), int(Opcode.PAYLOAD), int(Opcode.ACK), int(Opcode.NACK)
_CLOSE_ACK, _CLOSE_NACK = int(Opcode.CLOSE_ACK), int(Opcode.CLOSE_NACK)
_NACK_NOLINK = int(Opcode.NACK_NOLINK)
_S_CLOSED, _S_OPEN_SENT, _S_OPEN = int(State.CLOSED), int(State.OPEN_SENT), int(State.OPEN)
_S_CLOSE_SENT, _S_CLOSE_RECD = int(State.CLOSE_SENT), int(State.CLOSE_RECD)
_OPEN_ACK_ZERO, _ACK_LAST, _NACK_LAST = int(Rule.OPEN_ACK_ZERO), int(Rule.ACK_LAST), int(Rule.NACK_LAST)
_NOLINK_ECHO, _CLOSE_ACK_ECHO, _ONE_TIMER = int(Rule.NOLINK_ECHO), int(Rule.CLOSE_ACK_ECHO), int(Rule.ONE_TIMER)
_F_LINK_DOWN = int(Failure.LINK_DOWN)
_CLOSE_PRINTED, _CLOSE_TWICE = int(Rule.CLOSE_PRINTED), int(Rule.CLOSE_TWICE)

MAX_REPEATS = 8
"""Times that an answer is repeated while nothing is heard; ours: 5 % of loss takes all of them once in 10^10."""
_MAX_REOPEN_DOUBLINGS = 6


@kernel
def answer_as_module(link, frame, out, first, n_out):
    """Put the module's ids into rows ``first`` to ``n_out`` of ``out``, the answers to ``frame``.

    The one place where rules change the fields of an answer. Also stops the timer where the module's stops. Parameters
    as for :func:`ttpoe.machine.on_frame`.
    """
    rules = link["rules"]
    if frame["opcode"] == _PAYLOAD and rules & _ONE_TIMER != 0:
        link["timer_at_ps"] = NEVER
    for k in range(first, n_out):
        row = out[k]
        opcode = int(row["opcode"])
        if opcode == _ACK:
            if rules & _ACK_LAST != 0:
                row["rx_seq"] = link["rx_seq"]
        elif opcode == _NACK:
            if rules & _NACK_LAST != 0:
                row["rx_seq"] = link["rx_seq"]
        elif opcode == _OPEN_ACK:
            if rules & _OPEN_ACK_ZERO != 0:
                row["tx_seq"] = 0
        elif opcode == _NACK_NOLINK:
            if rules & _NOLINK_ECHO != 0:
                row["rx_seq"] = frame["rx_seq"]
        elif (opcode == _CLOSE_ACK or opcode == _CLOSE_NACK) and rules & _CLOSE_ACK_ECHO != 0:
            row["tx_seq"] = 0
            row["rx_seq"] = frame["rx_seq"] if k == first else link["rx_seq"]


@kernel
def close_as_module(link, frame, out, n_out):
    """CLOSE under CLOSE_PRINTED, CLOSE_TWICE or CLOSE_ANY_ID: its ids acknowledge nothing and close nothing off.

    Under the last alone the link stays until what we sent is acknowledged (:func:`ttpoe.receiving.go_on_closing`).
    """
    rules = link["rules"]
    seen, seq = frame["rx_seq"], frame["tx_seq"]
    last = seq_add(link["tx_max"], -1)
    if link["state"] == _S_CLOSE_SENT:
        if rules & _CLOSE_PRINTED != 0 and seq_diff(seen, link["tx_max"]) > 0:
            return send(link, _CLOSE_NACK, last, seq, out, n_out)
        return send(link, _CLOSE_ACK, 0, seq, out, n_out)
    link["state"] = _S_CLOSE_RECD
    if rules & _CLOSE_PRINTED != 0:
        is_refused = seq_diff(seen, last) > 0
    else:
        is_refused = link["tx_una"] != link["tx_max"] and rules & _CLOSE_TWICE == 0
    n_out = send(link, _CLOSE_NACK if is_refused else _CLOSE_ACK, last if is_refused else 0, seq, out, n_out)
    if rules & _CLOSE_TWICE != 0:
        n_out = send(link, _CLOSE_ACK, 0, seq, out, n_out)
        if link["state"] != _S_CLOSED:
            end(link, 0)
    return n_out


@kernel
def reopen(link, params, now_ps, out, n_out):
    """The peer has no link: OPEN with the last acknowledged id, and what lies beyond it goes out again once it answers.

    The second time in a row without progress waits for a timeout first, the third for two: a peer that always says so
    would be asked as fast as it answers. Past the retry limit the link ends with failure LINK_DOWN.
    """
    go_back(link)
    link["peer_room_bytes"] = NEVER
    link["full_wait_ps"] = 0
    progress_bytes = link["acked_bytes"] + link["rx_bytes"]
    if link["reopened_at_byte"] != progress_bytes:
        link["reopened_at_byte"] = progress_bytes
        link["reopens"] = 0
    link["reopens"] += 1
    if link["reopens"] > params["retry_limit"]:
        end(link, _F_LINK_DOWN)
        return n_out
    link["state"] = _S_OPEN_SENT
    link["proven_at_byte"] = NEVER
    if link["reopens"] == 1:
        return send_open(link, now_ps, out, n_out)
    doublings = min(link["reopens"] - 2, _MAX_REOPEN_DOUBLINGS)
    link["timer_at_ps"] = now_ps + min(open_wait_ps(link) << doublings, params["rto_max_ps"])
    return n_out


@kernel
def repeat_answer(link, params, now_ps, out, n_out):
    """The peer has answered a PAYLOAD of ours: repeat our last answer to it if it sends nothing for long.

    The module's only timer stops when it receives a PAYLOAD, so that an ACK or a PAYLOAD lost before would never be
    sent again. What tells that it has received one is its answer. So from there on, while no further id of the peer is
    delivered, its last ACK is repeated, which it takes as an acknowledgement or as a reason to resend; and where the
    answer was that it has no link, our OPEN_ACK. Each wait is double the last.

    Called for an answer, and when ``repeat_at_ps`` is due with nothing of ours in flight.
    """
    if link["state"] != _S_OPEN:
        return n_out
    if link["repeat_at_ps"] == NEVER or link["repeat_rx_seq"] != link["rx_seq"]:
        link["repeat_rx_seq"] = link["rx_seq"]
        link["repeats"] = 0
        link["repeat_at_ps"] = now_ps + params["answer_repeat_ps"]
    elif now_ps >= link["repeat_at_ps"]:
        if link["repeats"] == MAX_REPEATS:
            link["repeats"] = 0  # it is heard again, after a long silence
        else:
            if link["proven_at_byte"] == NEVER:
                tx = 0 if link["rules"] & _OPEN_ACK_ZERO != 0 else seq_add(link["initial_seq"], 1)
                n_out = send(link, _OPEN_ACK, tx, link["rx_seq"], out, n_out)
            else:
                n_out = send(link, _ACK, 0, link["rx_seq"], out, n_out)
            link["repeats"] += 1
            link["acks_repeated"] += 1
        link["repeat_at_ps"] = now_ps + (params["answer_repeat_ps"] << link["repeats"])
    if link["tx_una"] == link["tx_max"]:  # the timer is for nothing else then
        link["timer_at_ps"] = link["repeat_at_ps"] if link["repeats"] < MAX_REPEATS else NEVER
    return n_out


@kernel
def on_repeat_timer(link, params, now_ps, out, n_out):
    """The timer of an open link with nothing in flight: repeat the answer, unless the peer has sent something since."""
    link["timer_at_ps"] = NEVER
    if link["repeat_rx_seq"] != link["rx_seq"]:
        link["repeat_at_ps"] = NEVER
        return n_out
    if now_ps < link["repeat_at_ps"]:  # it was put off
        link["timer_at_ps"] = link["repeat_at_ps"]
        return n_out
    return repeat_answer(link, params, now_ps, out, n_out)


@kernel
def skip_lost(link):
    """Take the one id in flight as acknowledged, though it is not: the next is sent. Modifies ``link``."""
    link["skipped_bytes"] += link["cut_bytes"] - link["acked_bytes"]
    link["acked_bytes"] = link["cut_bytes"]
    link["sent_bytes"] = link["cut_bytes"]
    link["tx_una"] = link["tx_max"]
    link["tx_next"] = link["tx_max"]
    link["retries"] = 0
    link["timer_at_ps"] = NEVER
