"""Rows of captured frames, appended by the loop and turned into bytes elsewhere."""

from __future__ import annotations

from emulator.packet import PFC
from ttpoe._jit import kernel


@kernel
def record(world, i, p, is_out, now_ps):
    """Append packet ``p``, seen at port ``i``, to the trace; the engine makes sure that there is room."""
    engine = world.engine[0]
    row = world.trace[engine["trace_count"]]
    engine["trace_count"] += 1
    packet = world.packets[p]
    row["time_ps"] = now_ps
    row["cookie"] = packet["cookie"]
    row["port"] = i
    row["is_out"] = is_out
    row["kind"] = packet["kind"]
    row["priority"] = packet["priority"]
    row["ecn"] = packet["ecn"]
    row["is_corrupted"] = int(packet["fate"]) != 0
    row["end"] = packet["end"]
    if packet["kind"] < PFC:
        row["frame"]["opcode"] = world.frames[p]["opcode"]
        row["frame"]["marks"] = world.frames[p]["marks"]
        row["frame"]["vc"] = world.frames[p]["vc"]
        row["frame"]["tx_seq"] = world.frames[p]["tx_seq"]
        row["frame"]["rx_seq"] = world.frames[p]["rx_seq"]
        row["frame"]["payload_bytes"] = world.frames[p]["payload_bytes"]
