"""TTPoE's machine behind emulated ports: timers, failures, the handshake, and windows that links share."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from emulated import COMPILED, checked, examples, flows, incast, make, result_of, traced
from hypothesis import given
from hypothesis import strategies as st

from emulator.engine import RunStatus
from emulator.packet import ANSWER, DATA
from ttpoe.fsm import Opcode

US, MS = 10**6, 10**9
CONTROL_PS, FRAME_PS = 88 * 80, 1108 * 80
ONE_WAY_PS = 2 * US
RTT_PS = 4 * CONTROL_PS + 2 * ONE_WAY_PS


def lossy(lost: dict[int, list[int]], **fields: Any) -> dict[str, Any]:
    links = [{"hosts": [host], "bad_fcs_frames": frames} for host, frames in lost.items()]
    return {"topology": {"links": links}, **fields}


def test_a_lost_open_costs_the_first_timeout() -> None:
    flow = result_of(incast(1, 1024, **lossy({1: [1]})), "ttpoe").flows[0]
    assert flow["fct_rx_ps"] - flow["ideal_ps"] == MS  # rto_initial
    assert (flow["timeouts"], flow["drops"]) == (1, 0)


def test_a_lost_open_ack_as_well() -> None:
    flow = result_of(incast(1, 1024, **lossy({0: [1]})), "ttpoe").flows[0]
    assert flow["fct_rx_ps"] - flow["ideal_ps"] == MS


def test_a_lost_last_frame_costs_the_floor_of_the_timeout() -> None:
    """The handshake's sample is a few microseconds, so the timeout is rto_min, from when the frame began."""
    for floor_us in (100, 250):
        ttpoe = {"rto_min_ps": floor_us * US, "tail_loss_probe": False}
        values = incast(1, 1024, **lossy({1: [2]}, ttpoe=ttpoe))
        flow = result_of(values, "ttpoe").flows[0]
        assert flow["fct_rx_ps"] - flow["ideal_ps"] == floor_us * US
        assert (flow["timeouts"], flow["resent_packets"]) == (1, 1)


def test_a_lost_middle_frame_costs_a_nack() -> None:
    """The gap shows with the next frame; no timeout."""
    fabric, result, rows = traced(incast(1, 60 * 1024, **lossy({1: [11]})), "ttpoe", {"h1"})
    flow = result.flows[0]
    assert flow["timeouts"] == 0
    assert 0 < flow["fct_rx_ps"] - flow["ideal_ps"] < 2 * RTT_PS
    nacks = rows[(rows["is_out"] == 0) & (rows["frame"]["opcode"] == Opcode.NACK)]
    assert len(nacks) == 1
    sent = rows[(rows["is_out"] == 1) & (rows["kind"] == DATA)]
    first = int(fabric.world.links["initial_seq"][0]) + 1
    ids = [(seq - first) & 0xFFFFFFFF for seq in sent["frame"]["tx_seq"].tolist()]
    assert (int(nacks["frame"]["rx_seq"][0]) - first) & 0xFFFFFFFF == 9
    back = ids.index(9, 10)
    assert ids == [*range(back), *range(9, 60)]
    assert flow["resent_packets"] == back - 9


def test_a_peer_that_is_never_reached() -> None:
    """retry_limit timeouts are retried, doubling up to rto_max; one more ends the link with a reason."""
    ttpoe = {"retry_limit": 5, "rto_max_ps": "4ms"}
    result = result_of(incast(2, 1024, **lossy({1: list(range(1, 50))}, ttpoe=ttpoe)), "ttpoe")
    assert result.status is RunStatus.FINISHED
    assert result.unfinished == ["h1>h0 (retry_limit)"]
    assert result.end_ps == (1 + 2 + 4 + 4 + 4 + 4) * MS
    assert result.summary()["finished"] == 1
    assert result.flows["timeouts"][0] == 6


@COMPILED
def test_a_run_that_is_not_over_in_time_names_its_flows() -> None:
    result = result_of(incast(3, 10_000_000, until_ps="500us"), "ttpoe")
    assert result.status is RunStatus.UNTIL
    assert result.unfinished == ["h1>h0", "h2>h0", "h3>h0"]
    assert result.end_ps <= 500 * US
    summary = result.summary()
    assert (summary["finished"], summary["fct_us"]["max"], summary["goodput_gbps"], summary["jain"]) == (0, *[None] * 3)
    assert (result.flows["ideal_ps"] == -1).all()


def test_larger_payloads_have_another_name() -> None:
    assert result_of(incast(2, 10_000, ttpoe={"mtu_bytes": 1024}), "ttpoe").transport == "ttpoe"
    assert result_of(incast(2, 10_000, ttpoe={"mtu_bytes": 1025}), "ttpoe").transport == "ttpoe-jumbo"
    assert result_of(incast(2, 10_000, ttpoe={"mtu_bytes": 4096}), "ttpoe-pfc").transport == "ttpoe-jumbo-pfc"
    assert result_of(incast(2, 10_000, ttpoe={"mtu_bytes": 4096}), "roce").transport == "roce"


def test_frames_of_a_transfer() -> None:
    """OPEN, OPEN_ACK, then each PAYLOAD has its ACK with its id."""
    _, result, rows = traced(incast(1, 2500), "ttpoe", {"h1"})
    seen = [(int(r["is_out"]), Opcode(int(r["frame"]["opcode"])), int(r["frame"]["payload_bytes"])) for r in rows]
    assert seen == [
        (1, Opcode.OPEN, 0), (0, Opcode.OPEN_ACK, 0), (1, Opcode.PAYLOAD, 1024), (1, Opcode.PAYLOAD, 1024),
        (1, Opcode.PAYLOAD, 452), (0, Opcode.ACK, 0), (0, Opcode.ACK, 0), (0, Opcode.ACK, 0),
    ]  # fmt: skip
    assert rows["time_ps"][1] == RTT_PS
    data = rows[rows["kind"] == DATA]["frame"]["tx_seq"].tolist()
    assert rows[(rows["kind"] == ANSWER) & (rows["is_out"] == 0)]["frame"]["rx_seq"].tolist()[1:] == data
    assert result.flows["fct_tx_ps"][0] == rows["time_ps"][-1]


def most_outstanding(rows: np.ndarray, ends: dict[int, int]) -> int:
    """Largest payload sent and not acknowledged by a host, from its frames; ``ends``: initial id by receiving end."""
    acked: dict[int, int] = dict.fromkeys(ends, 0)
    sent: dict[int, dict[int, int]] = {end: {} for end in ends}
    most = 0
    for row in rows:
        frame = row["frame"]
        if row["is_out"] and row["kind"] == DATA:
            end = int(row["end"])
            sent[end][(int(frame["tx_seq"]) - ends[end]) & 0xFFFFFFFF] = int(frame["payload_bytes"])
        elif not row["is_out"] and frame["opcode"] == Opcode.ACK:
            end = int(row["end"]) ^ 1
            acked[end] = max(acked[end], (int(frame["rx_seq"]) - ends[end]) & 0xFFFFFFFF)
        held = sum(size for end, ids in sent.items() for k, size in ids.items() if k > acked[end])
        most = max(most, held)
    return most


@pytest.mark.parametrize("handshake", [True, False])
@pytest.mark.parametrize("links", [1, 2, 7])
def test_links_of_a_host_share_its_window(links: int, handshake: bool) -> None:
    """Together they hold at most the window, use it, and all get through, though none is woken by its own frames."""
    window = 8 * 1024
    rows_ = [(0, 1 + k, 100_000 + k) for k in range(links)]
    ttpoe = {"window_bytes": window, "shared_window": True, "handshake": handshake}
    fabric, result, rows = traced(flows(*rows_, ttpoe=ttpoe, link={"delay_ps": "5us"}), "ttpoe", {"h0"})
    assert result.unfinished == []
    initial = {2 * k + 1: int(fabric.world.links["initial_seq"][2 * k]) for k in range(links)}
    assert window - 1024 < most_outstanding(rows, initial) <= window
    # As long as one link with all of it, give or take a round trip for each.
    alone = result_of(flows((0, 1, 100_000 * links), ttpoe=ttpoe, link={"delay_ps": "5us"}), "ttpoe")
    assert int(result.flows["fct_rx_ps"].max()) == pytest.approx(int(alone.flows["fct_rx_ps"][0]), rel=0.1)
    if links > 1:
        took = result.flows["fct_rx_ps"]
        assert took.min() > 0.8 * took.max()  # in turn
    assert fabric.world.pools["held_bytes"].sum() == 0


def test_windows_of_their_own_are_not_shared() -> None:
    rows_ = [(0, 1 + k, 100_000) for k in range(4)]
    ttpoe = {"window_bytes": 8 * 1024, "shared_window": False}
    fabric, _, rows = traced(flows(*rows_, ttpoe=ttpoe, link={"delay_ps": "5us"}), "ttpoe", {"h0"})
    initial = {2 * k + 1: int(fabric.world.links["initial_seq"][2 * k]) for k in range(4)}
    assert 3 * 8 * 1024 < most_outstanding(rows, initial) <= 4 * 8 * 1024


def test_a_link_that_fails_gives_its_share_back() -> None:
    """h1 is dead and holds half of the window until the retry limit; then the other link goes on with all of it."""
    values = flows(
        (0, 1, 3000), (0, 2, 50_000), topology={"links": [{"hosts": [1], "bad_fcs_frames": list(range(1, 100))}]},
        ttpoe={"window_bytes": 3000, "shared_window": True, "handshake": False, "retry_limit": 3},
    )  # fmt: skip
    result = checked(values, "ttpoe")
    assert result.unfinished == ["h0>h1 (retry_limit)"]
    assert result.flows["fct_rx_ps"][1] > 0


@given(st.integers(1, 6), st.integers(1, 6), st.booleans(), st.integers(1024, 9000), st.integers(100_000, 500_000),
       st.lists(st.integers(1, 300), max_size=30), st.lists(st.integers(1, 300), max_size=30))  # fmt: skip
@examples(150)
def test_messages_arrive_whatever_is_lost(
    links: int, hosts: int, is_shared: bool, window: int, buffer_bytes: int, lost: list[int], lost_back: list[int]
) -> None:
    """Damaged frames both ways, little buffer, windows shared or not: all is delivered, and every frame is counted."""
    rows = [(k % hosts, hosts, 20_000 + 977 * k, k * 100) for k in range(links)]
    damaged = [{"hosts": [0], "bad_fcs_frames": lost}, {"hosts": [hosts], "bad_fcs_frames": lost_back}]
    values = flows(*rows, topology={"links": damaged}, switch={"buffer_bytes": buffer_bytes, "alpha": 0.05},
                   ttpoe={"window_bytes": window, "shared_window": is_shared, "retry_limit": 100})  # fmt: skip
    result = checked(values, "ttpoe", every=499)
    assert result.unfinished == []
    assert result.counters["lost"] <= len(lost) + len(lost_back)
    fabric = make(values, "ttpoe")
    fabric.run()
    assert fabric.world.links["rx_bytes"][1::2].tolist() == [row[2] for row in rows]
