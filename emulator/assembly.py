"""From a scenario, a transport and a seed to the arrays of a run, one function for each kind of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from emulator import roce, rows, series, world
from emulator.buffer import PRIORITIES, QUEUE
from emulator.engine import MARGIN
from emulator.events import at_worst
from emulator.framing import data_wire_bytes, framing_of, line_only_bytes
from emulator.host_config import drain_ratio
from emulator.impair import build_impairments
from emulator.lookahead import LEAST_PORTS
from emulator.packet import ECT, NOT_ECT, PACKET
from emulator.paths import Routes
from emulator.pfc import arm_port_timer
from emulator.provision import divide_memory, prepare_retries, set_marking, share_lines
from emulator.quantities import ConfigError
from emulator.queue_pairs import build_roce
from emulator.routing import FLOWLET, FLOWLET_SHIFT, POLICIES, ROUTING
from emulator.schedule import EVENT, SCHEDULE, TIMER, bucket_shift, push
from emulator.tcp_config import build_tcp
from emulator.tcp_rows import TCP_FRAME
from emulator.topology import Topology
from emulator.watchdog import INCIDENT
from emulator.workloads import Message, dependents, name_hash
from ttpoe import state, units
from ttpoe._jit import kernel
from ttpoe.machine import open_links

if TYPE_CHECKING:
    from emulator.fabric import Fabric

_FIRST_PACKETS = 4096
_TRACE_ROWS = 65_536
_INCIDENTS = 1000


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


def assemble(fabric: Fabric) -> world.World:
    """The world of a fabric before its first event, with the starts of flows in its schedule."""
    scenario, topology = fabric.scenario, fabric.topology
    frame_bytes = data_wire_bytes(fabric.transport, scenario)
    waiting, waiting_first = dependents(fabric.messages)
    margin = MARGIN + int(np.diff(waiting_first).max())
    ends, ports = _ends(fabric), _ports(fabric)
    used = tuple(sorted({*ends["priority"].tolist(), *ends["answer_priority"].tolist()}))
    worst = at_worst(topology, fabric.changes)
    memory = divide_memory(scenario.switch, fabric.profile, worst, fabric.flow_nics, used, frame_bytes)
    memory.switches["salt"] = [name_hash(fabric.seed, "switch", name) & 0xFFFFFFFF for name in topology.switch_names]
    _start_storms(fabric, ports, memory.ingress)
    dwrr, ports["weighted"] = share_lines(scenario.switch, topology, frame_bytes)
    later = {port for change in fabric.changes if change.kind == "impair" for port in change.ports}
    impairments, ordinals, ports["impairment"] = build_impairments(
        fabric.seed, topology.port_names, topology.impairments, topology.bad_fcs_frames, later
    )
    engine = _engine(fabric, frame_bytes, margin)
    has_watchdog = engine[0]["watchdog_detect_ps"] != units.NEVER
    out = rows.zeros(8, state.FRAME)
    arrays = world.World(
        engine=engine, ports=ports, queues=_queues(len(ports)), dwrr=dwrr,
        marking=set_marking(fabric.ecn, topology, fabric.seed, is_step=not fabric.profile.is_roce),
        ingress=memory.ingress, switches=memory.switches, shared=memory.shared, rules=memory.rules,
        credits=memory.credits, retries=prepare_retries(scenario.link.retry_bytes, topology, frame_bytes),
        storms=np.zeros(len(ports) * PRIORITIES if has_watchdog else 1, np.int64),
        incidents=np.zeros(_INCIDENTS if has_watchdog else 1, INCIDENT),
        out=out, roce_out=out.view(roce.ROCE_FRAME), tcp_out=out.view(TCP_FRAME),
        flows=_flows(fabric.messages), dependents=waiting, dependents_first=waiting_first, ends=ends,
        kicks=np.zeros(len(ports), np.int32), impairments=impairments, ordinals=ordinals,
        trace=np.zeros(_TRACE_ROWS if fabric.capture else 1, world.TRACE),
        series=np.zeros(series.ROWS, world.SERIES),
        **_schedule(len(fabric.messages) + 4 * len(ports) + 4 * margin, bucket_shift(_longest_ps(ports, frame_bytes))),
        **_packets(), **_routing(fabric, memory.switches),
        **_ttpoe(fabric), **build_roce(fabric, ends, ports), **build_tcp(fabric, ends, ports),
    )  # fmt: skip
    _schedule_flows(arrays)
    return arrays


def _flows(messages: list[Message]) -> np.ndarray:
    flows = rows.zeros(len(messages), world.FLOW)
    flows["size_bytes"] = [m.size_bytes for m in messages]
    flows["start_ps"] = [m.start_ps for m in messages]
    flows["finished_rx_ps"] = flows["finished_tx_ps"] = units.NEVER
    flows["unmet"] = [m.unmet for m in messages]
    flows["delay_ps"] = [m.delay_ps for m in messages]
    return flows


def _ends(fabric: Fabric) -> np.ndarray:
    scenario, messages = fabric.scenario, fabric.messages
    ends = rows.zeros(2 * len(messages), world.END)
    ends["timer_pending_ps"] = units.NEVER
    ends["host"] = np.array([(m.src, m.dst) for m in messages], np.int32).ravel()
    ends["nic"] = fabric.flow_nics.ravel()
    ends["peer_nic"] = fabric.flow_nics[:, ::-1].ravel()
    ends["port"] = fabric.topology.nic_port[ends["nic"]]
    hashes = [name_hash(fabric.seed, "ecmp", m.name, side) for m in messages for side in ("tx", "rx")]
    ends["entropy"] = [(value & 0xFFFFFFFF) - 2**31 for value in hashes]
    ends["priority"] = np.repeat(fabric.data_priorities, 2)
    ends["answer_priority"] = ends["priority"] if scenario.ack_priority is None else scenario.ack_priority
    return ends


def _ports(fabric: Fabric) -> np.ndarray:
    scenario, topology = fabric.scenario, fabric.topology
    n_ports = len(topology.port_names)
    ports = rows.zeros(n_ports, world.PORT)
    ports["tie"] = [name_hash(fabric.seed, "port", name) & 0xFFFFFFFF for name in topology.port_names]
    world.set_rate(ports, slice(None), topology.rate_bps)
    far = np.arange(n_ports) ^ 1
    pipeline_ps = np.where(topology.port_switch[far] >= 0, scenario.switch.pipeline_latency_ps, 0)
    ports["delay_ps"] = topology.delay_ps + pipeline_ps
    ports["timer_pending_ps"] = ports["stuck_until_ps"] = units.NEVER
    for name in ("line_head", "line_tail", "react_head", "react_tail", "blocked_head", "blocked_tail"):
        ports[name] = -1
    ports["far_switch"], ports["switch"] = topology.port_switch[far], topology.port_switch
    ports["is_captured"] = [name in fabric.capture for name in topology.port_names]
    ports["is_watched"][fabric.watched_port] = 1 + scenario.priority
    return ports


def _queues(n_ports: int) -> np.ndarray:
    queues = rows.zeros((PRIORITIES, n_ports), QUEUE)
    for name in ("head", "tail", "ready_head", "ready_tail"):
        queues[name] = -1
    queues["pause_until_ps"] = units.NEVER
    return queues


def _start_storms(fabric: Fabric, ports: np.ndarray, ingress: np.ndarray) -> None:
    """A faulty NIC behaves as if a pause were due for renewal."""
    topology, config = fabric.topology, fabric.scenario.hosts
    for k, storm in enumerate(config.pause_storms):
        if storm.host >= topology.hosts:
            raise ConfigError(
                f"hosts.pause_storms.{k}.host: there is no host {storm.host}; the last one is {topology.hosts - 1}"
            )
        if any(other.host == storm.host for other in config.pause_storms[:k]):
            raise ConfigError(f"hosts.pause_storms.{k}.host: host {storm.host} has a storm already; name another")
        if fabric.profile.flow_control != "pfc":
            continue
        priority = fabric.scenario.priority if storm.priority is None else storm.priority
        for i in topology.nic_port[topology.nics(storm.host)].tolist():
            ports["xoff"][i] = 1 << priority
            ports["stuck_until_ps"][i] = units.NEVER if storm.end_ps is None else storm.end_ps
            ingress["refresh_at_ps"][priority, i] = storm.start_ps


def _engine(fabric: Fabric, frame_bytes: int, event_margin: int) -> np.ndarray:
    """The ENGINE row: what concerns the whole run."""
    scenario, profile = fabric.scenario, fabric.profile
    switch = scenario.switch
    engine = np.zeros(1, world.ENGINE)
    engine["free_count"] = _FIRST_PACKETS
    engine["protocol"] = profile.protocol
    engine["pfc_quanta"] = switch.pause_quanta
    engine["pause_reaction_ps"] = switch.pause_reaction_ps
    engine["trim_priority"] = -1 if switch.trim_priority is None else switch.trim_priority
    engine["retry_bytes"] = scenario.link.retry_bytes or 0
    engine["largest_wire_bytes"] = frame_bytes
    engine["is_credited"] = profile.flow_control == "credits"
    engine["credit_refresh_ps"] = switch.credit_refresh_ps
    watchdog = switch.watchdog if profile.flow_control == "pfc" else None
    engine["watchdog_detect_ps"] = units.NEVER if watchdog is None else watchdog.detect_ps
    engine["watchdog_restore_ps"] = units.NEVER if watchdog is None else watchdog.restore_ps
    engine["unfinished"] = len(fabric.messages)
    engine["event_margin"] = event_margin
    engine["looks_ahead"] = len(fabric.topology.port_names) >= LEAST_PORTS
    engine["framing"] = framing_of(fabric.transport, scenario)
    engine["line_only_bytes"] = line_only_bytes(fabric.transport, scenario)
    engine["is_tracing"] = bool(fabric.capture)
    engine["is_sharing"] = profile.is_ttpoe and scenario.ttpoe.shared_window
    if scenario.hosts.drain_rate_bps is not None:
        engine["drain_bytes"], engine["drain_ps"] = drain_ratio(scenario.hosts.drain_rate_bps)
    engine["series_bucket_ps"] = series.FIRST_BUCKET_PS
    engine["cnp_priority"] = scenario.cnp_priority
    engine["data_ecn"] = ECT if fabric.is_ecn_capable else NOT_ECT
    engine["is_notifying"] = profile.is_ect
    engine["is_paced"] = fabric.is_paced
    return engine


def _schedule(event_rows: int, shift: int) -> dict[str, np.ndarray]:
    """The world's arrays of events that are to come."""
    schedule = np.zeros(1, SCHEDULE)
    schedule["free_count"] = event_rows
    schedule["slots"] = schedule["era_slots"] = -1
    schedule["bucket"] = -1
    schedule["shift"] = shift
    return {
        "schedule": schedule,
        "nodes": chain(rows.zeros(event_rows, EVENT), 0, -1), "far": rows.zeros(event_rows, EVENT),
        "due": np.zeros(event_rows, np.int64), "due_subject": np.zeros(event_rows, np.int32),
        "spare": np.zeros(event_rows, np.int64), "spare_subject": np.zeros(event_rows, np.int32),
    }  # fmt: skip


def _longest_ps(ports: np.ndarray, largest_wire_bytes: int) -> int:
    """How far ahead a line's next event can lie: its largest frame and its delay."""
    line_ps = (largest_wire_bytes * 8_000_000_000_000 + ports["rate_bps"] - 1) // ports["rate_bps"]
    return int((line_ps + ports["delay_ps"]).max())


def _packets() -> dict[str, np.ndarray]:
    """The world's arrays of frames."""
    frames = rows.zeros(_FIRST_PACKETS, state.FRAME)
    return {"packets": chain(rows.zeros(_FIRST_PACKETS, PACKET), 0, -1), **frame_views(frames)}


def frame_views(frames: np.ndarray) -> dict[str, np.ndarray]:
    """Header rows, and the same memory as other transports see it."""
    return {
        "frames": frames, "roce_frames": frames.view(roce.ROCE_FRAME), "tcp_frames": frames.view(TCP_FRAME),
    }  # fmt: skip


def _routing(fabric: Fabric, switches: np.ndarray) -> dict[str, np.ndarray]:
    topology, config = fabric.topology, fabric.scenario.routing
    routing = np.zeros(1, ROUTING)
    routing[0] = (POLICIES[fabric.routing], config.flowlet_gap_ps, config.choices, config.grade_bytes)
    flowlets = np.zeros(topology.switches << FLOWLET_SHIFT if fabric.routing == "flowlet" else 1, FLOWLET)
    flowlets["port"] = -1
    return {**groups_of(fabric.routes, topology, switches), "routing": routing, "flowlets": flowlets}


def groups_of(routes: Routes, topology: Topology, switches: np.ndarray) -> dict[str, np.ndarray]:
    """The world's arrays of the routes in force."""
    groups, members = routes.groups.copy(), routes.members.copy()
    is_used = groups["count"] > 0
    groups["turn"][is_used] = switches["salt"][topology.port_switch[members[groups["first"][is_used]]]]
    return {"group_of": routes.group_of, "groups": groups, "members": members}


def _ttpoe(fabric: Fabric) -> dict[str, np.ndarray]:
    """The world's arrays of TTPoE's links; of other transports without a link."""
    config, messages = fabric.scenario.ttpoe, fabric.messages
    policy = fabric.profile.congestion_control if fabric.profile.is_ttpoe else "fixed"
    params = state.make_params(
        mtu_bytes=config.mtu_bytes, window_bytes=config.window_bytes, rto_initial_ps=config.rto_initial_ps,
        rto_min_ps=config.rto_min_ps, rto_max_ps=config.rto_max_ps, retry_limit=config.retry_limit,
        congestion_control=policy, initial_window_packets=config.initial_window_packets,
        tail_loss_probe=config.tail_loss_probe, probe_min_ps=config.probe_min_ps,
        target_delay_ps=config.target_delay_ps, flow_scaling_ps=config.flow_scaling_ps,
    )
    pools = np.zeros(fabric.topology.hosts + 1, state.POOL)
    pools["limit_bytes"] = config.window_bytes if config.shared_window else units.NEVER
    pools["limit_bytes"][-1] = units.NEVER
    shared = {"pools": pools, "params": params}
    if not fabric.profile.is_ttpoe:
        return {"links": rows.zeros(1, state.LINK), "ring": rows.zeros(1, state.SENT), **shared}
    links = rows.zeros(2 * len(messages), state.LINK)
    seqs = np.array(
        [name_hash(fabric.seed, "seq", m.name, side) & 0xFFFFFFFF for m in messages for side in ("tx", "rx")]
    )
    slots = np.array(
        [state.ring_slots(min(config.window_bytes, message.size_bytes), config.mtu_bytes) for message in messages]
    )
    senders = state.init_links(links[0::2], seqs[0::2], 2, params, slots)
    receivers = state.init_links(links[1::2], seqs[1::2], 2, params, 1)  # which send no PAYLOAD
    links["ring_base"][1::2] += len(senders)
    if fabric.scenario.hosts.drain_rate_bps is not None:
        links["rx_limit_bytes"] = fabric.scenario.hosts.rx_buffer_bytes
    if fabric.workload.has_open_links or not config.handshake:
        open_links(links[0::2], seqs[1::2])
        open_links(links[1::2], seqs[0::2])
    # Not their concatenation, which would touch pages that most runs never use.
    return {"links": links, "ring": np.zeros(len(senders) + len(receivers), state.SENT), **shared}


def chain(rows: np.ndarray, first: int, after: int) -> np.ndarray:
    """Link the rows from ``first`` on into a free list that goes on at ``after``."""
    rows["next"][first:] = np.arange(first + 1, len(rows) + 1)
    rows["next"][-1] = after
    return rows
