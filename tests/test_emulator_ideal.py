"""One flow alone: closed forms, and a run that equals them to the picosecond."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from emulated import ALL, COMPILED, examples, flows, incast, result_of
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator import ideal, world
from emulator.framing import message_frames, message_wire_bytes
from emulator.ideal import Frames, Hop, ideal_fct_ps

US, MS, S = 10**6, 10**9, 10**12


def line_ps(wire_bytes: int, rate_bps: int) -> int:
    return -(-wire_bytes * 8 * S // rate_bps)


def replay(hops: list[Hop], back: list[Hop], sizes: list[int], ack: int, window: int, last_window: int,
           every: int) -> int:  # fmt: skip
    """The model in words: a frame starts when its window and the line before it allow, and queues at each hop."""
    free = [0] * len(hops)
    free_back = [0] * len(back)
    acked: dict[int, int] = {}  # highest frame acknowledged: when
    done = 0
    for i, size in enumerate(sizes):
        needs = i - (last_window if i == len(sizes) - 1 else window)
        at = 0 if needs < 0 else min(t for frame, t in acked.items() if frame >= needs)
        for k, hop in enumerate(hops):
            free[k] = max(at, free[k]) + line_ps(size, hop.rate_bps)
            at = free[k] + hop.delay_ps
        done = at
        if (i + 1) % every == 0 or i == len(sizes) - 1:
            for k, hop in enumerate(back):
                free_back[k] = max(at, free_back[k]) + line_ps(ack, hop.rate_bps)
                at = free_back[k] + hop.delay_ps
            acked[i] = at
    return done


RATES = st.sampled_from([10**6, 10**9, 3_700_000_000, 10**10, 2_500_000_000, 99_999_999_999, 10**11, 4 * 10**11])
HOPS = st.lists(st.builds(Hop, RATES, st.integers(0, MS)), min_size=1, max_size=5)


@given(HOPS, HOPS, st.integers(1, 60), st.integers(64, 9000), st.integers(64, 9000), st.integers(64, 9000),
       st.integers(64, 200), st.integers(1, 70), st.integers(0, 3), st.integers(1, 8))  # fmt: skip
@settings(max_examples=400)
def test_the_closed_form_and_the_recursion_equal_a_replay(
    hops: list[Hop], back: list[Hop], count: int, first: int, middle: int, last: int, ack: int, window: int,
    more: int, every: int,
) -> None:  # fmt: skip
    window = max(window, every)
    frames = Frames(count, first, middle, last)
    sizes = [middle] * count
    sizes[-1] = last
    sizes[0] = first
    expected = replay(hops, back, sizes, ack, window, window + more, every)
    assert ideal_fct_ps(hops, back, frames, ack, window, window + more, every) == expected
    assert frames.total == sum(sizes)


@pytest.mark.parametrize("count", [1, 2, 3, 100])
def test_without_a_window_the_bottleneck_and_one_store_and_forward(count: int) -> None:
    """Equal frames: each hop once, and the slowest for the others."""
    hops = [Hop(10**11, US), Hop(10**10, 2 * US), Hop(4 * 10**11, 0)]
    expected = sum(line_ps(1000, hop.rate_bps) + hop.delay_ps for hop in hops) + (count - 1) * line_ps(1000, 10**10)
    assert ideal_fct_ps(hops, hops, Frames(count, 1000, 1000, 1000), 88, count, count) == expected


@pytest.mark.parametrize("blocks", [1, 2, 7])
def test_limited_by_the_window_one_round_trip_a_block(blocks: int) -> None:
    """A window far below the path's content: block after block, each when the one before is acknowledged."""
    hops = [Hop(10**11, 100 * US)] * 2
    window, data, ack = 4, 1108, 88
    path = sum(line_ps(data, hop.rate_bps) + hop.delay_ps for hop in hops)
    back = sum(line_ps(ack, hop.rate_bps) + hop.delay_ps for hop in hops)
    expected = (blocks - 1) * (path + back) + path + (window - 1) * line_ps(data, 10**11)
    frames = Frames(blocks * window, data, data, data)
    assert ideal_fct_ps(hops, hops, frames, ack, window, window) == expected


def test_a_petabyte_takes_no_time() -> None:
    frames = message_frames(world.ROCE, 4096, 2**50)
    hops = [Hop(10**11, US)] * 2
    got = ideal_fct_ps(hops, hops, frames, 86, 2**62, 2**62)
    assert got == (frames.total + frames.first) * 80 + 2 * US


@pytest.mark.parametrize(
    ("protocol", "mtu", "size", "expected"),
    [
        # 14 + 20 + 8 + 12 + 4 = 58 (+ RETH 16), payload padded to 4, FCS 4, preamble and gap 20
        (world.ROCE, 4096, 1, [102]),
        (world.ROCE, 4096, 4096, [4194]),
        (world.ROCE, 4096, 4097, [4194, 86]),
        (world.ROCE, 1024, 2500, [1122, 1106, 534]),
        # header 60, minimum 64
        (world.TTPOE, 1024, 1, [88]),
        (world.TTPOE, 1024, 4, [88]),
        (world.TTPOE, 1024, 5, [89]),
        (world.TTPOE, 1024, 1024, [1108]),
        (world.TTPOE, 1024, 2049, [1108, 1108, 88]),
    ],
)
def test_bytes_on_the_line_of_a_message(protocol: int, mtu: int, size: int, expected: list[int]) -> None:
    assert message_wire_bytes(protocol, mtu, size).tolist() == expected
    assert message_frames(protocol, mtu, size).total == sum(expected)


@st.composite
def lone_flows(draw: st.DrawFn) -> dict[str, Any]:
    mtu = draw(st.sampled_from([1, 64, 1000, 1024, 4096, 9000]) | st.integers(1, 9000))
    frames = draw(st.sampled_from([1, 2, 3, 10, 50, 200, 400]))
    size = max(frames * mtu - draw(st.integers(0, mtu - 1)), 1)
    every = draw(st.sampled_from([1, 1, 2, 3, 7]))
    window = draw(st.sampled_from([1, 1, 2, 3, 8, 30, 1000])) * every * mtu + draw(st.integers(0, mtu - 1))
    rate = st.sampled_from([10**9, 3_700_000_000, 10**10, 25 * 10**9, 10**11, 4 * 10**11])
    delay = st.sampled_from([0, 1, US]) | st.integers(0, MS)
    links = [{"hosts": [h], "rate_bps": draw(rate), "delay_ps": draw(delay)} for h in (0, 1)]
    return flows(
        (0, 1, size, draw(st.sampled_from([0, 12_345]))),
        topology={"links": links},
        switch={"buffer_bytes": 2**34, "pipeline_latency_ps": draw(st.sampled_from([0, 1, 437_000])),
                "ecn": {"kmin_bytes": 2**30, "kmax_bytes": 2**30}},
        # A timeout below the round trip would resend what is not lost.
        ttpoe={"mtu_bytes": mtu, "window_bytes": window, "handshake": draw(st.booleans()),
               "shared_window": draw(st.booleans()), "rto_min_ps": "1s", "rto_initial_ps": "1s", "rto_max_ps": "1s",
               "tail_loss_probe": False, "initial_window_packets": 1_000_000, "target_delay_ps": "1s"},
        roce={"mtu_bytes": mtu, "window_bytes": draw(st.sampled_from([None, window])), "ack_every_packets": every,
              "rto_exponent": 25},
        tcp={"mtu_bytes": mtu, "window_bytes": window, "ack_every_packets": every, "rto_min_ps": "1s",
             "initial_window_packets": 32_767},
        selective={"rto_low_ps": "1s", "rto_high_ps": "1s"},
    )  # fmt: skip


@pytest.mark.parametrize("transport", ALL)
@given(values=lone_flows())
@examples(60)
def test_a_flow_alone_takes_the_ideal_time(transport: str, values: dict[str, Any]) -> None:
    result = result_of(values, transport)
    flow = result.flows[0]
    assert flow["fct_rx_ps"] == flow["ideal_ps"] > 0
    assert flow["fct_tx_ps"] > flow["fct_rx_ps"]
    assert result.counters["drops"] == result.counters["resent_packets"] == result.counters["pauses"] == 0
    assert result.summary()["slowdown_p99"] == 1.0
    assert result.wire_bound_ps is not None
    assert result.wire_bound_ps <= flow["fct_rx_ps"]


@pytest.mark.parametrize("transport", ["ttpoe", "roce"])
@pytest.mark.parametrize("last_bytes", [1, 500, 1024])
@pytest.mark.parametrize("window_bytes", [1024, 1500, 2047, 5 * 1024, 12_345])
def test_a_window_far_below_the_path(transport: str, last_bytes: int, window_bytes: int) -> None:
    """Where the window alone decides; a last frame that is short fits in what a full one does not."""
    values = incast(
        1, 40 * 1024 + last_bytes, link={"delay_ps": "20us"},
        ttpoe={"window_bytes": window_bytes}, roce={"mtu_bytes": 1024, "window_bytes": window_bytes},
    )  # fmt: skip
    result = result_of(values, transport)
    assert result.flows["fct_rx_ps"][0] == result.flows["ideal_ps"][0]
    assert result.summary()["goodput_gbps"] < 1.1 * window_bytes * 8000 / (80 * US)


@pytest.mark.parametrize("delay_ps", [0, US, 250 * US])
def test_the_handshake_costs_a_round_trip(delay_ps: int) -> None:
    """OPEN and OPEN_ACK, 88 bytes each on two lines there and two back."""
    took = {}
    for handshake in (True, False):
        values = incast(1, 1000, link={"delay_ps": delay_ps}, ttpoe={"handshake": handshake, "rto_initial_ps": "1s"})
        took[handshake] = int(result_of(values, "ttpoe").flows["fct_rx_ps"][0])
    assert took[True] - took[False] == 4 * (88 * 80 + delay_ps)


@COMPILED
def test_the_window_is_what_limits() -> None:
    """Twice the window, twice the goodput above the knee; no change below it."""
    def fct(window: str, rtt_us: int) -> int:
        values = incast(1, 60_000_000, link={"delay_ps": rtt_us * US // 4},
                        ttpoe={"window_bytes": window, "rto_initial_ps": "1s"})  # fmt: skip
        return int(result_of(values, "ttpoe").flows["fct_rx_ps"][0])

    assert fct("1MB", 800) / fct("2MB", 800) == pytest.approx(2, rel=0.05)
    assert fct("1MB", 20) == fct("2MB", 20)


@pytest.mark.parametrize("pipeline_ps", [1, 400_000])
def test_a_switch_takes_its_pipeline_latency_each_way(pipeline_ps: int) -> None:
    """One switch on the path: once for a RoCE packet, three times for OPEN, OPEN_ACK and a TTPoE frame."""
    for transport, times in (("roce", 1), ("ttpoe", 3)):
        took = [int(result_of(incast(1, 500, switch={"pipeline_latency_ps": ps}), transport).flows["fct_rx_ps"][0])
                for ps in (0, pipeline_ps)]  # fmt: skip
        assert took[1] - took[0] == times * pipeline_ps


def test_control_path() -> None:
    assert ideal.control_path_ps([Hop(10**11, US), Hop(10**10, 5)], 88) == 7040 + US + 70400 + 5


def test_a_message_longer_than_its_first_frame_pads_nothing() -> None:
    sizes = message_wire_bytes(world.ROCE, 4096, 3 * 4096 + 1)
    assert np.diff(sizes).tolist() == [-16, 0, 62 + 24 - 4178]
