"""A port's queues and its line: what is sent next, how long it takes, and when it arrives.

Knows buffers only through the two calls of :mod:`emulator.buffer`, hosts only through :func:`emulator.nic.host_poll`.
"""

from __future__ import annotations

from emulator.buffer import ADMITTED_XOFF, PRIORITY_SHIFT, switch_on_departure
from emulator.credits import give_back, pay, take_update
from emulator.dwrr import choose_by_weight
from emulator.impair import enter_line, let_go_overdue, next_overdue_ps
from emulator.nic import host_poll
from emulator.packet import free_packet
from emulator.pfc import arm_port_timer, ask_resume, pause, take_pfc
from emulator.retry import may_send, next_ack_ps
from emulator.schedule import ARRIVAL, DEPARTURE, push
from emulator.series import sample
from emulator.tracing import record
from ttpoe._jit import kernel
from ttpoe.units import serialization_ps


@kernel(inline=True)
def kick(world, i):
    """Note that port ``i`` may have something to send; it is tried at the end of the event."""
    port = world.ports[i]
    if port["is_kicked"] == 0:
        port["is_kicked"] = 1
        engine = world.engine[0]
        world.kicks[engine["kick_count"]] = i
        engine["kick_count"] += 1


@kernel(inline=True)
def enqueue(world, i, p):
    """Append packet ``p`` to port ``i``'s queue of its priority."""
    packet = world.packets[p]
    priority = int(packet["priority"])
    queue = world.queues[priority, i]
    packet["next"] = -1
    if queue["head"] < 0:
        queue["head"] = p
    else:
        world.packets[queue["tail"]]["next"] = p
    queue["tail"] = p
    world.ports[i]["waiting"] = int(world.ports[i]["waiting"]) | (1 << priority)


@kernel(inline=True)
def leave_switch(world, port, queue, p, priority, now_ps):
    """Account for packet ``p``, taken off ``queue`` of ``port`` (PORT row of a switch); ask to resume if it may."""
    in_port = int(world.packets[p]["in_port"])
    size_bytes = int(world.packets[p]["wire_bytes"]) - world.engine[0]["line_only_bytes"]
    switch_index = int(port["switch"])
    rules = world.rules[priority, switch_index]
    ingress = world.ingress[priority, in_port]
    shared = world.shared[rules["shared"]]
    if switch_on_departure(world.switches[switch_index], shared, rules, ingress, queue, size_bytes) != 0:
        ask_resume(world, in_port, priority)
        kick(world, in_port)
    if world.engine[0]["is_credited"] != 0:
        row = world.credits[(in_port << PRIORITY_SHIFT) + priority]
        give_back(world.ports[in_port], row, priority, size_bytes)
        kick(world, in_port)
    if port["is_watched"] == priority + 1:
        sample(world.engine[0], world.series, queue["bytes"], now_ps)


@kernel(inline=True)
def take_head(world, port, queue, priority, now_ps):
    """Take the first packet off ``queue`` of ``port`` (PORT row of a switch), with its bytes."""
    p = int(queue["head"])
    queue["head"] = int(world.packets[p]["next"])
    if queue["head"] < 0:
        port["waiting"] = int(port["waiting"]) & ~(1 << priority)
    leave_switch(world, port, queue, p, priority, now_ps)
    return p


@kernel(inline=True)
def drop(world, switch_index, queue, p, verdict):
    """Count packet ``p``, which was to leave by ``queue``, as dropped for the cause of a verdict, and free it."""
    engine = world.engine[0]
    queue["drops"] += 1
    engine["dropped"] += 1
    world.switches[switch_index]["drops"][verdict - ADMITTED_XOFF - 1] += 1
    world.flows[int(world.packets[p]["end"]) >> 1]["drops"] += 1
    free_packet(engine, world.packets, p)


@kernel(inline=True)
def _take_next(world, i, now_ps):
    """The packet that port ``i`` sends now, or -1: PFC, the highest strict priority that may send, or by weight."""
    port = world.ports[i]
    packets = world.packets
    engine = world.engine[0]
    is_credited = engine["is_credited"] != 0
    if port["pfc_due"] != 0:
        p = take_update(engine, port, world.credits, packets, i) if is_credited else take_pfc(world, i, now_ps)
        if p >= 0:
            return p
    eligible = int(port["waiting"]) & ~int(port["paused"])
    weighted = int(port["weighted"])
    priority = 7
    while eligible != 0:
        strict = eligible & ~weighted
        if strict != 0:
            while (strict >> priority) & 1 == 0:
                priority -= 1
        else:
            priority = choose_by_weight(world.dwrr[i], world.queues, packets, i, eligible)
        queue = world.queues[priority, i]
        p = int(queue["head"])
        if p < 0:
            p = host_poll(world, i, queue, now_ps)
            if p >= 0:
                packets[p]["next"] = -1
        if p >= 0:
            if is_credited:
                size_bytes = int(packets[p]["wire_bytes"]) - engine["line_only_bytes"]
                if pay(world.credits[(i << PRIORITY_SHIFT) + priority], size_bytes) == 0:
                    pause(world, i, priority, now_ps)
                    if queue["head"] < 0:
                        queue["head"] = queue["tail"] = p
                    eligible &= ~(1 << priority)
                    continue
            queue["head"] = int(packets[p]["next"])
            if port["switch"] >= 0:
                leave_switch(world, port, queue, p, priority, now_ps)
        if queue["head"] < 0 and queue["ready_head"] < 0:
            port["waiting"] = int(port["waiting"]) & ~(1 << priority)
        if p >= 0:
            return p
        eligible &= ~(1 << priority)
    return -1


@kernel(inline=True)
def _put_on_line(world, i, first, last):
    """Append a chain of packets to port ``i``'s line; none arrives before those that are on it."""
    port = world.ports[i]
    if port["line_head"] < 0:
        port["line_head"] = first
        push(world, world.packets[first]["arrive_ps"], ARRIVAL, i, port)
    else:
        world.packets[port["line_tail"]]["next"] = first
    port["line_tail"] = last


@kernel(inline=True)
def let_go(world, i, now_ps):
    """Put the frames that port ``i``'s line has held back for too long on it."""
    row = world.impairments[world.ports[i]["impairment"]]
    first = let_go_overdue(row, world.packets, now_ps)
    if first >= 0:
        _put_on_line(world, i, first, row["chain_tail"])
    arm_port_timer(world, i, next_overdue_ps(row, world.packets))


@kernel(inline=True)
def start_if_idle(world, i, now_ps):
    """Send the next frame of port ``i`` if its line is free, or make sure that it is tried when the line is."""
    port = world.ports[i]
    if port["is_departure_pending"] != 0:
        return
    if port["busy_until_ps"] > now_ps:
        port["is_departure_pending"] = 1
        push(world, port["busy_until_ps"], DEPARTURE, i, port)
        return
    has_retry = world.engine[0]["retry_bytes"] != 0
    if has_retry and may_send(world.engine[0], world.retries[i], world.packets, now_ps) == 0:
        arm_port_timer(world, i, next_ack_ps(world.retries[i], world.packets))
        return
    p = _take_next(world, i, now_ps)
    if p < 0:
        return
    packet = world.packets[p]
    size = int(packet["wire_bytes"])
    if port["ps_per_byte"] != 0:
        free_at_ps = now_ps + size * port["ps_per_byte"]
    else:
        free_at_ps = now_ps + serialization_ps(size, port["rate_bps"])
    port["busy_until_ps"] = free_at_ps
    arrive_ps = free_at_ps + port["delay_ps"]
    packet["arrive_ps"] = arrive_ps
    packet["next"] = -1
    port["tx_frames"] += 1
    port["tx_bytes"] += size
    if port["is_captured"] != 0:
        record(world, i, p, 1, now_ps)
    if has_retry:
        world.retries[i]["held_bytes"] += size
    last = p
    if port["impairment"] >= 0:
        row = world.impairments[port["impairment"]]
        n = port["tx_frames"]
        if has_retry:
            n += world.retries[i]["frames_replayed"]
        p = enter_line(world.engine[0], row, world.ordinals, world.packets, world.frames, p, n, now_ps)
        last = row["chain_tail"]
        arm_port_timer(world, i, next_overdue_ps(row, world.packets))
    if p >= 0:
        _put_on_line(world, i, p, last)
    if port["pfc_due"] != 0 or (int(port["waiting"]) & ~int(port["paused"])) != 0:
        port["is_departure_pending"] = 1
        push(world, free_at_ps, DEPARTURE, i, port)


@kernel(inline=True)
def take_arrival(world, i):
    """Take the head off port ``i``'s line and schedule the next one; returns the packet."""
    port = world.ports[i]
    p = int(port["line_head"])
    after = int(world.packets[p]["next"])
    port["line_head"] = after
    if after >= 0:
        push(world, world.packets[after]["arrive_ps"], ARRIVAL, i, port)
    return p
