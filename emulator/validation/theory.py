"""Rows that theory gives: they hold exactly, or within statistics."""

from __future__ import annotations

from fractions import Fraction
from math import factorial, sqrt
from typing import Any

import numpy as np

from emulator.config import make_scenario
from emulator.engine import RunStatus, run
from emulator.framing import data_wire_bytes, message_frames
from emulator.packet import LINE_ONLY_BYTES
from emulator.pfc import PFC_WIRE_BYTES
from emulator.topology import headroom_bound_bytes
from emulator.validation.row import US, Check, Measured, Row, build, delivered_gbps, finish, flows
from emulator.workloads import name_hash
from emulator.workloads.poisson import draw_gap_ps
from emulator.world import ROCE

FRAME_LINE, FRAME_HELD = 1108, 1088
"""A TTPoE frame of 1024 on the line, and in a buffer."""
FRAME_PS = FRAME_LINE * 80
"""At 100G."""
FREE = {"handshake": False, "window_bytes": "100MB", "rto_min_ps": "1s", "rto_initial_ps": "1s"}
"""TTPoE as a source of frames that nothing holds back."""

# --- the window -------------------------------------------------------------------------------------------------------

_LINE_GBPS = 100 * 1024 / FRAME_LINE


def measure_knee() -> Measured:
    """Goodput of one flow over round trips from 1 to 1000 us."""
    checks = []
    for rtt_us in (1, 10, 50, 80, 86, 87, 90, 120, 250, 500, 1000):
        values = {
            "workload": {"kind": "incast", "senders": 1, "size_bytes": 100_000_000},
            "link": {"delay_ps": rtt_us * US // 4}, "ttpoe": {"rto_initial_ps": "1s"},
        }  # fmt: skip
        result = finish(values, "ttpoe")
        goodput = 100_000_000 * 8_000 / int(result.flows["fct_rx_ps"][0])
        expected = min(_LINE_GBPS, 1_000_000 * 8_000 / (rtt_us * US))
        checks.append(Check(f"Gb/s at {rtt_us} us", goodput, 0.98 * expected, 1.02 * expected))
    worst = max(abs(check.value / (check.low / 0.98) - 1) for check in checks)
    at = {check.what: check.value for check in checks}
    ours = (
        f"{at['Gb/s at 10 us']:.1f} Gb/s at 10 us, {at['Gb/s at 1000 us']:.2f} at 1000 us; off by {worst:.1%} at most"
    )
    return Measured(ours, tuple(checks))


# --- queues -----------------------------------------------------------------------------------------------------------


def measure_deterministic_queue() -> Measured:
    """D/D/1: a sender of 100G before slower receivers."""
    checks = []
    n = 200
    for rate_bps in (50_000_000_000, 30_000_000_000, 3_700_000_000):
        values = {
            "workload": {"kind": "incast", "senders": 1, "size_bytes": n * 1024}, "ttpoe": FREE,
            "topology": {"links": [{"hosts": [0], "rate_bps": rate_bps}]}, "switch": {"buffer_bytes": "100MB"},
        }  # fmt: skip
        result = finish(values, "ttpoe")
        service_ps = -(-FRAME_LINE * 8 * 10**12 // rate_bps)
        deepest = max(k - k * FRAME_PS // service_ps for k in range(1, n)) * FRAME_HELD
        port = next(port for port in result.ports if port["name"] == "s0.p0")
        last_ps = FRAME_PS + n * service_ps + 2 * US
        checks.append(Check(f"peak at {rate_bps} bit/s, bytes", port["max_queue_bytes"], deepest, deepest))
        checks.append(Check(f"FCT at {rate_bps} bit/s, ps", int(result.flows["fct_rx_ps"][0]), last_ps, last_ps))
    exact = sum(check.holds for check in checks)
    return Measured(
        f"{exact} of {len(checks)} equal: peak queue and last departure at 50, 30 and 3.7 Gb/s", tuple(checks)
    )


def poisson_frames(load: Fraction, n: int) -> tuple[dict[str, Any], np.ndarray]:
    """n hosts that send one frame each to h0 at random times, and when these reach the switch."""
    starts = np.cumsum([draw_gap_ps(FRAME_PS / load, name_hash(1, "m/d/1", str(load), str(k))) for k in range(n)])
    rows = [(k + 1, 0, 1024, start) for k, start in enumerate(starts.tolist())]
    return {"workload": flows(*rows), "ttpoe": FREE, "switch": {"buffer_bytes": "1GB"}}, starts + FRAME_PS + US


def measure_random_queue() -> Measured:
    """M/D/1: every wait by Lindley's recursion, and their mean."""
    checks = []
    told = []
    n = 9_000
    for percent in (30, 60, 80):
        load = Fraction(percent, 100)
        values, arrivals = poisson_frames(load, n)
        result = finish(values, "ttpoe")
        waits = result.flows["fct_rx_ps"] - result.flows["ideal_ps"]
        free_ps = wrong = 0
        for at, wait in zip(arrivals.tolist(), waits.tolist(), strict=True):
            begin = max(at, free_ps)
            wrong += wait != begin - at
            free_ps = begin + FRAME_PS
        mean = float(load) * FRAME_PS / (2 * (1 - float(load)))
        sigma = waits.reshape(30, -1).mean(axis=1).std(ddof=1) / sqrt(30)  # waits are correlated, batches hardly
        checks.append(Check(f"waits that are not Lindley's, load {percent} %", wrong, 0, 0))
        low, high = mean - 4 * sigma, mean + 4 * sigma
        checks.append(Check(f"mean wait at load {percent} %, ps", float(waits.mean()), low, high))
        told.append(f"{waits.mean() / 1000:.1f} ({mean / 1000:.1f})")
    return Measured("every wait equal; means " + ", ".join(told) + " ns", tuple(checks))


def measure_little() -> Measured:
    """The integral of a queue over time against the sum of all waits, event by event."""
    values, _ = poisson_frames(Fraction(4, 5), 1500)
    fabric = build(values, "ttpoe")
    port = fabric.topology.port_names.index("s0.p0")
    queue = fabric.world.queues[:, port]
    area = before_ps = held = 0
    while RunStatus(run(fabric.world, fabric.scenario.until_ps, 1)) is RunStatus.SLICE:
        now_ps = int(fabric.world.engine["now_ps"][0])
        area += held * (now_ps - before_ps)
        before_ps, held = now_ps, int(queue["bytes"].sum())
    result = fabric.run()
    expected = int((result.flows["fct_rx_ps"] - result.flows["ideal_ps"]).sum()) * FRAME_HELD
    return Measured(
        f"{area} and {expected} byte ps over 1500 frames",
        (Check("area, byte ps", area, expected, expected), Check("waits, byte ps", expected, 1, 2**62)),
    )


# --- headroom ---------------------------------------------------------------------------------------------------------


def measure_headroom() -> Measured:
    """An incast over rates, delays, reactions, pipelines and transports, with a buffer that is nearly all headroom."""
    runs = drops = pauses = 0
    for rate in ("10G", "100G", "400G"):
        for delay_ps in (0, US, 10 * US):
            for reaction_ps in (0, US):
                for transport, quanta in (("roce-pfc", 65_535), ("roce-pfc", 140), ("ttpoe-pfc", 65_535)):
                    values: dict[str, Any] = {
                        "workload": {"kind": "incast", "senders": 6, "size_bytes": 300_000},
                        "link": {"rate_bps": rate, "delay_ps": delay_ps},
                        "switch": {"pause_reaction_ps": reaction_ps, "pipeline_latency_ps": 400_000,
                                   "pause_quanta": quanta, "buffer_bytes": 2**40},
                    }  # fmt: skip
                    headroom = int(build(values, transport).world.switches["headroom_limit_bytes"][0])
                    shared = 12 * data_wire_bytes(transport, make_scenario(values))
                    values["switch"]["buffer_bytes"] = headroom + shared
                    result = finish(values, transport)
                    runs += 1
                    drops += result.counters["drops"]
                    pauses += result.counters["pauses"] > 0
    return Measured(
        f"{drops} frames lost in {runs} runs, of which {pauses} paused",
        (Check("drops", drops, 0, 0), Check("runs that paused", pauses, runs, runs)),
    )


_FIRST, _FRAME = 4194, 4178


def _worst_use(phase_ps: int, headroom_bytes: int) -> tuple[int, int]:
    """Headroom used at s0.p1, and drops, when a frame towards h1 has just begun as h1 is paused.

    h1 sends at line rate to h0, whose line is too slow to drain; h2 fills the line towards h1 from ``phase_ps`` on; the
    cable holds three frames.
    """
    delay_ps = (3 * _FRAME - PFC_WIRE_BYTES + 200) * 80 // 2
    values = {
        "workload": flows((1, 0, 400_000, 0), (2, 1, 400_000, phase_ps)), "until_ps": "10us",
        "topology": {"links": [{"hosts": [0], "rate_bps": 10**7}, {"hosts": [1], "delay_ps": delay_ps},
                               {"hosts": [2], "delay_ps": 0}]},
        "roce": {"ack_every_packets": 1000},
        "switch": {"headroom_bytes": headroom_bytes, "buffer_bytes": 6 * headroom_bytes + 60_000, "alpha": 0.25},
    }  # fmt: skip
    result = build(values, "roce-pfc").run()
    port = next(port for port in result.ports if port["name"] == "s0.p1")
    return port["max_headroom_bytes"], result.drop_causes["headroom_full"]


def measure_tight_headroom() -> Measured:
    """The worst phase of the reverse traffic, at the bound and two MTUs below it."""
    delay_ps = (3 * _FRAME - PFC_WIRE_BYTES + 200) * 80 // 2
    bound = headroom_bound_bytes(_FIRST, 10**11, delay_ps)
    used = {phase: _worst_use(phase, bound) for phase in range(0, _FRAME * 80, 40 * 80)}
    phase = max(used, key=lambda key: used[key])
    most, lost = used[phase][0], sum(drops for _, drops in used.values())
    less = _worst_use(phase, bound - 2 * 4096)[1]
    lines = 6 * LINE_ONLY_BYTES
    return Measured(
        f"bound {bound}, most used {most}; {lost} lost at the bound, {less} at the bound less 8192",
        (Check("drops at the bound", lost, 0, 0), Check("drops two MTUs below", less, 1, 1000),
         Check("bound less use, bytes", bound - most, 0, lines + 3 * (_FIRST - _FRAME) + PFC_WIRE_BYTES + 200)),
    )  # fmt: skip


# --- collisions -------------------------------------------------------------------------------------------------------


def mean_share(flows_: int, uplinks: int) -> float:
    """Mean of 1 / (flows on the same uplink) over flows that each take an uplink at random.

    E[1 / (1 + B)] of B binomial (n - 1, 1/m), which is m/n (1 - (1 - 1/m)^n).
    """
    return uplinks / flows_ * (1 - (1 - 1 / uplinks) ** flows_)


def fullest(flows_: int, uplinks: int) -> tuple[float, float]:
    """Mean and standard deviation of the number of flows on the fullest uplink.

    P(max <= k) = n! / m^n [x^n] (sum over j <= k of x^j / j!)^m.
    """
    below = [Fraction(0)]
    for k in range(1, flows_ + 1):
        term = [Fraction(1, factorial(j)) for j in range(min(k, flows_) + 1)]
        power = [Fraction(1)]
        for _ in range(uplinks):
            longer = [Fraction(0)] * min(len(power) + len(term) - 1, flows_ + 1)
            for i, a in enumerate(power):
                for j, b in enumerate(term):
                    if i + j <= flows_:
                        longer[i + j] += a * b
            power = longer
        within = power[flows_] if len(power) > flows_ else Fraction(0)
        below.append(within * factorial(flows_) / Fraction(uplinks) ** flows_)
    chance = [below[k] - below[k - 1] for k in range(1, flows_ + 1)]
    mean = sum(k * p for k, p in enumerate(chance, 1))
    square = sum(k * k * p for k, p in enumerate(chance, 1))
    return float(mean), sqrt(float(square - mean * mean))


def share_sigma(flows_: int, uplinks: int) -> float:
    """Standard deviation of a run's mean share, which is (uplinks in use) / flows: the occupancy problem."""
    n, m = flows_, uplinks
    p_one = (1 - 1 / m) ** n
    p_two = (1 - 2 / m) ** n
    return sqrt(m * (p_one - p_two) + m * m * (p_two - p_one * p_one)) / n


def measure_collisions() -> Measured:
    """n flows from leaf to leaf over m spines, under ECMP, over seeds: who shares with how many."""
    n, m, seeds, size = 8, 8, 60, 2_000_000
    topology = {"kind": "leaf-spine", "leaves": 2, "hosts_per_leaf": n, "spines": m}
    values = {"topology": topology, "workload": flows(*((h, n + h, size) for h in range(n))),
              "switch": {"buffer_bytes": "1GB"}, "roce": {"rto_exponent": 0}}  # fmt: skip
    shares = []
    most = []
    for seed in range(1, seeds + 1):
        result = finish(values, "roce", seed)
        extra = result.flows["fct_rx_ps"] - result.flows["ideal_ps"]
        sharing = 1 + extra / (message_frames(ROCE, 4096, size).total * 80)
        shares.append(float((1 / sharing).mean()))
        most.append(float(sharing.max()))
    mean, sigma = mean_share(n, m), share_sigma(n, m) / sqrt(seeds)
    top, top_sigma = fullest(n, m)
    top_sigma /= sqrt(seeds)
    slack = 0.005  # flows that share end within some frames of each other, of 489
    return Measured(
        f"goodput {np.mean(shares):.3f} of the line (expected {mean:.3f}); fullest of {m} uplinks "
        f"{np.mean(most):.2f} flows ({top:.2f})",
        (Check("mean goodput over line rate", float(np.mean(shares)), (mean - 3 * sigma) * (1 - slack),
               (mean + 3 * sigma) * (1 + slack)),
         Check("flows on the fullest uplink", float(np.mean(most)), (top - 3 * top_sigma) * (1 - slack),
               (top + 3 * top_sigma) * (1 + slack))),
    )  # fmt: skip


def measure_shares() -> Measured:
    """Flows that pass one switch into another's port: each ingress port of it gets an equal share."""
    line = 100.0 * 4096 / 4178
    values = {"topology": {"kind": "star", "hosts": 5}, "workload": flows(*((h, 0, 20_000_000) for h in range(1, 5))),
              "until_ps": "2ms"}  # fmt: skip
    fabric = build(values, "roce-pfc")
    fabric.run()
    got = delivered_gbps(fabric, 2 * 10**9)
    checks = tuple(Check(f"Gb/s of h{k}", value, line / 4 * 0.98, line / 4 * 1.02) for k, value in enumerate(got, 1))
    return Measured(", ".join(f"{value:.2f}" for value in got) + f" Gb/s (a quarter is {line / 4:.2f})", checks)


ROWS = (
    Row(
        "window-knee", "window knee", "one TTPoE flow of 100 MB, window 1 MB, 100G, round trip 1 to 1000 us",
        "min(line x 1024/1108, window / RTT); knee at 86.6 us", "closed form", "2 %", measure_knee, is_quick=True,
    ),
    Row(
        "d-d-1", "D/D/1", "200 frames at 100G before a slower line", "closed forms of peak and last departure",
        "queueing theory", "none: equal", measure_deterministic_queue, is_quick=True,
    ),
    Row(
        "m-d-1", "M/D/1", "9,000 frames at random times, load 30, 60, 80 %",
        "each wait Lindley's; mean rho D / 2 (1 - rho)", "queueing theory", "equal; 4 sigma of batch means",
        measure_random_queue, is_quick=True,
    ),
    Row(
        "little", "Little's law", "1500 frames at random times, load 80 %, event by event",
        "integral of the queue = sum of waits", "queueing theory", "none: equal", measure_little, is_quick=True,
    ),
    Row(
        "ingress-shares", "shares of ingress ports under PFC", "4 hosts of one switch to one, 100G",
        "a quarter each", "closed form", "2 %", measure_shares, is_quick=True,
    ),
    Row(
        "headroom", "headroom at our bound",
        "6:1 over 10 to 400G, 0 to 10 us, reactions, quanta, transports; 12 frames of shared buffer",
        "no frame lost, all runs paused", "ours; 802.1Q annex N sums the same terms", "none",
        measure_headroom, is_quick=True,
    ),
    Row(
        "headroom-tight", "headroom two MTUs below it", "constructed worst case, swept over phases",
        "no loss at the bound, loss at the bound less 2 MTU", "ours", "none", measure_tight_headroom, is_quick=True,
        note="The bound counts bytes of the line, and a buffer holds 20 less a frame: that, and a remainder of the "
        "cable, is all it is too large by.",
    ),
    Row(
        "ecmp-collisions", "ECMP collisions", "8 flows leaf to leaf over 8 spines, 2 MB each; roce, seeds 1 to 60",
        "goodput m/n (1 - (1 - 1/m)^n) = 0.656 of the line; fullest uplink 2.60 flows",
        "balls in bins", "3 sigma, and 0.5 % for whole frames", measure_collisions, is_quick=True,
        note="Flows that share an uplink from the start to the end each get 1/L of it, so completion times tell L.",
    ),
)  # fmt: skip
