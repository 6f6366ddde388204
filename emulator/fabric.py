"""A scenario becomes arrays, the arrays are run in slices, and the slices end in results.

Nothing here is global: two fabrics can run in one process, in threads.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from emulator import roce, rows, series, world
from emulator.buffer import PRIORITIES, QUEUE
from emulator.config import ConfigError, ScenarioConfig, drain_ratio
from emulator.deadlock import BufferCycle, Watch, check_routes
from emulator.engine import MARGIN, RunStatus, run
from emulator.framing import data_wire_bytes, framing_of, line_only_bytes
from emulator.impair import build_impairments
from emulator.lookahead import LEAST_PORTS
from emulator.packet import ECT, NOT_ECT, PACKET
from emulator.paths import Routes
from emulator.pfc import arm_port_timer
from emulator.provision import divide_memory, prepare_retries, set_marking, share_lines
from emulator.queue_pairs import build_roce
from emulator.results import RunResult, collect
from emulator.routing import FLOWLET, FLOWLET_SHIFT, POLICIES, ROUTING
from emulator.schedule import EVENT, SCHEDULE, TIMER, bucket_shift, push
from emulator.shapes import build_topology
from emulator.switching import EcnConfig
from emulator.tcp_config import build_tcp
from emulator.tcp_rows import TCP_FRAME
from emulator.timeline import Timeline
from emulator.topology import Topology
from emulator.watchdog import INCIDENT
from emulator.workloads import Message, Setting, dependents, make_workload, name_hash
from ttpoe import state, units
from ttpoe._jit import kernel
from ttpoe.machine import open_links

_SLICE_SECONDS = 0.05
_FIRST_PACKETS = 4096
_TRACE_ROWS = 65_536
_INCIDENTS = 1000

TraceSink = Callable[[np.ndarray], None]
"""Takes TRACE rows, in time order; they are reused afterwards."""


@dataclass(frozen=True)
class Progress:
    """Where a run is, told between slices."""

    now_ps: int
    events: int
    unfinished: int
    wall_s: float


@kernel(export=True)
def _schedule_flows(world):
    """Push the start of every flow that waits for no other, and what is wrong with NICs."""
    for f in range(len(world.flows)):
        if world.flows[f]["unmet"] == 0:
            port = world.ports[world.ends[2 * f]["port"]]
            push(world, world.flows[f]["start_ps"], TIMER, len(world.ends) + f, port)
    for i in range(len(world.ports)):
        for priority in range(PRIORITIES):
            if (int(world.ports[i]["xoff"]) >> priority) & 1:
                arm_port_timer(world, i, world.ingress[priority, i]["refresh_at_ps"])


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
        hosts = shape.hosts if shape.kind == "star" else shape.host_count
        self.workload = make_workload(scenario.workload, Setting(seed, hosts, scenario.link.rate_bps))
        self.messages = self.workload.messages
        self.topology = build_topology(shape, scenario.link, hosts or self.workload.hosts_needed)
        self.flow_nics = _choose_nics(self.topology, self.messages)
        unknown = sorted(capture - set(self.topology.port_names))
        if unknown:
            known = ", ".join(self.topology.port_names[:4])
            raise ConfigError(f"capture: there is no port {unknown[0]!r}; ports are {known} and so on")
        if capture and scenario.frame_overhead == "peer":
            raise ConfigError('capture: frames without headers cannot be captured; set frame_overhead = "real"')
        if self.profile.flow_control == "credits" and any(c.duplicate for c in self.topology.impairments.values()):
            raise ConfigError(
                f"link.impairments.duplicate: {transport} accounts for each frame once by its credits; leave it out"
            )
        if scenario.switch.trim_priority is not None and (self.profile.is_selective or self.profile.is_tcp):
            raise ConfigError(f"switch.trim_priority: {transport} has no use for headers alone; leave it out")
        if scenario.events and (self.profile.flow_control == "credits" or scenario.link.retry_bytes):
            raise ConfigError(
                f"events: what is under way on a line that fails is not told to credits or link.retry_bytes; leave "
                f"out {transport if self.profile.flow_control == 'credits' else 'link.retry_bytes'}, or the events"
            )
        self._capture = capture
        self.routes = self.topology.routes
        if self.routing == "weighted":
            self.routes = self.topology.routed(rate_bps=self.topology.rate_bps)
        self.world = self._build()
        self.lossless_pairs = self._pairs_under_pfc()
        self.cycles = check_routes(self.topology, self.routes, self.lossless_pairs)
        self.deadlock: BufferCycle | None = None
        self.timeline = Timeline(self) if scenario.events else None
        self.setup_s = time.perf_counter() - started

    def _build(self) -> world.World:
        scenario, topology = self.scenario, self.topology
        n_flows, n_ports = len(self.messages), len(topology.port_names)
        flows = rows.zeros(n_flows, world.FLOW)
        flows["size_bytes"] = [m.size_bytes for m in self.messages]
        flows["start_ps"] = [m.start_ps for m in self.messages]
        flows["finished_rx_ps"] = flows["finished_tx_ps"] = units.NEVER
        flows["unmet"] = [m.unmet for m in self.messages]
        flows["delay_ps"] = [m.delay_ps for m in self.messages]
        waiting, waiting_first = dependents(self.messages)
        event_margin = MARGIN + int(np.diff(waiting_first).max())
        ends = rows.zeros(2 * n_flows, world.END)
        ends["timer_pending_ps"] = units.NEVER
        ends["host"] = np.array([(m.src, m.dst) for m in self.messages], np.int32).ravel()
        ends["nic"] = self.flow_nics.ravel()
        ends["peer_nic"] = self.flow_nics[:, ::-1].ravel()
        ends["port"] = topology.nic_port[ends["nic"]]
        hashes = [name_hash(self.seed, "ecmp", m.name, side) for m in self.messages for side in ("tx", "rx")]
        ends["entropy"] = [(value & 0xFFFFFFFF) - 2**31 for value in hashes]
        ends["priority"] = np.repeat(self.data_priorities, 2)
        ends["answer_priority"] = ends["priority"] if scenario.ack_priority is None else scenario.ack_priority
        ports = self._build_ports()
        frame_bytes = data_wire_bytes(self.transport, scenario)
        used = tuple(sorted({*ends["priority"].tolist(), *ends["answer_priority"].tolist()}))
        memory = divide_memory(scenario.switch, self.profile, topology, self.flow_nics, used, frame_bytes)
        self._start_storms(ports, memory.ingress)
        memory.switches["salt"] = [name_hash(self.seed, "switch", name) & 0xFFFFFFFF for name in topology.switch_names]
        dwrr, ports["weighted"] = share_lines(scenario.switch, topology, frame_bytes)
        impairments, ordinals, ports["impairment"] = build_impairments(
            self.seed, topology.port_names, topology.impairments, topology.bad_fcs_frames
        )
        queues = rows.zeros((PRIORITIES, n_ports), QUEUE)
        for name in ("head", "tail", "ready_head", "ready_tail"):
            queues[name] = -1
        queues["pause_until_ps"] = units.NEVER
        links, ring, pools, params = self._build_ttpoe(n_flows)
        out = rows.zeros(8, state.FRAME)
        frames = rows.zeros(_FIRST_PACKETS, state.FRAME)
        engine = np.zeros(1, world.ENGINE)
        event_rows = n_flows + 4 * n_ports + 4 * event_margin
        nodes = _chain(rows.zeros(event_rows, EVENT), 0, -1)
        schedule = np.zeros(1, SCHEDULE)
        schedule["free_count"] = event_rows
        schedule["slots"] = schedule["era_slots"] = -1
        schedule["bucket"] = -1
        schedule["shift"] = bucket_shift(_longest_ps(ports, frame_bytes))
        engine["free_count"] = _FIRST_PACKETS
        engine["protocol"] = self.profile.protocol
        engine["pfc_quanta"] = scenario.switch.pause_quanta
        engine["pause_reaction_ps"] = scenario.switch.pause_reaction_ps
        engine["trim_priority"] = -1 if scenario.switch.trim_priority is None else scenario.switch.trim_priority
        engine["retry_bytes"] = scenario.link.retry_bytes or 0
        engine["largest_wire_bytes"] = frame_bytes
        engine["is_credited"] = self.profile.flow_control == "credits"
        engine["credit_refresh_ps"] = scenario.switch.credit_refresh_ps
        watchdog = scenario.switch.watchdog if self.profile.flow_control == "pfc" else None
        engine["watchdog_detect_ps"] = units.NEVER if watchdog is None else watchdog.detect_ps
        engine["watchdog_restore_ps"] = units.NEVER if watchdog is None else watchdog.restore_ps
        engine["unfinished"] = n_flows
        engine["event_margin"] = event_margin
        engine["looks_ahead"] = n_ports >= LEAST_PORTS
        engine["framing"] = framing_of(self.transport, scenario)
        engine["line_only_bytes"] = line_only_bytes(self.transport, scenario)
        engine["is_tracing"] = bool(self._capture)
        engine["is_sharing"] = self.profile.is_ttpoe and scenario.ttpoe.shared_window
        if scenario.hosts.drain_rate_bps is not None:
            engine["drain_bytes"], engine["drain_ps"] = drain_ratio(scenario.hosts.drain_rate_bps)
        engine["series_bucket_ps"] = series.FIRST_BUCKET_PS
        engine["cnp_priority"] = scenario.cnp_priority
        engine["data_ecn"] = ECT if self.is_ecn_capable else NOT_ECT
        engine["is_notifying"] = self.profile.is_ect
        engine["is_paced"] = self.is_paced
        arrays = world.World(
            engine=engine, schedule=schedule, nodes=nodes, far=rows.zeros(event_rows, EVENT),
            due=np.zeros(event_rows, np.int64), due_subject=np.zeros(event_rows, np.int32),
            spare=np.zeros(event_rows, np.int64), spare_subject=np.zeros(event_rows, np.int32),
            ports=ports, queues=queues, dwrr=dwrr,
            marking=set_marking(self.ecn, topology, self.seed, is_step=self.profile.is_tcp),
            ingress=memory.ingress, switches=memory.switches, shared=memory.shared, rules=memory.rules,
            credits=memory.credits, retries=prepare_retries(scenario.link.retry_bytes, topology, frame_bytes),
            storms=np.zeros(n_ports * PRIORITIES if watchdog else 1, np.int64),
            incidents=np.zeros(_INCIDENTS if watchdog else 1, INCIDENT),
            packets=_chain(rows.zeros(_FIRST_PACKETS, PACKET), 0, -1),
            frames=frames, roce_frames=frames.view(roce.ROCE_FRAME), out=out, roce_out=out.view(roce.ROCE_FRAME),
            tcp_frames=frames.view(TCP_FRAME), tcp_out=out.view(TCP_FRAME), **build_tcp(self, ends, ports),
            flows=flows, dependents=waiting, dependents_first=waiting_first, ends=ends,
            links=links, ring=ring, pools=pools, params=params, **build_roce(self, ends, ports),
            kicks=np.zeros(n_ports, np.int32), **self._build_routing(memory.switches),
            impairments=impairments, ordinals=ordinals,
            trace=np.zeros(_TRACE_ROWS if self._capture else 1, world.TRACE),
            series=np.zeros(series.ROWS, world.SERIES),
        )
        _schedule_flows(arrays)
        return arrays

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
        return [
            f"cyclic buffer dependency: priority {cycle.priority} under PFC can deadlock where lines wait for each "
            f"other: {cycle.told(self.topology)}"
            for cycle in self.cycles
        ]

    def _build_routing(self, switches: np.ndarray) -> dict[str, np.ndarray]:
        topology, config = self.topology, self.scenario.routing
        routing = np.zeros(1, ROUTING)
        routing[0] = (POLICIES[self.routing], config.flowlet_gap_ps, config.choices)
        rows = topology.switches << FLOWLET_SHIFT if self.routing == "flowlet" else 1
        flowlets = np.zeros(rows, FLOWLET)
        flowlets["port"] = -1
        return {**self._groups(switches), "routing": routing, "flowlets": flowlets}

    def _groups(self, switches: np.ndarray) -> dict[str, np.ndarray]:
        """The world's arrays of the routes in force."""
        routes = self.routes
        groups, members = routes.groups.copy(), routes.members.copy()
        is_used = groups["count"] > 0
        groups["turn"][is_used] = switches["salt"][self.topology.port_switch[members[groups["first"][is_used]]]]
        return {"group_of": routes.group_of, "groups": groups, "members": members}

    def follow(self, routes: Routes) -> None:
        """From now on switches use these routes; between two events."""
        self.routes = routes
        self.world = self.world._replace(**self._groups(self.world.switches))

    def _build_ports(self) -> np.ndarray:
        scenario, topology = self.scenario, self.topology
        n_ports = len(topology.port_names)
        ports = rows.zeros(n_ports, world.PORT)
        ports["tie"] = [name_hash(self.seed, "port", name) & 0xFFFFFFFF for name in topology.port_names]
        world.set_rate(ports, slice(None), topology.rate_bps)
        far = np.arange(n_ports) ^ 1
        pipeline_ps = np.where(topology.port_switch[far] >= 0, scenario.switch.pipeline_latency_ps, 0)
        ports["delay_ps"] = topology.delay_ps + pipeline_ps
        ports["timer_pending_ps"] = ports["stuck_until_ps"] = units.NEVER
        for name in ("line_head", "line_tail", "react_head", "react_tail", "blocked_head", "blocked_tail"):
            ports[name] = -1
        ports["far_switch"], ports["switch"] = topology.port_switch[far], topology.port_switch
        ports["is_captured"] = [name in self._capture for name in topology.port_names]
        ports["is_watched"][self.watched_port] = 1 + scenario.priority
        return ports

    def _start_storms(self, ports: np.ndarray, ingress: np.ndarray) -> None:
        """A faulty NIC behaves as if a pause were due for renewal."""
        topology, config = self.topology, self.scenario.hosts
        for k, storm in enumerate(config.pause_storms):
            if storm.host >= topology.hosts:
                raise ConfigError(
                    f"hosts.pause_storms.{k}.host: there is no host {storm.host}; the last one is {topology.hosts - 1}"
                )
            if any(other.host == storm.host for other in config.pause_storms[:k]):
                raise ConfigError(f"hosts.pause_storms.{k}.host: host {storm.host} has a storm already; name another")
            if self.profile.flow_control != "pfc":
                continue
            priority = self.scenario.priority if storm.priority is None else storm.priority
            for i in topology.nic_port[topology.nics(storm.host)].tolist():
                ports["xoff"][i] = 1 << priority
                ports["stuck_until_ps"][i] = units.NEVER if storm.end_ps is None else storm.end_ps
                ingress["refresh_at_ps"][priority, i] = storm.start_ps

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

    def _build_ttpoe(self, n_flows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        config = self.scenario.ttpoe
        own = self.profile.congestion_control
        policy = own if self.profile.is_ttpoe and own != "none" else config.congestion_control
        params = state.make_params(
            mtu_bytes=config.mtu_bytes, window_bytes=config.window_bytes, rto_initial_ps=config.rto_initial_ps,
            rto_min_ps=config.rto_min_ps, rto_max_ps=config.rto_max_ps, retry_limit=config.retry_limit,
            congestion_control=policy, initial_window_packets=config.initial_window_packets,
            tail_loss_probe=config.tail_loss_probe, probe_min_ps=config.probe_min_ps,
            target_delay_ps=config.target_delay_ps, flow_scaling_ps=config.flow_scaling_ps,
        )
        pools = np.zeros(self.topology.hosts + 1, state.POOL)
        pools["limit_bytes"] = config.window_bytes if config.shared_window else units.NEVER
        pools["limit_bytes"][-1] = units.NEVER
        if not self.profile.is_ttpoe:
            return rows.zeros(1, state.LINK), rows.zeros(1, state.SENT), pools, params
        links = rows.zeros(2 * n_flows, state.LINK)
        seqs = np.array(
            [name_hash(self.seed, "seq", m.name, side) & 0xFFFFFFFF for m in self.messages for side in ("tx", "rx")]
        )
        slots = np.array([
            state.ring_slots(min(config.window_bytes, message.size_bytes), config.mtu_bytes)
            for message in self.messages
        ])  # fmt: skip
        senders = state.init_links(links[0::2], seqs[0::2], 2, params, slots)
        receivers = state.init_links(links[1::2], seqs[1::2], 2, params, 1)  # which send no PAYLOAD
        links["ring_base"][1::2] += len(senders)
        if self.scenario.hosts.drain_rate_bps is not None:
            links["rx_limit_bytes"] = self.scenario.hosts.rx_buffer_bytes
        if self.workload.has_open_links or not config.handshake:
            open_links(links[0::2], seqs[1::2])
            open_links(links[1::2], seqs[0::2])
        # Not their concatenation, which would touch pages that most runs never use.
        return links, np.zeros(len(senders) + len(receivers), state.SENT), pools, params

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

    def grow_events(self) -> None:
        """Make room for more events, between two of them."""
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
        if schedule["free_count"] > old // 2:
            return
        nodes = _chain(rows.doubled(w.nodes), old, int(schedule["free_head"]))
        schedule["free_head"] = old
        schedule["free_count"] += old
        names = ("far", "due", "due_subject", "spare", "spare_subject")
        self.world = w._replace(nodes=nodes, **{name: rows.doubled(getattr(w, name)) for name in names})

    def _grow_packets(self) -> None:
        old = len(self.world.packets)
        engine = self.world.engine[0]
        packets = _chain(rows.doubled(self.world.packets), old, int(engine["free_head"]))
        frames = rows.doubled(self.world.frames)
        engine["free_head"] = old
        engine["free_count"] += old
        self.world = self.world._replace(
            packets=packets, frames=frames, roce_frames=frames.view(roce.ROCE_FRAME),
            tcp_frames=frames.view(TCP_FRAME),
        )  # fmt: skip


def _choose_nics(topology: Topology, messages: list[Message]) -> np.ndarray:
    """int32 (flows, 2): the NICs that each message leaves and reaches, of the same number in both hosts.

    Where a message names none, its sender's messages take the NICs in turn.
    """
    mine = np.split(np.arange(len(topology.nic_host)), np.searchsorted(topology.nic_host, range(1, topology.hosts)))
    turns: dict[int, int] = {}
    chosen = np.zeros((len(messages), 2), np.int32)
    for k, message in enumerate(messages):
        of_src, of_dst = mine[message.src], mine[message.dst]
        both = min(len(of_src), len(of_dst))
        if message.nic is None:
            turn = turns.get(message.src, 0)
            turns[message.src] = turn + 1
            number = turn % both
        else:
            number = message.nic
            if number >= both:
                raise ConfigError(f"workload.flows.{k}.nic: there is no NIC {number}; the last one is {both - 1}")
        chosen[k] = of_src[number], of_dst[number]
    return chosen


def _longest_ps(ports: np.ndarray, largest_wire_bytes: int) -> int:
    """How far ahead a line's next event can lie: its largest frame and its delay."""
    line_ps = (largest_wire_bytes * 8_000_000_000_000 + ports["rate_bps"] - 1) // ports["rate_bps"]
    return int((line_ps + ports["delay_ps"]).max())


def _chain(rows: np.ndarray, first: int, after: int) -> np.ndarray:
    """Link the rows from ``first`` on into a free list that goes on at ``after``."""
    rows["next"][first:] = np.arange(first + 1, len(rows) + 1)
    rows["next"][-1] = after
    return rows


