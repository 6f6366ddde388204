"""Retransmission: round-trip samples, the timeout (RFC 6298), cumulative acknowledgement and go-back-N.

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
def sample_rtt(link, rtt_ps):
    """Take one round-trip sample into srtt and rttvar (RFC 6298, 2.2 and 2.3), and the least one. Modifies ``link``."""
    link["min_rtt_ps"] = min(link["min_rtt_ps"], rtt_ps)
    if link["srtt_ps"] == 0:
        link["srtt_ps"] = rtt_ps
        link["rttvar_ps"] = rtt_ps // 2
        return
    error_ps = rtt_ps - link["srtt_ps"]
    link["rttvar_ps"] += (abs(error_ps) - link["rttvar_ps"]) // 4
    link["srtt_ps"] += error_ps // 8


@kernel
def acknowledge(link, ring, pool, params, seq, now_ps):
    """Take every id up to ``seq`` as acknowledged; ``seq`` must lie in [tx_una, tx_max).

    Samples the round trip unless the id was resent (Karn), restarts the timer (RFC 6298, 5.2 and 5.3), and forgets
    retries and back-off: progress shows that the path is alive, as Linux takes it; RFC 6298 waits for a new sample.

    Parameters
    ----------
    link : LINK row, modified in place
    ring : SENT array
    pool : POOL row, modified in place
    params : PARAMS row
    seq : int64
        Id acknowledged.
    now_ps : int64
    """
    slot = ring[link["ring_base"] + (seq & link["ring_mask"])]
    link["tx_una"] = seq_add(seq, 1)
    pool["held_bytes"] -= slot["end_byte"] - link["acked_bytes"]
    link["acked_bytes"] = slot["end_byte"]
    if seq_diff(link["tx_una"], link["tx_next"]) > 0:
        link["tx_next"] = link["tx_una"]
        link["sent_bytes"] = link["acked_bytes"]
    if slot["is_resent"] == 0:
        sample_rtt(link, now_ps - slot["sent_at_ps"])
    if link["srtt_ps"] != 0:
        link["rto_ps"] = clamp_rto_ps(link["srtt_ps"] + 4 * link["rttvar_ps"], params)
    link["retries"] = 0
    link["timer_at_ps"] = NEVER if link["tx_una"] == link["tx_next"] else now_ps + link["rto_ps"]


@kernel
def go_back(link):
    """Send again from the oldest unacknowledged id: go-back-N. Modifies ``link``."""
    link["tx_next"] = link["tx_una"]
    link["sent_bytes"] = link["acked_bytes"]
    link["timer_at_ps"] = NEVER  # nothing is in flight; the first resend starts it


@kernel
def back_off(link, params):
    """Count a timeout and double the timeout (RFC 6298, 5.5); returns 1 once the retry limit is passed."""
    link["timeouts"] += 1
    link["retries"] += 1
    link["rto_ps"] = clamp_rto_ps(2 * link["rto_ps"], params)
    return 1 if link["retries"] > params["retry_limit"] else 0
