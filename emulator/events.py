"""What happens to cables, NICs, hosts and switches during a run: the fields, and the order of changes they make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from dataclasses import dataclass as plain_dataclass
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from emulator.quantities import (
    LONGEST_PS,
    STRICT,
    Bps,
    ConfigError,
    Host,
    OptionalImpairments,
    Picoseconds,
    PositivePicoseconds,
)  # fmt: skip
from emulator.topology import Topology
from ttpoe.impairments import ImpairmentConfig
from ttpoe.units import PS_PER_US

MAX_CHANGES = 100_000
"""Of all events; each is a stop of the compiled loop."""


@dataclass(frozen=True, config=STRICT)
class EventConfig:
    """One thing that happens to a link, or to all links of a host, a NIC or a switch."""

    at_ps: Picoseconds
    what: Literal["fail", "recover", "degrade", "flap", "impair"]
    link: str | None = None
    """The port at either end of a cable."""
    host: Host | None = None
    """All its NICs. A host that fails forgets its flows, which end."""
    nic: Annotated[int, Field(ge=0, lt=64, strict=True)] | None = None
    """Of ``host``: this NIC alone, and the host forgets nothing."""
    switch: str | None = None
    rate_bps: Bps | None = None
    """Of a link that degrades, at most its cable's; ``recover`` gives it its own again."""
    down_ps: PositivePicoseconds | None = None
    """Of each flap, and ``up_ps`` from one to the next."""
    up_ps: PositivePicoseconds | None = None
    count: Annotated[int, Field(ge=1, le=10_000, strict=True)] | None = None
    """Flaps; None: one."""
    impairments: OptionalImpairments = None
    """From ``impair`` on, whether the link fails and recovers meanwhile or not; None: none."""
    impaired_ways: Literal["both", "from_port", "to_port"] = "both"
    """Which ways of the cable, seen from the port that ``link`` names, or from those of the host or switch."""

    @model_validator(mode="after")
    def _check(self) -> EventConfig:
        if sum(name is not None for name in (self.link, self.host, self.switch)) != 1:
            raise ValueError("name a link, a host or a switch, and one of them only")
        if self.nic is not None and self.host is None:
            raise ValueError("nic needs the host that it is of")
        if (self.rate_bps is not None) != (self.what == "degrade"):
            raise ValueError('rate_bps and what = "degrade" need each other')
        if (self.down_ps is not None) != (self.what == "flap"):
            raise ValueError('down_ps and what = "flap" need each other')
        if self.what != "flap" and (self.up_ps is not None or self.count is not None):
            raise ValueError('up_ps and count need what = "flap"')
        if (self.count or 1) > 1 and self.up_ps is None:
            raise ValueError("up_ps is needed for more than one flap")
        if self.what == "flap" and self.host is not None and self.nic is None:
            raise ValueError("a host cannot flap; name a nic of it, or let it fail and recover")
        if self.what != "impair" and (self.impairments is not None or self.impaired_ways != "both"):
            raise ValueError('impairments and impaired_ways need what = "impair"')
        return self


@plain_dataclass(frozen=True)
class Change:
    """One change of some cables.

    Attributes
    ----------
    at_ps : int
    kind : str
        ``fail``, ``recover``, ``degrade`` or ``impair``.
    ports : tuple of int
        First port of each cable; of ``impair``, where each impaired way begins.
    rate_bps : int or None
        The new rate of a link that degrades.
    host : int or None
        The host that fails or comes back as a whole.
    impairments : ImpairmentConfig or None
        What ``impair`` makes of its ways; None: good ones.
    """

    at_ps: int
    kind: Literal["fail", "recover", "degrade", "impair"]
    ports: tuple[int, ...]
    rate_bps: int | None = None
    host: int | None = None
    impairments: ImpairmentConfig | None = None

    def told(self, topology: Topology) -> dict[str, Any]:
        """The change as results have it: of impairments, those that are not the default."""
        row: dict[str, Any] = {"time_us": self.at_ps / PS_PER_US, "what": self.kind}
        row["ports"] = [topology.port_names[port] for port in self.ports]
        if self.rate_bps is not None:
            row["rate_bps"] = self.rate_bps
        if self.host is not None:
            row["host"] = topology.host_names[self.host]
        if self.kind == "impair":
            given = asdict(self.impairments or ImpairmentConfig())
            row["impairments"] = {name: v for name, v in given.items() if v != getattr(ImpairmentConfig, name)}
        return row


@plain_dataclass(frozen=True)
class Stop:
    """A time at which links or routes change.

    Attributes
    ----------
    at_ps : int
    changes : tuple of Change
        In the order of the scenario.
    reroute : tuple of arrays, or None
        Which ports are up, bool (ports,), and their rates, int64 (ports,): routes are to be those over them.
    """

    at_ps: int
    changes: tuple[Change, ...]
    reroute: tuple[np.ndarray, np.ndarray] | None


def _ports(topology: Topology, event: EventConfig, where: str) -> tuple[int, ...]:
    """The ports that an event names, one way or other."""
    if event.link is not None:
        if event.link not in topology.port_names:
            shown = ", ".join(topology.port_names[:4])
            raise ConfigError(f"{where}.link: there is no port {event.link}; ports are {shown} and so on")
        return (topology.port_names.index(event.link),)
    if event.switch is not None:
        if event.switch not in topology.switch_names:
            raise ConfigError(f"{where}.switch: there is no switch {event.switch}; there is {topology.switch_names[0]}")
        return tuple(np.flatnonzero(topology.port_switch == topology.switch_names.index(event.switch)).tolist())
    assert event.host is not None
    if event.host >= topology.hosts:
        raise ConfigError(f"{where}.host: there is no host {event.host}; the last one is {topology.hosts - 1}")
    nics = topology.nics(event.host)
    if event.nic is not None and event.nic >= len(nics):
        raise ConfigError(f"{where}.nic: there is no NIC {event.nic}; the last one is {len(nics) - 1}")
    chosen = nics if event.nic is None else nics[event.nic : event.nic + 1]
    return tuple(topology.nic_port[chosen].tolist())


def changes_of(topology: Topology, events: Sequence[EventConfig]) -> list[Change]:
    """All changes in the order in which they happen; ConfigError naming the event that cannot be."""
    changes: list[Change] = []
    for k, event in enumerate(events):
        named = _ports(topology, event, f"events.{k}")
        ports = tuple(sorted({port & ~1 for port in named}))
        if event.what == "impair":
            ways = {"both": (0, 1), "from_port": (0,), "to_port": (1,)}[event.impaired_ways]
            ports = tuple(sorted({port ^ way for port in named for way in ways}))
            changes.append(Change(event.at_ps, "impair", ports, impairments=event.impairments))
        elif event.what == "flap":
            assert event.down_ps is not None
            period_ps, count = event.down_ps + (event.up_ps or 0), event.count or 1
            if event.at_ps + (count - 1) * period_ps + event.down_ps > 2 * LONGEST_PS:
                raise ConfigError(f"events.{k}.count: the last of {count} flaps ends after any run; lower it")
            for n in range(count):
                at_ps = event.at_ps + n * period_ps
                changes += [Change(at_ps, "fail", ports), Change(at_ps + event.down_ps, "recover", ports)]
        else:
            if event.rate_bps is not None and event.rate_bps > int(topology.rate_bps[list(ports)].min()):
                raise ConfigError(f"events.{k}.rate_bps: {event.rate_bps} is more than the cable has; lower it")
            host = event.host if event.nic is None else None
            changes.append(Change(event.at_ps, event.what, ports, event.rate_bps, host))
        if len(changes) > MAX_CHANGES:
            raise ConfigError(f"events: they make more than {MAX_CHANGES} changes; lower count")
    return sorted(changes, key=lambda change: change.at_ps)


def at_worst(topology: Topology, changes: Sequence[Change]) -> Topology:
    """The topology with the longest delay and jitter that each way ever has, which is what buffers are made for."""
    delay_ps, impairments = topology.delay_ps.copy(), dict(topology.impairments)
    for change in changes:
        if change.impairments is None:
            continue
        for port in change.ports:
            own = topology.impairments.get(port, ImpairmentConfig())
            more_ps = change.impairments.delay_ps - own.delay_ps
            delay_ps[port] = max(delay_ps[port], topology.delay_ps[port] + more_ps)
            worst = impairments.get(port, own)
            impairments[port] = replace(worst, jitter_ps=max(worst.jitter_ps, change.impairments.jitter_ps))
    return replace(topology, delay_ps=delay_ps, impairments=impairments)


def stops_of(topology: Topology, events: Sequence[Change], convergence_ps: int) -> list[Stop]:
    """When the loop is to stop and what to change then, in time order.

    Routes follow a change after the convergence time, over the links as they were when it happened.
    """
    is_up, rates = np.ones(len(topology.port_names), bool), topology.rate_bps.copy()
    changes: dict[int, list[Change]] = {}
    reroutes: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    for change in events:
        changes.setdefault(change.at_ps, []).append(change)
        if change.kind == "impair":  # which routes know nothing of
            continue
        both = np.array([(port, port + 1) for port in change.ports]).ravel()
        is_up, rates = is_up.copy(), rates.copy()
        if change.rate_bps is not None:
            rates[both] = change.rate_bps
        else:
            is_up[both] = change.kind == "recover"
        if change.kind == "recover":
            rates[both] = topology.rate_bps[both]
        reroutes[change.at_ps + convergence_ps] = (is_up, rates)
    return [Stop(at_ps, tuple(changes.get(at_ps, ())), reroutes.get(at_ps)) for at_ps in sorted({*changes, *reroutes})]
