"""How much payload a link may have in flight: one function a policy, chosen by the integer ``congestion_control``.

Three limits bind at once. The transmit memory and the peer's buffer are facts; ``cwnd_bytes`` is a policy's guess at
the path. A policy hears of events and moves ``cwnd_bytes``; under FIXED nobody does, and it stays NEVER. Another policy
is one more function and one more branch in :func:`tell_policy`. Knows nothing of frames, timers or what to send again.
"""

from __future__ import annotations

import math

from ttpoe._jit import kernel
from ttpoe.state import MAX_CWND_PACKETS, CongestionControl, Mark
from ttpoe.units import NEVER

_RENO = int(CongestionControl.RENO)
_SWIFT = int(CongestionControl.SWIFT)
_DCTCP = int(CongestionControl.DCTCP)
_ECT, _REDUCED = int(Mark.ECT), int(Mark.REDUCED)

# What a policy hears of.
ACKED = 0
"""``acked_bytes`` were acknowledged."""
LOST = 1
"""The first loss of a round trip, before anything is sent again; what told of it acknowledged ``acked_bytes``."""
TIMED_OUT = 2
"""The retransmission timer, before anything is sent again; with nothing in flight it was an OPEN's."""
IDLE = 3
"""New payload after more than a timeout without any."""
MARKED = 4
"""As ACKED, by an ACK that echoes a mark."""


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


_ONE_Q20 = 1 << 20
_GAIN_SHIFT = 4
"""DCTCP's g is 1/16."""


@kernel
def _dctcp(link, params, event, acked_bytes):
    """A window like reno's, which marks reduce by their share: alpha / 2 of it, once a window.

    alpha moves by g towards the share of marked bytes, once in what was in flight when it last did. What a NACK or
    CLOSE alone acknowledges counts as not marked. The window falls to one payload, and no further.

    Notes
    -----
    Source: RFC 8257, 3.3, with its g; 3.5: a loss is taken as reno takes it; RFC 3168, 6.1.2: no growth on a mark, one
    decrease a window, whatever the reason. Ours: one payload at least, where TCP's threshold has two segments: each
    payload has its ACK, so one keeps the clock.
    """
    if event == MARKED:
        link["marked_bytes"] += acked_bytes
    if link["acked_bytes"] > link["share_until_byte"]:
        share_q20 = link["marked_bytes"] * _ONE_Q20 // (link["acked_bytes"] - link["share_from_byte"])
        link["alpha_q20"] += (share_q20 >> _GAIN_SHIFT) - (link["alpha_q20"] >> _GAIN_SHIFT)
        link["share_from_byte"] = link["acked_bytes"]
        link["share_until_byte"] = link["sent_bytes"]
        link["marked_bytes"] = 0
    if event != MARKED:
        if event == LOST or event == TIMED_OUT:
            link["reduced_until_byte"] = link["sent_bytes"]
            link["is_reduction_due"] = 1
        _reno(link, params, event, acked_bytes)
    elif link["acked_bytes"] > link["reduced_until_byte"]:
        reduced_bytes = link["cwnd_bytes"] - (link["cwnd_bytes"] * link["alpha_q20"] >> 21)
        link["cwnd_bytes"] = max(reduced_bytes, params["mtu_bytes"])
        link["ssthresh_bytes"] = link["cwnd_bytes"]
        link["ca_acked_bytes"] = 0
        link["reduced_until_byte"] = link["sent_bytes"]
        link["is_reduction_due"] = 1


@kernel
def payload_marks(link):
    """`Mark` bits of the PAYLOAD that goes out now under DCTCP. Modifies ``link``: a decrease is told once.

    Resends may be marked like all others, though RFC 3168, 6.1.5 has TCP send them without ECT: with go-back-N they are
    whole windows, and a queue is to be heard about these as well (RFC 8311 leaves it to experiments).
    """
    marks = _ECT | _REDUCED if link["is_reduction_due"] != 0 else _ECT
    link["is_reduction_due"] = 0
    return marks


_LEAST_Q20 = _ONE_Q20 // 100
_SCALING_Q20 = round(_ONE_Q20 / (0.1**-0.5 - 100**-0.5))
"""Of ``flow_scaling_ps``: all of it at a window of 0.1 payloads, none of it from 100 on."""
_RESET_RETRIES = 5


@kernel
def swift_target_ps(params, cwnd_q20):
    """The round trip to aim at: longer the smaller the window, as many flows share a queue (section 3.5)."""
    alpha_ps = (params["flow_scaling_ps"] >> 10) * _SCALING_Q20 >> 10
    scaling_ps = alpha_ps * 1024 // int(math.sqrt(cwnd_q20)) - alpha_ps // 10
    return params["target_delay_ps"] + min(max(scaling_ps, 0), params["flow_scaling_ps"])


@kernel
def pace(link):
    """Under a window of less than one payload, have the next one wait for so much more than a round trip."""
    link["pace_at_ps"] = 0
    if link["cwnd_q20"] < _ONE_Q20:
        link["pace_at_ps"] = link["last_sent_at_ps"] + (link["srtt_ps"] << 10) // (link["cwnd_q20"] >> 10)


@kernel
def _swift(link, params, event, acked_bytes, now_ps):
    """A window by delay: one payload more a round trip below the target, a share of the excess less above it.

    Decreases at most once a round trip, and by half at most; a loss counts as the largest. The window may be a fraction
    of a payload, to a hundredth: then payloads go out one by one, further apart than a round trip.

    Notes
    -----
    Source: Kumar et al., "Swift: delay is simple and effective for congestion control in the datacenter", SIGCOMM 2020,
    algorithm 1 with ai 1, beta 0.8, max_mdf 0.5. Ours: the delay is the whole round trip, since nothing on the wire
    tells of the endpoint's share of it, and so there is one window; no term for hops; growth only while at least half
    of the window is in use, as for reno.
    """
    cwnd_q20 = link["cwnd_q20"]
    can_decrease = now_ps - link["decreased_at_ps"] >= link["srtt_ps"]
    if event == IDLE:
        return
    if event == ACKED:
        delay_ps = link["rtt_ps"]
        if delay_ps == 0:
            return  # of a resend: no sample
        target_ps = swift_target_ps(params, cwnd_q20)
        if delay_ps < target_ps:
            flight_bytes = link["sent_bytes"] - link["acked_bytes"] + acked_bytes
            if 2 * flight_bytes < link["cwnd_bytes"]:
                return
            mtu_bytes = params["mtu_bytes"]
            acked_q20 = (min(acked_bytes, mtu_bytes << 12) << 20) // mtu_bytes
            cwnd_q20 += (acked_q20 << 10) // (cwnd_q20 >> 10) if cwnd_q20 >= _ONE_Q20 else acked_q20
        elif can_decrease:
            excess_q20 = ((delay_ps - target_ps) << 20) // delay_ps * 4 // 5
            cwnd_q20 -= (cwnd_q20 >> 10) * min(excess_q20, _ONE_Q20 // 2) >> 10
            link["decreased_at_ps"] = now_ps
    elif event == TIMED_OUT and link["retries"] >= _RESET_RETRIES:
        cwnd_q20 = _LEAST_Q20
    elif can_decrease:
        cwnd_q20 -= cwnd_q20 >> 1
        link["decreased_at_ps"] = now_ps
    most_q20 = min(params["window_bytes"] // params["mtu_bytes"], MAX_CWND_PACKETS) << 20
    link["cwnd_q20"] = min(max(cwnd_q20, _LEAST_Q20), most_q20)
    link["cwnd_bytes"] = max((link["cwnd_q20"] >> 10) * params["mtu_bytes"] >> 10, params["mtu_bytes"])
    pace(link)


@kernel(inline=True)
def tell_policy(link, params, event, acked_bytes, now_ps):
    """Let the link's policy react to ``event``.

    Parameters
    ----------
    link : LINK row, modified in place
    params : PARAMS row
    event : int64
        ACKED, LOST, TIMED_OUT, IDLE or MARKED.
    acked_bytes : int64
        Acknowledged by the frame that is the event, and counted in ``link["acked_bytes"]`` already; else 0.
    now_ps : int64
    """
    if params["congestion_control"] == _DCTCP:
        _dctcp(link, params, event, acked_bytes)
    elif event == MARKED:
        event = ACKED  # nobody should have: what we sent could not be marked
    if params["congestion_control"] == _SWIFT:
        _swift(link, params, event, acked_bytes, now_ps)
    if params["congestion_control"] == _RENO:
        _reno(link, params, event, acked_bytes)
