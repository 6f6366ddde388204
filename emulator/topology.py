"""A wired network: nodes, named ports, cables and routes; and the headroom that a cable needs.

Cables are pairs of ports: port 2c and port 2c + 1 are each other's far end. A host has one NIC or more; frames are
addressed to NICs, so routes lead to NICs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from emulator.paths import Routes, StaticRoute, circle, find_routes
from emulator.pfc import PFC_WIRE_BYTES
from emulator.quantities import ConfigError
from ttpoe.impairments import ImpairmentConfig

MAX_CABLES = 2**21
"""Ours: their rows and names take about a gigabyte."""


@dataclass(frozen=True)
class Topology:
    """Who is cabled to whom, at which rate, and how frames find their way.

    Attributes
    ----------
    hosts, switches : int
    host_names, switch_names : tuple of str
    switch_tiers : tuple of int
        1 where hosts are attached, more towards the core; for drawing and counting.
    port_names : tuple of str
    port_nic, port_switch : int32 arrays, shape (ports,)
        What a port belongs to, -1 for neither.
    rate_bps, delay_ps : int64 arrays, shape (ports,)
        Line rate and propagation.
    nic_port, nic_host : int32 arrays, shape (nics,)
        Hosts' NICs, host by host.
    static_routes : tuple of StaticRoute
    bad_fcs_frames : dict
        By port: ordinals of the frames it sends that arrive damaged, ascending.
    impairments : dict
        By port: of the way that begins there, where there are any. Their constant delay is part of ``delay_ps``.
    """

    host_names: tuple[str, ...]
    switch_names: tuple[str, ...]
    switch_tiers: tuple[int, ...]
    port_names: tuple[str, ...]
    port_nic: np.ndarray
    port_switch: np.ndarray
    rate_bps: np.ndarray
    delay_ps: np.ndarray
    nic_port: np.ndarray
    nic_host: np.ndarray
    static_routes: tuple[StaticRoute, ...] = ()
    bad_fcs_frames: dict[int, tuple[int, ...]] = field(default_factory=dict)
    impairments: dict[int, ImpairmentConfig] = field(default_factory=dict)

    @cached_property
    def routes(self) -> Routes:
        """With all cables up; found when first asked for, as a survey needs none."""
        return self.routed()

    def one_way_ps(self, port: int) -> int:
        """Half of the longest time that a frame takes through ``port``'s cable and another one back."""
        ways = (port, port ^ 1)
        jitter_ps = sum(self.impairments[way].jitter_ps for way in ways if way in self.impairments)
        return -(-(int(self.delay_ps[ways[0]]) + int(self.delay_ps[ways[1]]) + jitter_ps) // 2)

    @property
    def hosts(self) -> int:
        """Number of hosts."""
        return len(self.host_names)

    @property
    def switches(self) -> int:
        """Number of switches."""
        return len(self.switch_names)

    @property
    def host_port(self) -> np.ndarray:
        """int32 (hosts,): each host's first NIC's port."""
        return self.nic_port[np.searchsorted(self.nic_host, np.arange(self.hosts))]

    def routed(self, is_up: np.ndarray | None = None, rate_bps: np.ndarray | None = None) -> Routes:
        """Routes over the ports that are up; by weight if the rates that count are given, as for `find_routes`."""
        return find_routes(self.port_switch, self.nic_port, is_up, rate_bps, self.static_routes)

    def nics(self, host: int) -> np.ndarray:
        """Numbers of a host's NICs."""
        return np.flatnonzero(self.nic_host == host)

    def path(self, src_nic: int, dst_nic: int) -> list[int]:
        """Ports that send, one a hop, on the first of the shortest ways between two NICs; empty if there is none."""
        ports = [int(self.nic_port[src_nic])]
        while (switch := int(self.port_switch[ports[-1] ^ 1])) >= 0:
            onward = self.routes.ports(switch, dst_nic)
            if not len(onward):
                return []
            ports.append(int(onward[0]))
        return ports


class Wiring:
    """Collects hosts, switches and cables, in the order that names and numbers them.

    Ports of a switch are numbered as they are cabled. A host's only NIC bears the host's name, several are h.n0, h.n1.
    """

    def __init__(self, impairments: ImpairmentConfig = ImpairmentConfig()) -> None:  # noqa: B008, it is frozen
        self._impairments = impairments
        self._ways: list[ImpairmentConfig] = []
        self._hosts: list[str] = []
        self._switches: list[str] = []
        self._tiers: list[int] = []
        self._cables: list[tuple[int, int, int, int]] = []  # switches count from -1 downwards
        self._routes: list[tuple[int, list[int], list[int]]] = []
        self.bad_fcs_frames: dict[int, tuple[int, ...]] = {}

    def add_host(self, name: str) -> int:
        """A host; returns its end for :meth:`cable`."""
        self._hosts.append(name)
        return len(self._hosts) - 1

    def add_switch(self, name: str, tier: int = 1) -> int:
        """A switch; returns its end for :meth:`cable`."""
        self._switches.append(name)
        self._tiers.append(tier)
        return -len(self._switches)

    def cable(
        self, a: int, b: int, rate_bps: int, delay_ps: int,
        ways: tuple[ImpairmentConfig | None, ImpairmentConfig | None] = (None, None),
    ) -> int:  # fmt: skip
        """Cable two ends; returns the port at ``a``. The port at ``b`` is one more.

        ``ways`` are the impairments from ``a`` and from ``b``, where they are not those of all cables.
        """
        if len(self._cables) == MAX_CABLES:
            most = f"{MAX_CABLES:,} cables that fit in memory"
            raise ConfigError(f"topology: it has more than the {most}; make it smaller")
        self._ways += [self._impairments if way is None else way for way in ways]
        self._cables.append((a, b, rate_bps, delay_ps))
        return 2 * len(self._cables) - 2

    def route(self, switch: int, hosts: list[int], neighbours: list[int]) -> None:
        """Have ``switch`` send frames to ``hosts`` to these neighbours; to NICs of its own it sends all the same."""
        self._routes.append((switch, hosts, neighbours))

    def build(self) -> Topology:
        """The finished network, with routes; ConfigError if its static routes lead round in a circle."""
        ends = np.array([cable[:2] for cable in self._cables], np.int64).reshape(-1, 2).ravel()
        rate, delay = (np.repeat(np.array([c[k] for c in self._cables], np.int64), 2) for k in (2, 3))
        port_switch = np.where(ends < 0, -1 - ends, -1).astype(np.int32)
        nic_ports = np.flatnonzero(ends >= 0)
        nic_ports = nic_ports[np.argsort(ends[nic_ports], kind="stable")].astype(np.int32)
        nic_host = ends[nic_ports].astype(np.int32)
        port_nic = np.full(len(ends), -1, np.int32)
        port_nic[nic_ports] = np.arange(len(nic_ports))
        far_end = ends[np.arange(len(ends)) ^ 1]
        static = tuple(
            StaticRoute(
                -1 - switch,
                np.flatnonzero(np.isin(nic_host, hosts) & (far_end[nic_ports] != switch)),
                np.flatnonzero((ends == switch) & np.isin(far_end, neighbours)),
            )
            for switch, hosts, neighbours in self._routes
        )
        topology = Topology(
            host_names=tuple(self._hosts),
            switch_names=tuple(self._switches),
            switch_tiers=tuple(self._tiers),
            port_names=self._name_ports(ends, nic_host),
            port_nic=port_nic,
            port_switch=port_switch,
            rate_bps=rate,
            delay_ps=delay + np.array([way.delay_ps for way in self._ways], np.int64),
            nic_port=nic_ports,
            nic_host=nic_host,
            static_routes=static,
            bad_fcs_frames=self.bad_fcs_frames,
            impairments={port: way for port, way in enumerate(self._ways) if way.is_active},
        )
        for nic in sorted({int(nic) for route in static for nic in route.nics}):
            around = circle(topology.routes, port_switch, nic)
            if around:
                names = ", ".join(self._switches[switch] for switch in around)
                host = self._hosts[int(nic_host[nic])]
                raise ConfigError(f"topology.routes: frames to {host} would go round {names}; change one of them")
        return topology

    def _name_ports(self, ends: np.ndarray, nic_host: np.ndarray) -> tuple[str, ...]:
        nics = np.bincount(nic_host, minlength=len(self._hosts))
        used: dict[int, int] = {}
        names = []
        for end in ends.tolist():
            number = used.get(end, 0)
            used[end] = number + 1
            if end < 0:
                names.append(f"{self._switches[-1 - end]}.p{number}")
            else:
                names.append(self._hosts[end] + (f".n{number}" if nics[end] > 1 else ""))
        return tuple(names)


def links_between(topology: Topology) -> np.ndarray:
    """First ports of the cables between switches, int64 (cables,)."""
    switch = topology.port_switch
    return 2 * np.flatnonzero((switch[0::2] >= 0) & (switch[1::2] >= 0))


def headroom_bound_bytes(
    max_wire_bytes: int, rate_bps: int, delay_ps: int, reaction_ps: int = 0, pipeline_ps: int = 0,
    lossless_priorities: int = 1,
) -> int:  # fmt: skip
    """Bytes that may still arrive at a switch after the frame that asks for a pause.

    A frame finishing at the sender when the pause takes effect, the cable's content both ways, a frame ahead of the
    PFC frame on the reverse line, the PFC frame and one for each other lossless priority ahead of it, reaction and
    pipeline, and the frame that crossed the threshold.

    Parameters
    ----------
    max_wire_bytes : int
        Largest frame with preamble, FCS and gap.
    rate_bps, delay_ps : int
        Of the cable.
    reaction_ps, pipeline_ps : int
        The sender's reaction to a pause, and the switch's pipeline.
    lossless_priorities : int

    Notes
    -----
    Source: our bound, for our switch; 802.1Q annex N and SONiC sum the same terms with vendors' constants.
    """
    in_time_ps = 2 * delay_ps + reaction_ps + pipeline_ps
    return 3 * max_wire_bytes + lossless_priorities * PFC_WIRE_BYTES + -(-in_time_ps * rate_bps // 8_000_000_000_000)


