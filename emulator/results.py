"""What one run measured, and its row of the JSON output. Knows nothing of the arrays it came from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from emulator import breakdown
from emulator.breakdown import quantile
from emulator.engine import RunStatus
from emulator.failures import failure_name
from ttpoe.units import PS_PER_US

if TYPE_CHECKING:
    from emulator.workloads import Collective

FLOW_RESULT = np.dtype(
    [
        ("src", "i4"), ("dst", "i4"), ("size_bytes", "i8"), ("start_ps", "i8"),
        ("fct_rx_ps", "i8"), ("fct_tx_ps", "i8"), ("ideal_ps", "i8"),  # -1: unfinished; start_ps: never started
        ("drops", "i8"), ("resent_packets", "i8"), ("timeouts", "i8"), ("nack_fulls", "i8"), ("corrupted", "i8"),
        ("failure", "i8"),
    ]
)


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
