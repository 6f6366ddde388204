"""TCP's congestion windows: Reno, CUBIC and DCTCP, one function a question, chosen by the integer ``policy``.

Windows are in units of 2**-20 packets, CUBIC's times in 2**-12 s; integers alone, so that compiled and interpreted runs
agree. Knows nothing of frames, timers or what to send again.
"""

from __future__ import annotations

from ttpoe._jit import kernel

RENO, CUBIC, DCTCP = range(3)
POLICIES = {"reno": RENO, "cubic": CUBIC, "dctcp": DCTCP}

PACKET_Q20 = 1 << 20
LEAST_SSTHRESH_Q20 = 2 * PACKET_Q20
CUBIC_TICK_PS = 244_140_625
"""2**-12 s."""
_LONGEST_TICKS = 1 << 20
"""256 s: a cube of more would leave int64."""
_GAIN_SHIFT = 4
"""DCTCP's g is 1/16."""


@kernel
def cube_root(value):
    """Largest integer whose cube is at most ``value``, below 2**60."""
    root = 0
    for bit in range(19, -1, -1):
        tried = root | (1 << bit)
        if tried * tried * tried <= value:
            root = tried
    return root


@kernel
def cubic_window_q20(ticks, k_ticks, w_max_q20):
    """W(t) = C (t - K)^3 + W_max with C = 0.4 packets/s^3 (RFC 9438, 4.2), to a 2**-10 packet."""
    d = min(max(ticks - k_ticks, -_LONGEST_TICKS), _LONGEST_TICKS)
    return w_max_q20 + ((d * d * d * 2 // 5 >> 26) << 10)


@kernel
def cubic_k_ticks(w_max_q20, cwnd_q20):
    """K: how long the cubic takes from ``cwnd`` to ``w_max`` (RFC 9438, 4.2)."""
    return cube_root((w_max_q20 - cwnd_q20 >> 10) * 5 // 2 << 26)


@kernel
def _grow_cubic(tcp, acked, now_ps):
    """RFC 9438, 4.2 to 4.5: towards the window a round trip ahead, or Reno's where that is larger."""
    cwnd_q20 = tcp["cwnd_q20"]
    if tcp["epoch_ps"] < 0:
        tcp["epoch_ps"] = now_ps
        tcp["w_est_q20"] = cwnd_q20
        if cwnd_q20 < tcp["w_max_q20"]:
            tcp["k_ticks"] = cubic_k_ticks(tcp["w_max_q20"], cwnd_q20)
        else:
            tcp["k_ticks"] = 0
            tcp["w_max_q20"] = cwnd_q20
    since_ps = now_ps - tcp["epoch_ps"]
    reno_q20 = (acked << 40) // cwnd_q20
    if tcp["w_est_q20"] < tcp["prior_q20"]:
        reno_q20 = reno_q20 * 9 // 17  # 3 (1 - 0.7) / (1 + 0.7)
    tcp["w_est_q20"] += reno_q20
    if cubic_window_q20(since_ps // CUBIC_TICK_PS, tcp["k_ticks"], tcp["w_max_q20"]) < tcp["w_est_q20"]:
        tcp["cwnd_q20"] = max(cwnd_q20, tcp["w_est_q20"])
        return
    ticks = (since_ps + tcp["srtt_ps"]) // CUBIC_TICK_PS
    target_q20 = cubic_window_q20(ticks, tcp["k_ticks"], tcp["w_max_q20"])
    target_q20 = min(max(target_q20, cwnd_q20), cwnd_q20 + cwnd_q20 // 2)
    tcp["cwnd_q20"] += ((target_q20 - cwnd_q20) * acked << 10) // (cwnd_q20 >> 10)


@kernel
def grow(tcp, params, acked, now_ps):
    """``acked`` packets were acknowledged, without a mark and outside of fast recovery.

    Slow start by two packets an acknowledgement at most (RFC 3465, 2.3), one after a timeout.
    """
    if tcp["cwnd_q20"] < tcp["ssthresh_q20"]:
        most = 1 if tcp["timeouts"] > 0 else 2
        grown_q20 = tcp["cwnd_q20"] + min(acked, most) * PACKET_Q20
        tcp["cwnd_q20"] = min(grown_q20, tcp["ssthresh_q20"])
    elif params["policy"] == CUBIC:
        _grow_cubic(tcp, acked, now_ps)
    else:
        tcp["cwnd_q20"] += (acked << 40) // tcp["cwnd_q20"]


@kernel
def on_loss(tcp, params, flight, is_timeout):
    """A window lost packets with ``flight`` outstanding: set the threshold, and the window to it or to one packet.

    Source: RFC 5681, 3.1 and 3.2; RFC 9438, 4.6 to 4.8; RFC 8257, 3.5: DCTCP takes a loss as Reno does.
    """
    base_q20 = min(tcp["cwnd_q20"], flight * PACKET_Q20)
    if params["policy"] == CUBIC:
        tcp["w_max_q20"] = base_q20 * 17 // 20 if base_q20 < tcp["w_max_q20"] else base_q20  # fast convergence
        tcp["prior_q20"] = base_q20
        tcp["epoch_ps"] = -1
        base_q20 = base_q20 * 7 // 10
    else:
        base_q20 >>= 1
    if is_timeout == 0 or tcp["retries"] == 1:  # the timer again for the same data holds the threshold
        tcp["ssthresh_q20"] = max(base_q20, LEAST_SSTHRESH_Q20)
    tcp["cwnd_q20"] = PACKET_Q20 if is_timeout != 0 else min(tcp["ssthresh_q20"], max(tcp["cwnd_q20"], PACKET_Q20))


@kernel
def on_mark(tcp, params, flight):
    """The first ECE of a window: as a loss (RFC 3168, 6.1.2), or by DCTCP's fraction of marks (RFC 8257, 3.3)."""
    if params["policy"] != DCTCP:
        on_loss(tcp, params, flight, 0)
        return
    cut_q20 = (tcp["cwnd_q20"] >> 10) * tcp["alpha_q20"] >> 11
    tcp["cwnd_q20"] = max(tcp["cwnd_q20"] - cut_q20, LEAST_SSTHRESH_Q20)
    tcp["ssthresh_q20"] = tcp["cwnd_q20"]


@kernel
def count_marks(tcp, acked, is_marked):
    """DCTCP: of a window's packets, how many were marked; alpha moves by g once a window (RFC 8257, 3.3)."""
    tcp["window_acked"] += acked
    if is_marked != 0:
        tcp["window_marked"] += acked
    if tcp["una"] <= tcp["window_end"] or tcp["window_acked"] == 0:
        return
    share_q20 = tcp["window_marked"] * PACKET_Q20 // tcp["window_acked"]
    tcp["alpha_q20"] += (share_q20 >> _GAIN_SHIFT) - (tcp["alpha_q20"] >> _GAIN_SHIFT)
    tcp["window_end"] = tcp["max"]
    tcp["window_acked"] = tcp["window_marked"] = 0
