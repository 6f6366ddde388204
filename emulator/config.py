"""What is modelled: frozen dataclasses, validated, with the unit in each name; from Python or from TOML.

A quantity may be a number in the unit of its name or text with a unit of its own: ``rate_bps = "100G"``.
"""

from __future__ import annotations

import tomllib
from dataclasses import field, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError, model_validator
from pydantic.dataclasses import dataclass

from emulator import roce
from emulator.events import EventConfig
from emulator.graphs import CableConfig, GraphConfig, NodeConfig, RouteConfig, read_graph
from emulator.host_config import HostConfig, PauseStormConfig
from emulator.quantities import (
    STRICT,
    Bps,
    Bytes,
    ConfigError,
    Impairments,
    Mtu,
    Picoseconds,
    PositivePicoseconds,
    Priority,
)
from emulator.roce_config import DcqcnConfig, RoceConfig, SelectiveConfig
from emulator.routing import POLICIES
from emulator.shapes import (
    DualPlaneConfig,
    FatTreeConfig,
    HostLinkConfig,
    LeafSpineConfig,
    RailConfig,
    StarConfig,
    UplinkConfig,
)  # fmt: skip
from emulator.switching import EcnConfig, PriorityConfig, SwitchConfig, WatchdogConfig
from emulator.tcp_config import TcpConfig
from emulator.transports import (
    DEFAULT_TRANSPORTS,
    PROFILES,
    TRANSPORTS,
    CongestionControl,
    FlowControl,
    Profile,
    Recovery,
    RoutingName,
    WindowLimit,
)  # fmt: skip
from emulator.workloads import CONFIGS, SINGLE, FlowConfig, PartConfig, WorkloadConfig
from emulator.workloads.patterns import IncastConfig
from ttpoe import constants, units
from ttpoe.impairments import ImpairmentConfig
from ttpoe.state import CONGESTION_CONTROLS

assert set(get_args(RoutingName)) == set(POLICIES)
assert set(CONGESTION_CONTROLS) < set(get_args(CongestionControl))
assert set(get_args(Recovery)) == set(roce.RECOVERIES)


@dataclass(frozen=True, config=STRICT)
class LinkConfig:
    """A cable: the same rate and delay both ways."""

    rate_bps: Bps = 100_000_000_000
    delay_ps: Picoseconds = units.PS_PER_US
    """Propagation, one way."""
    impairments: Impairments = ImpairmentConfig()
    """What each way of the cable does to frames, drawn on its own."""
    retry_bytes: Bytes | None = None
    """Link-level retry, on all cables: replay buffer of each way, in bytes on the line; None: no retry."""


@dataclass(frozen=True, config=STRICT)
class TtpoeConfig:
    """TTPoE endpoints; the protocol's own readings are in docs/design.md."""

    mode: Literal["ethernet", "ipv4"] = "ethernet"
    """What carries the transport header; frames are as long in either mode, and can be marked in IPv4 mode."""
    mtu_bytes: Mtu = constants.MAX_PAYLOAD_BYTES
    """Payload of one frame; the specification ends at 1024, more is reported as ttpoe-jumbo."""
    window_bytes: Bytes = constants.WINDOW_BYTES
    """Payload unacknowledged, per link or per host."""
    shared_window: Annotated[bool, Field(strict=True)] = False
    """True: one window for all links of a host, as the hardware's SRAM is."""
    handshake: Annotated[bool, Field(strict=True)] = True
    """OPEN and OPEN_ACK are part of the completion time; False: links are open at the start."""
    rto_min_ps: PositivePicoseconds = 100 * units.PS_PER_US
    rto_initial_ps: PositivePicoseconds = units.PS_PER_MS
    rto_max_ps: PositivePicoseconds = units.PS_PER_S
    retry_limit: Annotated[int, Field(ge=1, le=1_000_000, strict=True)] = 16
    """Timeouts in a row without progress before the link fails."""
    congestion_control: Literal["fixed", "reno", "swift", "dctcp"] = "fixed"
    """fixed: ``window_bytes`` alone limits what is in flight; reno: RFC 5681 as well; swift: by delay as well; dctcp:
    by marks as well (RFC 8257), with ``mode = "ipv4"``."""
    initial_window_packets: Annotated[int, Field(ge=1, le=1_000_000, strict=True)] = 10
    """Congestion window at the start, in payloads of ``mtu_bytes`` (RFC 6928)."""
    target_delay_ps: PositivePicoseconds = 25 * units.PS_PER_US
    """swift: the round trip that it aims at."""
    flow_scaling_ps: Picoseconds = 125 * units.PS_PER_US
    """swift: how much longer that may be for windows of a tenth of a payload; less the larger they are."""
    tail_loss_probe: Annotated[bool, Field(strict=True)] = True
    """Send the last frame once more after two round trips without a sign of life (RFC 8985, 7)."""
    probe_min_ps: Picoseconds = 0
    """Least wait before that, and before asking a full peer again; timers here do not misfire."""

    @model_validator(mode="after")
    def _check(self) -> TtpoeConfig:
        if self.window_bytes < self.mtu_bytes:
            raise ValueError(f"window_bytes {self.window_bytes} is below mtu_bytes {self.mtu_bytes}; raise it")
        if not self.rto_min_ps <= self.rto_initial_ps <= self.rto_max_ps:
            raise ValueError("rto_min_ps, rto_initial_ps and rto_max_ps must be in this order")
        if self.probe_min_ps > self.rto_max_ps:
            raise ValueError("probe_min_ps is above rto_max_ps; lower it")
        if max(self.target_delay_ps, self.flow_scaling_ps) > self.rto_max_ps:
            raise ValueError("target_delay_ps or flow_scaling_ps is above rto_max_ps; lower it")
        return self


@dataclass(frozen=True, config=STRICT)
class RoutingConfig:
    """How a switch chooses among the ports on shortest paths."""

    flowlet_gap_ps: PositivePicoseconds = 50 * units.PS_PER_US
    """``flowlet``: a flow that was silent for longer may take another path (LetFlow, 2017)."""
    choices: Annotated[int, Field(ge=0, le=8, strict=True)] = 0
    """``adaptive``: queues compared, drawn at random; 0: all."""
    grade_bytes: Bytes = 65_536
    """``adaptive``: queues that hold as many whole multiples of this are equal. Ours; see docs/model.md."""
    convergence_ps: Picoseconds = units.PS_PER_MS
    """From a change of a link to routes that know of it. Ours; data centres tell of tenths to tens of a millisecond."""


@dataclass(frozen=True, config=STRICT)
class ProfileConfig:
    """A transport of your own: another one with some of its parts exchanged."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,39}$")]
    base: str
    flow_control: FlowControl | None = None
    congestion_control: CongestionControl | None = None
    recovery: Recovery | None = None
    window: WindowLimit | None = None
    routing: RoutingName | None = None

    def over(self, base: Profile) -> Profile:
        """The profile, from its base."""
        given = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "base"}
        return replace(base, **{name: value for name, value in given.items() if value is not None})


@dataclass(frozen=True, config=STRICT)
class ScenarioConfig:
    """One experiment: a workload on a topology, over one or more transports and seeds."""

    name: str = "incast"
    transports: tuple[str, ...] = DEFAULT_TRANSPORTS
    """Names of :data:`emulator.transports.PROFILES` and of ``profiles``."""
    profiles: tuple[ProfileConfig, ...] = ()
    routings: tuple[RoutingName, ...] | None = None
    """Ways to choose among equal paths, each with each transport; None: each transport's own."""
    seed: Annotated[int, Field(ge=0, lt=2**32, strict=True)] = 1
    repeat: Annotated[int, Field(ge=1, le=10_000, strict=True)] = 1
    """Paired seeds: seed, seed + 1, ..."""
    until_ps: PositivePicoseconds = 60 * units.PS_PER_S
    """A run that is not over by then says which flows are unfinished."""
    priority: Priority = 3
    ack_priority: Priority | None = None
    """None: the data's."""
    frame_overhead: Literal["real", "peer"] = "real"
    """real: headers, FCS, preamble and gap; peer: see :data:`emulator.framing.PEER_CONTROL_BYTES`."""
    cnp_priority: Priority = 6
    """Of DCQCN's notifications; 6 is what NVIDIA's NICs use (DSCP 48)."""
    link: LinkConfig = field(default_factory=LinkConfig)
    hosts: HostConfig = field(default_factory=HostConfig)
    switch: SwitchConfig = field(default_factory=SwitchConfig)
    topology: Annotated[
        Annotated[
            StarConfig | LeafSpineConfig | FatTreeConfig | RailConfig | DualPlaneConfig | GraphConfig,
            Field(discriminator="kind"),
        ],
        BeforeValidator(lambda given: {"kind": "star", **given} if isinstance(given, dict) else given),
    ] = field(default_factory=StarConfig)
    routing: RoutingConfig = field(default_factory=RoutingConfig)
    workload: WorkloadConfig = field(default_factory=IncastConfig)
    events: tuple[EventConfig, ...] = ()
    """What happens to links, NICs, hosts and switches."""
    ttpoe: TtpoeConfig = field(default_factory=TtpoeConfig)
    roce: RoceConfig = field(default_factory=RoceConfig)
    tcp: TcpConfig = field(default_factory=TcpConfig)
    dcqcn: DcqcnConfig = field(default_factory=DcqcnConfig)
    selective: SelectiveConfig = field(default_factory=SelectiveConfig)

    def profile(self, transport: str) -> Profile:
        """What a transport's name stands for here; KeyError if it is neither ours nor in ``profiles``."""
        own = next((own for own in self.profiles if own.name == transport), None)
        profile = PROFILES[transport] if own is None else own.over(PROFILES[own.base])
        if profile.is_ttpoe and profile.congestion_control == "none":
            profile = replace(profile, congestion_control=self.ttpoe.congestion_control)
        if profile.is_ttpoe and profile.is_ect and self.ttpoe.mode == "ethernet":
            raise ConfigError(
                f"ttpoe.mode: {transport} has dctcp, which answers ECN marks; frames in Ethernet mode have no field "
                "for them, so set IPv4 mode, or take fixed, reno or swift"
            )
        return profile

    def routings_of(self, transport: str) -> tuple[str, ...]:
        """Ways to choose among equal paths that a transport is run with."""
        return (self.profile(transport).routing,) if self.routings is None else self.routings

    @property
    def runs(self) -> tuple[tuple[str, str], ...]:
        """Transports with their routings, in the order in which each seed runs them."""
        return tuple((name, routing) for name in self.transports for routing in self.routings_of(name))

    @model_validator(mode="after")
    def _check(self) -> ScenarioConfig:
        _check_profiles(self.profiles)
        known = [*TRANSPORTS, *(own.name for own in self.profiles)]
        if not self.transports:
            raise ValueError("transports: there is none; name at least one of " + ", ".join(known))
        unknown = [name for name in self.transports if name not in known]
        if unknown:
            raise ValueError(f"transports: there is no {unknown[0]!r}; there are " + ", ".join(known))
        if len(set(self.transports)) != len(self.transports):
            raise ValueError("transports: one of them is named twice")
        marked = [name for name in self.transports if self.profile(name).is_roce and self.profile(name).is_ect]
        if self.roce.version == 1 and (marked or self.roce.ecn):
            what = f"leave out {marked[0]}, which needs one" if marked else "set ecn = false"
            raise ValueError(f"roce.version: RoCEv1 frames have no ECN field; {what}, or make it 2")
        if self.routings is not None and (not self.routings or len(set(self.routings)) != len(self.routings)):
            raise ValueError("routings: name one or more of " + ", ".join(POLICIES) + ", each once")
        return self


def _check_profiles(profiles: tuple[ProfileConfig, ...]) -> None:
    """Profiles are based on ours, have names of their own, and make sense."""
    taken = set(TRANSPORTS)
    for k, own in enumerate(profiles):
        if own.name in taken:
            raise ValueError(f"profiles.{k}.name: there is a transport {own.name!r} already; choose another name")
        taken.add(own.name)
        if own.base not in PROFILES:
            raise ValueError(f"profiles.{k}.base: there is no {own.base!r}; there are " + ", ".join(TRANSPORTS))
        if (fault := own.over(PROFILES[own.base]).fault()) is not None:
            raise ValueError(f"profiles.{k}.{fault}")


_SCENARIO = TypeAdapter(ScenarioConfig)


_ROOMS: dict[str, tuple[type, ...]] = {
    "": (ScenarioConfig,),
    "link": (LinkConfig,),
    "hosts": (HostConfig,),
    "hosts.pause_storms": (PauseStormConfig,),
    "switch": (SwitchConfig,),
    "switch.ecn": (EcnConfig,),
    "switch.priorities": (PriorityConfig,),
    "switch.watchdog": (WatchdogConfig,),
    "topology": (StarConfig, LeafSpineConfig, FatTreeConfig, RailConfig, DualPlaneConfig, GraphConfig),
    "topology.uplink": (UplinkConfig,),
    "topology.scale_out": (LeafSpineConfig, FatTreeConfig),
    "topology.scale_out.uplink": (UplinkConfig,),
    "topology.front_end": (LeafSpineConfig, FatTreeConfig),
    "topology.front_end.uplink": (UplinkConfig,),
    "routing": (RoutingConfig,),
    "events": (EventConfig,),
    "topology.links": (HostLinkConfig, CableConfig),
    "topology.scale_out.links": (HostLinkConfig,),
    "topology.front_end.links": (HostLinkConfig,),
    "topology.nodes": (NodeConfig,),
    "topology.routes": (RouteConfig,),
    "workload": CONFIGS,
    "workload.flows": (FlowConfig,),
    "workload.parts": (PartConfig,),
    "workload.parts.workload": SINGLE,
    "workload.parts.workload.flows": (FlowConfig,),
    "ttpoe": (TtpoeConfig,),
    "roce": (RoceConfig,),
    "tcp": (TcpConfig,),
    "dcqcn": (DcqcnConfig,),
    "selective": (SelectiveConfig,),
    "profiles": (ProfileConfig,),
}
"""Where a field may stand, without the numbers of lists and of priorities."""

_UNITS = {"bps": "bit/s", "bytes": "bytes", "ps": "ps"}


def _known_fields(path: list[Any], variant: Any) -> str:
    """What may stand where an unknown field stands, in this variant of its room: the likely one, or all."""
    room = ".".join(part for part in path[:-1] if isinstance(part, str) and not part.isdigit())
    rooms = (ImpairmentConfig,) if room.endswith(".impairments") else _ROOMS.get(room, ())
    rooms = tuple(kind for kind in rooms if getattr(kind, "kind", variant) == variant) or rooms
    names = [field.name for room_type in rooms for field in fields(room_type)]
    close = get_close_matches(str(path[-1]), names, n=1)
    return f"did you mean {close[0]}?" if close else f"there are {', '.join(dict.fromkeys(names))}"


def _sentence(error: ValidationError) -> str:
    errors = error.errors()
    unknown = ("unexpected_keyword_argument", "extra_forbidden")
    first = next((e for e in errors if e["type"] in unknown), errors[0])  # a misspelt field explains a missing one
    path = loc = list(first["loc"])
    unions = ("workload", "topology", "scale_out", "front_end")  # pydantic names the variant of one behind it
    path = [part for before, part in zip([None, *loc], loc, strict=False) if before not in unions]
    variant = loc[-2] if len(loc) > 2 and loc[-3] in unions else None
    where = ".".join(str(part) for part in path)
    what = first["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    if what != first["msg"].removeprefix("Value error, "):
        what = f"must be {what}"
    given = first.get("input")
    text = repr(given)
    text = text if len(text) <= 60 else f"{text[:28]}...{text[-28:]}"
    shown = f" (given {text})" if isinstance(given, str | int | float) else ""
    if first["type"] in unknown:
        return f"{where}: there is no such field; {_known_fields(path, variant)}"
    if first["type"].startswith("union_tag"):
        rooms = _ROOMS[".".join(part for part in path if isinstance(part, str))]
        kinds = " or ".join(f'"{room.kind}"' for room in rooms)  # type: ignore[attr-defined]
        tag = first.get("ctx", {}).get("tag")
        return f"{where}.kind: name one, {kinds}" + (f" (given {tag!r})" if tag else "")
    if first["type"] in ("missing", "missing_argument"):
        return f"{where}: this field is required"
    if first["type"] == "dataclass_type":
        policies = "; policies are named by routings" if where == "routing" else ""
        return f"{where}: must be a table of fields{shown}{policies}"
    if first["type"] == "tuple_type":
        return f"{where}: must be a list, as in [{text}]"
    if first["type"] in ("dataclass_type", "model_attributes_type", "dict_type"):
        return f"{where}: must be a table of fields{shown}"
    if first["type"] == "too_short":
        return f"{where}: there is none; name one or more"
    if path and path[-1] == "impairments" and first["type"] == "value_error":
        name, _, what = what.partition(" ")  # what ImpairmentConfig says begins with the field
        return f"{where}.{name.rstrip(':')}: {what}"
    unit = _UNITS.get(str(path[-1]).rpartition("_")[2]) if path else None
    if unit and first["type"].startswith(("greater_than", "less_than")):
        what += f" {unit}"
    return f"{where}: {what}{shown}" if where else what + shown


def _with_network(topology: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The values of a graph with what its file holds; a ConfigError names the file."""
    if "nodes" in topology or "links" in topology:
        raise ConfigError("topology.file: nodes and links are in the file; leave them out here, or leave out file")
    path = folder / topology["file"]
    graph = {**read_graph(path), "kind": "graph"}
    try:
        _SCENARIO.validate_python({"topology": graph})
    except ValidationError as error:
        raise ConfigError(f"{path}: {_sentence(error).removeprefix('topology: ').removeprefix('topology.')}") from None
    others = {name: value for name, value in topology.items() if name not in ("file", "routes")}
    return {**others, **graph, "routes": [*graph.get("routes", ()), *topology.get("routes", ())]}


def make_scenario(values: dict[str, Any], folder: Path = Path()) -> ScenarioConfig:
    """A scenario from plain values, nested as in a TOML file; raises ConfigError naming the field.

    ``folder`` is where the file of a graph lies.
    """
    topology = values.get("topology")
    if isinstance(topology, dict) and topology.get("kind") == "graph" and isinstance(topology.get("file"), str):
        values = {**values, "topology": _with_network(topology, folder)}
    try:
        return _SCENARIO.validate_python(values)
    except ValidationError as error:
        raise ConfigError(_sentence(error)) from None


def _find_files(values: Any, folder: Path) -> None:
    """Paths of workloads, also of parts of one, are relative to the scenario's file; modified in place."""
    load = values.get("workload") if isinstance(values, dict) else None
    if not isinstance(load, dict):
        return
    if isinstance(load.get("path"), str):
        load["path"] = str(folder / load["path"])
    if isinstance(load.get("parts"), list):
        for part in load["parts"]:
            _find_files(part, folder)


def load_scenario(path: str | Path) -> ScenarioConfig:
    """A scenario from a TOML file; raises ConfigError naming the file and the field."""
    try:
        values = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: this is not UTF-8 text, so no TOML scenario") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: {error}") from None
    _find_files(values, Path(path).parent)
    try:
        return make_scenario(values, Path(path).parent)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
