"""Link-level retry: no loss above the link, in order, at the goodput of go-back-N and of its replay buffer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from emulated import COMPILED, checked, examples, flows, incast, make, traced
from hypothesis import given
from hypothesis import strategies as st

from emulator.config import ConfigError
from emulator.packet import DATA
from emulator.roce import PSN_MASK, ROCE_FRAME

US = 10**6
FRAME = 4178
"""A middle RoCE frame of 4096 on the line."""


def scenario(
    retry_bytes: int | str, size_bytes: int = 8_000_000, delay_ps: int = US, **impairments: Any
) -> dict[str, Any]:
    """h1 sends to h0; only the way from h1 is impaired. Acknowledgements are few, so the way back is free."""
    link = {"hosts": [1], "impaired_ways": "from_host", "impairments": impairments}
    return flows(
        (1, 0, size_bytes), link={"retry_bytes": retry_bytes, "delay_ps": delay_ps}, topology={"links": [link]},
        roce={"ack_every_packets": 1_000_000}, switch={"buffer_bytes": "64MB"},
    )  # fmt: skip


def pace_ps(values: dict[str, Any]) -> float:
    """Time a frame, over a run that must show no loss."""
    result = checked(values, "roce", every=4001)
    assert result.unfinished == []
    assert result.counters["resent_packets"] == result.counters["timeouts"] == result.counters["lost"] == 0
    frames = -(-values["workload"]["flows"][0]["size_bytes"] // 4096)
    return (int(result.flows["fct_rx_ps"][0]) - 2 * values["link"]["delay_ps"]) / frames


@COMPILED
@pytest.mark.parametrize("loss", [0.001, 0.01, 0.1])
@pytest.mark.parametrize("kind", ["bad_fcs", "loss"])
def test_goodput_is_that_of_go_back_n(kind: str, loss: float) -> None:
    """A damaged frame costs the frames that are sent until the sender knows, itself included.

    Each frame goes out 1 + p w / (1 - p) times, where w = 1 + (2 x delay + NAK) / frame, rounded up as the sender ends
    the frame it is at: the textbook's (1 - p) / (1 - p + p w).
    """
    round_trip_ps = 2 * US + 80 * 8
    w = 1 + int(np.ceil(round_trip_ps / (80 * FRAME)))
    expected_ps = 80 * FRAME * (1 + w * loss / (1 - loss))
    pace = pace_ps(scenario("1MB", 16_000_000, **{kind: loss}))
    assert pace == pytest.approx(expected_ps, rel=0.04 if loss < 0.1 else 0.06)


@COMPILED
@pytest.mark.parametrize("frames", [1, 2, 5, 7, 20])
def test_a_short_replay_buffer_limits_a_line(frames: int) -> None:
    """min(line, buffer / (frame + 2 x delay + ACK))."""
    pace = pace_ps(scenario(frames * FRAME + 16))
    round_trip_ps = 80 * FRAME + 2 * US + 80 * 8
    assert pace == pytest.approx(max(80 * FRAME, round_trip_ps / frames), rel=0.01)


@COMPILED
def test_the_transport_sees_each_frame_once_and_in_order() -> None:
    values = scenario("100kB", 4_000_000, bad_fcs=0.05)
    _, result, rows = traced(values, "roce", {"s0.p1"})
    arrived = rows[(rows["kind"] == DATA) & (rows["is_out"] == 0)]
    psns = np.ascontiguousarray(arrived["frame"]).view(ROCE_FRAME)["psn"]
    assert result.counters["frames_replayed"] > result.counters["link_replays"] > 20
    assert len(psns) == -(-4_000_000 // 4096)
    assert set(np.diff(psns) & PSN_MASK) == {1}
    port = next(port for port in result.ports if port["name"] == "h1")
    assert port["frames_replayed"] == result.counters["frames_replayed"]
    assert port["tx_frames"] == len(arrived)


@st.composite
def bad_networks(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    loss = st.sampled_from([0.0, 0.01, 0.2])
    rows = [(src, draw(st.integers(0, 2)), draw(st.integers(1, 100_000)), draw(st.integers(0, 3 * US)))
            for src in range(3, 6)]  # fmt: skip
    return draw(st.sampled_from(["roce", "roce-pfc", "ttpoe", "ttpoe-pfc", "ib"])), flows(
        *rows, topology={"kind": "leaf-spine", "leaves": 2, "hosts_per_leaf": 3, "spines": 1},
        link={"retry_bytes": draw(st.integers(4300, 60_000)), "delay_ps": draw(st.integers(0, 2 * US)),
              "impairments": {"bad_fcs": draw(loss), "loss": draw(loss)}},
    )  # fmt: skip


@given(bad_networks())
@examples(60)
def test_no_loss_is_seen_above_the_link(case: tuple[str, dict[str, Any]]) -> None:
    """Whatever links do to data, acknowledgements, pauses and credits, nothing is lost."""
    transport, values = case
    result = checked(values, transport, every=211)
    assert result.counters["lost"] == result.counters["drops"] == 0
    assert result.unfinished == []


@pytest.mark.parametrize(
    ("link", "message"),
    [
        ({"retry_bytes": 4000}, r"link.retry_bytes: 4000 is less than a frame of 4194 bytes"),
        ({"retry_bytes": 10_000, "impairments": {"reorder": 0.1}}, r"link.impairments.reorder: a link that retries"),
        ({"retry_bytes": 10_000, "impairments": {"jitter_ps": 5}}, r"link.impairments.jitter_ps: a link that retries"),
    ],
)
def test_what_cannot_work_is_refused(link: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(incast(2, 1000, link=link), "roce")
