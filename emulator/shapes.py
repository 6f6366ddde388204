"""Shapes of networks: the fields of each, and who is cabled to whom.

A shape is wired onto hosts that exist already, so that several can be planes of one network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from emulator.graphs import GraphConfig
from emulator.quantities import MAX_HOSTS, STRICT, Bps, ConfigError, Hosts, OptionalImpairments, Ordinal, Picoseconds
from emulator.topology import Topology, Wiring

if TYPE_CHECKING:
    from emulator.config import LinkConfig
    from ttpoe.impairments import ImpairmentConfig

_Count = Annotated[int, Field(ge=1, le=MAX_HOSTS, strict=True)]
_Even = Annotated[int, Field(ge=2, le=256, strict=True, multiple_of=2)]
_Factor = Annotated[int, Field(ge=1, le=64, strict=True)]


@dataclass(frozen=True, config=STRICT)
class HostLinkConfig:
    """Another cable for some hosts, or other cables, where they have several NICs."""

    hosts: Hosts
    """Numbers, and ranges as in ``"128-255"``."""
    rate_bps: Bps | None = None
    delay_ps: Picoseconds | None = None
    impairments: OptionalImpairments = None
    """In place of those of the scenario's ``link``."""
    impaired_ways: Literal["both", "from_host", "to_host"] = "both"
    """Which ways of the cable ``impairments`` are of."""
    bad_fcs_frames: tuple[Ordinal, ...] = ()
    """Ordinals, from 1, of frames from each of these hosts that arrive damaged: dropped by the switch, and counted."""


HostLinks = tuple[HostLinkConfig, ...]
"""Cables to hosts that differ from the scenario's ``link``; of two about a host, the later one decides."""


class HostCables:
    """The cable of each host of a shape: the scenario's, or what ``links`` says of it.

    Parameters
    ----------
    links : tuple of HostLinkConfig
    wiring : Wiring
        Takes the cables.
    hosts : int
        How many there are.
    link : LinkConfig
    room : str
        Where the shape stands in the scenario, for the sentence of an error.

    Raises
    ------
    ConfigError
        If ``links`` names a host that is not there.
    """

    def __init__(self, links: HostLinks, wiring: Wiring, hosts: int, link: LinkConfig, room: str) -> None:
        self._wiring = wiring
        self._rate = [link.rate_bps] * hosts
        self._delay = [link.delay_ps] * hosts
        self._ways = [(link.impairments, link.impairments)] * hosts
        self._bad_fcs_frames: dict[int, tuple[int, ...]] = {}
        for k, other in enumerate(links):
            for n in other.hosts:
                if n >= hosts:
                    raise ConfigError(f"{room}.links.{k}.hosts: there is no host {n}; the last one is {hosts - 1}")
                self._change(n, other)

    def _change(self, n: int, other: HostLinkConfig) -> None:
        self._rate[n] = self._rate[n] if other.rate_bps is None else other.rate_bps
        self._delay[n] = self._delay[n] if other.delay_ps is None else other.delay_ps
        if other.impairments is not None:
            kept = self._ways[n]
            self._ways[n] = (
                kept[0] if other.impaired_ways == "to_host" else other.impairments,
                kept[1] if other.impaired_ways == "from_host" else other.impairments,
            )
        if other.bad_fcs_frames:
            self._bad_fcs_frames[n] = tuple(sorted(set(other.bad_fcs_frames)))

    def lay(self, n: int, host: int, switch: int) -> None:
        """Cable the n-th host, whose end is ``host``, to a switch."""
        port = self._wiring.cable(host, switch, self._rate[n], self._delay[n], self._ways[n])
        if n in self._bad_fcs_frames:
            self._wiring.bad_fcs_frames[port] = self._bad_fcs_frames[n]


@dataclass(frozen=True, config=STRICT)
class StarConfig:
    """Hosts h0, h1, ... on one switch s0."""

    kind: Literal["star"] = "star"
    hosts: Annotated[int, Field(ge=2, le=MAX_HOSTS, strict=True)] | None = None
    """None: as many as the workload names."""
    links: HostLinks = ()

    @property
    def host_count(self) -> int | None:
        """Number of hosts; None: as many as the workload names."""
        return self.hosts

    def wire(
        self, wiring: Wiring, hosts: Sequence[int], link: LinkConfig, prefix: str = "", room: str = "topology"
    ) -> None:
        """Add the switch, whose port to a host has the host's number, and the cables to ``wiring``."""
        switch = wiring.add_switch(f"{prefix}s0")
        cables = HostCables(self.links, wiring, len(hosts), link, room)
        for n, host in enumerate(hosts):
            cables.lay(n, host, switch)


@dataclass(frozen=True, config=STRICT)
class UplinkConfig:
    """Cables between switches, where they differ from the scenario's ``link``."""

    rate_bps: Bps | None = None
    delay_ps: Picoseconds | None = None
    impairments: OptionalImpairments = None
    """Of both ways."""

    def quantities(self, link: LinkConfig) -> tuple[int, int, tuple[ImpairmentConfig, ImpairmentConfig]]:
        """Rate, delay and impairments, taken from ``link`` where nothing is said."""
        impairments = link.impairments if self.impairments is None else self.impairments
        return (
            link.rate_bps if self.rate_bps is None else self.rate_bps,
            link.delay_ps if self.delay_ps is None else self.delay_ps,
            (impairments, impairments),
        )


@dataclass(frozen=True, config=STRICT)
class LeafSpineConfig:
    """Leaves l0, l1, ... with hosts, each cabled to every spine s0, s1, ..."""

    kind: Literal["leaf-spine"] = "leaf-spine"
    leaves: _Count = 4
    hosts_per_leaf: _Count = 4
    spines: _Count = 4
    cables_per_pair: _Factor = 1
    """Parallel cables between a leaf and a spine."""
    uplink: UplinkConfig = field(default_factory=UplinkConfig)
    links: HostLinks = ()

    @property
    def host_count(self) -> int:
        """Number of hosts."""
        return self.leaves * self.hosts_per_leaf

    def wire(
        self, wiring: Wiring, hosts: Sequence[int], link: LinkConfig, prefix: str = "", room: str = "topology"
    ) -> None:
        """Add the switches and cables to ``wiring``."""
        leaves = [wiring.add_switch(f"{prefix}l{k}") for k in range(self.leaves)]
        spines = [wiring.add_switch(f"{prefix}s{k}", tier=2) for k in range(self.spines)]
        cables = HostCables(self.links, wiring, len(hosts), link, room)
        for n, host in enumerate(hosts):
            cables.lay(n, host, leaves[n // self.hosts_per_leaf])
        for leaf in leaves:
            for spine in spines:
                for _ in range(self.cables_per_pair):
                    wiring.cable(leaf, spine, *self.uplink.quantities(link))


@dataclass(frozen=True, config=STRICT)
class FatTreeConfig:
    """A fat tree of switches with ``k`` ports; edge switches e, aggregation a (both by pod), core c.

    Source: Al-Fares, Loukissas and Vahdat, "A scalable, commodity data center network architecture", 2008. With two
    tiers it is k leaves (e0 ...) under k / 2 spines (c0 ...).
    """

    kind: Literal["fat-tree"] = "fat-tree"
    k: _Even | None = None
    """Ports of a switch; None: from ``hosts``."""
    hosts: _Count | None = None
    """Must be what a k gives: k**3 / 4 (three tiers) or k**2 / 2 (two), times the leaf oversubscription."""
    tiers: Literal[2, 3] = 3
    leaf_oversubscription: _Factor = 1
    """So many times as many hosts under an edge switch as it has uplinks."""
    pod_oversubscription: _Factor = 1
    """So many times as many ports of an aggregation switch down as up; must divide k / 2."""
    uplink: UplinkConfig = field(default_factory=UplinkConfig)
    links: HostLinks = ()

    @model_validator(mode="after")
    def _check(self) -> FatTreeConfig:
        if self.k is None and self.hosts is None:
            raise ValueError("give k, the ports of a switch, or hosts")
        half = self.ports // 2
        if half % self.pod_oversubscription or (self.tiers == 2 and self.pod_oversubscription > 1):
            raise ValueError(f"pod_oversubscription must divide k / 2 = {half} and needs three tiers")
        return self

    def _hosts_of(self, k: int) -> int:
        return (k**3 // 4 if self.tiers == 3 else k * k // 2) * self.leaf_oversubscription

    @property
    def ports(self) -> int:
        """k, given or found."""
        if self.k is not None:
            if self.hosts is not None and self.hosts != self._hosts_of(self.k):
                made = self._hosts_of(self.k)
                raise ValueError(f"k = {self.k} makes {made} hosts, not {self.hosts}; give one of them")
            return self.k
        assert self.hosts is not None
        sizes = {self._hosts_of(k): k for k in range(2, 258, 2)}
        if self.hosts not in sizes:
            below = [size for size in sizes if size < self.hosts][-1:]
            above = [size for size in sizes if size > self.hosts][:1]
            near = " or ".join(str(size) for size in below + above)
            raise ValueError(f"no even k makes {self.hosts} hosts; take {near}")
        return sizes[self.hosts]

    @property
    def host_count(self) -> int:
        """Number of hosts."""
        return self._hosts_of(self.ports)

    def wire(
        self, wiring: Wiring, hosts: Sequence[int], link: LinkConfig, prefix: str = "", room: str = "topology"
    ) -> None:
        """Add the switches and cables to ``wiring``."""
        uplink = self.uplink.quantities(link)
        half = self.ports // 2
        under = half * self.leaf_oversubscription
        cables = HostCables(self.links, wiring, len(hosts), link, room)
        if self.tiers == 2:
            edges = [wiring.add_switch(f"{prefix}e{i}") for i in range(self.ports)]
            cores = [wiring.add_switch(f"{prefix}c{j}", tier=2) for j in range(half)]
            for n, host in enumerate(hosts):
                cables.lay(n, host, edges[n // under])
            for edge in edges:
                for core in cores:
                    wiring.cable(edge, core, *uplink)
            return
        pods = range(self.ports)
        up = half // self.pod_oversubscription
        edges = [wiring.add_switch(f"{prefix}e{pod}.{i}") for pod in pods for i in range(half)]
        aggregations = [wiring.add_switch(f"{prefix}a{pod}.{j}", tier=2) for pod in pods for j in range(half)]
        cores = [wiring.add_switch(f"{prefix}c{n}", tier=3) for n in range(half * up)]
        for n, host in enumerate(hosts):
            cables.lay(n, host, edges[n // under])
        for pod in pods:
            for i in range(half):
                for j in range(half):
                    wiring.cable(edges[pod * half + i], aggregations[pod * half + j], *uplink)
            for j in range(half):
                for n in range(up):
                    wiring.cable(aggregations[pod * half + j], cores[j * up + n], *uplink)


@dataclass(frozen=True, config=STRICT)
class RailConfig:
    """Servers with a NIC for each rail; NIC r goes to leaf l{group}.{r}, which only NICs of rail r share.

    Source: rail-optimized networks as in NVIDIA's DGX SuperPOD reference architecture. Forwarding within a server
    (NVLink, PXN) is not modelled: a message leaves by the NIC that it names.
    """

    kind: Literal["rail"] = "rail"
    servers: _Count = 8
    rails: Annotated[int, Field(ge=2, le=64, strict=True)] = 4
    servers_per_group: _Count | None = None
    """Servers that share a set of leaves; None: all."""
    spines: Annotated[int, Field(ge=0, le=4096, strict=True)] = 4
    """Each cabled to every leaf. 0: rails only, so NICs of different rails cannot reach each other."""
    uplink: UplinkConfig = field(default_factory=UplinkConfig)
    links: HostLinks = ()

    @model_validator(mode="after")
    def _check(self) -> RailConfig:
        if self.servers_per_group is not None and self.servers % self.servers_per_group:
            raise ValueError(f"servers_per_group {self.servers_per_group} must divide servers {self.servers}")
        if self.spines == 0 and self.servers_per_group not in (None, self.servers):
            raise ValueError("several groups need spines; raise spines")
        return self

    @property
    def host_count(self) -> int:
        """Number of hosts."""
        return self.servers

    def wire(
        self, wiring: Wiring, hosts: Sequence[int], link: LinkConfig, prefix: str = "", room: str = "topology"
    ) -> None:
        """Add the switches and cables to ``wiring``."""
        group_size = self.servers_per_group or self.servers
        groups = self.servers // group_size
        leaves = [wiring.add_switch(f"{prefix}l{g}.{r}") for g in range(groups) for r in range(self.rails)]
        spines = [wiring.add_switch(f"{prefix}s{n}", tier=2) for n in range(self.spines)]
        cables = HostCables(self.links, wiring, len(hosts), link, room)
        for n, host in enumerate(hosts):
            for r in range(self.rails):
                cables.lay(n, host, leaves[n // group_size * self.rails + r])
        for leaf in leaves:
            for spine in spines:
                wiring.cable(leaf, spine, *self.uplink.quantities(link))


Plane = Annotated[LeafSpineConfig | FatTreeConfig, Field(discriminator="kind")]


@dataclass(frozen=True, config=STRICT)
class DualPlaneConfig:
    """Two networks that share nothing but the hosts: NIC 0 is in ``scale_out``, NIC 1 in ``front_end``."""

    scale_out: Plane
    front_end: Plane
    kind: Literal["dual-plane"] = "dual-plane"
    front_end_rate_bps: Bps = 25_000_000_000
    """Of the hosts' cables there; its uplinks have their own."""

    @model_validator(mode="after")
    def _check(self) -> DualPlaneConfig:
        a, b = self.scale_out.host_count, self.front_end.host_count
        if a != b:
            raise ValueError(f"scale_out has {a} hosts and front_end {b}; make them equal")
        return self

    @property
    def host_count(self) -> int:
        """Number of hosts."""
        return self.scale_out.host_count

    def wire(
        self, wiring: Wiring, hosts: Sequence[int], link: LinkConfig, prefix: str = "", room: str = "topology"
    ) -> None:
        """Add the switches and cables to ``wiring``."""
        self.scale_out.wire(wiring, hosts, link, prefix, f"{room}.scale_out")
        front_end = replace(link, rate_bps=self.front_end_rate_bps)
        self.front_end.wire(wiring, hosts, front_end, f"{prefix}f.", f"{room}.front_end")


ShapeConfig = StarConfig | LeafSpineConfig | FatTreeConfig | RailConfig | DualPlaneConfig | GraphConfig


@lru_cache(maxsize=8)
def build_topology(shape: ShapeConfig, link: LinkConfig, hosts: int) -> Topology:
    """The network of a scenario; ``hosts`` counts for a star only, which has as many as are named.

    Raises
    ------
    ConfigError
        Where there is one host only, where cables are of hosts that are not there, and where memory would not hold it.
    """
    wiring = Wiring(link.impairments)
    names = shape.host_names if shape.kind == "graph" else [f"h{h}" for h in range(shape.host_count or hosts)]
    if len(names) < 2:
        raise ConfigError("topology: there is one host, which has nobody to send to; make it larger")
    shape.wire(wiring, [wiring.add_host(name) for name in names], link)
    return wiring.build()
