"""Rates of sending queue pairs: a limit set beforehand, or DCQCN, which CNPs lower and time and bytes raise again.

A NIC asks for the rate when it takes a packet; decays and increases that time alone decides are worked out then, so
nothing runs for a queue pair that is idle. Integers: rates in bit/s, alpha in units of 2**-20.

Source: Zhu et al., "Congestion control for large-scale RDMA deployments", SIGCOMM 2015, sections 3.2 to 3.4; NVIDIA,
"DCQCN CC parameters" (DOCA), for what their NICs add. Our readings are in docs/model.md.
"""

from __future__ import annotations

import numpy as np

from emulator.roce import CNP
from emulator.rows import whole_lines
from ttpoe._jit import kernel
from ttpoe.units import NEVER

RATE = whole_lines(
    [
        (name, "i8")
        for name in (
            "rate_bps",  # of the next packet, counted in bytes on the line
            "paced_bps",  # by which the wait for it was set
            "increase_at_ps",  # by the timer
            "decrease_at_ps",  # a CNP waits for it, or NEVER
            "is_limited",  # by a CNP, once
            "sent_bytes",  # since the byte counter's last increase
            "line_bps", "target_bps",
            "alpha_q20", "alpha_at_ps", "has_cnp",  # alpha is worked out up to then; a CNP came since
            "decreased_at_ps", "timer_count", "byte_count",
            # the notification point
            "cnp_at_ps",  # no CNP before
            "cnps_sent", "cnps_received", "marks_received",
        )
    ],
)  # fmt: skip
"""One row an end: the reaction point of a sender, the notification point of a receiver."""

DCQCN_PARAMS = np.dtype(
    [
        (name, "i8")
        for name in (
            "keep_q30", "gain_q20", "initial_alpha_q20", "alpha_period_ps", "is_alpha_at_cnp",
            "cnp_gap_ps", "decrease_gap_ps", "min_rate_bps", "is_target_clamped",
            "increase_period_ps", "increase_bytes", "threshold", "additive_bps", "hyper_bps",
        )
    ],
    align=True,
)  # fmt: skip


@kernel
def _power_q30(base_q30, exponent):
    """``base ** exponent`` of a fraction in units of 2**-30, rounded down at each multiplication."""
    result = 1 << 30
    while exponent > 0 and result > 0:
        if exponent & 1:
            result = (result * base_q30) >> 30
        base_q30 = (base_q30 * base_q30) >> 30
        exponent >>= 1
    return result


@kernel
def _age_alpha(rate, params, now_ps):
    """Bring alpha to ``now_ps``: it decays every period, and gains in one that saw a CNP."""
    periods = (now_ps - rate["alpha_at_ps"]) // params["alpha_period_ps"]
    if periods <= 0:
        return
    rate["alpha_at_ps"] += periods * params["alpha_period_ps"]
    if rate["has_cnp"] != 0:
        rate["has_cnp"] = 0
        rate["alpha_q20"] = ((rate["alpha_q20"] * params["keep_q30"]) >> 30) + params["gain_q20"]
        periods -= 1
    rate["alpha_q20"] = (rate["alpha_q20"] * _power_q30(params["keep_q30"], periods)) >> 30


@kernel
def _decrease(rate, params, now_ps):
    _age_alpha(rate, params, now_ps)
    if params["is_target_clamped"] != 0 or rate["timer_count"] + rate["byte_count"] > 0:
        rate["target_bps"] = rate["rate_bps"]
    lower_bps = rate["rate_bps"] - (((rate["rate_bps"] >> 1) * rate["alpha_q20"]) >> 20)
    rate["rate_bps"] = max(lower_bps, min(params["min_rate_bps"], rate["rate_bps"]))
    rate["timer_count"] = rate["byte_count"] = rate["sent_bytes"] = 0
    rate["increase_at_ps"] = now_ps + params["increase_period_ps"]
    rate["decreased_at_ps"] = now_ps
    rate["decrease_at_ps"] = NEVER


@kernel
def _increase(rate, params):
    """Fast recovery towards the target; after ``threshold`` of them the target grows, faster after as many of both."""
    fewer, more = rate["timer_count"], rate["byte_count"]
    if fewer > more:
        fewer, more = more, fewer
    if more >= params["threshold"]:
        step_bps = params["additive_bps"]
        if fewer > params["threshold"]:
            step_bps = params["hyper_bps"]
        rate["target_bps"] = min(rate["target_bps"] + step_bps, rate["line_bps"])
    rate["rate_bps"] = (rate["rate_bps"] + rate["target_bps"] + 1) >> 1


@kernel
def settle(rate, params, now_ps):
    """Bring a RATE row to ``now_ps``: increases by the timer and a decrease that waited, in their order."""
    while True:
        if rate["decrease_at_ps"] <= min(now_ps, rate["increase_at_ps"]):
            _decrease(rate, params, rate["decrease_at_ps"])
        elif rate["increase_at_ps"] <= now_ps:
            ticks = 1
            if rate["rate_bps"] == rate["line_bps"]:  # and so is the target: nothing but the count changes
                until_ps = min(now_ps, rate["decrease_at_ps"] - 1)
                ticks += (until_ps - rate["increase_at_ps"]) // params["increase_period_ps"]
            else:
                _increase(rate, params)
            rate["timer_count"] += ticks
            rate["increase_at_ps"] += ticks * params["increase_period_ps"]
        else:
            return


@kernel
def rate_after(rate, params, wire_bytes, now_ps):
    """Bit/s to wait by after a packet of ``wire_bytes`` that is sent now; the byte counter has its say."""
    if rate["is_limited"] != 0:
        settle(rate, params, now_ps)
        rate["sent_bytes"] += wire_bytes
        while rate["sent_bytes"] >= params["increase_bytes"]:
            rate["sent_bytes"] -= params["increase_bytes"]
            _increase(rate, params)
            rate["byte_count"] += 1
    rate["paced_bps"] = rate["rate_bps"]
    return rate["rate_bps"]


@kernel
def on_cnp(rate, params, now_ps):
    """A CNP reached its sender: lower the rate, at once or when the last decrease is long enough ago."""
    rate["cnps_received"] += 1
    if rate["is_limited"] == 0:
        rate["is_limited"] = 1
        rate["alpha_q20"] = params["initial_alpha_q20"]
        rate["alpha_at_ps"] = now_ps
        rate["decreased_at_ps"] = now_ps - params["decrease_gap_ps"]
    settle(rate, params, now_ps)
    _age_alpha(rate, params, now_ps)
    if rate["decrease_at_ps"] == NEVER:
        rate["decrease_at_ps"] = max(now_ps, rate["decreased_at_ps"] + params["decrease_gap_ps"])
        settle(rate, params, now_ps)
    if params["is_alpha_at_cnp"] != 0:
        rate["alpha_q20"] = ((rate["alpha_q20"] * params["keep_q30"]) >> 30) + params["gain_q20"]
        rate["alpha_at_ps"] = now_ps
    else:
        rate["has_cnp"] = 1


@kernel
def on_mark(rate, params, now_ps, out, n_out):
    """Data came with the mark CE: append a CNP, unless the last one of this queue pair is too recent."""
    rate["marks_received"] += 1
    if now_ps < rate["cnp_at_ps"]:
        return n_out
    rate["cnp_at_ps"] = now_ps + params["cnp_gap_ps"]
    rate["cnps_sent"] += 1
    row = out[n_out]
    row["opcode"] = CNP
    row["syndrome"] = 0
    row["psn"] = 0
    row["msn"] = 0
    row["payload_bytes"] = 0
    return n_out + 1
