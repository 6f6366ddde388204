"""Scenarios from plain values and from TOML: what is accepted, and how what is not is refused."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from emulated import flows, incast, make

from emulator import topology
from emulator.config import ConfigError, ScenarioConfig, load_scenario, make_scenario
from emulator.framing import data_wire_bytes
from emulator.transports import TRANSPORTS
from ttpoe.units import NEVER


def nested(field: str, value: Any) -> dict[str, Any]:
    """``a.b`` = value as nested plain values."""
    *path, name = field.split(".")
    values: dict[str, Any] = {name: value}
    for part in reversed(path):
        values = {part: values}
    if path[:1] == ["workload"]:
        values["workload"].setdefault("kind", "incast")
    return values


def test_defaults_are_those_of_the_issue() -> None:
    scenario = make_scenario({})
    assert scenario == ScenarioConfig()
    assert scenario.transports == ("ttpoe", "roce-pfc", "roce")
    assert (scenario.link.rate_bps, scenario.link.delay_ps) == (10**11, 10**6)
    assert (scenario.switch.buffer_bytes, scenario.switch.alpha) == (12_000_000, 1.0)
    incast = {"kind": "incast", "senders": 32, "receiver": 0, "size_bytes": 10**6, "jitter_ps": 0}
    assert asdict(scenario.workload) == incast
    assert (scenario.ttpoe.mtu_bytes, scenario.ttpoe.window_bytes) == (1024, 10**6)
    assert (scenario.ttpoe.rto_min_ps, scenario.ttpoe.rto_initial_ps) == (100 * 10**6, 10**9)
    assert scenario.roce.mtu_bytes == 4096


def test_quantities_have_units_or_are_plain() -> None:
    told = make_scenario({"link": {"rate_bps": "25G", "delay_ps": "1.5us"}, "switch": {"buffer_bytes": "2MiB"},
                          "workload": {"kind": "incast", "size_bytes": "64KB"}, "until_ps": "2s"})  # fmt: skip
    plain = make_scenario({"link": {"rate_bps": 25 * 10**9, "delay_ps": 1_500_000}, "switch": {"buffer_bytes": 2**21},
                           "workload": {"kind": "incast", "size_bytes": 64_000}, "until_ps": 2 * 10**12})  # fmt: skip
    assert told == plain


def test_a_scenario_is_frozen_and_keeps_its_checks_when_replaced() -> None:
    scenario = make_scenario({})
    with pytest.raises(AttributeError):
        scenario.seed = 2  # type: ignore[misc]
    assert replace(scenario, seed=2).seed == 2
    with pytest.raises(ValueError, match="seed"):
        replace(scenario, seed=-1)


INTEGERS = [
    "seed", "repeat", "until_ps", "priority", "ack_priority", "link.rate_bps", "link.delay_ps", "switch.buffer_bytes",
    "switch.headroom_bytes", "switch.resume_offset_bytes", "switch.pipeline_latency_ps", "switch.pause_quanta",
    "switch.pause_reaction_ps", "ttpoe.mtu_bytes", "ttpoe.window_bytes", "ttpoe.rto_min_ps", "ttpoe.rto_initial_ps",
    "ttpoe.rto_max_ps", "ttpoe.retry_limit", "ttpoe.initial_window_packets", "ttpoe.probe_min_ps",
    "hosts.rx_buffer_bytes", "hosts.drain_rate_bps", "roce.mtu_bytes", "roce.window_bytes", "roce.rto_exponent",
    "roce.retry_limit", "roce.ack_every_packets", "topology.hosts", "workload.senders", "workload.size_bytes",
    "workload.jitter_ps",
]  # fmt: skip


@pytest.mark.parametrize("field", INTEGERS)
@pytest.mark.parametrize("value", [-1, 2**63, 10**400, 1.5, 1.0, math.nan, math.inf, True, "x", "1q", [1], {"a": 1}])
def test_no_integer_takes_anything_else(field: str, value: Any) -> None:
    """Negative, huge, fractions, NaN, booleans, texts without sense: one sentence that names the field."""
    with pytest.raises(ConfigError) as refused:
        make_scenario(nested(field, value))
    text = str(refused.value)
    assert text.startswith(f"{field}: ")
    assert "\n" not in text
    assert len(text) < 300


@pytest.mark.parametrize("value", [0, -1.0, 0.0001, 65, math.nan, math.inf, True, "1", None])
def test_alpha(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"^switch\.alpha: "):
        make_scenario({"switch": {"alpha": value}})
    assert make_scenario({"switch": {"alpha": 2}}).switch.alpha == 2.0


@pytest.mark.parametrize("field", ["ttpoe.handshake", "ttpoe.shared_window"])
@pytest.mark.parametrize("value", [0, 1, "true", "yes", None])
def test_switches_are_true_or_false(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^{field}: "):
        make_scenario(nested(field, value))


@pytest.mark.parametrize(
    ("values", "starts", "says"),
    [
        ({"nope": 1}, "nope: ", "no such field"),
        ({"switch": {"nope": 1}}, "switch.nope: ", "no such field"),
        ({"workload": {"kind": "incast", "nope": 1}}, "workload.nope: ", "no such field"),
        ({"workload": {"kind": "flows", "flows": [{"src": 0, "dst": 1, "size_bytes": 1, "x": 1}]}},
         "workload.flows.0.x: ", "no such field"),
        ({"workload": {"kind": "flows", "flows": [{"src": 0, "dst": 1}]}}, "workload.flows.0.size_bytes: ", "required"),
        ({"workload": {"kind": "flows", "flows": [{"src": 0, "dst": -1, "size_bytes": 1}]}}, "workload.flows.0.dst: ",
         "(given -1)"),
        ({"workload": {"kind": "flows", "flows": [{"src": 0.5, "dst": 1, "size_bytes": 1}]}}, "workload.flows.0.src: ",
         "(given 0.5)"),
        ({"workload": {"kind": "flows"}}, "workload.flows: ", "required"),
        ({"workload": {"kind": "burst"}}, "workload.kind: ", '"incast" or "outcast"'),
        ({"workload": {"kind": "burst"}}, "workload.kind: ", "(given 'burst')"),
        ({"routing": "adaptive"}, "routing: must be a table of fields (given 'adaptive')", "named by routings"),
        ({"workload": {}}, "workload.kind: ", '"incast" or "outcast"'),
        ({"workload": 5}, "workload: ", ""),
        ({"switch": 3}, "switch: ", ""),
        ({"name": 3}, "name: ", ""),
        ({"topology": {"kind": "ring"}}, "topology.kind: ", "star"),
        ({"topology": {"hosts": 1}}, "topology.hosts: ", "(given 1)"),
        ({"topology": {"links": [{"hosts": [True]}]}}, "topology.links.0.hosts.0: ", "(given True)"),
        ({"topology": {"links": [{"hosts": [0], "rate_bps": 1}]}}, "topology.links.0.rate_bps: ", "(given 1)"),
        ({"topology": {"links": [{"hosts": [0], "bad_fcs_frames": [0]}]}}, "topology.links.0.bad_fcs_frames.0: ", ""),
        ({"topology": {"links": [{"rate_bps": "1G"}]}}, "topology.links.0.hosts: ", "required"),
        ({"topology": {"links": [{"hosts": []}]}}, "topology.links.0.hosts: ", "there is none; name one or more"),
        ({"topology": {"links": [{"hosts": ["0-" + "9" * 5000]}]}}, "topology.links.0.hosts: '0-99", "no range of"),
        ({"workload": {"kind": "mix", "parts": []}}, "workload.parts: ", "there is none; name one or more"),
        ({"ttpoe": 5}, "ttpoe: ", "must be a table of fields (given 5)"),
        ({"topology": 5}, "topology: ", "must be a table of fields (given 5)"),
        ({"transports": []}, "transports: ", "name at least one"),
        ({"transports": ["roce", "roce"]}, "transports: ", "twice"),
        ({"transports": ["tpc"]}, "transports: ", "there is no 'tpc'; there are ttpoe,"),
        ({"transports": "roce"}, "transports: ", ""),
        ({"priority": 8}, "priority: ", "(given 8)"),
        ({"switch": {"pause_quanta": 65_536}}, "switch.pause_quanta: ", "(given 65536)"),
        ({"ttpoe": {"window_bytes": 1023}}, "ttpoe: ", "window_bytes 1023 is below mtu_bytes 1024"),
        ({"ttpoe": {"rto_min_ps": "2ms"}}, "ttpoe: ", "in this order"),
        ({"roce": {"window_bytes": 8191, "ack_every_packets": 2}}, "roce: ", "window_bytes is below"),
        ({"roce": {"retry_limit": 8}}, "roce.retry_limit: ", "(given 8)"),
        ({"roce": {"rto_exponent": 32}}, "roce.rto_exponent: ", "(given 32)"),
    ],
)  # fmt: skip
def test_the_sentence_names_the_field(values: dict[str, Any], starts: str, says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        make_scenario(values)
    assert str(refused.value).startswith(starts)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"topology": {"hosts": 3}}, "topology.hosts: the workload names host 32, and there are 3; make it 33"),
        ({"topology": {"links": [{"hosts": [40]}]}}, "topology.links.0.hosts: there is no host 40; the last one is 32"),
        ({"workload": {"kind": "flows", "flows": [{"src": 1, "dst": 1, "size_bytes": 1}]}},
         "workload.flows.0.dst: a host cannot send to itself; name another than 1"),
        ({"workload": {"kind": "flows", "flows": []}}, "workload.flows: there is no flow; name at least one"),
        ({"switch": {"buffer_bytes": 2215}}, "switch.buffer_bytes: 2215 is too small for ttpoe, which needs two frames;"
         " raise it to 2216 at least"),
    ],
)  # fmt: skip
def test_what_cannot_be_built_is_refused_as_well(values: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        make(values, "ttpoe")
    assert str(refused.value) == says


def test_hosts_that_nothing_connects_cannot_send_to_each_other() -> None:
    """Such a run ended in a traceback."""
    nodes = [{"name": name, "kind": "host"} for name in ("h0", "h1", "h2", "h3")]
    nodes += [{"name": name, "kind": "switch"} for name in ("s0", "s1")]
    cables = [{"a": f"h{k}", "b": f"s{k // 2}"} for k in range(4)]
    shape = {"kind": "graph", "nodes": nodes, "links": cables}
    assert make({**flows((0, 1, 10), (3, 2, 10)), "topology": shape}, "ttpoe").run().unfinished == []
    with pytest.raises(ConfigError) as refused:
        make({**flows((0, 1, 10), (3, 1, 10)), "topology": shape}, "ttpoe")
    assert str(refused.value) == "topology: no way leads from h3 to h1, which a message takes; cable them"


@pytest.mark.parametrize("transport", ["roce-pfc", "ib"])
def test_headroom_of_many_long_lines_does_not_wrap(transport: str) -> None:
    """1,100 ports of 9 * 10**15 bytes each are beyond int64, and were taken for less than nothing."""
    values = {"topology": {"hosts": 1100}, "workload": {"kind": "permutation", "size_bytes": 1000},
              "link": {"rate_bps": "10T", "delay_ps": "3600s"}}  # fmt: skip
    with pytest.raises(ConfigError, match=r"switch\.buffer_bytes: 12000000 is too small"):
        make(values, transport)


@pytest.mark.parametrize(
    "shape",
    [
        {"kind": "leaf-spine", "leaves": 1, "spines": 1, "hosts_per_leaf": 1},
        {"kind": "rail", "servers": 1, "rails": 2},
    ],
)
def test_one_host_alone_has_nobody_to_send_to(shape: dict[str, Any]) -> None:
    """A permutation had it send to itself, and its survey divided by zero."""
    with pytest.raises(ConfigError, match="topology: there is one host, which has nobody to send to; make it larger"):
        make({"workload": {"kind": "permutation"}, "topology": shape}, "ttpoe")


def test_more_cables_than_memory_holds_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """65,536 leaves under 4,096 spines have 268 million."""
    monkeypatch.setattr(topology, "MAX_CABLES", 19)
    shape = {"kind": "leaf-spine", "leaves": 4, "spines": 4, "hosts_per_leaf": 1}
    with pytest.raises(ConfigError, match="topology: it has more than the 19 cables that fit in memory; make it small"):
        make({**flows((0, 1, 10)), "topology": shape}, "ttpoe")
    monkeypatch.setattr(topology, "MAX_CABLES", 20)
    make({**flows((0, 1, 11)), "topology": shape}, "ttpoe")


def test_a_buffer_without_room_for_its_headroom() -> None:
    with pytest.raises(ConfigError, match=r"^switch\.buffer_bytes: 1000000 .* for PFC headroom .*") as refused:
        make(incast(32, 1000, switch={"buffer_bytes": 10**6}), "roce-pfc")
    least = int(str(refused.value).split("raise it to ")[1].split()[0])
    make(incast(32, 1000, switch={"buffer_bytes": least}), "roce-pfc").run()
    with pytest.raises(ConfigError):
        make(incast(32, 1000, switch={"buffer_bytes": least - 1}), "roce-pfc")


def test_the_largest_values_stay_within_64_bits() -> None:
    """The product of the largest buffer and the largest alpha, of frames and the slowest line, of delays and time."""
    values = incast(
        2, 9000 * 3, switch={"buffer_bytes": 2**40, "alpha": 64.0, "pipeline_latency_ps": "1s"},
        link={"rate_bps": 10**6, "delay_ps": "100s"}, until_ps="3600s",
        ttpoe={"mtu_bytes": 9000, "rto_min_ps": "1000s", "rto_initial_ps": "1000s", "rto_max_ps": "1000s"},
        roce={"mtu_bytes": 9000, "rto_exponent": 31},
        tcp={"mtu_bytes": 9000, "rto_min_ps": "1000s", "rto_max_ps": "1000s"},
        selective={"rto_low_ps": "1000s", "rto_high_ps": "1000s", "reorder_ps": "1000s"},
    )  # fmt: skip
    for transport in TRANSPORTS:
        result = make(values, transport).run()
        assert result.unfinished == []
        assert result.counters["drops"] == 0
    assert 2**40 * 64 * 65_536 < 2**63


@pytest.mark.parametrize(
    ("transport", "expected"), [("ttpoe", 1108), ("ttpoe-pfc", 1108), ("roce", 4194), ("roce-pfc", 4194)]
)
def test_the_largest_frame(transport: str, expected: int) -> None:
    assert data_wire_bytes(transport, make_scenario({})) == expected


def test_no_timeout_is_never() -> None:
    assert make_scenario({"roce": {"rto_exponent": 0}}).roce.rto_ps == NEVER
    assert make_scenario({}).roce.rto_ps == 67_108_864_000


# --- TOML ------------------------------------------------------------------------------------------------------------

TOML = """
name = "two speeds"
transports = ["roce-pfc"]
seed = 7

[switch]
buffer_bytes = "2MB"
alpha = 0.5

[topology]
links = [{ hosts = [0, 2], rate_bps = "25G" }]

[workload]
kind = "flows"
flows = [{ src = 0, dst = 1, size_bytes = "1MB" }, { src = 2, dst = 1, size_bytes = 5, start_ps = "3us" }]
"""


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "scenario.toml"
    path.write_text(TOML)
    scenario = load_scenario(path)
    assert scenario.name == "two speeds"
    assert scenario.switch.alpha == 0.5
    assert scenario.topology.links[0].hosts == (0, 2)
    assert scenario.workload.flows[1].start_ps == 3_000_000  # type: ignore[union-attr]
    assert scenario == make_scenario(asdict(scenario))  # what results.json repeats can be run again


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"seed =\n", "at line 1"),
        (b"seed = 1\nseed = 2\n", "at line 2"),
        (b"\xff\xfe", "not UTF-8 text"),
        (b"seed = nan", "seed: "),
        (b"[switch]\nalpha = inf", "switch.alpha: "),
        (b"[switch]\nbufer_bytes = 1", "switch.bufer_bytes: there is no such field"),
        (b"seed = 99999999999999999999999", "seed: "),
        (b"seed = 2020-01-01", "seed: "),
        (b"[[workload]]", "workload: "),
    ],
)
def test_a_wrong_file_is_named_with_its_fault(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "scenario.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as refused:
        load_scenario(path)
    assert str(refused.value).startswith(f"{path}: ")
    assert says in str(refused.value)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml: No such file"):
        load_scenario(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="directory"):
        load_scenario(tmp_path)


def test_an_empty_file_is_the_default_scenario(tmp_path: Path) -> None:
    path = tmp_path / "empty.toml"
    path.touch()
    assert load_scenario(path) == make_scenario({})


EXAMPLES = sorted(Path(__file__).parents[1].glob("examples/*.toml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_can_be_built(path: Path) -> None:
    scenario = load_scenario(path)
    for transport in scenario.transports:
        make_scenario(asdict(scenario))
        from emulator.fabric import Fabric

        Fabric(scenario, transport, scenario.seed)
