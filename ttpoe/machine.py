"""The TTPoE machine: what a link does on a frame, on a timeout, and on its owner's wishes.

Kernels change one LINK row and append header-only FRAME rows to ``out``. Answers are appended at once; PAYLOAD is
pulled with :func:`poll_payload` when the line can take it, so that a paused or busy port costs no memory and the
round trip is measured from the line. Knows nothing of bytes, addresses, sockets or switches.

Where the printed specification is silent or unclear the reading is ours; docs/design.md lists the deviations.
"""

from __future__ import annotations

from ttpoe._jit import kernel
from ttpoe.congestion import TIMED_OUT, tell_policy
from ttpoe.control import MAX_ANSWERS, close_if_idle, end, is_quiesced, release, send, send_close, send_open
from ttpoe.fsm import RECEIVED, Opcode, Received, State
from ttpoe.owner import on_close, on_open, on_read, on_submit, open_links
from ttpoe.polling import next_payload_bytes, poll_payload
from ttpoe.receiving import (
    MAX_OVERTAKING,
    echo_mark,
    go_on_closing,
    receive_ack,
    receive_close,
    receive_close_nack,
    receive_nack,
    receive_nack_full,
    receive_nack_nolink,
    receive_open,
    receive_open_ack,
    receive_payload,
)
from ttpoe.recovery import back_off, go_back, probe_tail
from ttpoe.reference import answer_as_module, on_repeat_timer, repeat_answer, skip_lost
from ttpoe.rules import Rule
from ttpoe.sequence import seq_add
from ttpoe.state import Failure, Mark, Status
from ttpoe.units import NEVER

__all__ = [
    "MAX_ANSWERS", "MAX_OVERTAKING", "next_payload_bytes", "on_close", "on_close_at", "on_frame", "on_frame_at",
    "on_open", "on_open_at", "on_read", "on_read_at", "on_submit", "on_submit_at", "on_timeout", "on_timeout_at",
    "open_links", "poll_payload", "poll_payload_at", "release", "release_at",
]  # fmt: skip

_CLOSE_ACK, _NACK_NOLINK = int(Opcode.CLOSE_ACK), int(Opcode.NACK_NOLINK)
_S_OPEN_SENT, _S_OPEN = int(State.OPEN_SENT), int(State.OPEN)
_S_CLOSE_SENT, _S_CLOSE_RECD = int(State.CLOSE_SENT), int(State.CLOSE_RECD)
_CLOSE_STAYS, _SKIP_LOST = int(Rule.CLOSE_STAYS), int(Rule.SKIP_LOST)
_ANY_CLOSE_ACK = int(Rule.CLOSE_TWICE | Rule.CLOSE_ANY_ID)
_R_ILLEGAL, _R_DROP, _R_LOST = int(Received.ILLEGAL), int(Received.DROP), int(Received.LOST)
_R_ANSWER_OPEN, _R_OPENED, _R_REFUSED = int(Received.ANSWER_OPEN), int(Received.OPENED), int(Received.REFUSED)
_R_ANSWER_CLOSE, _R_JUDGE_CLOSE = int(Received.ANSWER_CLOSE), int(Received.JUDGE_CLOSE)
_R_CLOSED, _R_CLOSE_NACKED, _R_NO_LINK = int(Received.CLOSED), int(Received.CLOSE_NACKED), int(Received.NO_LINK)
_R_PAYLOAD, _R_ACK, _R_NACK = int(Received.PAYLOAD), int(Received.ACK), int(Received.NACK)
_R_NACK_FULL, _R_LINK_DOWN, _R_BEYOND = int(Received.NACK_FULL), int(Received.LINK_DOWN), int(Received.BEYOND_CLOSE)

_CE = int(Mark.CE)
_OUT_FULL = int(Status.OUT_FULL)
_F_RETRY_LIMIT, _F_REFUSED = int(Failure.RETRY_LIMIT), int(Failure.REFUSED)


@kernel(inline=True)
def _react(link, ring, pool, params, frame, now_ps, out, n_out):
    """Carry out the rule of the received table for ``frame``."""
    rule = int(RECEIVED[frame["opcode"], link["state"], 0])
    if rule == _R_PAYLOAD:
        first = n_out
        n_out = receive_payload(link, frame, now_ps, out, n_out)
        if int(frame["marks"]) & _CE != 0:
            echo_mark(link, out, first, n_out)
        return n_out
    if rule == _R_ACK:
        if receive_ack(link, ring, pool, params, frame["rx_seq"], int(frame["marks"]), now_ps) != 0:
            if link["is_closing"] != 0:
                n_out = close_if_idle(link, now_ps, out, n_out)
            if link["state"] != _S_OPEN and link["timer_at_ps"] == NEVER:
                n_out = go_on_closing(link, now_ps, out, n_out)
        if params["answer_repeat_ps"] != 0:
            n_out = repeat_answer(link, params, now_ps, out, n_out)
        return n_out
    if rule == _R_NACK:
        receive_nack(link, ring, pool, params, frame["rx_seq"], now_ps)
        if params["answer_repeat_ps"] != 0:
            n_out = repeat_answer(link, params, now_ps, out, n_out)
    elif rule == _R_ANSWER_OPEN:
        n_out = receive_open(link, frame, now_ps, out, n_out)
    elif rule == _R_OPENED:
        n_out = receive_open_ack(link, params, frame, now_ps, out, n_out)
    elif rule == _R_REFUSED:
        if frame["rx_seq"] == seq_add(link["tx_una"], -1):  # the id of our OPEN
            end(link, _F_REFUSED)
        else:
            link["dropped_stale"] += 1
    elif rule == _R_JUDGE_CLOSE:
        n_out = receive_close(link, ring, pool, params, frame, now_ps, out, n_out)
    elif rule == _R_ANSWER_CLOSE:
        if link["state"] == _S_OPEN_SENT and link["rules"] & _CLOSE_STAYS == 0:
            end(link, _F_REFUSED)
        n_out = send(link, _CLOSE_ACK, 0, frame["tx_seq"], out, n_out)
    elif rule == _R_CLOSED:
        is_any = link["state"] == _S_CLOSE_SENT and link["rules"] & _ANY_CLOSE_ACK != 0
        if frame["rx_seq"] == link["tx_max"] or is_any:  # the id of our CLOSE
            end(link, 0)
        else:
            link["dropped_stale"] += 1
    elif rule == _R_CLOSE_NACKED:
        n_out = receive_close_nack(link, frame, now_ps, out, n_out)
    elif rule == _R_NACK_FULL:
        receive_nack_full(link, params, now_ps)
    elif rule == _R_NO_LINK:
        n_out = send(link, _NACK_NOLINK, 0, frame["tx_seq"], out, n_out)
    elif rule == _R_LINK_DOWN:
        n_out = receive_nack_nolink(link, ring, params, frame["rx_seq"], now_ps, out, n_out)
    elif rule == _R_BEYOND:
        link["dropped_stale"] += 1
    elif rule == _R_ILLEGAL:
        link["dropped_illegal"] += 1
    elif rule == _R_DROP:
        link["dropped_stale"] += 1
    elif rule == _R_LOST:
        link["dropped_lost"] += 1
    release(link, pool)
    return n_out


@kernel
def on_frame(link, ring, pool, params, frame, now_ps, out, n_out):
    """React to one received frame.

    Parameters
    ----------
    link : LINK row, modified in place
    ring : SENT array, modified in place
        Slots of unacknowledged ids; this link's are at ``ring_base``.
    pool : POOL row, modified in place
    params : PARAMS row
    frame : FRAME row
        Opcode and vc valid (:func:`ttpoe.wire.parse_header` refuses others).
    now_ps : int64
    out : FRAME array, modified in place
    n_out : int64
        Rows of ``out`` in use.

    Returns
    -------
    int64
        Rows of ``out`` in use afterwards, or a negative Status.

    Status
    ------
    OUT_FULL : fewer than `MAX_ANSWERS` rows are free; nothing was changed.

    Notes
    -----
    Source: specification rev 2.0, received and sent tables; readings of ours are named in docs/design.md.
    """
    if n_out + MAX_ANSWERS > len(out):
        return _OUT_FULL
    first = n_out
    n_out = _react(link, ring, pool, params, frame, now_ps, out, n_out)
    if link["rules"] != 0:
        answer_as_module(link, frame, out, first, n_out)
    return n_out


@kernel
def on_timeout(link, params, now_ps, out, n_out):
    """React to ``timer_at_ps`` having passed; a call too early changes nothing.

    OPEN_SENT replays OPEN, CLOSE_SENT replays CLOSE, an open link sends again from its oldest unacknowledged id on the
    next polls; before that it may probe its tail, or ask a full peer, neither of which is a retry. Past the retry limit
    the link ends with failure RETRY_LIMIT, and the caller owes its pool a :func:`release`. Parameters and return as for
    :func:`on_frame`.
    """
    if now_ps < link["timer_at_ps"]:
        return n_out
    if n_out + MAX_ANSWERS > len(out):
        return _OUT_FULL
    if link["timer_is_probe"] != 0:
        probe_tail(link, now_ps)
        return n_out
    if link["peer_room_bytes"] == 0:
        link["peer_room_bytes"] = params["mtu_bytes"]  # for the oldest id, which asks the peer
        link["timer_at_ps"] = NEVER  # sending it starts the timer
        return n_out
    state = link["state"]
    if state == _S_OPEN and link["tx_una"] == link["tx_max"]:
        return on_repeat_timer(link, params, now_ps, out, n_out)
    if link["proven_at_byte"] != NEVER and now_ps - link["proven_at_ps"] >= params["rto_max_ps"]:
        link["proven_at_byte"] = link["acked_bytes"]  # answers from before the proof have all come
    if back_off(link, params) != 0:
        if state == _S_OPEN and link["rules"] & _SKIP_LOST != 0:
            skip_lost(link)
            return n_out
        end(link, 0 if link["state"] == _S_CLOSE_RECD and is_quiesced(link) != 0 else _F_RETRY_LIMIT)
        return n_out
    if state == _S_OPEN_SENT:
        tell_policy(link, params, TIMED_OUT, 0, now_ps)
        return send_open(link, now_ps, out, n_out)
    if state == _S_CLOSE_SENT:
        if link["close_answered"] == 0:
            return send_close(link, now_ps, out, n_out)
        link["timer_at_ps"] = now_ps + link["rto_ps"]  # the peer still sends: wait, within the retry limit
        return n_out
    has_unacknowledged = link["tx_una"] != link["tx_max"]
    if has_unacknowledged:
        link["recover_until_ps"] = now_ps + link["srtt_ps"]
        tell_policy(link, params, TIMED_OUT, 0, now_ps)
    go_back(link)
    if state == _S_CLOSE_RECD and not has_unacknowledged:
        link["timer_at_ps"] = now_ps + link["rto_ps"]
    return n_out


# Thin exported twins by index, for Python callers: a row as an argument costs microseconds there.


@kernel(export=True)
def on_frame_at(links, i, ring, pools, k, params, frames, j, now_ps, out, n_out):
    """:func:`on_frame` on ``links[i]``, ``pools[k]`` and ``frames[j]``; ``params`` is a PARAMS array of shape (1,)."""
    return on_frame(links[i], ring, pools[k], params[0], frames[j], now_ps, out, n_out)


@kernel(export=True)
def on_timeout_at(links, i, params, now_ps, out, n_out):
    """:func:`on_timeout` on ``links[i]``."""
    return on_timeout(links[i], params[0], now_ps, out, n_out)


@kernel(export=True)
def release_at(links, i, pools, k):
    """:func:`release` on ``links[i]`` and ``pools[k]``."""
    release(links[i], pools[k])


@kernel(export=True)
def on_open_at(links, i, now_ps, out, n_out):
    """:func:`on_open` on ``links[i]``."""
    return on_open(links[i], now_ps, out, n_out)


@kernel(export=True)
def on_submit_at(links, i, length_bytes):
    """:func:`on_submit` on ``links[i]``."""
    return on_submit(links[i], length_bytes)


@kernel(export=True)
def on_read_at(links, i, length_bytes):
    """:func:`on_read` on ``links[i]``."""
    on_read(links[i], length_bytes)


@kernel(export=True)
def on_close_at(links, i, now_ps, out, n_out):
    """:func:`on_close` on ``links[i]``."""
    return on_close(links[i], now_ps, out, n_out)


@kernel(export=True)
def poll_payload_at(links, i, ring, pools, k, params, now_ps, out, n_out):
    """:func:`poll_payload` on ``links[i]`` and ``pools[k]``."""
    return poll_payload(links[i], ring, pools[k], params[0], now_ps, out, n_out)
