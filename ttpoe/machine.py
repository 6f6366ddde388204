"""The TTPoE machine: what a link does on a frame, on a timeout, and on its owner's wishes.

Kernels change one LINK row and append header-only FRAME rows to ``out``. Answers are appended at once; PAYLOAD is
pulled with :func:`poll_payload` when the line can take it, so that a paused or busy port costs no memory and the
round trip is measured from the line. Knows nothing of bytes, addresses, sockets or switches.

Where the printed specification is silent or unclear the reading is ours; docs/design.md lists the deviations.
"""

from __future__ import annotations

import numpy as np

from ttpoe._jit import kernel
from ttpoe.congestion import ACKED, IDLE, LOST, TIMED_OUT, flight_room_bytes, pace, tell_policy, window_room_bytes
from ttpoe.constants import SEQ_MASK
from ttpoe.fsm import RECEIVED, SENT, Opcode, Received, Sent, State
from ttpoe.recovery import (
    acknowledge,
    back_off,
    go_back,
    hold,
    probe_tail,
    sample_rtt,
    sampled_rto_ps,
    start_timer,
    tail_probe_at_ps,
)
from ttpoe.sequence import seq_add, seq_diff
from ttpoe.state import CongestionControl, Failure, Status
from ttpoe.units import NEVER

# Enum members as plain integers: compiled and interpreted code then see the same type.
_OPEN, _OPEN_ACK, _OPEN_NACK = int(Opcode.OPEN), int(Opcode.OPEN_ACK), int(Opcode.OPEN_NACK)
_CLOSE, _CLOSE_ACK, _CLOSE_NACK = int(Opcode.CLOSE), int(Opcode.CLOSE_ACK), int(Opcode.CLOSE_NACK)
_PAYLOAD, _ACK, _NACK = int(Opcode.PAYLOAD), int(Opcode.ACK), int(Opcode.NACK)
_NACK_FULL, _NACK_NOLINK = int(Opcode.NACK_FULL), int(Opcode.NACK_NOLINK)

_S_CLOSED, _S_OPEN_SENT, _S_OPEN = int(State.CLOSED), int(State.OPEN_SENT), int(State.OPEN)
_S_CLOSE_SENT, _S_CLOSE_RECD = int(State.CLOSE_SENT), int(State.CLOSE_RECD)

_R_ILLEGAL, _R_DROP, _R_LOST = int(Received.ILLEGAL), int(Received.DROP), int(Received.LOST)
_R_ANSWER_OPEN, _R_OPENED, _R_REFUSED = int(Received.ANSWER_OPEN), int(Received.OPENED), int(Received.REFUSED)
_R_ANSWER_CLOSE, _R_JUDGE_CLOSE = int(Received.ANSWER_CLOSE), int(Received.JUDGE_CLOSE)
_R_CLOSED, _R_CLOSE_NACKED, _R_NO_LINK = int(Received.CLOSED), int(Received.CLOSE_NACKED), int(Received.NO_LINK)
_R_PAYLOAD, _R_ACK, _R_NACK = int(Received.PAYLOAD), int(Received.ACK), int(Received.NACK)
_R_NACK_FULL, _R_LINK_DOWN, _R_BEYOND = int(Received.NACK_FULL), int(Received.LINK_DOWN), int(Received.BEYOND_CLOSE)

_T_SEND, _T_UNTIL, _T_WHEN_QUIESCED = int(Sent.SEND), int(Sent.UNTIL_CLOSING_ID), int(Sent.WHEN_QUIESCED)

_FIXED = int(CongestionControl.FIXED)
_OK, _OUT_FULL = int(Status.OK), int(Status.OUT_FULL)
_NOT_OPEN, _ILLEGAL_SEND = int(Status.NOT_OPEN), int(Status.ILLEGAL_SEND)
_F_RETRY_LIMIT, _F_REFUSED, _F_LINK_DOWN = int(Failure.RETRY_LIMIT), int(Failure.REFUSED), int(Failure.LINK_DOWN)
_F_PEER_RESTARTED, _F_CLOSED_UNSENT = int(Failure.PEER_RESTARTED), int(Failure.CLOSED_UNSENT)

MAX_OVERTAKING = 16
"""Ids by which frames may overtake each other without being taken for a new pass of the sender; ours."""

MAX_ANSWERS = 2
"""Rows that one call can append at most; callers keep this much room in ``out``."""


def open_links(links: np.ndarray, peer_initial_seq: np.ndarray | int) -> None:
    """Take new links as opened by a handshake that is not played out, each end proven to the other.

    Parameters
    ----------
    links : LINK array, shape (n,), modified in place
        Fresh from :func:`ttpoe.state.init_links`.
    peer_initial_seq : int or integer array, shape (n,)
        ``initial_seq`` of each link's peer.
    """
    links["state"] = _S_OPEN
    links["rx_seq"] = peer_initial_seq
    links["proven_at_byte"] = 0


@kernel
def is_quiesced(link):
    """1 if nothing of ours is unacknowledged and every id up to the local closing id is delivered."""
    if link["tx_una"] != link["tx_max"]:
        return 0
    if link["has_rx_closing"] != 0 and seq_diff(link["rx_seq"], link["rx_closing_seq"]) < 0:
        return 0
    return 1


@kernel
def _end(link, failure):
    """Close the link for good; what was queued and never acknowledged is told as a failure. Modifies ``link``.

    An ended row never opens again by itself: its ids and offsets are used up, and a late duplicate of the OPEN would
    raise a link that nobody holds at the other end. :func:`ttpoe.state.init_links` makes it new.
    """
    if failure == 0 and link["acked_bytes"] != link["submitted_bytes"]:
        failure = _F_CLOSED_UNSENT
    link["failure"] = failure
    link["has_ended"] = 1
    link["state"] = _S_CLOSED
    link["timer_at_ps"] = NEVER


@kernel
def release(link, pool):
    """Give back what a closed link still held of the pool; a no-op on a live link, or the second time.

    :func:`on_frame` does this itself. :func:`on_timeout` sees no pool: its caller does it afterwards, before the other
    links of the pool are polled. ``submitted_bytes - acked_bytes`` remains to say what was not delivered.

    Parameters
    ----------
    link : LINK row, modified in place
    pool : POOL row, modified in place
    """
    if link["state"] == _S_CLOSED and link["cut_bytes"] != link["acked_bytes"]:
        pool["held_bytes"] -= link["cut_bytes"] - link["acked_bytes"]
        link["cut_bytes"] = link["acked_bytes"]
        link["sent_bytes"] = link["acked_bytes"]
        link["tx_max"] = link["tx_una"]
        link["tx_next"] = link["tx_una"]


@kernel
def _send(link, opcode, tx_seq, rx_seq, out, n_out):
    """Append one control frame and go to the state that the sent table names.

    The received table never asks for an answer that the sent table forbids (a test goes through all), so only the
    state is looked up here.
    """
    row = out[n_out]
    row["opcode"] = opcode
    row["vc"] = link["vc"]
    row["tx_seq"] = tx_seq
    row["rx_seq"] = rx_seq
    row["payload_bytes"] = 0
    after = int(SENT[opcode, link["state"], 1])
    if after == link["state"]:
        return n_out + 1
    if after != _S_CLOSED:
        link["state"] = after
    elif int(SENT[opcode, link["state"], 0]) != _T_WHEN_QUIESCED or is_quiesced(link) != 0:
        _end(link, 0)
    return n_out + 1


@kernel
def _send_close(link, now_ps, out, n_out):
    """CLOSE with the id after our last PAYLOAD; (re)starts the timer. Also the replay."""
    link["close_answered"] = 0
    link["timer_at_ps"] = now_ps + link["rto_ps"]
    return _send(link, _CLOSE, link["tx_max"], link["rx_seq"], out, n_out)


@kernel
def _close_if_idle(link, now_ps, out, n_out):
    """Send the CLOSE the owner asked for, once everything submitted is acknowledged."""
    if (
        link["is_closing"] != 0
        and link["state"] == _S_OPEN
        and link["acked_bytes"] == link["submitted_bytes"]
    ):
        return _send_close(link, now_ps, out, n_out)
    return n_out


@kernel
def _receive_open(link, frame, out, n_out):
    """OPEN: learn the peer's id and answer; on a link that is up tell a duplicate from a restarted peer."""
    seq = frame["tx_seq"]
    state = link["state"]
    if state == _S_CLOSED or state == _S_OPEN_SENT:
        if link["has_ended"] != 0:
            return _send(link, _OPEN_NACK, 0, seq, out, n_out)  # no way free until the owner makes the row new
        link["rx_seq"] = seq
        link["state"] = int(RECEIVED[_OPEN, state, 1])
    elif (link["rx_seq"] - seq) & SEQ_MASK > link["payloads_received"]:
        # Ids from the peer's opening id up to rx_seq were used by this link, and rx_seq lies payloads_received ids
        # after the opening id. No other id can be a duplicate; and a peer that restarted must not have its new ids
        # taken for old ones, even while we close.
        _end(link, _F_PEER_RESTARTED)
        return n_out
    return _send(link, _OPEN_ACK, seq_add(link["initial_seq"], 1), seq, out, n_out)


@kernel
def _receive_payload(link, frame, now_ps, out, n_out):
    """PAYLOAD on an open or closing link: deliver in order, answer once."""
    seq = frame["tx_seq"]
    distance = seq_diff(seq, link["rx_seq"])
    if distance <= 0:
        link["duplicates_received"] += 1
        link["acks_sent"] += 1
        return _send(link, _ACK, 0, seq, out, n_out)
    if link["has_rx_closing"] != 0 and seq_diff(seq, link["rx_closing_seq"]) > 0:
        return _send(link, _NACK_NOLINK, 0, seq, out, n_out)
    closing_unanswered = link["state"] == _S_CLOSE_SENT and link["close_answered"] == 0
    if distance > 1 or closing_unanswered or frame["payload_bytes"] == 0:
        # Go-back-N: name the missing id once, and again only when a step back shows a new pass of the sender: a long
        # one, or one to right behind the gap. A short one is a frame that others overtook, or a duplicate. While our
        # CLOSE is unanswered a new pass changes nothing, and naming it again would only keep passes coming.
        link["gaps_received"] += 1
        if link["rx_is_full"] != 0 and not closing_unanswered:
            return n_out  # came behind the id that we refused: the sender knows, and holds
        step_back = seq_diff(link["rx_gap_seq"], seq)
        is_new_pass = step_back > MAX_OVERTAKING or (step_back > 0 and distance == 2)
        if link["rx_nacked"] != 0 and (closing_unanswered or not is_new_pass):
            if step_back < 0:
                link["rx_gap_seq"] = seq
            return n_out
        link["rx_gap_seq"] = seq
        link["rx_nacked"] = 1
        link["nacks_sent"] += 1
        return _send(link, _NACK, 0, seq_add(link["rx_seq"], 1), out, n_out)
    if link["rx_bytes"] - link["rx_read_bytes"] + frame["payload_bytes"] > link["rx_limit_bytes"]:
        # Refused, as often as it comes: once for the sender's pass, and once for each probe. But an empty buffer takes
        # any payload, else one above the limit would be asked about for ever.
        if link["rx_bytes"] != link["rx_read_bytes"]:
            link["rx_is_full"] = 1
            link["nack_fulls_sent"] += 1
            if link["has_rx_closing"] != 0:
                link["retries"] = 0  # the peer is alive; it is our owner who is slow
            return _send(link, _NACK_FULL, 0, seq, out, n_out)
    link["rx_is_full"] = 0
    link["rx_seq"] = seq
    link["rx_nacked"] = 0
    link["rx_bytes"] += frame["payload_bytes"]
    link["payloads_received"] += 1
    if link["proven_at_byte"] == NEVER:
        link["proven_at_byte"] = link["cut_bytes"]
    link["acks_sent"] += 1
    n_out = _send(link, _ACK, 0, seq, out, n_out)
    if link["has_rx_closing"] != 0:
        link["retries"] = 0
        if link["rx_closing_seq"] == seq:
            if link["state"] == _S_CLOSE_SENT:
                n_out = _send_close(link, now_ps, out, n_out)
            elif is_quiesced(link) != 0:
                _end(link, 0)
    return n_out


@kernel
def _receive_ack(link, ring, pool, params, seq, now_ps):
    """Cumulative ACK of ``seq``; an id that is not outstanding is old news or nonsense. Returns 1 if taken."""
    if seq_diff(seq, link["tx_una"]) < 0:
        link["dropped_stale"] += 1
        return 0
    if seq_diff(seq, link["tx_max"]) >= 0:
        link["dropped_illegal"] += 1
        return 0
    if link["proven_at_byte"] == NEVER:
        link["proven_at_byte"] = link["cut_bytes"]
    acked_before = link["acked_bytes"]
    is_spurious = acknowledge(link, ring, pool, params, seq, now_ps)
    if params["congestion_control"] != _FIXED:
        acked_bytes = link["acked_bytes"] - acked_before
        is_probe_acked = acked_before < link["probed_byte"] <= link["acked_bytes"]
        if is_probe_acked and is_spurious == 0 and link["last_sent_at_ps"] >= link["recover_until_ps"]:
            # The probe of the tail has repaired a loss that no NACK will tell of (RFC 8985, 7.4.2)
            link["recover_until_ps"] = now_ps + link["srtt_ps"]
            tell_policy(link, params, LOST, acked_bytes, now_ps)
        else:
            tell_policy(link, params, ACKED, acked_bytes, now_ps)
    return 1


@kernel
def _receive_nack(link, ring, pool, params, seq, now_ps):
    """NACK names the failed id: all before it arrived, it and all after it are sent again."""
    if seq_diff(seq, link["tx_una"]) < 0 or seq_diff(seq, link["tx_max"]) >= 0:
        link["dropped_stale"] += 1
        return
    if link["proven_at_byte"] == NEVER:
        link["proven_at_byte"] = link["cut_bytes"]
    link["nacks_received"] += 1
    if seq != link["tx_una"]:
        acknowledge(link, ring, pool, params, seq_add(seq, -1), now_ps)
    if seq_diff(seq, link["tx_next"]) >= 0:
        return  # not sent again yet
    slot = ring[link["ring_base"] + (seq & link["ring_mask"])]
    if slot["is_resent"] != 0 and now_ps - slot["sent_at_ps"] < link["min_rtt_ps"]:
        # Too early to be about the resend: an echo of an earlier pass. If frames overtake each other, a pass draws many
        # NACKs; a pass for each would multiply without end. So one pass a round trip, and before the first sample
        # (min_rtt NEVER) only the timer resends what was resent.
        link["nacks_stale"] += 1
        return
    if slot["sent_at_ps"] >= link["recover_until_ps"]:  # else the window was halved for this already
        link["recover_until_ps"] = now_ps + link["srtt_ps"]
        tell_policy(link, params, LOST, 0, now_ps)
    go_back(link)


@kernel
def _receive_nack_full(link, params, now_ps):
    """NACK_FULL: the peer's owner is slow. Neither a loss nor a sign of congestion, and no retry: the peer is alive."""
    if link["tx_una"] == link["tx_max"]:
        link["dropped_stale"] += 1  # nothing of ours is out, so nothing was refused
        return
    link["nack_fulls_received"] += 1
    link["retries"] = 0
    if link["tx_next"] != link["tx_una"]:  # else it is about an earlier pass: we hold, or are about to send again
        hold(link, params, now_ps)


@kernel
def _receive_close(link, ring, pool, params, frame, now_ps, out, n_out):
    """CLOSE on an open or closing link; "rx" is what the peer has seen of ours, and says so like an ACK."""
    seen = frame["rx_seq"]
    if seq_diff(seen, link["tx_una"]) >= 0 and seq_diff(seen, link["tx_max"]) < 0:
        acknowledge(link, ring, pool, params, seen, now_ps)
    last = seq_add(link["tx_max"], -1)
    if link["state"] == _S_CLOSE_SENT:
        ahead = seq_diff(seen, last)
        if ahead == 0 or ahead == 1:
            n_out = _send(link, _CLOSE_ACK, 0, frame["tx_seq"], out, n_out)
            return n_out
        if ahead > 1:
            link["dropped_illegal"] += 1
        return _send(link, _CLOSE_NACK, last, frame["tx_seq"], out, n_out)
    link["rx_closing_seq"] = seq_add(frame["tx_seq"], -1)
    link["has_rx_closing"] = 1
    link["state"] = _S_CLOSE_RECD
    if link["tx_una"] != link["tx_max"]:
        n_out = _send(link, _CLOSE_NACK, last, frame["tx_seq"], out, n_out)
    else:
        n_out = _send(link, _CLOSE_ACK, 0, frame["tx_seq"], out, n_out)
    if link["state"] == _S_CLOSE_RECD and link["timer_at_ps"] == NEVER:
        link["timer_at_ps"] = now_ps + link["rto_ps"]  # a peer that never comes back must not hold the link
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
    opcode = int(frame["opcode"])
    rule = int(RECEIVED[opcode, link["state"], 0])
    if rule == _R_PAYLOAD:
        return _receive_payload(link, frame, now_ps, out, n_out)
    if rule == _R_ACK:
        if _receive_ack(link, ring, pool, params, frame["rx_seq"], now_ps) != 0:
            if link["is_closing"] != 0:
                n_out = _close_if_idle(link, now_ps, out, n_out)
            if link["state"] == _S_CLOSE_RECD and link["timer_at_ps"] == NEVER:
                link["timer_at_ps"] = now_ps + link["rto_ps"]
        return n_out
    if rule == _R_NACK:
        _receive_nack(link, ring, pool, params, frame["rx_seq"], now_ps)
    elif rule == _R_ANSWER_OPEN:
        n_out = _receive_open(link, frame, out, n_out)
    elif rule == _R_OPENED:
        if frame["rx_seq"] != link["initial_seq"]:
            link["dropped_stale"] += 1
            return n_out
        link["state"] = int(RECEIVED[opcode, link["state"], 1])
        link["rx_seq"] = seq_add(frame["tx_seq"], -1)
        if link["retries"] == 0:  # else the answer may be to any of several OPENs (Karn)
            sample_rtt(link, now_ps - (link["timer_at_ps"] - link["rto_ps"]))
            link["rto_ps"] = sampled_rto_ps(link, params)
        link["retries"] = 0
        link["timer_at_ps"] = NEVER
        return _close_if_idle(link, now_ps, out, n_out)
    elif rule == _R_REFUSED:
        if frame["rx_seq"] != link["initial_seq"]:
            link["dropped_stale"] += 1
            return n_out
        _end(link, _F_REFUSED)
    elif rule == _R_JUDGE_CLOSE:
        n_out = _receive_close(link, ring, pool, params, frame, now_ps, out, n_out)
    elif rule == _R_ANSWER_CLOSE:
        if link["state"] == _S_OPEN_SENT:
            _end(link, _F_REFUSED)
        n_out = _send(link, _CLOSE_ACK, 0, frame["tx_seq"], out, n_out)
    elif rule == _R_CLOSED:
        if frame["rx_seq"] == link["tx_max"]:  # the id of our CLOSE
            _end(link, 0)
        else:
            link["dropped_stale"] += 1
    elif rule == _R_CLOSE_NACKED:
        if link["state"] != _S_CLOSE_SENT or frame["rx_seq"] != link["tx_max"]:
            link["dropped_stale"] += 1  # no CLOSE of ours is out, or it was another
            return n_out
        if link["close_answered"] == 0:
            link["retries"] = 0
            link["rx_nacked"] = 0  # from now on PAYLOAD is taken, so a gap is worth a NACK again
        link["close_answered"] = 1
        link["rx_closing_seq"] = frame["tx_seq"]
        link["has_rx_closing"] = 1
        if seq_diff(link["rx_seq"], frame["tx_seq"]) >= 0:
            return _send_close(link, now_ps, out, n_out)
        link["timer_at_ps"] = now_ps + link["rto_ps"]
    elif rule == _R_NACK_FULL:
        _receive_nack_full(link, params, now_ps)
    elif rule == _R_NO_LINK:
        n_out = _send(link, _NACK_NOLINK, 0, frame["tx_seq"], out, n_out)
    elif rule == _R_LINK_DOWN:
        # Believed only of an id that we wait for and first sent after the peer was known to be open. Before that the
        # peer may just be waiting for an OPEN_ACK, even if it answered our OPEN (both opened at once); and a
        # stranger's guess must not end a link. Not believed, the retry limit still finds a dead peer.
        seq = frame["rx_seq"]
        if (
            seq_diff(seq, link["tx_una"]) >= 0
            and seq_diff(seq, link["tx_max"]) < 0
            and ring[link["ring_base"] + (seq & link["ring_mask"])]["end_byte"] > link["proven_at_byte"]
        ):
            _end(link, _F_LINK_DOWN)
        else:
            link["dropped_lost"] += 1
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
    if back_off(link, params) != 0:
        _end(link, 0 if link["state"] == _S_CLOSE_RECD and is_quiesced(link) != 0 else _F_RETRY_LIMIT)
        return n_out
    state = link["state"]
    if state == _S_OPEN_SENT:
        tell_policy(link, params, TIMED_OUT, 0, now_ps)
        link["timer_at_ps"] = now_ps + link["rto_ps"]
        return _send(link, _OPEN, link["initial_seq"], 0, out, n_out)
    if state == _S_CLOSE_SENT:
        if link["close_answered"] == 0:
            return _send_close(link, now_ps, out, n_out)
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


@kernel
def on_open(link, now_ps, out, n_out):
    """The owner opens the link: OPEN with ``initial_seq``. Parameters and return as for :func:`on_frame`.

    Status
    ------
    ILLEGAL_SEND : the link is not closed, or has ended and was not made new.
    """
    if link["state"] != _S_CLOSED or link["has_ended"] != 0:
        return _ILLEGAL_SEND
    if n_out + MAX_ANSWERS > len(out):
        return _OUT_FULL
    link["timer_at_ps"] = now_ps + link["rto_ps"]
    return _send(link, _OPEN, link["initial_seq"], 0, out, n_out)


@kernel
def on_submit(link, length_bytes):
    """The owner queues ``length_bytes`` (int64, above zero) of its stream; PAYLOAD is stalled until OPEN.

    Status
    ------
    NOT_OPEN : the link is closed or closing; nothing was queued.
    """
    state = link["state"]
    if link["is_closing"] != 0 or state == _S_CLOSED or state == _S_CLOSE_SENT or state == _S_CLOSE_RECD:
        return _NOT_OPEN
    link["submitted_bytes"] += length_bytes
    return _OK


@kernel
def on_read(link, length_bytes):
    """The owner takes ``length_bytes`` (int64) of what was delivered.

    A peer that holds learns of the room when it asks: no frame of the specification tells of it unasked.
    """
    link["rx_read_bytes"] += length_bytes


@kernel
def on_close(link, now_ps, out, n_out):
    """The owner closes: CLOSE goes out once all that was submitted is acknowledged. As for :func:`on_frame`."""
    if link["state"] == _S_CLOSED:
        return _NOT_OPEN
    if n_out + MAX_ANSWERS > len(out):
        return _OUT_FULL
    link["is_closing"] = 1
    return _close_if_idle(link, now_ps, out, n_out)


@kernel(inline=True)
def next_payload_bytes(link, pool, params, ring):
    """Payload of the PAYLOAD that may be sent, from ``pace_at_ps`` on; 0: a window, the state or the data forbid it.

    Resends come first and need no room in the transmit memory: they are held there already.
    """
    rule = int(SENT[_PAYLOAD, link["state"], 0])
    if rule != _T_SEND and rule != _T_UNTIL:
        return 0
    if link["tx_next"] != link["tx_max"]:
        length = ring[link["ring_base"] + (link["tx_next"] & link["ring_mask"])]["end_byte"] - link["sent_bytes"]
        return 0 if length > flight_room_bytes(link) else length
    if rule == _T_UNTIL:
        return 0  # a new id would lie beyond the remote closing id, which is tx_max - 1 from the CLOSE on
    length = link["submitted_bytes"] - link["cut_bytes"]
    length = min(length, params["mtu_bytes"])
    if length > window_room_bytes(link, pool, params) or length > flight_room_bytes(link):
        return 0
    if seq_diff(link["tx_max"], link["tx_una"]) > link["ring_mask"]:
        return 0
    return length


@kernel
def poll_payload(link, ring, pool, params, now_ps, out, n_out):
    """Append the next PAYLOAD, if one may be sent now: a resend first, else new data. As for :func:`on_frame`."""
    if now_ps < link["pace_at_ps"]:
        return n_out
    length = next_payload_bytes(link, pool, params, ring)
    if length == 0:
        return n_out
    if n_out >= len(out):
        return _OUT_FULL
    seq = link["tx_next"]
    slot = ring[link["ring_base"] + (seq & link["ring_mask"])]
    if seq == link["tx_max"]:
        if seq == link["tx_una"] and now_ps - link["last_sent_at_ps"] > link["rto_ps"]:
            tell_policy(link, params, IDLE, 0, now_ps)  # RFC 5681, 4.1
        link["tx_max"] = seq_add(seq, 1)
        link["cut_bytes"] += length
        link["tail_bytes"] = length
        pool["held_bytes"] += length
        slot["end_byte"] = link["cut_bytes"]
        slot["is_resent"] = 0
    else:
        slot["is_resent"] = 1
        link["payloads_resent"] += 1
        link["bytes_resent"] += length
    slot["sent_at_ps"] = now_ps
    link["last_sent_at_ps"] = now_ps
    if link["pace_at_ps"] != 0:
        pace(link)
    link["tx_next"] = seq_add(seq, 1)
    link["sent_bytes"] += length
    link["payloads_sent"] += 1
    if link["timer_at_ps"] == NEVER:
        start_timer(link, params, now_ps)
    else:  # a probe that the timer stands for already is for this one as well
        probe_at_ps = tail_probe_at_ps(link, params, now_ps)
        if probe_at_ps < link["timer_at_ps"]:
            link["timer_at_ps"] = probe_at_ps
            link["timer_is_probe"] = 1
    row = out[n_out]
    row["opcode"] = _PAYLOAD
    row["vc"] = link["vc"]
    row["tx_seq"] = seq
    row["rx_seq"] = 0  # has no meaning on PAYLOAD; the reference module sends 0
    row["payload_bytes"] = length
    return n_out + 1


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
