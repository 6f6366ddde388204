"""What a run says of flows that did not finish."""

from __future__ import annotations

import pytest
from emulated import flows, result_of

from emulator.config import make_scenario
from emulator.fabric import Fabric

INCAST = {"workload": {"kind": "incast", "senders": 4, "size_bytes": 200_000}}


def test_nothing_is_said_where_all_finish():
    assert result_of(INCAST, "ttpoe").reasons == []


@pytest.mark.parametrize("mark", [0.0, 0.5])
def test_pauses_that_outlast_the_timeouts_of_irn_are_named(mark):
    """A receiver that pauses its switch for 8 ms: eight timeouts of 320 us pass, and nothing was dropped; marks are
    no reason."""
    values = {**INCAST, "hosts": {"pause_storms": [{"host": 0, "end_ps": "8ms"}]}}
    values |= {"link": {"impairments": {"mark": mark}}, "roce": {"ecn": True}}
    result = result_of(values, "irn-pfc")
    assert bool(result.frames_impaired["marked"]) == bool(mark)
    paused = next(port for port in result.ports if port["name"] == "s0.p0")["paused_us"]
    (why,) = result.reasons
    assert why == (
        f"4 gave up after 8 timeouts in a row (100 us or 320 us): s0.p0 on their way was paused for {paused:,.0f} us "
        "in all, none of their frames was dropped, so they wait longer than that; raise selective.rto_high_ps"
    )
    assert result_of({**values, "selective": {"rto_high_ps": "5ms", "rto_low_ps": "5ms"}}, "irn-pfc").reasons == []


def test_drops_are_counted_of_those_that_gave_up():
    values = {**INCAST, "switch": {"buffer_bytes": "20kB", "alpha": 0.01}}
    values["roce"] = {"rto_exponent": 1, "retry_limit": 1}
    result = result_of(values, "roce")
    gave_up = result.flows["failure"] == 1
    (why,) = result.reasons
    assert gave_up.any()
    assert why.startswith(f"{gave_up.sum()} gave up after 2 timeouts in a row (8.192 us): ")
    assert f"{result.flows['drops'][gave_up].sum()} of their frames were dropped" in why


def test_frames_that_nobody_sends_again():
    lost = {"links": [{"hosts": [1], "impairments": {"lose_frames": [2]}, "impaired_ways": "from_host"}]}
    values = {**flows((1, 0, 8_000)), "topology": lost, "roce": {"rto_exponent": 0, "mtu_bytes": 4000}}
    assert result_of(values, "roce").reasons == [
        "1 wait for frames that will never come, and no timeout is set to send them again"
    ]


def test_those_that_wait_for_others_and_those_whose_host_failed():
    chain = {"kind": "ring", "size_bytes": 40_000}
    failed = {"events": [{"at_ps": "1us", "what": "fail", "host": 1}]}
    result = result_of({"workload": chain, "topology": {"hosts": 4}, **failed}, "roce")
    assert any("ended as host_failed" in why for why in result.reasons)
    told = sum(int(why.split()[0]) for why in result.reasons)
    assert told == len(result.unfinished)


@pytest.mark.parametrize(("transport", "is_warned"), [("ttpoe", True), ("ttpoe-reno", False), ("roce", False)])
def test_trimming_under_a_fixed_window_is_warned_of(transport, is_warned):
    scenario = make_scenario({**INCAST, "switch": {"trim_priority": 5}})
    warnings = Fabric(scenario, transport, 1).warnings
    assert bool(warnings) == is_warned
    assert all("ttpoe.congestion_control" in warning for warning in warnings)
