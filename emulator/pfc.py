"""Priority flow control (IEEE 802.1Qbb): frames that pause and resume, quanta that run out, pauses that are renewed.

``quanta`` are times of 512 bits at the port's rate. A frame that is being sent when a pause arrives is finished.
"""

from __future__ import annotations

from emulator.buffer import PRIORITIES, PRIORITY_SHIFT
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


@kernel
def send_pfc(world, i, priority, quanta, now_ps):
    """Queue a PFC frame on port ``i``: pause the peer's ``priority`` for ``quanta``, or resume it with 0.

    The frame goes ahead of all others, after the one being sent. The caller kicks the port.
    """
    engine = world.engine[0]
    port = world.ports[i]
    p = take_packet(engine, world.packets)
    packet = world.packets[p]
    packet["kind"] = PFC
    packet["priority"] = priority
    packet["cookie"] = quanta
    packet["wire_bytes"] = PFC_WIRE_BYTES
    packet["end"] = -1
    packet["dst"] = -1
    packet["next"] = -1
    if port["control_head"] < 0:
        port["control_head"] = p
    else:
        world.packets[port["control_tail"]]["next"] = p
    port["control_tail"] = p
    engine["pfc_frames"] += 1
    if quanta != 0:
        port["xoff"] = int(port["xoff"]) | (1 << priority)
        refresh_at_ps = now_ps + (quanta * port["quantum_ps"]) // 2
        world.ingress[(i << PRIORITY_SHIFT) + priority]["refresh_at_ps"] = refresh_at_ps
        arm_port_timer(world, i, refresh_at_ps)
    else:
        port["xoff"] = int(port["xoff"]) & ~(1 << priority)


@kernel(inline=True)
def _resume(world, i, priority, now_ps):
    port = world.ports[i]
    queue = world.queues[(i << PRIORITY_SHIFT) + priority]
    port["paused"] = int(port["paused"]) & ~(1 << priority)
    queue["paused_ps"] += now_ps - queue["paused_since_ps"]
    queue["pause_until_ps"] = NEVER
    engine = world.engine[0]
    engine["paused_count"] -= 1
    sample_paused(engine, world.series, now_ps)


@kernel
def take_effect(world, i, p, now_ps):
    """A PFC frame received by port ``i`` takes effect on its sending side; frees packet ``p``."""
    engine = world.engine[0]
    port = world.ports[i]
    priority = int(world.packets[p]["priority"])
    quanta = world.packets[p]["cookie"]
    free_packet(engine, world.packets, p)
    engine["delivered"] += 1
    queue = world.queues[(i << PRIORITY_SHIFT) + priority]
    is_paused = (int(port["paused"]) >> priority) & 1
    if quanta == 0:
        if is_paused != 0:
            _resume(world, i, priority, now_ps)
        return
    if is_paused == 0:
        port["paused"] = int(port["paused"]) | (1 << priority)
        queue["paused_since_ps"] = now_ps
        engine["paused_count"] += 1
        sample_paused(engine, world.series, now_ps)
    queue["pause_until_ps"] = now_ps + quanta * port["quantum_ps"]
    arm_port_timer(world, i, queue["pause_until_ps"])


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
    next_ps = NEVER
    if port["react_head"] >= 0:
        next_ps = world.packets[port["react_head"]]["arrive_ps"]
    for priority in range(PRIORITIES):
        row = (i << PRIORITY_SHIFT) + priority
        if (int(port["paused"]) >> priority) & 1:
            if world.queues[row]["pause_until_ps"] <= now_ps:
                _resume(world, i, priority, now_ps)
            else:
                next_ps = min(next_ps, world.queues[row]["pause_until_ps"])
        if (int(port["xoff"]) >> priority) & 1:
            if world.ingress[row]["refresh_at_ps"] <= now_ps:
                send_pfc(world, i, priority, world.engine[0]["pfc_quanta"], now_ps)
            next_ps = min(next_ps, world.ingress[row]["refresh_at_ps"])
    if next_ps != NEVER:
        arm_port_timer(world, i, next_ps)
