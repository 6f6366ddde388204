"""Fetching into the cache what the next events will touch, while the present one is served.

In a large fabric nearly every row that an event touches was last touched thousands of events before, and is in no near
cache. The events of a bucket are sorted, so the loop knows what comes: first the port, then the packet that the port
names, then what the packet names. Hints only: results cannot depend on them.
"""

from __future__ import annotations

from emulator.packet import PFC
from emulator.routing import ECMP, ecmp
from emulator.schedule import ARRIVAL, DEPARTURE, due_class
from emulator.world import ROCE, TTPOE
from ttpoe._jit import kernel, prefetch

_PORT, _PACKET, _REST, _WAY = 6, 4, 2, 1
"""Events ahead at which each is fetched. Our choice: an event takes about as long as a line from the far cache."""
LEAST_PORTS = 2048
"""Smaller fabrics do not look ahead: their rows lie in a cache of 2 MB. Measured: 768 ports gain nothing."""
_LINE = 64


@kernel(inline=True)
def _first_waiting(world, i):
    """The packet that port ``i``'s highest priority sends next, or -1."""
    waiting = int(world.ports[i]["waiting"])
    if waiting == 0:
        return -1
    priority = 7
    while (waiting >> priority) & 1 == 0:
        priority -= 1
    return int(world.queues[priority, i]["head"])


@kernel(inline=True)
def _fetch_host(world, p, e):
    """What the transport of end ``e`` touches when packet ``p`` arrives."""
    prefetch(world.frames, p, 0)
    prefetch(world.ends, e, 0)
    prefetch(world.flows, e >> 1, 0)
    if world.engine[0]["protocol"] == ROCE:
        for offset in range(0, 3 * _LINE, _LINE):
            prefetch(world.qps, e, offset)
    elif world.engine[0]["protocol"] == TTPOE:
        for offset in range(0, 10 * _LINE, _LINE):
            prefetch(world.links, e, offset)


@kernel(inline=True)
def _fetch_way(world, switch, packet):
    """The port by which a switch sends ``packet`` (PACKET row) on, where looking for it has no effect."""
    g = int(world.group_of[switch, packet["dst"]])
    if g < 0 or (world.groups[g]["count"] > 1 and world.routing[0]["policy"] != ECMP):
        return
    out = ecmp(world, world.groups[g], world.switches[switch]["salt"], int(packet["entropy"]))
    prefetch(world.ports, out, 0)
    prefetch(world.ports, out, _LINE)
    prefetch(world.queues[packet["priority"]], out, 0)


@kernel(inline=True)
def _fetch_what_is_named(world, which, i):
    """What the packet concerned by an event of port ``i`` names."""
    port = world.ports[i]
    if which == DEPARTURE:
        p = _first_waiting(world, i)
        if p >= 0:
            prefetch(world.ingress[world.packets[p]["priority"]], world.packets[p]["in_port"], 0)
        return
    p = int(port["line_head"])
    packet = world.packets[p]
    prefetch(world.packets, packet["next"], 0)
    if port["far_switch"] < 0:
        _fetch_host(world, p, packet["end"])
        return
    prefetch(world.group_of[port["far_switch"]], packet["dst"], 0)
    prefetch(world.ingress[packet["priority"]], i ^ 1, 0)


@kernel(inline=True)
def look_ahead(world, cursor):
    """Fetch for the events that follow event ``cursor`` of the bucket being served, in a large fabric."""
    if world.engine[0]["looks_ahead"] == 0:
        return
    due_count = world.schedule[0]["due_count"]
    k = cursor + _PORT
    if k < due_count:
        prefetch(world.ports, world.due_subject[k], 0)
        prefetch(world.ports, world.due_subject[k], _LINE)
    k = cursor + _PACKET
    if k < due_count:
        i = int(world.due_subject[k])
        which = due_class(world.due, k)
        if which == ARRIVAL:
            prefetch(world.packets, world.ports[i]["line_head"], 0)
        elif which == DEPARTURE:
            prefetch(world.packets, _first_waiting(world, i), 0)
    k = cursor + _REST
    if k < due_count:
        i = int(world.due_subject[k])
        which = due_class(world.due, k)
        if which == DEPARTURE or (which == ARRIVAL and world.ports[i]["line_head"] >= 0):
            _fetch_what_is_named(world, which, i)
    k = cursor + _WAY
    if k < due_count and due_class(world.due, k) == ARRIVAL:
        i = int(world.due_subject[k])
        p = int(world.ports[i]["line_head"])
        if p >= 0 and world.ports[i]["far_switch"] >= 0 and world.packets[p]["kind"] < PFC:
            _fetch_way(world, int(world.ports[i]["far_switch"]), world.packets[p])
