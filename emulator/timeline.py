"""Applies what happens during a run: lines go down and come up, hosts forget, and routes follow.

Works between two events, on the arrays of a fabric; how a line goes down is :mod:`emulator.outage`'s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from emulator.deadlock import check_routes
from emulator.engine import MARGIN
from emulator.events import Change, Stop, stops_of
from emulator.failures import HOST_FAILED
from emulator.impair import impair_row
from emulator.outage import bring_up, schedule_stops, take_down, try_later
from emulator.paths import Routes, circle
from emulator.routing import DOWN
from emulator.world import set_rate
from ttpoe.fsm import State
from ttpoe.impairments import ImpairmentConfig
from ttpoe.machine import release_at
from ttpoe.units import NEVER

if TYPE_CHECKING:
    from emulator.fabric import Fabric


class Timeline:
    """The changes of one run, scheduled in its world.

    Parameters
    ----------
    fabric : Fabric
        Before its first event.
    """

    def __init__(self, fabric: Fabric) -> None:
        self._fabric = fabric
        topology, scenario = fabric.topology, fabric.scenario
        self.stops = stops_of(topology, fabric.changes, scenario.routing.convergence_ps)
        self.is_up = np.ones(len(topology.port_names), bool)
        self._impairments = dict(topology.impairments)
        self._routes: dict[bytes, Routes] = {}
        self._reserve(len(self.stops))
        schedule_stops(fabric.world, np.array([stop.at_ps for stop in self.stops], np.int64))

    def _reserve(self, events: int) -> None:
        while self._fabric.world.schedule[0]["free_count"] < events + MARGIN:
            self._fabric.grow_events(events + MARGIN)

    def apply(self, k: int) -> None:
        """Do what stop ``k`` says, at the time of the event served last."""
        stop = self.stops[k]
        for change in stop.changes:
            self._reserve(4 * len(change.ports))  # a line that goes down or comes up adds two events at most, each way
            self._change(change)
        self._reserve(len(self.is_up))
        world = self._fabric.world
        try_later(world, int(world.engine[0]["now_ps"]))
        if stop.reroute is not None:
            self._reroute(stop)
        members = self._fabric.routes.members
        down = ~self.is_up[members]
        self._fabric.world.members[:] = np.where(down, DOWN - members, members)

    def _change(self, change: Change) -> None:
        fabric = self._fabric
        w = fabric.world
        now_ps = int(w.engine[0]["now_ps"])
        if change.kind == "impair":
            for port in change.ports:
                self._impair(port, change.impairments or ImpairmentConfig())
            return
        for port in (end for first in change.ports for end in (first, first + 1)):
            if change.kind == "fail" and self.is_up[port]:
                self.is_up[port] = False
                take_down(w, port, now_ps)
            elif change.rate_bps is not None:
                set_rate(w.ports, port, change.rate_bps)
            elif change.kind == "recover":
                set_rate(w.ports, port, int(fabric.topology.rate_bps[port]))
                if not self.is_up[port]:
                    self.is_up[port] = True
                    bring_up(w, port, now_ps)
        if change.host is not None and change.kind == "fail":
            self._forget_flows(change.host, now_ps)

    def _impair(self, port: int, config: ImpairmentConfig) -> None:
        """The way that begins at ``port`` does so from now on; what is under way, or held back, stays as it is."""
        w = self._fabric.world
        more_ps = config.delay_ps - self._impairments.get(port, ImpairmentConfig()).delay_ps
        self._impairments[port] = config
        frames = int(w.ports["tx_frames"][port])
        w.ports["delay_ps"][port] += more_ps
        if w.engine[0]["retry_bytes"]:
            frames += int(w.retries["frames_replayed"][port])
            w.retries["return_ps"][port ^ 1] += more_ps
        ordinals = impair_row(w.impairments[w.ports["impairment"][port]], config, frames, w.ordinals)
        self._fabric.world = w._replace(ordinals=ordinals)

    def _forget_flows(self, host: int, now_ps: int) -> None:
        """End the flows of a host that fails, those that would start before it is back included."""
        w = self._fabric.world
        back = (stop.at_ps for stop in self.stops if stop.at_ps > now_ps for change in stop.changes
                if change.host == host and change.kind == "recover")  # fmt: skip
        concerns = (w.ends["host"].reshape(-1, 2) == host).any(axis=1)
        gone = concerns & (w.flows["is_over"] == 0) & (w.flows["start_ps"] < next(back, NEVER))
        w.flows["is_over"][gone] = 1
        w.flows["failure"][gone] = HOST_FAILED
        w.engine[0]["unfinished"] -= int(gone.sum())
        ends = np.flatnonzero(np.repeat(gone, 2))
        if self._fabric.profile.is_ttpoe:
            w.links["state"][ends] = int(State.CLOSED)
            w.links["has_ended"][ends] = 1
            w.links["failure"][ends] = HOST_FAILED
            w.links["timer_at_ps"][ends] = NEVER
            for end in ends.tolist():
                release_at(w.links, end, w.pools, int(w.ends["host"][end]))
        else:
            transport_rows = w.tcps if self._fabric.profile.is_tcp else w.qps
            transport_rows["failure"][ends] = HOST_FAILED
            transport_rows["timer_at_ps"][ends] = NEVER

    def _reroute(self, stop: Stop) -> None:
        fabric = self._fabric
        topology = fabric.topology
        assert stop.reroute is not None
        is_up, rates = stop.reroute
        key = is_up.tobytes() + (rates.tobytes() if fabric.routing == "weighted" else b"")
        if key not in self._routes:
            self._routes[key] = topology.routed(is_up, rates if fabric.routing == "weighted" else None)
            for nic in sorted({int(nic) for route in topology.static_routes for nic in route.nics}):
                # What goes round would end by its time to live; here it ends where it enters the circle.
                self._routes[key].group_of[circle(self._routes[key], topology.port_switch, nic), nic] = -1
            known = {cycle.ports for cycle in fabric.cycles}
            found = check_routes(topology, self._routes[key], fabric.lossless_pairs)
            fabric.cycles += [cycle for cycle in found if cycle.ports not in known]
        fabric.follow(self._routes[key])
