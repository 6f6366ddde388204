"""Link-level retry: what a line damages or loses is sent again by the link itself, in order, from a replay buffer.

Go-back-N between two ports: the receiver drops what follows a gap, the sender learns of it after the way back, and
sends all again from the first frame that did not arrive. Frames keep their place on the line meanwhile, so nothing
above sees more than a delay. Source: link-level retry of UEC and of PCI Express; ACK and NAK are control symbols
between frames, so they take no line time here, and are taken as never lost.
"""

from __future__ import annotations

import numpy as np

from emulator.impair import CAUSE, cause_of_loss
from emulator.packet import LINK_ACK, free_packet, take_packet
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
def may_send(world, i, now_ps):
    """1 if port ``i``'s replay buffer has room for the largest frame; else its timer is armed for when it may have."""
    engine = world.engine[0]
    row = world.retries[i]
    while row["ack_head"] >= 0 and world.packets[row["ack_head"]]["arrive_ps"] <= now_ps:
        p = row["ack_head"]
        row["held_bytes"] -= int(world.packets[p]["wire_bytes"])
        row["ack_head"] = int(world.packets[p]["next"])
        engine["delivered"] += 1
        free_packet(engine, world.packets, p)
    row["is_waiting"] = 0
    if row["held_bytes"] + engine["largest_wire_bytes"] <= engine["retry_bytes"]:
        return 1
    row["is_waiting"] = 1
    if row["ack_head"] >= 0:
        arm_port_timer(world, i, world.packets[row["ack_head"]]["arrive_ps"])
    return 0


@kernel
def is_gap(world, i, now_ps):
    """1 if the first frame on port ``i``'s line does not arrive as it should: it stays there, to be sent again.

    Otherwise it is acknowledged. Call when it is due, before it is taken off the line.
    """
    row = world.retries[i]
    packet = world.packets[world.ports[i]["line_head"]]
    if int(packet["fate"]) & CAUSE:
        row["replays"] += 1
        row["replay_at_ps"] = now_ps + row["return_ps"]
        arm_port_timer(world, i, row["replay_at_ps"])
        return 1
    size = packet["wire_bytes"]
    q = take_packet(world.engine[0], world.packets)
    ack = world.packets[q]
    ack["kind"] = LINK_ACK
    ack["wire_bytes"] = size
    ack["arrive_ps"] = now_ps + row["return_ps"]
    ack["next"] = -1
    if row["ack_head"] < 0:
        row["ack_head"] = q
        if row["is_waiting"] != 0:
            arm_port_timer(world, i, ack["arrive_ps"])
    else:
        world.packets[row["ack_tail"]]["next"] = q
    row["ack_tail"] = q
    return 0


@kernel
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
        row["frames_replayed"] += 1
        row["bytes_replayed"] += int(packet["wire_bytes"])
        n = port["tx_frames"] + row["frames_replayed"]
        packet["fate"] = (int(packet["fate"]) & ~CAUSE) | cause_of_loss(impairment, world.ordinals, n, at_ps)
        at_ps += serialization_ps(packet["wire_bytes"], port["rate_bps"])
        packet["arrive_ps"] = at_ps + port["delay_ps"]
        p = int(packet["next"])
    port["busy_until_ps"] = at_ps
    impairment["latest_ps"] = at_ps + port["delay_ps"]
    push(world, world.packets[port["line_head"]]["arrive_ps"], ARRIVAL, i, port)
