"""Networks of any form, from a file: nodes, cables and static routes, in TOML, JSON or GraphML.

Turns each format into the plain values of one configuration; knows nothing of ports and of how frames are switched.
"""

from __future__ import annotations

import json
import tomllib
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from xml.etree.ElementTree import ParseError

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from emulator.quantities import STRICT, Bps, ConfigError, OptionalImpairments, Picoseconds
from emulator.topology import Wiring

if TYPE_CHECKING:
    import networkx

    from emulator.config import LinkConfig

_Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.:-]*$", max_length=64)]


@dataclass(frozen=True, config=STRICT)
class NodeConfig:
    """A host or a switch."""

    name: _Name
    """Hosts are numbered from 0 in the order in which they are named."""
    kind: Literal["host", "switch"]
    tier: Annotated[int, Field(ge=1, le=64, strict=True)] | None = None
    """Of a switch, for counting and drawing; None: one more than its cables to the nearest switch with hosts."""


@dataclass(frozen=True, config=STRICT)
class CableConfig:
    """A cable between two nodes; the n-th of a host is its NIC n - 1, the n-th of a switch its port n - 1."""

    a: _Name
    b: _Name
    rate_bps: Bps | None = None
    """None: the scenario's ``link``, as for the delay."""
    delay_ps: Picoseconds | None = None
    impairments: OptionalImpairments = None
    """Of each way, in place of those of the scenario's ``link``."""


@dataclass(frozen=True, config=STRICT)
class RouteConfig:
    """What a switch does with frames to some hosts, in place of the shortest paths; but not to NICs of its own."""

    switch: _Name
    to: tuple[_Name, ...]
    """Hosts."""
    via: tuple[_Name, ...]
    """Neighbours, as equals; all cables to them."""


@dataclass(frozen=True, config=STRICT)
class GraphConfig:
    """A network that is listed node by node, in ``file`` or in the scenario itself."""

    kind: Literal["graph"] = "graph"
    file: str | None = None
    """What `make_scenario` reads the others from, and leaves out then; below the directory of the scenario file."""
    nodes: tuple[NodeConfig, ...] = ()
    links: tuple[CableConfig, ...] = ()
    routes: tuple[RouteConfig, ...] = ()
    """A later one of the same switch and host takes the place of an earlier one."""

    @model_validator(mode="after")
    def _check(self) -> GraphConfig:
        if self.file is not None:
            raise ValueError("file: only make_scenario and load_scenario read it; name nodes and links in its place")
        kind_of: dict[str, str] = {}
        for k, node in enumerate(self.nodes):
            if node.name in kind_of:
                raise ValueError(f"nodes.{k}.name: there are two nodes {node.name}; rename one")
            kind_of[node.name] = node.kind
            if node.tier is not None and node.kind == "host":
                raise ValueError(f"nodes.{k}.tier: a host has none; leave it out")
        for what in ("host", "switch"):
            if what not in kind_of.values():
                raise ValueError(f'nodes: there is no {what}; name one with kind = "{what}"')
        if len(self.host_names) < 2:
            raise ValueError("nodes: there is one host, which has nobody to send to; name two at least")
        cabled: dict[str, set[str]] = {}
        for k, cable in enumerate(self.links):
            for end, name in (("a", cable.a), ("b", cable.b)):
                if name not in kind_of:
                    raise ValueError(f"links.{k}.{end}: there is no node {name}; name it under nodes")
            if cable.a == cable.b:
                raise ValueError(f"links.{k}.b: {cable.a} is cabled to itself; name another node")
            if kind_of[cable.a] == kind_of[cable.b] == "host":
                raise ValueError(f"links.{k}: two hosts, {cable.a} and {cable.b}; put a switch between them")
            cabled.setdefault(cable.a, set()).add(cable.b)
            cabled.setdefault(cable.b, set()).add(cable.a)
        for k, node in enumerate(self.nodes):
            if node.kind == "host" and node.name not in cabled:
                raise ValueError(f"nodes.{k}: host {node.name} has no cable; add it to links")
        for k, route in enumerate(self.routes):
            if kind_of.get(route.switch) != "switch":
                raise ValueError(f"routes.{k}.switch: there is no switch {route.switch}")
            for name in route.to:
                if kind_of.get(name) != "host":
                    raise ValueError(f"routes.{k}.to: there is no host {name}")
            for name in route.via:
                if name not in cabled.get(route.switch, ()):
                    raise ValueError(f"routes.{k}.via: {name} is no neighbour of {route.switch}; name one that is")
            if not route.to or not route.via:
                raise ValueError(f"routes.{k}: name hosts under to, and neighbours under via")
        return self

    @property
    def host_names(self) -> list[str]:
        """In order."""
        return [node.name for node in self.nodes if node.kind == "host"]

    @property
    def host_count(self) -> int:
        """Number of hosts."""
        return len(self.host_names)

    def wire(
        self, wiring: Wiring, hosts: Sequence[int], link: LinkConfig, prefix: str = "", room: str = "topology"
    ) -> None:
        """Add the switches and cables to ``wiring``."""
        ends = dict(zip(self.host_names, hosts, strict=True))
        tiers = self._tiers()
        for node in self.nodes:
            if node.kind == "switch":
                ends[node.name] = wiring.add_switch(prefix + node.name, tiers[node.name])
        for cable in self.links:
            rate = link.rate_bps if cable.rate_bps is None else cable.rate_bps
            delay = link.delay_ps if cable.delay_ps is None else cable.delay_ps
            ways = (cable.impairments, cable.impairments)
            wiring.cable(ends[cable.a], ends[cable.b], rate, delay, ways)
        for route in self.routes:
            wiring.route(ends[route.switch], [ends[name] for name in route.to], [ends[name] for name in route.via])

    def _tiers(self) -> dict[str, int]:
        """Of each switch: as given, or one more than the cables to the nearest switch with hosts."""
        hosts = set(self.host_names)
        beside: dict[str, list[str]] = {}
        for cable in self.links:
            beside.setdefault(cable.a, []).append(cable.b)
            beside.setdefault(cable.b, []).append(cable.a)
        found = {node.name: 1 for node in self.nodes if hosts & set(beside.get(node.name, ()))}
        todo = deque(name for name in found if name not in hosts)
        while todo:
            name = todo.popleft()
            for other in beside[name]:
                if other not in found and other not in hosts:
                    found[other] = found[name] + 1
                    todo.append(other)
        return {node.name: node.tier or found.get(node.name, 1) for node in self.nodes}


def read_graph(path: Path) -> dict[str, Any]:
    """Plain values of ``nodes``, ``links`` and ``routes`` of a file; raises ConfigError naming it.

    TOML and JSON: tables of these names. JSON may also be networkx's node-link form, and GraphML holds the same: a
    node's id is its name, and the other fields are attributes.
    """
    kind = path.suffix.lower()
    if kind not in (".toml", ".json", ".graphml"):
        raise ConfigError(f"{path}: a network's file ends in .toml, .json or .graphml; rename it")
    try:
        if kind == ".graphml":
            import networkx

            return _plain(networkx.read_graphml(path, force_multigraph=True), path)
        text = path.read_text(encoding="utf-8")
        values = tomllib.loads(text) if kind == ".toml" else json.loads(text)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    except (ParseError, UnicodeDecodeError, ValueError, KeyError) as error:  # of TOML and JSON too
        raise ConfigError(f"{path}: this is no {kind[1:]} of a network: {_in_line(error)}") from None
    except Exception as error:
        if type(error).__module__.partition(".")[0] != "networkx":
            raise
        raise ConfigError(f"{path}: this is no {kind[1:]} of a network: {_in_line(error)}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: must be a table with nodes and links")
    nodes = values.get("nodes")
    if kind == ".json" and isinstance(nodes, list) and any(isinstance(node, dict) and "id" in node for node in nodes):
        return _from_node_link(values, path)
    return values


def _in_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _from_node_link(values: dict[str, Any], path: Path) -> dict[str, Any]:
    import networkx

    edges = "edges" if "edges" in values else "links"
    try:
        graph = networkx.node_link_graph({"multigraph": True, **values}, edges=edges)
    except (KeyError, TypeError, AttributeError, networkx.NetworkXException) as error:
        raise ConfigError(f"{path}: this is no node-link form of a network: {_in_line(error)} is wrong") from None
    return _plain(graph, path)


def _plain(graph: networkx.Graph, path: Path) -> dict[str, Any]:
    if graph.is_directed():
        raise ConfigError(f"{path}: the graph is directed, and a cable goes both ways; make it undirected")
    return {
        "nodes": [{**fields, "name": str(name)} for name, fields in graph.nodes(data=True)],
        "links": [  # an edge's id, which GraphML may give it, means nothing here
            {**{k: v for k, v in fields.items() if k != "id"}, "a": str(a), "b": str(b)}
            for a, b, fields in graph.edges(data=True)
        ],
        "routes": graph.graph.get("routes", []),
    }
