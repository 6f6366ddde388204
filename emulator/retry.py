"""Link-level retry: what a line damages or loses is sent again by the link itself, in order, from a replay buffer.

Go-back-N between two ports: the receiver drops what follows a gap, the sender learns of it after the way back, and
sends all again from the first frame that did not arrive. Frames keep their place on the line meanwhile, so nothing
above sees more than a delay. Source: link-level retry of UEC and of PCI Express; ACK and NAK are control symbols
between frames, so they take no line time here, and are taken as never lost.
"""

from __future__ import annotations

import numpy as np

from emulator.impair import CAUSE, cause_of_loss
from emulator.packet import CUT, LINK_ACK, free_packet, take_packet
from emulator.pfc import arm_port_timer
from emulator.schedule import ARRIVAL, push
from ttpoe._jit import kernel
from ttpoe.units import NEVER, serialization_ps

CONTROL_BYTES = 8
"""Of an ACK or NAK."""

RETRY = np.dtype(
    [
        (name, "i8")
        for name in (
            "held_bytes",  # sent and not known to have arrived
            "return_ps",  # from an arrival to when the sender knows
            "replay_at_ps",  # when the sender learns of a gap; NEVER
            "is_waiting",  # for room in the replay buffer
            "ack_head", "ack_tail",  # LINK_ACK packets under way: what arrived, and when the sender knows
            "replays", "frames_replayed", "bytes_replayed",
        )
    ],
    align=True,
)  # fmt: skip
"""One port's sending side."""


@kernel
def may_send(engine, row, packets, now_ps):
    """1 if the replay buffer of ``row`` has room for the largest frame; all but ``now_ps`` are modified in place."""
    while row["ack_head"] >= 0 and packets[row["ack_head"]]["arrive_ps"] <= now_ps:
        p = row["ack_head"]
        row["held_bytes"] -= int(packets[p]["wire_bytes"])
        row["ack_head"] = int(packets[p]["next"])
        engine["delivered"] += 1
        free_packet(engine, packets, p)
    has_room = row["held_bytes"] + engine["largest_wire_bytes"] <= engine["retry_bytes"]
    row["is_waiting"] = 0 if has_room else 1
    return 1 if has_room else 0


@kernel(inline=True)
def next_ack_ps(row, packets):
    """When the sender knows of the next arrival; NEVER if none is under way."""
    return packets[row["ack_head"]]["arrive_ps"] if row["ack_head"] >= 0 else NEVER


@kernel
def is_gap(engine, row, packets, p, now_ps):
    """1 if packet ``p``, the first on a line, does not arrive as it should: it stays there, to be sent again.

    Otherwise it is acknowledged. Call when it is due, before it is taken off the line; then arm the port's timer for
    ``row["replay_at_ps"]``, or for :func:`next_ack_ps` if the sender is waiting.
    """
    packet = packets[p]
    if int(packet["fate"]) & CAUSE:
        row["replays"] += 1
        row["replay_at_ps"] = now_ps + row["return_ps"]
        return 1
    size = packet["wire_bytes"]
    q = take_packet(engine, packets)
    ack = packets[q]
    ack["kind"] = LINK_ACK
    ack["wire_bytes"] = size
    ack["arrive_ps"] = now_ps + row["return_ps"]
    ack["next"] = -1
    if row["ack_head"] < 0:
        row["ack_head"] = q
    else:
        packets[row["ack_tail"]]["next"] = q
    row["ack_tail"] = q
    return 0


@kernel(inline=True)
def arrives_whole(world, i, now_ps):
    """1 if the first frame of port ``i``'s line, which is due, may be taken off it; else the link sends it again."""
    row = world.retries[i]
    p = int(world.ports[i]["line_head"])
    if int(world.packets[p]["fate"]) & CUT:  # lost with its line, and in no replay buffer any more
        return 1
    is_missing = is_gap(world.engine[0], row, world.packets, p, now_ps)
    next_ps = row["replay_at_ps"]
    if row["is_waiting"] != 0:
        next_ps = min(next_ps, next_ack_ps(row, world.packets))
    arm_port_timer(world, i, next_ps)
    return 1 - is_missing


@kernel(inline=True)
def replay(world, i, now_ps):
    """Port ``i`` sends all that is on its line again, if its sender has learned of a gap; else its timer is armed."""
    port = world.ports[i]
    row = world.retries[i]
    if row["replay_at_ps"] > now_ps:
        arm_port_timer(world, i, row["replay_at_ps"])
        return
    row["replay_at_ps"] = NEVER
    at_ps = max(now_ps, port["busy_until_ps"])
    impairment = world.impairments[port["impairment"]]
    p = int(port["line_head"])
    while p >= 0:
        packet = world.packets[p]
        wire_bytes = int(packet["wire_bytes"])
        row["frames_replayed"] += 1
        row["bytes_replayed"] += wire_bytes
        n = port["tx_frames"] + row["frames_replayed"]
        size_bytes = wire_bytes - world.engine[0]["line_only_bytes"]
        cause = cause_of_loss(impairment, world.ordinals, n, size_bytes, at_ps)
        packet["fate"] = (int(packet["fate"]) & ~CAUSE) | cause
        at_ps += serialization_ps(wire_bytes, port["rate_bps"])
        packet["arrive_ps"] = at_ps + port["delay_ps"]
        p = int(packet["next"])
    port["busy_until_ps"] = at_ps
    impairment["latest_ps"] = at_ps + port["delay_ps"]
    push(world, world.packets[port["line_head"]]["arrive_ps"], ARRIVAL, i, port)
