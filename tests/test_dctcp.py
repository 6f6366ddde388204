"""Windows by the share of marks, by hand and in the emulator: RFC 8257, and what its authors' analysis says of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from emulated import COMPILED, OTHER_MODES, checked, digests_under, examples, flows, incast, make, result_of, traced
from hypothesis import given
from hypothesis import strategies as st
from world import Rig

from emulator.config import ConfigError, make_scenario
from emulator.packet import CE, ECT
from ttpoe.config import EndpointConfig
from ttpoe.endpoint import Endpoint
from ttpoe.fsm import Opcode
from ttpoe.rules import REFERENCE
from ttpoe.state import Mark

Op = Opcode
US = 1_000_000
ONE = 1 << 20
MTU = 100
DCTCP: dict[str, Any] = {
    "congestion_control": "dctcp", "mtu_bytes": MTU, "window_bytes": 100_000, "rto_initial_ps": 1000 * US,
    "rto_min_ps": 900 * US, "rto_max_ps": 100_000 * US, "retry_limit": 50,
}  # fmt: skip


def dctcp(packets: int = 10, **params: Any) -> Rig:
    """A link that has much to send; its first id is 1001."""
    rig = Rig(**{**DCTCP, "initial_window_packets": packets, **params})
    rig.feed(Op.OPEN, 500)
    rig.submit(50_000)
    return rig


def acknowledge(rig: Rig, seq: int, marks: int = 0) -> None:
    rig.now_ps += US
    rig.feed(Op.ACK, 0, seq, marks=marks)


# Echoes


def test_the_ack_of_a_marked_payload_says_so_and_no_other() -> None:
    rig = dctcp()
    for seq, marks in ((501, 0), (502, Mark.CE), (503, Mark.REDUCED), (504, Mark.CE | Mark.REDUCED), (505, 0)):
        assert rig.feed(Op.PAYLOAD, seq, 0, 10, marks=marks) == [(Op.ACK, 0, seq)]
        assert rig.out["marks"][0] == (Mark.ECHO if marks & Mark.CE else 0)
    assert rig.feed(Op.PAYLOAD, 502, 0, 10, marks=Mark.CE) == [(Op.ACK, 0, 502)]
    assert rig.out["marks"][0] == Mark.ECHO, "a duplicate was sent, and met that queue, as well"
    assert rig.feed(Op.PAYLOAD, 509, 0, 10, marks=Mark.CE) == [(Op.NACK, 0, 506)]
    assert rig.out["marks"][0] == 0, "a gap tells more than a mark"
    assert rig.feed(Op.PAYLOAD, 510, 0, 10, marks=Mark.CE) == []
    assert rig["marks_received"] == 5


@pytest.mark.parametrize("kind", ["fixed", "reno", "swift"])
def test_other_policies_echo_and_do_not_listen(kind: str) -> None:
    """What they send cannot be marked, so an echo is none; as receivers they have a peer that may ask."""
    heard, plain = (dctcp(congestion_control=kind) for _ in range(2))
    for rig, marks in ((heard, Mark.ECHO), (plain, 0)):
        assert [seq for seq, _ in rig.poll(6)] == list(range(1001, 1007))
        assert rig.out["marks"][0] == 0
        for seq in range(1001, 1005):
            acknowledge(rig, seq, marks)
        rig.feed(Op.PAYLOAD, 501, 0, 10, marks=Mark.CE)
        assert rig.out["marks"][0] == Mark.ECHO
    for name in ("cwnd_bytes", "cwnd_q20", "ssthresh_bytes", "acked_bytes"):
        assert heard[name] == plain[name], name


# The sender


def test_the_first_mark_halves_once_a_window() -> None:
    """alpha is 1 at first, as in RFC 8257; what was out then changes nothing more."""
    rig = dctcp()
    assert len(rig.poll()) == 10
    acknowledge(rig, 1001, Mark.ECHO)
    assert (rig["cwnd_bytes"], rig["ssthresh_bytes"]) == (500, 500)
    for seq in range(1002, 1011):
        acknowledge(rig, seq, Mark.ECHO)
        assert rig["cwnd_bytes"] == 500
    assert len(rig.poll()) == 5
    acknowledge(rig, 1011, Mark.ECHO)
    assert rig["cwnd_bytes"] == 250


def test_a_decrease_is_told_by_one_payload() -> None:
    rig = dctcp()
    rig.poll()
    assert rig.out["marks"][0] == Mark.ECT
    acknowledge(rig, 1001, Mark.ECHO)
    for seq in range(1002, 1008):
        acknowledge(rig, seq)
    told = []
    while rig.poll(1):
        told.append(int(rig.out["marks"][0]))
    assert told == [Mark.ECT | Mark.REDUCED, Mark.ECT, Mark.ECT]
    rig.now_ps += 100 * US
    rig.feed(Op.NACK, 0, 1009)
    rig.poll(1)
    assert rig.out["marks"][0] == Mark.ECT | Mark.REDUCED, "after a loss as well (RFC 3168, 6.1.2)"


def test_down_to_one_payload_and_up_again() -> None:
    rig = dctcp(2)
    seq = 1001
    for _ in range(12):
        for sent, _ in rig.poll():
            seq = sent
            acknowledge(rig, seq, Mark.ECHO)
    assert rig["cwnd_bytes"] == MTU
    assert len(rig.poll()) == 1
    acknowledge(rig, seq + 1)
    assert rig["cwnd_bytes"] == 2 * MTU


def test_control_frames_are_never_to_be_marked() -> None:
    rig = Rig(**DCTCP)
    rig.open()
    assert rig.out["marks"][0] == 0
    rig = dctcp()
    rig.feed(Op.PAYLOAD, 501, 0, 10)
    assert rig.out["marks"][0] == 0


@given(
    marks=st.lists(st.sampled_from([0, 0, 0, int(Mark.ECHO)]), min_size=1, max_size=150), packets=st.integers(1, 40),
    lost=st.sets(st.integers(0, 149), max_size=20),
)  # fmt: skip
@examples(60)
def test_alpha_and_cuts_as_the_rfc_has_them(marks: list[int], packets: int, lost: set[int]) -> None:
    """RFC 8257, 3.3, restated in floating point, over any marks; some ACKs are lost and later ones stand for them."""
    rig = dctcp(packets)
    alpha, acked_bytes, window_end, marked, begun, no_cut_until = 1.0, 0, 0, 0, 0, 0
    out: list[int] = []
    for k, mark in enumerate(marks):
        out += [seq for seq, _ in rig.poll()]
        seq = out.pop(0)
        if k in lost and out:
            continue
        before, flight = rig["cwnd_bytes"], rig["sent_bytes"]
        acknowledge(rig, seq, mark)
        newly = rig["acked_bytes"] - acked_bytes
        acked_bytes += newly
        marked += newly if mark else 0
        if acked_bytes > window_end:
            alpha += (marked / (acked_bytes - begun) - alpha) / 16
            begun, window_end, marked = acked_bytes, flight, 0
        assert rig["alpha_q20"] / ONE == pytest.approx(alpha, abs=1e-4)
        if mark and acked_bytes > no_cut_until:
            no_cut_until = flight
            assert rig["cwnd_bytes"] == pytest.approx(max(before * (1 - alpha / 2), MTU), abs=1)
        elif mark:
            assert rig["cwnd_bytes"] == before
        else:
            assert rig["cwnd_bytes"] >= before


# In the emulator


def emulated(values: dict[str, Any], kmin_bytes: int | None = None, **ttpoe: Any) -> dict[str, Any]:
    """The same with IPv4 mode, DCTCP, and a step threshold."""
    values = {**values, "ttpoe": {"mode": "ipv4", "congestion_control": "dctcp", **ttpoe}}
    if kmin_bytes is not None:
        ecn = {"kmin_bytes": kmin_bytes, "kmax_bytes": kmin_bytes}
        values["switch"] = {**values.get("switch", {}), "ecn": ecn}
    return values


UNMARKED = 2**30
FRAME_BYTES = 1024 + 64


@COMPILED
@pytest.mark.parametrize(
    ("senders", "k_bytes", "delay_us"), [(1, 30_000, 20), (1, 30_000, 50), (2, 30_000, 20), (4, 60_000, 20)]
)
def test_steady_state(senders: int, k_bytes: int, delay_us: int) -> None:
    """Long flows into 10 Gb/s: Alizadeh et al., 2010, 3.3, with a window of W* = (C x RTT + K) / N packets at the peak.

    The queue ends at K + N, to the frame that is on the line and the one that arrives; it is never empty; alpha is
    near sqrt(2 / W*), below it where the flows do not swing together, as the analysis assumes.
    """
    values = flows(*((host, 0, 10**9) for host in range(1, senders + 1)), until_ps="30ms")
    values["topology"] = {"links": [{"hosts": [0], "rate_bps": "10G", "delay_ps": f"{delay_us}us"}]}
    fabric = make(emulated(values, k_bytes), "ttpoe")
    queue = fabric.world.queues[3, fabric.watched_port : fabric.watched_port + 1]
    links = fabric.world.links[0::2]
    samples: list[tuple[int, int, float, int]] = []

    def look(at: Any) -> None:
        acked_bytes = int(links["acked_bytes"].sum())
        samples.append((at.now_ps, int(queue["bytes"][0]), float(links["alpha_q20"].mean()), acked_bytes))

    result = fabric.run(max_events=10, on_slice=look)
    assert (result.counters["drops"], result.counters["timeouts"]) == (0, 0)
    time_ps, depth, alpha, acked_bytes = np.array(samples[len(samples) // 3 :]).T
    k = k_bytes / FRAME_BYTES
    round_trip_ps = 2 * (delay_us + 1) * US + 3 * 1108 * 800 // 10 + 1108 * 800
    window = (round_trip_ps / (1108 * 800) + k) / senders
    assert depth.min() > 0
    assert k < depth.max() / FRAME_BYTES < k + senders + 2
    assert depth.mean() / FRAME_BYTES == pytest.approx(k, rel=0.17)
    assert alpha.mean() / ONE == pytest.approx((2 / window) ** 0.5, rel=0.1 if senders == 1 else 0.25)
    assert np.ptp(acked_bytes) * 8e12 / np.ptp(time_ps) == pytest.approx(10e9 * 1024 / 1108, rel=2e-3)


@COMPILED
@pytest.mark.parametrize("start_us", [0, 3000])
def test_two_flows_share_alike(start_us: int) -> None:
    """Jain's index over 20 ms; a flow that comes later has 12 ms to get its half."""
    values = emulated(flows((1, 0, 10**9), (2, 0, 10**9, start_us * US)))
    received = []
    for until_us in (15_000, 35_000):
        fabric = make({**values, "until_ps": f"{until_us}us"}, "ttpoe")
        fabric.run()
        received.append(fabric.world.links["rx_bytes"][1::2].astype(float))
    share = received[1] - received[0]
    assert share.sum() ** 2 / (2 * (share**2).sum()) > 0.98
    assert share.sum() * 8 / 0.02 > 0.98 * 100e9 * 1024 / 1108


@COMPILED
def test_an_incast_of_64_drops_nothing() -> None:
    """64 MB into a buffer of 12 MB, and into one of 2 MB from a window of one payload: nothing is lost."""
    result = result_of(incast(64, 1_000_000), "ttpoe-dctcp")
    small = emulated(incast(64, 1_000_000, switch={"buffer_bytes": "2MB"}), initial_window_packets=1)
    for told in (result, result_of(small, "ttpoe")):
        assert [told.counters[name] for name in ("drops", "timeouts", "resent_packets")] == [0, 0, 0]
        assert told.counters["marks_received"] == told.counters["ecn_marked"] > 10_000
        assert told.counters["eces_received"] == told.counters["ecn_marked"], "each mark comes back, once"
        assert told.end_ps < 1.01 * told.wire_bound_ps
        assert told.summary()["jain"] > 0.99
    assert result.transport == "ttpoe-dctcp"


def test_windows_stay_at_one_payload_where_the_path_holds_no_more() -> None:
    """96 senders, and a path and a K that hold 66 frames: each has one in flight, and nothing is dropped."""
    values = emulated(incast(96, 30_000, switch={"buffer_bytes": 400_000}), 20_000, initial_window_packets=1)
    fabric = make(values, "ttpoe")
    flight: list[np.ndarray] = []
    links = fabric.world.links[0::2]
    result = fabric.run(max_events=200, on_slice=lambda _: flight.append(links["tx_max"] - links["tx_una"]))
    assert (result.counters["drops"], result.counters["timeouts"]) == (0, 0)
    assert np.all(flight[len(flight) // 4 : 3 * len(flight) // 4] == np.ones(96))
    assert result.end_ps < 1.05 * result.wire_bound_ps


@given(
    senders=st.integers(1, 5), size_bytes=st.integers(1, 40_000), buffer_bytes=st.sampled_from([6_000, 20_000, 10**6]),
    loss=st.sampled_from([0.0, 0.03]), seed=st.integers(0, 9),
)  # fmt: skip
@examples(40)
def test_without_marks_it_is_reno(senders: int, size_bytes: int, buffer_bytes: int, loss: float, seed: int) -> None:
    """Every frame at every time, but for what frames say of marks; and every counter of every run."""
    values = incast(senders, size_bytes, switch={"buffer_bytes": buffer_bytes}, link={"impairments": {"loss": loss}})
    told = []
    for kind in ("reno", "dctcp"):
        _, result, rows = traced(emulated(values, UNMARKED, congestion_control=kind), "ttpoe", {"h0", "h1"}, seed)
        assert (rows["ecn"] == ECT).any() == (kind == "dctcp")
        rows["ecn"] = 0
        rows["frame"]["marks"] = 0
        told.append((result.digest, rows.tolist()))
    assert told[0] == told[1]


def test_what_can_be_marked_and_what_comes_of_it() -> None:
    """Data alone is ECT; an ACK echoes exactly where its payload had CE; decreases are told."""
    values = emulated(incast(3, 60_000), 10_000)
    _, result, rows = traced(values, "ttpoe", {"h0"})
    opcodes, frames = rows["frame"]["opcode"], rows["frame"]
    is_data = opcodes == Op.PAYLOAD
    assert set(rows["ecn"][is_data].tolist()) == {ECT, CE}
    assert set(rows["ecn"][~is_data].tolist()) == {0}
    marked = {(int(row["end"]), int(row["frame"]["tx_seq"])) for row in rows[is_data & (rows["ecn"] == CE)]}
    echoed = {(int(row["end"]) ^ 1, int(row["frame"]["rx_seq"])) for row in rows[frames["marks"] == Mark.ECHO]}
    assert marked == echoed
    assert len(marked) == result.counters["ecn_marked"] > 20
    assert (frames["marks"][is_data] & Mark.REDUCED).any()


def test_a_line_that_marks() -> None:
    """Every tenth frame or so; what is not ECT is left alone, and so is what the transport cannot hear."""
    values = incast(1, 1_000_000, link={"impairments": {"mark": "10%"}})
    result = result_of(emulated(values, UNMARKED), "ttpoe")
    frames = 2 * 977
    assert result.frames_impaired["marked"] == pytest.approx(0.1 * frames, rel=0.2)
    heard = result.counters["eces_received"]
    assert 0 < heard == result.counters["marks_received"] <= result.frames_impaired["marked"]
    assert result_of(values, "ttpoe").frames_impaired["marked"] == 0
    assert result_of(values, "ttpoe-reno").frames_impaired["marked"] == 0


MIXED = emulated(
    incast(6, 40_000, switch={"buffer_bytes": 14_000}, link={"impairments": {"loss": 0.01, "mark": 0.02}}), 4_000
)  # fmt: skip
"""Marks of a switch and of lines, drops and losses."""


@COMPILED
@OTHER_MODES
def test_interpreted_and_bounds_checked(variable: str) -> None:
    here = result_of(MIXED, "ttpoe")
    for name in ("drops", "lost", "ecn_marked", "eces_received"):
        assert here.counters[name] > 0, name
    assert here.frames_impaired["marked"] > 0
    assert not here.unfinished
    assert digests_under(variable, MIXED, "ttpoe", ports=("h0",)) == [here.digest]


def test_conserved_over_pfc_and_with_a_shared_window() -> None:
    values = emulated(MIXED, 4_000, shared_window=True, window_bytes=20_000)
    assert not checked(values, "ttpoe", every=300).unfinished
    own = {"profiles": [{"name": "own", "base": "ttpoe-dctcp", "flow_control": "pfc"}], "transports": ["own"]}
    result = checked({**emulated(incast(4, 100_000), 10_000), **own}, "own")
    assert result.counters["drops"] == 0 < result.counters["ecn_marked"]


# What cannot be


@pytest.mark.parametrize(
    "values",
    [
        {"transports": ["ttpoe-dctcp"]},
        {"ttpoe": {"congestion_control": "dctcp"}},
        {"transports": ["own"], "profiles": [{"name": "own", "base": "ttpoe", "congestion_control": "dctcp"}]},
    ],
)
def test_scenarios_in_ethernet_mode(values: dict[str, Any]) -> None:
    says = r"ttpoe\.mode: .* has dctcp, which answers ECN marks; frames in Ethernet mode have no field for them, so set"
    with pytest.raises(ConfigError, match=says):
        make_scenario(values)
    make_scenario({**values, "ttpoe": {"mode": "ipv4", **values.get("ttpoe", {})}})


def test_fields_that_cannot_be() -> None:
    with pytest.raises(ConfigError, match=r"ttpoe\.congestion_control: must be 'fixed', 'reno', 'swift' or 'dctcp'"):
        make_scenario({"ttpoe": {"congestion_control": "dcqcn"}})
    with pytest.raises(ConfigError, match=r"ttpoe\.mode: must be 'ethernet' or 'ipv4'"):
        make_scenario({"ttpoe": {"mode": "ipv6"}})
    with pytest.raises(ConfigError, match=r"impairments\.mark_above_bytes: frames .* in a switch; set switch\.ecn"):
        make_scenario({"link": {"impairments": {"mark_above_bytes": 1}}})
    with pytest.raises(ConfigError, match=r"link\.impairments\.mark: "):
        make_scenario({"link": {"impairments": {"mark": "200%"}}})


def test_endpoints_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="frames in Ethernet mode have no field for them, so use IPv4 mode"):
        Endpoint(0x020000000001, EndpointConfig(congestion_control="dctcp"))
    Endpoint(0x020000000001, EndpointConfig(congestion_control="dctcp"), ip=0x0A000001)
    with pytest.raises(ValueError, match="beside rules of the reference module, which echoes no marks; take fixed"):
        EndpointConfig(congestion_control="dctcp", rules=REFERENCE)
