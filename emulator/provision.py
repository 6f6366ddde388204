"""What a scenario gives to its switches: how memory is divided, who shares a line by weight, which ports mark."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from emulator.buffer import INGRESS, PRIORITIES, RULES, SHARED, SWITCH
from emulator.credits import BLOCK_BYTES, CREDIT_WIRE_BYTES, CREDITS
from emulator.dwrr import DWRR
from emulator.ecn import no_marking, step_threshold
from emulator.pfc import PFC_WIRE_BYTES
from emulator.quantities import ConfigError
from emulator.retry import CONTROL_BYTES, RETRY
from emulator.rows import zeros
from emulator.switching import EcnConfig, SwitchConfig
from emulator.topology import Topology, headroom_bound_bytes
from emulator.transports import Profile
from emulator.workloads import name_hash
from ttpoe.units import NEVER, PS_PER_S

_MOST_BYTES = 2**41
"""Of a port and priority: more than any switch has, and little enough that the sum over all ports is an int64."""


@dataclass(frozen=True)
class Memory:
    """Rows of :mod:`emulator.buffer` for all switches, empty."""

    switches: np.ndarray
    shared: np.ndarray
    rules: np.ndarray
    ingress: np.ndarray
    credits: np.ndarray


def divide_memory(
    config: SwitchConfig, profile: Profile, topology: Topology, flow_nics: np.ndarray, priorities: tuple[int, ...],
    frame_bytes: int,
) -> Memory:  # fmt: skip
    """Headroom and reserves first, and the rest to the shared pools.

    Parameters
    ----------
    config : SwitchConfig
    profile : Profile
    topology : Topology
    flow_nics : int array, shape (flows, 2)
        Ports towards other NICs get no headroom and no reserve, so that idle hosts change nothing.
    priorities : tuple of int
        Those that any frame bears; others get nothing.
    frame_bytes : int
        Largest frame on the line.
    """
    n_ports = len(topology.port_names)
    ingress = zeros((PRIORITIES, n_ports), INGRESS)
    switches = zeros(topology.switches, SWITCH)
    rules = zeros((PRIORITIES, topology.switches), RULES)
    has_pfc = profile.flow_control == "pfc"
    lossless = [p for p in priorities if has_pfc and config.rules(p).is_lossless]
    busy = np.ones(n_ports, bool)
    busy[topology.nic_port ^ 1] = False
    busy[topology.nic_port[flow_nics.ravel()] ^ 1] = True
    ports = np.flatnonzero(busy & (topology.port_switch >= 0))
    if lossless:
        if config.headroom_bytes is None:
            _check_quanta(config.pause_quanta, frame_bytes, len(lossless))
        for i in ports.tolist():
            bound = config.headroom_bytes or headroom_bound_bytes(
                frame_bytes, int(topology.rate_bps[i]), topology.one_way_ps(i), config.pause_reaction_ps,
                config.pipeline_latency_ps, len(lossless),
            )  # fmt: skip
            bound = min(bound, _MOST_BYTES)
            for p in lossless:
                ingress[p, i]["headroom_limit_bytes"] = bound
                switches[topology.port_switch[i]]["headroom_limit_bytes"] += bound
        if config.headroom_pool_bytes is not None:
            pool_bytes = np.minimum(switches["headroom_limit_bytes"], config.headroom_pool_bytes)
            switches["headroom_limit_bytes"] = pool_bytes
    rules["shared"] = 2 * np.arange(topology.switches)
    rules["resume_offset_bytes"] = config.resume_offset_bytes
    for p in range(PRIORITIES):
        mine = config.rules(p)
        static_bytes = config.static_threshold_bytes if mine.static_threshold_bytes is None else (
            mine.static_threshold_bytes)  # fmt: skip
        rules["alpha_q16"][p] = round((config.alpha if mine.alpha is None else mine.alpha) * 65_536)
        rules["static_bytes"][p] = NEVER if static_bytes is None else static_bytes
        if p in priorities:
            reserve_bytes = config.reserve_bytes if mine.reserve_bytes is None else mine.reserve_bytes
            rules["reserve_bytes"][p] = reserve_bytes
        rules["is_lossless"][p] = p in lossless
    credits = np.zeros(1, CREDITS)
    if profile.flow_control == "credits":
        credits = give_credits(config, topology, ports, priorities, frame_bytes)
        buffers = credits["buffer_blocks"].reshape(-1, PRIORITIES).max(axis=1) * BLOCK_BYTES
        for p in priorities:  # with all that credits allow in reserve, nothing is ever shared, paused or dropped
            reserve = np.zeros(topology.switches, np.int64)
            np.maximum.at(reserve, topology.port_switch[ports], buffers[ports])
            rules["reserve_bytes"][p] = reserve
            rules["is_lossless"][p] = 1
    ports_of = np.bincount(topology.port_switch[ports], minlength=topology.switches)
    reserved_bytes = ports_of * rules["reserve_bytes"].sum(axis=0)
    shared = zeros(2 * topology.switches, SHARED)
    free_bytes = config.buffer_bytes - switches["headroom_limit_bytes"] - reserved_bytes
    lossy_bytes = np.zeros_like(free_bytes)
    if config.lossy_fraction is not None:
        lossy_bytes = (free_bytes * config.lossy_fraction).astype(np.int64)
        rules["shared"] += rules["is_lossless"] == 0
    shared["limit_bytes"][0::2] = free_bytes - lossy_bytes
    shared["limit_bytes"][1::2] = lossy_bytes
    _check_room(config, profile.name, switches, reserved_bytes, frame_bytes)
    return Memory(switches, shared, rules, ingress, credits)


def give_credits(
    config: SwitchConfig, topology: Topology, ports: np.ndarray, priorities: tuple[int, ...], frame_bytes: int
) -> np.ndarray:
    """CREDITS rows at the start: each sender knows of the whole buffer at the far end of its line.

    Parameters
    ----------
    ports : int array
        Switch ports that are in use; the ports at the other end of their cables are as well.
    """
    if config.credit_buffer_bytes is not None and config.credit_buffer_bytes < frame_bytes:
        raise ConfigError(
            f"switch.credit_buffer_bytes: {config.credit_buffer_bytes} is less than a frame of {frame_bytes} bytes, "
            "which could never be sent; raise it"
        )
    rows = np.zeros(len(topology.port_names) * PRIORITIES, CREDITS).reshape(-1, PRIORITIES)
    for i in np.unique(np.concatenate([ports, ports ^ 1])).tolist():
        size_bytes = config.credit_buffer_bytes or credit_bound_bytes(
            frame_bytes, int(topology.rate_bps[i]), topology.one_way_ps(i), config.pipeline_latency_ps, len(priorities)
        )
        size_bytes = min(size_bytes, _MOST_BYTES)
        for p in priorities:
            for name in ("granted_blocks", "told_blocks", "buffer_blocks"):
                rows[name][i, p] = size_bytes // BLOCK_BYTES
            rows["limit_blocks"][i ^ 1, p] = size_bytes // BLOCK_BYTES
    return rows.ravel()


def credit_bound_bytes(
    frame_bytes: int, rate_bps: int, delay_ps: int, pipeline_ps: int = 0, priorities: int = 1
) -> int:
    """Buffer with which a line never waits for credits while the far port sends on as it receives.

    A block is paid for when its frame begins, and paid back when an update that was sent after the frame had left its
    buffer arrives: the frame on the line, propagation and pipeline, a frame of the same size that is ahead of it at the
    far port, one that is ahead of the update on the reverse line, the updates, propagation; and blocks that are
    counted whole.
    """
    in_time_ps = 2 * delay_ps + pipeline_ps
    flight_bytes = -(-in_time_ps * rate_bps // 8_000_000_000_000)
    size_bytes = 4 * frame_bytes + priorities * CREDIT_WIRE_BYTES + flight_bytes
    frames = -(-size_bytes // frame_bytes)
    return size_bytes + frames * BLOCK_BYTES


def _check_room(
    config: SwitchConfig, transport: str, switches: np.ndarray, reserved_bytes: np.ndarray, frame_bytes: int
) -> None:
    """Each pool needs room for two frames."""
    headroom_bytes, reserve_bytes = int(switches["headroom_limit_bytes"].max()), int(reserved_bytes.max())
    part = 1.0 if config.lossy_fraction is None else min(config.lossy_fraction, 1 - config.lossy_fraction)
    least = int((switches["headroom_limit_bytes"] + reserved_bytes).max()) + -int(-2 * frame_bytes // part)
    if config.buffer_bytes < least:
        parts = [f"{headroom_bytes} for PFC headroom"] if headroom_bytes else []
        parts += [f"{reserve_bytes} for reserves"] if reserve_bytes else []
        needs = f"{', '.join(parts)} and room for two frames" if parts else "two frames"
        needs += " in either pool" if config.lossy_fraction is not None else ""
        raise ConfigError(
            f"switch.buffer_bytes: {config.buffer_bytes} is too small for {transport}, which needs {needs}; raise it "
            f"to {least} at least"
        )


def _check_quanta(pause_quanta: int, frame_bytes: int, priorities: int) -> None:
    """A renewal goes out when half of a pause has passed, and may then wait for a frame and for other PFC frames."""
    least = (frame_bytes + (priorities - 1) * PFC_WIRE_BYTES) // 32 + 1
    if pause_quanta < least:
        raise ConfigError(
            f"switch.pause_quanta: {pause_quanta} end before a pause can be renewed behind a frame of {frame_bytes} "
            f"bytes; raise it to {least} at least, or set switch.headroom_bytes yourself"
        )


def share_lines(config: SwitchConfig, topology: Topology, frame_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    """DWRR rows, and int16 (ports,) with a bit for each priority that has a weight: at switches alone.

    The smallest weight is worth one of the largest frames a turn.
    """
    weights = {p: rules.weight for p, rules in config.priorities.items() if rules.weight is not None}
    weighted = np.zeros(len(topology.port_names), np.int16)
    if not weights:
        return np.zeros(1, DWRR), weighted
    weighted[topology.port_switch >= 0] = sum(1 << p for p in weights)
    rows = np.zeros(len(topology.port_names), DWRR)
    for p, weight in weights.items():
        rows["quantum_bytes"][:, p] = -(-frame_bytes * weight // min(weights.values()))
    return rows, weighted


def set_marking(ecn: EcnConfig | None, topology: Topology, seed: int, *, is_step: bool) -> np.ndarray:
    """MARKING rows, one a port; only those of switches mark. ``is_step``: by DCTCP's K where no threshold is given."""
    rows = no_marking(len(topology.port_names))
    if ecn is not None:
        for i in np.flatnonzero(topology.port_switch >= 0).tolist():
            kmin, kmax, pmax = ecn.thresholds(int(topology.rate_bps[i]))
            if is_step and ecn.kmin_bytes is None:
                kmin = kmax = step_threshold(int(topology.rate_bps[i]))
            turn = name_hash(seed, "ecn", topology.port_names[i]) & 0xFFFFFFFF
            rows[i] = (kmin, kmax, round(pmax * 2**32), turn, 0)
    return rows


def prepare_retries(retry_bytes: int | None, topology: Topology, frame_bytes: int) -> np.ndarray:
    """RETRY rows, one a port."""
    if retry_bytes is None:
        return np.zeros(1, RETRY)
    if retry_bytes < frame_bytes:
        raise ConfigError(
            f"link.retry_bytes: {retry_bytes} is less than a frame of {frame_bytes} bytes on the line; raise it"
        )
    rows = np.zeros(len(topology.port_names), RETRY)
    rows["replay_at_ps"] = NEVER
    rows["ack_head"] = rows["ack_tail"] = -1
    back = np.arange(len(rows)) ^ 1
    control_ps = -(-CONTROL_BYTES * 8 * PS_PER_S // topology.rate_bps[back])
    rows["return_ps"] = topology.delay_ps[back] + control_ps
    return rows
