"""Same seed, same result, to the byte: twice, in any order, in any slices, in threads, compiled or not."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emulated import ALL, COMPILED, OTHER_MODES, digests_under, incast, make, result_of
from numba import typeof

from emulator.config import load_scenario, make_scenario
from emulator.conservation import check_conservation
from emulator.engine import RunStatus, run
from emulator.experiments import run_all
from emulator.fabric import Fabric
from emulator.schedule import mix32

LINKS = [{"hosts": [0], "rate_bps": "25G"}, {"hosts": [2], "rate_bps": "3.7G", "delay_ps": "3us"},
         {"hosts": [1], "bad_fcs_frames": [1, 7]}]  # fmt: skip
BUSY: dict[str, Any] = {
    "workload": {"kind": "incast", "senders": 6, "size_bytes": 40_000, "jitter_ps": "1us"},
    "switch": {"buffer_bytes": 600_000, "alpha": 0.03125, "pause_reaction_ps": "200ns", "pipeline_latency_ps": "400ns",
               "pause_quanta": 140},
    "topology": {"links": LINKS},
    "roce": {"rto_exponent": 5},
    "ack_priority": 5,
}  # fmt: skip
"""Drops, pauses, renewals, timeouts and damaged frames, in a few thousand events."""
SMALL: dict[str, Any] = {**BUSY, "workload": {"kind": "incast", "senders": 3, "size_bytes": 12_000}}


def test_the_scenario_is_busy() -> None:
    runs = {transport: result_of(BUSY, transport) for transport in ALL}
    for transport in ("ttpoe", "roce"):
        assert runs[transport].counters["drops"] > 0
    assert runs["roce"].counters["timeouts"] > 0
    for transport in ("ttpoe-pfc", "roce-pfc"):
        assert runs[transport].counters["pauses"] > 5
        assert runs[transport].counters["pfc_frames"] > 2 * runs[transport].counters["pauses"]
    assert all(r.counters["lost"] >= 2 and not r.unfinished for r in runs.values())


@pytest.mark.parametrize("path", sorted(Path(__file__).parents[1].glob("examples/*.toml")), ids=lambda path: path.stem)
def test_all_runs_share_one_compilation(path: Path) -> None:
    """The loop is compiled for the types of the arrays: of a small incast, of each example, and after its events."""
    scenario = load_scenario(path)
    expected = _types(make(SMALL, "ttpoe").world)
    for transport in scenario.transports:
        fabric = Fabric(scenario, transport, 1)
        assert _types(fabric.world) == expected
        if scenario.events:
            fabric.run()
            assert _types(fabric.world) == expected


def _types(world: Any) -> dict[str, Any]:
    return {name: typeof(array) for name, array in zip(world._fields, world, strict=True)}


@pytest.mark.parametrize("transport", ALL)
def test_twice(transport: str) -> None:
    first, second = (result_of(BUSY, transport) for _ in range(2))
    assert first.digest == second.digest
    assert np.array_equal(first.flows, second.flows)
    assert np.array_equal(first.series, second.series)
    assert first.counters == second.counters
    assert first.ports == second.ports


@pytest.mark.parametrize("transport", ALL)
@pytest.mark.parametrize("max_events", [1, 7, 1000, 10**9])
def test_in_any_slices(transport: str, max_events: int) -> None:
    whole = result_of(BUSY, transport)
    sliced = make(BUSY, transport).run(max_events=max_events)
    assert sliced.digest == whole.digest
    assert np.array_equal(sliced.series, whole.series)


@COMPILED
def test_rows_that_have_to_grow() -> None:
    """More packets and events in flight than rows to begin with: as if there had been enough."""
    values = incast(40, 700_000, link={"delay_ps": "50us"}, switch={"buffer_bytes": "100MB"})
    grew = []
    for transport in ALL:
        fabric = make(values, transport)
        grown = fabric.run()
        grew.append(len(fabric.world.packets) > 4096)
        wide = make(values, transport)
        wide._grow_packets()
        wide._grow_packets()
        wide.grow_events()
        assert wide.run().digest == grown.digest
    assert any(grew)


@COMPILED
def test_needs_are_told_before_anything_happens() -> None:
    """With rows for a single event the engine stops, and goes on as if nothing had been once there are more."""
    whole = result_of(SMALL, "roce")
    fabric = make(SMALL, "roce")
    engine = fabric.world.engine
    hidden = int(engine["free_count"][0]) - 64
    told = set()
    while True:
        engine["free_count"] -= hidden
        status = RunStatus(run(fabric.world, fabric.scenario.until_ps, 1))
        engine["free_count"] += hidden
        told.add(status)
        if status is RunStatus.NEED_PACKETS:
            status = RunStatus(run(fabric.world, fabric.scenario.until_ps, 1))
        if status is RunStatus.FINISHED:
            break
        check_conservation(fabric.world)
    assert RunStatus.NEED_PACKETS in told
    assert fabric.run().digest == whole.digest


def test_transports_in_any_order_and_seeds_apart() -> None:
    def digests(transports: tuple[str, ...], seed: int, repeat: int) -> dict[tuple[str, int], str]:
        told = {"transports": transports, "seed": seed, "repeat": repeat, "ttpoe": {"mode": "ipv4"}}
        scenario = make_scenario({**SMALL, **told})
        return {(r.transport, r.seed): r.digest for r in run_all(scenario)}

    forward = digests(ALL, 1, 3)
    assert digests(ALL[::-1], 1, 3) == forward
    assert digests(("roce",), 3, 1) == {("roce", 3): forward["roce", 3]}
    assert len(set(forward.values())) == 3 * len(ALL)


def test_paired_seeds_share_what_is_drawn() -> None:
    """The same seed starts senders at the same times whatever the transport; other seeds do not."""
    starts = {(t, s): result_of(BUSY, t, s).flows["start_ps"].tolist() for t in ("ttpoe", "roce") for s in (1, 2)}
    assert starts["ttpoe", 1] == starts["roce", 1] != starts["roce", 2]


@COMPILED
def test_in_two_threads_at_once() -> None:
    """Kernels release the interpreter's lock and share nothing."""
    values = incast(8, 300_000)
    alone = [result_of(values, transport).digest for transport in ALL]
    with ThreadPoolExecutor(4) as pool:
        assert [r.digest for r in pool.map(lambda t: result_of(values, t), ALL * 2)] == alone * 2


@pytest.mark.parametrize("transport", ALL)
def test_idle_hosts_change_nothing(transport: str) -> None:
    """Hosts beyond those of the workload: no other tie, no less buffer."""
    few = result_of(BUSY, transport)
    more = {**BUSY, "topology": {"links": LINKS, "hosts": 40}}
    many = result_of(more, transport)
    assert np.array_equal(few.flows, many.flows)
    assert few.counters == many.counters
    assert few.ports == many.ports[: len(few.ports)]


def test_capturing_changes_nothing() -> None:
    for transport in ALL:
        fabric = make(BUSY, transport, capture=frozenset({"h0", "s0.p0", "s0.p3"}))
        rows: list[int] = []
        result = fabric.run(sink=lambda trace, rows=rows: rows.append(len(trace)))  # type: ignore[misc]
        assert sum(rows) > 100
        assert result.digest == result_of(BUSY, transport).digest


@pytest.mark.parametrize("value", [0, 1, 2**31, 2**32 - 1, 2**32, 2**40 + 12345])
def test_the_hash_is_that_of_32_bit_arithmetic(value: int) -> None:
    """Masked int64 equals the same formula in numpy's unsigned integers."""
    x = np.array([value & 0xFFFFFFFF], np.uint32)
    with np.errstate(over="ignore"):
        for _ in range(2):
            x = (x ^ (x >> np.uint32(16))) * np.uint32(0x45D9F3B)
    assert int((x ^ (x >> np.uint32(16)))[0]) == getattr(mix32, "py_func", mix32)(value)


@COMPILED
@OTHER_MODES
def test_interpreted_and_bounds_checked(variable: str) -> None:
    """The same digests from plain Python, and no kernel reads or writes outside an array."""
    here = [result_of(SMALL, transport).digest for transport in ALL]
    assert digests_under(variable, SMALL, *ALL, ports=("h0", "s0.p1")) == here
