"""What a link says and how it ends: control frames with the state that sending them leads to, the close, the end.

Knows nothing of what was received.
"""

from __future__ import annotations

from ttpoe._jit import kernel
from ttpoe.fsm import SENT, Opcode, Sent, State
from ttpoe.rules import Rule
from ttpoe.sequence import seq_add, seq_diff
from ttpoe.state import Failure
from ttpoe.units import NEVER

_OPEN, _CLOSE = int(Opcode.OPEN), int(Opcode.CLOSE)
_S_CLOSED, _S_OPEN = int(State.CLOSED), int(State.OPEN)
_T_WHEN_QUIESCED = int(Sent.WHEN_QUIESCED)
_F_CLOSED_UNSENT = int(Failure.CLOSED_UNSENT)
_START_AT_ONE, _CLOSE_ZERO, _CLOSE_AT_ONCE = int(Rule.START_AT_ONE), int(Rule.CLOSE_ZERO), int(Rule.CLOSE_AT_ONCE)

MAX_ANSWERS = 2
"""Rows that one call can append at most; callers keep this much room in ``out``."""


@kernel
def is_quiesced(link):
    """1 if nothing of ours is unacknowledged and every id up to the local closing id is delivered."""
    if link["tx_una"] != link["tx_max"]:
        return 0
    if link["has_rx_closing"] != 0 and seq_diff(link["rx_seq"], link["rx_closing_seq"]) < 0:
        return 0
    return 1


@kernel
def end(link, failure):
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
    if link["skipped_bytes"] != 0:
        pool["held_bytes"] -= link["skipped_bytes"]
        link["skipped_bytes"] = 0
    if link["state"] == _S_CLOSED and link["cut_bytes"] != link["acked_bytes"]:
        pool["held_bytes"] -= link["cut_bytes"] - link["acked_bytes"]
        link["cut_bytes"] = link["acked_bytes"]
        link["sent_bytes"] = link["acked_bytes"]
        link["tx_max"] = link["tx_una"]
        link["tx_next"] = link["tx_una"]


@kernel
def send(link, opcode, tx_seq, rx_seq, out, n_out):
    """Append one control frame and go to the state that the sent table names.

    The received table never asks for an answer that the sent table forbids (a test goes through all), so only the
    state is looked up here.
    """
    row = out[n_out]
    row["opcode"] = opcode
    row["marks"] = 0
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
        end(link, 0)
    return n_out + 1


@kernel(inline=True)
def open_wait_ps(link):
    """Timeout of an OPEN."""
    return link["open_timeout_ps"] if link["open_timeout_ps"] != 0 else link["rto_ps"]


@kernel
def send_open(link, now_ps, out, n_out):
    """OPEN with the id before our oldest unacknowledged one, at first our opening id; (re)starts the timer."""
    link["timer_at_ps"] = now_ps + open_wait_ps(link)
    rx_seq = link["rx_seq"] if link["rules"] & _START_AT_ONE != 0 else 0
    return send(link, _OPEN, seq_add(link["tx_una"], -1), rx_seq, out, n_out)


@kernel
def send_close(link, now_ps, out, n_out):
    """CLOSE with the id after our last PAYLOAD; (re)starts the timer. Also the replay."""
    link["close_answered"] = 0
    link["timer_at_ps"] = now_ps + (link["close_timeout_ps"] if link["close_timeout_ps"] != 0 else link["rto_ps"])
    if link["rules"] & _CLOSE_ZERO != 0:
        return send(link, _CLOSE, 0, 0, out, n_out)
    return send(link, _CLOSE, link["tx_max"], link["rx_seq"], out, n_out)


@kernel
def close_if_idle(link, now_ps, out, n_out):
    """Send the CLOSE the owner asked for, once everything submitted is acknowledged."""
    if (
        link["is_closing"] != 0
        and link["state"] == _S_OPEN
        and (link["acked_bytes"] == link["submitted_bytes"] or link["rules"] & _CLOSE_AT_ONCE != 0)
    ):
        return send_close(link, now_ps, out, n_out)
    return n_out
