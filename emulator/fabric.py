"""A scenario becomes arrays, the arrays are run in slices, and the slices end in results.

Nothing here is global: two fabrics can run in one process, in threads.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from emulator import rows
from emulator.assembly import assemble, chain, frame_views, groups_of
from emulator.collect import collect
from emulator.config import ConfigError, ScenarioConfig
from emulator.deadlock import BufferCycle, Watch, check_routes
from emulator.engine import RunStatus, run
from emulator.events import changes_of
from emulator.paths import Routes
from emulator.results import RunResult
from emulator.shapes import build_topology
from emulator.switching import EcnConfig
from emulator.timeline import Timeline
from emulator.topology import Topology
from emulator.workloads import Message, Setting, make_workload
from ttpoe import units

_SLICE_SECONDS = 0.05

TraceSink = Callable[[np.ndarray], None]
"""Takes TRACE rows, in time order; they are reused afterwards."""


@dataclass(frozen=True)
class Progress:
    """Where a run is, told between slices."""

    now_ps: int
    events: int
    unfinished: int
    wall_s: float


class Fabric:
    """One run: a scenario, one transport, one seed.

    Parameters
    ----------
    scenario : ScenarioConfig
    transport : str
        One of the scenario's, or any key of :data:`emulator.transports.PROFILES`.
    seed : int
    routing : str, optional
        A key of :data:`emulator.routing.POLICIES`; by default the scenario's first for this transport.
    capture : collection of str
        Names of ports whose frames go to the sink.
    """

    def __init__(
        self, scenario: ScenarioConfig, transport: str, seed: int, *, routing: str | None = None,
        capture: frozenset[str] = frozenset(),
    ) -> None:  # fmt: skip
        started = time.perf_counter()
        self.scenario = scenario
        self.transport = transport
        self.seed = seed
        self.profile = scenario.profile(transport)
        self.routing = routing or scenario.routings_of(transport)[0]
        shape = scenario.topology
        hosts = shape.host_count
        self.workload = make_workload(scenario.workload, Setting(seed, hosts, scenario.link.rate_bps))
        self.messages = self.workload.messages
        self.topology = build_topology(shape, scenario.link, hosts or self.workload.hosts_needed)
        self.flow_nics = _choose_nics(self.topology, self.messages)
        self._check_ways()
        unknown = sorted(capture - set(self.topology.port_names))
        if unknown:
            known = ", ".join(self.topology.port_names[:4])
            raise ConfigError(f"capture: there is no port {unknown[0]!r}; ports are {known} and so on")
        if capture and scenario.frame_overhead == "peer":
            raise ConfigError('capture: frames without headers cannot be captured; set frame_overhead = "real"')
        if scenario.switch.trim_priority is not None and (self.profile.is_selective or self.profile.is_tcp):
            raise ConfigError(f"switch.trim_priority: {transport} has no use for headers alone; leave it out")
        self.capture = capture
        self.changes = changes_of(self.topology, scenario.events)
        self._check_impairments()
        self.routes = self.topology.routes
        if self.routing == "weighted":
            self.routes = self.topology.routed(rate_bps=self.topology.rate_bps)
        self.world = assemble(self)
        self.lossless_pairs = self._pairs_under_pfc()
        self.cycles = check_routes(self.topology, self.routes, self.lossless_pairs)
        self.deadlock: BufferCycle | None = None
        self.timeline = Timeline(self) if scenario.events else None
        self.setup_s = time.perf_counter() - started

    def _check_ways(self) -> None:
        """Refuse a message between NICs that nothing connects, even with all cables up."""
        topology, (src, dst) = self.topology, self.flow_nics.T
        home = topology.port_switch[topology.nic_port[src] ^ 1]
        cut_off = np.flatnonzero(topology.routes.group_of[home, dst] < 0)
        if len(cut_off):
            names = [topology.port_names[topology.nic_port[nic]] for nic in self.flow_nics[cut_off[0]]]
            way = f"from {names[0]} to {names[1]}"
            raise ConfigError(f"topology: no way leads {way}, which a message takes; cable them")

    def _check_impairments(self) -> None:
        """Refuse what a line must not do to frames that credits account for, or that it sends again itself."""
        of_all = self.scenario.link.impairments
        lines = {way: self.topology.port_names[port] for port, way in self.topology.impairments.items()}
        configs = [
            ("link.impairments." if way == of_all else f"topology: impairments of the line from {port}, ", way)
            for way, port in lines.items()
        ]
        configs += [
            (f"events.{k}.impairments.", event.impairments)
            for k, event in enumerate(self.scenario.events)
            if event.impairments is not None
        ]
        for where, way in configs:
            if self.profile.flow_control == "credits" and way.duplicate:
                raise ConfigError(
                    f"{where}duplicate: {self.transport} accounts for each frame once by its credits; leave it out"
                )
            for name in ("jitter_ps", "reorder", "duplicate"):
                if self.scenario.link.retry_bytes and getattr(way, name):
                    raise ConfigError(
                        f"{where}{name}: a link that retries keeps frames in order; leave it or link.retry_bytes out"
                    )

    def _pairs_under_pfc(self) -> dict[int, np.ndarray]:
        """By priority under PFC: int (n, 2), the NICs that send it and are sent to."""
        if self.profile.flow_control != "pfc":
            return {}
        nics = np.concatenate([self.flow_nics, self.flow_nics[:, ::-1]])
        ends = self.world.ends
        priorities = np.concatenate([ends["priority"][0::2], ends["answer_priority"][1::2]])
        lossless = (p for p in np.unique(priorities).tolist() if self.scenario.switch.rules(p).is_lossless)
        return {priority: nics[priorities == priority] for priority in lossless}

    @property
    def warnings(self) -> list[str]:
        """What is known before the run to be able to go wrong."""
        is_fixed = self.profile.is_ttpoe and self.profile.congestion_control == "fixed"
        trimming = [
            "switch.trim_priority: headers of trimmed frames draw NACKs, and each sends a whole fixed window again; "
            "set ttpoe.congestion_control, or leave it out"
        ]  # fmt: skip
        return (trimming if is_fixed and self.scenario.switch.trim_priority is not None else []) + [
            f"cyclic buffer dependency: priority {cycle.priority} under PFC can deadlock where lines wait for each "
            f"other: {cycle.told(self.topology)}"
            for cycle in self.cycles
        ]

    def follow(self, routes: Routes) -> None:
        """From now on switches use these routes; between two events."""
        self.routes = routes
        self.world = self.world._replace(**groups_of(routes, self.topology, self.world.switches))

    @property
    def data_priorities(self) -> np.ndarray:
        """int8 (flows,): the priority of each flow's data."""
        mine = self.scenario.priority
        return np.array([mine if m.priority is None else m.priority for m in self.messages], np.int8)

    @property
    def is_paced(self) -> bool:
        """Whether ends have a rate that may be below their line's."""
        return self.profile.is_roce and (self.profile.is_ect or self.scenario.roce.rate_bps is not None)

    @property
    def ecn(self) -> EcnConfig | None:
        """How switches mark: as the scenario says, else by line rate where the transport answers marks."""
        given = self.scenario.switch.ecn
        return EcnConfig() if given is None and self.profile.is_ect else given

    @property
    def is_ecn_capable(self) -> bool:
        """Whether senders set ECT, so that switches may mark."""
        asked = (self.profile.is_roce and self.scenario.roce.ecn) or (self.profile.is_tcp and self.scenario.tcp.ecn)
        return self.profile.is_ect or asked

    @property
    def watched_port(self) -> int:
        """The last port towards the NIC that is sent most; of equals, the first."""
        load = np.zeros(len(self.topology.nic_port), np.int64)
        np.add.at(load, self.flow_nics[:, 1], [message.size_bytes for message in self.messages])
        return int(self.topology.nic_port[int(np.argmax(load))]) ^ 1

    def run(
        self,
        *,
        max_events: int | None = None,
        sink: TraceSink | None = None,
        on_slice: Callable[[Progress], None] | None = None,
    ) -> RunResult:
        """Run to the end, in slices of about 50 ms of wall time.

        Parameters
        ----------
        max_events : int, optional
            Events per slice; by default adapted to the machine. It never changes a result.
        sink : callable, optional
            Takes captured rows.
        on_slice : callable, optional
            Told the progress after each slice; an exception it raises (Ctrl-C among them) ends the run.

        Returns
        -------
        RunResult
        """
        budget = max_events or 20_000
        wall_s = 0.0
        started = time.perf_counter()
        run(self.world, -1, 0)  # serves nothing, but compiles or loads the loop
        self.setup_s += time.perf_counter() - started
        watch = Watch()
        # Without a cycle of routes nothing can lock; while routes change, what follows old ones may close a cycle.
        is_watching = bool(self.lossless_pairs) and bool(self.cycles or self.timeline)
        look_at_ps = self._longest_pause_ps() if is_watching else units.NEVER
        while True:
            started = time.perf_counter()
            until_ps = min(look_at_ps, self.scenario.until_ps)
            status = RunStatus(run(self.world, until_ps, budget))
            is_full = status is RunStatus.SLICE
            if status is RunStatus.UNTIL and look_at_ps < self.scenario.until_ps:
                look_at_ps += self._longest_pause_ps()
                self.deadlock = watch.look(self.world)
                status = RunStatus.DEADLOCK if self.deadlock else RunStatus.SLICE
            spent = time.perf_counter() - started
            wall_s += spent
            engine = self.world.engine[0]
            if status is RunStatus.STOP and self.timeline is not None:
                self.timeline.apply(int(self.world.engine[0]["stop"]))
            elif status is RunStatus.NEED_PACKETS:
                self._grow_packets()
            elif status is RunStatus.NEED_EVENTS:
                self.grow_events()
            elif is_full and max_events is None:
                budget = int(np.clip(budget * _SLICE_SECONDS / max(spent, 1e-4), 1_000, 10_000_000))
            if engine["trace_count"]:
                if sink is not None:
                    sink(self.world.trace[: engine["trace_count"]])
                engine["trace_count"] = 0
            if on_slice is not None:
                on_slice(Progress(int(engine["now_ps"]), int(engine["events"]), int(engine["unfinished"]), wall_s))
            if status in (RunStatus.FINISHED, RunStatus.EMPTY, RunStatus.UNTIL, RunStatus.DEADLOCK):
                return collect(self, status, wall_s)

    def _longest_pause_ps(self) -> int:
        """How long a pause that is not renewed lasts on the slowest line between switches, and its way there."""
        ports = self.world.ports[(self.world.ports["switch"] >= 0) & (self.world.ports["far_switch"] >= 0)]
        if not len(ports):  # a star cannot lock
            return units.NEVER
        lasts = (ports["quantum_ps"] + 1) * self.scenario.switch.pause_quanta
        return int((lasts + ports["delay_ps"]).max()) + self.scenario.switch.pause_reaction_ps

    def grow_events(self, least: int = 0) -> None:
        """Make room for more events, between two of them; call again until there are ``least``."""
        w = self.world
        schedule = w.schedule[0]
        old = len(w.nodes)
        served = int(schedule["cursor"])  # of a long bucket: their rows can be had again
        left = int(schedule["due_count"]) - served
        for due in (w.due, w.due_subject):
            due[:left] = due[served : served + left]
        schedule["cursor"] = 0
        schedule["due_count"] = left
        schedule["free_count"] += served
        if schedule["free_count"] >= max(old // 2 + 1, least):
            return
        nodes = chain(rows.doubled(w.nodes), old, int(schedule["free_head"]))
        schedule["free_head"] = old
        schedule["free_count"] += old
        names = ("far", "due", "due_subject", "spare", "spare_subject")
        self.world = w._replace(nodes=nodes, **{name: rows.doubled(getattr(w, name)) for name in names})

    def _grow_packets(self) -> None:
        old = len(self.world.packets)
        engine = self.world.engine[0]
        packets = chain(rows.doubled(self.world.packets), old, int(engine["free_head"]))
        engine["free_head"] = old
        engine["free_count"] += old
        self.world = self.world._replace(packets=packets, **frame_views(rows.doubled(self.world.frames)))


def _choose_nics(topology: Topology, messages: list[Message]) -> np.ndarray:
    """int32 (flows, 2): the NICs that each message leaves and reaches, of the same number in both hosts.

    Where a message names none, it takes that which has the fewest messages so far, of both hosts together.
    """
    mine = np.split(np.arange(len(topology.nic_host)), np.searchsorted(topology.nic_host, range(1, topology.hosts)))
    taken = [[0] * len(nics) for nics in mine]
    chosen = np.zeros((len(messages), 2), np.int32)
    for k, message in enumerate(messages):
        at_src, at_dst = taken[message.src], taken[message.dst]
        both = min(len(at_src), len(at_dst))
        if message.nic is None:
            number = min(range(both), key=lambda nic: at_src[nic] + at_dst[nic])
        else:
            number = message.nic
            if number >= both:
                raise ConfigError(
                    f"workload: nic of {message.name}: there is no NIC {number} in both hosts; the last one is "
                    f"{both - 1}"
                )
        at_src[number] += 1
        at_dst[number] += 1
        chosen[k] = mine[message.src][number], mine[message.dst][number]
    return chosen
