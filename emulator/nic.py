"""A host's NIC: it pulls from the ends that are ready in turn, and holds back those that pace themselves.

A NIC holds no data frames: it asks a ready end for its next one when the line is free, so a paused port costs no
memory.
"""

from __future__ import annotations

from emulator.dcqcn import rate_after, settle
from emulator.framing import frame_wire_bytes, is_data_frame, tcp_wire_bytes
from emulator.packet import ANSWER, DATA, take_packet
from emulator.roce import CNP, SELECTIVE_REPEAT, roce_is_ready, roce_poll
from emulator.schedule import TIMER, push
from emulator.selective import selective_poll
from emulator.tcp import tcp_is_ready, tcp_poll
from emulator.world import TCP, TTPOE
from ttpoe._jit import kernel
from ttpoe.machine import next_payload_bytes, poll_payload
from ttpoe.state import CongestionControl
from ttpoe.units import serialization_ps

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
    return roce_is_ready(world.qps[e])


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
def _join_round(world, queue, e):
    """Put end ``e`` last in the round of ``queue``."""
    world.ends[e]["next_ready"] = -1
    if queue["ready_head"] < 0:
        queue["ready_head"] = e
    else:
        world.ends[queue["ready_tail"]]["next_ready"] = e
    queue["ready_tail"] = e


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
    priority = int(end["priority"])
    _join_round(world, world.queues[priority, end["port"]], e)
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
    frame["marks"] = row["marks"]
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
def follow_pace(world, e, now_ps):
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
            follow_pace(world, e, now_ps)
            if end["send_at_ps"] > now_ps:
                end["is_ready"] = 0
                return p
        if world.engine[0]["is_paced"] != 0 and _pace(world, e, int(world.packets[p]["wire_bytes"]), now_ps) != 0:
            end["is_ready"] = 0
            return p
        _join_round(world, queue, e)
        return p
    return -1
