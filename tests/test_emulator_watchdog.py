"""The PFC watchdog: a faulty NIC stops a network, and the watchdog frees it, at the times that are configured."""

from __future__ import annotations

from typing import Any

import pytest
from emulated import COMPILED, checked, flows, result_of

from emulator.config import ConfigError
from emulator.pfc import PFC_WIRE_BYTES

US, MS = 10**6, 10**9
PAUSE_ARRIVES = 80 * PFC_WIRE_BYTES + US
"""A PFC frame on the line at 100 Gb/s, and 1 us of propagation."""


def storm(watchdog: dict[str, Any] | None, end_ps: int | None = None, **hosts: Any) -> dict[str, Any]:
    """h0 pauses its switch from 20 us on; h1 and h2 send to h0, and h2 to the innocent h3 as well."""
    return flows(
        (1, 0, 2_000_000), (2, 0, 2_000_000), (2, 3, 2_000_000, 50 * US), until_ps="20ms", roce={"rto_exponent": 7},
        hosts={"pause_storms": [{"host": 0, "start_ps": 20 * US, "end_ps": end_ps}], **hosts},
        switch={"watchdog": watchdog, "buffer_bytes": "1MB"},
    )  # fmt: skip


WATCHDOG = {"detect_ps": 400 * US, "restore_ps": 1000 * US}


@COMPILED
def test_a_faulty_nic_stops_those_who_never_sent_to_it() -> None:
    result = checked(storm(None), "roce-pfc")
    assert result.unfinished == ["h1>h0", "h2>h0", "h2>h3"]
    assert result.incidents == []
    assert result.counters["drops"] == 0


@COMPILED
def test_the_watchdog_frees_the_others() -> None:
    result = checked(storm(WATCHDOG), "roce-pfc")
    assert {name.split()[0] for name in result.unfinished} == {"h1>h0", "h2>h0"}
    (incident,) = result.incidents
    assert incident == {
        "time_us": (20 * US + PAUSE_ARRIVES + 400 * US) / US, "what": "pause storm detected, queue is dropped",
        "port": "s0.p0", "priority": 3,
    }  # fmt: skip
    innocent = result.flows[2]
    assert innocent["start_ps"] + innocent["fct_rx_ps"] > 400 * US
    assert innocent["fct_rx_ps"] < 400 * US + 3 * innocent["ideal_ps"]
    assert innocent["drops"] == 0
    assert result.drop_causes["watchdog"] == result.counters["drops"] > 0
    assert result.errors == []  # the drops were asked for
    port = next(port for port in result.ports if port["name"] == "s0.p0")
    assert port["pause_storms"] == 1 == sum(port["pause_storms"] for port in result.ports)


@COMPILED
def test_a_queue_is_restored_after_a_calm_and_its_flows_finish() -> None:
    end_ps = 1500 * US
    result = checked(storm(WATCHDOG, end_ps), "roce-pfc")
    assert result.unfinished == []
    began, ended = result.incidents
    assert ended["what"] == "pause storm over, queue is restored"
    assert ended["time_us"] == (end_ps + PAUSE_ARRIVES + 1000 * US) / US
    assert (began["port"], ended["port"]) == ("s0.p0", "s0.p0")
    assert result.flows["fct_rx_ps"][:2].min() > end_ps + 1000 * US


@COMPILED
def test_a_pause_shorter_than_the_detection_time_is_none_of_its_business() -> None:
    pause_ps = 300 * US
    result = checked(storm(WATCHDOG, 20 * US + pause_ps), "roce-pfc")
    assert result.incidents == []
    assert result.counters["drops"] == 0
    assert result.unfinished == []
    # One picosecond is what separates a pause from a storm: detection at its very end.
    shortest = {**WATCHDOG, "detect_ps": pause_ps - 1}
    assert len(result_of(storm(shortest, 20 * US + pause_ps), "roce-pfc").incidents) == 2


@COMPILED
def test_ordinary_congestion_is_no_storm() -> None:
    """Pauses that end now and then begin anew, however long they last in sum."""
    values = storm(WATCHDOG)
    values["hosts"]["pause_storms"] = []
    values["topology"] = {"links": [{"hosts": [0], "rate_bps": "25G"}]}
    result = checked(values, "roce-pfc")
    assert result.counters["paused_ps"] > 400 * US
    assert result.incidents == []
    assert result.unfinished == []


@COMPILED
def test_a_storm_spreads_to_no_other_transport() -> None:
    """Without PFC nobody listens to pauses, so none are sent."""
    result = checked(storm(WATCHDOG), "roce")
    assert result.counters["pauses"] == 0
    assert result.unfinished == []


@pytest.mark.parametrize(
    ("storms", "message"),
    [
        ([{"host": 9}], r"hosts.pause_storms.0.host: there is no host 9; the last one is 3"),
        ([{"host": 1}, {"host": 1}], r"hosts.pause_storms.1.host: host 1 has a storm already"),
        ([{"host": 1, "start_ps": 5, "end_ps": 5}], r"hosts.pause_storms.0: end_ps 5 is not after start_ps 5"),
    ],
)
def test_wrong_fields_are_named(storms: list[dict[str, int]], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        result_of(storm(None, None, pause_storms=storms), "roce-pfc")
