"""What the flows of a fabric could do at best: the closed forms of :mod:`emulator.ideal` for its lines and frames."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from emulator import ideal
from emulator.framing import control_wire_bytes, framing_of, message_frames, mtu_of

if TYPE_CHECKING:
    from emulator.fabric import Fabric


def frames_of(fabric: Fabric, size_bytes: int) -> ideal.Frames:
    """Bytes on the line of the data frames of one of a fabric's messages."""
    transport, scenario = fabric.transport, fabric.scenario
    framing = framing_of(transport, scenario)
    profile = fabric.profile
    return message_frames(profile.protocol, mtu_of(transport, scenario), size_bytes, framing, profile.is_selective)


def hops_between(fabric: Fabric, src_nic: int, dst_nic: int) -> list[ideal.Hop]:
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
    hops, back = hops_between(fabric, src_nic, dst_nic), hops_between(fabric, dst_nic, src_nic)
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


def wire_bound_ps(fabric: Fabric) -> int | None:
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
        hops = hops_between(fabric, *nics)
        reach.append(message.start_ps + ideal.control_path_ps(hops[:-1], frames.first))
    last = hops[-1]
    first_ps = min(message.start_ps for message in fabric.messages)
    return min(reach) - first_ps + last.line_ps(total) + last.delay_ps
