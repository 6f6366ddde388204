"""Credits: nothing is ever dropped, a line runs as fast as its credits come back, and lost updates are repaired."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from emulated import COMPILED, checked, examples, flows, incast, make, result_of
from hypothesis import given
from hypothesis import strategies as st

from emulator.config import ConfigError, make_scenario
from emulator.credits import BLOCK_BYTES, CREDIT_WIRE_BYTES
from emulator.framing import data_wire_bytes
from emulator.provision import credit_bound_bytes

US = 10**6
FRAME = 8 + 12 + 4096 + 4 + 2
"""LRH, BTH, payload, ICRC, VCRC."""
BLOCKS = -(-FRAME // BLOCK_BYTES)


def scenario(frames: int, delay_ps: int = US, size_bytes: int = 4_000_000, **more: Any) -> dict[str, Any]:
    """One flow over two links whose buffers hold ``frames`` frames."""
    return flows((1, 0, size_bytes), link={"delay_ps": delay_ps}, roce={"ack_every_packets": 1_000_000},
                 switch={"credit_buffer_bytes": frames * BLOCKS * BLOCK_BYTES + 64}, **more)  # fmt: skip


def test_frames_are_infinibands() -> None:
    values = make_scenario(incast(1, 10_000))
    assert data_wire_bytes("ib", values) == FRAME + 16  # with a RETH
    result = result_of(flows((1, 0, 4096 * 3)), "ib")
    port = next(port for port in result.ports if port["name"] == "h1")
    assert port["tx_bytes"] == 3 * FRAME + 16 + 3 * CREDIT_WIRE_BYTES  # and an update for each acknowledgement


@COMPILED
@pytest.mark.parametrize("delay_ps", [0, US, 5 * US])
@pytest.mark.parametrize("frames", [1, 2, 4, 16, 64])
def test_a_line_runs_at_the_pace_of_its_credits(frames: int, delay_ps: int) -> None:
    """min(line, credits / round trip): a credit is back when the frame is through, and the update has flown back.

    The host h0 takes a frame at once, so its link needs 2 x delay, the frame and the update. On the switch's
    side a frame also waits for the one ahead of it, whose line is as slow; the slower of both decides.
    """
    result = checked(scenario(frames, delay_ps), "ib", every=4001)
    assert result.unfinished == []
    round_trip_ps = 2 * delay_ps + 80 * (FRAME + CREDIT_WIRE_BYTES)
    expected_gbps = min(100.0 * 4096 / FRAME, frames * 4096 * 8000 / round_trip_ps)
    first_ps = 2 * (delay_ps + 80 * FRAME)  # the way of the first frame, whatever the pace
    goodput_gbps = 4_000_000 * 8000 / (int(result.flows["fct_rx_ps"][0]) - first_ps)
    assert goodput_gbps == pytest.approx(expected_gbps, rel=0.02)


@COMPILED
@pytest.mark.parametrize("delay_us", [0, 1, 10])
def test_the_default_buffer_lets_a_line_run_full(delay_us: int) -> None:
    result = checked(incast(1, 4_000_000, link={"delay_ps": delay_us * US}), "ib", every=4001)
    assert result.counters["paused_ps"] == 0
    # An update of 8 bytes for each acknowledgement goes the way of the data.
    assert result.flows["fct_rx_ps"][0] <= (1 + 1.01 * CREDIT_WIRE_BYTES / FRAME) * result.flows["ideal_ps"][0]
    assert credit_bound_bytes(FRAME, 10**11, US) == pytest.approx(4 * FRAME + 8 + 25_000, rel=0.03)


@st.composite
def networks(draw: st.DrawFn) -> dict[str, Any]:
    rate = st.sampled_from([10**10, 3_700_000_000, 25 * 10**9, 10**11])
    shape = draw(st.sampled_from([
        {}, {"kind": "leaf-spine", "leaves": 2, "hosts_per_leaf": 3, "spines": 1},
        {"kind": "leaf-spine", "leaves": 3, "hosts_per_leaf": 2, "spines": 2},
    ]))  # fmt: skip
    rows = [(src, dst, draw(st.integers(1, 300_000)), draw(st.integers(0, 3 * US)))
            for src in range(6) for dst in (0, 5) if src != dst and draw(st.booleans())]  # fmt: skip
    return flows(
        *rows, (1, 0, 100_000), topology=shape, link={"rate_bps": draw(rate), "delay_ps": draw(st.integers(0, 3 * US))},
        ack_priority=draw(st.sampled_from([None, 5])), roce={"mtu_bytes": draw(st.sampled_from([256, 4096]))},
        switch={"credit_buffer_bytes": draw(st.integers(4200, 40_000))},
    )  # fmt: skip


@given(networks())
@examples(80)
def test_nothing_is_ever_dropped(values: dict[str, Any]) -> None:
    """However small buffers are, and in any tree; all that was sent is accounted for at each step."""
    result = checked(values, "ib", every=97)
    assert result.counters["drops"] == result.counters["lost"] == result.counters["resent_packets"] == 0
    assert result.unfinished == []
    assert result.errors == []


@COMPILED
def test_an_incast_is_lossless_and_takes_the_time_of_the_line() -> None:
    result = checked(incast(32, 200_000), "ib", every=9973)
    assert result.counters["drops"] == 0
    assert result.counters["paused_ps"] > 0
    assert result.wire_bound_ps is not None
    # Updates for acknowledgements share h0's line, 8 bytes a frame at most.
    assert result.flows["fct_rx_ps"].max() <= 1.003 * result.wire_bound_ps


@COMPILED
@pytest.mark.parametrize("fates", [{"bad_fcs": 0.05}, {"loss": 0.02}])
def test_lost_frames_and_lost_updates_leak_no_credits(fates: dict[str, float]) -> None:
    """A leak would stop the line for good once the buffer of four frames has leaked away."""
    values = scenario(4, size_bytes=2_000_000, until_ps="10s")
    values["link"]["impairments"] = fates
    values["roce"] = {"rto_exponent": 6}
    result = checked(values, "ib", every=997)
    assert result.unfinished == []
    assert result.counters["resent_packets"] > 100
    assert result.counters["lost"] > 100


@COMPILED
def test_slices_change_nothing() -> None:
    values = incast(8, 100_000, switch={"credit_buffer_bytes": 10_000})
    digests = {make(values, "ib").run(max_events=n).digest for n in (1, 7, 1000, 10**9)}
    assert len(digests) == 1


@COMPILED
def test_weights_hold_under_credits() -> None:
    """Two priorities towards h0, of unlike weight, each with credits of its own."""
    rows = [{"src": k + 1, "dst": 0, "size_bytes": 1_000_000, "priority": 1 + k % 2} for k in range(4)]
    rules = {1: {"weight": 1}, 2: {"weight": 3}}
    fabric = make({"workload": {"kind": "flows", "flows": rows}, "ack_priority": 7, "until_ps": "150us",
                   "switch": {"priorities": rules}}, "ib")  # fmt: skip
    fabric.run()
    received = fabric.world.qps["rx_bytes"][1::2]
    assert (received[1] + received[3]) / (received[0] + received[2]) == pytest.approx(3, rel=0.1)
    assert np.count_nonzero(fabric.world.switches["drops"]) == 0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"switch": {"credit_buffer_bytes": 2048}}, r"switch.credit_buffer_bytes: 2048 is less than a frame of 4138"),
        ({"link": {"impairments": {"duplicate": 0.1}}}, r"link.impairments.duplicate: ib accounts for each frame once"),
        ({"topology": {"links": [{"hosts": [1], "impairments": {"duplicate": 0.1}, "impaired_ways": "to_host"}]}},
         r"topology: impairments of the line from s0.p1, duplicate: ib accounts for each frame once"),
        ({"events": [{"at_ps": 0, "what": "impair", "link": "h0"},
                     {"at_ps": 0, "what": "impair", "link": "h1", "impairments": {"duplicate": 0.1}}]},
         r"events.1.impairments.duplicate: ib accounts for each frame once"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(incast(2, 1000, **values), "ib")
