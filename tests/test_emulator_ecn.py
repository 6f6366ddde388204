"""ECN marks: RED and the step against their definitions, replayed from the frames that a switch took in and sent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from emulated import incast, make, result_of, traced

from emulator import ecn
from emulator.config import ConfigError, make_scenario
from emulator.packet import CE, DATA, ECT, NOT_ECT, PACKET
from emulator.roce import wire_bytes
from ttpoe._jit import kernel


@kernel(export=True)
def marks(rows, packets, depths):
    """Offers an ECT packet to each of the ``depths``."""
    for k in range(len(depths)):
        packets[k]["ecn"] = ECT
        ecn.mark(rows[0], packets[k], depths[k])


def marked_at(depths: np.ndarray, kmin: int, kmax: int, pmax: float, turn: int = 0) -> np.ndarray:
    rows = ecn.no_marking(1)
    rows[0] = (kmin, kmax, round(pmax * 2**32), turn, 0)
    packets = np.zeros(len(depths), PACKET)
    marks(rows, packets, depths.astype(np.int64))
    is_marked = packets["ecn"] == CE
    assert rows["marked"][0] == is_marked.sum()
    return is_marked


@pytest.mark.parametrize(("kmin", "kmax", "pmax"), [(1000, 5000, 0.2), (0, 2**30, 1.0), (400_000, 1_600_000, 0.01)])
def test_red_marks_none_up_to_kmin_all_above_kmax_and_the_share_between(kmin: int, kmax: int, pmax: float) -> None:
    count = 40_000
    for depth, share in ((0, 0.0), (kmin, 0.0), ((kmin + kmax) // 2, pmax / 2), (kmax, pmax), (kmax + 1, 1.0)):
        got = int(marked_at(np.full(count, depth), kmin, kmax, pmax).sum())
        sigma = (count * share * (1 - share)) ** 0.5
        assert abs(got - count * share) <= 4 * sigma


def test_a_step_marks_what_finds_more_than_k() -> None:
    assert marked_at(np.array([0, 29_999, 30_000, 30_001, 10**12]), 30_000, 30_000, 1.0).tolist() == [0, 0, 0, 1, 1]


def test_draws_follow_each_other_without_a_pattern() -> None:
    """Neighbouring draws are independent, and another start of the turn is another sequence."""
    first, other = (marked_at(np.full(40_000, 3000), 1000, 5000, 1.0, turn) for turn in (0, 123_456_789))
    for a, b in ((first[1:], first[:-1]), (first, other)):
        assert abs(np.corrcoef(a, b)[0, 1]) < 4 / 200


def replay(values: dict[str, Any], transport: str = "roce-pfc") -> tuple[np.ndarray, np.ndarray, int]:
    """Of each data frame towards h0: the depth of s0.p0's queue as it came, and whether it left marked."""
    senders = values["workload"]["senders"]
    fabric, result, rows = traced(values, transport, {f"s0.p{k}" for k in range(senders + 1)})
    bottleneck = fabric.topology.port_names.index("s0.p0")
    depth, depths, marked = 0, [], []
    for row in rows[rows["kind"] == DATA]:
        opcode, payload = int(row["frame"]["opcode"]), int(row["frame"]["payload_bytes"])
        size = int(wire_bytes(opcode, payload)) - 20
        if row["is_out"]:
            assert row["port"] == bottleneck
            depth -= size
            marked.append(int(row["ecn"]) == CE)
        else:
            assert row["ecn"] == (ECT if values["roce"]["ecn"] else NOT_ECT)
            depths.append(depth)
            depth += size
    port = next(port for port in result.ports if port["name"] == "s0.p0")
    assert port["ecn_marked"] == result.counters["ecn_marked"]
    assert port["ecn_marked"] - sum(marked) <= len(depths) - len(marked)  # marked and still queued at the end
    return np.array(depths[: len(marked)]), np.array(marked), port["ecn_marked"]


def scenario(is_capable: bool = True, **config: Any) -> dict[str, Any]:
    return incast(6, 150_000, roce={"ecn": is_capable, "mtu_bytes": 1024}, switch={"ecn": config})


def test_a_switch_marks_the_frames_that_find_more_than_k_in_the_queue() -> None:
    depths, marked, count = replay(scenario(kmin_bytes="50kB", kmax_bytes="50kB"))
    assert np.array_equal(marked, depths > 50_000)
    assert 0 < count == marked.sum() < len(marked)


def test_a_switch_marks_by_red() -> None:
    kmin, kmax, pmax = 20_000, 400_000, 0.5
    depths, marked, _ = replay(scenario(kmin_bytes=kmin, kmax_bytes=kmax, pmax=pmax))
    share = np.clip((depths - kmin) / (kmax - kmin), 0, 1) * pmax
    share[depths > kmax] = 1
    assert marked[share == 0].sum() == 0
    assert marked[share == 1].all()
    assert 0.1 < share.mean() < 0.9
    assert abs(marked.sum() - share.sum()) <= 4 * (share * (1 - share)).sum() ** 0.5


def test_frames_that_are_not_capable_pass_unmarked() -> None:
    _, marked, count = replay(scenario(is_capable=False, kmin_bytes=0, kmax_bytes=0))
    assert count == marked.sum() == 0


def test_marks_change_nothing_for_those_who_do_not_react() -> None:
    """RoCE without congestion control completes at the same times, marked or not."""
    values = scenario(kmin_bytes=0, kmax_bytes=0)
    plain = result_of({**values, "switch": {}}, "roce-pfc")
    marked = result_of(values, "roce-pfc")
    assert marked.counters["ecn_marked"] > 0
    assert np.array_equal(marked.flows, plain.flows)


@pytest.mark.parametrize(
    ("rate", "expected"),
    [
        ("10G", (40_000, 160_000, 0.2)),
        ("25G", (100_000, 400_000, 0.2)),
        ("40G", (100_000, 400_000, 0.2)),
        ("100G", (400_000, 1_600_000, 0.2)),
        ("200G", (300_000, 1_200_000, 0.8)),
        ("400G", (800_000, 3_200_000, 0.2)),
        ("800G", (800_000, 3_200_000, 0.2)),
    ],
)
def test_thresholds_by_line_rate(rate: str, expected: tuple[int, int, float]) -> None:
    fabric = make(incast(2, 1000, link={"rate_bps": rate}, switch={"ecn": "auto"}), "roce-pfc")
    port = fabric.topology.port_names.index("s0.p0")
    kmin, kmax, pmax_q32, _, _ = fabric.world.marking[port].tolist()
    assert (kmin, kmax, pmax_q32 / 2**32) == pytest.approx(expected)
    host = fabric.topology.port_names.index("h0")
    assert fabric.world.marking["kmin_bytes"][host] > 2**60  # a NIC marks nothing


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kmin_bytes": "2MB", "kmax_bytes": "1MB"}, r"switch.ecn: kmin_bytes 2000000 is above kmax_bytes 1000000"),
        ({"kmin_bytes": "2MB"}, r"switch.ecn: kmin_bytes and kmax_bytes: give both"),
        ({"pmax": 1.5}, r"switch.ecn.pmax: .*1"),
        ({"kmin": 3}, r"switch.ecn.kmin: there is no such field; there are kmin_bytes, kmax_bytes, pmax"),
        ("red", r"switch.ecn: "),
    ],
)
def test_wrong_fields_are_named(given: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        make_scenario(incast(2, 1000, switch={"ecn": given}))
    assert "\n" not in str(raised.value)
