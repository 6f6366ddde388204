"""From the arrays of a run that has ended to what is reported: completion times, causes, fairness, conservation."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from emulator import breakdown, ideal, world
from emulator.breakdown import quantile
from emulator.buffer import DROP_CAUSES, PRIORITIES
from emulator.conservation import arrived, check_conservation
from emulator.engine import RunStatus
from emulator.failures import explain, failure_name, headroom_advice
from emulator.framing import control_wire_bytes, framing_of, message_frames, mtu_of
from emulator.impair import BAD_FCS, BIT_ERRORS, COUNTERS, DUPLICATED
from emulator.series import collect_series, edges_ps, extend
from emulator.watchdog import INCIDENTS
from ttpoe.units import NEVER, PS_PER_US

if TYPE_CHECKING:
    from emulator.fabric import Fabric
    from emulator.workloads import Collective

FLOW_RESULT = np.dtype(
    [
        ("src", "i4"), ("dst", "i4"), ("size_bytes", "i8"), ("start_ps", "i8"),
        ("fct_rx_ps", "i8"), ("fct_tx_ps", "i8"), ("ideal_ps", "i8"),  # -1: unfinished; start_ps: never started
        ("drops", "i8"), ("resent_packets", "i8"), ("timeouts", "i8"), ("nack_fulls", "i8"), ("corrupted", "i8"),
        ("failure", "i8"),
    ]
)


_LINK_COUNTERS = ("probes_sent", "resends_spurious", "nack_fulls_sent", "nack_fulls_received")
"""Of TTPoE's link rows, summed over both ends of all flows."""


@dataclass(frozen=True)
class RunResult:
    """What one run measured. Digest: SHA-256 over every integer result, without wall time."""

    transport: str
    routing: str
    seed: int
    status: RunStatus
    flows: np.ndarray
    """FLOW_RESULT, shape (flows,)."""
    flow_names: tuple[str, ...]
    flow_groups: tuple[str, ...]
    """Empty where a message is in no group."""
    collective: Collective | None
    counters: dict[str, int]
    drop_causes: dict[str, int]
    frames_impaired: dict[str, int]
    """What lines did to frames, by the names of ImpairmentCounters; ``bad_icrc``: refused by RoCE hosts."""
    ports: list[dict[str, Any]]
    series: np.ndarray
    """SERIES rows up to the end, the last values carried on."""
    series_edges_ps: np.ndarray
    """int64 (rows + 1,): where each begins, and where the last one ends."""
    end_ps: int
    goodput_limit_gbps: float | None
    wire_bound_ps: int | None
    wall_s: float
    setup_s: float
    errors: list[str] = field(default_factory=list)
    """Broken promises of the model, such as a drop in a lossless priority."""
    warnings: list[str] = field(default_factory=list)
    """What was known before the run to be able to go wrong."""
    reasons: list[str] = field(default_factory=list)
    """Why flows did not finish, a sentence for each way; none if all did."""
    deadlock: dict[str, Any] | None = None
    """Priority, switches and ports of lines that wait for each other for ever, which ended the run."""
    deadlock_told: str = ""
    """The same for a reader."""
    incidents: list[dict[str, Any]] = field(default_factory=list)
    """The first 1000 that the watchdog acted on: time in us, what, port, priority; ``counters`` has their number."""
    changes: list[dict[str, Any]] = field(default_factory=list)
    """The first 1000 changes of links by ``events``: time in us, what, ports, and to what."""
    digest: str = ""

    @property
    def unfinished(self) -> list[str]:
        """Names of the flows that did not finish, with the reason where one is known."""
        return [
            name + (f" ({why})" if (why := _why_unfinished(flow)) else "")
            for name, flow in zip(self.flow_names, self.flows, strict=True)
            if flow["fct_rx_ps"] < 0 or flow["failure"]
        ]

    @property
    def changed(self) -> list[str]:
        """Names of the flows whose bytes arrived changed."""
        return [name for name, flow in zip(self.flow_names, self.flows, strict=True) if flow["corrupted"]]

    def summary(self) -> dict[str, Any]:
        """The run's row of the JSON output."""
        done = self.flows[self.flows["fct_rx_ps"] >= 0]
        fct_us = done["fct_rx_ps"] / PS_PER_US
        goodput = done["size_bytes"] * 8_000 / np.maximum(done["fct_rx_ps"], 1)
        span_ps = int((done["start_ps"] + done["fct_rx_ps"]).max() - done["start_ps"].min()) if done.size else 0
        total = int(done["size_bytes"].sum())
        return {
            "transport": self.transport,
            "routing": self.routing,
            "seed": self.seed,
            "flows": len(self.flows),
            "finished": len(self.flows) - len(self.unfinished),
            "reasons": self.reasons,
            "fct_us": {
                "min": quantile(fct_us, 0.0), "p50": quantile(fct_us, 0.5),
                "p99": quantile(fct_us, 0.99), "max": quantile(fct_us, 1.0),
            },
            "makespan_us": span_ps / PS_PER_US if done.size else None,
            "goodput_gbps": total * 8_000 / span_ps if span_ps else None,
            "goodput_limit_gbps": self.goodput_limit_gbps,
            "wire_bound_us": None if self.wire_bound_ps is None else self.wire_bound_ps / PS_PER_US,
            "slowdown_p99": quantile(done["fct_rx_ps"] / np.maximum(done["ideal_ps"], 1), 0.99),
            "drops": self.counters["drops"],
            "drop_causes": self.drop_causes,
            "lost": self.counters["lost"],
            "frames_impaired": self.frames_impaired,
            "corrupted": int(self.flows["corrupted"].sum()),
            "pauses": self.counters["pauses"],
            "paused_us": self.counters["paused_ps"] / PS_PER_US,
            "max_queue_bytes": max(port["max_queue_bytes"] for port in self.ports),
            "resent_packets": self.counters["resent_packets"],
            "timeouts": self.counters["timeouts"],
            "nack_fulls": self.counters["nack_fulls_received"],
            "marks": self.counters["marks_received"],
            "cnps": self.counters["cnps_sent"],
            "jain": float(goodput.sum() ** 2 / (goodput.size * (goodput**2).sum())) if done.size else None,
            "size_bins": breakdown.size_bins(done),
            "groups": breakdown.groups(self.flows, self.flow_groups),
            "collective": breakdown.bandwidths(self.collective, span_ps if done.size == len(self.flows) else 0),
            "data_hops": self.counters["data_hops"],
            "packet_hops": self.counters["packet_hops"],
            "events": self.counters["events"],
            "wall_s": self.wall_s,
            "packet_hops_per_s": self.counters["packet_hops"] / self.wall_s if self.wall_s else None,
            "digest": self.digest,
        }


def _why_unfinished(flow: np.void) -> str:
    if flow["failure"]:
        return failure_name(int(flow["failure"]))
    return "not started" if flow["start_ps"] < 0 else ""


def frames_of(fabric: Fabric, size_bytes: int) -> ideal.Frames:
    """Bytes on the line of the data frames of one of a fabric's messages."""
    transport, scenario = fabric.transport, fabric.scenario
    framing = framing_of(transport, scenario)
    profile = fabric.profile
    return message_frames(profile.protocol, mtu_of(transport, scenario), size_bytes, framing, profile.is_selective)


def _hops(fabric: Fabric, src_nic: int, dst_nic: int) -> list[ideal.Hop]:
    """Lines as they are before any event."""
    topology, pipeline_ps = fabric.topology, fabric.scenario.switch.pipeline_latency_ps
    path = topology.path(src_nic, dst_nic)
    delays = [int(topology.delay_ps[i]) + (pipeline_ps if topology.port_switch[i ^ 1] >= 0 else 0) for i in path]
    return [ideal.Hop(int(topology.rate_bps[i]), delay_ps) for i, delay_ps in zip(path, delays, strict=True)]


def ideal_flow_ps(fabric: Fabric, flow: int) -> int:
    """Completion time of a flow (by index) alone on an idle path between its NICs: the first of the shortest.

    By the window of memory alone: what a congestion window adds, as TCP's slow start does, is slowdown.
    """
    src_nic, dst_nic = fabric.flow_nics[flow].tolist()
    size_bytes = fabric.messages[flow].size_bytes
    hops, back = _hops(fabric, src_nic, dst_nic), _hops(fabric, dst_nic, src_nic)
    transport, scenario = fabric.transport, fabric.scenario
    mtu_bytes = mtu_of(transport, scenario)
    control = control_wire_bytes(transport, scenario)
    frames = frames_of(fabric, size_bytes)
    if fabric.profile.is_ttpoe:
        config = scenario.ttpoe
        last_bytes = size_bytes - (frames.count - 1) * mtu_bytes
        # The window counts bytes, so a short last frame needs less room.
        last_window = (config.window_bytes - last_bytes) // mtu_bytes + 1
        opening = 0
        if config.handshake and not fabric.workload.has_open_links:
            opening = ideal.control_path_ps(hops, control) + ideal.control_path_ps(back, control)
        window = config.window_bytes // mtu_bytes
        return opening + ideal.ideal_fct_ps(hops, back, frames, control, window, last_window)
    if fabric.profile.is_tcp:
        tcp = scenario.tcp
        window, every = tcp.window_packets, min(tcp.ack_every_packets, tcp.window_packets)
        return ideal.ideal_fct_ps(hops, back, frames, control, window, window, every)
    window = int(fabric.world.qps["window_packets"][2 * flow])
    return ideal.ideal_fct_ps(hops, back, frames, control, window, window, scenario.roce.ack_every_packets)


def has_one_receiver(fabric: Fabric) -> bool:
    """Whether all messages go to one NIC, so that its line bounds them all."""
    return len(np.unique(fabric.flow_nics[:, 1])) == 1


def _wire_bound_ps(fabric: Fabric) -> int | None:
    """Last completion of an incast at best, from the first start: all wire bytes at the receiver's rate and one path.

    None where several hosts receive. The path is the shortest way of a first frame to the receiver's line, and the
    receiver's propagation.
    """
    if not has_one_receiver(fabric):
        return None
    total = 0
    reach: list[int] = []
    for message, nics in zip(fabric.messages, fabric.flow_nics.tolist(), strict=True):
        frames = frames_of(fabric, message.size_bytes)
        total += frames.total
        hops = _hops(fabric, *nics)
        reach.append(message.start_ps + ideal.control_path_ps(hops[:-1], frames.first))
    last = hops[-1]
    first_ps = min(message.start_ps for message in fabric.messages)
    return min(reach) - first_ps + last.line_ps(total) + last.delay_ps


def _carry_on(rows: np.ndarray) -> np.ndarray:
    """Give buckets without a sample the last values before them; returns ``rows``, modified."""
    for name, bit in (("depth_bytes", 1), ("paused", 2)):
        touched = (rows["is_touched"] & bit) != 0
        source = np.maximum.accumulate(np.where(touched, np.arange(len(rows)), -1))
        carried = np.where(source >= 0, rows[name][source], 0)
        before = np.concatenate([[0], carried[:-1]])
        rows[name] = carried
        peak = "depth_max_bytes" if bit == 1 else "paused_max"
        rows[peak] = np.maximum(rows[peak], before)  # what held when the bucket began counts as well
    return rows


def _port_rows(fabric: Fabric, paused_ps: np.ndarray) -> list[dict[str, Any]]:
    """What is reported of each port, by columns, as there may be tens of thousands of them.

    Parameters
    ----------
    paused_ps : int64 (ports, 8)
    """
    w = fabric.world
    ports, far = w.ports, np.arange(len(w.ports)) ^ 1
    fates = np.where(ports["impairment"][:, None] >= 0, w.impairments["counts"][ports["impairment"]], 0)
    lost = fates[:, 1:BAD_FCS].sum(axis=1)
    storms = np.resize(w.storms, (len(ports), PRIORITIES))  # a single zero where there is no watchdog
    columns = {
        "rate_bps": ports["rate_bps"],
        "tx_frames": ports["tx_frames"],
        "tx_bytes": ports["tx_bytes"],
        "rx_frames": (arrived(w) + fates[:, DUPLICATED] - lost - ports["cut"])[far],
        "drops": w.queues["drops"].sum(axis=0),
        "lost": lost,
        "bad_fcs": fates[:, BAD_FCS],
        "bit_errors": fates[:, BIT_ERRORS],
        "link_down": ports["link_down"],
        "ecn_marked": w.marking["marked"],
        "trimmed": ports["trimmed"],
        "max_queue_bytes": w.queues["max_bytes"].max(axis=0),
        "max_headroom_bytes": w.ingress["max_headroom_bytes"].max(axis=0),
        "xoffs_sent": w.ingress["xoff_count"].sum(axis=0),
        "paused_us": paused_ps.sum(axis=1) / PS_PER_US,
        "pause_storms": storms.sum(axis=1),
        "frames_replayed": np.resize(w.retries["frames_replayed"], len(ports)),
    }
    names = ("name", *columns)
    values = (fabric.topology.port_names, *(column.tolist() for column in columns.values()))
    return [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]


def collect(fabric: Fabric, status: RunStatus, wall_s: float) -> RunResult:
    """Reduce the arrays of a fabric whose run has ended."""
    w = fabric.world
    engine = w.engine[0]
    inside = check_conservation(w)
    is_ttpoe = fabric.profile.is_ttpoe
    rows = {world.TTPOE: w.links, world.ROCE: w.qps, world.TCP: w.tcps}[fabric.profile.protocol][0::2]
    flows = np.zeros(len(w.flows), FLOW_RESULT)
    for name in ("size_bytes", "start_ps", "drops", "corrupted", "failure"):
        flows[name] = w.flows[name]
    flows["start_ps"][w.flows["unmet"] > 0] = -1  # which wait for a flow that never ended
    flows["src"], flows["dst"] = w.ends["host"][0::2], w.ends["host"][1::2]
    flows["resent_packets"] = rows["payloads_resent" if is_ttpoe else "packets_resent"]
    flows["timeouts"] = rows["timeouts"]
    if is_ttpoe:
        flows["nack_fulls"] = rows["nack_fulls_received"]
    for name, stamp in (("fct_rx_ps", "finished_rx_ps"), ("fct_tx_ps", "finished_tx_ps")):
        flows[name] = np.where(w.flows[stamp] == NEVER, -1, w.flows[stamp] - w.flows["start_ps"])
    known: dict[tuple[object, ...], int] = {}
    ports = w.ports
    for k, message in enumerate(fabric.messages):
        src_nic, dst_nic = fabric.flow_nics[k].tolist()
        key = (message.size_bytes, *_hops(fabric, src_nic, dst_nic))
        if flows["fct_rx_ps"][k] < 0:
            flows["ideal_ps"][k] = -1
            continue
        if key not in known:
            known[key] = ideal_flow_ps(fabric, k)
        flows["ideal_ps"][k] = known[key]

    end_ps = int(engine["now_ps"])
    is_paused = (ports["paused"] >> np.arange(PRIORITIES)[:, None]) & 1 != 0
    paused_ps = (w.queues["paused_ps"] + np.where(is_paused, end_ps - w.queues["paused_since_ps"], 0)).T
    port_rows = _port_rows(fabric, paused_ps)
    causes = {cause: int(w.switches["drops"][:, k].sum()) for k, cause in enumerate(DROP_CAUSES)}
    errors = []
    if causes["headroom_full"]:
        worst = port_rows[int(np.argmax(w.ingress["max_headroom_bytes"].max(axis=0)))]
        errors.append(
            f"{causes['headroom_full']} frames were dropped in a lossless priority as headroom was full (most used: "
            f"{worst['max_headroom_bytes']} bytes at {worst['name']}); {headroom_advice(fabric)}"
        )
    told = ("events", "packet_hops", "data_hops", "created", "delivered", "lost")
    counters = {name: int(engine[name]) for name in told} | {
        "in_network": inside,
        "drops": int(engine["dropped"]),
        "pauses": int(w.ingress["xoff_count"].sum()),
        "paused_ps": int(paused_ps.sum()),
        "pfc_frames": int(engine["pfc_frames"]),
        "ecn_marked": int(w.marking["marked"].sum()),
        "trimmed": int(ports["trimmed"].sum()),
        "link_replays": int(w.retries["replays"].sum()),
        "frames_replayed": int(w.retries["frames_replayed"].sum()),
        "credit_frames": int(engine["credit_frames"]),
        "incidents": int(engine["incidents"]),
        "no_route": int(engine["no_route"]),
        "link_down": int(ports["link_down"].sum()),
        "resent_packets": int(flows["resent_packets"].sum()),
        "timeouts": int(flows["timeouts"].sum()),
        **{name: int(w.links[name].sum()) if is_ttpoe else 0 for name in _LINK_COUNTERS},
        "marks_received": int(sum(rows["marks_received"].sum() for rows in (w.rates, w.tcps, w.links))),
        "cnps_sent": int(w.rates["cnps_sent"].sum()),
        "recoveries": int(w.tcps["recoveries"].sum()),
        "eces_received": int(w.tcps["eces_received"].sum() + w.links["echoes_received"].sum()),
        "max_shared_bytes": int(w.shared["max_bytes"].max()),
        "end_ps": end_ps,
    }
    impaired = dict(zip(COUNTERS, w.impairments["counts"][:, 1:].sum(axis=0).tolist(), strict=True))
    impaired["bad_icrc"] = int(engine["bad_icrc"])
    largest = fabric.messages[int(np.argmax(flows["size_bytes"]))]
    wire = frames_of(fabric, largest.size_bytes).total
    bottleneck_bps = int(fabric.topology.rate_bps[fabric.watched_port])
    extend(w.engine, w.series, end_ps)
    series = _carry_on(collect_series(int(engine["series_kept"]), w.series, end_ps))
    digest = hashlib.sha256()
    names = [fabric.transport, fabric.routing, fabric.seed]
    digest.update(json.dumps([*names, counters, causes, impaired], sort_keys=True).encode())
    by_port = (w.queues["drops"].T, w.queues["max_bytes"].T, paused_ps, w.ingress["xoff_count"].T, ports["tx_bytes"])
    for array in (flows, *by_port):
        digest.update(np.ascontiguousarray(array).tobytes())
    return RunResult(
        transport=display_name(fabric),
        routing=fabric.routing,
        seed=fabric.seed,
        status=status,
        flows=flows,
        flow_names=tuple(message.name for message in fabric.messages),
        flow_groups=tuple(message.group for message in fabric.messages),
        collective=fabric.workload.collective,
        counters=counters,
        drop_causes=causes,
        frames_impaired=impaired,
        ports=port_rows,
        series=series,
        series_edges_ps=edges_ps(len(series)),
        end_ps=end_ps,
        goodput_limit_gbps=bottleneck_bps / 1e9 * largest.size_bytes / wire if has_one_receiver(fabric) else None,
        wire_bound_ps=_wire_bound_ps(fabric),
        wall_s=wall_s,
        setup_s=fabric.setup_s,
        errors=errors,
        warnings=fabric.warnings,
        reasons=explain(fabric, status, flows, paused_ps),
        deadlock=None if fabric.deadlock is None else fabric.deadlock.named(fabric.topology),
        deadlock_told="" if fabric.deadlock is None else fabric.deadlock.told(fabric.topology),
        incidents=[
            {
                "time_us": int(row["time_ps"]) / PS_PER_US, "what": INCIDENTS[int(row["what"])],
                "port": fabric.topology.port_names[int(row["port"])], "priority": int(row["priority"]),
            }
            for row in w.incidents[: int(engine["incidents"])]
        ],
        changes=[change.told(fabric.topology) for change in fabric.changes[:1000] if change.at_ps <= end_ps],
        digest=digest.hexdigest(),
    )


def display_name(fabric: Fabric) -> str:
    """The transport's name in tables; payloads above the specification's 1024 bytes make it ttpoe-jumbo."""
    if fabric.profile.is_ttpoe and fabric.scenario.ttpoe.mtu_bytes > 1024:
        return fabric.transport.replace("ttpoe", "ttpoe-jumbo", 1)
    return fabric.transport


