"""Lines that fail, come back and go bad under credits, PFC and link-level retry: nothing leaks and nothing locks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from emulated import COMPILED, OTHER_MODES, checked, digests_under, examples, flows, make, result_of, traced
from hypothesis import given
from hypothesis import strategies as st

from emulator.buffer import PRIORITIES
from emulator.config import ConfigError
from emulator.conservation import check_conservation
from emulator.credits import BLOCK_BYTES
from emulator.engine import RunStatus
from emulator.packet import DATA
from ttpoe.units import NEVER

US = 10**6
FRAME_BLOCKS = -(-4138 // BLOCK_BYTES)
"""Of InfiniBand's largest frame here."""
LEAF_SPINE = {"kind": "leaf-spine", "leaves": 2, "hosts_per_leaf": 3, "spines": 2}
LINKS = ("h0", "h1", "h4", "l0.p3", "l0.p4", "l1.p3", "l1.p4")
"""Of LEAF_SPINE: hosts' cables, and all four between switches."""


@st.composite
def faults(draw: st.DrawFn) -> list[dict[str, Any]]:
    """What happens to links in the first 200 us. All are up, at their own rate and good from then on."""
    when = st.integers(0, 150 * US)
    events: list[dict[str, Any]] = []
    for link in draw(st.lists(st.sampled_from(LINKS), min_size=1, max_size=4, unique=True)):
        for what in draw(st.lists(st.sampled_from(["fail", "flap", "degrade", "impair"]), min_size=1, max_size=4)):
            event: dict[str, Any] = {"at_ps": draw(when), "what": what, "link": link}
            if what == "flap":
                down, up = draw(st.integers(1, 20 * US)), draw(st.integers(1, 5 * US))
                event |= {"down_ps": down, "up_ps": up, "count": draw(st.integers(1, 2))}
            elif what == "degrade":
                event["rate_bps"] = draw(st.sampled_from(["10G", "33G", "100G"]))
            elif what == "impair":
                event["impairments"] = draw(st.sampled_from([
                    {"bit_error_rate": 1e-5}, {"bit_error_rate": 1e-7, "loss": 0.01}, {"loss": 1.0},
                    {"delay_ps": "2us"}, {"burst_loss": 0.1}, {"flap_up_ps": "3us", "flap_down_ps": "1us"},
                ]))  # fmt: skip
                event["impaired_ways"] = draw(st.sampled_from(["both", "from_port", "to_port"]))
            events.append(event)
        events += [{"at_ps": 200 * US, "what": what, "link": link} for what in ("recover", "impair")]
    return events


@st.composite
def networks(draw: st.DrawFn) -> dict[str, Any]:
    rows = [(src, dst, draw(st.integers(1, 300_000)), draw(st.integers(0, 20 * US)))
            for src, dst in ((0, 4), (1, 3), (2, 5), (4, 0), (5, 1)) if draw(st.booleans())]  # fmt: skip
    return flows(
        *rows, (3, 0, 200_000), topology=LEAF_SPINE, events=draw(faults()),
        link={"delay_ps": draw(st.integers(0, 2 * US)), "retry_bytes": draw(st.sampled_from([None, 4400, 30_000]))},
        switch={"credit_buffer_bytes": draw(st.sampled_from([None, 4200, 20_000])), "credit_refresh_ps": "3us"},
        routing={"convergence_ps": draw(st.sampled_from([0, 10 * US]))}, ttpoe={"retry_limit": 100},
        roce={"rto_exponent": 5, "mtu_bytes": draw(st.sampled_from([256, 4096]))},
    )  # fmt: skip


def free_credits(w: Any) -> np.ndarray:
    """By line and priority: blocks that the sender may send, those of which it has not heard, those in use."""
    far = np.arange(len(w.credits)) ^ PRIORITIES
    credits, receiver = w.credits, w.credits[far]
    mine = credits["limit_blocks"] - credits["sent_blocks"]
    untold = receiver["granted_blocks"] - credits["limit_blocks"]
    used = receiver["buffer_blocks"] - (receiver["granted_blocks"] - credits["sent_blocks"])
    return np.stack([mine, untold, used])


@given(networks())
@examples(40)
def test_credits_neither_leak_nor_lock(values: dict[str, Any]) -> None:
    """Between any events, credits + occupied + in flight are the buffer; and all flows end once all lines are well."""
    fabric = make(values, "ib")
    buffers = fabric.world.credits["buffer_blocks"][np.arange(len(fabric.world.credits)) ^ PRIORITIES].copy()

    def check(_: Any) -> None:
        check_conservation(fabric.world)  # counts each frame in buffers and on lines against what credits say
        parts = free_credits(fabric.world)
        assert (parts >= 0).all()
        assert np.array_equal(parts.sum(axis=0), buffers)

    result = fabric.run(max_events=127, on_slice=check)
    assert result.unfinished == result.errors == []
    assert result.counters["drops"] == 0


@given(networks(), st.sampled_from(["ttpoe", "ttpoe-pfc", "roce-pfc", "irn"]))
@examples(40)
def test_all_is_well_again_over_ethernet(values: dict[str, Any], transport: str) -> None:
    """With link-level retry or without it: conserved at every step, lossless where it is promised, and finished."""
    result = checked(values, transport, every=127)
    assert result.unfinished == []
    assert result.errors == []


@given(networks())
@examples(8)
def test_slices_change_nothing(values: dict[str, Any]) -> None:
    assert make(values, "ib").run(max_events=7).digest == result_of(values, "ib").digest


# Credits


def star(events: list[dict[str, Any]], *, size_bytes: int = 400_000, **more: Any) -> dict[str, Any]:
    """One flow from h1 to h0 over buffers of 4 frames; a timeout is 33 us."""
    return flows((1, 0, size_bytes), events=events, switch={"credit_buffer_bytes": 4 * FRAME_BLOCKS * BLOCK_BYTES},
                 roce={"rto_exponent": 3}, **more)  # fmt: skip


def test_a_line_that_comes_up_knows_what_is_free() -> None:
    """s0's line to h0 is as slow as can be, so h1's frames fill the buffer at s0; then h1's line flaps.

    What s0 still holds is no credit of h1's; it becomes one as it leaves.
    """
    events = [{"at_ps": 0, "what": "degrade", "link": "s0.p0", "rate_bps": "1M"},
              {"at_ps": "20us", "what": "flap", "link": "h1", "down_ps": "5us"}]  # fmt: skip
    fabric = make(star(events, until_ps="30us"), "ib")
    fabric.run()
    w = fabric.world
    sender = fabric.topology.port_names.index("h1") * PRIORITIES + 3
    held = int(w.queues["bytes"].sum())
    assert held > 0
    buffer = int(w.credits["buffer_blocks"][sender ^ PRIORITIES])
    assert w.credits["granted_blocks"][sender ^ PRIORITIES] == w.credits["limit_blocks"][sender]
    used = int(w.credits["sent_blocks"][sender]) + buffer - int(w.credits["limit_blocks"][sender])
    assert used == -(-held // 4138) * FRAME_BLOCKS
    assert w.credits["sent_blocks"][sender] <= 4 * FRAME_BLOCKS  # counted from the flap


def test_credits_that_were_under_way_are_not_lost_for_good() -> None:
    """100 flaps each take some frames and updates; a leak of a block each would stop a buffer of four frames."""
    flap = {"at_ps": "5us", "what": "flap", "down_ps": "100ns", "up_ps": "43us", "count": 100}
    events = [{**flap, "link": "h1"}, {**flap, "link": "h0", "up_ps": "51us", "count": 80}]
    result = checked(star(events, size_bytes=2_000_000), "ib", every=53)
    assert result.unfinished == []
    assert result.counters["link_down"] > 100
    assert result.counters["lost"] == result.counters["link_down"]


def test_frames_towards_a_dead_port_give_their_credits_back() -> None:
    """Routes do not follow in time, so s0 drops what comes; h1's credits come back and other flows go on."""
    values = flows((1, 0, 300_000), (1, 2, 300_000), events=[{"at_ps": "10us", "what": "fail", "link": "s0.p0"}],
                   switch={"credit_buffer_bytes": 4 * FRAME_BLOCKS * BLOCK_BYTES}, until_ps="2ms",
                   roce={"rto_exponent": 3, "retry_limit": 2})  # fmt: skip
    result = checked(values, "ib", every=53)
    assert result.unfinished == ["h1>h0 (retry_limit)"]
    assert result.counters["link_down"] > 4


@COMPILED
@pytest.mark.parametrize("transport", ["ib", "roce-pfc"])
def test_a_host_that_fails_leaves_no_credits_behind(transport: str) -> None:
    events = [{"at_ps": "10us", "what": "fail", "host": 0}, {"at_ps": "50us", "what": "recover", "host": 0}]
    values = flows((1, 0, 300_000), (0, 2, 300_000), (1, 0, 300_000, 60 * US), (0, 2, 300_000, 60 * US), events=events)
    result = checked(values, transport, every=53)
    assert result.status is RunStatus.FINISHED
    assert result.unfinished == ["h1>h0 (host_failed)", "h0>h2 (host_failed)"]


# Link-level retry


def retrying(events: list[dict[str, Any]], **impairments: Any) -> dict[str, Any]:
    link = {"hosts": [1], "impairments": impairments, "impaired_ways": "from_host"}
    return flows((1, 0, 400_000), events=events, link={"retry_bytes": "100kB"}, topology={"links": [link]},
                 roce={"rto_exponent": 3, "ack_every_packets": 1_000_000})  # fmt: skip


def test_a_replay_buffer_is_emptied_and_not_replayed() -> None:
    """h1's line goes down with 12 frames sent and none arrived, and is up 3 us later: all 12 are lost, none twice.

    Frames of 4178 bytes from 0 on, 334.24 ns each, 4 us of cable: at 4 us 11 are out and one is being sent.
    """
    flap = {"at_ps": "4us", "what": "flap", "link": "h1", "down_ps": "3us"}
    values = retrying([flap])
    values["link"]["delay_ps"] = "4us"
    fabric, result, rows = traced(values, "roce", {"s0.p1"})
    assert result.unfinished == []
    by_name = {port["name"]: port for port in result.ports}
    assert by_name["h1"]["link_down"] == result.counters["link_down"] == 12
    assert result.counters["frames_replayed"] == 0
    came = rows[(rows["kind"] == DATA) & (rows["is_out"] == 0)]
    assert came["time_ps"].min() > 11 * US
    assert by_name["s0.p1"]["rx_frames"] == by_name["h1"]["tx_frames"] - 12 == len(came)
    assert fabric.world.retries["held_bytes"].max() <= 100_000


def test_a_line_that_waits_for_a_replay_loses_all_of_it() -> None:
    """The first frame is damaged: at 1.5 us the far port waits for it, and no frame will arrive before the replay."""
    values = retrying([{"at_ps": 1_500_000, "what": "flap", "link": "h1", "down_ps": "10us"}], lose_frames=[1])
    fabric = make(values, "roce")
    checks = []

    def check(_: Any) -> None:
        check_conservation(fabric.world)
        checks.append(int(fabric.world.retries["replay_at_ps"][fabric.topology.port_names.index("h1")]))

    result = fabric.run(max_events=1, on_slice=check)
    assert min(checks) < NEVER  # it did wait
    assert result.unfinished == []
    assert result.counters["link_replays"] == 1
    assert result.counters["frames_replayed"] == 0
    by_name = {port["name"]: port for port in result.ports}
    assert by_name["h1"]["link_down"] == 5  # sent by then
    flying = by_name["h1"]["tx_frames"] - 5 - by_name["s0.p1"]["rx_frames"]
    assert 0 <= flying <= 4  # when the last byte was acknowledged


def test_a_short_replay_buffer_is_free_again() -> None:
    """A buffer of one frame, full when the line fails: without the flush the line would wait for ever."""
    values = retrying([{"at_ps": "1us", "what": "flap", "link": "h1", "down_ps": "10ns", "up_ps": "7us", "count": 40}])
    values["link"]["retry_bytes"] = 4200
    result = checked(values, "roce", every=1)
    assert result.unfinished == []
    assert result.counters["link_down"] >= 4


# Impairments that come and go


def hurt(what: dict[str, Any] | None, at: str = "20us", well: str | None = "60us", **more: Any) -> list[dict[str, Any]]:
    """The way from h1 is hurt, and well again."""
    events = [{"at_ps": at, "what": "impair", "link": "h1", "impaired_ways": "from_port", "impairments": what, **more}]
    if well is not None:
        events.append({"at_ps": well, "what": "impair", "link": "h1"})
    return events


def lost_of(events: list[dict[str, Any]], size_bytes: int = 1_500_000, **more: Any) -> tuple[np.ndarray, np.ndarray]:
    """When each frame of h1 was sent that was due before the end, and which of them did not arrive."""
    values = flows((1, 0, size_bytes), events=events, roce={"rto_exponent": 3, "ack_every_packets": 1_000_000}, **more)
    fabric, result, rows = traced(values, "roce", {"h1", "s0.p1"})
    assert result.unfinished == []
    names = fabric.topology.port_names
    sent = rows[(rows["port"] == names.index("h1")) & (rows["is_out"] == 1)]
    came = rows[(rows["port"] == names.index("s0.p1")) & (rows["is_out"] == 0)]
    wire = sent["frame"]["payload_bytes"] + 82
    due_ps = sent["time_ps"] + 80 * wire + US
    has_come = np.isin(due_ps, came["time_ps"]) | np.isin(due_ps + 80 * 16, came["time_ps"])  # FIRST has a RETH
    is_due = due_ps < result.end_ps - US
    return sent["time_ps"][is_due], ~has_come[is_due]


@COMPILED
@pytest.mark.parametrize("what", [{"loss": 0.3}, {"bit_error_rate": 1e-5}, {"burst_loss": 0.3}, {"bad_fcs": 0.3}])
def test_a_line_is_bad_from_one_time_to_another(what: dict[str, Any]) -> None:
    sent, is_lost = lost_of(hurt(what))
    bad = (sent >= 20 * US) & (sent < 60 * US)
    assert is_lost[bad].sum() > 15
    assert is_lost[~bad].sum() == 0


def test_every_nth_and_named_frames_count_from_the_change() -> None:
    for what, expected in (({"lose_frames": [2, 5]}, [2, 5]), ({"loss_every": 7}, [7, 14, 21])):
        sent, is_lost = lost_of(hurt(what))
        after = np.flatnonzero(sent >= 20 * US)[0]
        assert (np.flatnonzero(is_lost)[: len(expected)] - after + 1).tolist() == expected


def test_a_flap_s_clock_begins_at_the_change() -> None:
    sent, is_lost = lost_of(hurt({"flap_up_ps": "3us", "flap_down_ps": "2us"}))
    first = sent[sent >= 20 * US][0]
    bad = (sent >= first) & (sent < 60 * US)
    assert (is_lost == (bad & ((sent - first) % (5 * US) >= 3 * US))).all()


def test_impairments_outlast_a_failure_and_are_not_those_of_the_way_back() -> None:
    events = [*hurt({"loss": 1.0}), {"at_ps": "30us", "what": "flap", "link": "h1", "down_ps": "5us"}]
    sent, is_lost = lost_of(events)
    assert is_lost[(sent >= 35 * US) & (sent < 60 * US)].all()
    back = [{"at_ps": 0, "what": "impair", "link": "h1", "impaired_ways": "to_port", "impairments": {"loss": 1.0}}]
    values = flows((1, 0, 100_000), events=back, roce={"retry_limit": 1, "rto_exponent": 1})
    by_name = {port["name"]: port for port in result_of(values, "roce").ports}
    assert by_name["h1"]["lost"] == by_name["s0.p0"]["lost"] == 0 < by_name["s0.p1"]["lost"]


def test_a_longer_and_a_shorter_way_keep_the_order() -> None:
    """3 us more from 20 us on: frames come as much later; 1 us at 60 us: none overtakes those that are under way."""
    events = hurt({"delay_ps": "3us"})
    values = flows((1, 0, 1_500_000), events=events, roce={"ack_every_packets": 1_000_000})
    fabric, result, rows = traced(values, "roce", {"h1", "s0.p1"})
    assert result.counters["resent_packets"] == result.counters["lost"] == 0
    names = fabric.topology.port_names
    sent = rows[(rows["port"] == names.index("h1")) & (rows["is_out"] == 1)]
    came = rows[(rows["port"] == names.index("s0.p1")) & (rows["is_out"] == 0)]["time_ps"]
    late = came - sent["time_ps"] - 80 * (sent["frame"]["payload_bytes"] + 82) - US
    late[0] -= 80 * 16  # FIRST has a RETH
    at = sent["time_ps"]
    assert set(late[at < 20 * US]) == {0}
    assert set(late[(at >= 20 * US) & (at < 60 * US)]) == {3 * US}
    after = late[at >= 60 * US]
    assert (np.diff(after) <= 0).all()
    assert after[0] > 2 * US
    assert after[-1] == 0


def test_events_that_come_after_the_end_change_nothing() -> None:
    values = flows((1, 0, 300_000), (2, 0, 300_000))
    """Buffers are made for the longest delay that is to come, so delays do change a run before."""
    late = hurt({"loss": 0.5, "reorder": 0.5, "bit_error_rate": 1e-3}, "1s", None)
    for transport in ("ttpoe", "roce", "ib"):
        plain = result_of(values, transport)
        result = result_of({**values, "events": late}, transport)
        assert result.digest == plain.digest
        assert result.changes == []


def test_headroom_is_for_the_worst_that_comes() -> None:
    """A way that gets longer must not overflow what was made for the short one."""
    rows = [(k, 0, 400_000) for k in range(1, 5)]
    longer = {"delay_ps": "9us", "jitter_ps": "4us"}
    events = [{"at_ps": "10us", "what": "impair", "link": f"h{k}", "impairments": longer} for k in range(1, 5)]
    values = flows(*rows, switch={"buffer_bytes": "4MB", "alpha": 0.01})
    fabric = make({**values, "events": events}, "roce-pfc")
    result = fabric.run()
    assert result.counters["pauses"] > 0
    assert result.errors == []
    plain = make(values, "roce-pfc").world.switches["headroom_limit_bytes"][0]
    more_ps = 2 * 9 * US + 2 * 4 * US
    assert fabric.world.switches["headroom_limit_bytes"][0] == plain + 4 * more_ps // 80


def test_changes_are_told() -> None:
    events = [*hurt({"bit_error_rate": 1e-6}, "5us", "15us"), {"at_ps": "8us", "what": "fail", "host": 2},
              {"at_ps": "9us", "what": "degrade", "link": "s0.p3", "rate_bps": "10G"},
              {"at_ps": "1s", "what": "recover", "host": 2}]  # fmt: skip
    result = result_of(flows((1, 0, 300_000), (2, 3, 100), events=events), "ttpoe")
    assert result.changes == [
        {"time_us": 5.0, "what": "impair", "ports": ["h1"], "impairments": {"bit_error_rate": 1e-6}},
        {"time_us": 8.0, "what": "fail", "ports": ["h2"], "host": "h2"},
        {"time_us": 9.0, "what": "degrade", "ports": ["h3"], "rate_bps": 10_000_000_000},
        {"time_us": 15.0, "what": "impair", "ports": ["h1", "s0.p1"], "impairments": {}},
    ]


@pytest.mark.parametrize(
    ("event", "transport", "message"),
    [
        ({"impairments": {"duplicate": 0.1}}, "ib", r"events\.0\.impairments\.duplicate: ib accounts for each frame"),
        ({"impairments": {"jitter_ps": 1}}, "roce", r"events\.0\.impairments\.jitter_ps: a link that retries keeps"),
        ({"impairments": {"rate_bps": "1G"}}, "roce", r"events\.0\.impairments\.rate_bps: an emulated link has a rate"),
        ({"impairments": {"los": 1}}, "roce", r"events\.0\.impairments\.los: .* did you mean loss"),
        ({"impairments": {"loss": 2}}, "roce", r"events\.0\.impairments\.loss: "),
        ({"impaired_ways": "up"}, "roce", r"events\.0\.impaired_ways: must be 'both'"),
        ({"what": "fail", "impairments": {}}, "roce", r"events\.0: impairments and impaired_ways need what"),
        ({"what": "fail", "impaired_ways": "to_port"}, "roce", r"events\.0: impairments and impaired_ways need what"),
    ],
)
def test_what_cannot_be_is_refused(event: dict[str, Any], transport: str, message: str) -> None:
    values = flows((1, 0, 1000), link={"retry_bytes": 10_000}, events=[{"at_ps": 0, "what": "impair", "link": "h1",
                   **event}])  # fmt: skip
    with pytest.raises(ConfigError, match=message):
        make(values, transport)


# The same in every mode

MIXED = flows(
    (1, 0, 60_000), (2, 0, 40_000), (0, 1, 20_000), roce={"rto_exponent": 3},
    link={"retry_bytes": 9_000, "impairments": {"bit_error_rate": 1e-6}},
    events=[{"at_ps": "3us", "what": "flap", "link": "h1", "down_ps": "700ns", "up_ps": "40us", "count": 2},
            {"at_ps": "5us", "what": "impair", "link": "s0.p0", "impairments": {"bit_error_rate": 2e-5}},
            {"at_ps": "50us", "what": "impair", "link": "s0.p0"},
            {"at_ps": "4us", "what": "degrade", "link": "h2", "rate_bps": "33G"}],
)  # fmt: skip


@COMPILED
@OTHER_MODES
def test_interpreted_and_bounds_checked(variable: str) -> None:
    transports = ("ib", "roce-pfc")
    ours = [result_of(MIXED, transport) for transport in transports]
    for result in ours:
        assert result.unfinished == []
        assert min(result.counters[name] for name in ("link_down", "link_replays", "frames_replayed")) > 0
    assert digests_under(variable, MIXED, *transports) == [result.digest for result in ours]
