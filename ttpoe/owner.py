"""What a link's owner asks for: open, submit, read, close. Knows nothing of frames received."""

from __future__ import annotations

import numpy as np

from ttpoe._jit import kernel
from ttpoe.control import MAX_ANSWERS, close_if_idle, send_open
from ttpoe.fsm import State
from ttpoe.rules import Rule
from ttpoe.state import Status

_OPEN_AGAIN = int(Rule.OPEN_AGAIN)
_S_CLOSED, _S_OPEN = int(State.CLOSED), int(State.OPEN)
_S_CLOSE_SENT, _S_CLOSE_RECD = int(State.CLOSE_SENT), int(State.CLOSE_RECD)
_OK, _OUT_FULL = int(Status.OK), int(Status.OUT_FULL)
_NOT_OPEN, _ILLEGAL_SEND = int(Status.NOT_OPEN), int(Status.ILLEGAL_SEND)


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
def on_open(link, now_ps, out, n_out):
    """The owner opens the link: OPEN with ``initial_seq``. Parameters and return as for :func:`on_frame`.

    Status
    ------
    ILLEGAL_SEND : the link is not closed, or has ended and was not made new.

    Notes
    -----
    Under `Rule.OPEN_AGAIN` also on an open link, as the specification's sent table has it: once, with the last
    acknowledged id, and nothing waits for the answer.
    """
    is_again = link["state"] == _S_OPEN and link["rules"] & _OPEN_AGAIN != 0
    if (link["state"] != _S_CLOSED or link["has_ended"] != 0) and not is_again:
        return _ILLEGAL_SEND
    if n_out + MAX_ANSWERS > len(out):
        return _OUT_FULL
    timer_at_ps = link["timer_at_ps"]
    n_out = send_open(link, now_ps, out, n_out)
    if is_again:
        link["timer_at_ps"] = timer_at_ps
    return n_out


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
    return close_if_idle(link, now_ps, out, n_out)
