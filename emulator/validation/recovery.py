"""Rows of papers on what losses do, and on ways to make up for them."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from emulator.results import RunResult
from emulator.validation.row import Check, Measured, Row, all_done, build, finish, flows
from emulator.workloads import name_hash
from emulator.workloads.poisson import Distribution, draw_gap_ps, draw_size, mean_size

# --- TCP incast -------------------------------------------------------------------------------------------------------


def measure_tcp_incast() -> Measured:
    """A block of 1 MB, read from N servers at once."""
    left: dict[str, list[float]] = {}
    for rto in ("200ms", "1ms"):
        for senders in (8, 16, 32):
            values = {
                "workload": {"kind": "incast", "senders": senders, "size_bytes": 1_000_000 // senders},
                "link": {"rate_bps": "1G", "delay_ps": "10us"}, "switch": {"buffer_bytes": "64KB", "alpha": 64.0},
                "tcp": {"rto_min_ps": rto},
            }  # fmt: skip
            result = finish(values, "iwarp-reno")
            assert result.goodput_limit_gbps is not None
            left.setdefault(rto, []).append(result.summary()["goodput_gbps"] / result.goodput_limit_gbps)
    told = [f"{', '.join(f'{share:.1%}' for share in shares)} with {rto}" for rto, shares in left.items()]
    return Measured(
        f"{'; '.join(told)} are left",
        (Check("most that is left with 200 ms", max(left["200ms"]), 0, 0.1),
         Check("least that is left with 1 ms", min(left["1ms"]), 0.9, 1)),
    )  # fmt: skip


# --- IRN --------------------------------------------------------------------------------------------------------------

_HEAVY_TAILED: Distribution = ((0, 0), (32, 0), (1_000, 5_000), (200_000, 8_500), (3_000_000, 10_000))
"""Half of the messages up to 1 kB, 15 % from 200 kB to 3 MB; how sizes lie between is ours."""
_HOSTS, _RATE_BPS, _MESSAGES = 54, 40_000_000_000, 2000
_PORT_BYTES, _PFC_BYTES = 240_000, 220_000
_RTO_PS = 320_000_000
_NO_LIMIT = 1_000_000
"""The paper's senders have one timeout without PFC, RTO_high, and never give up; real ones do after seven."""
_SEEDS = range(1, 4)


def _heavy_tailed(seed: int) -> list[tuple[int, ...]]:
    """(src, dst, size_bytes, start_ps) of the first Poisson arrivals at a load of 70 %."""
    mean_ps = mean_size(_HEAVY_TAILED) * 8 * 10**12 / (Fraction(7, 10) * _RATE_BPS)
    rows: list[tuple[int, ...]] = []
    for src in range(_HOSTS):
        at_ps = 0
        for k in range(3 * _MESSAGES // _HOSTS):  # more than any host has of the first
            names = (f"h{src}", str(k))
            at_ps += draw_gap_ps(mean_ps, name_hash(seed, "gap", *names))
            dst = (src + 1 + name_hash(seed, "to", *names) % (_HOSTS - 1)) % _HOSTS
            rows.append((src, dst, draw_size(_HEAVY_TAILED, name_hash(seed, "size", *names)), at_ps))
    return sorted(rows, key=lambda row: row[3])[:_MESSAGES]


_MEASURES = ("mean slowdown", "mean FCT", "99 % FCT")


def _three(result: RunResult) -> np.ndarray:
    """The paper's three measures."""
    flows_ = result.flows
    fct_ps = flows_["fct_rx_ps"]
    slowdown = fct_ps / flows_["ideal_ps"]
    return np.array([slowdown.mean(), fct_ps.mean(), np.quantile(fct_ps, 0.99, method="inverted_cdf")])


def _irn_setup(seed: int) -> dict[str, Any]:
    return {
        "topology": {"kind": "fat-tree", "hosts": _HOSTS}, "workload": flows(*_heavy_tailed(seed)),
        "link": {"rate_bps": _RATE_BPS, "delay_ps": "2us"}, "roce": {"mtu_bytes": 1000},
        "switch": {"buffer_bytes": 6 * _PORT_BYTES, "static_threshold_bytes": _PFC_BYTES, "alpha": 64.0},
    }  # fmt: skip


def _named(values: np.ndarray, form: str) -> str:
    return ", ".join(f"{name} {value:{form}}" for name, value in zip(_MEASURES, values, strict=True))


def _checks(values: np.ndarray, low: float, high: float) -> tuple[Check, ...]:
    return tuple(Check(name, float(value), low, high) for name, value in zip(_MEASURES, values, strict=True))


def measure_irn() -> Measured:
    """IRN on lines that lose, RoCE on lines that do not; the same messages."""
    gains = []
    for seed in _SEEDS:
        irn, lossless = (_three(finish(_irn_setup(seed), name, seed)) for name in ("irn", "roce-pfc"))
        gains.append(1 - irn / lossless)
    gain = np.median(gains, axis=0)
    return Measured("less by: " + _named(gain, ".0%"), _checks(gain, 0.06, 0.83))


def measure_roce_without_pfc() -> Measured:
    """RoCE on lines that lose and on lines that do not: all messages are delivered, however late."""
    ratios = []
    for seed in _SEEDS:
        lossy = build(_irn_setup(seed), "roce", seed)
        for name, value in (("rto_ps", _RTO_PS), ("rto_low_ps", _RTO_PS), ("retry_limit", _NO_LIMIT)):
            lossy.world.roce_params[name] = value  # which no field says: real ones are 4.096 us x 2^n, and 7
        lossless = finish(_irn_setup(seed), "roce-pfc", seed)
        ratios.append(_three(all_done(lossy)) / _three(lossless))
    ratio = np.median(ratios, axis=0)
    return Measured(f"times: {_named(ratio, '.1f')}", _checks(ratio, 1.5, 3))


# --- go-back-0 --------------------------------------------------------------------------------------------------------


def measure_go_back_0() -> Measured:
    """One message of 4 MB, sent again from its first packet, from the lost one, or only what was lost."""
    told, use = {}, 0.0
    for recovery in ("go-back-0", "go-back-n", "selective"):
        values = {
            "workload": {"kind": "incast", "senders": 1, "size_bytes": 4_000_000}, "until_ps": "20ms",
            "topology": {"links": [{"hosts": [1], "impaired_ways": "from_host", "impairments": {"loss_every": 256}}]},
            "roce": {"mtu_bytes": 1024}, "profiles": [{"name": "recovers", "base": "roce", "recovery": recovery}],
        }  # fmt: skip
        result = build(values, "recovers").run()
        fct_ps = int(result.flows["fct_rx_ps"][0])
        told[recovery] = 32_000_000 / fct_ps * 1000 if fct_ps >= 0 else 0.0
        if recovery == "go-back-0":
            sent = next(port["tx_bytes"] for port in result.ports if port["name"] == "h1")
            use = sent * 80 / result.end_ps  # a frame under way at the end is counted whole
    return Measured(
        ", ".join(f"{name} {gbps:.1f}" for name, gbps in told.items()) + f" Gb/s; go-back-0 uses {use:.0%} of the line",
        (Check("goodput of go-back-0, Gb/s", told["go-back-0"], 0, 0), Check("its use of the line", use, 0.95, 1.001),
         Check("goodput of go-back-N, Gb/s", told["go-back-n"], 50, 100)),
    )  # fmt: skip


_IRN = (
    "k = 6 fat tree, 54 hosts, 40G, 2 us links, 240 KB a port (PFC at 220), MTU 1000, 70 % load of heavy-tailed "
    "messages, the first 2,000; seeds 1 to 3 (set-up recalled); "
)

ROWS = (
    Row(
        "tcp-incast", "TCP incast", "a block of 1 MB from 8, 16, 32 servers over 1 Gb/s, 64 kB of buffer; iwarp-reno, "
        "least RTO of 200 and 1 ms",
        "up to 90 % of goodput lost; repaired by a fine RTO", "Vasudevan et al., SIGCOMM 2009",
        "a tenth of the limit is left at most; nine tenths at least", measure_tcp_incast, is_quick=True,
        note="A timer of 1 ms is fine enough here, as the block alone takes 8 ms.",
    ),
    Row(
        "irn", "IRN without PFC against RoCE with PFC", _IRN + "irn, roce-pfc",
        "6-83 % better", "IRN (SIGCOMM 2018)", "none, for each of the paper's three measures", measure_irn,
        note="The paper's figure is over all of its scenarios; the set-up is recalled, and how sizes lie between 1 kB "
        "and 200 kB is ours.",
    ),
    Row(
        "roce-without-pfc", "RoCE without PFC against RoCE with it", _IRN + "roce (timeout 320 us, no retry limit), "
        "roce-pfc",
        "1.5 to 3 times as much", "IRN (SIGCOMM 2018), recalled", "none, for each of the paper's three measures",
        measure_roce_without_pfc,
        note="A sender that goes back N with no window sends whole messages at line rate into queues that are full, "
        "and all that follows a loss again. With the retry limit of 7 that real queue pairs have, 6 % of messages "
        "fail and the others take 2.7, 4.3 and 5.0 times as long. Egress queues of 1.2 MB, as five input ports of 240 "
        "KB can hold for one output, change little (5.0, 9.0 and 11.9 times). What else differs from the paper's "
        "simulator we do not know; its text was not at hand.",
    ),
    Row(
        "go-back-0", "go-back-0", "one loss in 256 packets, a message of 4 MB in packets of 1 KiB, 100G, 20 ms",
        "goodput 0 at full line use; go-back-N stays healthy", "Guo et al., SIGCOMM 2016, recalled",
        "0; 95 % of the line; half of the line at least", measure_go_back_0,
    ),
)  # fmt: skip
