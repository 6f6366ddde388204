"""The dispatch loop and nothing else: take the first event, call what it concerns, try the ports it touched.

Resumable: it returns after a bounded number of events, so that progress, Ctrl-C and capture files are served between
slices; slicing never changes a result.
"""

from __future__ import annotations

from enum import IntEnum

from emulator.buffer import ADMITTED_XOFF, DROP_WATCHDOG, PRIORITY_SHIFT, switch_on_frame
from emulator.ecn import mark
from emulator.host import (
    host_on_frame,
    host_on_timer,
    host_on_wake,
    host_start_flow,
    make_packet,
    note_ready,
    wake_blocked,
)
from emulator.impair import is_lost
from emulator.packet import DATA, ECT, LINE_ONLY_BYTES, PFC, free_packet
from emulator.pfc import ask_pause, on_pfc_frame, on_port_timer
from emulator.port import drop, enqueue, kick, let_go, start_if_idle, take_arrival
from emulator.routing import choose_port
from emulator.schedule import ARRIVAL, DEPARTURE, LINK_STATE, due_class, due_time_ps, open_next_bucket
from emulator.series import sample
from emulator.tracing import record
from emulator.watchdog import watch_port
from ttpoe._jit import kernel
from ttpoe.units import NEVER


class RunStatus(IntEnum):
    """Why :func:`run` returned."""

    SLICE = 0  # max_events are done; call again
    FINISHED = 1  # every flow is over
    EMPTY = 2  # nothing will ever happen again, and a flow is not over
    UNTIL = 3  # the next event lies beyond until_ps
    NEED_PACKETS = 4  # grow the packet rows and call again
    NEED_EVENTS = 5  # make room for events and call again
    NEED_TRACE = 6  # drain the trace rows and call again


_SLICE, _FINISHED, _EMPTY, _UNTIL = 0, 1, 2, 3
_NEED_PACKETS, _NEED_EVENTS, _NEED_TRACE = 4, 5, 6

MARGIN = 64
"""Packets, events or trace rows that one event may take at most, with room to spare."""


@kernel(inline=True)
def _switch_arrival(world, i, p, now_ps):
    """Packet ``p`` came over port ``i``'s line to a switch: admit and queue it, or drop it by cause."""
    engine = world.engine[0]
    packet = world.packets[p]
    switch_index = int(world.ports[i]["far_switch"])
    switch = world.switches[switch_index]
    in_port = i ^ 1
    out_port = choose_port(world, switch_index, packet, now_ps)
    if out_port < 0:
        engine["no_route"] += 1
        engine["lost"] += 1
        free_packet(engine, world.packets, p)
        return
    priority = int(packet["priority"])
    size_bytes = int(packet["wire_bytes"]) - LINE_ONLY_BYTES
    queue = world.queues[(out_port << PRIORITY_SHIFT) + priority]
    ingress = world.ingress[(in_port << PRIORITY_SHIFT) + priority]
    rules = world.rules[(switch_index << PRIORITY_SHIFT) + priority]
    if (int(world.ports[out_port]["storm"]) >> priority) & 1:
        verdict = DROP_WATCHDOG
    else:
        verdict = switch_on_frame(switch, world.shared[rules["shared"]], rules, ingress, queue, size_bytes)
    if verdict > ADMITTED_XOFF:
        drop(world, switch_index, queue, p, verdict)
        return
    if int(packet["ecn"]) == ECT:
        mark(world.marking[out_port], packet, queue["bytes"] - size_bytes)
    packet["in_port"] = in_port
    enqueue(world, out_port, p)
    kick(world, out_port)
    if verdict == ADMITTED_XOFF:
        ask_pause(world, in_port, priority)
        kick(world, in_port)
    if world.ports[out_port]["is_watched"] == priority + 1:
        sample(engine, world.series, queue["bytes"], now_ps)


@kernel(export=True)
def run(world, until_ps, max_events):
    """Run the world until a reason to stop.

    Parameters
    ----------
    world : World
        Modified in place.
    until_ps : int64
        Events after this time stay in the heap.
    max_events : int64
        Events of this call.

    Returns
    -------
    int64
        A `RunStatus`.
    """
    engine = world.engine[0]
    schedule = world.schedule[0]
    due = world.due
    ports = world.ports
    last_event = engine["events"] + max_events
    while True:
        if engine["unfinished"] == 0:
            return _FINISHED
        if schedule["cursor"] == schedule["due_count"] and open_next_bucket(world) == 0:
            return _EMPTY
        now_ps = due_time_ps(schedule, due)
        if now_ps > until_ps:
            return _UNTIL
        if engine["events"] >= last_event:
            return _SLICE
        if engine["free_count"] < MARGIN:
            return _NEED_PACKETS
        if schedule["free_count"] < MARGIN:
            return _NEED_EVENTS
        if engine["is_tracing"] != 0 and engine["trace_count"] + MARGIN > len(world.trace):
            return _NEED_TRACE
        cursor = schedule["cursor"]
        schedule["cursor"] = cursor + 1
        which = due_class(due, cursor)
        index = int(world.due_subject[cursor])
        engine["now_ps"] = now_ps
        engine["events"] += 1
        answering_end = -1
        answers = 0
        if which == DEPARTURE:
            ports[index]["is_departure_pending"] = 0
            kick(world, index)
        elif which == ARRIVAL:
            p = take_arrival(world, index)
            engine["packet_hops"] += 1
            if world.packets[p]["fate"] != 0:
                is_at_host = 1 if ports[index]["far_switch"] < 0 else 0
                if is_lost(engine, world.impairments, world.packets, p, ports[index]["impairment"], is_at_host) != 0:
                    continue
            kind = int(world.packets[p]["kind"])
            if kind == DATA:
                engine["data_hops"] += 1
            port = ports[index ^ 1]
            if port["is_captured"] != 0:
                record(world, index ^ 1, p, 0, now_ps)
            if kind == PFC:
                if on_pfc_frame(world, index ^ 1, p, now_ps) != 0:
                    kick(world, index ^ 1)
            elif ports[index]["far_switch"] >= 0:
                _switch_arrival(world, index, p, now_ps)
            else:
                answering_end = int(world.packets[p]["end"])
                answers = host_on_frame(world, p, now_ps)
        elif which == LINK_STATE:
            on_port_timer(world, index, now_ps)
            if engine["watchdog_detect_ps"] != NEVER:
                watch_port(world, index, now_ps)
            if ports[index]["impairment"] >= 0:
                let_go(world, index, now_ps)
            kick(world, index)
        elif index < len(world.ends):
            answering_end = index
            answers = host_on_timer(world, index, now_ps)
        elif index < len(world.ends) + len(world.flows):
            answering_end = 2 * (index - len(world.ends))
            answers = host_start_flow(world, answering_end >> 1, now_ps)
        else:
            answering_end = index - len(world.ends) - len(world.flows)
            host_on_wake(world, answering_end, now_ps)
        if answering_end >= 0:
            nic = int(world.ends[answering_end]["port"])
            for k in range(answers):
                enqueue(world, nic, make_packet(world, answering_end, k))
            joined = 0
            if engine["is_sharing"] != 0:  # who waits for room comes before whose frames made it
                joined = wake_blocked(world, nic)
            joined += note_ready(world, answering_end)
            if joined + answers > 0:
                kick(world, nic)
        while engine["kick_count"] > 0:
            engine["kick_count"] -= 1
            touched = int(world.kicks[engine["kick_count"]])
            ports[touched]["is_kicked"] = 0
            start_if_idle(world, touched, now_ps)
