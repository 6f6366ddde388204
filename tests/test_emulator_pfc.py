"""Priority flow control: no loss with our headroom, and every pause accounted for by the frames on the wire."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from emulated import COMPILED, checked, examples, flows, incast, make, result_of, step, traced
from hypothesis import assume, given
from hypothesis import strategies as st

from emulator import pfc
from emulator.config import ConfigError, make_scenario
from emulator.conservation import check_conservation
from emulator.engine import RunStatus
from emulator.framing import data_wire_bytes
from emulator.packet import ANSWER, DATA, PFC, take_packet
from emulator.pfc import PFC_WIRE_BYTES
from emulator.port import start_if_idle
from emulator.topology import headroom_bound_bytes
from ttpoe._jit import kernel

US, S = 10**6, 10**12
LINE_ONLY = 20


@kernel(export=True)
def inject(world, i, priority, quanta, now_ps):
    """A PFC frame out of nowhere is received by port ``i``."""
    p = take_packet(world.engine[0], world.packets)
    world.packets[p]["kind"] = PFC
    world.packets[p]["priority"] = priority
    world.packets[p]["cookie"] = quanta
    pfc.on_pfc_frame(world, i, p, now_ps)
    start_if_idle(world, i, now_ps)


@kernel(export=True)
def pause_ps(ports, i, quanta):
    return pfc.pause_ps(ports[i], quanta)


@kernel(export=True)
def ask(world, i, priority, is_pause):
    if is_pause != 0:
        pfc.ask_pause(world, i, priority)
    else:
        pfc.ask_resume(world, i, priority)


@kernel(export=True)
def take(world, i, now_ps):
    return pfc.take_pfc(world, i, now_ps)


# --- the promise -----------------------------------------------------------------------------------------------------


def headroom_of(values: dict[str, Any], transport: str) -> int:
    """All headroom of a scenario: what a buffer of 2**40 has beyond its shared pool."""
    wide = {**values, "switch": {**values["switch"], "buffer_bytes": 2**40}}
    return 2**40 - int(make(wide, transport).world.shared["limit_bytes"][0])


@st.composite
def lossless_scenarios(draw: st.DrawFn) -> dict[str, Any]:
    """Senders towards host 0 and back, on cables of any speed and length, with little shared buffer."""
    hosts = draw(st.integers(2, 6))
    mtu = draw(st.sampled_from([64, 256, 1000, 1024, 4096, 9000]))
    rate = st.sampled_from([10**9, 3_700_000_000, 10**10, 25 * 10**9, 10**11, 4 * 10**11])
    delay = st.sampled_from([0, 1, 300_000, US, 5 * US]) | st.integers(0, 20 * US)
    links = [{"hosts": [h], "rate_bps": draw(rate), "delay_ps": draw(delay)} for h in range(hosts)]
    size = st.integers(1, 150 * mtu)
    start = st.integers(0, 3 * US)
    rows = [(h, 0, draw(size), draw(start)) for h in range(1, hosts) for _ in range(draw(st.integers(1, 2)))]
    rows += [(0, h, draw(size), draw(start)) for h in range(1, hosts) if draw(st.booleans())]
    rows += [(1, hosts - 1, draw(size), 0)] if hosts > 2 else []
    ack = draw(st.sampled_from([None, 5, 1]))
    least = (mtu + 98 + PFC_WIRE_BYTES) // 32 + 1
    return flows(
        *rows, ack_priority=ack, topology={"links": links},
        switch={
            "alpha": draw(st.sampled_from([1 / 1024, 1 / 64, 0.25, 1.0, 8.0])),
            "pause_quanta": draw(st.integers(least, 4 * least) | st.just(65_535)),
            "pause_reaction_ps": draw(st.sampled_from([0, 1, US]) | st.integers(0, 3 * US)),
            "pipeline_latency_ps": draw(st.sampled_from([0, 400_000]) | st.integers(0, 2 * US)),
            "resume_offset_bytes": draw(st.sampled_from([0, 3000, 30_000])),
        },
        ttpoe={"mtu_bytes": mtu, "window_bytes": draw(st.sampled_from([9000, 100_000, 1_000_000]))},
        roce={"mtu_bytes": mtu, "ack_every_packets": draw(st.integers(1, 4))},
    )  # fmt: skip


@pytest.mark.parametrize("transport", ["roce-pfc", "ttpoe-pfc"])
@given(values=lossless_scenarios(), frames=st.integers(2, 60))
@examples(150)
def test_no_loss_with_headroom_at_our_bound(transport: str, values: dict[str, Any], frames: int) -> None:
    largest = data_wire_bytes(transport, make_scenario(values))
    buffer_bytes = headroom_of(values, transport) + frames * largest
    values = {**values, "switch": {**values["switch"], "buffer_bytes": buffer_bytes}}
    result = checked(values, transport, every=401)
    assert result.counters["drops"] == 0
    assert result.errors == []
    assert result.unfinished == []


@COMPILED
def test_the_promise_is_tested_where_it_is_hard() -> None:
    """The drawn scenarios do pause, renew and fill headroom: one of their kind."""
    links = [{"hosts": [0], "rate_bps": 10**10}]
    values = incast(5, 400_000, topology={"links": links},
                    switch={"buffer_bytes": 400_000, "pause_quanta": 140, "alpha": 1 / 64})  # fmt: skip
    result = checked(values, "roce-pfc")
    assert result.counters["pauses"] > 50
    assert result.counters["pfc_frames"] > 3 * result.counters["pauses"]  # renewals
    assert max(port["max_headroom_bytes"] for port in result.ports) > 2 * 4178


# --- how tight the bound is ------------------------------------------------------------------------------------------

FRAME = 4178  # a middle RoCE frame of 4096 on the line
FIRST = 4194


def worst_use(more: int, phase_ps: int, headroom_bytes: int) -> tuple[int, int]:
    """Largest headroom use of port s0.p1, and drops, when a frame towards h1 has just begun as h1 is paused.

    h1 sends at line rate to h0, whose own line is too slow to drain; h2 fills the line towards h1. The cable's content
    both ways is ``more`` frames less the PFC frame, and the reverse traffic starts at ``phase_ps``.
    """
    delay_ps = max(more * FRAME - PFC_WIRE_BYTES + 200, 0) * 80 // 2 if more else 0
    links = [{"hosts": [0], "rate_bps": 10**7}, {"hosts": [1], "delay_ps": delay_ps},
             {"hosts": [2], "delay_ps": 0}]  # fmt: skip
    values = flows(
        (1, 0, 400_000, 0), (2, 1, 400_000, phase_ps), topology={"links": links}, until_ps="10us",
        roce={"ack_every_packets": 1000},
        switch={"headroom_bytes": headroom_bytes, "buffer_bytes": 6 * headroom_bytes + 60_000, "alpha": 0.25},
    )  # fmt: skip
    result = result_of(values, "roce-pfc")
    port = next(port for port in result.ports if port["name"] == "s0.p1")
    drops = result.drop_causes["headroom_full"]
    assert bool(drops) == bool(result.errors)
    return port["max_headroom_bytes"], drops


@COMPILED
@pytest.mark.parametrize("more", [0, 1, 3])
def test_a_constructed_worst_case_needs_the_bound(more: int) -> None:
    """It loses at our bound less two MTUs, and at one byte less than it uses.

    The bound counts bytes on the line; a buffer holds frames without preamble and gap, 20 bytes less each. That is
    all that the bound is too large by, but for the RETH of the largest frame and a cable that does not hold whole
    frames (200 bytes here).
    """
    delay_ps = max(more * FRAME - PFC_WIRE_BYTES + 200, 0) * 80 // 2 if more else 0
    bound = headroom_bound_bytes(FIRST, 10**11, delay_ps)
    step_ps = 40 * 80
    used = {phase: worst_use(more, phase, bound) for phase in range(0, FRAME * 80 + step_ps, step_ps)}
    assert not any(drops for _, drops in used.values())
    phase = max(used, key=lambda key: used[key])
    most = used[phase][0]
    assert most == (3 + more) * (FRAME - LINE_ONLY)
    assert bound - most <= (3 + more) * LINE_ONLY + 3 * (FIRST - FRAME) + PFC_WIRE_BYTES + 200
    assert worst_use(more, phase, most) == (most, 0)
    assert worst_use(more, phase, most - 1)[1] > 0
    assert worst_use(more, phase, bound - 2 * 4096)[1] > 0


@pytest.mark.parametrize(
    ("terms", "expected"),
    [
        ({}, 3 * FIRST + 84),
        ({"delay_ps": US}, 3 * FIRST + 84 + 25_000),  # 2 us of 100 Gb/s
        ({"reaction_ps": US}, 3 * FIRST + 84 + 12_500),
        ({"pipeline_ps": US}, 3 * FIRST + 84 + 12_500),
        ({"lossless_priorities": 2}, 3 * FIRST + 2 * 84),
    ],
)
def test_the_terms_of_the_bound(terms: dict[str, int], expected: int) -> None:
    assert headroom_bound_bytes(FIRST, 10**11, **{"delay_ps": 0, **terms}) == expected


@COMPILED
def test_a_reaction_too_long_for_the_headroom_loses() -> None:
    """The reaction delay swept until headroom overflows: at the headroom of none there is no loss with none, then some.

    The flows still finish, since RoCE resends.
    """
    bound = headroom_bound_bytes(FIRST, 10**11, US)
    lost = []
    for reaction_us in (0, 1, 2, 4, 8):
        switch = {"headroom_bytes": bound, "pause_reaction_ps": reaction_us * US, "buffer_bytes": 1_200_000}
        result = result_of(incast(8, 400_000, switch=switch), "roce-pfc")
        assert result.unfinished == []
        assert result.drop_causes["headroom_full"] == result.counters["drops"]
        lost.append(result.counters["drops"])
        if lost[-1]:
            assert "headroom was full" in result.errors[0]
            assert result.errors[0].endswith("leave out switch.headroom_bytes for the bound")
            assert "switch.headroom_bytes" in result.errors[0]
    assert lost[0] == 0
    assert lost[-1] > 0
    assert lost == sorted(lost)


def test_quanta_too_short_to_renew_are_refused_unless_headroom_is_yours() -> None:
    """A renewal waits behind a frame for up to 4194 bytes; half of the quanta must outlast that."""
    least = 4194 * 8 * 2 // 512 + 1
    for quanta in (1, least - 1):
        with pytest.raises(ConfigError, match=rf"^switch.pause_quanta: .* raise it to {least} at least"):
            make(incast(2, 10_000, switch={"pause_quanta": quanta}), "roce-pfc")
    make(incast(2, 10_000, switch={"pause_quanta": least}), "roce-pfc")
    make(incast(2, 10_000, switch={"pause_quanta": 1}), "roce")


@COMPILED
def test_the_shortest_quanta_do_not_flood_the_fabric() -> None:
    """One PFC frame a port and priority waits at most, however fast pauses end: rows do not grow, the run ends."""
    switch = {"pause_quanta": 1, "headroom_bytes": 50_000, "alpha": 1 / 1024, "buffer_bytes": 700_000}
    fabric = make(incast(4, 100_000, switch=switch, until_ps="1ms"), "roce-pfc")
    result = fabric.run()
    assert len(fabric.world.packets) == 4096
    assert result.counters["pfc_frames"] > 1000


# --- frames on the wire ----------------------------------------------------------------------------------------------


def pauses_of(rows: np.ndarray, port: int, priority: int, rate_bps: int, reaction_ps: int,
              end_ps: int) -> list[tuple[int, int]]:  # fmt: skip
    """Intervals in which a port may not start frames, from the PFC frames that it received alone."""
    mine = rows[(rows["port"] == port) & (rows["kind"] == PFC) & (rows["is_out"] == 0) & (rows["priority"] == priority)]
    intervals: list[tuple[int, int]] = []
    since: int | None = None
    until = 0
    for arrived_ps, quanta in mine[["time_ps", "cookie"]].tolist():
        at = arrived_ps + reaction_ps
        if at > end_ps:
            break
        if since is not None and until <= at:
            intervals.append((since, until))
            since = None
        if quanta:
            since = at if since is None else since
            until = at - (-quanta * 512 * S // rate_bps)
        elif since is not None:
            intervals.append((since, at))
            since = None
    if since is not None:
        intervals.append((since, min(until, end_ps)))
    return intervals


@st.composite
def paused_runs(draw: st.DrawFn) -> dict[str, Any]:
    least = (4194 + PFC_WIRE_BYTES) // 32 + 1
    links = [{"hosts": [0], "rate_bps": draw(st.sampled_from([10**9, 3_700_000_000, 4 * 10**10]))},
             {"hosts": [1, 2], "rate_bps": draw(st.sampled_from([10**10, 3_700_000_000, 10**11]))}]  # fmt: skip
    return incast(
        draw(st.integers(2, 5)), draw(st.integers(50_000, 200_000)), topology={"links": links},
        ack_priority=draw(st.sampled_from([None, 6])),
        switch={"pause_quanta": draw(st.integers(least, 3 * least) | st.just(65_535)), "alpha": 1 / 16,
                "buffer_bytes": 900_000, "pause_reaction_ps": draw(st.sampled_from([0, 250_000, 1_000_000]))},
    )  # fmt: skip


@given(paused_runs())
@examples(40)
def test_every_pause_is_explained_by_frames_on_the_wire(values: dict[str, Any]) -> None:
    """Counts, durations and silence, replayed from the frames captured at the hosts."""
    hosts = values["workload"]["senders"] + 1
    fabric, result, rows = traced(values, "roce-pfc", {f"h{h}" for h in range(hosts)})
    reaction_ps = values["switch"]["pause_reaction_ps"]
    xoffs = renewals = total_ps = 0
    for h in range(hosts):
        port = int(fabric.topology.host_port[h])
        rate_bps = int(fabric.topology.rate_bps[port])
        paused_ps = 0
        for priority in range(8):
            frames = rows[(rows["port"] == port) & (rows["kind"] == PFC) & (rows["priority"] == priority)]
            told = 0
            told_at_ps = 0
            for time_ps, quanta in frames[["time_ps", "cookie"]].tolist():
                assert quanta in (0, values["switch"]["pause_quanta"])
                assert quanta or told  # XON only after XOFF
                if quanta:
                    xoffs += not told
                    renewals += told
                    if told:  # never too late
                        assert time_ps - told_at_ps < quanta * 512 * S / rate_bps
                    told_at_ps = time_ps
                told = bool(quanta)
            intervals = pauses_of(rows, port, priority, rate_bps, reaction_ps, result.end_ps)
            paused_ps += sum(end - since for since, end in intervals)
            starts = rows[(rows["port"] == port) & (rows["is_out"] == 1) & (rows["priority"] == priority)
                          & (rows["kind"] != PFC)]["time_ps"]  # fmt: skip
            for since, end in intervals:
                assert not ((starts > since) & (starts < end)).any()
        told_us = next(p["paused_us"] for p in result.ports if p["name"] == f"h{h}")
        assert told_us == pytest.approx(paused_ps / US)
        total_ps += paused_ps
    assert result.counters["paused_ps"] == total_ps
    in_flight = result.counters["pauses"] - xoffs  # told by the switch, not yet at the host
    assert 0 <= in_flight <= 2
    assert 0 <= result.counters["pfc_frames"] - len(rows[rows["kind"] == PFC]) <= 2 * hosts
    assert result.counters["drops"] == 0
    assume(xoffs > 0)


def told_by(fabric: Any, port: int, wishes: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """(priority, quanta) of the frames that a port sends after these wishes of (priority, pause or resume)."""
    for priority, is_pause in wishes:
        ask(fabric.world, port, priority, is_pause)
    told = []
    while (p := take(fabric.world, port, 0)) >= 0:
        told.append((int(fabric.world.packets["priority"][p]), int(fabric.world.packets["cookie"][p])))
    return told


def test_a_port_tells_what_holds_when_its_line_is_free() -> None:
    """Nothing about what changed and changed back; one frame a priority; each in turn, none twice before another."""
    fabric = make(incast(2, 1000), "roce-pfc")
    port = int(fabric.topology.host_port[1]) ^ 1
    ingress = fabric.world.ingress[:, port]
    full = 65_535
    assert told_by(fabric, port, [(3, 1), (3, 0)]) == []
    assert told_by(fabric, port, [(3, 1), (3, 0), (3, 1)]) == [(3, full)]
    assert told_by(fabric, port, [(3, 0), (3, 1)]) == [(3, full)]  # still paused: told again, as a renewal is
    assert ingress["xoff_count"][3] == 1
    assert told_by(fabric, port, [(3, 0)]) == [(3, 0)]
    assert told_by(fabric, port, [(1, 1), (3, 1), (6, 1)]) == [(6, full), (1, full), (3, full)]
    ask(fabric.world, port, 1, 0)
    ask(fabric.world, port, 6, 0)
    first = take(fabric.world, port, 0)
    assert fabric.world.packets["priority"][first] == 6
    assert told_by(fabric, port, [(6, 1)]) == [(1, 0), (6, full)]  # 6 has just had its turn
    assert ingress["xoff_count"].tolist() == [0, 1, 0, 2, 0, 0, 2, 0]


def starts_at(fabric: Any, port: str) -> Any:
    kept: list[np.ndarray] = []
    fabric.run(sink=lambda rows: kept.append(rows.copy()))
    rows = np.concatenate(kept)
    index = fabric.topology.port_names.index(port)
    return rows[(rows["port"] == index) & (rows["is_out"] == 1)]


@pytest.mark.parametrize("reaction_ps", [0, 700_000])
@pytest.mark.parametrize("rate_bps", [10**11, 3_700_000_000])
@pytest.mark.parametrize("quanta", [1, 1000])
def test_a_pause_lets_the_frame_being_sent_finish_and_lasts_its_quanta(
    reaction_ps: int, rate_bps: int, quanta: int
) -> None:
    """One pause, no resume: silence from the end of the frame on the line to the last quantum, exactly."""
    values = incast(1, 60 * 4096, link={"rate_bps": rate_bps, "delay_ps": 0},
                    switch={"pause_reaction_ps": reaction_ps})  # fmt: skip
    fabric = make(values, "roce-pfc", capture=frozenset({"h1"}))
    port = int(fabric.topology.host_port[1])
    step(fabric, 30)
    now_ps = int(fabric.world.engine["now_ps"][0])
    inject(fabric.world, port, 3, quanta, now_ps)
    rows = starts_at(fabric, "h1")
    times = rows["time_ps"].tolist()
    begins_ps = now_ps + reaction_ps
    ends_ps = begins_ps - (-quanta * 512 * S // rate_bps)
    line_ps = -(-FRAME * 8 * S // rate_bps)
    assert not any(begins_ps < t < ends_ps for t in times)
    assert any(t > ends_ps for t in times)
    last = max(t for t in times if t <= begins_ps)
    assert begins_ps - last <= line_ps  # sent up to the pause
    after = min(t for t in times if t >= ends_ps)
    assert after == max(ends_ps, last + line_ps)


@pytest.mark.parametrize("second", [0, 100])
def test_a_resume_ends_a_pause_at_once_and_a_second_pause_replaces_its_time(second: int) -> None:
    values = flows((1, 0, 60 * 4096), (2, 3, 60 * 4096))
    fabric = make(values, "roce-pfc", capture=frozenset({"h1"}))
    port = int(fabric.topology.host_port[1])

    def event_after(time_ps: int) -> int:
        while (now_ps := int(fabric.world.engine["now_ps"][0])) < time_ps:
            assert step(fabric) is RunStatus.SLICE
        return now_ps

    paused_ps = event_after(5 * US)
    inject(fabric.world, port, 3, 65_535, paused_ps)
    later_ps = event_after(8 * US)  # an event of the other flow
    inject(fabric.world, port, 3, second, later_ps)
    times = starts_at(fabric, "h1")["time_ps"].tolist()
    assert min(t for t in times if t > paused_ps) == later_ps + second * 5_120


@given(st.integers(1, 65_535), st.sampled_from([10**6, 3_700_000_000, 99_999_999_999, 10**11, 10**13]))
def test_quanta_are_512_bit_times(quanta: int, rate_bps: int) -> None:
    ports = make(incast(1, 1, link={"rate_bps": rate_bps}), "roce").world.ports
    assert pause_ps(ports, 0, quanta) == -(-quanta * 512 * S // rate_bps)


@COMPILED
def test_only_the_priority_of_the_data_is_paused() -> None:
    """Host 1 sends and is paused, and receives: its acknowledgements wait only if they share the priority."""
    waited = {}
    for ack_priority in (3, 5):
        values = flows((1, 0, 400_000), (2, 1, 400_000), ack_priority=ack_priority,
                       topology={"links": [{"hosts": [0], "rate_bps": 10**9}]},
                       switch={"buffer_bytes": 500_000, "alpha": 1 / 16}, until_ps="400us")  # fmt: skip
        fabric, result, rows = traced(values, "roce-pfc", {"h1"})
        port = int(fabric.topology.host_port[1])
        intervals = pauses_of(rows, port, 3, 10**11, 0, result.end_ps)
        paused_ps = sum(end - since for since, end in intervals)
        assert paused_ps > 100 * US
        assert intervals[-1][1] == result.end_ps  # and paused still
        assert result.ports[port]["paused_us"] == pytest.approx(paused_ps / US)
        out = rows[(rows["port"] == port) & (rows["is_out"] == 1)]
        assert (out[out["kind"] == DATA]["priority"] == 3).all()
        answers = out[out["kind"] == ANSWER]
        assert (answers["priority"] == ack_priority).all()
        in_pause = sum(int(((answers["time_ps"] > a) & (answers["time_ps"] < b)).sum()) for a, b in intervals)
        waited[ack_priority] = in_pause
    assert waited[3] == 0
    assert waited[5] > 20


@COMPILED
def test_a_neighbour_that_sends_elsewhere_is_not_paused() -> None:
    """Accounting is per ingress: h5 sends to h6 while four others overload h0."""
    rows = [(h, 0, 1_000_000) for h in (1, 2, 3, 4)] + [(5, 6, 1_000_000)]
    result = result_of(flows(*rows, switch={"buffer_bytes": 2_000_000}), "roce-pfc")
    paused = {port["name"]: port["paused_us"] for port in result.ports}
    assert min(paused[f"h{h}"] for h in (1, 2, 3, 4)) > 50
    assert paused["h5"] == 0
    assert result.flows["fct_rx_ps"][4] == result.flows["ideal_ps"][4]


def test_conservation_holds_between_any_two_events() -> None:
    """Pauses in reaction, PFC frames on lines and in ports, headroom in use: all of it at every event."""
    switch = {"buffer_bytes": 500_000, "alpha": 1 / 16, "pause_reaction_ps": 300_000, "pause_quanta": 140}
    fabric = make(incast(4, 60_000, switch=switch, ack_priority=1), "roce-pfc")
    seen = 0
    while step(fabric) is RunStatus.SLICE:
        seen = max(seen, check_conservation(fabric.world))
    assert seen > 20
    assert fabric.world.engine["unfinished"][0] == 0
