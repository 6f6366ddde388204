"""Ends with a rate of their own: what they send, when, and at what cost in events."""

from __future__ import annotations

import numpy as np
import pytest
from emulated import flows, incast, make, result_of, traced

from emulator.packet import DATA
from emulator.results import frame_wire_bytes
from emulator.world import END, ROCE

PS_PER_BYTE = 80
US = 10**6


def test_an_end_is_one_cache_line() -> None:
    assert END.itemsize == 64


@pytest.mark.parametrize("rate_bps", [40_000_000_000, 33_333_333_333, 1_000_000_007])
def test_a_paced_flow_takes_what_its_rate_says(rate_bps: int) -> None:
    """All frames but the last at the rate, each rounded up to a picosecond; the last one crosses the path."""
    wire = frame_wire_bytes(ROCE, 4096, 1_000_000).tolist()
    expected = sum(-(-size * 8 * 10**12 // rate_bps) for size in wire[:-1]) + 2 * (wire[-1] * PS_PER_BYTE + US)
    result = result_of(incast(1, 1_000_000, roce={"rate_bps": rate_bps}), "roce")
    assert result.flows["fct_rx_ps"].tolist() == [expected]


def test_the_gaps_on_the_line_are_those_of_the_rate() -> None:
    _, _, rows = traced(incast(1, 100_000, roce={"rate_bps": "25G"}), "roce", {"h1"})
    sent = rows[(rows["is_out"] == 1) & (rows["kind"] == DATA)]["time_ps"]
    wire = frame_wire_bytes(ROCE, 4096, 100_000)
    assert np.diff(sent).tolist() == (wire[:-1] * 4 * PS_PER_BYTE).tolist()


def test_two_paced_flows_of_one_nic_keep_their_rates() -> None:
    """They may wait for each other's frame, once; then they fall in between."""
    values = flows((1, 0, 2_000_000), (1, 2, 2_000_000), roce={"rate_bps": "40G"})
    alone = result_of(flows((1, 0, 2_000_000), roce={"rate_bps": "40G"}), "roce").flows["fct_rx_ps"][0]
    both = result_of(values, "roce").flows["fct_rx_ps"]
    assert (both >= alone).all()
    assert (both <= alone + 2 * 4194 * PS_PER_BYTE).all()


def test_rates_that_a_line_cannot_carry_share_it() -> None:
    values = flows(*((1, dst, 2_000_000) for dst in (0, 2, 3)), roce={"rate_bps": "40G"})
    result = result_of(values, "roce")
    bound = 3 * int(frame_wire_bytes(ROCE, 4096, 2_000_000).sum()) * PS_PER_BYTE
    assert bound < result.flows["fct_rx_ps"].max() < bound * 1.01
    assert result.flows["fct_rx_ps"].min() > bound * 0.98


def test_a_rate_costs_one_event_a_packet_and_none_at_line_rate() -> None:
    runs = {}
    for rate in (None, 100_000_000_000, 50_000_000_000):
        values = incast(1, 1_000_000, roce={} if rate is None else {"rate_bps": rate})
        fabric = make(values, "roce")
        runs[rate] = fabric.run()
    free, line, half = runs.values()
    assert line.counters == free.counters
    assert line.flows.tolist() == free.flows.tolist()
    packets = len(frame_wire_bytes(ROCE, 4096, 1_000_000))
    departures = packets  # of the sender's line, which only a busy sender needs
    assert half.counters["events"] <= free.counters["events"] + packets
    assert half.counters["events"] >= free.counters["events"] + packets - 2 * departures


def test_a_paced_flow_repairs_a_loss() -> None:
    values = incast(1, 1_000_000, roce={"rate_bps": "40G"}, topology={"links": [{"hosts": [1], "bad_fcs_frames": [7]}]})
    result = result_of(values, "roce")
    assert result.unfinished == []
    assert result.flows["timeouts"].tolist() == [0]
    assert result.flows["resent_packets"][0] > 0


