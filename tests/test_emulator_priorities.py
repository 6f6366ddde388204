"""Priorities at a switch: who is sent first, who shares the line by weight, and who may hold how much."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from emulated import COMPILED, checked, make, traced
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator import dwrr
from emulator.buffer import QUEUE
from emulator.config import ConfigError, make_scenario
from emulator.packet import DATA, PACKET
from emulator.roce import wire_bytes
from ttpoe._jit import kernel

US = 10**6
LARGEST = 4194


def scenario(priorities: dict[int, dict[str, Any]], *flows: tuple[int, int, int, int], **switch: Any) -> dict[str, Any]:
    """Flows (src, priority, size_bytes, start_ps) to h0; acknowledgements in a priority of their own, 7."""
    rows = [
        {"src": src, "dst": 0, "size_bytes": size, "start_ps": start, "priority": priority}
        for src, priority, size, start in flows
    ]
    return {
        "workload": {"kind": "flows", "flows": rows}, "ack_priority": 7,
        "switch": {"buffer_bytes": "64MB", "alpha": 64.0, "priorities": priorities, **switch},
    }  # fmt: skip


@kernel(export=True)
def choose(rows, queues, packets, eligible):
    return dwrr.choose_by_weight(rows[0], queues[:, None], packets, 0, eligible)


@given(
    weights=st.lists(st.integers(1, 60), min_size=2, max_size=8),
    sizes=st.lists(st.integers(84, LARGEST), min_size=8, max_size=40),
    pauses=st.lists(st.integers(0, 255), max_size=4),
)
@settings(max_examples=200)
def test_shares_of_the_line_within_a_frame_a_round(weights: list[int], sizes: list[int], pauses: list[int]) -> None:
    """Shreedhar and Varghese: after any number of turns, m quanta less or more by what a deficit may hold.

    All priorities always have a frame, of any size; before that some are paused now and then, which leaves no debt.
    """
    n = len(weights)
    rows = np.zeros(1, dwrr.DWRR)
    quanta = np.array([-(-LARGEST * w // min(weights)) for w in weights])
    rows["quantum_bytes"][0, :n] = quanta
    queues, packets = np.zeros(8, QUEUE), np.zeros(8, PACKET)
    queues["head"] = np.arange(8)
    everyone = (1 << n) - 1
    drawn = 0

    def serve(eligible: int) -> tuple[int, int]:
        nonlocal drawn
        packets["wire_bytes"] = np.array([sizes[(drawn + k) % len(sizes)] for k in range(8)])
        drawn += 1
        chosen = choose(rows, queues, packets, eligible)
        assert (eligible >> chosen) & 1
        return chosen, int(packets["wire_bytes"][chosen])

    for pause in pauses:
        if everyone & ~pause:
            serve(everyone & ~pause)
    sent = np.zeros(n, np.int64)
    for _ in range(300):
        chosen, size = serve(everyone)
        sent[chosen] += size
        turns = sent / quanta
        assert turns.max() - turns.min() <= 2 + 2 * LARGEST / quanta.min()


def test_a_priority_without_frames_saves_nothing_up() -> None:
    rows = np.zeros(1, dwrr.DWRR)
    rows["quantum_bytes"][0, :2] = 2000
    queues, packets = np.zeros(8, QUEUE), np.zeros(8, PACKET)
    queues["head"] = np.arange(8)
    packets["wire_bytes"] = 1000
    assert [choose(rows, queues, packets, 0b10) for _ in range(20)] == [1] * 20
    served = [choose(rows, queues, packets, 0b11) for _ in range(8)]
    assert sorted(served[:4]) == sorted(served[4:]) == [0, 0, 1, 1]


def sent_at(
    values: dict[str, Any], port: str, transport: str = "roce-pfc"
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Times, priorities and line bytes of the data frames that a port sent."""
    _, result, rows = traced(values, transport, {port})
    assert result.unfinished == []
    rows = rows[(rows["kind"] == DATA) & (rows["is_out"] == 1)]
    frame = rows["frame"]
    sizes = [int(wire_bytes(int(o), int(n))) for o, n in zip(frame["opcode"], frame["payload_bytes"], strict=True)]
    return rows["time_ps"], rows["priority"], np.array(sizes)


@COMPILED
@pytest.mark.parametrize("weights", [(1, 1, 1), (1, 2, 4), (20, 30, 50)])
def test_three_priorities_share_a_port_by_weight(weights: tuple[int, ...]) -> None:
    """While all three have frames queued, each has its share to within a quantum and a frame."""
    used = (1, 3, 5)
    values = scenario(
        {p: {"weight": w} for p, w in zip(used, weights, strict=True)},
        *((k + 1, p, 2_000_000, 0) for k, p in enumerate(used)),
    )
    time_ps, priority, size = sent_at(values, "s0.p0")
    first = max(time_ps[priority == p][0] for p in used)
    last = min(time_ps[priority == p][-1] for p in used)
    busy = (time_ps >= first) & (time_ps < last)
    total = int(size[busy].sum())
    assert total > 1_500_000
    for p, weight in zip(used, weights, strict=True):
        quantum = LARGEST * weight / min(weights)
        assert abs(size[busy & (priority == p)].sum() - total * weight / sum(weights)) <= 2 * (quantum + LARGEST)


@COMPILED
def test_strict_priorities_come_before_weighted_ones_whatever_their_number() -> None:
    """Priority 2 has no weight: while it sends, 5 and 6 get what its line leaves, which is nothing."""
    values = scenario(
        {5: {"weight": 3}, 6: {"weight": 1}}, (1, 5, 1_000_000, 0), (2, 6, 1_000_000, 0), (3, 2, 500_000, 20 * US)
    )
    time_ps, priority, _ = sent_at(values, "s0.p0")
    strict = time_ps[priority == 2]
    inside = priority[(time_ps > strict[0]) & (time_ps < strict[-1])]
    assert set(inside.tolist()) == {2}
    assert set(priority[time_ps < strict[0]].tolist()) == {5, 6}


@COMPILED
def test_higher_strict_priorities_come_first() -> None:
    values = scenario({}, (1, 1, 400_000, 0), (2, 4, 400_000, 0))
    _, priority, _ = sent_at(values, "s0.p0")
    assert np.flatnonzero(priority == 4).max() < np.flatnonzero(priority == 1)[2]


@COMPILED
def test_a_paused_priority_leaves_the_line_to_the_others() -> None:
    """h0's switch port towards a slower leaf's uplink: weighted priorities under PFC lose nothing and all finish."""
    values = scenario(
        {3: {"weight": 1}, 4: {"weight": 2}}, *((k + 1, 3 + k % 2, 300_000, 0) for k in range(6)),
        buffer_bytes="1MB", alpha=0.125,
    )  # fmt: skip
    result = checked(values, "roce-pfc")
    assert result.counters["pauses"] > 0
    assert result.counters["drops"] == 0
    assert result.unfinished == []


# --- pools -----------------------------------------------------------------------------------------------------------


def at_80us(values: dict[str, Any], transport: str) -> Any:
    fabric = make({**values, "until_ps": "80us"}, transport)
    fabric.run()
    return fabric


@COMPILED
def test_each_priority_has_its_own_alpha() -> None:
    """Two hot queues of one pool: q_i = alpha_i (B - q_1 - q_2)."""
    size = 1_000_000
    hot = [(k + 1, 1 + k % 2, 1_000_000, 0) for k in range(8)]
    fabric = at_80us(scenario({1: {"alpha": 0.5, "weight": 1}, 2: {"alpha": 2.0, "weight": 1}}, *hot,
                              buffer_bytes=size), "roce")  # fmt: skip
    free = size / (1 + 0.5 + 2.0)
    queues = fabric.world.queues["bytes"][:, fabric.topology.port_names.index("s0.p0")]
    assert queues[1] == pytest.approx(0.5 * free, abs=2 * LARGEST)
    assert queues[2] == pytest.approx(2.0 * free, abs=4 * LARGEST)


@COMPILED
def test_a_static_threshold_limits_whatever_is_free() -> None:
    hot = [(k + 1, 1, 1_000_000, 0) for k in range(8)]
    fabric = at_80us(scenario({1: {"static_threshold_bytes": "100kB"}}, *hot), "roce")
    port = fabric.topology.port_names.index("s0.p0")
    assert fabric.world.queues["max_bytes"][1, port] == pytest.approx(100_000, abs=LARGEST)
    assert fabric.world.queues["max_bytes"][1, port] <= 100_000


@COMPILED
def test_a_reserve_is_there_when_the_pool_is_not() -> None:
    """Two flows of priority 2 meet in a pool that priority 1 has filled: their reserve decides what is dropped."""
    late = [(k, 2, 40_000, 60 * US) for k in (9, 10)]
    hot = [(k + 1, 1, 1_000_000, 0) for k in range(8)]
    for reserve, is_enough in ((0, False), ("80kB", True)):
        rules = {2: {"alpha": 1 / 1024, "reserve_bytes": reserve}, 1: {"weight": 1}}
        result = checked(scenario(rules, *hot, *late, buffer_bytes="2MB"), "roce")
        assert result.flows["drops"][:8].min() > 0
        assert (result.flows["drops"][8:].sum() == 0) == is_enough


@COMPILED
def test_lossy_and_lossless_priorities_have_pools_of_their_own() -> None:
    """Lossy traffic that fills its pool takes nothing from lossless traffic, which then need not pause."""
    flows = [(k + 1, 1, 1_000_000, 0) for k in range(6)] + [(7, 3, 200_000, 40 * US), (8, 3, 200_000, 40 * US)]
    rules = {1: {"is_lossless": False, "weight": 1}, 3: {"weight": 1}, 7: {"is_lossless": False}}
    one, two = (
        checked(scenario(rules, *flows, buffer_bytes="2MB", alpha=8.0, lossy_fraction=part), "roce-pfc")
        for part in (None, 0.4)
    )
    for result in (one, two):
        assert result.unfinished == []
        assert result.flows["drops"][6:].sum() == 0
        assert result.drop_causes["headroom_full"] == 0
        assert result.drop_causes["queue_threshold"] + result.drop_causes["buffer_full"] > 0
    assert one.counters["pauses"] > 0 == two.counters["pauses"]


@COMPILED
def test_a_shared_headroom_pool_saves_memory_and_is_an_error_when_it_is_too_small() -> None:
    """SONiC's oversubscribed headroom: one port at a time needs it, all at once overflow it."""
    flows = [(k + 1, 3, 400_000, 0) for k in range(8)]
    rules = {7: {"is_lossless": False}}
    own = make(scenario(rules, *flows, buffer_bytes="2MB"), "roce-pfc")
    pool = make(scenario(rules, *flows, buffer_bytes="2MB", headroom_pool_bytes="80kB"), "roce-pfc")
    saved = int(own.world.switches["headroom_limit_bytes"][0]) - 80_000
    assert int(pool.world.shared["limit_bytes"][0] - own.world.shared["limit_bytes"][0]) == saved > 0
    calm = checked(scenario(rules, *flows, buffer_bytes="16MB", headroom_pool_bytes="80kB"), "roce-pfc")
    assert calm.counters["drops"] == 0
    tight = checked(scenario(rules, *flows, buffer_bytes="1MB", headroom_pool_bytes="20kB", alpha=1 / 64), "roce-pfc")
    assert tight.drop_causes["headroom_full"] > 0
    assert "headroom" in tight.errors[0]


@pytest.mark.parametrize(
    ("switch", "message"),
    [
        ({"priorities": {8: {}}}, r"switch.priorities.8"),
        (
            {"priorities": {"3": {"weigth": 2}}},
            r"switch.priorities.3.weigth: there is no such field; did you mean weight\?",
        ),
        ({"priorities": {"3": {"weight": 0}}}, r"switch.priorities.3.weight: must be greater than or equal to 1"),
        ({"lossy_fraction": 1.0}, r"switch.lossy_fraction: must be less than 1"),
    ],
)
def test_wrong_fields_are_named(switch: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_scenario({"switch": switch})


@pytest.mark.parametrize("fraction", [None, 0.25])
def test_a_buffer_too_small_for_its_parts_says_how_much_it_needs(fraction: float | None) -> None:
    flows = [(1, 3, 10_000, 0)]
    given: dict[str, Any] = {"reserve_bytes": "10kB", "lossy_fraction": fraction}
    with pytest.raises(
        ConfigError, match=r"for PFC headroom, 40000 for reserves .* raise it to (\d+) at least"
    ) as told:
        make(scenario({}, *flows, **{**given, "buffer_bytes": "20kB"}), "roce-pfc")
    least = int(str(told.value).split("raise it to ")[1].split()[0])
    fabric = make(scenario({}, *flows, **{**given, "buffer_bytes": least}), "roce-pfc")
    limits = fabric.world.shared["limit_bytes"]
    assert min(limit for limit in limits.tolist() if limit) >= 2 * LARGEST
    with pytest.raises(ConfigError):
        make(scenario({}, *flows, **{**given, "buffer_bytes": least - 2}), "roce-pfc")


def test_pairs_of_turns_are_whole(  # a turn is not cut short by another priority's frame
) -> None:
    rows = np.zeros(1, dwrr.DWRR)
    rows["quantum_bytes"][0, :2] = (4000, 8000)
    queues, packets = np.zeros(8, QUEUE), np.zeros(8, PACKET)
    queues["head"] = np.arange(8)
    packets["wire_bytes"] = 1000
    served = [choose(rows, queues, packets, 0b11) for _ in range(120)]
    changes = sum(a != b for a, b in pairwise(served))
    assert (served.count(0), served.count(1)) == (40, 80)
    assert changes <= 20
