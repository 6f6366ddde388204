"""Links that fail, flap, degrade and recover, hosts that fail, and routes that follow."""

from __future__ import annotations

import csv
from typing import Any

import numpy as np
import pytest
from emulated import COMPILED, checked, flows, make, result_of, traced
from test_graphs import graph

from emulator.config import ConfigError, make_scenario
from emulator.engine import RunStatus
from emulator.events import changes_of, stops_of
from emulator.experiments.report import write_flows, write_ports
from emulator.routing import DOWN

US, MS = 10**6, 10**9
FAT_TREE = {"kind": "fat-tree", "k": 4}
PERMUTATION = {"topology": FAT_TREE, "workload": {"kind": "permutation", "size_bytes": 300_000},
               "roce": {"rto_exponent": 5}, "routing": {"convergence_ps": "50us"}}  # fmt: skip
FAIL = {"at_ps": "10us", "what": "fail", "link": "e0.0.p2"}
FLAP = {"at_ps": "10us", "what": "flap", "link": "a0.0.p2", "down_ps": "20us", "up_ps": "30us", "count": 3}
EVENTS = {
    "fail": [FAIL],
    "fail and recover": [FAIL, {"at_ps": "40us", "what": "recover", "link": "e0.0.p2"}],
    "flap": [FLAP],
    "degrade": [{"at_ps": "10us", "what": "degrade", "link": "e0.0.p3", "rate_bps": "10G"}],
    "switch": [{"at_ps": "10us", "what": "fail", "switch": "a1.0"}],
    "nic": [{"at_ps": "10us", "what": "flap", "host": 3, "nic": 0, "down_ps": "60us"}],
    "both at once": [FLAP, FAIL, {"at_ps": "10us", "what": "fail", "switch": "c1"}],
}


@COMPILED
@pytest.mark.parametrize("name", EVENTS)
@pytest.mark.parametrize("transport", ["ttpoe", "roce-pfc"])
def test_all_finish_and_every_frame_is_accounted_for(name, transport):
    result = checked({**PERMUTATION, "events": EVENTS[name]}, transport, every=499)
    assert result.unfinished == []
    assert result.errors == []
    assert (result.counters["link_down"] > 0) == (name != "degrade")
    assert sum(port["link_down"] for port in result.ports) == result.counters["link_down"]


@COMPILED
@pytest.mark.parametrize("routing", ["ecmp", "weighted", "flowlet", "round-robin", "random", "adaptive"])
def test_each_routing_heals(routing):
    short = {"kind": "permutation", "size_bytes": 30_000}  # frames that overtake each other are sent again and again
    events = [{**event, "at_ps": "5us"} for event in EVENTS["both at once"]]
    result = checked({**PERMUTATION, "workload": short, "events": events, "routings": [routing]}, "ttpoe")
    assert result.counters["link_down"] > 0
    assert result.unfinished == []


@COMPILED
@pytest.mark.parametrize("transport", ["ttpoe", "roce-pfc"])
def test_slices_never_change_a_digest(transport):
    values = {**PERMUTATION, "events": EVENTS["both at once"]}
    assert make(values, transport).run(max_events=41).digest == result_of(values, transport).digest


@COMPILED
def test_events_after_the_end_change_nothing():
    late = result_of({**PERMUTATION, "events": [{**FAIL, "at_ps": "1s"}]}, "roce-pfc")
    assert late.digest == result_of(PERMUTATION, "roce-pfc").digest


ALONE = flows((0, 1, 100_000), topology={"kind": "star", "hosts": 2}, roce={"rto_exponent": 4})
"""25 frames of 4 KiB at 100G, 1 us a cable: 4178 + 16 bytes on the line at most, 334.24 ns each."""


def test_what_is_on_a_line_that_fails_is_lost_and_what_comes_after_waits():
    """The cable of h0 goes down in its 4th frame's time and is back 20 us later."""
    down = {"at_ps": 1_100_000, "what": "flap", "link": "h0", "down_ps": "20us"}
    fabric, result, rows = traced({**ALONE, "events": [down]}, "roce", {"h0", "s0.p0"})
    assert result.unfinished == []
    name = np.array(fabric.topology.port_names)
    sent = rows[(name[rows["port"]] == "h0") & (rows["is_out"] == 1)]["time_ps"]
    came = rows[(name[rows["port"]] == "s0.p0") & (rows["is_out"] == 0)]["time_ps"]
    assert (sent < 1_100_000).sum() == 4
    assert came[came < 20 * US].size == 0  # the first would have come at 1.33 us
    assert sent[sent > 1_100_000].min() == 1_100_000 + 20 * US
    by_name = {port["name"]: port for port in result.ports}
    assert by_name["h0"]["link_down"] == 4
    assert by_name["s0.p0"]["rx_frames"] == by_name["h0"]["tx_frames"] - 4


def test_a_degraded_link_takes_its_rate_s_time():
    """From the start at 10G: ten times the line time of one frame more per frame, but for the receiver's line."""
    slow = result_of({**ALONE, "events": [{"at_ps": 0, "what": "degrade", "link": "h0", "rate_bps": "10G"}]}, "roce")
    wired = {**ALONE, "topology": {"kind": "star", "hosts": 2, "links": [{"hosts": [0], "rate_bps": "10G"}]}}
    first_ps = 1 + 4_182 * 80  # which may have begun at 100G: both are at the same instant
    difference = int(result_of(wired, "roce").flows["fct_rx_ps"][0] - slow.flows["fct_rx_ps"][0])
    assert 0 <= difference <= 10 * first_ps
    back = {"at_ps": "5us", "what": "recover", "link": "h0"}
    both = [{"at_ps": 0, "what": "degrade", "link": "h0", "rate_bps": "10G"}, back]
    plain = result_of(ALONE, "roce").flows["fct_rx_ps"][0]
    assert plain < result_of({**ALONE, "events": both}, "roce").flows["fct_rx_ps"][0] < slow.flows["fct_rx_ps"][0]


def test_a_failed_port_drops_what_waits_and_frees_its_buffer():
    fail = {"at_ps": "20us", "what": "fail", "link": "s0.p0"}
    values = flows(*((k, 0, 200_000) for k in range(1, 6)), events=[fail], until_ps="40us")
    fabric = make(values, "roce-pfc")
    result = fabric.run(max_events=50)
    by_name = {port["name"]: port for port in result.ports}
    assert by_name["s0.p0"]["max_queue_bytes"] > 100_000
    assert by_name["s0.p0"]["link_down"] > 25
    assert int(fabric.world.shared["bytes"].sum()) == 0


@COMPILED
@pytest.mark.parametrize("transport", ["ttpoe", "roce-pfc"])
def test_a_long_queue_of_many_ingresses_is_dropped_within_the_room_for_events(transport):
    """Some 3,000 frames from 100 ports, many of them paused, wait at a port that flaps; there are 800 events' rows."""
    flap = {"at_ps": "60us", "what": "flap", "link": "s0.p0", "down_ps": "5us"}
    values = {**flows(*((k, 0, 100_000) for k in range(1, 101)), events=[flap]), "until_ps": "200us"}
    fabric = make({**values, "switch": {"buffer_bytes": "8MB"}}, transport)
    rows = fabric.world.nodes.size
    room = []
    result = fabric.run(
        max_events=500,
        on_slice=lambda at: room.append(len(fabric.world.due) - int(fabric.world.schedule[0]["due_count"])),
    )
    assert result.counters["link_down"] > rows
    assert min(room) >= 0
    assert result.errors == []


@COMPILED
def test_a_pause_does_not_outlive_its_line_and_lossless_holds_over_a_flap():
    """Headroom is full when a sender's cable flaps; it comes up paused, so nothing overflows."""
    flap = [{"at_ps": f"{20 + k}us", "what": "flap", "link": f"h{k}", "down_ps": "2us"} for k in range(1, 6)]
    values = {**flows(*((k, 0, 200_000) for k in range(1, 6)), events=flap), "switch": {"buffer_bytes": "400kB"},
              "roce": {"rto_exponent": 6}}  # fmt: skip
    result = checked(values, "roce-pfc", every=97)
    assert result.counters["pauses"] > 0
    assert result.counters["link_down"] > 0
    assert result.unfinished == result.errors == []


def test_routes_follow_after_the_convergence_time():
    """Frames into the dead uplink are lost until then, and none after."""
    values = flows(
        (0, 15, 500_000), topology=FAT_TREE, roce={"rto_exponent": 3}, routing={"convergence_ps": "200us"}
    )
    plain = make(values, "roce")
    plain.run()
    used = next(p for p in ("e0.0.p2", "e0.0.p3") if plain.world.ports["tx_frames"][plain.topology.port_names.index(p)])
    fabric = make({**values, "events": [{"at_ps": "10us", "what": "fail", "link": used}]}, "roce")
    port = fabric.topology.port_names.index(used)
    losses = []
    told = fabric.world.ports
    result = fabric.run(max_events=20, on_slice=lambda at: losses.append((at.now_ps, int(told["link_down"][port]))))
    assert result.unfinished == []
    last = losses[-1][1]
    assert last > 10
    assert min(at for at, lost in losses if lost == last) <= 210 * US
    assert not np.isin(fabric.routes.members, [port, port ^ 1]).any()
    assert (fabric.world.members >= 0).all()


def test_a_recovered_link_is_used_again():
    events = [FAIL, {"at_ps": "100us", "what": "recover", "link": "e0.0.p2"}]
    fabric = make({**flows((0, 15, 3_000), (0, 15, 3_000, 400 * US), topology=FAT_TREE), "events": events,
                   "routing": {"convergence_ps": "20us"}}, "ttpoe")  # fmt: skip
    fabric.run()
    for name in ("group_of", "members"):
        assert np.array_equal(getattr(fabric.routes, name), getattr(fabric.topology.routes, name))
        assert np.array_equal(getattr(fabric.world, name), getattr(fabric.topology.routes, name))


def test_members_are_marked_until_routes_know():
    fabric = make({**PERMUTATION, "events": [FAIL], "until_ps": "30us"}, "roce")
    fabric.run()
    port = fabric.topology.port_names.index("e0.0.p2")
    assert set(fabric.world.members[fabric.world.members < 0].tolist()) == {DOWN - port, DOWN - (port ^ 1)}


@COMPILED
def test_weighted_routing_sends_less_where_a_link_beyond_failed():
    """A core link of a0.0 is down: of a pod's traffic to others, it gets one part of three, where ecmp gives half."""
    rows = [(k % 4, 4 + (5 * k) % 12, 20_000, 200 * US) for k in range(240)]
    values = {**flows(*rows, topology=FAT_TREE), "events": [{"at_ps": 0, "what": "fail", "link": "a0.0.p2"}],
              "routing": {"convergence_ps": "1us"}}  # fmt: skip
    share = {}
    for routing in ("ecmp", "weighted"):
        ports = {p["name"]: p["tx_bytes"] for p in result_of({**values, "routings": [routing]}, "roce-pfc").ports}
        up = [sum(ports[f"e0.{i}.p{2 + j}"] for i in (0, 1)) for j in (0, 1)]
        share[routing] = up[0] / sum(up)
    assert share["ecmp"] == pytest.approx(1 / 2, abs=0.12)
    assert share["weighted"] == pytest.approx(1 / 3, abs=0.12)


@COMPILED
@pytest.mark.parametrize("transport", ["ttpoe", "roce-pfc"])
def test_a_host_that_fails_ends_its_flows_and_no_others(transport, tmp_path):
    rows = [(0, 3, 200_000), (3, 5, 200_000), (1, 4, 200_000), (2, 3, 1_000, 30 * US), (2, 3, 1_000, 400 * US)]
    events = [{"at_ps": "10us", "what": "fail", "host": 3}, {"at_ps": "300us", "what": "recover", "host": 3}]
    result = checked({**flows(*rows), "events": events}, transport, every=97)
    assert result.status is RunStatus.FINISHED
    assert result.unfinished == ["h0>h3 (host_failed)", "h3>h5 (host_failed)", "h2>h3 (host_failed)"]
    write_flows(tmp_path / "flows.csv", [result])
    write_ports(tmp_path / "ports.csv", [result])
    with open(tmp_path / "flows.csv") as file:
        assert [row["failure"] for row in csv.DictReader(file)] == ["host_failed"] * 2 + ["", "host_failed", ""]
    with open(tmp_path / "ports.csv") as file:
        assert sum(int(row["link_down"]) for row in csv.DictReader(file)) == result.counters["link_down"]


def test_a_nic_that_fails_for_good_is_an_unfinished_flow():
    values = {**ALONE, "events": [{"at_ps": "5us", "what": "fail", "host": 1, "nic": 0}]}
    result = result_of({**values, "roce": {"rto_exponent": 1, "retry_limit": 2}}, "roce")
    assert result.unfinished == ["h0>h1 (retry_limit)"]


def test_static_routes_lose_their_dead_ports_and_never_go_round():
    nodes = [{"name": n, "kind": "host"} for n in ("h0", "h1")]
    nodes += [{"name": f"s{k}", "kind": "switch"} for k in range(3)]
    links = [{"a": a, "b": b} for a, b in (("h0", "s0"), ("h1", "s2"), ("s0", "s1"), ("s1", "s2"), ("s0", "s2"))]
    routes = [{"switch": "s0", "to": ["h1"], "via": ["s1"]}]
    shape = graph(nodes, links, routes)
    cut = {"at_ps": "1us", "what": "fail", "link": "s1.p1"}
    values = {**flows((0, 1, 2_000, 50 * US), topology=shape), "events": [cut], "routing": {"convergence_ps": "1us"},
              "roce": {"rto_exponent": 1, "retry_limit": 1}}  # fmt: skip
    result = result_of(values, "roce")
    # s1's shortest way is back over s0, which sends to s1: nobody forwards it, and it is told as no route.
    assert result.counters["no_route"] > 0
    assert result.unfinished == ["h0>h1 (retry_limit)"]


# --- configuration ---------------------------------------------------------------------------------------------------


def sentence(event: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        make({**PERMUTATION, "events": [event]}, "ttpoe")
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("event", "said"),
    [
        ({"what": "fail"}, "events.0.at_ps: this field is required"),
        ({"at_ps": 0, "what": "fail"}, "events.0: name a link, a host or a switch"),
        ({"at_ps": 0, "what": "fail", "link": "h0", "host": 0}, "events.0: name a link, a host or a switch"),
        ({"at_ps": 0, "what": "explode", "link": "h0"}, "events.0.what: must be 'fail'"),
        ({"at_ps": 0, "what": "fail", "link": "h99"}, "events.0.link: there is no port h99; ports are h0, "),
        ({"at_ps": 0, "what": "fail", "switch": "x"}, "events.0.switch: there is no switch x"),
        ({"at_ps": 0, "what": "fail", "host": 16}, "events.0.host: there is no host 16; the last one is 15"),
        ({"at_ps": 0, "what": "fail", "host": 1, "nic": 1}, "events.0.nic: there is no NIC 1; the last one is 0"),
        ({"at_ps": 0, "what": "fail", "link": "h0", "nic": 0}, "events.0: nic needs the host"),
        ({"at_ps": 0, "what": "degrade", "link": "h0"}, 'events.0: rate_bps and what = "degrade" need each other'),
        ({"at_ps": 0, "what": "degrade", "link": "h0", "rate_bps": "400G"}, "events.0.rate_bps: 400000000000 is more"),
        ({"at_ps": 0, "what": "flap", "link": "h0"}, 'events.0: down_ps and what = "flap" need each other'),
        ({"at_ps": 0, "what": "flap", "link": "h0", "down_ps": 5, "count": 2}, "events.0: up_ps is needed"),
        ({"at_ps": 0, "what": "fail", "link": "h0", "count": 2}, 'events.0: up_ps and count need what = "flap"'),
        ({"at_ps": 0, "what": "flap", "link": "h0", "down_ps": "3600s", "up_ps": "3600s", "count": 10_000},
         "events.0.count: the last of 10000 flaps ends after any run; lower it"),
        ({"at_ps": 0, "what": "fail", "links": "h0"}, "events.0.links: there is no such field; did you mean link?"),
    ],
)  # fmt: skip
def test_the_sentence_names_the_event(event, said):
    assert sentence(event).startswith(said)


def test_what_comes_when():
    """A flap of two, 10 us down and 30 us up, with 15 us to converge; each reroute knows what held at its change."""
    scenario = make_scenario({**PERMUTATION, "events": [{**FLAP, "down_ps": "10us", "count": 2}]})
    fabric = make(PERMUTATION, "ttpoe")
    stops = stops_of(fabric.topology, changes_of(fabric.topology, scenario.events), 15 * US)
    port = fabric.topology.port_names.index("a0.0.p2")
    told = [
        (s.at_ps // US, [c.kind for c in s.changes], None if s.reroute is None else bool(s.reroute[0][port]))
        for s in stops
    ]
    assert told == [
        (10, ["fail"], None), (20, ["recover"], None), (25, [], False), (35, [], True),
        (50, ["fail"], None), (60, ["recover"], None), (65, [], False), (75, [], True),
    ]  # fmt: skip
