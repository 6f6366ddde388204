"""Workloads: who sends what to whom, by definition, by published points, and from files."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from emulator.config import load_scenario, make_scenario
from emulator.quantities import ConfigError
from emulator.workloads import Setting, Workload, dependents, make_workload
from emulator.workloads.message import MAX_MESSAGES, Message, acknowledged, received
from emulator.workloads.poisson import DISTRIBUTIONS, draw_gap_ps, draw_size, mean_size

DATA = Path(__file__).parent / "data" / "workloads"
RATE = 10**11


def made(kind: str, hosts: int | None = 8, seed: int = 1, **fields: Any) -> Workload:
    """A workload's messages."""
    config = make_scenario({"workload": {"kind": kind, **fields}}).workload
    return make_workload(config, Setting(seed, hosts, RATE))


def pairs(workload: Workload) -> list[tuple[int, int]]:
    return [(message.src, message.dst) for message in workload.messages]


# --- patterns --------------------------------------------------------------------------------------------------------


def test_outcast_is_an_incast_turned_round():
    out, back = made("outcast", receivers=5), made("incast", senders=5)
    assert pairs(out) == [(0, h) for h in range(1, 6)]
    assert pairs(back) == [(dst, src) for src, dst in pairs(out)]


@pytest.mark.parametrize("order", ["naive", "shifted"])
def test_all_to_all_has_every_pair_once_in_its_order(order):
    load = made("all-to-all", hosts=5, order=order)
    assert sorted(pairs(load)) == [(a, b) for a in range(5) for b in range(5) if a != b]
    assert [dst for src, dst in pairs(load) if src == 2] == ([0, 1, 3, 4] if order == "naive" else [3, 4, 0, 1])
    assert [message.after for message in load.messages[8:12]] == [(), *((acknowledged(k),) for k in (8, 9, 10))]


def test_all_to_all_with_some_under_way():
    load = made("all-to-all", hosts=6, parallel=2)
    assert [message.after for message in load.messages[:5]] == [(), (), *((acknowledged(k),) for k in (0, 1, 2))]
    assert not any(message.after for message in made("all-to-all", hosts=6, parallel=0).messages)


def test_hotspot_share_and_hosts():
    load = made("hotspot", hosts=50, hotspots=2, share=0.3, messages_per_host=40)
    hot = [message for message in load.messages if message.group == "hot"]
    assert len({message.dst for message in hot}) == 2
    assert all(message.src != message.dst for message in load.messages)
    expected = 2000 * (0.3 + 0.7 * 2 / 50)  # an even message may meet a hot host too
    assert abs(len(hot) - expected) < 4 * (2000 * 0.3 * 0.7) ** 0.5
    assert len({message.name for message in load.messages}) == 2000
    assert pairs(load) != pairs(made("hotspot", hosts=50, hotspots=2, share=0.3, messages_per_host=40, seed=2))


def test_victim_goes_where_nobody_else_does():
    load = made("victim", hosts=None, senders=3, victim_size_bytes=7)
    assert pairs(load) == [(1, 0), (2, 0), (3, 0), (1, 4)]
    assert [message.group for message in load.messages] == ["incast"] * 3 + ["victim"]
    assert load.messages[-1].size_bytes == 7


def test_the_one_of_an_incast_and_an_outcast_can_be_any_host():
    assert pairs(made("incast", senders=4, receiver=2)) == [(0, 2), (1, 2), (3, 2), (4, 2)]
    assert pairs(made("outcast", receivers=3, sender=7)) == [(7, 0), (7, 1), (7, 2)]


def test_so_many_alike():
    pair = {"src": 1, "dst": 2}
    load = made("flows", flows=[{**pair, "size_bytes": 5, "count": 3}, {**pair, "size_bytes": 6}])
    assert [message.name for message in load.messages] == ["h1>h2", "h1>h2#1", "h1>h2#2", "h1>h2#3"]
    assert [message.size_bytes for message in load.messages] == [5, 5, 5, 6]


# --- several in one ---------------------------------------------------------------------------------------------------


def part(kind: str, group: str | None = None, start_ps: int | str = 0, **fields: Any) -> dict[str, Any]:
    return {"group": group, "start_ps": start_ps, "workload": {"kind": kind, **fields}}


def test_a_mix_is_its_parts_with_names_and_times_of_their_own():
    parts = [
        part("incast", senders=2), part("incast", "later", "1us", senders=2), part("victim", senders=2),
        part("all-to-all", "all", parallel=1),
    ]  # fmt: skip
    load = made("mix", hosts=4, parts=parts)
    names = [message.name for message in load.messages]
    assert len(set(names)) == len(names) == 2 + 2 + 3 + 12
    groups = [message.group for message in load.messages]
    assert groups == ["incast"] * 2 + ["later"] * 2 + ["incast"] * 2 + ["victim"] + ["all"] * 12
    assert [message.start_ps for message in load.messages] == [0, 0, 10**6, 10**6] + [0] * 15
    alone = made("all-to-all", hosts=4, parallel=1).messages
    assert [m.after for m in load.messages[7:]] == [tuple(event + 14 for event in m.after) for m in alone]


def test_a_part_of_a_mix_has_a_nic():
    """Of those messages that name none themselves."""
    flows = [{"src": 0, "dst": 1, "size_bytes": 5, "nic": 0}, {"src": 1, "dst": 2, "size_bytes": 5}]
    incast = part("incast", senders=2)
    parts = [incast, {**incast, "nic": 1}, {**part("flows", flows=flows), "nic": 2}]
    assert [message.nic for message in made("mix", hosts=4, parts=parts).messages] == [None, None, 1, 1, 0, 2]


def test_a_mix_from_a_file_reads_files_beside_it(tmp_path):
    (tmp_path / "flows.csv").write_text("src,dst,size\n1,2,5\n")
    text = '[workload]\nkind = "mix"\n[[workload.parts]]\nworkload = {kind = "file", path = "flows.csv"}\n'
    (tmp_path / "run.toml").write_text(text)
    scenario = load_scenario(tmp_path / "run.toml")
    assert pairs(make_workload(scenario.workload, Setting(1, None, RATE))) == [(1, 2)]


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ([], "workload.parts: "),
        ([part("incast"), part("ring")], "workload.parts.1.workload.kind: links of ring and tree are open beforehand"),
        ([part("incast"), part("hotspot", hotspots=8)], "workload.parts.1.workload.hotspots: 8 of 8"),
        ([part("incast", senders=0)], "workload.parts.0.workload.senders: "),
        ([part("incast", sender=1)], "workload.parts.0.workload.sender: there is no such field; did you mean senders?"),
        ([part("mix")], 'workload.parts.0.workload.kind: name one, "incast"'),
        ([{"wrkload": {}}], "workload.parts.0.wrkload: there is no such field; did you mean workload?"),
        ([part("incast", "a,b")], "workload.parts.0.group: "),
    ],
)
def test_what_a_mix_cannot_be(parts, says):
    with pytest.raises(ConfigError) as caught:
        made("mix", parts=parts)
    assert str(caught.value).startswith(says)


# --- collectives -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("operation", "steps", "factor"), [("all-reduce", 14, 7 / 4), ("all-gather", 7, 7 / 8),
                                                            ("reduce-scatter", 7, 7 / 8)])  # fmt: skip
def test_a_ring_passes_on_what_it_was_given(operation, steps, factor):
    """Each host sends in each step what it received in the step before, and 2 (N-1)/N of the data in all."""
    size = 1003
    load = made("ring", operation=operation, size_bytes=size)
    assert len(load.messages) == 8 * steps
    assert load.collective.bus_factor == factor
    for index, message in enumerate(load.messages):
        assert message.dst == (message.src + 1) % 8
        for event in message.after:
            before = load.messages[event // 2]
            assert event == received(event // 2)
            assert before.dst == message.src
            assert before.size_bytes == message.size_bytes
            assert event // 2 < index
    assert sum(len(message.after) for message in load.messages) == 8 * (steps - 1)
    sent = [sum(message.size_bytes for message in load.messages if message.src == h) for h in range(8)]
    assert sum(sent) == size * steps
    assert max(sent) - min(sent) <= steps


def data_of(load: Workload, hosts: int, pieces: int) -> list[list[set[int]]]:
    """Plays an all-reduce: whose contributions each host's copy of each chunk has at the end."""
    held = [[{host} for _ in range(pieces)] for host in range(hosts)]
    done: set[int] = set()
    left = list(range(len(load.messages)))
    while left:
        ready = [k for k in left if all(event // 2 in done for event in load.messages[k].after)]
        assert ready, "messages wait for each other"
        for k in ready:
            message = load.messages[k]
            chunk = message.ordinal if pieces > 1 else 0
            held[message.dst][chunk] |= held[message.src][chunk]
            done.add(k)
            left.remove(k)
    return held


@pytest.mark.parametrize("hosts", [2, 3, 4, 7, 16])
@pytest.mark.parametrize("chunks", [1, 5])
def test_a_tree_sums_everything_everywhere(hosts, chunks):
    load = made("tree", hosts=hosts, chunks=chunks, size_bytes=999)
    assert len(load.messages) == 2 * (hosts - 1) * chunks
    everyone = set(range(hosts))
    assert all(chunk == everyone for copy in data_of(load, hosts, chunks) for chunk in copy)
    assert sum(message.size_bytes for message in load.messages if message.dst == 0) == 999 * min(2, hosts - 1)


@pytest.mark.parametrize("hosts", [2, 3, 8])
def test_a_ring_sums_everything_everywhere(hosts):
    """Chunks by their number in the ring: host i sends chunk i - step, and each ends with all contributions."""
    load = made("ring", hosts=hosts, size_bytes=100 * hosts)
    held = [[{host} for _ in range(hosts)] for host in range(hosts)]
    for message in load.messages:  # step by step
        chunk = (message.src - message.ordinal) % hosts
        held[message.dst][chunk] |= held[message.src][chunk]
    assert all(chunk == set(range(hosts)) for copy in held for chunk in copy)


def test_reducing_takes_time_and_gathering_none():
    load = made("ring", hosts=4, compute_ps="1us")
    by_step = [{message.delay_ps for message in load.messages if message.ordinal == step} for step in range(6)]
    assert by_step == [{0}, {10**6}, {10**6}, {10**6}, {0}, {0}]


# --- random sizes and times ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(DISTRIBUTIONS))
def test_published_sizes(name):
    """Drawn evenly the inverse gives back the points, between them straight lines, and the exact mean."""
    points = DISTRIBUTIONS[name]
    assert points[0] == (0, 0)
    assert points[-1][1] == 10_000
    assert all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(points))
    for size, share in points[1:-1]:
        assert abs(draw_size(points, (share << 64) // 10_000) - size) <= 1
    n = 20_000
    sizes = [draw_size(points, (2 * k + 1 << 63) // n) for k in range(n)]
    assert sizes == sorted(sizes)
    assert sizes[0] >= 1
    assert sizes[-1] <= points[-1][0]
    assert float(mean_size(points)) == pytest.approx(np.trapezoid(*np.array(points, float).T) / 10_000)
    assert np.mean(sizes) == pytest.approx(float(mean_size(points)), rel=1e-3)


def test_gaps_are_exponential():
    n = 20_000
    gaps = np.array([draw_gap_ps(Fraction(10**6), (2 * k + 1 << 63) // n) for k in range(n)])
    assert gaps.mean() == pytest.approx(10**6, rel=1e-3)
    assert np.median(gaps) == pytest.approx(10**6 * np.log(2), rel=1e-3)
    assert draw_gap_ps(Fraction(10**6), 2**64 - 1) == 0
    assert draw_gap_ps(Fraction(10**6), 0) == int(10**6 * 64 * Fraction("0.6931471805599453094172321215"))


@pytest.mark.parametrize("name", list(DISTRIBUTIONS))
def test_poisson_offers_its_load(name):
    """Messages and bytes of a duration are as many as the load says, within 4 sigma; all pairs are met."""
    load = made("poisson", hosts=8, load=0.4, distribution=name, duration_ps="200ms" if name == "websearch" else "20ms")
    seconds = 0.2 if name == "websearch" else 0.02
    sizes = np.array([message.size_bytes for message in load.messages])
    expected = 8 * 0.4 * RATE / 8 * seconds
    assert abs(sizes.sum() - expected) < 4 * np.sqrt((sizes.astype(float) ** 2).sum())
    starts = [message.start_ps for message in load.messages]
    assert starts == sorted(starts)
    assert starts[-1] < seconds * 10**12
    assert len(set(pairs(load))) == 56
    gaps = np.diff(starts)
    assert gaps.std() / gaps.mean() == pytest.approx(1, abs=0.1)


def test_poisson_by_count_is_the_beginning_of_a_longer_one():
    few, many = (made("poisson", messages=n, load=0.7) for n in (50, 200))
    assert few.messages == many.messages[:50]
    one = made("poisson", messages=50, size_bytes=1000)
    assert {message.size_bytes for message in one.messages} == {1000}


def test_poisson_is_the_same_on_every_machine():
    """Four messages, written down."""
    load = made("poisson", hosts=4, messages=4, load=0.5, distribution="hadoop")
    assert [(m.src, m.dst, m.size_bytes, m.start_ps) for m in load.messages] == WRITTEN_DOWN


WRITTEN_DOWN = [(0, 2, 1390, 345916), (2, 0, 1690774, 25102819), (1, 2, 699, 31621692), (0, 2, 1888, 36982340)]


# --- files -----------------------------------------------------------------------------------------------------------


def read(tmp_path: Path, name: str, text: str, hosts: int | None = None) -> Workload:
    path = tmp_path / name
    path.write_text(text)
    return made("file", hosts=hosts, path=str(path))


def test_a_csv_file(tmp_path):
    load = read(tmp_path, "a.csv", "src,dst,size,start,group\n1,0,2000,0,a\n\n2, 0,1MB,5us,\n1,0,1,10,b\n")
    assert load.messages == [
        Message(1, 0, 2000, group="a"), Message(2, 0, 10**6, 5 * 10**6), Message(1, 0, 1, 10, ordinal=1, group="b"),
    ]  # fmt: skip
    assert read(tmp_path, "b.csv", "size_bytes,src,dst,nic\n5,3,4,1\n").messages == [Message(3, 4, 5, nic=1)]


def test_a_path_in_a_scenario_is_relative_to_it(tmp_path):
    (tmp_path / "flows.csv").write_text("src,dst,size\n0,1,5\n")
    (tmp_path / "scenario.toml").write_text('[workload]\nkind = "file"\npath = "flows.csv"\n')
    scenario = load_scenario(tmp_path / "scenario.toml")
    assert make_workload(scenario.workload, Setting(1, None, RATE)).messages == [Message(0, 1, 5)]


def test_a_connection_matrix_of_htsim():
    load = made("file", hosts=16, path=str(DATA / "permutation.cm"))
    assert sorted(m.src for m in load.messages) == sorted(m.dst for m in load.messages) == list(range(16))
    assert {(m.size_bytes, m.start_ps) for m in load.messages} == {(2_000_000, 0)}
    assert load.messages[0].name == "h7>h5"
    assert load.hosts_needed == 16


def test_triggers_of_a_connection_matrix(tmp_path):
    """A barrier waits for its count, a oneshot for one, a multishot's flows for one more each."""
    text = """# a comment
Nodes 9
Connections 7
Triggers 3
0->1 id 1 start 0 size 10 send_done_trigger 1
0->2 id 2 start 2500.0 size 10 send_done_trigger 1 recv_done_trigger 2
1->2 id 3 trigger 1 size 10 recv_done_trigger 3
1->3 id 4 trigger 1 size 10 recv_done_trigger 3
2->3 id 5 trigger 2 size 10
3->4 id 6 trigger 3 size 10
3->5 id 7 trigger 3 size 10
trigger id 1 multishot
trigger id 2 oneshot
trigger id 3 barrier count 2
"""
    load = read(tmp_path, "t.cm", text)
    first, second = acknowledged(0), acknowledged(1)
    assert [(m.after, m.unmet) for m in load.messages] == [
        ((), 0), ((), 0), ((first, second), 1), ((first, second), 2), ((received(1),), 1),
        ((received(2), received(3)), 2), ((received(2), received(3)), 2),
    ]  # fmt: skip
    assert load.messages[1].start_ps == 2500
    assert load.hosts_needed == 9


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.csv", "", "line 1: a column 'src' is missing"),
        ("a.csv", "src,dst,size\n", "line 1: no flow follows"),
        ("a.csv", "src,dst,bytes\n", "line 1: there is no column 'bytes' to read"),
        ("a.csv", "src,dst,size,size_bytes\n", "named twice"),
        ("a.csv", "src,dst,size\n1,0\n", "line 2: 2 cells under 3 columns"),
        ("a.csv", "src,dst,size\n1,0,\n", "line 2: size is empty"),
        ("a.csv", "src,dst,size\n1,0,5\n1,1,5\n", "line 3: host 1 cannot send to itself"),
        ("a.csv", "src,dst,size\n1,0,-5\n", "line 2: size: "),
        ("a.csv", "src,dst,size\n1,0,0\n", "line 2: size: "),
        ("a.csv", "src,dst,size\n70000,0,5\n", "line 2: src: "),
        ("a.csv", "src,dst,size,start\n1,0,5,5 parsecs\n", "line 2: start: "),
        ("a.cm", "Nodes 2\nConnections 0\n", "there is no connection"),
        ("a.cm", "0->1 start 0\n", "line 1: the connection has no size"),
        ("a.cm", "0->1 size 5\n", "either a start or a trigger"),
        ("a.cm", "0->1 size 5 start 0 trigger 1\n", "either a start or a trigger"),
        ("a.cm", "0->1 size 5 start x\n", "a whole number must follow 'start'"),
        ("a.cm", "0->1 size 5 start 0 prio 3\n", "prio: priorities of single flows are not modelled"),
        ("a.cm", "0->1 size 5 start 0 colour 3\n", "the word 'colour' is unknown"),
        ("a.cm", "0->1 size 5 trigger 4\n", "trigger 4 is not described"),
        ("a.cm", "0->1 size 5 trigger 4\ntrigger id 4 oneshot\n", "it would never start"),
        ("a.cm", "Connections 2\n0->1 size 5 start 0\n", "the head says 2 Connections, and there are 1"),
        ("a.cm", "Nodes 2\n0->2 size 5 start 0\n", "a host is beyond Nodes 2"),
        ("a.cm", "failure switch_type TOR\n", "failures of links are not read from here"),
        ("a.cm", "what\n", "the line is of no known kind"),
    ],
)
def test_a_wrong_file_is_named_with_its_line(tmp_path, name, text, says):
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, name, text)
    assert str(caught.value).startswith("workload.path: ")
    assert name in str(caught.value)
    assert says in str(caught.value)


def test_no_file_and_no_text(tmp_path):
    with pytest.raises(ConfigError, match=r"workload.path: .*No such file"):
        made("file", path=str(tmp_path / "none.csv"))
    (tmp_path / "x.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not UTF-8"):
        made("file", path=str(tmp_path / "x.csv"))


# --- what cannot be made ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["permutation", "all-to-all", "hotspot", "poisson", "ring", "tree"])
def test_hosts_must_be_known(kind):
    with pytest.raises(ConfigError, match=r"topology.hosts: .* needs to know how many"):
        made(kind, hosts=None)


@pytest.mark.parametrize(
    ("kind", "hosts", "fields", "says"),
    [
        ("incast", 8, {"senders": 8}, "topology.hosts: the workload names host 8, and there are 8; make it 9"),
        ("all-to-all", 2000, {}, f"and {MAX_MESSAGES:,} fit in memory"),
        ("ring", 1000, {}, f"and {MAX_MESSAGES:,} fit in memory"),
        ("ring", 8, {"size_bytes": 7}, "workload.size_bytes: 7 bytes cannot be cut in 8 chunks"),
        ("hotspot", 8, {"hotspots": 8}, "workload.hotspots: 8 of 8 hosts leave none cold"),
        ("victim", 8, {"victim_dst": 1}, "workload.victim_dst: h1 is the victim's sender"),
        ("poisson", 8, {"duration_ps": "1ns"}, "workload: not one message comes of it"),
        ("poisson", 8, {"messages": 5, "duration_ps": "1ns"}, "give one of them"),
        ("poisson", 8, {"size_bytes": 5, "distribution": "hadoop"}, "give one of them"),
        ("poisson", 8, {"load": 1e-9}, "load is below"),
    ],
)
def test_what_cannot_be_made_is_refused(kind, hosts, fields, says):
    with pytest.raises(ConfigError) as caught:
        made(kind, hosts=hosts, **fields)
    assert says in str(caught.value)


def test_dependents_are_what_waits_from_the_other_side():
    messages = [Message(0, 1, 1), Message(1, 2, 1, after=(1,)), Message(1, 3, 1, after=(1, 2))]
    waiting, first = dependents(messages)
    assert first.tolist() == [0, 0, 2, 3, 3, 3, 3]
    assert waiting.tolist() == [1, 2, 2]
