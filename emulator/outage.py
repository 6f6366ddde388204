"""A line that goes down, comes up, or changes its rate; called between events, at the time of the last one.

What was on the line is lost, what waits for it at a switch is dropped, and both ends forget the pauses they were told.
Replay buffers are emptied, and credits begin anew.
"""

from __future__ import annotations

from emulator.buffer import PRIORITIES
from emulator.credits import begin_anew, tell_all
from emulator.packet import CUT, free_packet
from emulator.pfc import pause_for, resume
from emulator.port import kick, take_head
from emulator.schedule import LINK_STATE, TIMER, push
from ttpoe._jit import kernel
from ttpoe.units import NEVER

IS_DOWN = 2
"""Bit of ``port["is_departure_pending"]``: a port whose line is down starts nothing, as if one were on its way for
ever."""


@kernel(inline=True)
def _cut(world, first):
    """Have the frames from ``first`` on be lost where they would have arrived, so that a line keeps one event."""
    p = first
    while p >= 0:
        packet = world.packets[p]
        packet["fate"] = int(packet["fate"]) | CUT
        p = int(packet["next"])


@kernel(inline=True)
def _flush(world, i, priority, now_ps):
    """Drop what waits at a switch's port ``i``; who was paused for its sake is kicked, as it may go on."""
    port = world.ports[i]
    queue = world.queues[priority, i]
    while queue["head"] >= 0:
        p = take_head(world, port, queue, priority, now_ps)
        port["link_down"] += 1
        world.engine[0]["lost"] += 1
        free_packet(world.engine[0], world.packets, p)


@kernel(inline=True)
def _flush_replay(world, i):
    """Empty the replay buffer of port ``i``: with numbers that begin anew nobody knows what of it has arrived.

    Of a line that waits for a replay no arrival is to come, so its frames are lost at once.
    """
    row, port = world.retries[i], world.ports[i]
    while row["ack_head"] >= 0:
        p = row["ack_head"]
        row["ack_head"] = int(world.packets[p]["next"])
        world.engine[0]["delivered"] += 1
        free_packet(world.engine[0], world.packets, p)
    row["held_bytes"] = 0
    row["is_waiting"] = 0
    if row["replay_at_ps"] == NEVER:
        return
    row["replay_at_ps"] = NEVER
    while port["line_head"] >= 0:
        p = int(port["line_head"])
        port["line_head"] = int(world.packets[p]["next"])
        lose_cut(world, i, p)


@kernel(export=True)
def take_down(world, i, now_ps):
    """The line that port ``i`` sends on goes down; to be called for both ports of a cable, :func:`try_later` after it.

    Parameters
    ----------
    world : World
        Modified in place. There must be rows for two events.
    i : int64
    now_ps : int64
        Time of the event served last.
    """
    port = world.ports[i]
    port["is_departure_pending"] = int(port["is_departure_pending"]) | IS_DOWN
    if world.engine[0]["is_credited"] != 0:
        begin_anew(world, i)
    if world.engine[0]["retry_bytes"] != 0:
        _flush_replay(world, i)
    _cut(world, int(port["line_head"]))
    if port["impairment"] >= 0:
        _cut(world, int(world.impairments[port["impairment"]]["held_head"]))
    port["pfc_due"] = 0
    port["told_xoff"] = 0
    for priority in range(PRIORITIES):
        if (int(port["paused"]) >> priority) & 1:
            resume(world, i, priority, now_ps)
        world.ingress[priority, i]["refresh_at_ps"] = NEVER
        if port["switch"] >= 0:
            _flush(world, i, priority, now_ps)


@kernel(export=True)
def bring_up(world, i, now_ps):
    """The line that port ``i`` sends on comes up; parameters as for :func:`take_down`.

    It comes up paused where its far end still asks for that: a pause that came a delay later would find the headroom
    filled before. With credits it comes up knowing them: lines exchange them before they carry data.
    """
    port = world.ports[i]
    port["is_departure_pending"] = int(port["is_departure_pending"]) & ~IS_DOWN
    if world.engine[0]["is_credited"] != 0:
        tell_all(world, i)
    else:
        port["pfc_due"] = int(port["xoff"])
        for priority in range(PRIORITIES):
            if (int(world.ports[i ^ 1]["xoff"]) >> priority) & 1:
                pause_for(world, i, priority, world.engine[0]["pfc_quanta"], now_ps)
    kick(world, i)


@kernel(export=True)
def try_later(world, now_ps):
    """Give each port that changes kicked an event of its own: one event has rows for few frames.

    Parameters
    ----------
    world : World
        Modified in place. There must be rows for an event a port.
    now_ps : int64
        Time of the event served last.
    """
    engine = world.engine[0]
    while engine["kick_count"] > 0:
        engine["kick_count"] -= 1
        i = int(world.kicks[engine["kick_count"]])
        world.ports[i]["is_kicked"] = 0
        push(world, now_ps, LINK_STATE, i, world.ports[i])


@kernel(inline=True)
def lose_cut(world, i, p):
    """Packet ``p``, at the end of port ``i``'s line, was on it when it went down: count and free it."""
    world.ports[i]["link_down"] += 1
    world.ports[i]["cut"] += 1
    world.engine[0]["lost"] += 1
    free_packet(world.engine[0], world.packets, p)


@kernel(inline=True)
def lose_unsent(world, i, p):
    """Packet ``p`` was to leave a switch by port ``i``, whose line is down and which routes still name."""
    world.ports[i]["link_down"] += 1
    world.engine[0]["lost"] += 1
    free_packet(world.engine[0], world.packets, p)


@kernel(export=True)
def schedule_stops(world, at_ps):
    """Push an event for each time of int64 (n,) ``at_ps``, at which the loop returns to its caller."""
    port = world.ports[0]
    tie = port["tie"]  # which the port's own events go on from, so that a change that is to come changes nothing
    for k in range(len(at_ps)):
        push(world, at_ps[k], TIMER, 2 * len(world.ends) + len(world.flows) + k, port)
    port["tie"] = tie
