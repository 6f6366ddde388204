"""The dispatch loop and nothing else: take the first event, call what it concerns, try the ports it touched.

Resumable: it returns after a bounded number of events, so that progress, Ctrl-C and capture files are served between
slices; slicing never changes a result.
"""

from __future__ import annotations

from enum import IntEnum

from emulator.buffer import (
    ADMITTED_XOFF,
    DROP_BUFFER_FULL,
    DROP_QUEUE_THRESHOLD,
    DROP_WATCHDOG,
    PRIORITY_SHIFT,
    switch_on_frame,
)
from emulator.credits import give_back, on_lost, on_update
from emulator.ecn import mark
from emulator.framing import frame_wire_bytes
from emulator.host import host_on_frame, host_on_timer, host_start_flow
from emulator.impair import is_lost
from emulator.lookahead import look_ahead
from emulator.nic import host_on_wake, make_packet, note_ready, wake_blocked
from emulator.outage import IS_DOWN, lose_cut, lose_unsent
from emulator.packet import CREDIT, CUT, DATA, ECT, PFC, free_packet
from emulator.pfc import ask_pause, on_pfc_frame, on_port_timer
from emulator.port import drop, enqueue, kick, let_go, start_if_idle, take_arrival
from emulator.retry import arrives_whole, replay
from emulator.routing import DOWN, choose_port
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
    STOP = 7  # links or routes change now: change engine["stop"], and call again
    DEADLOCK = 8  # lines under PFC wait for each other; told by Fabric.run alone


_SLICE, _FINISHED, _EMPTY, _UNTIL = 0, 1, 2, 3
_NEED_PACKETS, _NEED_EVENTS, _NEED_TRACE, _STOP = 4, 5, 6, 7

MARGIN = 64
"""Packets or trace rows that one event may take at most, with room to spare; and events, unless flows wait for it."""


@kernel(inline=True)
def _admit(world, switch_index, in_port, out_port, priority, size_bytes):
    """The verdict on a frame that would leave by a port and priority."""
    if (int(world.ports[out_port]["storm"]) >> priority) & 1:
        return DROP_WATCHDOG
    queue = world.queues[priority, out_port]
    ingress = world.ingress[priority, in_port]
    rules = world.rules[priority, switch_index]
    switch = world.switches[switch_index]
    return switch_on_frame(switch, world.shared[rules["shared"]], rules, ingress, queue, size_bytes)


@kernel
def _trim(engine, packet, frame, verdict):
    """Cut a packet (PACKET and FRAME row), not admitted for the cause in ``verdict``, to its headers; 1 if it was.

    Only data frames of lossy priorities have something to cut. A receiver knows a trimmed frame by a payload of 0
    bytes. Source: Handley et al., "Re-architecting datacenter networks and stacks for low latency" (NDP), 2017; UEC.
    """
    if packet["kind"] != DATA or frame["payload_bytes"] == 0:
        return 0
    if verdict != DROP_QUEUE_THRESHOLD and verdict != DROP_BUFFER_FULL:
        return 0
    frame["payload_bytes"] = 0
    packet["wire_bytes"] = frame_wire_bytes(engine["protocol"], engine["framing"], int(frame["opcode"]), 0)
    packet["priority"] = engine["trim_priority"]
    return 1


@kernel(inline=True)
def _switch_arrival(world, i, p, now_ps):
    """Packet ``p`` came over port ``i``'s line to a switch: admit and queue it, or drop it by cause."""
    engine = world.engine[0]
    packet = world.packets[p]
    switch_index = int(world.ports[i]["far_switch"])
    in_port = i ^ 1
    priority = int(packet["priority"])
    size_bytes = int(packet["wire_bytes"]) - engine["line_only_bytes"]
    out_port = choose_port(world, switch_index, packet, now_ps)
    if out_port < 0:
        if engine["is_credited"] != 0:
            row = world.credits[(in_port << PRIORITY_SHIFT) + priority]
            give_back(world.ports[in_port], row, priority, size_bytes)
            kick(world, in_port)
        if out_port <= DOWN:
            lose_unsent(world, DOWN - out_port, p)
        else:
            engine["no_route"] += 1
            engine["lost"] += 1
            free_packet(engine, world.packets, p)
        return
    while True:
        verdict = _admit(world, switch_index, in_port, out_port, priority, size_bytes)
        if verdict <= ADMITTED_XOFF or engine["trim_priority"] < 0:
            break
        if _trim(engine, packet, world.frames[p], verdict) == 0:
            break
        world.ports[out_port]["trimmed"] += 1
        priority = int(packet["priority"])
        size_bytes = int(packet["wire_bytes"]) - engine["line_only_bytes"]
    queue = world.queues[priority, out_port]
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


@kernel(inline=True)
def _try_kicked(world, now_ps):
    """Let each port that the event touched send, if it can."""
    engine = world.engine[0]
    while engine["kick_count"] > 0:
        engine["kick_count"] -= 1
        touched = int(world.kicks[engine["kick_count"]])
        world.ports[touched]["is_kicked"] = 0
        start_if_idle(world, touched, now_ps)


@kernel(inline=True)
def _arrive(world, i, now_ps):
    """The frame at the head of port ``i``'s line is at its end: it is lost, or taken by the port, a switch or a host.

    Returns
    -------
    int64
        The end whose transport took it, or -1.
    int64
        Number of its answers in ``world.out``.
    """
    engine = world.engine[0]
    p = take_arrival(world, i)
    engine["packet_hops"] += 1
    packet = world.packets[p]
    kind = int(packet["kind"])
    priority = int(packet["priority"])
    size_bytes = int(packet["wire_bytes"]) - engine["line_only_bytes"]
    far = i ^ 1
    is_at_host = world.ports[i]["far_switch"] < 0
    lost = 0
    if int(packet["fate"]) & CUT:
        lose_cut(world, i, p)
        lost = 2  # its credits are back since its line went down
    elif packet["fate"] != 0:
        lost = is_lost(engine, world.impairments, world.packets, p, world.ports[i]["impairment"], is_at_host)
    if lost != 0:
        if engine["is_credited"] != 0 and lost == 1:
            on_lost(world, far, kind, priority, size_bytes, now_ps)
            kick(world, far)
        return -1, 0
    if kind == DATA:
        engine["data_hops"] += 1
    if engine["is_tracing"] != 0 and world.ports[far]["is_captured"] != 0:
        record(world, far, p, 0, now_ps)
    if kind == PFC:
        if on_pfc_frame(world, far, p, now_ps) != 0:
            kick(world, far)
        return -1, 0
    if kind == CREDIT:
        on_update(world, far, p, now_ps)
        kick(world, far)
        return -1, 0
    if not is_at_host:
        _switch_arrival(world, i, p, now_ps)
        return -1, 0
    if engine["is_credited"] != 0:
        row = world.credits[(far << PRIORITY_SHIFT) + priority]
        give_back(world.ports[far], row, priority, size_bytes)
        kick(world, far)
    e = int(packet["end"])
    return e, host_on_frame(world, p, now_ps)


@kernel(inline=True)
def _change_line(world, i, now_ps):
    """What is due at port ``i`` besides frames: pauses, storms, replays, frames held back."""
    port = world.ports[i]
    on_port_timer(world, i, now_ps)
    if world.engine[0]["watchdog_detect_ps"] != NEVER and (port["paused"] != 0 or port["storm"] != 0):
        watch_port(world, i, now_ps)
    if world.engine[0]["retry_bytes"] != 0 and world.retries[i]["replay_at_ps"] != NEVER:
        replay(world, i, now_ps)
    if port["impairment"] >= 0:
        let_go(world, i, now_ps)
    kick(world, i)


@kernel(inline=True)
def _wake(world, subject, now_ps):
    """The event of class TIMER that ``subject`` stands for; returns the end concerned and the number of its answers."""
    ends, flows = len(world.ends), len(world.flows)
    if subject < ends:
        return subject, host_on_timer(world, subject, now_ps)
    if subject < ends + flows:
        return 2 * (subject - ends), host_start_flow(world, subject - ends, now_ps)
    host_on_wake(world, subject - ends - flows, now_ps)
    return subject - ends - flows, 0


@kernel(inline=True)
def _answer(world, e, answers):
    """Queue the answers of end ``e``, and put it in its NIC's round if it may send now."""
    nic = int(world.ends[e]["port"])
    for k in range(answers):
        enqueue(world, nic, make_packet(world, e, k))
    joined = 0
    if world.engine[0]["is_sharing"] != 0:  # who waits for room comes before whose frames made it
        joined = wake_blocked(world, nic)
    joined += note_ready(world, e)
    if joined + answers > 0:
        kick(world, nic)


@kernel(inline=True)
def _reason_to_stop(world, now_ps, until_ps, last_event):
    """A `RunStatus` if the event at ``now_ps`` is not to be served in this call, else -1."""
    engine = world.engine[0]
    if now_ps > until_ps:
        return _UNTIL
    if engine["events"] >= last_event:
        return _SLICE
    if engine["free_count"] < MARGIN:
        return _NEED_PACKETS
    if world.schedule[0]["free_count"] < engine["event_margin"]:
        return _NEED_EVENTS
    if engine["is_tracing"] != 0 and engine["trace_count"] + MARGIN > len(world.trace):
        return _NEED_TRACE
    return -1


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
    first_stop = 2 * len(world.ends) + len(world.flows)
    while True:
        if engine["unfinished"] == 0:
            return _FINISHED
        if schedule["cursor"] == schedule["due_count"] and open_next_bucket(world) == 0:
            return _EMPTY
        now_ps = due_time_ps(schedule, due)
        reason = _reason_to_stop(world, now_ps, until_ps, last_event)
        if reason >= 0:
            return reason
        cursor = schedule["cursor"]
        schedule["cursor"] = cursor + 1
        look_ahead(world, cursor)
        which = due_class(due, cursor)
        subject = int(world.due_subject[cursor])
        engine["now_ps"] = now_ps
        engine["events"] += 1
        answering_end = -1
        answers = 0
        if which == DEPARTURE:
            ports[subject]["is_departure_pending"] = int(ports[subject]["is_departure_pending"]) & IS_DOWN
            kick(world, subject)
        elif which == ARRIVAL:
            if engine["retry_bytes"] == 0 or arrives_whole(world, subject, now_ps) != 0:  # else it is sent again
                answering_end, answers = _arrive(world, subject, now_ps)
        elif which == LINK_STATE:
            _change_line(world, subject, now_ps)
        elif subject < first_stop:
            answering_end, answers = _wake(world, subject, now_ps)
        else:
            engine["stop"] = subject - first_stop
            return _STOP
        if answering_end >= 0:
            _answer(world, answering_end, answers)
        _try_kicked(world, now_ps)
