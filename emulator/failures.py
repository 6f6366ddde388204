"""Why flows did not finish, in sentences: what gave them up, and what of the run explains it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from emulator.engine import RunStatus
from emulator.impair import MARKED
from ttpoe.state import Failure
from ttpoe.units import PS_PER_US

if TYPE_CHECKING:
    from emulator.fabric import Fabric

HOST_FAILED = 100
"""A flow's failure besides those of :class:`ttpoe.state.Failure`: one of its hosts failed."""


def failure_name(failure: int) -> str:
    """Of a flow, as files have it; empty for none."""
    if failure == HOST_FAILED:
        return "host_failed"
    return Failure(failure).name.lower() if failure else ""


def explain(fabric: Fabric, status: RunStatus, flows: np.ndarray, paused_ps: np.ndarray) -> list[str]:
    """A sentence for each way in which flows of a run did not finish; none if all did.

    Parameters
    ----------
    fabric : Fabric
    status : RunStatus
        How the run ended.
    flows : FLOW_RESULT array, shape (flows,)
    paused_ps : int array, shape (ports, priorities)
        How long each queue was paused in all, credits that it waited for included.
    """
    failure = flows["failure"]
    is_open = (flows["fct_rx_ps"] < 0) & (failure == 0)
    told = []
    if (gave_up := failure == Failure.RETRY_LIMIT).any():
        told.append(_retries(fabric, flows, gave_up, paused_ps))
    for kind in np.unique(failure[(failure != 0) & ~gave_up]).tolist():
        told.append(f"{int((failure == kind).sum())} ended as {failure_name(kind)}")
    waiting = is_open & (flows["start_ps"] < 0)
    if waiting.any():
        told.append(f"{int(waiting.sum())} never started: they wait for flows that did not finish")
    if (under_way := is_open & ~waiting).any():
        count = int(under_way.sum())
        if status is RunStatus.UNTIL:
            told.append(f"{count} were not done by until_ps, {_us(fabric.scenario.until_ps)}; raise it")
        elif status is RunStatus.EMPTY:
            told.append(f"{count} wait for frames that will never come, and no timeout is set to send them again")
    return told


def _retries(fabric: Fabric, flows: np.ndarray, gave_up: np.ndarray, paused_ps: np.ndarray) -> str:
    limit, timeout, field = _timeouts(fabric)
    text = f"{int(gave_up.sum())} gave up after {limit + 1} timeouts in a row ({timeout})"
    lost = fabric.world.impairments["counts"][:, 1:MARKED].sum() + fabric.world.ports["link_down"].sum()
    causes = []
    if dropped := int(flows["drops"][gave_up].sum()):
        causes.append(f"{dropped} of their frames were dropped")
    if lost:
        causes.append(f"lines lost or changed {int(lost)} frames in the run")
    routes = {port for k in np.flatnonzero(gave_up) for port in fabric.topology.path(*fabric.flow_nics[k].tolist())}
    worst = max(routes, key=lambda port: int(paused_ps[port].max()))
    if held_ps := int(paused_ps[worst].max()):
        what = "waited for credits" if fabric.profile.flow_control == "credits" else "was paused"
        causes.append(f"{fabric.topology.port_names[worst]} on their way {what} for {_us(held_ps)} in all")
    if not dropped and not lost:
        causes.append(f"none of their frames was dropped, so they wait longer than that; raise {field}")
    return f"{text}: {', '.join(causes)}"


def _timeouts(fabric: Fabric) -> tuple[int, str, str]:
    """Retry limit, what the timeouts are, and which field makes them longer."""
    scenario, profile = fabric.scenario, fabric.profile
    if profile.is_ttpoe:
        ttpoe = scenario.ttpoe
        return ttpoe.retry_limit, f"{_us(ttpoe.rto_min_ps)} to {_us(ttpoe.rto_max_ps)}", "ttpoe.rto_min_ps"
    if profile.is_tcp:
        tcp = scenario.tcp
        return tcp.retry_limit, f"{_us(tcp.rto_min_ps)} to {_us(tcp.rto_max_ps)}", "tcp.rto_min_ps"
    if profile.recovery == "selective":
        low, high = scenario.selective.rto_low_ps, scenario.selective.rto_high_ps
        return scenario.roce.retry_limit, f"{_us(low)} or {_us(high)}", "selective.rto_high_ps"
    return scenario.roce.retry_limit, _us(scenario.roce.rto_ps), "roce.rto_exponent"


def _us(ps: int) -> str:
    return f"{ps / PS_PER_US:,.4g} us" if ps < 1000 * PS_PER_US else f"{ps / PS_PER_US:,.0f} us"
