"""Retransmission: round-trip samples, the timeout (RFC 6298), cumulative acknowledgement, go-back-N, the probe of a
lost tail (after RFC 8985, section 7), and holding for a peer that is full.

Changes only the sending half of a link row. Knows nothing of opcodes or states.
"""

from __future__ import annotations

from ttpoe._jit import kernel
from ttpoe.sequence import seq_add, seq_diff
from ttpoe.units import NEVER


@kernel(inline=True)
def clamp_rto_ps(rto_ps, params):
    """``rto_ps`` within [rto_min_ps, rto_max_ps] (RFC 6298, 2.4 and 2.5)."""
    if rto_ps < params["rto_min_ps"]:
        return params["rto_min_ps"]
    if rto_ps > params["rto_max_ps"]:
        return params["rto_max_ps"]
    return rto_ps


@kernel(inline=True)
def sampled_rto_ps(link, params):
    """Timeout from the samples (RFC 6298, 2.3), clamped. For the clock granularity G an eighth of srtt, which is ours:
    on a quiet path rttvar falls to 0, and a timeout of exactly a round trip would fire on the rounding.
    """
    return clamp_rto_ps(link["srtt_ps"] + max(4 * link["rttvar_ps"], link["srtt_ps"] // 8), params)


@kernel(inline=True)
def sample_rtt(link, rtt_ps):
    """Take one round-trip sample into srtt and rttvar (RFC 6298, 2.2 and 2.3), and the least one. Modifies ``link``."""
    link["min_rtt_ps"] = min(link["min_rtt_ps"], rtt_ps)
    link["rtt_ps"] = rtt_ps
    if link["srtt_ps"] == 0:
        link["srtt_ps"] = rtt_ps
        link["rttvar_ps"] = rtt_ps // 2
        return
    error_ps = rtt_ps - link["srtt_ps"]
    link["rttvar_ps"] += (abs(error_ps) - link["rttvar_ps"]) // 4
    link["srtt_ps"] += error_ps // 8


@kernel(inline=True)
def tail_probe_at_ps(link, params, now_ps):
    """When to send the last id once more if nothing is heard until then; NEVER if this is no time for it.

    Once everything that was submitted is out, no later frame can show the receiver a gap. One probe until what was out
    then is acknowledged, and none without a sample of the round trip.

    Notes
    -----
    Source: RFC 8985, 7.2: two round trips. Ours: they count from the last payload, and an acknowledgement of an earlier
    one, which shows that answers are on their way, leaves one round trip more; the RFC starts anew with each, a round
    trip later in all. Its terms for delayed ACKs are left out, as TTPoE acknowledges each frame.
    """
    if (
        params["has_tail_probe"] == 0
        or link["cut_bytes"] != link["submitted_bytes"]
        or link["tx_next"] != link["tx_max"]
        or link["acked_bytes"] < link["probed_byte"]
        or link["srtt_ps"] == 0
    ):
        return NEVER
    wait_ps = max(2 * link["srtt_ps"], params["probe_min_ps"])
    return max(link["last_sent_at_ps"] + wait_ps, now_ps + link["srtt_ps"])


@kernel
def start_timer(link, params, now_ps):
    """Start the timer anew with something in flight: the timeout, or the probe of the tail where that comes first."""
    link["timer_at_ps"] = now_ps + link["rto_ps"]
    probe_at_ps = tail_probe_at_ps(link, params, now_ps)
    link["timer_is_probe"] = 1 if probe_at_ps < link["timer_at_ps"] else 0
    link["timer_at_ps"] = min(link["timer_at_ps"], probe_at_ps)


@kernel
def _widen_peer_room(link, params, acked_bytes):
    """A peer that was full took ``acked_bytes``: let that much more be in flight, as slow start does, up to the window.

    At least one mtu, whatever came: the next frame must go out, since nothing else would ask the peer.
    """
    link["peer_room_bytes"] = max(link["peer_room_bytes"], params["mtu_bytes"]) + acked_bytes
    link["full_wait_ps"] //= 2  # so that the next wait is near the pace of the peer's reader
    if link["peer_room_bytes"] >= params["window_bytes"]:
        link["peer_room_bytes"] = NEVER
        link["full_wait_ps"] = 0


@kernel
def acknowledge(link, ring, pool, params, seq, now_ps):
    """Take every id up to ``seq`` as acknowledged; ``seq`` must lie in [tx_una, tx_max).

    Samples the round trip unless the id was resent (Karn), restarts the timer (RFC 6298, 5.2 and 5.3), and forgets
    retries and back-off: progress shows that the path is alive, as Linux takes it; RFC 6298 waits for a new sample.
    A peer that was full has room again: as much as it took since, and as much more.

    Parameters
    ----------
    link : LINK row, modified in place
    ring : SENT array
    pool : POOL row, modified in place
    params : PARAMS row
    seq : int64
        Id acknowledged.
    now_ps : int64

    Returns
    -------
    int64
        1 if this came too early to be about the resend of ``seq``: what was sent before had arrived; else 0.
    """
    slot = ring[link["ring_base"] + (seq & link["ring_mask"])]
    acked_bytes = slot["end_byte"] - link["acked_bytes"]
    link["tx_una"] = seq_add(seq, 1)
    pool["held_bytes"] -= acked_bytes
    link["acked_bytes"] = slot["end_byte"]
    if seq_diff(link["tx_una"], link["tx_next"]) > 0:
        link["tx_next"] = link["tx_una"]
        link["sent_bytes"] = link["acked_bytes"]
    is_spurious = 0
    link["rtt_ps"] = 0
    if slot["is_resent"] == 0:
        sample_rtt(link, now_ps - slot["sent_at_ps"])
    elif link["srtt_ps"] != 0 and now_ps - slot["sent_at_ps"] < link["min_rtt_ps"]:
        is_spurious = 1
        link["resends_spurious"] += 1
    if link["srtt_ps"] != 0:
        link["rto_ps"] = sampled_rto_ps(link, params)
    link["retries"] = 0
    if link["peer_room_bytes"] != NEVER:
        _widen_peer_room(link, params, acked_bytes)
    if link["tx_una"] == link["tx_next"]:
        link["timer_at_ps"] = NEVER
        link["timer_is_probe"] = 0
    else:
        start_timer(link, params, now_ps)
    return is_spurious


@kernel
def go_back(link):
    """Send again from the oldest unacknowledged id: go-back-N. Modifies ``link``."""
    link["tx_next"] = link["tx_una"]
    link["sent_bytes"] = link["acked_bytes"]
    link["timer_at_ps"] = NEVER  # nothing is in flight; the first resend starts it
    link["timer_is_probe"] = 0


@kernel
def probe_tail(link, now_ps):
    """Have the newest id sent once more: its ACK or NACK tells what arrived. No retry. Modifies ``link``."""
    link["tx_next"] = seq_add(link["tx_max"], -1)
    link["sent_bytes"] = link["cut_bytes"] - link["tail_bytes"]
    link["probed_byte"] = link["cut_bytes"]
    link["probes_sent"] += 1
    link["timer_at_ps"] = now_ps + link["rto_ps"]
    link["timer_is_probe"] = 0


@kernel
def hold(link, params, now_ps):
    """The peer is full: send nothing until the timer, which lets the oldest id go out alone. Modifies ``link``.

    Waits double while the peer stays full, from one round trip (a timeout before the first sample) to ``rto_max_ps``.
    """
    go_back(link)
    link["peer_room_bytes"] = 0
    least_ps = link["srtt_ps"] if link["srtt_ps"] != 0 else link["rto_ps"]
    wait_ps = max(2 * link["full_wait_ps"], least_ps, params["probe_min_ps"])
    link["full_wait_ps"] = min(wait_ps, params["rto_max_ps"])
    link["timer_at_ps"] = now_ps + link["full_wait_ps"]


@kernel
def back_off(link, params):
    """Count a timeout and double the timeout (RFC 6298, 5.5); returns 1 once the retry limit is passed."""
    link["timeouts"] += 1
    link["retries"] += 1
    link["rto_ps"] = clamp_rto_ps(2 * link["rto_ps"], params)
    return 1 if link["retries"] > params["retry_limit"] else 0
