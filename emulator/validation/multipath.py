"""Rows of other tools that spray packets over paths, or have a path that is slow."""

from __future__ import annotations

from statistics import median
from typing import Any

from emulator.validation.peers import HTSIM
from emulator.validation.row import Check, Measured, Row, build, delivered_gbps, finish, last_us

# --- spraying ---------------------------------------------------------------------------------------------------------

_SPRAY: dict[str, Any] = {
    "profiles": [{"name": "spray", "base": "roce", "recovery": "reordering", "routing": "random"}]
}
"""Each packet takes a path at random, and NICs put them in order: nothing else, as nothing need be lost."""


def _tails(hosts: int, seeds: range, overhead: str) -> list[float]:
    """Last completions at the sender, us, sorted."""
    values = {
        "topology": {"kind": "fat-tree", "hosts": hosts}, "workload": {"kind": "permutation"},
        "frame_overhead": overhead,
    }  # fmt: skip
    return sorted(last_us(finish(_SPRAY | values, "spray", seed)) for seed in seeds)


def _measure_spray(hosts: int, seeds: range, low: float, high: float) -> Measured:
    peer, real = (_tails(hosts, seeds, overhead) for overhead in ("peer", "real"))
    check = Check("median tail, us", median(peer), low * 0.95, high * 1.05)
    told = [f"{tails[0]:.0f} to {tails[-1]:.0f} us, median {median(tails):.0f}" for tails in (peer, real)]
    return Measured(told[0], (check,), told[1])


def measure_spray_16() -> Measured:
    """Permutations of 16, sprayed."""
    return _measure_spray(16, range(1, 31), 194, 197)


def measure_spray_1024() -> Measured:
    """Permutations of 1,024, sprayed."""
    return _measure_spray(1024, range(1, 4), 200, 203)


# --- a core link of a tenth of its rate -------------------------------------------------------------------------------

_TIME_PS = 8 * 10**9
_SEEDS = range(1, 10)


def _rates(transport: str, values: dict[str, Any]) -> tuple[list[float], list[float]]:
    """Least and mean goodput, Gb/s, of a permutation of 128 at 10G, for each seed."""
    setup = {
        "topology": {"kind": "fat-tree", "hosts": 128}, "link": {"rate_bps": "10G"}, "frame_overhead": "peer",
        "workload": {"kind": "permutation", "size_bytes": 100_000_000}, "until_ps": _TIME_PS,
        "events": [{"at_ps": 0, "what": "degrade", "link": "a0.0.p4", "rate_bps": "1G"}],
    }  # fmt: skip
    least, mean = [], []
    for seed in _SEEDS:
        fabric = build(setup | values, transport, seed)
        result = fabric.run()
        if result.errors:
            raise RuntimeError(f"{transport}, seed {seed}: {result.errors[0]}")
        rates = delivered_gbps(fabric, _TIME_PS)
        least.append(min(rates))
        mean.append(sum(rates) / len(rates))
    return least, mean


def _told(least: list[float], mean: list[float]) -> str:
    return (
        f"medians {median(least):.2f}/{median(mean):.2f}; min {min(least):.2f} to {max(least):.2f}, "
        f"mean {min(mean):.2f} to {max(mean):.2f}"
    )


def _near(what: str, value: float, expected: float) -> Check:
    return Check(what, value, 0.9 * expected, 1.1 * expected)


def measure_single_path() -> Measured:
    """DCTCP: the slow link's flows share 1 Gb/s, how many those are is the draw's."""
    least, mean = _rates("iwarp-dctcp", {"tcp": {"rto_min_ps": "10ms"}})
    checks = (
        _near("mean, Gb/s", median(mean), 4.74),
        Check("lowest min of all draws, Gb/s", min(least), 0, 0.19 * 1.1),
        Check("highest min of all draws, Gb/s", max(least), 0.19 * 0.9, 10),
    )
    return Measured(_told(least, mean), checks)


_PATIENT = {"selective": {"reorder_ps": "1ms"}}
"""A queue before 1 Gb/s is a few hundred us long: what waits there is late, not lost."""


def _measure_sprayed(base: str, routing: str, min_gbps: float, mean_gbps: float) -> Measured:
    profile = {"name": "spray", "base": base, "recovery": "reordering", "routing": routing}
    least, mean = _rates("spray", {"profiles": [profile], **_PATIENT})
    checks = (_near("min, Gb/s", median(least), min_gbps), _near("mean, Gb/s", median(mean), mean_gbps))
    return Measured(_told(least, mean), checks)


def measure_sprayed() -> Measured:
    """Spraying that does not know of the slow link."""
    return _measure_sprayed("roce", "random", 4.14, 9.17)


def measure_around() -> Measured:
    """Spraying that avoids it: by path penalties there, by queues and pauses here."""
    return _measure_sprayed("roce-pfc", "adaptive", 9.22, 9.64)


_SLOW = "fat tree of 128, 10G, permutation of endless flows, one core link at 1G; first 8 ms, seeds 1 to 9; "
_NDP = "htsim's example of the NDP paper (SIGCOMM 2017)"

ROWS = (
    Row(
        "permutation-16-spray", "permutation, multipath", "fat tree of 16, 2 MB each; roce that reorders, random "
        "routing, seeds 1 to 30",
        "tail 194-197 us", HTSIM, "5 %, for the median", measure_spray_16, is_quick=True,
    ),
    Row(
        "permutation-1024-spray", "permutation, multipath", "fat tree of 1,024, 2 MB each; the same, seeds 1 to 3",
        "tail 200-203 us", HTSIM, "5 %, for the median", measure_spray_1024,
        note="Ours sends at line rate from the start, so that queues of random spraying are what exceeds the 160 us of "
        "payload; theirs has a congestion control.",
    ),
    Row(
        "ecmp-slow-core", "single path with a slow link", _SLOW + "iwarp-dctcp, ecmp, RTO 10 ms at least",
        "min/mean 0.19/4.74 Gb/s (DCTCP)", _NDP, "10 % for the median of means; the min is one draw's, and must lie in "
        "the range of ours",
        measure_single_path,
        note="The min is of flows that the draw puts together on the slow link. Their queues hold 100 packets, our "
        "switches 12 MB, of which DCTCP uses too little to drop anything.",
    ),
    Row(
        "spray-slow-core", "spraying over a slow link", _SLOW + "roce that reorders (gaps of 1 ms), random",
        "min/mean 4.14/9.17 Gb/s (NDP)", _NDP, "10 %, for medians", measure_sprayed,
        note="Not NDP, which is not modelled: there the pulls wait before the slow link and hold the window of 23 "
        "packets that other paths could use, as its README says, which adds that a larger window helps. Our sender has "
        "no window, and sends lost packets again over any path. With that window, packets of 9 kB and queues of 8 it "
        "has 3.26/6.46: without trimming, a loss is known after 200 us (seeds 1 to 3).",
    ),
    Row(
        "penalty-slow-core", "spraying around a slow link", _SLOW + "roce-pfc that reorders (gaps of 1 ms), adaptive",
        "min/mean 9.22/9.64 Gb/s (NDP with path penalty)", _NDP, "10 %, for medians", measure_around,
        note="By other means: NDP's senders stop using a path that trims more than others, which is not modelled. Ours "
        "keep to all paths, and a switch looks at its own queues, in grades of 64 KiB: it learns of a slow link "
        "further on by pauses, which stop whole lines. Grades of 16 to 256 KiB give 8.5 to 8.7 for the min; to the "
        "byte, senders lock into paths (7.10/8.57).",
    ),
)  # fmt: skip
