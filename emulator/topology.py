"""From a scenario to nodes, named ports, cables and routes; and the headroom that a cable needs.

Cables are pairs of ports: port 2c and port 2c + 1 are each other's far end.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from emulator.config import ConfigError, ScenarioConfig
from emulator.pfc import PFC_WIRE_BYTES
from ttpoe.impairments import ImpairmentConfig


@dataclass(frozen=True)
class Topology:
    """A wired network; a host's node number is its host number, switches are numbered apart."""

    hosts: int
    switches: int
    port_names: tuple[str, ...]
    port_host: np.ndarray
    """int32 (ports,): the host a port belongs to, or -1."""
    port_switch: np.ndarray
    """int32 (ports,): the switch a port belongs to, or -1."""
    rate_bps: np.ndarray
    """int64 (ports,)."""
    delay_ps: np.ndarray
    """int64 (ports,): propagation, with the constant delay of the way's impairments."""
    host_port: np.ndarray
    """int32 (hosts,): a host's NIC."""
    routes: np.ndarray
    """int32 (switches, hosts): the port towards a host."""
    bad_fcs_frames: dict[int, tuple[int, ...]]
    """By port: ordinals of the frames it sends that arrive damaged, ascending."""
    impairments: dict[int, ImpairmentConfig]
    """By port: of the way that begins there, where there are any."""

    def one_way_ps(self, port: int) -> int:
        """Half of the longest time that a frame takes through ``port``'s cable and another one back."""
        ways = (port, port ^ 1)
        jitter_ps = sum(self.impairments[way].jitter_ps for way in ways if way in self.impairments)
        return -(-(int(self.delay_ps[ways[0]]) + int(self.delay_ps[ways[1]]) + jitter_ps) // 2)

    def path(self, src: int, dst: int) -> list[int]:
        """Ports that send, one a hop, on the way from host ``src`` to host ``dst``."""
        ports = [int(self.host_port[src])]
        while (switch := int(self.port_switch[ports[-1] ^ 1])) >= 0:
            ports.append(int(self.routes[switch, dst]))
        return ports


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


def build_star(scenario: ScenarioConfig, hosts: int) -> Topology:
    """Hosts h0, h1, ... on switch s0 with ports s0.p0, s0.p1, ...; host h is on port p of the same number."""
    rate = np.full(hosts, scenario.link.rate_bps, np.int64)
    delay = np.full(hosts, scenario.link.delay_ps, np.int64)
    bad_fcs_frames: dict[int, tuple[int, ...]] = {}
    impairments = dict.fromkeys(range(2 * hosts), scenario.link.impairments)
    for k, link in enumerate(scenario.topology.links):
        for host in link.hosts:
            if host >= hosts:
                raise ConfigError(f"topology.links.{k}.hosts: there is no host {host}; the last one is {hosts - 1}")
            rate[host] = rate[host] if link.rate_bps is None else link.rate_bps
            delay[host] = delay[host] if link.delay_ps is None else link.delay_ps
            if link.bad_fcs_frames:
                bad_fcs_frames[2 * host] = tuple(sorted(set(link.bad_fcs_frames)))
            if link.impairments is not None:
                ways = {"both": (0, 1), "from_host": (0,), "to_host": (1,)}[link.impaired_ways]
                impairments |= {2 * host + way: link.impairments for way in ways}
    later = np.array([impairments[port].delay_ps for port in range(2 * hosts)], np.int64)
    number = np.arange(hosts, dtype=np.int32)
    nobody = np.full(hosts, -1, np.int32)
    return Topology(
        hosts=hosts,
        switches=1,
        port_names=tuple(name for h in range(hosts) for name in (f"h{h}", f"s0.p{h}")),
        port_host=np.stack([number, nobody], axis=1).ravel(),
        port_switch=np.stack([nobody, np.zeros_like(nobody)], axis=1).ravel(),
        rate_bps=np.repeat(rate, 2),
        delay_ps=np.repeat(delay, 2) + later,
        host_port=2 * number,
        routes=(2 * number + 1)[None, :].copy(),
        bad_fcs_frames=bad_fcs_frames,
        impairments={port: config for port, config in impairments.items() if config.is_active},
    )
