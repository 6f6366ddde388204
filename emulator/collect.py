"""From the arrays of a run that has ended to its RunResult: flows, ports, counters."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import numpy as np

from emulator import world
from emulator.bounds import frames_of, has_one_receiver, hops_between, ideal_flow_ps, wire_bound_ps
from emulator.buffer import DROP_CAUSES, PRIORITIES
from emulator.conservation import arrived, check_conservation
from emulator.engine import RunStatus
from emulator.failures import explain
from emulator.impair import BAD_FCS, BIT_ERRORS, COUNTERS, DUPLICATED
from emulator.results import FLOW_RESULT, RunResult
from emulator.series import carry_on, collect_series, edges_ps, extend
from emulator.watchdog import INCIDENTS
from ttpoe.units import NEVER, PS_PER_US

if TYPE_CHECKING:
    from emulator.fabric import Fabric

_LINK_COUNTERS = ("probes_sent", "resends_spurious", "nack_fulls_sent", "nack_fulls_received")
"""Of TTPoE's link rows, summed over both ends of all flows."""
_CHANGES = 1000
"""Changes of links that are told, as many as incidents."""


def collect(fabric: Fabric, status: RunStatus, wall_s: float) -> RunResult:
    """Reduce the arrays of a fabric whose run has ended."""
    w, topology = fabric.world, fabric.topology
    inside = check_conservation(w)
    flows, paused_ps = _flow_rows(fabric), _paused_ps(w)
    ports = _port_rows(fabric, paused_ps)
    counters = _counters(fabric, flows, paused_ps) | {"in_network": inside}
    causes = {cause: int(w.switches["drops"][:, k].sum()) for k, cause in enumerate(DROP_CAUSES)}
    impaired = dict(zip(COUNTERS, w.impairments["counts"][:, 1:].sum(axis=0).tolist(), strict=True))
    impaired["bad_icrc"] = int(w.engine[0]["bad_icrc"])
    end_ps = counters["end_ps"]
    extend(w.engine, w.series, end_ps)
    series = carry_on(collect_series(int(w.engine[0]["series_kept"]), w.series, end_ps))
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
        ports=ports,
        series=series,
        series_edges_ps=edges_ps(len(series)),
        end_ps=end_ps,
        goodput_limit_gbps=_goodput_limit_gbps(fabric),
        wire_bound_ps=wire_bound_ps(fabric),
        wall_s=wall_s,
        setup_s=fabric.setup_s,
        errors=_errors(fabric, causes, ports),
        warnings=fabric.warnings,
        reasons=explain(fabric, status, flows, paused_ps),
        deadlock=None if fabric.deadlock is None else fabric.deadlock.named(topology),
        deadlock_told="" if fabric.deadlock is None else fabric.deadlock.told(topology),
        incidents=_incidents(fabric),
        changes=[change.told(topology) for change in fabric.changes[:_CHANGES] if change.at_ps <= end_ps],
        digest=_digest(fabric, flows, paused_ps, [counters, causes, impaired]),
    )


def display_name(fabric: Fabric) -> str:
    """The transport's name in tables; payloads above the specification's 1024 bytes make it ttpoe-jumbo."""
    if fabric.profile.is_ttpoe and fabric.scenario.ttpoe.mtu_bytes > 1024:
        return fabric.transport.replace("ttpoe", "ttpoe-jumbo", 1)
    return fabric.transport


def _flow_rows(fabric: Fabric) -> np.ndarray:
    """FLOW_RESULT (flows,)."""
    w, is_ttpoe = fabric.world, fabric.profile.is_ttpoe
    senders = {world.TTPOE: w.links, world.ROCE: w.qps, world.TCP: w.tcps}[fabric.profile.protocol][0::2]
    flows = np.zeros(len(w.flows), FLOW_RESULT)
    for name in ("size_bytes", "start_ps", "drops", "corrupted", "failure"):
        flows[name] = w.flows[name]
    flows["start_ps"][w.flows["unmet"] > 0] = -1  # which wait for a flow that never ended
    flows["src"], flows["dst"] = w.ends["host"][0::2], w.ends["host"][1::2]
    flows["resent_packets"] = senders["payloads_resent" if is_ttpoe else "packets_resent"]
    flows["timeouts"] = senders["timeouts"]
    if is_ttpoe:
        flows["nack_fulls"] = senders["nack_fulls_received"]
    for name, stamp in (("fct_rx_ps", "finished_rx_ps"), ("fct_tx_ps", "finished_tx_ps")):
        flows[name] = np.where(w.flows[stamp] == NEVER, -1, w.flows[stamp] - w.flows["start_ps"])
    flows["ideal_ps"] = -1
    known: dict[tuple[object, ...], int] = {}
    for k in np.flatnonzero(flows["fct_rx_ps"] >= 0).tolist():
        key = (fabric.messages[k].size_bytes, *hops_between(fabric, *fabric.flow_nics[k].tolist()))
        if key not in known:
            known[key] = ideal_flow_ps(fabric, k)
        flows["ideal_ps"][k] = known[key]
    return flows


def _paused_ps(w: world.World) -> np.ndarray:
    """int64 (ports, 8): how long each queue was paused in all, credits that it waited for included."""
    is_paused = (w.ports["paused"] >> np.arange(PRIORITIES)[:, None]) & 1 != 0
    still_ps = np.where(is_paused, int(w.engine[0]["now_ps"]) - w.queues["paused_since_ps"], 0)
    return np.asarray((w.queues["paused_ps"] + still_ps).T)


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


def _counters(fabric: Fabric, flows: np.ndarray, paused_ps: np.ndarray) -> dict[str, int]:
    """Sums over the whole run, by name."""
    w, engine = fabric.world, fabric.world.engine[0]
    is_ttpoe = fabric.profile.is_ttpoe
    told = (
        "events", "packet_hops", "data_hops", "created", "delivered", "lost", "pfc_frames", "credit_frames",
        "incidents", "no_route",
    )  # fmt: skip
    return {name: int(engine[name]) for name in told} | {
        "drops": int(engine["dropped"]),
        "pauses": int(w.ingress["xoff_count"].sum()),
        "paused_ps": int(paused_ps.sum()),
        "ecn_marked": int(w.marking["marked"].sum()),
        "trimmed": int(w.ports["trimmed"].sum()),
        "link_replays": int(w.retries["replays"].sum()),
        "frames_replayed": int(w.retries["frames_replayed"].sum()),
        "link_down": int(w.ports["link_down"].sum()),
        "resent_packets": int(flows["resent_packets"].sum()),
        "timeouts": int(flows["timeouts"].sum()),
        **{name: int(w.links[name].sum()) if is_ttpoe else 0 for name in _LINK_COUNTERS},
        "marks_received": int(sum(rows["marks_received"].sum() for rows in (w.rates, w.tcps, w.links))),
        "cnps_sent": int(w.rates["cnps_sent"].sum()),
        "recoveries": int(w.tcps["recoveries"].sum()),
        "eces_received": int(w.tcps["eces_received"].sum() + w.links["echoes_received"].sum()),
        "max_shared_bytes": int(w.shared["max_bytes"].max()),
        "end_ps": int(engine["now_ps"]),
    }


def _goodput_limit_gbps(fabric: Fabric) -> float | None:
    """What one receiver can take of payload, by its line and the headers of the largest message; None of several."""
    if not has_one_receiver(fabric):
        return None
    size_bytes = max(message.size_bytes for message in fabric.messages)
    bottleneck_bps = int(fabric.topology.rate_bps[fabric.watched_port])
    return bottleneck_bps / 1e9 * size_bytes / frames_of(fabric, size_bytes).total


def _errors(fabric: Fabric, causes: dict[str, int], ports: list[dict[str, Any]]) -> list[str]:
    """Promises of the model that a run broke."""
    if not causes["headroom_full"]:
        return []
    worst = max(ports, key=lambda port: port["max_headroom_bytes"])
    return [
        f"{causes['headroom_full']} frames were dropped in a lossless priority as headroom was full (most used: "
        f"{worst['max_headroom_bytes']} bytes at {worst['name']}); {_headroom_advice(fabric)}"
    ]


def _headroom_advice(fabric: Fabric) -> str:
    """What to do about headroom that was not enough."""
    for name in ("headroom_bytes", "headroom_pool_bytes"):
        if getattr(fabric.scenario.switch, name) is not None:
            return f"leave out switch.{name} for the bound"
    return (
        "the bound counts neither PFC frames that lines lose or hold back nor frames that they double or send again: "
        "impair these lines less, or set a larger switch.headroom_bytes"
    )


def _incidents(fabric: Fabric) -> list[dict[str, Any]]:
    names = fabric.topology.port_names
    return [
        {
            "time_us": int(row["time_ps"]) / PS_PER_US, "what": INCIDENTS[int(row["what"])],
            "port": names[int(row["port"])], "priority": int(row["priority"]),
        }
        for row in fabric.world.incidents[: int(fabric.world.engine[0]["incidents"])]
    ]


def _digest(fabric: Fabric, flows: np.ndarray, paused_ps: np.ndarray, sums: list[dict[str, int]]) -> str:
    """SHA-256 over every integer result."""
    w = fabric.world
    told = [fabric.transport, fabric.routing, fabric.seed, *sums]
    digest = hashlib.sha256(json.dumps(told, sort_keys=True).encode())
    by_port = (w.queues["drops"].T, w.queues["max_bytes"].T, paused_ps, w.ingress["xoff_count"].T, w.ports["tx_bytes"])
    for array in (flows, *by_port):
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
