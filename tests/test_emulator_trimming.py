"""Packet trimming: where a queue is full, payloads are lost and headers are not, so that nobody waits for a timeout."""

from __future__ import annotations

from typing import Any

from emulated import COMPILED, checked, incast, result_of, traced

from emulator.packet import DATA
from emulator.roce import wire_bytes


def overloaded(trim_priority: int | None, senders: int = 32, **more: Any) -> dict[str, Any]:
    return incast(senders, 100_000, switch={"buffer_bytes": "400kB", "trim_priority": trim_priority}, **more)


@COMPILED
def test_nobody_waits_for_a_timeout() -> None:
    """Without trimming a lost last frame costs RoCE 67 ms; with it a NAK tells at once, and all headers arrive."""
    plain, trimmed = (checked(overloaded(p), "roce", every=9973) for p in (None, 7))
    assert plain.unfinished == trimmed.unfinished == []
    assert plain.counters["timeouts"] > 0
    assert plain.counters["trimmed"] == 0 < plain.counters["drops"]
    assert trimmed.counters["drops"] == trimmed.counters["timeouts"] == 0
    assert trimmed.counters["trimmed"] > 100
    assert trimmed.flows["fct_rx_ps"].max() < plain.flows["fct_rx_ps"].max() / 10


@COMPILED
def test_ttpoe_takes_headers_for_gaps() -> None:
    """A PAYLOAD without payload is one that its machine does not deliver, and answers with a NACK."""
    result = result_of(overloaded(7, senders=8), "ttpoe")
    assert result.unfinished == []
    assert result.counters["trimmed"] > 100
    assert result.counters["drops"] == 0


@COMPILED
def test_a_trimmed_frame_is_its_headers_and_overtakes_payloads() -> None:
    _, result, rows = traced(overloaded(7, senders=8), "roce", {"s0.p0"})
    data = rows[(rows["kind"] == DATA) & (rows["is_out"] == 1)]
    is_trimmed = data["frame"]["payload_bytes"] == 0
    port = next(port for port in result.ports if port["name"] == "s0.p0")
    assert is_trimmed.sum() == port["trimmed"] == result.counters["trimmed"] > 0
    assert set(data["priority"][is_trimmed].tolist()) == {7}
    assert set(data["priority"][~is_trimmed].tolist()) == {3}
    # On the line one after the other, so two stamps differ by the length of the first.
    busy = data["time_ps"][1:] - data["time_ps"][:-1]
    sizes = [int(wire_bytes(int(opcode), 0)) for opcode in data["frame"]["opcode"][:-1][is_trimmed[:-1]]]
    back_to_back = busy[is_trimmed[:-1]]
    assert (back_to_back >= [80 * size for size in sizes]).all()
    assert (back_to_back == [80 * size for size in sizes]).mean() > 0.5


@COMPILED
def test_lossless_priorities_are_not_trimmed() -> None:
    switch = {"buffer_bytes": "600kB", "alpha": 1 / 16, "trim_priority": 7}
    result = checked(overloaded(7, senders=4) | {"switch": switch}, "roce-pfc")
    assert result.counters["trimmed"] == result.counters["drops"] == 0
    assert result.counters["pauses"] > 0


@COMPILED
def test_headers_that_do_not_fit_are_dropped() -> None:
    """A pool as small as a few frames overflows with headers alone; those are drops, and timeouts repair them."""
    values = incast(64, 20_000, switch={"buffer_bytes": "9kB", "trim_priority": 7}, roce={"rto_exponent": 6})
    result = checked(values, "roce")
    assert result.counters["trimmed"] > 0
    assert result.counters["drops"] > 0
