"""Credit-based link flow control, as InfiniBand's: a frame is sent only if the far buffer is known to have room.

Each line has a buffer for each priority (virtual lane) at its far end, counted in blocks of 64 bytes. The receiver
tells how many blocks its peer may have sent since the beginning, in all; the sender counts those that it sent. Totals,
so that a lost update is repaired by the next one. A priority that waits for credits is in the state of a paused one.

Source: InfiniBand Architecture Specification, volume 1, 7.9 (flow control).
"""

from __future__ import annotations

import numpy as np

from emulator.buffer import PRIORITIES, PRIORITY_SHIFT
from emulator.packet import CREDIT, CUT, PFC, free_packet, take_packet
from emulator.pfc import arm_port_timer, resume
from ttpoe._jit import kernel

BLOCK_SHIFT = 6
BLOCK_BYTES = 1 << BLOCK_SHIFT
CREDIT_WIRE_BYTES = 8
"""A flow control packet: 6 bytes, and a delimiter at either end."""

CREDITS = np.dtype(
    [
        (name, "i8")
        for name in (
            # of the port's sending side
            "sent_blocks",
            "limit_blocks",  # what the peer has told
            # of its receiving side
            "granted_blocks",  # the buffer, and all that was freed
            "told_blocks",
            "buffer_blocks",
        )
    ],
    align=True,
)
"""One (port, priority)."""


@kernel(inline=True)
def blocks(size_bytes):
    """Blocks that a frame occupies."""
    return (size_bytes + BLOCK_BYTES - 1) >> BLOCK_SHIFT


@kernel(inline=True)
def pay(row, size_bytes):
    """Take the credits for a frame from ``row`` (CREDITS row of the port that sends it); 0 without enough."""
    after = row["sent_blocks"] + blocks(size_bytes)
    if after > row["limit_blocks"]:
        return 0
    row["sent_blocks"] = after
    return 1


@kernel(inline=True)
def give_back(port, row, priority, size_bytes):
    """A frame that came into ``port`` has left its buffer, or will never come. The caller kicks the port."""
    row["granted_blocks"] += blocks(size_bytes)
    port["pfc_due"] = int(port["pfc_due"]) | (1 << priority)


@kernel
def take_update(engine, port, credits, packets, i):
    """The update that port ``i``, ``port``, sends now, or -1: the lowest priority of which its peer does not know."""
    while port["pfc_due"] != 0:
        priority = 0
        while (int(port["pfc_due"]) >> priority) & 1 == 0:
            priority += 1
        port["pfc_due"] = int(port["pfc_due"]) & ~(1 << priority)
        row = credits[(i << PRIORITY_SHIFT) + priority]
        if row["told_blocks"] == row["granted_blocks"]:
            continue
        row["told_blocks"] = row["granted_blocks"]
        p = take_packet(engine, packets)
        packet = packets[p]
        packet["kind"] = CREDIT
        packet["priority"] = priority
        packet["cookie"] = row["granted_blocks"]
        packet["wire_bytes"] = CREDIT_WIRE_BYTES
        packet["end"] = -1
        packet["dst"] = -1
        engine["credit_frames"] += 1
        return p
    return -1


@kernel(inline=True)
def on_update(world, i, p, now_ps):
    """Port ``i`` received update ``p``, which is freed; what waited for credits is tried again by the caller's kick."""
    engine = world.engine[0]
    priority = int(world.packets[p]["priority"])
    row = world.credits[(i << PRIORITY_SHIFT) + priority]
    row["limit_blocks"] = max(row["limit_blocks"], world.packets[p]["cookie"])
    free_packet(engine, world.packets, p)
    engine["delivered"] += 1
    if (int(world.ports[i]["paused"]) >> priority) & 1:
        resume(world, i, priority, now_ps)


@kernel(inline=True)
def on_lost(world, i, kind, priority, size_bytes, now_ps):
    """A frame of priority ``priority`` on its way into port ``i`` was lost on the line. The caller kicks the port.

    The sender's total, which its own flow control packets carry, shows the receiver that its blocks are free. An update
    that was lost is told again at the next regular one.
    """
    if kind != CREDIT:
        give_back(world.ports[i], world.credits[(i << PRIORITY_SHIFT) + priority], priority, size_bytes)
        return
    sender = i ^ 1
    at_ps = now_ps + world.engine[0]["credit_refresh_ps"]
    world.credits[(sender << PRIORITY_SHIFT) + priority]["told_blocks"] = -1
    world.ports[sender]["xoff"] = int(world.ports[sender]["xoff"]) | (1 << priority)
    world.ingress[priority, sender]["refresh_at_ps"] = at_ps
    arm_port_timer(world, sender, at_ps)


@kernel(inline=True)
def _take_back(world, far, first):
    """Free the blocks that the data among the packets from ``first`` on, under way to port ``far``, was to occupy."""
    p = first
    while p >= 0:
        packet = world.packets[p]
        if packet["kind"] < PFC and int(packet["fate"]) & CUT == 0:
            row = world.credits[(far << PRIORITY_SHIFT) + int(packet["priority"])]
            row["granted_blocks"] += blocks(int(packet["wire_bytes"]) - world.engine[0]["line_only_bytes"])
        p = int(packet["next"])


@kernel(inline=True)
def begin_anew(world, i):
    """The line of port ``i`` goes down: its totals begin at nothing sent. To be called before its frames are cut.

    What the far buffer still holds of earlier frames is no part of the new totals, and is granted when it is freed.
    """
    far = i ^ 1
    _take_back(world, far, int(world.ports[i]["line_head"]))
    if world.ports[i]["impairment"] >= 0:
        _take_back(world, far, int(world.impairments[world.ports[i]["impairment"]]["held_head"]))
    for priority in range(PRIORITIES):
        sender = world.credits[(i << PRIORITY_SHIFT) + priority]
        world.credits[(far << PRIORITY_SHIFT) + priority]["granted_blocks"] -= sender["sent_blocks"]
        sender["sent_blocks"] = 0
    tell_all(world, i)


@kernel(inline=True)
def tell_all(world, i):
    """Port ``i`` knows what the far end of its line grants: after the updates with which a line begins."""
    for priority in range(PRIORITIES):
        receiver = world.credits[((i ^ 1) << PRIORITY_SHIFT) + priority]
        receiver["told_blocks"] = receiver["granted_blocks"]
        world.credits[(i << PRIORITY_SHIFT) + priority]["limit_blocks"] = receiver["granted_blocks"]
