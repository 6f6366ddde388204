"""How much payload a link may have in flight: one function a policy, chosen by the integer ``congestion_control``.

Three limits bind at once. The transmit memory and the peer's buffer are facts; ``cwnd_bytes`` is a policy's guess at
the path. A policy hears of events and moves ``cwnd_bytes``; under FIXED nobody does, and it stays NEVER. Another policy
is one more function and one more branch in :func:`tell_policy`. Knows nothing of frames, timers or what to send again.
"""

from __future__ import annotations

from ttpoe._jit import kernel
from ttpoe.state import CongestionControl
from ttpoe.units import NEVER

_RENO = int(CongestionControl.RENO)

# What a policy hears of.
ACKED = 0
"""``acked_bytes`` were acknowledged."""
LOST = 1
"""The first loss of a round trip, before anything is sent again; what told of it acknowledged ``acked_bytes``."""
TIMED_OUT = 2
"""The retransmission timer, before anything is sent again; with nothing in flight it was an OPEN's."""
IDLE = 3
"""New payload after more than a timeout without any."""


@kernel(inline=True)
def window_room_bytes(link, pool, params):
    """Payload bytes that may be cut into new frames now, by the link's window and by the endpoint's pool.

    The window counts payload held until acknowledged, since that is what occupies the transmit memory.

    Parameters
    ----------
    link : LINK row
    pool : POOL row
    params : PARAMS row

    Returns
    -------
    int64
        Bytes, never below zero for a window that did not shrink.

    Notes
    -----
    Source: published context, "transmit window fixed by 1 MB of SRAM"; whether links share it is a parameter here.
    """
    own = params["window_bytes"] - (link["cut_bytes"] - link["acked_bytes"])
    shared = pool["limit_bytes"] - pool["held_bytes"]
    return own if own < shared else shared


@kernel(inline=True)
def flight_room_bytes(link):
    """Payload bytes that may be put on the line now, new or again, by the path and by the peer's buffer; may be < 0.

    In flight is what was sent since the last step back: with go-back-N nothing sent before it can be delivered.
    """
    limit = min(link["cwnd_bytes"], link["peer_room_bytes"])
    return limit - (link["sent_bytes"] - link["acked_bytes"])


@kernel
def _reno(link, params, event, acked_bytes):
    """Slow start and congestion avoidance by bytes acknowledged; half the flight after a loss.

    Recovery has no phase of its own: with go-back-N the first frame of the next pass repairs a loss, and
    acknowledgements clock all that follow, so the window is deflated at once and grows as usual. What is lost of that
    pass within a round trip met the same full queue, and does not halve again.

    Notes
    -----
    Source: RFC 5681, 3.1 and 4; RFC 3465, 2; RFC 6928; RFC 9002, 7.3.2 for a window told by time, since ids below RFC
    6582's "recover" come again and again here. Ours: the window grows only while at least half of it is in use (as
    Linux has it in slow start), so that neither an idle owner nor the transmit memory lets it drift away.
    """
    mtu_bytes = params["mtu_bytes"]
    flight_bytes = link["sent_bytes"] - link["acked_bytes"] + acked_bytes  # as it was before the acknowledgement
    if event == ACKED:
        if 2 * flight_bytes < link["cwnd_bytes"]:
            return
        if link["cwnd_bytes"] < link["ssthresh_bytes"]:
            # RFC 3465, 2.3: two mtu an ACK, as one may be lost; one after a timeout, as an ACK may be of old frames
            most = 2 * mtu_bytes if link["ssthresh_bytes"] == NEVER else mtu_bytes
            link["cwnd_bytes"] += min(acked_bytes, most)
            return
        link["ca_acked_bytes"] += acked_bytes
        if link["ca_acked_bytes"] >= link["cwnd_bytes"]:
            link["ca_acked_bytes"] -= link["cwnd_bytes"]
            link["cwnd_bytes"] += mtu_bytes
    elif event == IDLE:
        link["cwnd_bytes"] = min(link["cwnd_bytes"], params["initial_cwnd_bytes"])
    elif event == LOST:
        link["ssthresh_bytes"] = max(flight_bytes // 2, 2 * mtu_bytes)
        link["cwnd_bytes"] = min(link["cwnd_bytes"], link["ssthresh_bytes"])  # a loss never opens it
        link["ca_acked_bytes"] = 0
    else:
        # The timer again for the same id holds the threshold; a lost OPEN says nothing about it
        if flight_bytes > 0 and link["retries"] == 1:
            link["ssthresh_bytes"] = max(flight_bytes // 2, 2 * mtu_bytes)
        link["cwnd_bytes"] = mtu_bytes
        link["ca_acked_bytes"] = 0


@kernel(inline=True)
def tell_policy(link, params, event, acked_bytes):
    """Let the link's policy react to ``event``.

    Parameters
    ----------
    link : LINK row, modified in place
    params : PARAMS row
    event : int64
        ACKED, LOST, TIMED_OUT or IDLE.
    acked_bytes : int64
        Acknowledged by the frame that is the event, and counted in ``link["acked_bytes"]`` already; else 0.
    """
    if params["congestion_control"] == _RENO:
        _reno(link, params, event, acked_bytes)
