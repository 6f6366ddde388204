"""Cyclic buffer dependencies: found before a run where there are any, and named when a run is caught in one."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
from emulated import COMPILED, flows, make, result_of
from test_graphs import graph

from emulator import deadlock
from emulator.buffer import PRIORITIES, QUEUE
from emulator.config import load_scenario, make_scenario
from emulator.conservation import check_conservation
from emulator.deadlock import Watch, find_cycle, keep_stuck, stuck_queues
from emulator.engine import RunStatus
from emulator.fabric import Fabric
from emulator.packet import PACKET
from emulator.shapes import build_topology
from emulator.topology import Topology

ROOT = Path(__file__).resolve().parent.parent
RING = ROOT / "examples" / "ring_deadlock.toml"


def ring(switches: int, *, is_clockwise: bool = True) -> dict[str, Any]:
    """A host at each switch; all frames go clockwise, or each by its shortest way."""
    nodes = [{"name": f"h{k}", "kind": "host"} for k in range(switches)]
    nodes += [{"name": f"s{k}", "kind": "switch"} for k in range(switches)]
    links = [{"a": f"h{k}", "b": f"s{k}"} for k in range(switches)]
    links += [{"a": f"s{k}", "b": f"s{(k + 1) % switches}"} for k in range(switches)]
    hosts = [f"h{k}" for k in range(switches)]
    routes = [{"switch": f"s{k}", "to": hosts, "via": [f"s{(k + 1) % switches}"]} for k in range(switches)]
    return graph(nodes, links, routes if is_clockwise else ())


def build(shape: dict[str, Any]) -> Topology:
    scenario = make_scenario({"topology": shape})
    return build_topology(scenario.topology, scenario.link, 0)


def all_pairs(topology: Topology) -> np.ndarray:
    nics = np.arange(len(topology.nic_port))
    pairs = np.stack(np.meshgrid(nics, nics), axis=-1).reshape(-1, 2)
    return pairs[pairs[:, 0] != pairs[:, 1]]


# --- before a run ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shape",
    [
        {"kind": "fat-tree", "hosts": 128},
        {"kind": "fat-tree", "k": 4, "leaf_oversubscription": 2, "pod_oversubscription": 2},
        {"kind": "fat-tree", "k": 6, "tiers": 2},
        {"kind": "leaf-spine", "leaves": 5, "hosts_per_leaf": 3, "spines": 4, "cables_per_pair": 2},
        {"kind": "rail", "servers": 8, "rails": 4, "servers_per_group": 4},
        {"kind": "dual-plane", "scale_out": {"kind": "fat-tree", "k": 4},
         "front_end": {"kind": "leaf-spine", "leaves": 4, "hosts_per_leaf": 4, "spines": 1}},
        ring(4, is_clockwise=False),  # the shortest ways of two cables never make a third
    ],
)  # fmt: skip
def test_no_false_alarm_where_paths_go_up_and_then_down(shape):
    topology = build(shape)
    if shape["kind"] == "graph":
        pairs = np.array([(0, 1), (1, 2), (2, 3), (3, 0)])
    else:
        pairs = all_pairs(topology)
    assert find_cycle(topology, topology.routes, pairs) == ()


@pytest.mark.parametrize("switches", [3, 4, 7])
def test_clockwise_routes_depend_on_each_other_all_the_way_round(switches):
    topology = build(ring(switches))
    cycle = find_cycle(topology, topology.routes, all_pairs(topology))
    at = [int(topology.port_switch[port]) for port in cycle]
    assert sorted(at) == list(range(switches))
    for here, onward in pairwise([*cycle, cycle[0]]):
        assert topology.port_switch[here ^ 1] == topology.port_switch[onward]


def test_only_what_is_sent_counts():
    """Two of three flows leave the circle open, and neighbours never hold a second line."""
    topology = build(ring(3))
    assert find_cycle(topology, topology.routes, np.array([(0, 2), (1, 0)])) == ()
    assert find_cycle(topology, topology.routes, np.array([(0, 1), (1, 2), (2, 0)])) == ()
    assert len(find_cycle(topology, topology.routes, np.array([(0, 2), (1, 0), (2, 1)]))) == 3


@pytest.mark.parametrize("seed", range(20))
def test_the_check_agrees_with_a_walk_of_all_paths(seed):
    rng = np.random.default_rng(seed)
    switches = int(rng.integers(3, 9))
    nodes = [{"name": f"h{k}", "kind": "host"} for k in range(switches)]
    nodes += [{"name": f"s{k}", "kind": "switch"} for k in range(switches)]
    links = [{"a": f"h{k}", "b": f"s{k}"} for k in range(switches)]
    links += [{"a": f"s{k}", "b": f"s{(k + 1) % switches}"} for k in range(switches)]
    links += [{"a": "s0", "b": f"s{int(rng.integers(1, switches))}"} for _ in range(int(rng.integers(0, 4)))]
    topology = build(graph(nodes, links))
    pairs = all_pairs(topology)
    pairs = pairs[rng.random(len(pairs)) < rng.choice([0.1, 0.3, 1.0])]
    if not len(pairs):
        pairs = np.array([(0, 1)])
    depends = nx.DiGraph()
    for src, dst in pairs.tolist():
        todo = [int(topology.nic_port[src])]
        while todo:
            port = todo.pop()
            if (switch := int(topology.port_switch[port ^ 1])) < 0:
                continue
            for onward in topology.routes.ports(switch, dst).tolist():
                depends.add_edge(port, onward)
                todo.append(onward)
    cycle = find_cycle(topology, topology.routes, pairs)
    assert bool(cycle) != nx.is_directed_acyclic_graph(depends)
    assert all(depends.has_edge(a, b) for a, b in pairwise([*cycle, *cycle[:1]]))


def test_the_warning_names_the_ports_and_comes_with_pfc_alone():
    values = flows((0, 2, 50_000), (1, 0, 50_000), (2, 1, 50_000), topology=ring(3))
    (warning,) = make(values, "roce-pfc").warnings
    assert "cyclic buffer dependency: priority 3" in warning
    assert warning.endswith("s0.p1 -> s1.p2 -> s2.p2 -> s0.p1")
    assert make(values, "roce").warnings == make(values, "ttpoe").warnings == []
    apart = make({**values, "ack_priority": 5}, "ttpoe-pfc").warnings
    assert len(apart) == 1  # answers go to the next host only, one cable on
    assert result_of(values, "roce-pfc").warnings == [warning]


# --- in a run --------------------------------------------------------------------------------------------------------


def scenario(size_bytes: int = 2_000_000, switches: int = 3, **fields: Any) -> dict[str, Any]:
    """Each host sends to the last but one before it, so that every line of the ring is asked for twice."""
    rows = [(k, (k + switches - 1) % switches, size_bytes) for k in range(switches)]
    return {**flows(*rows, topology=ring(switches)), "switch": {"buffer_bytes": "300kB"}, **fields}


@COMPILED
@pytest.mark.parametrize("transport", ["roce-pfc", "ttpoe-pfc"])
@pytest.mark.parametrize("switches", [3, 5])
def test_a_ring_with_cyclic_routes_locks_and_is_named(transport, switches):
    result = result_of(scenario(switches=switches), transport)
    assert result.status is RunStatus.DEADLOCK
    assert result.deadlock is not None
    assert result.deadlock["priority"] == 3
    assert sorted(result.deadlock["switches"]) == [f"s{k}" for k in range(switches)]
    assert len(result.unfinished) == switches
    assert result.counters["drops"] == 0
    assert result.end_ps < 2_000_000_000


@COMPILED
def test_the_same_traffic_ends_under_ttpoe_without_pfc():
    result = result_of(scenario(ttpoe={"congestion_control": "reno"}), "ttpoe")
    assert result.status is RunStatus.FINISHED
    assert result.unfinished == []
    assert result.deadlock is None


@COMPILED
def test_a_deadlock_is_for_ever():
    """Run on without looking: not a byte more arrives for as long as the transport waits."""
    fabric = make(scenario(roce={"rto_exponent": 0}), "roce-pfc")
    fabric.cycles = []
    fabric.scenario = make_scenario({**scenario(roce={"rto_exponent": 0}), "until_ps": "20ms"})
    early = []
    fabric.run(max_events=500, on_slice=lambda at: early.append((at.now_ps, int(fabric.world.qps["rx_bytes"].sum()))))
    assert len(stuck_queues(fabric.world)) >= 3
    final = early[-1][1]
    assert all(arrived == final for at, arrived in early if at > 2_000_000_000)
    check_conservation(fabric.world)


@COMPILED
def test_slices_never_change_when_it_is_seen():
    whole = result_of(scenario(), "roce-pfc")
    sliced = make(scenario(), "roce-pfc").run(max_events=61)
    assert sliced.digest == whole.digest
    assert (sliced.end_ps, sliced.deadlock) == (whole.end_ps, whole.deadlock)


def looked_at(values: dict[str, Any], transport: str, every: int) -> tuple[Fabric, int, int]:
    """A run to its end, looked at between slices: the fabric, looks that found a pause, looks that found a deadlock."""
    fabric = make(values, transport)
    paused, found = 0, 0

    def look(_: Any) -> None:
        nonlocal paused, found
        paused += bool((fabric.world.ports["paused"][fabric.world.ports["switch"] >= 0] != 0).any())
        found += len(stuck_queues(fabric.world)) > 0

    result = fabric.run(max_events=every, on_slice=look)
    assert result.unfinished == []
    assert result.status is RunStatus.FINISHED
    return fabric, paused, found


@COMPILED
@pytest.mark.parametrize("transport", ["roce-pfc", "ttpoe-pfc"])
def test_an_incast_with_many_pauses_is_none(transport):
    values = {**flows(*((k, 0, 100_000) for k in range(1, 16)), topology={"kind": "fat-tree", "k": 4}),
              "switch": {"buffer_bytes": "500kB"}}  # fmt: skip
    _, paused, found = looked_at(values, transport, 29)
    assert paused > 50
    assert found == 0


@COMPILED
def test_congestion_on_a_ring_is_none_while_its_circle_is_open():
    """Two flows share a line and pause each other's sender; routes are cyclic, but one host sends nothing."""
    values = {**flows((0, 2, 1_000_000), (1, 2, 1_000_000), topology=ring(3)), "switch": {"buffer_bytes": "200kB"}}
    fabric, paused, found = looked_at(values, "roce-pfc", 29)
    assert fabric.cycles == []
    assert paused > 50
    assert found == 0


@COMPILED
def test_a_cycle_that_does_not_bite_is_warned_of_and_finishes():
    result = result_of(scenario(size_bytes=20_000), "roce-pfc")
    assert len(result.warnings) == 1
    assert result.status is RunStatus.FINISHED
    assert result.deadlock is None


# --- which queues are stuck ------------------------------------------------------------------------------------------


def stuck_of(queues: dict[int, list[int]], paused: set[int]) -> set[int]:
    """Queues that stay marked; ``queues``: by port, the ports by which the waiting frames came."""
    rows, packets = np.zeros(8 * PRIORITIES, QUEUE), np.zeros(64, PACKET)
    rows["head"] = -1
    packets["next"] = -1
    at = 0
    for port, came_by in queues.items():
        for k, in_port in enumerate(came_by):
            packets[at]["in_port"] = in_port
            if k == 0:
                rows[port * PRIORITIES + 3]["head"] = at
            else:
                packets[at - 1]["next"] = at
            at += 1
    marks = np.zeros(len(rows), np.int8)
    marks[[port * PRIORITIES + 3 for port in paused]] = 1
    keep_stuck(rows, packets, marks, np.zeros(len(rows), np.int32))
    return {row // PRIORITIES for row in np.flatnonzero(marks).tolist()}


def test_two_that_hold_each_other_are_stuck():
    assert stuck_of({0: [3], 2: [1]}, {0, 2}) == {0, 2}  # far ends of 2 and 0


def test_one_frame_that_can_go_elsewhere_frees_both():
    assert stuck_of({0: [3], 2: [1], 4: [1]}, {0, 2}) == set()


def test_who_waits_for_a_deadlock_is_stuck_as_well():
    assert stuck_of({0: [3, 7], 2: [1], 6: [-1]}, {0, 2, 6}) == {0, 2, 6}


def test_a_watch_wants_the_same_frames_to_wait_at_two_looks(monkeypatch):
    fabric = make(scenario(size_bytes=10_000), "roce-pfc")
    seen = iter([np.array([8, 24]), np.array([8, 24]), np.array([8]), np.array([], int), np.array([8])])
    monkeypatch.setattr(deadlock, "stuck_queues", lambda _: next(seen))
    monkeypatch.setattr(deadlock, "waiting_cycle", lambda _, stuck: tuple(stuck.tolist()))
    watch = Watch()
    assert watch.look(fabric.world) is None
    fabric.world.queues["head"][0, 3] = 5  # another frame waits there now: it had moved
    assert watch.look(fabric.world) is None
    assert watch.look(fabric.world) is None
    assert watch.look(fabric.world) is None
    assert watch.look(fabric.world) is None
    seen = iter([np.array([8])])
    assert watch.look(fabric.world) == (8,)


# --- the command -----------------------------------------------------------------------------------------------------


@COMPILED
def test_the_command_warns_names_it_and_says_so_by_its_exit_status(tmp_path):
    command = [Path(sys.executable).with_name("ttpoe"), "run", RING, "--out", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 5, done.stderr
    warning, told, unfinished = done.stderr.splitlines()
    assert warning.startswith("warning: roce-pfc: cyclic buffer dependency")
    assert told.startswith("deadlock: roce-pfc, seed 1: at ")
    assert told.endswith("priority 3 of s0, s1, s2 waits for itself: s0.p1 -> s1.p2 -> s2.p2 -> s0.p1")
    assert unfinished.startswith("unfinished: roce-pfc, seed 1: 3 of 3 flows")
    pfc, plain = json.loads((tmp_path / "results.json").read_text())["runs"]
    assert (pfc["status"], pfc["deadlock"]["ports"]) == ("deadlock", ["s0.p1", "s1.p2", "s2.p2"])
    assert len(pfc["warnings"]) == 1
    assert (plain["status"], plain["deadlock"], plain["warnings"]) == ("finished", None, [])


def test_the_example_is_a_scenario():
    assert load_scenario(RING).topology.host_count == 3
