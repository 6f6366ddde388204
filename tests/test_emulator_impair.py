"""Impaired lines in the emulator: each frame meets the fate that the configuration says, and every frame is told of."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from emulated import ALL, COMPILED, OTHER_MODES, checked, digests_under, incast, make, result_of, traced

from emulator.config import ConfigError, make_scenario
from emulator.impair import COUNTERS
from ttpoe.impairments import ImpairmentConfig, ImpairmentCounters
from ttpoe.units import PS_PER_US
from ttpoe.wire import HEADER_BYTES

US = PS_PER_US
DELAY_PS = US
"""Of the default cable."""


def impaired(size_bytes: int = 300_000, way: str = "from_host", **impairments: Any) -> dict[str, Any]:
    """One sender; what its cable does to what it sends."""
    link = {"hosts": [1], "impairments": impairments, "impaired_ways": way}
    return incast(1, size_bytes, topology={"links": [link]}, roce={"rto_exponent": 4})


def crossing(values: dict[str, Any], seed: int = 1) -> tuple[Any, np.ndarray, np.ndarray]:
    """What h1 put on its line, and what came out at the switch (TTPoE), as TRACE rows."""
    fabric, result, rows = traced(values, "ttpoe", {"h1", "s0.p1"}, seed)
    names = fabric.topology.port_names
    sent = rows[(rows["port"] == names.index("h1")) & (rows["is_out"] == 1)]
    came = rows[(rows["port"] == names.index("s0.p1")) & (rows["is_out"] == 0)]
    return result, sent, came


def due_ps(sent: np.ndarray) -> np.ndarray:
    """When each frame arrives on a good line."""
    payload = sent["frame"]["payload_bytes"]
    wire = np.where(payload > 0, np.maximum(payload + HEADER_BYTES, 64), 64) + 24
    return sent["time_ps"] + wire * 80 + DELAY_PS


def lost_ordinals(values: dict[str, Any], seed: int = 1) -> tuple[list[int], int, Any]:
    """Ordinals, from 1, of the frames that never came, and how many were sent."""
    result, sent, came = crossing(values, seed)
    lost = np.flatnonzero(~np.isin(due_ps(sent), came["time_ps"])) + 1
    return lost.tolist(), len(sent), result


def within(count: int, n: int, p: float, sigmas: float = 4.5) -> bool:
    """Whether ``count`` of ``n`` is what chance ``p`` gives."""
    return abs(count - n * p) <= sigmas * np.sqrt(n * p * (1 - p)) + 1


def test_the_names_are_those_of_the_real_line() -> None:
    assert set(COUNTERS) <= {f.name for f in fields(ImpairmentCounters)}


@pytest.mark.parametrize("transport", ALL)
@pytest.mark.parametrize(
    "impairments",
    [
        {"loss": 0.01}, {"burst_loss": "1%", "burst_frames": 4.0}, {"loss_every": 50}, {"lose_frames": [1, 2, 9]},
        {"bad_fcs": 0.01}, {"bit_error_rate": 3e-6}, {"corrupt_undetected": 0.02}, {"duplicate": 0.05},
        {"reorder": 0.03, "overtaking_wait_ps": "9us"},
        {"jitter_ps": "3us"}, {"delay_ps": "5us"}, {"flap_up_ps": "30us", "flap_down_ps": "7us"},
        {"loss": 0.003, "bad_fcs": 0.003, "corrupt_undetected": 0.01, "duplicate": 0.01, "reorder": 0.01,
         "overtaking_wait_ps": "20us", "jitter_ps": "1us", "delay_ps": "500ns", "loss_every": 400},
    ],
    ids="+".join,
)  # fmt: skip
def test_every_frame_is_accounted_for(impairments: dict[str, Any], transport: str) -> None:
    """On every cable, both ways; between any two events, and the flows end well."""
    values = incast(3, 60_000, link={"impairments": impairments}, roce={"rto_exponent": 4})
    result = checked(values, transport, every=61)
    assert not result.unfinished
    assert not result.errors
    told = result.frames_impaired
    losses = ("link_down", "lost_by_name", "lost_every", "lost_in_bursts", "lost", "bad_fcs", "bit_errors", "bad_icrc")
    assert sum(told[name] for name in losses) == result.counters["lost"]
    by_port = sum(port["lost"] + port["bad_fcs"] + port["bit_errors"] for port in result.ports)
    assert by_port + told["bad_icrc"] == result.counters["lost"]
    # What one end sent, the other has received, or it is told of, or it was under way when the last flow ended.
    assert sum(port["tx_frames"] - port["rx_frames"] - port["lost"] for port in result.ports) + told["duplicated"] >= 0


@COMPILED
@pytest.mark.parametrize("name", ["loss", "bad_fcs", "corrupt_undetected", "duplicate", "reorder"])
@pytest.mark.parametrize("share", [0.001, 0.02, 0.3])
def test_fractions_are_of_frames(name: str, share: float) -> None:
    counter = {"loss": "lost", "corrupt_undetected": "corrupted", "duplicate": "duplicated", "reorder": "reordered"}
    values = impaired(3_000_000, **{name: share}, overtaking_wait_ps="1us")
    result = result_of({**values, "until_ps": "20ms"}, "ttpoe")
    sent = next(port["tx_frames"] for port in result.ports if port["name"] == "h1")
    assert sent > 2000
    assert within(result.frames_impaired[counter.get(name, name)], sent, share)


def test_all_or_nothing() -> None:
    nothing = result_of(impaired(loss=0.0, duplicate=0.0, flap_up_ps="1us"), "ttpoe")
    assert nothing.digest == result_of(incast(1, 300_000), "ttpoe").digest
    everything = result_of({**impaired(loss=1.0), "until_ps": "10ms"}, "ttpoe")
    sent = next(port for port in everything.ports if port["name"] == "h1")
    assert sent["tx_frames"] == sent["lost"] == everything.counters["lost"] > 1
    twice = result_of(impaired(duplicate=1.0), "ttpoe")
    assert twice.frames_impaired["duplicated"] == next(p["tx_frames"] for p in twice.ports if p["name"] == "h1")


def test_named_frames_and_every_nth() -> None:
    lost, sent, _ = lost_ordinals(impaired(lose_frames=[7, 3, 3, 120]))
    assert lost == [3, 7, 120]
    lost, sent, _ = lost_ordinals(impaired(loss_every=97))
    assert lost == list(range(97, sent + 1, 97))


def test_the_ways_of_a_cable() -> None:
    """What h1 sends, what it is sent, or both; a cable's own impairments stand in place of those of all."""
    for way, ports in (("from_host", {"h1"}), ("to_host", {"s0.p1"}), ("both", {"h1", "s0.p1"})):
        result = result_of(impaired(way=way, lose_frames=[4]), "ttpoe")
        assert {port["name"] for port in result.ports if port["lost"]} == ports
    values = impaired(way="from_host", lose_frames=[4])
    result = result_of({**values, "link": {"impairments": {"lose_frames": [5, 6]}}}, "ttpoe")
    assert {port["name"]: port["lost"] for port in result.ports} == {"h0": 2, "s0.p0": 2, "h1": 1, "s0.p1": 2}


def test_cables_between_switches() -> None:
    """A fabric's uplinks have their own, or those of all cables; the frames of a named number are lost on each way."""
    shape = {"kind": "leaf-spine", "leaves": 2, "hosts_per_leaf": 1, "spines": 1}
    own = {**shape, "uplink": {"impairments": {"lose_frames": [3], "delay_ps": "2us"}}}
    values = {"workload": {"kind": "flows", "flows": [{"src": 0, "dst": 1, "size_bytes": 9000}]}, "topology": own}
    result = checked(values, "ttpoe", every=7)
    assert not result.unfinished
    assert {port["name"] for port in result.ports if port["lost"]} == {"l0.p1", "s0.p1", "s0.p0", "l1.p1"}
    everywhere = checked({**values, "topology": shape, "link": {"impairments": {"lose_frames": [3]}}}, "ttpoe", every=7)
    assert all(port["lost"] == 1 for port in everywhere.ports)
    quick = checked({**values, "topology": shape}, "ttpoe", every=7)
    slow = {**shape, "uplink": {"impairments": {"delay_ps": "2us"}}}
    late = checked({**values, "topology": slow}, "ttpoe", every=7)
    cost_ps = int(late.flows["fct_rx_ps"][0] - quick.flows["fct_rx_ps"][0])
    assert cost_ps == 3 * 2 * 2 * US  # two uplinks there and back for OPEN, and there once more
    with pytest.raises(ConfigError, match=r"topology\.uplink\.impairments\.los: .* did you mean loss\?"):
        make_scenario({"topology": {**shape, "uplink": {"impairments": {"los": 1}}}})


def test_one_impairment_does_not_change_what_another_does() -> None:
    """The same frames are lost whatever else happens, and others under another seed."""
    alone, _, _ = lost_ordinals(impaired(loss=0.02))
    for other in ({"bad_fcs": 1e-9}, {"bit_error_rate": 1e-12}, {"corrupt_undetected": 0.1}, {"loss_every": 10_000}):
        assert lost_ordinals(impaired(loss=0.02, **other))[0][:5] == alone[:5]
    _, first, arrived = crossing(impaired(loss=0.02, jitter_ps="1ps"))
    late = np.setdiff1d(due_ps(first), np.concatenate([arrived["time_ps"], arrived["time_ps"] - 1]))
    assert (np.searchsorted(due_ps(first), late) + 1).tolist()[:5] == alone[:5]
    assert lost_ordinals(impaired(loss=0.02), seed=2)[0][:5] != alone[:5]


@COMPILED
def test_bursts_have_their_share_and_their_length() -> None:
    """Gilbert: geometric lengths with the mean that was asked for. The peer is silent, so the timer counts frames."""
    lost, sent, _ = lost_ordinals(impaired(4_000_000, burst_loss=0.1, burst_frames=6.0))
    runs = np.split(np.array(lost), np.flatnonzero(np.diff(lost) > 1) + 1)
    lengths = np.array([len(run) for run in runs])
    assert len(runs) > 100
    assert lengths.mean() == pytest.approx(6.0, abs=4 * 6 / np.sqrt(len(runs)))
    assert len(lost) / sent == pytest.approx(0.1, abs=0.1 * 5 / np.sqrt(len(runs)))


def test_a_link_that_flaps_loses_what_is_sent_while_it_is_down() -> None:
    up, down = 11 * US, 4 * US
    result, sent, came = crossing(impaired(flap_up_ps=up, flap_down_ps=down))
    is_down = (sent["time_ps"] - sent["time_ps"][0]) % (up + down) >= up
    assert 0 < is_down.sum() == result.frames_impaired["link_down"]
    assert came["time_ps"].tolist() == due_ps(sent[~is_down]).tolist()


def test_delay_is_the_cables() -> None:
    late = incast(2, 100_000, link={"impairments": {"delay_ps": "7us"}})
    for transport in ALL:
        other = result_of(incast(2, 100_000, link={"delay_ps": "8us"}), transport)
        assert result_of(late, transport).digest == other.digest


def test_jitter_keeps_the_order_and_its_bounds() -> None:
    jitter = 2 * US
    result, sent, came = crossing(impaired(jitter_ps=jitter))
    assert not result.counters["resent_packets"]
    assert [r["frame"].tolist() for r in came] == [r["frame"].tolist() for r in sent]
    late = came["time_ps"] - due_ps(sent)
    assert late.min() >= 0
    assert late.max() <= jitter
    alone = crossing(impaired(1024 * 40, jitter_ps=jitter, delay_ps=0) | {"ttpoe": {"window_bytes": 1024}})
    late = alone[2]["time_ps"] - due_ps(alone[1])  # a frame at a time, so that none waits for the one before it
    assert late.mean() == pytest.approx(jitter / 2, rel=0.35)
    assert len(set(late.tolist())) == len(late)


def test_a_duplicate_comes_right_behind_its_frame() -> None:
    result, sent, came = crossing(impaired(duplicate=0.1))
    assert len(came) - len(sent) == result.frames_impaired["duplicated"] > 10
    again = np.flatnonzero(np.diff(came["time_ps"]) == 0) + 1
    assert len(again) == result.frames_impaired["duplicated"]
    assert (came["frame"][again] == came["frame"][again - 1]).all()
    assert np.delete(came["time_ps"], again).tolist() == due_ps(sent).tolist()
    assert result.counters["resent_packets"] == 0


@COMPILED
@pytest.mark.parametrize("most", [1, 8])
def test_a_held_frame_is_overtaken_by_as_many_as_it_may_be(most: int) -> None:
    """Each of 1 to ``most`` alike, looked at until something is sent again."""
    overtaken = []
    for seed in range(1, 200):
        _, sent, came = crossing(impaired(60_000, reorder=0.02, max_overtaking=most), seed)
        ids = sent["frame"]["tx_seq"].tolist()
        again = next((k for k in range(len(ids)) if ids[k] in ids[:k]), len(ids))
        due, arrived = due_ps(sent).tolist(), came["frame"]["tx_seq"].tolist()
        for k in range(again - most):
            passed = due.index(came["time_ps"][arrived.index(ids[k])]) - k
            if passed:
                overtaken.append(passed)
    counts = np.bincount(overtaken, minlength=most + 1)
    assert len(counts) == most + 1
    assert counts[0] == 0
    assert counts.sum() > 100
    for count in counts[1:]:
        assert within(count, counts.sum(), 1 / most)


def test_a_frame_that_nobody_overtakes_comes_when_the_wait_is_over() -> None:
    """The only frames of h1 are an OPEN and a payload; both are held, and no other follows in time."""
    values = impaired(1000, reorder=1.0, overtaking_wait_ps="50us") | {"ttpoe": {"tail_loss_probe": False}}
    _, sent, came = crossing(values)
    assert came["time_ps"].tolist() == (due_ps(sent) + 50 * US).tolist()


def test_what_ttpoe_cannot_tell_is_named_and_what_roce_can_is_refused() -> None:
    values = impaired(corrupt_undetected=0.02)
    ttpoe, roce = (result_of(values, transport) for transport in ("ttpoe", "roce"))
    assert ttpoe.changed == ["h1>h0"]
    assert ttpoe.counters["lost"] == ttpoe.counters["resent_packets"] == 0
    assert ttpoe.flows["corrupted"][0] == ttpoe.frames_impaired["corrupted"] > 2
    assert roce.changed == []
    assert roce.frames_impaired["bad_icrc"] == roce.frames_impaired["corrupted"] == roce.counters["lost"] > 0
    assert roce.counters["resent_packets"] > 0


def test_a_corrupted_frame_that_is_not_delivered_changes_nothing() -> None:
    """Acknowledgements carry no payload; and a copy of what was delivered is not delivered again."""
    assert result_of(impaired(way="to_host", corrupt_undetected=1.0), "ttpoe").changed == []
    result = result_of(impaired(duplicate=1.0, corrupt_undetected=0.05), "ttpoe")
    assert result.flows["corrupted"][0] == result.frames_impaired["corrupted"]


def test_jitter_is_counted_in_the_headroom() -> None:
    for jitter in ("1us", "20us"):
        values = incast(8, 500_000, link={"impairments": {"jitter_ps": jitter}}, switch={"buffer_bytes": "12MB",
                        "alpha": 0.001})  # fmt: skip
        result = checked(values, "roce-pfc")
        assert result.counters["pauses"] > 0
        assert result.counters["drops"] == 0
        assert not result.unfinished


def test_a_pause_that_is_lost_breaks_the_promise_and_is_told() -> None:
    """PFC frames are frames: a line that loses all that goes to the hosts pauses nobody."""
    links = [{"hosts": [1, 2, 3, 4], "impaired_ways": "to_host", "impairments": {"loss": 1.0}}]
    values = incast(4, 500_000, topology={"links": links}, switch={"buffer_bytes": 400_000}, until_ps="1ms")
    result = result_of(values, "roce-pfc")
    assert "headroom was full" in result.errors[0]
    assert result.errors[0].endswith("impair these lines less, or set a larger switch.headroom_bytes")


# The same in every mode

MIXED: dict[str, Any] = incast(
    3, 60_000, switch={"buffer_bytes": 60_000}, roce={"rto_exponent": 4},
    link={"impairments": {
        "loss": 0.01, "burst_loss": 0.05, "burst_frames": 3.0, "bad_fcs": 0.01, "bit_error_rate": 1e-5,
        "corrupt_undetected": 0.03, "duplicate": 0.05, "reorder": 0.03, "overtaking_wait_ps": "9us",
        "jitter_ps": "700ns", "lose_frames": [11], "loss_every": 61, "flap_up_ps": "11us", "flap_down_ps": "2us"}},
    topology={"links": [{"hosts": [2], "bad_fcs_frames": [5]}]},
)  # fmt: skip


@pytest.mark.parametrize("transport", ["ttpoe", "roce"])
@pytest.mark.parametrize("max_events", [1, 13])
def test_in_any_slices(transport: str, max_events: int) -> None:
    whole = result_of(MIXED, transport)
    for name, count in whole.frames_impaired.items():
        assert count > 0 or name == "marked" or (name == "bad_icrc" and transport == "ttpoe"), name
    assert make(MIXED, transport).run(max_events=max_events).digest == whole.digest


@COMPILED
@OTHER_MODES
def test_interpreted_and_bounds_checked(variable: str) -> None:
    here = [result_of(MIXED, transport).digest for transport in ("ttpoe", "roce")]
    assert digests_under(variable, MIXED, "ttpoe", "roce", ports=("h0", "s0.p1")) == here


# The configuration


def test_units_and_where_it_may_stand() -> None:
    told = {"loss": "0.1%", "jitter_ps": "2us", "lose_frames": [1, 2], "burst_frames": 3.0}
    config = ImpairmentConfig(loss=0.001, jitter_ps=2 * US, lose_frames=(1, 2), burst_frames=3.0)
    scenario = make_scenario(
        {"link": {"impairments": told}, "topology": {"links": [{"hosts": [1], "impairments": told}]}}
    )
    assert scenario.link.impairments == scenario.topology.links[0].impairments == config
    assert make_scenario({"link": {"impairments": config}}).link.impairments == config
    assert make_scenario({}).link.impairments == ImpairmentConfig()


@pytest.mark.parametrize(
    ("impairments", "says"),
    [
        ({"loss": 1.5}, "loss: must be less than or equal to 1 (given 1.5)"),
        ({"loss": True}, "loss: must be a valid number (given True)"),
        ({"loss": "2"}, "loss: '2' is not a fraction"),
        ({"los": 0.1}, "los: there is no such field; did you mean loss?"),
        ({"jitter_ps": "2"}, "jitter_ps: '2' is not a time"),
        ({"lose_frames": [0]}, "lose_frames.0: must be greater than or equal to 1 (given 0)"),
        ({"lose_frames": 3}, "lose_frames: must be a list, as in [3]"),
        ({"loss_every": 1.0}, "loss_every: "),
        ({"flap_up_ps": 0}, "flap_up_ps: is 0; it must be from 1 to 2**62 - 1"),
        ({"burst_frames": 0.5}, "burst_frames: is 0.5; it must be from 1 to 1e6"),
        ({"burst_loss": 0.99}, "burst_loss: is 0.99; bursts of 10 frames on average"),
        ({"max_overtaking": 10_000}, "max_overtaking: must be at most 1000 (given 10000)"),
        (ImpairmentConfig(loss_every=2**40), "loss_every: must be less than 2147483648 (given 1099511627776)"),
        ({"rate_bps": "10G"}, "rate_bps: an emulated link has a rate already; set rate_bps of the link in its place"),
        (3, "must be a table of fields (given 3)"),
    ],
)  # fmt: skip
def test_errors_name_the_field(impairments: Any, says: str) -> None:
    for values, where in (
        ({"link": {"impairments": impairments}}, "link.impairments"),
        ({"topology": {"links": [{"hosts": [1], "impairments": impairments}]}}, "topology.links.0.impairments"),
    ):
        with pytest.raises(ConfigError) as refused:
            make_scenario(values)
        separator = ": " if isinstance(impairments, int) else "."
        assert str(refused.value).startswith(f"{where}{separator}{says}")
        assert "\n" not in str(refused.value)


def test_a_way_that_is_none() -> None:
    with pytest.raises(ConfigError, match=r"topology\.links\.0\.impaired_ways: must be 'both', 'from_host' or"):
        make_scenario({"topology": {"links": [{"hosts": [1], "impaired_ways": "back"}]}})
