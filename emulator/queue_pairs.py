"""The arrays of RoCE's queue pairs, from a fabric about to run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from emulator import dcqcn, ideal, roce, selective
from emulator.config import ConfigError
from emulator.framing import control_wire_bytes, data_wire_bytes
from emulator.roce_config import DcqcnConfig
from emulator.rows import zeros
from emulator.workloads import name_hash
from ttpoe import units

if TYPE_CHECKING:
    from emulator.fabric import Fabric


def build_roce(fabric: Fabric, ends: np.ndarray, ports: np.ndarray) -> dict[str, np.ndarray]:
    """Fields of the World: queue pairs, what they do about loss, and their rates; single rows where not used."""
    scenario, profile = fabric.scenario, fabric.profile
    config = scenario.roce
    params = np.zeros(1, roce.ROCE_PARAMS)
    row = params[0]
    row["mtu_bytes"], row["rto_ps"], row["rto_low_ps"] = config.mtu_bytes, config.rto_ps, config.rto_ps
    row["retry_limit"], row["ack_every_packets"] = config.retry_limit, config.ack_every_packets
    row["recovery"] = roce.RECOVERIES[profile.recovery]
    row["reorder_ps"] = scenario.selective.reorder_ps
    if profile.recovery == "selective":
        row["rto_ps"], row["rto_low_ps"] = scenario.selective.rto_high_ps, scenario.selective.rto_low_ps
        row["few_packets"] = scenario.selective.few_packets
    arrays = {
        "qps": np.zeros(1, roce.QP), "roce_params": params,
        "selective": np.zeros(1, selective.SELECTIVE), "bits": np.zeros(1, np.int64),
        "rates": np.zeros(1, dcqcn.RATE), "dcqcn": make_dcqcn_params(scenario.dcqcn),
    }  # fmt: skip
    if not profile.is_roce:
        return arrays
    qps = arrays["qps"] = zeros(len(ends), roce.QP)
    psns = [name_hash(fabric.seed, "psn", message.name) & roce.PSN_MASK for message in fabric.messages]
    qps["initial_psn"] = np.repeat(psns, 2)
    qps["timer_at_ps"] = units.NEVER
    qps["window_packets"] = np.repeat(_window_packets(fabric, ports), 2)
    if profile.is_selective:
        largest = max(message.size_bytes for message in fabric.messages)
        in_flight = min(int(qps["window_packets"].max()), -(-largest // config.mtu_bytes))
        slots = max(1 << (in_flight - 1).bit_length(), 32)
        rows = arrays["selective"] = zeros(len(ends), selective.SELECTIVE)
        rows["first_word"] = np.arange(len(ends)) * (slots >> selective.WORD_SHIFT)
        rows["mask"] = slots - 1
        arrays["bits"] = np.zeros(len(ends) * slots >> selective.WORD_SHIFT, np.int64)
    if fabric.is_paced:
        rates = arrays["rates"] = zeros(len(ends), dcqcn.RATE)
        line_bps = ports["rate_bps"][ends["port"]]
        rates["line_bps"] = np.minimum(line_bps, config.rate_bps or units.NEVER)
        rates["rate_bps"] = rates["target_bps"] = rates["line_bps"]
        rates["increase_at_ps"] = rates["decrease_at_ps"] = units.NEVER
    return arrays


def _window_packets(fabric: Fabric, ports: np.ndarray) -> np.ndarray:
    """Packets that each queue pair may have unacknowledged, int64 (flows,).

    A product of bandwidth and delay is that of the longest path, with which one flow alone still fills its line: the
    packets of the slowest line on a queue pair's own way while one goes the longest way and is acknowledged.
    """
    flows = len(fabric.messages)
    config = fabric.scenario.roce
    most = selective.MAX_WINDOW_PACKETS if fabric.profile.is_selective else roce.MAX_OUTSTANDING_PACKETS
    if config.window_bytes is not None:
        packets = config.window_bytes // config.mtu_bytes
        if packets > most and fabric.profile.is_selective:
            raise ConfigError(
                f"roce.window_bytes: {fabric.transport} keeps track of {most} packets; lower it to "
                f"{most * config.mtu_bytes} at most"
            )
        return np.full(flows, min(packets, most))
    if fabric.profile.window != "bdp":
        return np.full(flows, most)
    frame = data_wire_bytes(fabric.transport, fabric.scenario)
    ack = control_wire_bytes(fabric.transport, fabric.scenario)
    longest_ps = 0
    slowest_ps: dict[tuple[int, int], int] = {}
    for nics in {(src, dst) for src, dst in fabric.flow_nics.tolist()}:
        way = fabric.topology.path(*nics)
        hops = [ideal.Hop(int(ports[i]["rate_bps"]), int(ports[i]["delay_ps"])) for i in way]
        back = [ideal.Hop(int(ports[i ^ 1]["rate_bps"]), int(ports[i ^ 1]["delay_ps"])) for i in reversed(way)]
        longest_ps = max(longest_ps, ideal.control_path_ps(hops, frame) + ideal.control_path_ps(back, ack))
        slowest_ps[nics] = max((hop.line_ps(frame) for hop in hops), default=1)
    slowest = np.array([slowest_ps[src, dst] for src, dst in fabric.flow_nics.tolist()], np.int64)
    return np.clip(-(-longest_ps // slowest), config.ack_every_packets, most)


def make_dcqcn_params(config: DcqcnConfig) -> np.ndarray:
    """DCQCN_PARAMS, shape (1,)."""
    params = np.zeros(1, dcqcn.DCQCN_PARAMS)
    for name in (
        "alpha_period_ps", "cnp_gap_ps", "decrease_gap_ps", "increase_period_ps", "increase_bytes", "threshold",
        "additive_bps", "hyper_bps", "min_rate_bps", "is_target_clamped", "is_alpha_at_cnp",
    ):  # fmt: skip
        params[name] = config.value(name)
    params["gain_q20"] = max(round(config.value("gain") * 2**20), 1)
    params["keep_q30"] = (2**20 - params["gain_q20"]) << 10
    params["initial_alpha_q20"] = round(config.value("initial_alpha") * 2**20)
    return params
