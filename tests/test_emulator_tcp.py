"""TCP endpoints against their RFCs and against theory: recovery, timers, windows, marks, and incast collapse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from emulated import COMPILED, checked, flows, incast, make, result_of, traced

from emulator import tcp, tcp_congestion, tcp_rows
from emulator.config import ConfigError, make_scenario
from emulator.framing import message_frames
from emulator.packet import ANSWER, CE, DATA, ECT
from emulator.world import TCP
from ttpoe._jit import kernel
from ttpoe.state import FRAME
from ttpoe.units import PS_PER_MS, PS_PER_S, PS_PER_US

ONE = 1 << 20


@kernel(export=True)
def cube_root(value):
    return tcp_congestion.cube_root(value)


@kernel(export=True)
def cubic_k_ticks(w_max_q20, cwnd_q20):
    return tcp_congestion.cubic_k_ticks(w_max_q20, cwnd_q20)


@kernel(export=True)
def cubic_window_q20(ticks, k_ticks, w_max_q20):
    return tcp_congestion.cubic_window_q20(ticks, k_ticks, w_max_q20)


@kernel(export=True)
def count_marks(rows, acked, is_marked):
    """Of the first row."""
    tcp_congestion.count_marks(rows[0], acked, is_marked)


@kernel(export=True)
def receive(rows, params, slots, received, blocks, frames, ecn, out):
    """The receiver of a connection takes one frame; returns how many answers are in ``out``."""
    return tcp.tcp_on_frame(rows[1], params[0], slots, received, blocks, frames[0], ecn, 0, out, 0)


RENO, CUBIC, DCTCP = "iwarp-reno", "iwarp", "iwarp-dctcp"
POLICIES = (RENO, CUBIC, DCTCP)


def lossy(ordinals: list[int], packets: int, **fields: Any) -> dict[str, Any]:
    """One message of full packets; the sender's uplink loses the frames of these numbers."""
    values = incast(1, packets * 1440, **fields)
    values["topology"] = {"links": [{"hosts": [1], "impairments": {"lose_frames": ordinals},
                                     "impaired_ways": "from_host"}]}  # fmt: skip
    return values


def test_a_row_fits_the_same_memory() -> None:
    assert tcp_rows.TCP_FRAME.itemsize == FRAME.itemsize


@pytest.mark.parametrize(("payload", "frame"), [(1440, 1514), (1, 78), (4096, 4170), (8956, 9030)])
def test_a_full_frame_fills_ethernet(payload: int, frame: int) -> None:
    """1440 bytes of payload and 20 of MPA, DDP and RDMAP are the 1460 that TCP has in an IPv4 packet of 1500."""
    assert tcp_rows.data_wire_bytes(payload) == frame + 24
    assert message_frames(TCP, 1440, 3 * 1440 + 1).total == 3 * 1538 + 102


@pytest.mark.parametrize(("blocks", "frame"), [(0, 60), (1, 66), (2, 74), (3, 82)])
def test_an_acknowledgement_grows_by_its_blocks(blocks: int, frame: int) -> None:
    block = 1 | 2 << 16
    packed = [0, block, block | block << 32, block | block << 32][blocks]
    assert tcp_rows.ack_wire_bytes(packed, block if blocks == 3 else 0) == frame + 24


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("size", [1, 1440, 1441, 300_000])
def test_alone_without_slow_start_it_is_ideal_to_the_picosecond(size: int, every: int) -> None:
    values = incast(1, size, tcp={"initial_window_packets": 3000, "ack_every_packets": every})
    for transport in POLICIES:
        flow = result_of(values, transport).flows[0]
        assert flow["fct_rx_ps"] == flow["ideal_ps"]


@pytest.mark.parametrize("transport", POLICIES)
def test_slow_start_doubles_each_round_trip(transport: str) -> None:
    """10, 20, 40 and 80 packets; with delayed acknowledgements two packets each grow it as fast (RFC 3465)."""
    for every in (1, 2):
        values = incast(1, 150 * 1440, link={"delay_ps": "100us"}, tcp={"ack_every_packets": every})
        _, _, rows = traced(values, transport, {"h1"})
        sent = rows["time_ps"][(rows["kind"] == DATA) & (rows["is_out"] == 1)]
        rounds = np.bincount(sent // (400 * PS_PER_US))
        assert rounds.tolist() == [10, 20, 40, 80]


def test_a_delayed_acknowledgement_waits_for_a_second_packet_or_its_time() -> None:
    values = incast(1, 3 * 1440, tcp={"ack_every_packets": 2, "ack_delay_ps": "5ms"})
    _, result, rows = traced(values, RENO, {"h0"})
    acks = rows[(rows["kind"] == ANSWER) & (rows["is_out"] == 1)]
    assert acks["frame"]["tx_seq"].tolist() == [2, 3]
    last = rows["time_ps"][rows["kind"] == DATA][-1]
    assert acks["time_ps"][1] == last + 5 * PS_PER_MS
    assert result.flows["fct_tx_ps"][0] > 5 * PS_PER_MS > result.flows["fct_rx_ps"][0]


@pytest.mark.parametrize("transport", POLICIES)
@pytest.mark.parametrize("lost", [[1], [3], [20, 22, 24], [11, 12, 13, 14], [30], list(range(12, 28, 2))])
def test_only_what_is_lost_is_sent_again_without_a_timeout(transport: str, lost: list[int]) -> None:
    result = checked(lossy(lost, 60), transport, every=50)
    flow = result.flows[0]
    assert (flow["resent_packets"], flow["timeouts"]) == (len(lost), 0)
    assert result.counters["recoveries"] == 1
    assert flow["fct_rx_ps"] < 100 * PS_PER_US


def test_blocks_on_the_line() -> None:
    """RFC 2018, 4: the newest block first, then those reported before; cumulative once the gaps are filled."""
    _, _, rows = traced(lossy([2, 4, 6], 10), RENO, {"h0"})
    acks = rows["frame"][(rows["kind"] == ANSWER) & (rows["is_out"] == 1)]

    def blocks(ack: Any) -> list[tuple[int, int]]:
        packed = (int(ack["rx_seq"]) & 0xFFFFFFFF, int(ack["rx_seq"]) >> 32, int(ack["vc"]))
        base = int(ack["tx_seq"])
        return [(base + (b & 0xFFFF), base + (b >> 16)) for b in packed if b]

    told = [(int(ack["tx_seq"]), blocks(ack)) for ack in acks]
    assert told[:7] == [
        (1, []), (1, [(2, 3)]), (1, [(4, 5), (2, 3)]), (1, [(6, 7), (4, 5), (2, 3)]), (1, [(6, 8), (4, 5), (2, 3)]),
        (1, [(6, 9), (4, 5), (2, 3)]), (1, [(6, 10), (4, 5), (2, 3)]),
    ]  # fmt: skip
    assert told[7:] == [(3, [(6, 10), (4, 5)]), (5, [(6, 10)]), (10, [])]


def test_three_later_packets_tell_of_a_loss_two_do_not() -> None:
    """RFC 6675's DupThresh: with two packets behind it, a lost one waits for the timer."""
    for behind, timeouts in ((3, 0), (2, 1)):
        flow = result_of(lossy([6], 6 + behind, tcp={"rto_min_ps": "1ms"}), RENO).flows[0]
        assert (flow["timeouts"], flow["resent_packets"]) == (timeouts, 1)
        assert (flow["fct_rx_ps"] > PS_PER_MS) == (timeouts == 1)


@pytest.mark.parametrize("rto_ps", [200 * PS_PER_MS, PS_PER_MS, 200 * PS_PER_US])
def test_a_lost_tail_costs_the_least_timeout(rto_ps: int) -> None:
    """RFC 6298: the SYN's round trip is the first sample; the timer starts anew with each acknowledgement."""
    flow = result_of(lossy([60], 60, tcp={"rto_min_ps": rto_ps}), RENO).flows[0]
    assert rto_ps < flow["fct_rx_ps"] < rto_ps + 60 * PS_PER_US
    assert (flow["timeouts"], flow["resent_packets"]) == (1, 1)


def test_the_timer_backs_off_and_gives_up() -> None:
    """Timeouts at 1, 3, 7, 15 ms; the fourth is one more than three retries."""
    values = incast(1, 1440, tcp={"rto_min_ps": "1ms", "retry_limit": 3})
    values["topology"] = {"links": [{"hosts": [1], "impairments": {"loss": 1.0}}]}
    result = result_of(values, RENO)
    assert "retry_limit" in result.unfinished[0]
    assert result.end_ps == 15 * PS_PER_MS
    assert result.flows["timeouts"][0] == 4


def test_after_a_timeout_the_window_is_one_packet_and_what_came_is_not_sent_again() -> None:
    """20 packets out, all but three of the last lost: those three are not sent again (RFC 2018, our readers keep)."""
    lost = [n for n in range(11, 31) if n not in (28, 29)]
    flow = result_of(lossy(lost, 30, tcp={"rto_min_ps": "1ms"}), RENO).flows[0]
    assert (flow["timeouts"], flow["resent_packets"]) == (1, len(lost))


@COMPILED
@pytest.mark.parametrize("p", [0.001, 0.004])
def test_reno_follows_the_square_root_law(p: float) -> None:
    """1.31 / sqrt(p) for losses at random and an acknowledgement a packet (Mathis et al., 1997, table 1).

    p is counted in recoveries, as there: several losses of a window halve it once.
    """
    links = [{"hosts": [1], "impairments": {"loss": p}, "impaired_ways": "from_host"}]
    values = incast(1, 200_000_000, link={"delay_ps": "250us"}, topology={"links": links},
                    tcp={"window_bytes": "40MB", "rto_min_ps": "3ms"})  # fmt: skip
    result = result_of(values, RENO)
    packets = 200_000_000 / 1440
    window = packets * PS_PER_MS / int(result.flows["fct_rx_ps"][0])
    assert window * (result.counters["recoveries"] / packets) ** 0.5 == pytest.approx(1.31, rel=0.06)


def test_the_cube_root() -> None:
    for value in (0, 1, 7, 8, 26, 27, 10**15, (1 << 60) - 1):
        root = int(cube_root(value))
        assert root**3 <= value < (root + 1) ** 3


@pytest.mark.parametrize(("w_max", "cwnd"), [(100, 70), (1000, 700), (32_767, 22_936), (10, 9)])
def test_cubics_window_is_the_formula(w_max: int, cwnd: int) -> None:
    """W(t) = 0.4 (t - K)^3 + W_max, K = cbrt((W_max - cwnd) / 0.4), within a hundredth of a packet (RFC 9438, 4.2)."""
    k_ticks = int(cubic_k_ticks(w_max * ONE, cwnd * ONE))
    k = ((w_max - cwnd) / 0.4) ** (1 / 3)
    assert k_ticks / 4096 == pytest.approx(k, abs=1 / 4096)
    for t in (0.0, k / 2, k, 2 * k, 30.0):
        ticks = round(t * 4096)
        got = int(cubic_window_q20(ticks, k_ticks, w_max * ONE)) / ONE
        slope = 1.2 * (ticks / 4096 - k) ** 2 / 4096  # of a tick's error in K
        assert got == pytest.approx(0.4 * (ticks / 4096 - k) ** 3 + w_max, abs=0.01 + slope)


@COMPILED
def test_cubic_recovers_along_its_curve() -> None:
    """One loss at a window of 600 packets and 100 ms: 70 % of it, then W(t), which is back at 600 after K = 7.7 s."""
    values = lossy([4000], 90_000, link={"delay_ps": "25ms"}, tcp={"initial_window_packets": 600, "rto_min_ps": "1s"})
    values["tcp"]["window_bytes"] = 20_000_000
    fabric = make(values, CUBIC)
    row = fabric.world.tcps[0]
    row["ssthresh_q20"] = 600 * ONE  # no slow start: the curve alone
    seen: list[tuple[int, int, int]] = []
    fabric.run(
        max_events=200,
        on_slice=lambda at: seen.append((at.now_ps, int(row["epoch_ps"]), int(row["cwnd_q20"]), int(row["prior_q20"]))),
    )
    after = [(now_ps - epoch_ps, cwnd) for now_ps, epoch_ps, cwnd, prior in seen if epoch_ps >= 0 and prior > 0]
    before = next(prior for *_, prior in seen if prior > 0) / ONE
    k = (before * 0.3 / 0.4) ** (1 / 3)
    assert before == pytest.approx(600, rel=0.03)
    assert after[-1][0] > k * PS_PER_S
    for since_ps, cwnd in after:
        t = since_ps / PS_PER_S
        if t > 0.3:
            # The window is what the acknowledgements of the last round trip made of the target one ahead.
            low, high = (0.4 * (at - k) ** 3 + before for at in (t - 0.12, t + 0.12))
            assert low - 2 <= cwnd / ONE <= high + 2


def test_dctcps_alpha_is_the_moving_average() -> None:
    """alpha <- alpha + (F - alpha) / 16 once a window (RFC 8257, 3.3), from 1."""
    rows = np.zeros(1, tcp_rows.TCP)
    rows["alpha_q20"] = ONE
    rows["max"] = 40
    alpha = 1.0
    for marked in np.random.default_rng(3).integers(0, 41, 100).tolist():
        rows["window_end"], rows["max"] = rows["una"] + 39, rows["max"] + 40
        for k in range(40):
            rows["una"] += 1
            count_marks(rows, 1, int(k < marked))
        alpha += (marked / 40 - alpha) / 16
        assert rows["alpha_q20"][0] / ONE == pytest.approx(alpha, abs=1e-4)


@COMPILED
def test_dctcp_holds_the_queue_at_k() -> None:
    """Two long flows at 10 Gb/s, K = 60 KB, 100 us: full goodput, the queue about K, alpha about sqrt(2 / W)."""
    k_bytes = 60_000
    values = incast(2, 40_000_000, link={"rate_bps": "10G", "delay_ps": "25us"},
                    switch={"ecn": {"kmin_bytes": k_bytes, "kmax_bytes": k_bytes}})  # fmt: skip
    fabric = make(values, DCTCP)
    row = fabric.world.tcps[0]
    alphas: list[float] = []
    result = fabric.run(max_events=5000, on_slice=lambda _: alphas.append(int(row["alpha_q20"]) / ONE))
    assert result.counters["drops"] == 0
    steady = slice(len(result.series) // 3, -len(result.series) // 5)
    assert result.series["depth_bytes"][steady].mean() == pytest.approx(k_bytes, rel=0.15)
    assert result.summary()["goodput_gbps"] == pytest.approx(result.goodput_limit_gbps, rel=0.01)
    window = (100e-6 * 10e9 / 8 + k_bytes) / 1538 / 2
    assert np.mean(alphas[len(alphas) // 3 :]) == pytest.approx((2 / window) ** 0.5, rel=0.25)


def test_dctcps_receiver_tells_each_change_at_once() -> None:
    """RFC 8257, 3.2: with delayed acknowledgements, what came before a change of CE is acknowledged without delay."""
    params = np.zeros(1, tcp_rows.TCP_PARAMS)
    params["mtu_bytes"], params["ack_every_packets"], params["ack_delay_ps"] = 1440, 4, PS_PER_MS
    params["policy"] = tcp_congestion.DCTCP
    rows = tcp_rows.init_connections(np.array([1000]), 64, params[0])
    slots, received = np.zeros(64, tcp_rows.SLOT), np.zeros(64, np.int8)
    blocks, out = np.zeros(tcp_rows.BLOCK_WORDS, np.int64), np.zeros(8, tcp_rows.TCP_FRAME)
    told = []
    for index, ecn in enumerate([ECT, ECT, CE, CE, CE, CE, CE, ECT]):
        frame = np.array([(tcp_rows.FLAG_ACK, 0, index, 0, 1440)], tcp_rows.TCP_FRAME)
        n = receive(rows, params, slots, received, blocks, frame, ecn, out)
        told += [(index, int(out[k]["index"]), bool(out[k]["flags"] & tcp_rows.FLAG_ECE)) for k in range(n)]
    assert told == [(2, 2, False), (5, 6, True), (7, 7, True)]


@pytest.mark.parametrize("transport", [RENO, CUBIC])
def test_marks_in_place_of_losses(transport: str) -> None:
    """RFC 3168: ECE until CWR, one reduction a window; nothing is lost or sent again."""
    values = incast(2, 3_000_000, tcp={"ecn": True}, switch={"ecn": {"kmin_bytes": 30_000, "kmax_bytes": 30_000}})
    _, result, rows = traced(values, transport, {"h0"})
    assert result.counters["marks_received"] > 0
    assert result.counters["drops"] == result.counters["resent_packets"] == 0
    of_first = rows[rows["end"] >> 1 == 0]
    latched, reductions = False, 0
    for row in of_first:
        flags = int(row["frame"]["opcode"])
        if row["kind"] == DATA:
            reductions += bool(flags & tcp_rows.FLAG_CWR)
            latched = (latched and not flags & tcp_rows.FLAG_CWR) or row["ecn"] == CE
        else:
            assert bool(flags & tcp_rows.FLAG_ECE) == latched
    assert reductions > 2
    without = result_of({**values, "tcp": {"ecn": False}}, transport)
    assert without.counters["ecn_marked"] == 0


@COMPILED
@pytest.mark.parametrize("senders", [8, 16, 32])
def test_incast_collapses_with_timeouts_of_200_ms_and_not_of_200_us(senders: int) -> None:
    """A block of 1 MB from N servers over 1 Gb/s: with Linux's least timeout over 90 % of goodput is lost, with a
    fine-grained one hardly any (Vasudevan et al., SIGCOMM 2009, figures 1 and 6)."""
    goodput = {}
    for rto in ("200ms", "1ms"):
        values = incast(senders, 1_000_000 // senders, link={"rate_bps": "1G", "delay_ps": "10us"},
                        switch={"buffer_bytes": "64KB", "alpha": 64.0}, tcp={"rto_min_ps": rto})  # fmt: skip
        result = result_of(values, RENO)
        assert not result.unfinished
        goodput[rto] = result.summary()["goodput_gbps"] / result.goodput_limit_gbps
    assert goodput["200ms"] < 0.1
    assert goodput["1ms"] > 0.9


def test_the_switch_marks_at_dctcps_k_unless_told_otherwise() -> None:
    fabric = make(incast(2, 1000), DCTCP)
    switch_ports = fabric.topology.port_switch >= 0
    assert set(fabric.world.marking["kmin_bytes"][switch_ports].tolist()) == {300_000}
    assert set(fabric.world.marking["kmax_bytes"][switch_ports].tolist()) == {300_000}


def test_what_is_corrupted_is_refused_by_the_checksum() -> None:
    values = incast(1, 300_000, link={"impairments": {"corrupt_undetected": 0.02}})
    result = result_of(values, RENO)
    assert result.frames_impaired["corrupted"] == result.frames_impaired["bad_icrc"] > 0
    assert not result.changed
    assert not result.unfinished


@pytest.mark.parametrize("transport", POLICIES)
def test_reordering_and_doubling_on_the_way(transport: str) -> None:
    impairments = {"reorder": 0.05, "duplicate": 0.05, "loss": 0.02, "jitter_ps": "2us"}
    values = incast(3, 400_000, link={"impairments": impairments}, tcp={"rto_min_ps": "100us"})
    result = checked(values, transport, every=500)
    assert not result.unfinished


def test_a_window_of_memory_binds() -> None:
    """Goodput is the window a round trip, as the ideal says."""
    limits = {"window_bytes": 144_000, "initial_window_packets": 100}
    values = incast(1, 1_000_000, link={"delay_ps": "50us"}, tcp=limits)
    flow = result_of(values, RENO).flows[0]
    assert flow["fct_rx_ps"] == flow["ideal_ps"]
    assert 1_000_000 * 8000 / int(flow["fct_rx_ps"]) < 144_000 * 8000 / 200_000_000 * 1.1


@pytest.mark.parametrize(
    ("profile", "words"),
    [
        ({"base": "iwarp", "congestion_control": "dcqcn"}, "TCP has reno, cubic, dctcp; it cannot have dcqcn"),
        ({"base": "iwarp", "recovery": "selective"}, "TCP has its own; base selective on a RoCE transport"),
        ({"base": "iwarp", "window": "bdp"}, "set tcp.window_bytes"),
        ({"base": "roce", "congestion_control": "cubic"}, "RoCE has none and dcqcn; base cubic on iwarp or ttpoe"),
        ({"base": "ttpoe", "congestion_control": "cubic"}, "TTPoE has fixed, reno, swift, dctcp; it cannot have cubic"),
    ],
)
def test_profiles_that_make_no_sense(profile: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_scenario({"profiles": [{"name": "own", **profile}]})


def test_a_profile_over_pfc() -> None:
    values = {**incast(8, 1_000_000), "profiles": [{"name": "own", "base": "iwarp-dctcp", "flow_control": "pfc"}]}
    values["transports"] = ["own"]
    values["switch"] = {"buffer_bytes": 1_500_000, "ecn": {"kmin_bytes": 10**6, "kmax_bytes": 10**6}}
    result = make(values, "own").run()
    assert result.counters["drops"] == 0 < result.counters["pauses"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"window_bytes": 100}, "window_bytes 100 is below mtu_bytes 1440; raise it"),
        ({"window_bytes": 10**9}, "above 32767 packets"),
        ({"rto_min_ps": "3s", "rto_max_ps": "2s"}, "rto_min_ps is above rto_max_ps; lower it"),
        ({"rto_initial_ps": 1}, "there is no such field"),
    ],
)
def test_fields_that_make_no_sense(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_scenario({"tcp": fields})


def test_two_messages_between_the_same_hosts_are_two_connections() -> None:
    result = checked(flows((1, 0, 50_000), (1, 0, 50_000), (0, 1, 7)), CUBIC, every=40)
    assert not result.unfinished
