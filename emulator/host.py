"""Hosts: flows that start, frames that arrive at a transport, and a NIC that pulls from its flows in turn.

One function per event, each a branch over the transports. A NIC holds no data frames: it asks a ready end for its
next one when the line is free, so a paused port costs no memory.
"""

from __future__ import annotations

from emulator.dcqcn import on_cnp, on_mark, rate_after, settle
from emulator.framing import frame_wire_bytes, is_data_frame, tcp_wire_bytes
from emulator.packet import ANSWER, CE, DATA, free_packet, take_packet
from emulator.roce import (
    CNP,
    SELECTIVE_REPEAT,
    roce_is_ready,
    roce_on_frame,
    roce_on_submit,
    roce_on_timeout,
    roce_poll,
)
from emulator.schedule import TIMER, push
from emulator.selective import selective_on_frame, selective_on_timeout, selective_poll
from emulator.tcp import tcp_is_ready, tcp_on_frame, tcp_on_submit, tcp_on_timeout, tcp_poll
from emulator.world import TCP, TTPOE
from ttpoe._jit import kernel
from ttpoe.fsm import State
from ttpoe.machine import next_payload_bytes, on_frame, on_open, on_read, on_submit, on_timeout, poll_payload, release
from ttpoe.state import CongestionControl
from ttpoe.units import NEVER, serialization_ps

_CLOSED = int(State.CLOSED)
_SWIFT = int(CongestionControl.SWIFT)


@kernel(inline=True)
def arm_timer(world, e):
    """Make sure that an event is due when end ``e``'s transport next wants one; later deadlines cost nothing."""
    end = world.ends[e]
    protocol = world.engine[0]["protocol"]
    if protocol == TTPOE:
        at_ps = world.links[e]["timer_at_ps"]
    elif protocol == TCP:
        at_ps = world.tcps[e]["timer_at_ps"]
    else:
        at_ps = world.qps[e]["timer_at_ps"]
    if at_ps < end["timer_pending_ps"]:
        end["timer_pending_ps"] = at_ps
        push(world, at_ps, TIMER, e, world.ports[end["port"]])


@kernel(inline=True)
def _is_ready(world, e):
    if world.engine[0]["protocol"] == TTPOE:
        pool = world.pools[world.ends[e]["host"]]
        return next_payload_bytes(world.links[e], pool, world.params[0], world.ring)
    if world.engine[0]["protocol"] == TCP:
        return tcp_is_ready(world.tcps[e], world.tcp_params[0], world.slots)
    return roce_is_ready(world.qps[e], world.roce_params[0])


@kernel(inline=True)
def _note_blocked(world, e):
    """Let end ``e``, which may not send, wait for room if nothing but its host's shared window forbids it."""
    end = world.ends[e]
    if end["is_blocked"] != 0:
        return
    unlimited = world.pools[len(world.pools) - 1]
    if next_payload_bytes(world.links[e], unlimited, world.params[0], world.ring) == 0:
        return
    port = world.ports[end["port"]]
    end["is_blocked"] = 1
    end["next_blocked"] = -1
    if port["blocked_head"] < 0:
        port["blocked_head"] = e
    else:
        world.ends[port["blocked_tail"]]["next_blocked"] = e
    port["blocked_tail"] = e


@kernel(inline=True)
def note_ready(world, e):
    """Put end ``e`` in its NIC's round if it has something to send; returns 1 if it joined."""
    end = world.ends[e]
    if end["is_ready"] != 0 or end["send_at_ps"] > world.engine[0]["now_ps"]:
        return 0
    if _is_ready(world, e) == 0:
        if world.engine[0]["is_sharing"] != 0:
            _note_blocked(world, e)
        return 0
    end["is_ready"] = 1
    end["next_ready"] = -1
    priority = int(end["priority"])
    queue = world.queues[priority, end["port"]]
    if queue["ready_head"] < 0:
        queue["ready_head"] = e
    else:
        world.ends[queue["ready_tail"]]["next_ready"] = e
    queue["ready_tail"] = e
    port = world.ports[end["port"]]
    port["waiting"] = int(port["waiting"]) | (1 << priority)
    return 1


@kernel(inline=True)
def wake_blocked(world, i):
    """Put the ends that waited longest for room in the shared window of port ``i``'s host back in the round.

    As many as fit; returns how many joined.
    """
    port = world.ports[i]
    joined = 0
    room = 0
    while port["blocked_head"] >= 0:
        e = int(port["blocked_head"])
        end = world.ends[e]
        if joined == 0:
            pool = world.pools[end["host"]]
            room = pool["limit_bytes"] - pool["held_bytes"]
        unlimited = world.pools[len(world.pools) - 1]
        length = next_payload_bytes(world.links[e], unlimited, world.params[0], world.ring)
        if length > room:
            break
        room -= length
        end["is_blocked"] = 0
        port["blocked_head"] = int(end["next_blocked"])
        joined += note_ready(world, e)
    return joined


@kernel(inline=True)
def make_packet(world, e, k):
    """A packet for row ``k`` of the transport's output, sent by end ``e``."""
    p = take_packet(world.engine[0], world.packets)
    packet = world.packets[p]
    end = world.ends[e]
    row = world.out[k]
    frame = world.frames[p]
    frame["opcode"] = row["opcode"]
    frame["vc"] = row["vc"]
    frame["tx_seq"] = row["tx_seq"]
    frame["rx_seq"] = row["rx_seq"]
    frame["payload_bytes"] = row["payload_bytes"]
    packet["end"] = e ^ 1
    packet["dst"] = end["peer_nic"]
    packet["entropy"] = end["entropy"]
    packet["cookie"] = p
    packet["in_port"] = -1
    opcode = int(row["opcode"])
    engine = world.engine[0]
    if engine["protocol"] == TCP:
        is_data = row["payload_bytes"] > 0
        packet["wire_bytes"] = tcp_wire_bytes(engine["framing"], row["payload_bytes"], row["rx_seq"], int(row["vc"]))
    else:
        is_data = is_data_frame(engine["protocol"], opcode)
        packet["wire_bytes"] = frame_wire_bytes(
            engine["protocol"], engine["framing"], opcode, row["payload_bytes"]
        )
    packet["kind"] = DATA if is_data else ANSWER
    if is_data:
        packet["priority"] = end["priority"]
        packet["ecn"] = world.engine[0]["data_ecn"]
    elif opcode == CNP and world.engine[0]["protocol"] != TCP:
        packet["priority"] = world.engine[0]["cnp_priority"]
    else:
        packet["priority"] = end["answer_priority"]
    return p


@kernel(inline=True)
def _push_wake(world, e, at_ps):
    """An event at which end ``e`` may send again, or sooner if its rate may grow before; its wait is then set anew."""
    at_ps = min(at_ps, max(world.rates[e]["increase_at_ps"], world.engine[0]["now_ps"] + 1))
    push(world, at_ps, TIMER, len(world.ends) + len(world.flows) + e, world.ports[world.ends[e]["port"]])


@kernel(inline=True)
def _pace(world, e, wire_bytes, now_ps):
    """Hold end ``e`` back for as long as a packet that it sends now takes at its rate.

    Returns 1 if that is longer than the packet takes on the line; the end must then leave the round.
    """
    end = world.ends[e]
    wait_ps = serialization_ps(wire_bytes, rate_after(world.rates[e], world.dcqcn[0], wire_bytes, now_ps))
    if wait_ps <= serialization_ps(wire_bytes, world.ports[end["port"]]["rate_bps"]):
        return 0
    end["send_at_ps"] = now_ps + wait_ps
    _push_wake(world, e, end["send_at_ps"])
    return 1


@kernel(inline=True)
def host_on_wake(world, e, now_ps):
    """End ``e`` may send, or its rate may have grown: what is left of its wait, in bytes, passes at the new rate."""
    end = world.ends[e]
    if end["send_at_ps"] <= now_ps or world.engine[0]["protocol"] == TTPOE:
        return
    rate = world.rates[e]
    left_bytes = ((end["send_at_ps"] - now_ps) * rate["paced_bps"] + 7_999_999_999_999) // 8_000_000_000_000
    settle(rate, world.dcqcn[0], now_ps)
    rate["paced_bps"] = rate["rate_bps"]
    end["send_at_ps"] = now_ps + serialization_ps(left_bytes, rate["rate_bps"])
    _push_wake(world, e, end["send_at_ps"])


@kernel(inline=True)
def _follow_pace(world, e, now_ps):
    """Hold end ``e`` back for as long as its link does, whose window may be less than a payload."""
    end = world.ends[e]
    at_ps = world.links[e]["pace_at_ps"]
    if at_ps > now_ps and at_ps != end["send_at_ps"]:
        push(world, at_ps, TIMER, len(world.ends) + len(world.flows) + e, world.ports[end["port"]])
    end["send_at_ps"] = at_ps


@kernel(inline=True)
def host_poll(world, i, queue, now_ps):
    """The next data packet of the ends in ``queue``'s round, or -1; ends with nothing to send leave the round."""
    while queue["ready_head"] >= 0:
        e = int(queue["ready_head"])
        end = world.ends[e]
        if world.engine[0]["protocol"] == TTPOE:
            n = poll_payload(
                world.links[e], world.ring, world.pools[end["host"]], world.params[0], now_ps, world.out, 0
            )
        elif world.engine[0]["protocol"] == TCP:
            n = tcp_poll(world.tcps[e], world.tcp_params[0], world.slots, now_ps, world.tcp_out, 0)
        elif world.roce_params[0]["recovery"] < SELECTIVE_REPEAT:
            n = roce_poll(world.qps[e], world.roce_params[0], now_ps, world.roce_out, 0)
        else:
            n = selective_poll(
                world.qps[e], world.selective[e], world.bits, world.roce_params[0], now_ps, world.roce_out, 0
            )
        queue["ready_head"] = int(end["next_ready"])
        if n == 0:
            end["is_ready"] = 0
            if world.engine[0]["is_sharing"] != 0:
                _note_blocked(world, e)
            continue
        arm_timer(world, e)
        p = make_packet(world, e, 0)
        if world.params[0]["congestion_control"] == _SWIFT and world.engine[0]["protocol"] == TTPOE:
            _follow_pace(world, e, now_ps)
            if end["send_at_ps"] > now_ps:
                end["is_ready"] = 0
                return p
        if world.engine[0]["is_paced"] != 0 and _pace(world, e, int(world.packets[p]["wire_bytes"]), now_ps) != 0:
            end["is_ready"] = 0
            return p
        end["next_ready"] = -1
        if queue["ready_head"] < 0:
            queue["ready_head"] = e
        else:
            world.ends[queue["ready_tail"]]["next_ready"] = e
        queue["ready_tail"] = e
        return p
    return -1


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
        n = on_frame(world.links[e], world.ring, pool, world.params[0], world.frames[p], now_ps, world.out, 0)
        if world.params[0]["congestion_control"] == _SWIFT:
            _follow_pace(world, e, now_ps)
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
            _follow_pace(world, e, now_ps)
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
