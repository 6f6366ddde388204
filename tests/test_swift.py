"""Windows by delay, by hand, in the emulator and on the wire: Kumar et al., SIGCOMM 2020, algorithm 1."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import numpy as np
import pytest
from emulated import COMPILED, OTHER_MODES, checked, digests_under, incast, make, result_of
from hypothesis import given, settings
from hypothesis import strategies as st
from test_endpoint import send_all
from wirepair import MAC_B, WirePair
from world import Rig

from emulator.config import ConfigError, make_scenario
from ttpoe import congestion
from ttpoe._jit import kernel
from ttpoe.config import EndpointConfig
from ttpoe.fsm import Opcode
from ttpoe.impair import Impairment
from ttpoe.state import make_params
from ttpoe.units import PS_PER_MS

Op = Opcode
US = 1_000_000
ONE = 1 << 20
MTU = 100
TARGET = 200 * US
SWIFT: dict[str, Any] = {
    "congestion_control": "swift", "mtu_bytes": MTU, "window_bytes": 100_000, "rto_initial_ps": 1000 * US,
    "rto_min_ps": 900 * US, "rto_max_ps": 100_000 * US, "retry_limit": 50, "target_delay_ps": TARGET,
    "flow_scaling_ps": 0,
}  # fmt: skip


@kernel(export=True)
def swift_target_ps(params, cwnd_q20):
    return congestion.swift_target_ps(params[0], cwnd_q20)


def swift(packets: int = 10, **params: Any) -> Rig:
    """A link that has much to send; its first id is 1001."""
    rig = Rig(**{**SWIFT, "initial_window_packets": packets, **params})
    rig.feed(Op.OPEN, 500)
    rig.submit(50_000)
    return rig


def window(rig: Rig) -> float:
    return rig["cwnd_q20"] / ONE


def acknowledged(rig: Rig, seq: int, after_us: int) -> None:
    rig.now_ps += after_us * US
    rig.feed(Op.ACK, 0, seq)


def test_below_the_target_it_grows_by_one_payload_a_round_trip() -> None:
    rig = swift()
    expected = 10.0
    out = [seq for seq, _ in rig.poll()]
    for _ in range(3):
        assert len(out) == int(expected)
        rig.now_ps += 100 * US
        sent, out = out, []
        for seq in sent:
            rig.feed(Op.ACK, 0, seq)
            expected += 1 / expected
            out += [seq for seq, _ in rig.poll()]
        assert window(rig) == pytest.approx(expected, rel=1e-4)
    assert 12.7 < window(rig) < 13


@pytest.mark.parametrize(("delay_us", "kept"), [(250, 1 - 0.8 * 50 / 250), (400, 1 - 0.8 * 0.5), (800, 0.5)])
def test_above_it_by_the_excess_and_by_half_at_most_once_a_round_trip(delay_us: int, kept: float) -> None:
    rig = swift()
    rig.poll()
    acknowledged(rig, 1001, delay_us)
    assert window(rig) == pytest.approx(10 * kept, rel=1e-4)
    acknowledged(rig, 1002, 1)
    assert window(rig) == pytest.approx(10 * kept, rel=1e-4)
    assert rig["cwnd_bytes"] == pytest.approx(10 * kept * MTU, abs=1)


def test_a_loss_halves_and_five_timeouts_leave_a_hundredth() -> None:
    rig = swift()
    rig.poll()
    acknowledged(rig, 1001, 100)
    before = window(rig)
    rig.now_ps += 200 * US
    rig.feed(Op.NACK, 0, 1003)
    assert window(rig) == pytest.approx(before / 2, rel=1e-4)
    for _ in range(4):
        rig.poll()
        rig.timeout()
    assert window(rig) > 0.2
    rig.now_ps = max(rig.now_ps, rig["pace_at_ps"])
    rig.poll()
    rig.timeout()
    assert window(rig) == pytest.approx(0.01, rel=1e-3)


def test_under_one_payload_they_go_out_one_by_one_a_round_trip_and_more_apart() -> None:
    rig = swift(1)
    assert len(rig.poll()) == 1
    acknowledged(rig, 1001, 500)  # 1 - 0.8 x 300 / 500
    assert window(rig) == pytest.approx(0.52, rel=1e-3)
    assert rig["cwnd_bytes"] == MTU
    wait_ps = 500 * US / window(rig)  # after the last one
    assert rig["pace_at_ps"] == pytest.approx(wait_ps, rel=1e-3)
    assert rig.poll() == []
    rig.now_ps = rig["pace_at_ps"] - 1
    assert rig.poll() == []
    rig.now_ps += 1
    assert len(rig.poll()) == 1
    acknowledged(rig, 1002, 100)
    assert window(rig) == pytest.approx(1.52, rel=1e-3)  # additively: by what was acknowledged
    assert rig["pace_at_ps"] == 0
    assert len(rig.poll()) == 1


def test_resends_give_no_sample() -> None:
    rig = swift()
    rig.poll()
    acknowledged(rig, 1001, 100)
    rig.timeout()
    before = window(rig)
    rig.poll()
    acknowledged(rig, 1002, 800)
    assert window(rig) == before


@pytest.mark.parametrize("cwnd", [0.01, 0.05, 0.1, 0.5, 1.0, 4.0, 50.0, 100.0, 1000.0])
def test_small_windows_have_a_longer_target(cwnd: float) -> None:
    """Section 3.5: base + clip(alpha / sqrt(cwnd) + beta, 0, range), the range at 0.1 payloads and nothing from 100."""
    base, span = 25 * US, 125 * US
    params = make_params(
        mtu_bytes=1024, window_bytes=10**6, rto_initial_ps=1000 * US, rto_min_ps=100 * US, rto_max_ps=10**12,
        retry_limit=5, congestion_control="swift", target_delay_ps=base, flow_scaling_ps=span,
    )  # fmt: skip
    alpha = span / (0.1**-0.5 - 100**-0.5)
    expected = base + min(max(alpha / cwnd**0.5 - alpha / 10, 0), span)
    assert swift_target_ps(params, round(cwnd * ONE)) == pytest.approx(expected, rel=2e-3)


# In the emulator


def emulated(senders: int, size_bytes: int, kind: str = "swift", packets: int = 10, **fields: Any) -> dict[str, Any]:
    ttpoe = {"congestion_control": kind, "initial_window_packets": packets}
    return incast(senders, size_bytes, ttpoe=ttpoe, **fields)


@COMPILED
@pytest.mark.parametrize(("senders", "packets"), [(8, 40), (32, 10)])
def test_the_queue_stays_near_the_target_and_the_line_full(senders: int, packets: int) -> None:
    """Target 25 us and scaling: a queue of (target - idle round trip) x rate, with all senders' goodput alike."""
    fabric = make(emulated(senders, 4_000_000, packets=packets), "ttpoe")
    result = fabric.run()
    assert (result.counters["drops"], result.counters["timeouts"]) == (0, 0)
    summary = result.summary()
    assert summary["goodput_gbps"] > 0.95 * summary["goodput_limit_gbps"]
    assert summary["jain"] > 0.999
    steady = slice(len(result.series) // 4, -len(result.series) // 4)
    depth = result.series["depth_bytes"][steady].mean()
    target_ps = int(swift_target_ps(fabric.world.params, int(fabric.world.links["cwnd_q20"][::2].mean())))
    assert depth * 80 == pytest.approx(target_ps - 4.2 * US, rel=0.25)


@COMPILED
def test_a_thousand_senders_with_fractional_windows() -> None:
    """1000:1: windows settle below one payload, and nothing is dropped, where fixed windows drop most of it."""
    fabric = make(emulated(1000, 50_000, packets=1), "ttpoe")
    least = []
    links = fabric.world.links
    swift_run = fabric.run(max_events=20_000, on_slice=lambda _: least.append(int(links["cwnd_q20"][::2].min())))
    assert swift_run.counters["drops"] == 0
    assert min(least) < 0.7 * ONE
    fixed = result_of(emulated(1000, 50_000, "fixed", 1), "ttpoe")
    assert fixed.counters["drops"] > 100_000
    assert swift_run.end_ps < fixed.end_ps / 2
    assert swift_run.summary()["goodput_gbps"] > 0.85 * swift_run.goodput_limit_gbps


def test_a_fraction_is_a_rate() -> None:
    """Never below its target, a window falls to a hundredth of a payload: one payload in a hundred round trips."""
    values = emulated(1, 20_480)
    fabric = make(values, "ttpoe")
    fabric.world.params["target_delay_ps"], fabric.world.params["flow_scaling_ps"] = 1, 0
    fabric.world.links["cwnd_q20"][0] = ONE // 100
    fabric.world.links["cwnd_bytes"][0] = 1024
    result = fabric.run()
    assert not result.unfinished
    payloads = 20
    round_trip_ps = int(fabric.world.links["srtt_ps"][0])
    assert result.flows["fct_rx_ps"][0] == pytest.approx((payloads - 2) * 100 * round_trip_ps, rel=0.15)


def test_conserved_with_losses_and_a_shared_window() -> None:
    values = emulated(6, 60_000, switch={"buffer_bytes": 8_000}, link={"impairments": {"loss": 0.02}})
    values["ttpoe"] |= {"shared_window": True, "window_bytes": 20_000, "target_delay_ps": "5us"}
    assert not checked(values, "ttpoe", every=300).unfinished


MIXED = emulated(12, 6_000, switch={"buffer_bytes": 8_000}, link={"impairments": {"loss": 0.02}})
MIXED["ttpoe"] |= {"target_delay_ps": "6us", "flow_scaling_ps": "20us"}


@COMPILED
@OTHER_MODES
def test_interpreted_and_bounds_checked(variable: str) -> None:
    here = result_of(MIXED, "ttpoe")
    assert here.counters["drops"] > 0
    assert not here.unfinished
    assert digests_under(variable, MIXED, "ttpoe") == [here.digest]


# On the wire


@settings(max_examples=15)
@given(seed=st.integers(0, 2**32), loss=st.sampled_from([0.0, 0.02, 0.2]))
def test_exactly_once_over_a_bad_line(seed: int, loss: float) -> None:
    impairments = tuple(Impairment(seed + way, loss=loss) for way in range(2))
    config = EndpointConfig(
        mtu_bytes=64, window_bytes=1024, send_buffer_bytes=4096, receive_buffer_bytes=4096, retry_limit=40,
        congestion_control="swift",
    )  # fmt: skip
    pair = WirePair(config, impairments=impairments)
    data = random.Random(seed).randbytes(4000)
    assert send_all(pair, pair.a.connect(MAC_B, 2, 0), data) == data


def test_an_endpoint_is_woken_when_the_next_payload_may_go() -> None:
    """The deadline is that of the pace; nothing goes out before, and then one frame."""
    config = dataclasses.replace(EndpointConfig(), congestion_control="swift", initial_window_packets=1)
    pair = WirePair(config)
    link = pair.a.connect(MAC_B, 0, 0)
    pair.settle()
    rows = pair.a._rows
    link.submit(bytes(50_000))
    pair.a.poll_transmit(pair.now_ps)
    rows.links["srtt_ps"][link.row] = 10 * PS_PER_MS
    rows.links["cwnd_q20"][link.row] = ONE // 2
    rows.links["cwnd_bytes"][link.row] = 10**6
    rows.links["pace_at_ps"][link.row] = at_ps = pair.now_ps + 19 * PS_PER_MS
    assert pair.a.next_deadline_ps() == at_ps
    assert pair.a.poll_transmit(at_ps - 1) is None
    pair.a.handle_timeout(at_ps)
    assert pair.a.poll_transmit(at_ps) is not None
    assert pair.a.poll_transmit(at_ps) is None
    assert rows.links["pace_at_ps"][link.row] == at_ps + 20 * PS_PER_MS


def test_numbers_that_make_no_sense() -> None:
    with pytest.raises(ConfigError, match="above rto_max_ps; lower it"):
        make_scenario({"ttpoe": {"target_delay_ps": "2s"}})
    with pytest.raises(ValueError, match="target_delay_ps is 0"):
        EndpointConfig(target_delay_ps=0)
    with pytest.raises(ValueError, match="a target above zero"):
        Rig(**{**SWIFT, "target_delay_ps": 0})
    assert np.all(Rig(**SWIFT).links["pace_at_ps"] == 0)
