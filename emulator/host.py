"""Hosts: flows that start, frames that arrive at a transport, timers, and what that means for flows.

One function per event, each a branch over the transports; what is sent is pulled by :mod:`emulator.nic`.
"""

from __future__ import annotations

from emulator.dcqcn import on_cnp, on_mark
from emulator.nic import arm_timer, follow_pace
from emulator.packet import CE, free_packet
from emulator.roce import CNP, SELECTIVE_REPEAT, roce_on_frame, roce_on_submit, roce_on_timeout
from emulator.schedule import TIMER, push
from emulator.selective import selective_on_frame, selective_on_timeout
from emulator.tcp import tcp_on_frame, tcp_on_submit, tcp_on_timeout
from emulator.world import TCP, TTPOE
from ttpoe._jit import kernel
from ttpoe.fsm import State
from ttpoe.machine import on_frame, on_open, on_read, on_submit, on_timeout, release
from ttpoe.state import CongestionControl, Mark
from ttpoe.units import NEVER

_CLOSED = int(State.CLOSED)
_SWIFT = int(CongestionControl.SWIFT)
_CE = int(Mark.CE)


@kernel
def start_dependents(world, e, now_ps):
    """End ``e`` is done: flows that waited for nothing else start, after their delays."""
    for k in range(int(world.dependents_first[e]), int(world.dependents_first[e + 1])):
        f = int(world.dependents[k])
        flow = world.flows[f]
        flow["unmet"] -= 1
        if flow["unmet"] == 0:
            flow["start_ps"] = max(now_ps + flow["delay_ps"], flow["start_ps"])
            push(world, flow["start_ps"], TIMER, len(world.ends) + f, world.ports[world.ends[2 * f]["port"]])


@kernel(inline=True)
def _note_done(world, e, now_ps):
    if world.dependents_first[e] != world.dependents_first[e + 1]:
        start_dependents(world, e, now_ps)


@kernel(inline=True)
def _note_progress(world, e, now_ps):
    """Stamp the flow when its last byte is in order at the receiver, or acknowledged at the sender, or has failed."""
    flow = world.flows[e >> 1]
    if world.engine[0]["protocol"] == TTPOE:
        failure = world.links[e]["failure"]
        done_bytes = world.links[e]["acked_bytes"] if e & 1 == 0 else world.links[e]["rx_bytes"]
    elif world.engine[0]["protocol"] == TCP:
        tcp = world.tcps[e]
        failure = tcp["failure"]
        if e & 1:
            done_bytes = tcp["rx_bytes"]
        else:
            done_bytes = tcp["message_bytes"] if tcp["una"] == tcp["packets"] else 0
    else:
        qp = world.qps[e]
        failure = qp["failure"]
        if e & 1:
            done_bytes = qp["rx_bytes"]
        else:
            done_bytes = qp["message_bytes"] if qp["una"] == qp["packets"] else 0
    if done_bytes >= flow["size_bytes"]:
        if e & 1:
            if flow["finished_rx_ps"] == NEVER:
                flow["finished_rx_ps"] = now_ps
                _note_done(world, e, now_ps)
        elif flow["finished_tx_ps"] == NEVER:
            flow["finished_tx_ps"] = now_ps
            _note_done(world, e, now_ps)
    if failure != 0 and flow["failure"] == 0:
        flow["failure"] = failure
    if flow["is_over"] == 0 and (
        flow["failure"] != 0 or (flow["finished_rx_ps"] != NEVER and flow["finished_tx_ps"] != NEVER)
    ):
        flow["is_over"] = 1
        world.engine[0]["unfinished"] -= 1


@kernel
def _drain(engine, end, link, now_ps):
    """Read what end ``end``'s reader could take until now; all rows but ``engine`` are modified.

    The reader is only looked at when a frame arrives, since nothing else depends on it; counted from when it last had
    nothing to read, so that nothing is rounded away.
    """
    elapsed_ps = now_ps - end["drain_from_ps"]
    periods = elapsed_ps // engine["drain_ps"]
    rest_ps = elapsed_ps - periods * engine["drain_ps"]
    read_bytes = end["drain_base_bytes"] + periods * engine["drain_bytes"]
    read_bytes += rest_ps * engine["drain_bytes"] // engine["drain_ps"]
    if read_bytes >= link["rx_bytes"]:
        read_bytes = link["rx_bytes"]
        end["drain_from_ps"] = now_ps
        end["drain_base_bytes"] = read_bytes
    on_read(link, read_bytes - link["rx_read_bytes"])


@kernel(inline=True)
def _roce_on_packet(world, e, p, now_ps):
    """Give packet ``p`` to queue pair ``e``; returns how many answers are in ``world.out``."""
    frame = world.roce_frames[p]
    if int(frame["opcode"]) == CNP:
        on_cnp(world.rates[e], world.dcqcn[0], now_ps)
        return 0
    qp, params = world.qps[e], world.roce_params[0]
    if params["recovery"] < SELECTIVE_REPEAT:
        n = roce_on_frame(qp, params, frame, now_ps, world.roce_out, 0)
    else:
        n = selective_on_frame(qp, world.selective[e], world.bits, params, frame, now_ps, world.roce_out, 0)
    if int(world.packets[p]["ecn"]) == CE and world.engine[0]["is_notifying"] != 0:
        n = on_mark(world.rates[e], world.dcqcn[0], now_ps, world.roce_out, n)
    return n


@kernel(inline=True)
def host_on_frame(world, p, now_ps):
    """Give packet ``p`` to the transport it is for and free it; answers are left in ``world.out``.

    Returns
    -------
    int64
        Number of answers, to be turned into packets and queued by the caller.
    """
    e = int(world.packets[p]["end"])
    if world.engine[0]["protocol"] == TTPOE:
        if world.engine[0]["drain_bytes"] != 0:
            _drain(world.engine[0], world.ends[e], world.links[e], now_ps)
        pool = world.pools[world.ends[e]["host"]]
        rx_bytes = world.links[e]["rx_bytes"]
        if int(world.packets[p]["ecn"]) == CE:
            world.frames[p]["marks"] = int(world.frames[p]["marks"]) | _CE
        n = on_frame(world.links[e], world.ring, pool, world.params[0], world.frames[p], now_ps, world.out, 0)
        if world.params[0]["congestion_control"] == _SWIFT:
            follow_pace(world, e, now_ps)
        if world.packets[p]["fate"] != 0 and world.links[e]["rx_bytes"] != rx_bytes:
            world.flows[e >> 1]["corrupted"] += 1  # a checksum would have told; TTPoE has none
    elif world.engine[0]["protocol"] == TCP:
        n = tcp_on_frame(
            world.tcps[e], world.tcp_params[0], world.slots, world.received, world.blocks, world.tcp_frames[p],
            int(world.packets[p]["ecn"]), now_ps, world.tcp_out, 0,
        )  # fmt: skip
    else:
        n = _roce_on_packet(world, e, p, now_ps)
    world.engine[0]["delivered"] += 1
    free_packet(world.engine[0], world.packets, p)
    _note_progress(world, e, now_ps)
    arm_timer(world, e)
    return n


@kernel(inline=True)
def host_on_timer(world, e, now_ps):
    """End ``e``'s timer event: react if it is due, arm the next; returns how many answers are in ``world.out``."""
    end = world.ends[e]
    if now_ps < end["timer_pending_ps"]:
        return 0
    end["timer_pending_ps"] = NEVER
    n = 0
    if world.engine[0]["protocol"] == TTPOE:
        n = on_timeout(world.links[e], world.params[0], now_ps, world.out, 0)
        release(world.links[e], world.pools[end["host"]])
        if world.params[0]["congestion_control"] == _SWIFT:
            follow_pace(world, e, now_ps)
    elif world.engine[0]["protocol"] == TCP:
        n = tcp_on_timeout(world.tcps[e], world.tcp_params[0], world.slots, world.blocks, now_ps, world.tcp_out, 0)
    elif world.roce_params[0]["recovery"] < SELECTIVE_REPEAT:
        roce_on_timeout(world.qps[e], world.roce_params[0], now_ps)
    else:
        n = selective_on_timeout(
            world.qps[e], world.selective[e], world.roce_params[0], now_ps, world.roce_out, 0
        )
    _note_progress(world, e, now_ps)
    arm_timer(world, e)
    return n


@kernel(inline=True)
def host_start_flow(world, f, now_ps):
    """Flow ``f`` is submitted at its sender; answers are left in ``world.out``; returns how many."""
    e = 2 * f
    size_bytes = world.flows[f]["size_bytes"]
    n = 0
    if world.flows[f]["is_over"] != 0:  # its host failed and is not back
        return n
    if world.engine[0]["protocol"] == TTPOE:
        if world.links[e]["state"] == _CLOSED:
            n = on_open(world.links[e], now_ps, world.out, 0)
        on_submit(world.links[e], size_bytes)
    elif world.engine[0]["protocol"] == TCP:
        tcp_on_submit(world.tcps[e], world.tcp_params[0], size_bytes)
    else:
        roce_on_submit(world.qps[e], world.roce_params[0], size_bytes)
    arm_timer(world, e)
    return n
