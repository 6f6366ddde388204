"""What a received frame does to a link that is up: one function an opcode. Called by :func:`ttpoe.machine.on_frame`."""

from __future__ import annotations

from ttpoe._jit import kernel
from ttpoe.congestion import ACKED, LOST, MARKED, tell_policy
from ttpoe.constants import SEQ_MASK
from ttpoe.control import close_if_idle, end, is_quiesced, open_wait_ps, send, send_close
from ttpoe.fsm import RECEIVED, Opcode, State
from ttpoe.recovery import acknowledge, go_back, hold, sample_rtt, sampled_rto_ps
from ttpoe.reference import close_as_module, reopen, repeat_answer
from ttpoe.rules import Rule
from ttpoe.sequence import seq_add, seq_diff
from ttpoe.state import CongestionControl, Failure, Mark
from ttpoe.units import NEVER

# Enum members as plain integers: compiled and interpreted code then see the same type.
_OPEN, _OPEN_ACK, _OPEN_NACK = int(Opcode.OPEN), int(Opcode.OPEN_ACK), int(Opcode.OPEN_NACK)
_CLOSE_ACK, _CLOSE_NACK = int(Opcode.CLOSE_ACK), int(Opcode.CLOSE_NACK)
_ACK, _NACK = int(Opcode.ACK), int(Opcode.NACK)
_NACK_FULL, _NACK_NOLINK = int(Opcode.NACK_FULL), int(Opcode.NACK_NOLINK)
_S_CLOSED, _S_OPEN_SENT, _S_OPEN = int(State.CLOSED), int(State.OPEN_SENT), int(State.OPEN)
_S_CLOSE_SENT, _S_CLOSE_RECD = int(State.CLOSE_SENT), int(State.CLOSE_RECD)
_FIXED, _ECHO = int(CongestionControl.FIXED), int(Mark.ECHO)
_F_PEER_RESTARTED, _F_LINK_DOWN = int(Failure.PEER_RESTARTED), int(Failure.LINK_DOWN)
_START_AT_ONE, _REOPEN, _REOPEN_BLINDLY = int(Rule.START_AT_ONE), int(Rule.REOPEN), int(Rule.REOPEN_BLINDLY)
_OPEN_SHORTCUT, _OPEN_RESYNC = int(Rule.OPEN_SHORTCUT), int(Rule.OPEN_RESYNC)
_REFUSE_SILENTLY = int(Rule.REFUSE_SILENTLY)
_CLOSE_ANY_ID, _OPEN_ACK_ANY_ID = int(Rule.CLOSE_ANY_ID), int(Rule.OPEN_ACK_ANY_ID)
_CLOSE_AS_MODULE = int(Rule.CLOSE_PRINTED | Rule.CLOSE_TWICE | Rule.CLOSE_ANY_ID)
_NACK_EACH, _TAKE_WHILE_CLOSING = int(Rule.NACK_EACH), int(Rule.TAKE_WHILE_CLOSING)
_PLAIN_ORDER, _MISMATCH_RESENDS = int(Rule.PLAIN_ORDER), int(Rule.MISMATCH_RESENDS)
_NACK_RESENDS, _NACK_EITHER, _FULL_WAITS = int(Rule.NACK_RESENDS), int(Rule.NACK_EITHER), int(Rule.FULL_WAITS)

MAX_OVERTAKING = 16
"""Ids by which frames may overtake each other without being taken for a new pass of the sender; ours."""


@kernel(inline=True)
def is_repeated_open(link, seq):
    """Whether an OPEN with this id can be a duplicate on a link that is up.

    Ids from the peer's opening id up to rx_seq were used by this link, and rx_seq lies payloads_received ids after the
    opening id. No other id can be a duplicate.
    """
    return (link["rx_seq"] - seq) & SEQ_MASK <= link["payloads_received"]


@kernel
def receive_open(link, frame, now_ps, out, n_out):
    """OPEN: learn the peer's id and answer; on a link that is up tell a duplicate from a restarted peer."""
    seq = frame["tx_seq"]
    state = link["state"]
    if state == _S_CLOSED or state == _S_OPEN_SENT:
        if link["has_ended"] != 0:
            if link["rules"] & _REFUSE_SILENTLY != 0:
                return n_out
            return send(link, _OPEN_NACK, 0, seq, out, n_out)  # no way free until the owner makes the row new
        link["rx_seq"] = seq
        link["state"] = int(RECEIVED[_OPEN, state, 1])
        if state == _S_OPEN_SENT and link["rules"] & _OPEN_SHORTCUT != 0:
            n_out = send(link, _OPEN_ACK, seq_add(link["initial_seq"], 1), seq, out, n_out)
            link["state"] = _S_OPEN
            link["timer_at_ps"] = NEVER
            link["retries"] = 0
            return close_if_idle(link, now_ps, out, n_out)
    elif link["rules"] & _OPEN_RESYNC != 0:
        link["rx_seq"] = seq
        link["rx_nacked"] = 0
        link["rx_is_full"] = 0
    elif not is_repeated_open(link, seq):
        # A peer that restarted must not have its new ids taken for old ones, even while we close.
        end(link, _F_PEER_RESTARTED)
        return n_out
    return send(link, _OPEN_ACK, seq_add(link["initial_seq"], 1), seq, out, n_out)


@kernel
def receive_open_ack(link, params, frame, now_ps, out, n_out):
    """OPEN_ACK of our OPEN, or of an earlier one: stale."""
    if frame["rx_seq"] != seq_add(link["tx_una"], -1) and link["rules"] & _OPEN_ACK_ANY_ID == 0:
        link["dropped_stale"] += 1
        return n_out
    link["state"] = _S_OPEN
    if frame["tx_seq"] != 0 or link["rules"] & _START_AT_ONE == 0:
        link["rx_seq"] = seq_add(frame["tx_seq"], -1)
    elif link["reopens"] != 0 and link["rules"] & _REOPEN_BLINDLY == 0:
        link["rx_seq"] = 1  # the peer begins anew
    # A second OPEN makes the answer one to any of them (Karn); a timer may have been stopped or put off
    if link["retries"] == 0 and link["reopens"] == 0 and link["timer_at_ps"] != NEVER:
        sample_rtt(link, now_ps - (link["timer_at_ps"] - open_wait_ps(link)))
        link["rto_ps"] = sampled_rto_ps(link, params)
    link["retries"] = 0
    link["timer_at_ps"] = NEVER
    return close_if_idle(link, now_ps, out, n_out)


@kernel(inline=True)
def _prove_open(link, now_ps):
    """The peer shows that it is open. From here on NACK_NOLINK counts for what is first sent now; see on_timeout."""
    link["proven_at_byte"] = link["cut_bytes"]
    link["proven_at_ps"] = now_ps


@kernel
def receive_payload(link, frame, now_ps, out, n_out):
    """PAYLOAD on an open or closing link: deliver in order, answer once."""
    seq = frame["tx_seq"]
    distance = seq_diff(seq, link["rx_seq"])
    if distance <= 0:
        if link["rules"] & _PLAIN_ORDER != 0 and not 0 < seq <= link["rx_seq"]:
            link["nacks_sent"] += 1
            return send(link, _NACK, 0, seq_add(link["rx_seq"], 1), out, n_out)
        link["duplicates_received"] += 1
        link["acks_sent"] += 1
        return send(link, _ACK, 0, seq, out, n_out)
    if link["has_rx_closing"] != 0 and seq_diff(seq, link["rx_closing_seq"]) > 0:
        return send(link, _NACK_NOLINK, 0, seq, out, n_out)
    closing_unanswered = (
        link["state"] == _S_CLOSE_SENT and link["close_answered"] == 0 and link["rules"] & _TAKE_WHILE_CLOSING == 0
    )
    if distance > 1 or closing_unanswered or frame["payload_bytes"] == 0:
        # Go-back-N: name the missing id once, and again only when a step back shows a new pass of the sender: a long
        # one, or one to right behind the gap. A short one is a frame that others overtook, or a duplicate. While our
        # CLOSE is unanswered a new pass changes nothing, and naming it again would only keep passes coming.
        link["gaps_received"] += 1
        if link["rx_is_full"] != 0 and not closing_unanswered:
            return n_out  # came behind the id that we refused: the sender knows, and holds
        step_back = seq_diff(link["rx_gap_seq"], seq)
        is_new_pass = step_back > MAX_OVERTAKING or (step_back > 0 and distance == 2)
        is_named = link["rx_nacked"] != 0 and (closing_unanswered or not is_new_pass)
        if is_named and link["rules"] & _NACK_EACH == 0:
            if step_back < 0:
                link["rx_gap_seq"] = seq
            return n_out
        link["rx_gap_seq"] = seq
        link["rx_nacked"] = 1
        link["nacks_sent"] += 1
        return send(link, _NACK, 0, seq_add(link["rx_seq"], 1), out, n_out)
    if link["rx_bytes"] - link["rx_read_bytes"] + frame["payload_bytes"] > link["rx_limit_bytes"]:
        # Refused, as often as it comes: once for the sender's pass, and once for each probe. But an empty buffer takes
        # any payload, else one above the limit would be asked about for ever.
        if link["rx_bytes"] != link["rx_read_bytes"]:
            link["rx_is_full"] = 1
            link["nack_fulls_sent"] += 1
            if link["has_rx_closing"] != 0:
                link["retries"] = 0  # the peer is alive; it is our owner who is slow
            return send(link, _NACK_FULL, 0, seq, out, n_out)
    link["rx_is_full"] = 0
    link["rx_seq"] = seq
    link["rx_nacked"] = 0
    link["rx_bytes"] += frame["payload_bytes"]
    link["payloads_received"] += 1
    if link["proven_at_byte"] == NEVER:
        _prove_open(link, now_ps)
    link["acks_sent"] += 1
    n_out = send(link, _ACK, 0, seq, out, n_out)
    if link["has_rx_closing"] != 0:
        link["retries"] = 0
        if link["rx_closing_seq"] == seq:
            if link["state"] == _S_CLOSE_SENT:
                n_out = send_close(link, now_ps, out, n_out)
            elif is_quiesced(link) != 0:
                end(link, 0)
    return n_out


@kernel
def echo_mark(link, out, first, n_out):
    """A PAYLOAD came marked: its ACK, if that is what rows ``first`` to ``n_out`` of ``out`` begin with, says so.

    Each PAYLOAD has an ACK of its own, so the echo is as exact as RFC 8257, 3.2, with its delayed ACKs, tries to be.
    """
    link["marks_received"] += 1
    if n_out > first and out[first]["opcode"] == _ACK:
        out[first]["marks"] = _ECHO


@kernel
def _resend_at_once(link):
    """An ACK that names no id in flight: the module resends then."""
    if link["rules"] & _MISMATCH_RESENDS != 0 and link["tx_una"] != link["tx_max"]:
        go_back(link)


@kernel
def receive_ack(link, ring, pool, params, seq, marks, now_ps):
    """Cumulative ACK of ``seq``; an id that is not outstanding is old news or nonsense. Returns 1 if taken.

    An echo counts for all that the ACK acknowledges, as in RFC 8257, 3.3: for more than its own PAYLOAD where ACKs
    before it were lost.
    """
    if seq_diff(seq, link["tx_una"]) < 0:
        link["dropped_stale"] += 1
        _resend_at_once(link)
        return 0
    if seq_diff(seq, link["tx_max"]) >= 0:
        link["dropped_illegal"] += 1
        _resend_at_once(link)
        return 0
    if link["proven_at_byte"] == NEVER:
        _prove_open(link, now_ps)
    event = ACKED
    if marks & _ECHO != 0:
        link["echoes_received"] += 1
        event = MARKED
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
            tell_policy(link, params, event, acked_bytes, now_ps)
    return 1


@kernel
def receive_nack(link, ring, pool, params, seq, now_ps):
    """NACK names the failed id: all before it arrived, it and all after it are sent again."""
    if seq_diff(seq, link["tx_una"]) < 0 or seq_diff(seq, link["tx_max"]) >= 0:
        is_last_good = link["rules"] & _NACK_EITHER != 0 and seq == seq_add(link["tx_una"], -1)
        if link["tx_una"] == link["tx_max"] or not (is_last_good or link["rules"] & _NACK_RESENDS != 0):
            link["dropped_stale"] += 1
            return
        seq = link["tx_una"]
    if link["proven_at_byte"] == NEVER:
        _prove_open(link, now_ps)
    link["nacks_received"] += 1
    if seq != link["tx_una"]:
        acknowledge(link, ring, pool, params, seq_add(seq, -1), now_ps)
    if seq_diff(seq, link["tx_next"]) >= 0:
        return  # not sent again yet
    slot = ring[link["ring_base"] + (seq & link["ring_mask"])]
    is_early = slot["is_resent"] != 0 and now_ps - slot["sent_at_ps"] < link["min_rtt_ps"]
    if is_early and link["rules"] & _NACK_RESENDS == 0:
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
def receive_nack_full(link, params, now_ps):
    """NACK_FULL: the peer's owner is slow. Neither a loss nor a sign of congestion, and no retry: the peer is alive."""
    if link["tx_una"] == link["tx_max"]:
        link["dropped_stale"] += 1  # nothing of ours is out, so nothing was refused
        return
    link["nack_fulls_received"] += 1
    link["retries"] = 0
    if link["rules"] & _FULL_WAITS != 0:
        return
    if link["tx_next"] != link["tx_una"]:  # else it is about an earlier pass: we hold, or are about to send again
        hold(link, params, now_ps)


@kernel
def _wait_for_the_rest(link, now_ps):
    """A peer that never comes back must not hold a link in CLOSE_RECD."""
    at_ps = now_ps + link["rto_ps"]
    if link["timer_at_ps"] == NEVER or (link["tx_una"] == link["tx_max"] and at_ps < link["timer_at_ps"]):
        link["timer_at_ps"] = at_ps


@kernel
def receive_close(link, ring, pool, params, frame, now_ps, out, n_out):
    """CLOSE on an open or closing link; "rx" is what the peer has seen of ours, and says so like an ACK."""
    if link["rules"] & _CLOSE_AS_MODULE != 0:
        n_out = close_as_module(link, frame, out, n_out)
        if link["state"] == _S_CLOSE_RECD:
            _wait_for_the_rest(link, now_ps)
        return n_out
    seen = frame["rx_seq"]
    if seq_diff(seen, link["tx_una"]) >= 0 and seq_diff(seen, link["tx_max"]) < 0:
        acknowledge(link, ring, pool, params, seen, now_ps)
    last = seq_add(link["tx_max"], -1)
    if link["state"] == _S_CLOSE_SENT:
        ahead = seq_diff(seen, last)
        if ahead == 0 or ahead == 1:
            n_out = send(link, _CLOSE_ACK, 0, frame["tx_seq"], out, n_out)
            return n_out
        if ahead > 1:
            link["dropped_illegal"] += 1
        return send(link, _CLOSE_NACK, last, frame["tx_seq"], out, n_out)
    link["rx_closing_seq"] = seq_add(frame["tx_seq"], -1)
    link["has_rx_closing"] = 1
    link["state"] = _S_CLOSE_RECD
    if link["tx_una"] != link["tx_max"]:
        n_out = send(link, _CLOSE_NACK, last, frame["tx_seq"], out, n_out)
    else:
        n_out = send(link, _CLOSE_ACK, 0, frame["tx_seq"], out, n_out)
    if link["state"] == _S_CLOSE_RECD:
        _wait_for_the_rest(link, now_ps)
    return n_out


@kernel
def receive_close_nack(link, frame, now_ps, out, n_out):
    """CLOSE_NACK: the peer has ids up to "tx" for us before it closes; our CLOSE goes again once they are here."""
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
        return send_close(link, now_ps, out, n_out)
    link["timer_at_ps"] = now_ps + link["rto_ps"]
    return n_out


@kernel
def go_on_closing(link, now_ps, out, n_out):
    """The last of ours was acknowledged on a closing link: what drives it on now."""
    if link["state"] == _S_CLOSE_RECD and link["rules"] & _CLOSE_ANY_ID != 0:
        return send(link, _CLOSE_ACK, 0, 0, out, n_out)  # the module's timer may have stopped: its CLOSE need not come
    link["timer_at_ps"] = now_ps + link["rto_ps"]
    return n_out


@kernel
def receive_nack_nolink(link, ring, params, seq, now_ps, out, n_out):
    """NACK_NOLINK on an open link: it is down, if the answer can be about what we sent to an open peer.

    Believed only of an id that we wait for, since a stranger's guess must not end a link; and only if it was first sent
    after the peer was known to be open, or again by a timeout at least ``rto_max_ps`` later. Before that the peer may
    have sent it while it waited for an OPEN_ACK, even if it answered our OPEN (both opened at once), and overtaken it
    with the proof. Not believed, the retry limit still finds a dead peer.
    """
    if link["rules"] & _REOPEN != 0:
        if link["tx_una"] != link["tx_max"] or link["rules"] & _REOPEN_BLINDLY != 0:
            return reopen(link, params, now_ps, out, n_out)
    elif (
        seq_diff(seq, link["tx_una"]) >= 0
        and seq_diff(seq, link["tx_next"]) < 0
        and ring[link["ring_base"] + (seq & link["ring_mask"])]["end_byte"] > link["proven_at_byte"]
    ):
        end(link, _F_LINK_DOWN)
        return n_out
    link["dropped_lost"] += 1
    if params["answer_repeat_ps"] != 0:
        return repeat_answer(link, params, now_ps, out, n_out)
    return n_out
