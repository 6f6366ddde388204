"""Bit errors: a frame is lost with 1 - (1 - rate)^bits, whatever its length and however small the rate."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from emulated import COMPILED, checked, flows, incast, make, result_of, traced

from emulator.config import ConfigError
from emulator.framing import data_wire_bytes
from emulator.packet import DATA, LINE_ONLY_BYTES
from ttpoe.impair import Impairment, _BitErrors
from ttpoe.impairments import ImpairmentConfig
from ttpoe.wire import HEADER_BYTES

US = 10**6


def frame_loss(frame_bytes: float | np.ndarray, rate: float) -> Any:
    """Of frames of so many bytes, FCS included."""
    return -np.expm1(8 * frame_bytes * np.log1p(-rate))


def within(count: int, chances: np.ndarray | float, n: int = 1, sigmas: float = 4.5) -> bool:
    """Whether so many of independent chances came true."""
    p = np.asarray(chances)
    return abs(count - n * p.sum()) <= sigmas * math.sqrt(n * (p * (1 - p)).sum()) + 1


# The stage on a real line


@pytest.mark.parametrize("size", [1, 60, 300, 1514])
@pytest.mark.parametrize("rate", [1e-6, 1e-4, 3e-3])
def test_a_frame_of_the_wire_is_lost_by_its_length(size: int, rate: float) -> None:
    """Short frames are padded to 60 bytes; then there are 4 of FCS."""
    impairment = Impairment(5, bit_error_rate=rate)
    n = 40_000
    arrived = sum(len(impairment.pass_frame(bytes(size))) for _ in range(n))
    assert arrived + impairment.counters.bit_errors == n
    assert within(impairment.counters.bit_errors, frame_loss(max(size, 60) + 4, rate), n)


def test_frames_of_two_lengths_on_one_line() -> None:
    """A bit is as often wrong in a short frame as in a long one, whoever came before."""
    impairment, lost, n = Impairment(6, bit_error_rate=1e-5), {64: 0, 1500: 0}, 60_000
    for _ in range(n):
        for size in lost:
            lost[size] += not impairment.pass_frame(bytes(size))
    for size, count in lost.items():
        assert within(count, frame_loss(size + 4, 1e-5), n)


def test_what_a_frame_meets_tells_nothing_of_the_next() -> None:
    errors = _BitErrors(7, 8, ImpairmentConfig(bit_error_rate=1e-3).bits_per_error)
    fates = [errors.strike(100) for _ in range(60_000)]
    p = frame_loss(100, 1e-3)
    after = [fate for before, fate in itertools.pairwise(fates) if before]
    assert within(sum(fates), p, len(fates))
    assert within(sum(after), p, len(after))


def test_distances_are_geometric() -> None:
    """Right bits before a wrong one, at 1 in 8: each count against its own chance, bit by bit over 100,000 errors."""
    bits_per_error = ImpairmentConfig(bit_error_rate=1 / 8).bits_per_error
    errors, counts, n = _BitErrors(8, 8, bits_per_error), np.zeros(12, int), 100_000
    for _ in range(n):
        errors._right_bits = -1
        errors.strike(0)
        counts[min(errors._right_bits, 11)] += 1
    for k in range(11):
        assert within(counts[k], (7 / 8) ** k / 8, n)
    assert within(counts[11], (7 / 8) ** 11, n)


@pytest.mark.parametrize("rate", [1e-15, 1e-12, 1e-9])
def test_tiny_rates_are_exact(rate: float) -> None:
    """1 - rate keeps none of the digits of these; the mean of the distances, and no two of them alike, show that
    log1p does."""
    bits_per_error = ImpairmentConfig(bit_error_rate=rate).bits_per_error
    assert bits_per_error == pytest.approx(1 / rate - 0.5, rel=1e-12)
    errors, n = _BitErrors(9, 8, bits_per_error), 4_000
    distances = []
    for _ in range(n):
        errors._right_bits = -1
        errors.strike(0)
        distances.append(errors._right_bits)
    assert np.mean(distances) == pytest.approx(1 / rate, rel=4.5 / math.sqrt(n))
    assert len(set(distances)) == n


def test_none_or_all() -> None:
    assert ImpairmentConfig(bit_error_rate=0.0).bits_per_error == 0
    assert not ImpairmentConfig(bit_error_rate=0.0).is_active
    assert ImpairmentConfig(bit_error_rate=5e-324).is_active
    assert Impairment(1, bit_error_rate=5e-324).pass_frame(b"frame") == [b"frame"]
    everything = Impairment(1, bit_error_rate=1.0)
    assert [everything.pass_frame(b"frame") for _ in range(50)] == [[]] * 50
    assert everything.counters.bit_errors == 50
    with pytest.raises(ValueError, match=r"bit_error_rate is 1\.1; it must be from 0 to 1"):
        ImpairmentConfig(bit_error_rate=1.1)


# Emulated lines


def impaired(rate: float | str, size_bytes: int = 4_000_000, way: str = "from_host", **more: Any) -> dict[str, Any]:
    """One sender whose cable has bit errors."""
    link = {"hosts": [1], "impairments": {"bit_error_rate": rate}, "impaired_ways": way}
    return incast(1, size_bytes, topology={"links": [link]}, **more)


@COMPILED
@pytest.mark.parametrize("rate", [2e-7, 1e-5])
@pytest.mark.parametrize("mtu_bytes", [256, 1024])
def test_payloads_are_lost_by_their_length(mtu_bytes: int, rate: float) -> None:
    """Each frame that h1 sent, by its own length: OPEN and CLOSE among PAYLOADs, and those that were sent again."""
    values = impaired(rate, 2_000_000, ttpoe={"mtu_bytes": mtu_bytes})
    fabric, result, rows = traced(values, "ttpoe", {"h1"})
    sent = rows[(rows["is_out"] == 1) & (rows["port"] == fabric.topology.port_names.index("h1"))]
    frame_bytes = np.maximum(sent["frame"]["payload_bytes"] + HEADER_BYTES, 64) + 4
    assert len(sent) > 2_000_000 // mtu_bytes
    assert within(result.frames_impaired["bit_errors"], frame_loss(frame_bytes, rate))
    port = next(port for port in result.ports if port["name"] == "h1")
    assert port["bit_errors"] == result.frames_impaired["bit_errors"] == result.counters["lost"]
    assert port["lost"] == port["bad_fcs"] == 0
    told = {name: count for name, count in result.frames_impaired.items() if count}
    assert set(told) <= {"bit_errors"}


@COMPILED
def test_data_and_acknowledgements_share_a_line_s_bits() -> None:
    """h0 and h1 send to each other, 4096 and 64 bytes a frame, over lines that are as bad."""
    rate = 3e-6
    values = flows((0, 1, 8_000_000), (1, 0, 8_000_000), link={"impairments": {"bit_error_rate": rate}})
    _, result, rows = traced(values, "irn", {"h0", "h1"})
    out = rows[rows["is_out"] == 1]
    payload = out["frame"]["payload_bytes"]
    is_data = out["kind"] == DATA
    frame_bytes = np.where(is_data, 58 + 16, 62) + payload + 4
    ports = {port["name"]: port for port in result.ports}
    told = sum(ports[name]["tx_bytes"] for name in ("h0", "h1"))
    assert (frame_bytes + LINE_ONLY_BYTES).sum() == told
    assert 0.4 < is_data.mean() < 0.6
    assert within(sum(ports[name]["bit_errors"] for name in ("h0", "h1")), frame_loss(frame_bytes, rate))


@COMPILED
def test_the_transport_resends_what_bit_errors_took() -> None:
    """Selective resending: each loss of a data frame costs one packet, and each resend may be lost again."""
    rate, size_bytes = 1e-7, 16_000_000
    result = result_of(impaired(rate, size_bytes, selective={"rto_low_ps": "1ms", "rto_high_ps": "1ms"}), "irn")
    frames = -(-size_bytes // 4096)
    p = frame_loss(4096 + 58 + 16 + 4, rate)
    assert result.unfinished == []
    assert result.counters["resent_packets"] == result.frames_impaired["bit_errors"] > 5
    assert within(result.counters["resent_packets"], p / (1 - p), frames)


@COMPILED
@pytest.mark.parametrize("mtu_bytes", [1024, 4096])
def test_a_link_that_retries_replays_them(mtu_bytes: int) -> None:
    """No loss above the link; a frame goes out 1 + p w / (1 - p) times, with p by its length."""
    rate, size_bytes = 1e-6, 16_000_000
    values = impaired(rate, size_bytes, link={"retry_bytes": "1MB"},
                      roce={"mtu_bytes": mtu_bytes, "ack_every_packets": 1_000_000})  # fmt: skip
    result = checked(values, "roce", every=9973)
    frame = mtu_bytes + 58 + 24
    p, frames = frame_loss(frame - LINE_ONLY_BYTES, rate), -(-size_bytes // mtu_bytes)
    w = 1 + math.ceil((2 * US + 80 * 8) / (80 * frame))
    assert result.counters["lost"] == result.counters["resent_packets"] == result.counters["timeouts"] == 0
    assert within(result.counters["link_replays"], p / (1 - p), frames)
    assert result.counters["frames_replayed"] == pytest.approx(w * result.counters["link_replays"], rel=0.1)


@COMPILED
def test_infiniband_counts_its_own_bytes_and_repairs_its_credits() -> None:
    rate = 2e-6
    result = checked(impaired(rate, 4_000_000, roce={"rto_exponent": 6}), "ib", every=997)
    port = next(port for port in result.ports if port["name"] == "h1")
    assert result.unfinished == []
    largest = data_wire_bytes("ib", make(incast(1, 1), "ib").scenario)
    assert largest == 4138
    mean_bytes = port["tx_bytes"] / port["tx_frames"]  # data, and updates of 8 bytes
    assert within(port["bit_errors"], frame_loss(mean_bytes, rate), port["tx_frames"])


def test_tiny_rates_from_text_and_on_cables_of_graphs() -> None:
    graph = {
        "kind": "graph", "nodes": [{"name": n, "kind": "host"} for n in "ab"] + [{"name": "s", "kind": "switch"}],
        "links": [{"a": "a", "b": "s", "impairments": {"bit_error_rate": "1e-5"}}, {"a": "b", "b": "s"}],
    }  # fmt: skip
    result = result_of(flows((0, 1, 300_000), topology=graph), "ttpoe")
    assert {port["name"] for port in result.ports if port["bit_errors"]} <= {"a", "s.p0"}
    assert sum(port["bit_errors"] for port in result.ports) > 5
    with pytest.raises(ConfigError, match=r"link\.impairments\.bit_error_rate: .*less than or equal to 1"):
        make({"link": {"impairments": {"bit_error_rate": 2.0}}}, "ttpoe")
