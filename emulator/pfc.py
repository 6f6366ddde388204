"""Priority flow control (IEEE 802.1Qbb): frames that pause and resume, quanta that run out, pauses that are renewed.

``quanta`` are times of 512 bits at the port's rate. A frame that is being sent when a pause arrives is finished. A
port tells its peer one priority a frame, ahead of all else, and what holds when the line is free; it renews a pause
when half of it has passed.
"""

from __future__ import annotations

from emulator.buffer import PRIORITIES
from emulator.packet import PFC, free_packet, take_packet
from emulator.schedule import LINK_STATE, push
from emulator.series import sample_paused
from ttpoe._jit import kernel
from ttpoe.units import NEVER

PFC_WIRE_BYTES = 60 + 4 + 20


@kernel(inline=True)
def arm_port_timer(world, i, at_ps):
    """Have :func:`on_port_timer` called for port ``i`` at ``at_ps`` or earlier."""
    port = world.ports[i]
    if at_ps < port["timer_pending_ps"]:
        port["timer_pending_ps"] = at_ps
        push(world, at_ps, LINK_STATE, i, port)


@kernel(inline=True)
def pause_ps(port, quanta):
    """How long ``quanta`` are at the port's rate, rounded up to a picosecond."""
    return quanta * port["quantum_ps"] + (quanta * port["quantum_rest"] + port["rate_bps"] - 1) // port["rate_bps"]


@kernel(inline=True)
def ask_pause(world, i, priority):
    """Port ``i``'s peer is to pause ``priority``. The caller kicks the port."""
    port = world.ports[i]
    port["xoff"] = int(port["xoff"]) | (1 << priority)
    port["pfc_due"] = int(port["pfc_due"]) | (1 << priority)
    world.ingress[priority, i]["refresh_at_ps"] = NEVER


@kernel(inline=True)
def ask_resume(world, i, priority):
    """Port ``i``'s peer may send ``priority`` again. The caller kicks the port."""
    port = world.ports[i]
    port["xoff"] = int(port["xoff"]) & ~(1 << priority)
    port["pfc_due"] = int(port["pfc_due"]) | (1 << priority)


@kernel
def _next_due(port):
    """Take the next priority of ``port["pfc_due"]`` that the peer must hear of, in turn; or -1.

    What changed and changed back before the line was free is not told, so at most one frame a priority waits.
    """
    while port["pfc_due"] != 0:
        due = int(port["pfc_due"])
        later = due & ~((2 << int(port["pfc_last"])) - 1)
        if later == 0:
            later = due
        priority = 0
        while (later >> priority) & 1 == 0:
            priority += 1
        port["pfc_due"] = due & ~(1 << priority)
        if ((int(port["xoff"]) | int(port["told_xoff"])) >> priority) & 1:
            port["pfc_last"] = priority
            return priority
    return -1


@kernel(inline=True)
def take_pfc(world, i, now_ps):
    """The PFC frame that port ``i`` sends now, or -1: it pauses for the configured quanta, or resumes with 0."""
    engine = world.engine[0]
    port = world.ports[i]
    priority = _next_due(port)
    if priority < 0:
        return -1
    bit = 1 << priority
    quanta = 0
    if int(port["xoff"]) & bit:
        quanta = engine["pfc_quanta"]
        ingress = world.ingress[priority, i]
        if int(port["told_xoff"]) & bit == 0:
            ingress["xoff_count"] += 1
        port["told_xoff"] = int(port["told_xoff"]) | bit
        ingress["refresh_at_ps"] = now_ps + pause_ps(port, quanta) // 2
        arm_port_timer(world, i, ingress["refresh_at_ps"])
    else:
        port["told_xoff"] = int(port["told_xoff"]) & ~bit
    p = take_packet(engine, world.packets)
    packet = world.packets[p]
    packet["kind"] = PFC
    packet["priority"] = priority
    packet["cookie"] = quanta
    packet["wire_bytes"] = PFC_WIRE_BYTES
    packet["end"] = -1
    packet["dst"] = -1
    engine["pfc_frames"] += 1
    return p


@kernel(inline=True)
def resume(world, i, priority, now_ps):
    """Port ``i`` may send ``priority`` again. The caller kicks the port."""
    port = world.ports[i]
    queue = world.queues[priority, i]
    port["paused"] = int(port["paused"]) & ~(1 << priority)
    queue["paused_ps"] += now_ps - queue["paused_since_ps"]
    queue["pause_until_ps"] = NEVER
    if (int(port["storm"]) >> priority) & 1:
        queue["paused_since_ps"] = now_ps
        arm_port_timer(world, i, now_ps + world.engine[0]["watchdog_restore_ps"])
    engine = world.engine[0]
    engine["paused_count"] -= 1
    sample_paused(engine, world.series, now_ps)


@kernel(inline=True)
def pause(world, i, priority, now_ps):
    """Port ``i`` may not send ``priority`` from now on."""
    engine = world.engine[0]
    port = world.ports[i]
    port["paused"] = int(port["paused"]) | (1 << priority)
    world.queues[priority, i]["paused_since_ps"] = now_ps
    engine["paused_count"] += 1
    sample_paused(engine, world.series, now_ps)


@kernel(inline=True)
def pause_for(world, i, priority, quanta, now_ps):
    """Port ``i`` may not send ``priority`` for so many quanta from now on."""
    port = world.ports[i]
    if (int(port["paused"]) >> priority) & 1 == 0:
        pause(world, i, priority, now_ps)
        arm_port_timer(world, i, now_ps + world.engine[0]["watchdog_detect_ps"])
    until_ps = now_ps + pause_ps(port, quanta)
    world.queues[priority, i]["pause_until_ps"] = until_ps
    arm_port_timer(world, i, until_ps)


@kernel(inline=True)
def take_effect(world, i, p, now_ps):
    """A PFC frame received by port ``i`` takes effect on its sending side; frees packet ``p``."""
    engine = world.engine[0]
    port = world.ports[i]
    priority = int(world.packets[p]["priority"])
    quanta = world.packets[p]["cookie"]
    free_packet(engine, world.packets, p)
    engine["delivered"] += 1
    if quanta == 0:
        if (int(port["paused"]) >> priority) & 1:
            resume(world, i, priority, now_ps)
        return
    pause_for(world, i, priority, quanta, now_ps)


@kernel(inline=True)
def on_pfc_frame(world, i, p, now_ps):
    """Port ``i`` received PFC frame ``p``: it takes effect after the reaction delay. Returns 1 if it did at once."""
    engine = world.engine[0]
    if engine["pause_reaction_ps"] == 0:
        take_effect(world, i, p, now_ps)
        return 1
    port = world.ports[i]
    packet = world.packets[p]
    packet["next"] = -1
    packet["arrive_ps"] = now_ps + engine["pause_reaction_ps"]
    if port["react_head"] < 0:
        port["react_head"] = p
        arm_port_timer(world, i, packet["arrive_ps"])
    else:
        world.packets[port["react_tail"]]["next"] = p
    port["react_tail"] = p
    return 0


@kernel(inline=True)
def on_port_timer(world, i, now_ps):
    """What is due at port ``i``: pauses that take effect or expire, XOFFs to renew; arms the next. Caller kicks."""
    port = world.ports[i]
    if now_ps < port["timer_pending_ps"]:
        return
    port["timer_pending_ps"] = NEVER
    while port["react_head"] >= 0 and world.packets[port["react_head"]]["arrive_ps"] <= now_ps:
        p = int(port["react_head"])
        port["react_head"] = int(world.packets[p]["next"])
        take_effect(world, i, p, now_ps)
    next_ps = port["stuck_until_ps"]
    if next_ps <= now_ps:
        port["stuck_until_ps"] = next_ps = NEVER
        for priority in range(PRIORITIES):
            if (int(port["xoff"]) >> priority) & 1:
                ask_resume(world, i, priority)
    if port["react_head"] >= 0:
        next_ps = min(next_ps, world.packets[port["react_head"]]["arrive_ps"])
    for priority in range(PRIORITIES):
        queue, ingress = world.queues[priority, i], world.ingress[priority, i]
        if (int(port["paused"]) >> priority) & 1:
            if queue["pause_until_ps"] <= now_ps:
                resume(world, i, priority, now_ps)
            else:
                next_ps = min(next_ps, queue["pause_until_ps"])
        if (int(port["xoff"]) >> priority) & 1:
            if ingress["refresh_at_ps"] <= now_ps:
                ask_pause(world, i, priority)
            next_ps = min(next_ps, ingress["refresh_at_ps"])
    if next_ps != NEVER:
        arm_port_timer(world, i, next_ps)
