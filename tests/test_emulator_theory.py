"""Runs against theory: bounds of an incast, D/D/1, M/D/1, Little's law, fair ties, and the series over time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from emulated import ALL, COMPILED, LINE_PS_PER_BYTE, checked, flows, incast, result_of, traced

from emulator.packet import PFC
from emulator.series import BUCKETS, FIRST_BUCKET_PS

pytestmark = COMPILED

US = 10**6
FRAME_LINE, FRAME_HELD = 1108, 1088
"""A TTPoE frame of 1024 on the line, and in a buffer."""
FRAME_PS = FRAME_LINE * LINE_PS_PER_BYTE

# --- incast ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("senders", [2, 3, 8, 32, 64])
@pytest.mark.parametrize(("rate", "size_bytes"), [("10G", 100_000), ("100G", 100_000), ("100G", 1_000_000),
                                                  ("400G", 500_000), ("3.7G", 65_537)])  # fmt: skip
def test_a_lossless_incast_takes_the_wire_bound(senders: int, rate: str, size_bytes: int) -> None:
    """The receiver's line never idles: within 1 % of all wire bytes at its rate and one path."""
    result = result_of(incast(senders, size_bytes, link={"rate_bps": rate}), "roce-pfc")
    assert result.wire_bound_ps is not None
    last_ps = int(result.flows["fct_rx_ps"].max())
    assert result.wire_bound_ps <= last_ps <= 1.01 * result.wire_bound_ps
    assert result.counters["drops"] == 0
    assert result.summary()["goodput_gbps"] <= result.goodput_limit_gbps


def test_the_bound_of_the_default_incast() -> None:
    """32 senders of 1 MB at MTU 4096: 245 frames each, 1 019 130 + 16 bytes of line; 2611 us at 100G, and the path."""
    result = result_of(incast(32, 1_000_000), "roce-pfc")
    frames = 244 * 4178 + 16 + (1_000_000 - 244 * 4096 + 58 + 24)
    assert result.wire_bound_ps == 32 * frames * 80 + (4194 * 80 + US) + US
    assert 32 * frames * 80 / US == pytest.approx(2611, abs=1)


@pytest.mark.parametrize("transport", ALL)
@pytest.mark.parametrize("fields", [
    {}, {"switch": {"buffer_bytes": "1.2MB"}}, {"workload": {"kind": "incast", "jitter_ps": "20us", "senders": 9}},
    {"topology": {"links": [{"hosts": [0], "rate_bps": "25G"}, {"hosts": [2], "rate_bps": "400G", "delay_ps": 7}]}},
    {"topology": {"links": [{"hosts": [1, 2, 3], "rate_bps": "1G"}]}},
])  # fmt: skip
def test_nobody_beats_the_wire_bound(transport: str, fields: dict[str, Any]) -> None:
    """Under loss, jitter and mixed speeds; and every frame is accounted for at every slice."""
    values = {**incast(9, 200_000), **fields}
    values["workload"] = {**values["workload"], "size_bytes": 200_000}
    result = checked(values, transport)
    ends = result.flows["start_ps"] + result.flows["fct_rx_ps"]
    assert result.unfinished == []
    assert result.wire_bound_ps is not None
    assert ends.max() - result.flows["start_ps"].min() >= result.wire_bound_ps
    assert (result.flows["fct_rx_ps"] >= result.flows["ideal_ps"]).all()


@pytest.mark.parametrize("transport", ALL)
def test_one_sender_drops_nothing(transport: str) -> None:
    open_window = {"initial_window_packets": 10_000}
    values = incast(1, 5_000_000, tcp=open_window, ttpoe={**open_window, "target_delay_ps": "1s"})
    result = result_of(values, transport)
    assert result.counters["drops"] == result.counters["resent_packets"] == result.counters["pauses"] == 0
    assert result.flows["fct_rx_ps"][0] == result.flows["ideal_ps"][0]


def test_two_receivers_have_no_common_bound() -> None:
    assert result_of(flows((0, 1, 1000), (1, 0, 1000)), "roce").summary()["wire_bound_us"] is None


# --- queues ----------------------------------------------------------------------------------------------------------

OPEN = {"handshake": False, "window_bytes": "100MB", "rto_min_ps": "1s", "rto_initial_ps": "1s"}
"""TTPoE as a source of frames that nothing holds back."""


@pytest.mark.parametrize("receiver_bps", [100_000_000_000, 50_000_000_000, 30_000_000_000, 3_700_000_000])
def test_a_deterministic_queue(receiver_bps: int) -> None:
    """D/D/1: after the k-th arrival (from 0) the queue holds k less the services begun before it, exactly."""
    n = 200
    values = incast(1, n * 1024, ttpoe=OPEN, topology={"links": [{"hosts": [0], "rate_bps": receiver_bps}]},
                    switch={"buffer_bytes": "100MB"})  # fmt: skip
    result = result_of(values, "ttpoe")
    service_ps = -(-FRAME_LINE * 8 * 10**12 // receiver_bps)
    depths = [1] + [k - (k * FRAME_PS) // service_ps for k in range(1, n)]
    if service_ps == FRAME_PS:
        depths = [1] * n
    port = next(port for port in result.ports if port["name"] == "s0.p0")
    assert port["max_queue_bytes"] == max(depths) * FRAME_HELD
    assert result.flows["fct_rx_ps"][0] == FRAME_PS + n * service_ps + 2 * US


# --- ties ------------------------------------------------------------------------------------------------------------


def ranks(values: np.ndarray) -> np.ndarray:
    """Ranks with ties averaged."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts + 1) / 2)[inverse]


@pytest.mark.parametrize(("transport", "buffer"), [("ttpoe", "300KB"), ("roce", "1MB")])
def test_equal_senders_lose_alike(transport: str, buffer: str) -> None:
    """Over seeds no sender is favoured: no trend over the index, and no more spread than luck.

    Luck: the spread of a sum over independent seeds, from the spread within each; all lie within 4 sigma of the mean.
    A tie-break by index alone makes one sender lose nothing and another everything.
    """
    senders, seeds = 48, 40
    drops = np.array([
        result_of(incast(senders, 64_000, switch={"buffer_bytes": buffer}), transport, seed).flows["drops"]
        for seed in range(1, seeds + 1)
    ])  # fmt: skip
    total = drops.sum(axis=0)
    assert total.min() > 0
    assert abs(np.corrcoef(np.arange(senders), ranks(total))[0, 1]) < 0.35
    luck = np.sqrt((drops.var(axis=1, ddof=1)).sum())
    assert total.std(ddof=1) < 1.4 * luck
    assert np.abs(total - total.mean()).max() < 4 * luck
    if transport == "roce":
        assert np.abs(total / total.mean() - 1).max() < 0.2


# --- series ----------------------------------------------------------------------------------------------------------


def brute_series(changes: list[tuple[int, int]], edges_ps: list[int]) -> tuple[list[int], list[int]]:
    """Maximum and last value of each bucket of a step function; a bucket begins with the value before it."""
    peaks, lasts = [], []
    value = at = 0
    for end_ps in edges_ps[1:]:
        peak = value
        while at < len(changes) and changes[at][0] < end_ps:
            value = changes[at][1]
            peak = max(peak, value)
            at += 1
        peaks.append(peak)
        lasts.append(value)
    assert at == len(changes)
    return peaks, lasts


@pytest.mark.parametrize(("size_bytes", "doublings", "ack_priority"),
                         [(20_000, 0, None), (150_000, 1, 5), (1_000_000, 4, None), (3_000_000, 6, 5)])  # fmt: skip
def test_series_against_a_step_function_from_captured_frames(
    size_bytes: int, doublings: int, ack_priority: int | None
) -> None:
    """Depth: what came for the watched port less what left it. Pauses: what the hosts were told. Both at any width."""
    senders = 16
    messages = [(h, 0, size_bytes, 100_000 * h) for h in range(1, senders + 1)]
    back = [(0, 1, size_bytes), (0, 2, size_bytes // 2)]  # whose acknowledgements pass the watched port
    values = flows(*messages, *back, ack_priority=ack_priority, switch={"buffer_bytes": "2.5MB"})
    names = {name for h in range(senders + 1) for name in (f"h{h}", f"s0.p{h}")}
    fabric, result, rows = traced(values, "roce-pfc", names)
    watched = fabric.topology.port_names.index("s0.p0")
    depth: list[tuple[int, int]] = []
    paused: list[tuple[int, int]] = []
    told: set[tuple[int, int]] = set()
    held = 0
    for row in rows:
        port, kind, is_out = int(row["port"]), int(row["kind"]), int(row["is_out"])
        at_switch = port % 2 == 1
        if kind == PFC:
            if not at_switch and not is_out:
                key = (port, int(row["priority"]))
                (told.add if row["cookie"] else told.discard)(key)
                paused.append((int(row["time_ps"]), len(told)))
        elif at_switch and row["priority"] == 3:
            size = frame_bytes(row)
            towards_h0 = fabric.world.ends["host"][row["end"]] == 0
            if towards_h0 and not is_out:
                held += size
            elif port == watched and is_out:
                held -= size
            else:
                continue
            depth.append((int(row["time_ps"]), held))
    widths = np.diff(result.series_edges_ps)
    assert len(widths) == len(result.series)
    assert (widths[:BUCKETS] == FIRST_BUCKET_PS).all()
    assert widths[-1] == FIRST_BUCKET_PS << doublings
    starts = result.series_edges_ps[:-1]
    assert (widths[BUCKETS:] * BUCKETS // 2 <= starts[BUCKETS:]).all()  # each is told to a 512th of its time
    assert (widths[BUCKETS:] * BUCKETS > starts[BUCKETS:]).all()
    assert starts[-1] <= result.end_ps < result.series_edges_ps[-1]
    for changes, peak, last in ((depth, "depth_max_bytes", "depth_bytes"), (paused, "paused_max", "paused")):
        peaks, lasts = brute_series(changes, result.series_edges_ps.tolist())
        assert result.series[peak].tolist() == peaks
        assert result.series[last].tolist() == lasts
    if doublings:
        assert result.series["paused_max"].max() > 1


def frame_bytes(row: Any) -> int:
    """Of a RoCE frame in a buffer."""
    opcode, payload = int(row["frame"]["opcode"]), int(row["frame"]["payload_bytes"])
    extra = {0x06: 16, 0x0A: 16, 0x11: 4}.get(opcode, 0)
    return max(58 + extra + (payload + 3) // 4 * 4, 60) + 4


def test_a_series_goes_on_to_the_end_of_a_run() -> None:
    """A run that waits long after its last frame: the last values hold to the end, in as many buckets."""
    values = incast(2, 4096, topology={"links": [{"hosts": [1], "bad_fcs_frames": list(range(1, 20))}]})
    result = result_of(values, "roce")
    assert result.end_ps > 500_000 * US
    assert result.series_edges_ps[-2] <= result.end_ps < result.series_edges_ps[-1]
    assert len(result.series) < 10_000
    assert result.series["depth_bytes"][-1] == 0
