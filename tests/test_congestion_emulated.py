"""Congestion windows, lost tails and full receivers on emulated paths: what RFCs and arithmetic say of them."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from emulated import COMPILED, OTHER_MODES, checked, digests_under, flows, incast, make, result_of, traced

from emulator.config import ConfigError, make_scenario
from ttpoe.fsm import Opcode

US = 10**6
MTU = 1024
FRAME_BYTES = MTU + 64
"""Header and FCS: what a full frame takes of a buffer."""
RENO: dict[str, Any] = {"congestion_control": "reno"}


def windows(values: dict[str, Any], every: int = 25) -> tuple[np.ndarray, Any]:
    """Congestion windows of all flows in payloads, after each ``every`` events; shape (samples, flows)."""
    fabric = make(values, "ttpoe")
    samples: list[list[int]] = []
    fabric.run(max_events=every, on_slice=lambda _: samples.append(fabric.world.links["cwnd_bytes"][0::2].tolist()))
    return np.array(samples) / MTU, fabric


def turning_points(window: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The window before and after each cut by more than a third."""
    cuts = np.flatnonzero(window[1:] < window[:-1] * 2 / 3)
    return window[cuts], window[cuts + 1]


# Reno


@COMPILED
def test_the_sawtooth() -> None:
    """One flow into a slower line: the window rises until queue and path are full, and falls to half of that."""
    buffer_bytes = 200_000
    values = flows(  # the first two cuts are those of slow start, which fills everything twice over
        (1, 0, 60_000_000), ttpoe=RENO, switch={"buffer_bytes": buffer_bytes},
        topology={"links": [{"hosts": [0], "rate_bps": "10G", "delay_ps": "20us"}]},
    )  # fmt: skip
    window, fabric = windows(values)
    peaks, troughs = turning_points(window[:, 0])
    assert len(peaks) > 8
    # With alpha 1 one queue may fill half of the buffer; the path holds what a round trip of 44 us brings at 10G.
    queue = buffer_bytes / 2 / FRAME_BYTES
    path = 44 * US / (1108 * 800)
    assert peaks[2:] == pytest.approx(queue + path, rel=0.06)
    assert troughs[2:] == pytest.approx(peaks[2:] / 2, rel=0.05)
    links = fabric.world.links
    assert links["timeouts"][0] == 0
    assert len(peaks) < links["nacks_received"][0] <= 2 * len(peaks)  # the next pass meets the same full queue
    goodput = 60_000_000 * 8 / (fabric.world.flows["finished_rx_ps"][0] / 1e12)
    assert goodput > 0.93 * 10e9 * MTU / 1108  # the queue never runs dry; each loss costs what was behind it


@COMPILED
@pytest.mark.parametrize("starts", [(0, 0), (0, 2000 * US)])
@pytest.mark.parametrize("buffer_bytes", [100_000, 250_000])
def test_two_flows_share_a_bottleneck(buffer_bytes: int, starts: tuple[int, int]) -> None:
    """Jain's index over what arrived in 20 ms from the time when both are there."""
    values = flows(
        *((host, 0, 10**9, start) for host, start in zip((1, 2), starts, strict=True)),
        ttpoe=RENO, switch={"buffer_bytes": buffer_bytes},
    )  # fmt: skip
    received = []
    for until_us in (2000, 22_000):
        fabric = make({**values, "until_ps": f"{until_us}us"}, "ttpoe")
        fabric.run()
        received.append(fabric.world.links["rx_bytes"][1::2].astype(float))
    share = received[1] - received[0]
    assert share.sum() ** 2 / (2 * (share**2).sum()) > 0.95
    assert share.sum() * 8 / 0.02 > 0.9 * 100e9 * MTU / 1108


@COMPILED
def test_an_incast_of_64_into_drop_tail() -> None:
    """64 MB into a buffer of 12 MB: a fixed window of 1 MB sends most of it twice, reno finds the buffer's share."""
    fixed, reno = (
        result_of(incast(64, 1_000_000, ttpoe={"congestion_control": kind}), "ttpoe") for kind in ("fixed", "reno")
    )
    assert not fixed.unfinished
    assert not reno.unfinished
    assert reno.counters["drops"] < fixed.counters["drops"] / 10
    assert reno.counters["resent_packets"] < fixed.counters["resent_packets"] / 5
    assert reno.summary()["jain"] > 0.95
    assert fixed.summary()["jain"] < 0.6
    assert reno.summary()["fct_us"]["max"] < 1.3 * reno.wire_bound_ps / US


def test_slow_start_alone_on_a_path() -> None:
    """10, 20, 40, ... payloads a round trip until the pipe is full: the closed form of the first rounds."""
    rtt_ps = 400 * US
    for packets, rounds in ((10, 1), (11, 2), (30, 2), (31, 3), (70, 3), (71, 4), (150, 4), (151, 5)):
        values = incast(1, packets * MTU, link={"delay_ps": rtt_ps // 4}, ttpoe={**RENO, "handshake": False})
        fct_ps = int(result_of(values, "ttpoe").flows["fct_rx_ps"][0])
        assert fct_ps // rtt_ps == rounds - 1


def test_the_initial_window_is_a_parameter() -> None:
    for packets in (1, 4, 20):
        ttpoe = {**RENO, "initial_window_packets": packets}
        _, _, rows = traced(incast(1, 100 * MTU, ttpoe=ttpoe), "ttpoe", {"h1"})
        before = rows[: np.flatnonzero(rows["frame"]["opcode"] == Opcode.ACK)[0]]
        assert (before["frame"]["opcode"] == Opcode.PAYLOAD).sum() == packets


def test_reno_needs_no_pause_on_a_lossless_switch() -> None:
    result = checked(incast(4, 100_000, ttpoe=RENO), "ttpoe-pfc")
    assert not result.unfinished
    assert result.counters["drops"] == result.counters["resent_packets"] == 0


# The tail (RFC 8985, 7)

CONTROL_PS, FRAME_PS = 88 * 80, 1108 * 80
RTT_PS = 2 * CONTROL_PS + 2 * FRAME_PS + 4 * US


def tail(packets: int, host: int, frame: int, **ttpoe: Any) -> Any:
    """One message of which the frame of that number (after OPEN or OPEN_ACK) from that host is lost; and none lost."""
    told = []
    for lost in ([frame + 1], []):
        links = [{"hosts": [host], "bad_fcs_frames": lost}]
        told.append(result_of(incast(1, packets * MTU, ttpoe=ttpoe, topology={"links": links}), "ttpoe"))
    return told


@pytest.mark.parametrize("packets", [1, 2, 3, 10, 200])
@pytest.mark.parametrize("host", [1, 0], ids=["payload", "ack"])
def test_a_lost_tail_costs_two_round_trips(packets: int, host: int) -> None:
    """The last payload or its ACK is lost; with one packet it is the only one. fct_tx: three round trips from the
    time when it was sent, of which one would have been needed anyway."""
    lost, whole = tail(packets, host, packets)
    cost = int(lost.flows["fct_tx_ps"][0] - whole.flows["fct_tx_ps"][0])
    rtt_ps = RTT_PS + (packets > 1) * FRAME_PS  # of a payload behind another, which waits for it at the switch
    assert cost <= 2 * rtt_ps
    assert int(lost.flows["fct_tx_ps"][0]) <= int(whole.flows["ideal_ps"][0]) + 3 * rtt_ps
    assert (lost.counters["resent_packets"], lost.counters["timeouts"], lost.counters["probes_sent"]) == (1, 0, 1)
    assert whole.counters["resent_packets"] == whole.counters["probes_sent"] == 0


@pytest.mark.parametrize("behind", [1, 5])
def test_a_tail_of_several_that_is_lost_costs_a_round_trip_more(behind: int) -> None:
    """The probe draws a NACK."""
    packets = 40
    links = [{"hosts": [1], "bad_fcs_frames": list(range(packets - behind + 1, packets + 2))}]
    lost = result_of(incast(1, packets * MTU, topology={"links": links}), "ttpoe")
    whole = result_of(incast(1, packets * MTU), "ttpoe")
    cost = int(lost.flows["fct_rx_ps"][0] - whole.flows["fct_rx_ps"][0])
    assert 2 * RTT_PS < cost < 3 * (RTT_PS + behind * FRAME_PS)
    assert lost.counters["resent_packets"] == behind + 2
    assert (lost.counters["timeouts"], lost.counters["probes_sent"]) == (0, 1)


def test_a_lost_probe_costs_the_timeout() -> None:
    links = [{"hosts": [1], "bad_fcs_frames": [2, 3]}]
    for on, resends in ((True, 2), (False, 2)):
        values = incast(1, MTU, ttpoe={"tail_loss_probe": on}, topology={"links": links})
        result = result_of(values, "ttpoe")
        assert result.counters["timeouts"] == (1 if on else 2)
        assert result.counters["resent_packets"] == resends


def test_the_least_wait_for_a_probe() -> None:
    for floor_us in (20, 70):
        lost, whole = tail(1, 1, 1, probe_min_ps=floor_us * US)
        assert lost.flows["fct_rx_ps"][0] - whole.flows["fct_rx_ps"][0] == floor_us * US


# A slow reader (NACK_FULL)


def slow(size_bytes: int, rate: str | None, buffer_bytes: int, senders: int = 1, **ttpoe: Any) -> dict[str, Any]:
    hosts = {"rx_buffer_bytes": buffer_bytes, **({} if rate is None else {"drain_rate_bps": rate})}
    return incast(senders, size_bytes, hosts=hosts, ttpoe=ttpoe)


@pytest.mark.parametrize("kind", ["fixed", "reno"])
@pytest.mark.parametrize("transport", ["ttpoe", "ttpoe-pfc"])
def test_a_reader_of_ten_megabytes_a_second_behind_100g(transport: str, kind: str) -> None:
    size, buffer = 400_000, 50_000
    result = checked(slow(size, "80M", buffer, congestion_control=kind), transport)
    flow, counters = result.flows[0], result.counters
    assert not result.unfinished
    assert counters["drops"] == counters["timeouts"] == counters["probes_sent"] == 0
    assert counters["nack_fulls_sent"] == counters["nack_fulls_received"] == flow["nack_fulls"] > 0
    # The reader never waits: the last payload finds room once all but a buffer of what is before it was read.
    assert flow["fct_rx_ps"] == pytest.approx((size - buffer) * 100_000, rel=0.01)
    # About one question for each payload that the reader makes room for, and about one in vain.
    refused = (size - buffer) / MTU
    assert counters["nack_fulls_sent"] < 1.2 * refused
    assert counters["resent_packets"] < 2.5 * refused + 60  # 60: what was under way when the buffer filled


def test_a_reader_that_keeps_up_is_never_asked_for() -> None:
    quick = result_of(slow(500_000, "100G", 20_000), "ttpoe")
    assert quick.counters["nack_fulls_sent"] == 0
    assert quick.flows["fct_rx_ps"][0] == result_of(incast(1, 500_000), "ttpoe").flows["fct_rx_ps"][0]
    assert result_of(slow(500_000, None, 1), "ttpoe").counters["nack_fulls_sent"] == 0


def test_a_buffer_as_large_as_the_message_never_refuses() -> None:
    assert result_of(slow(50_000, "1M", 50_000), "ttpoe").counters["nack_fulls_sent"] == 0
    assert result_of(slow(50_000, "1M", 50_000 - MTU), "ttpoe").counters["nack_fulls_sent"] > 0


@pytest.mark.parametrize("rate", ["80M", "3G", "7G", "60G"])
def test_the_reader_reads_at_its_rate_to_the_byte(rate: str) -> None:
    """Beside a reader in fractions, which takes what there is at its rate and rounds nothing."""
    bytes_per_ps = Fraction(make_scenario(slow(1, rate, 1)).hosts.drain_rate_bps or 0, 8 * 10**12)
    fabric = make(slow(300_000, rate, 30_000), "ttpoe")
    link = fabric.world.links[1]
    exact, at_ps, received, seen, looked = Fraction(0), 0, 0, 0, 0

    def check(at: Any) -> None:
        nonlocal exact, at_ps, received, seen, looked
        exact = min(Fraction(received), exact + (at.now_ps - at_ps) * bytes_per_ps)
        at_ps, received = at.now_ps, int(link["rx_bytes"])
        assert received - int(link["rx_read_bytes"]) <= 30_000
        if link["rx_read_bytes"] != seen:  # it is looked at when a frame arrives
            seen = int(link["rx_read_bytes"])
            looked += 1
            assert seen == int(exact)

    assert not fabric.run(max_events=1, on_slice=check).unfinished
    assert looked > 100


def test_every_receiver_of_an_incast_has_a_reader() -> None:
    result = checked(slow(100_000, "1G", 20_000, senders=5), "ttpoe")
    assert not result.unfinished
    assert (result.flows["nack_fulls"] > 0).all()
    assert result.counters["timeouts"] == 0


@pytest.mark.parametrize(
    "lost", [{0: [22]}, {1: [70]}, {0: [30, 31]}], ids=["the first NACK_FULL", "a question", "two answers"]
)
def test_what_is_lost_while_holding_is_asked_for_again(lost: dict[int, list[int]]) -> None:
    """The first NACK_FULL is the 22nd frame of h0, behind OPEN_ACK and 20 ACKs."""
    links = [{"hosts": [host], "bad_fcs_frames": frames} for host, frames in lost.items()]
    result = checked({**slow(100_000, "400M", 20 * MTU), "topology": {"links": links}}, "ttpoe")
    assert result.counters["lost"] > 0
    assert not result.unfinished
    assert result.counters["timeouts"] <= 2
    assert result.flows["fct_rx_ps"][0] == pytest.approx((100_000 - 20 * MTU) * 20_000, rel=0.03)


def test_a_reader_that_takes_for_ever_is_asked_ever_less_often() -> None:
    """At 1 Mb/s a payload takes 8 ms: questions back off, so their number is of the order of the payloads."""
    result = result_of(slow(30 * MTU, "1M", 10 * MTU), "ttpoe")
    assert not result.unfinished
    assert result.counters["nack_fulls_sent"] < 60
    assert result.flows["fct_rx_ps"][0] > 20 * MTU * 8 * US


@pytest.mark.parametrize(
    ("hosts", "says"),
    [
        ({"drain_rate_bps": 123_456_789}, "hosts.drain_rate_bps: this rate cannot be counted to the byte; round it"),
        ({"drain_rate_bps": 10}, "hosts.drain_rate_bps"),
        ({"rx_buffer_bytes": 0}, "hosts.rx_buffer_bytes"),
        ({"drain": 1}, "hosts.drain: there is no such field"),
    ],
)
def test_hosts_that_cannot_be(hosts: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make_scenario({"hosts": hosts})


def test_policies_that_cannot_be() -> None:
    for ttpoe in ({"congestion_control": "cubic"}, {"initial_window_packets": 0}, {"probe_min_ps": "2s"}):
        with pytest.raises(ConfigError, match="ttpoe"):
            make_scenario({"ttpoe": ttpoe})


# The same in every mode

MIXED: dict[str, Any] = flows(
    *((host, 0, 24_000) for host in (1, 2, 3, 4)), (5, 0, 700, 2000 * US),
    hosts={"rx_buffer_bytes": 8_000, "drain_rate_bps": "3G"}, switch={"buffer_bytes": 6_000},
    ttpoe={**RENO, "initial_window_packets": 4},
    topology={"links": [{"hosts": [1], "bad_fcs_frames": [3]}, {"hosts": [2], "bad_fcs_frames": [1]},
                        {"hosts": [5], "bad_fcs_frames": [2]}]},
)  # fmt: skip
"""Drops, damage, refusals, a lost OPEN, and a lost tail."""


@COMPILED
@OTHER_MODES
def test_interpreted_and_bounds_checked(variable: str) -> None:
    here = result_of(MIXED, "ttpoe")
    for name in ("drops", "lost", "nack_fulls_sent", "probes_sent", "timeouts"):
        assert here.counters[name] > 0, name
    assert digests_under(variable, MIXED, "ttpoe") == [here.digest]
