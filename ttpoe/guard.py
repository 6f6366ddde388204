"""What stands between the line and a link: is its peer still there, and is a frame of this link at all?

The machine believes every frame that names its link, as the specification has it; on a line where anybody can send,
and where frames of earlier links may still fly, that is too much. A frame that would end a link is believed only with
ids that a stranger would have to guess; and where ids cannot tell, the peer is asked.

The question is the last id before the oldest unacknowledged one, once more: a PAYLOAD of one byte that any peer with
this link acknowledges as a duplicate and throws away, and any peer without it answers by NACK_NOLINK (the trick of RFC
1122, 4.2.3.6). A link that is idle for long asks it, so that what a peer's death or a late OPEN has left behind ends.

Kernels on rows, like :mod:`ttpoe.machine`; the emulator, whose lines have no strangers, does without.
"""

from __future__ import annotations

import numpy as np

from ttpoe._jit import kernel
from ttpoe.control import end
from ttpoe.fsm import Opcode, State
from ttpoe.receiving import is_repeated_open
from ttpoe.sequence import seq_add, seq_diff
from ttpoe.state import Failure
from ttpoe.units import NEVER

GUARD = np.dtype(
    [
        (name, "i8")
        for name in (
            "is_passive",  # the peer opened the link
            "heard_at_ps",  # last sign that the peer has this link
            "used_at_ps",  # last payload, either way
            "probes",  # questions in a row that were not answered
            "probe_seq", "probe_at_ps",  # the last one's id, and when to ask again
            "is_challenge",  # an OPEN made us ask: the peer may have restarted
        )
    ],
    align=True,
)
"""One row for each link of an endpoint, beside its LINK row."""

CLOSE_WINDOW = 1024
"""Ids that a CLOSE may be ahead of what was delivered: the published window in full payloads. Ours."""

PASS = -1
"""Result of :func:`screen`: the machine is to have the frame."""
FREE, NO_VICTIM, WAIT = 0, -1, -2
"""Results of :func:`pick_victim` that are no row."""

_OPEN, _OPEN_NACK, _NACK_NOLINK = int(Opcode.OPEN), int(Opcode.OPEN_NACK), int(Opcode.NACK_NOLINK)
_CLOSE, _PAYLOAD, _ACK = int(Opcode.CLOSE), int(Opcode.PAYLOAD), int(Opcode.ACK)
_S_OPEN, _S_CLOSE_SENT = int(State.OPEN), int(State.CLOSE_SENT)
_LINK_DOWN, _PEER_RESTARTED = int(Failure.LINK_DOWN), int(Failure.PEER_RESTARTED)
_RETRY_LIMIT = int(Failure.RETRY_LIMIT)


@kernel
def idle_deadline_ps(link, guard, idle_timeout_ps):
    """When to call :func:`on_idle`; NEVER while the link has something else to wait for."""
    if guard["probes"] != 0:
        return guard["probe_at_ps"]
    if link["state"] == _S_OPEN and link["timer_at_ps"] == NEVER and link["tx_una"] == link["tx_max"]:
        return min(guard["heard_at_ps"] + idle_timeout_ps, NEVER)
    return NEVER


@kernel
def _ask(link, guard, params, now_ps, out, n_out):
    """Ask the peer whether it has this link; waits double from one question to the next."""
    wait_ps = link["rto_ps"]
    for _ in range(guard["probes"]):
        wait_ps = min(2 * wait_ps, params["rto_max_ps"])
    guard["probes"] += 1
    guard["probe_at_ps"] = now_ps + wait_ps
    guard["probe_seq"] = seq_add(link["tx_una"], -1)
    row = out[n_out]
    row["opcode"] = _PAYLOAD
    row["marks"] = 0
    row["vc"] = link["vc"]
    row["tx_seq"] = guard["probe_seq"]
    row["rx_seq"] = 0
    row["payload_bytes"] = 1  # none would be malformed to the reference module
    return n_out + 1


@kernel
def on_idle(link, guard, params, now_ps, out, n_out):
    """The deadline has passed: ask, or take the peer for dead past the retry limit.

    Parameters
    ----------
    link, guard : LINK and GUARD row, modified in place
    params : PARAMS row
    now_ps : int64
    out : FRAME array, modified in place
    n_out : int64
        Rows of ``out`` in use; returns those in use afterwards.
    """
    if guard["probes"] > params["retry_limit"]:
        link["retries"] = guard["probes"]
        end(link, _RETRY_LIMIT)
        return n_out
    return _ask(link, guard, params, now_ps, out, n_out)


@kernel
def _may_close(link, frame):
    """Whether a CLOSE has ids that the peer of an open or closing link can send."""
    ahead = seq_diff(frame["tx_seq"], link["rx_seq"])
    if ahead < 1 or ahead > CLOSE_WINDOW:
        return False
    return seq_diff(frame["rx_seq"], link["tx_una"]) >= -1 and seq_diff(frame["rx_seq"], link["tx_max"]) <= 0


@kernel
def screen(link, guard, params, frame, now_ps, out):
    """Look at a frame of a known link before the machine does.

    - OPEN with an id that this link cannot have seen: the peer restarted, or somebody pretends. The peer is asked, once
      until it answers; a peer that restarted says NACK_NOLINK, and its OPEN is taken when it comes again.
    - NACK_NOLINK ends the link if it answers our question, or names the oldest id that waits for its ACK. Of an open
      link no other is believed: a peer that is gone gets that id again within a timeout, and a stranger has to guess
      one id, not one of a window.
    - Under rules of the reference module ids tell nothing, so the machine has all of its frames.
    - CLOSE with ids that this peer cannot send is stale, and one that comes while our OPEN is out: it may be of an
      earlier link, and if not, it comes again when the OPEN is answered.

    Parameters
    ----------
    link, guard : LINK and GUARD row, modified in place
    params : PARAMS row
    frame : FRAME row
    now_ps : int64
    out : FRAME array, modified in place

    Returns
    -------
    int64
        `PASS`, or the rows of ``out`` that are the answer.
    """
    opcode = int(frame["opcode"])
    if link["rules"] != 0 and opcode != _ACK:
        if opcode != _OPEN and opcode != _NACK_NOLINK:
            guard["heard_at_ps"] = now_ps
            guard["probes"] = 0
        return PASS
    if opcode == _OPEN:
        if link["state"] < _S_OPEN or is_repeated_open(link, frame["tx_seq"]):
            return PASS
        link["dropped_stale"] += 1
        guard["is_challenge"] = 1
        return 0 if guard["probes"] != 0 else _ask(link, guard, params, now_ps, out, 0)
    if opcode == _NACK_NOLINK:
        if guard["probes"] == 0 or frame["rx_seq"] != guard["probe_seq"]:
            if link["state"] != _S_OPEN or frame["rx_seq"] == link["tx_una"]:
                return PASS
            link["dropped_lost"] += 1
            return 0
        end(link, _LINK_DOWN if guard["is_challenge"] == 0 else _PEER_RESTARTED)
        return 0
    if opcode == _OPEN_NACK:
        return PASS
    if opcode == _CLOSE and (link["state"] < _S_OPEN or not _may_close(link, frame)):
        link["dropped_stale"] += 1
        return 0
    guard["heard_at_ps"] = now_ps
    if guard["probes"] != 0:
        guard["probes"] = 0
        guard["is_challenge"] = 0
        if opcode == _ACK and frame["rx_seq"] == guard["probe_seq"]:
            return 0
    return PASS


@kernel(inline=True)
def is_unused(link):
    """Nothing was ever sent or received on an open link."""
    return link["state"] == _S_OPEN and link["payloads_received"] == 0 and link["submitted_bytes"] == 0


@kernel(export=True)
def pick_victim(ways, links, guards, now_ps, victim_idle_ps):
    """Whose way in a set a new peer may have.

    First a link that its peer opened and never used, the oldest: such are what a flood of OPENs leaves. Then one that
    its peer opened, that owes nothing either way, and on which no payload moved for ``victim_idle_ps``. What our owner
    opened is never a victim.

    Parameters
    ----------
    ways : int64 array
        Rows of the set; 0 is a free way.
    links, guards : LINK and GUARD array
    now_ps, victim_idle_ps : int64

    Returns
    -------
    int64
        A row, or `FREE`, `NO_VICTIM`, or `WAIT`: none now, but one of them is closing.
    """
    result = NO_VICTIM
    best_is_unused = False
    best_at_ps = NEVER
    for way in range(len(ways)):
        row = ways[way]
        if row == 0:
            return FREE
        link = links[row]
        guard = guards[row]
        if link["state"] == _S_CLOSE_SENT and result == NO_VICTIM:
            result = WAIT
        if guard["is_passive"] == 0 or link["state"] != _S_OPEN:
            continue
        unused = is_unused(link)
        if not unused and (
            link["acked_bytes"] != link["submitted_bytes"]
            or link["rx_bytes"] != link["rx_read_bytes"]
            or now_ps - guard["used_at_ps"] < victim_idle_ps
        ):
            continue
        if (unused and not best_is_unused) or (unused == best_is_unused and guard["used_at_ps"] < best_at_ps):
            result = row
            best_is_unused = unused
            best_at_ps = guard["used_at_ps"]
    return result
