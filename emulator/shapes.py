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
from emulator.quantities import STRICT, Bps, ConfigError, Host, OptionalImpairments, Ordinal, Picoseconds
from emulator.topology import Topology, Wiring

if TYPE_CHECKING:
    from emulator.config import LinkConfig
    from ttpoe.impairments import ImpairmentConfig

_Count = Annotated[int, Field(ge=1, le=65_536, strict=True)]
_Even = Annotated[int, Field(ge=2, le=256, strict=True, multiple_of=2)]
_Factor = Annotated[int, Field(ge=1, le=64, strict=True)]


@dataclass(frozen=True, config=STRICT)
class HostLinkConfig:
    """Another cable for some hosts of a star."""

    hosts: tuple[Host, ...]
    rate_bps: Bps | None = None
    delay_ps: Picoseconds | None = None
    impairments: OptionalImpairments = None
    """In place of those of the scenario's ``link``."""
    impaired_ways: Literal["both", "from_host", "to_host"] = "both"
    """Which ways of the cable ``impairments`` are of."""
    bad_fcs_frames: tuple[Ordinal, ...] = ()
    """Ordinals, from 1, of frames from each of these hosts that arrive damaged: dropped by the switch, and counted."""


@dataclass(frozen=True, config=STRICT)
class StarConfig:
    """Hosts h0, h1, ... on one switch s0."""

    kind: Literal["star"] = "star"
    hosts: Annotated[int, Field(ge=2, le=65_536, strict=True)] | None = None
    """None: as many as the workload names."""
    links: tuple[HostLinkConfig, ...] = ()
    """Cables that differ from the scenario's ``link``."""


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

    @property
    def host_count(self) -> int:
        """Number of hosts."""
        return self.leaves * self.hosts_per_leaf

    def wire(self, wiring: Wiring, hosts: Sequence[int], link: LinkConfig, prefix: str = "") -> None:
        """Add the switches and cables to ``wiring``."""
        leaves = [wiring.add_switch(f"{prefix}l{k}") for k in range(self.leaves)]
        spines = [wiring.add_switch(f"{prefix}s{k}", tier=2) for k in range(self.spines)]
        for k, host in enumerate(hosts):
            wiring.cable(host, leaves[k // self.hosts_per_leaf], link.rate_bps, link.delay_ps)
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

    def wire(self, wiring: Wiring, hosts: Sequence[int], link: LinkConfig, prefix: str = "") -> None:
        """Add the switches and cables to ``wiring``."""
        uplink = self.uplink.quantities(link)
        half = self.ports // 2
        under = half * self.leaf_oversubscription
        if self.tiers == 2:
            edges = [wiring.add_switch(f"{prefix}e{i}") for i in range(self.ports)]
            cores = [wiring.add_switch(f"{prefix}c{j}", tier=2) for j in range(half)]
            for n, host in enumerate(hosts):
                wiring.cable(host, edges[n // under], link.rate_bps, link.delay_ps)
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
            wiring.cable(host, edges[n // under], link.rate_bps, link.delay_ps)
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

    def wire(self, wiring: Wiring, hosts: Sequence[int], link: LinkConfig, prefix: str = "") -> None:
        """Add the switches and cables to ``wiring``."""
        group_size = self.servers_per_group or self.servers
        groups = self.servers // group_size
        leaves = [wiring.add_switch(f"{prefix}l{g}.{r}") for g in range(groups) for r in range(self.rails)]
        spines = [wiring.add_switch(f"{prefix}s{n}", tier=2) for n in range(self.spines)]
        for n, host in enumerate(hosts):
            for r in range(self.rails):
                wiring.cable(host, leaves[n // group_size * self.rails + r], link.rate_bps, link.delay_ps)
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

    def wire(self, wiring: Wiring, hosts: Sequence[int], link: LinkConfig, prefix: str = "") -> None:
        """Add the switches and cables to ``wiring``."""
        self.scale_out.wire(wiring, hosts, link, prefix)
        self.front_end.wire(wiring, hosts, replace(link, rate_bps=self.front_end_rate_bps), f"{prefix}f.")


def wire_star(star: StarConfig, wiring: Wiring, hosts: Sequence[int], link: LinkConfig) -> None:
    """Switch s0; host h is on its port of the same number."""
    switch = wiring.add_switch("s0")
    rate = [link.rate_bps] * len(hosts)
    delay = [link.delay_ps] * len(hosts)
    ways = [(link.impairments, link.impairments)] * len(hosts)
    for k, other in enumerate(star.links):
        for host in other.hosts:
            if host >= len(hosts):
                raise ConfigError(
                    f"topology.links.{k}.hosts: there is no host {host}; the last one is {len(hosts) - 1}"
                )
            rate[host] = rate[host] if other.rate_bps is None else other.rate_bps
            delay[host] = delay[host] if other.delay_ps is None else other.delay_ps
            if other.impairments is not None:
                kept = ways[host]
                ways[host] = (
                    kept[0] if other.impaired_ways == "to_host" else other.impairments,
                    kept[1] if other.impaired_ways == "from_host" else other.impairments,
                )
            if other.bad_fcs_frames:
                wiring.bad_fcs_frames[2 * host] = tuple(sorted(set(other.bad_fcs_frames)))
    for host in hosts:
        wiring.cable(host, switch, rate[host], delay[host], ways[host])


ShapeConfig = LeafSpineConfig | FatTreeConfig | RailConfig | DualPlaneConfig | GraphConfig


@lru_cache(maxsize=8)
def build_topology(shape: ShapeConfig | StarConfig, link: LinkConfig, hosts: int) -> Topology:
    """The network of a scenario; ``hosts`` counts for a star only, which has as many as are named."""
    wiring = Wiring(link.impairments)
    if shape.kind == "star":
        wire_star(shape, wiring, [wiring.add_host(f"h{h}") for h in range(hosts)], link)
    else:
        names = shape.host_names if shape.kind == "graph" else [f"h{h}" for h in range(shape.host_count)]
        shape.wire(wiring, [wiring.add_host(name) for name in names], link)
    return wiring.build()
