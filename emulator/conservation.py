"""Every frame is somewhere: what was created was delivered, dropped or lost, or is in a queue or on a line."""

from __future__ import annotations

import numpy as np

from emulator.buffer import PRIORITIES
from emulator.impair import BAD_FCS
from emulator.packet import LINE_ONLY_BYTES
from emulator.world import World


class ConservationError(AssertionError):
    """Frames came from nowhere or vanished: a fault of the emulator."""


def _listed(rows: np.ndarray, heads: np.ndarray) -> int:
    """Packets in the lists that begin at ``heads``."""
    count = 0
    after = rows["next"]
    for head in heads[heads >= 0].tolist():
        p = head
        while p >= 0:
            count += 1
            p = int(after[p])
    return count


def arrived(w: World, i: int) -> int:
    """Frames that port ``i`` sent and that are no longer on its line."""
    port = w.ports[i]
    heads = [port["line_head"], w.impairments["held_head"][port["impairment"]] if port["impairment"] >= 0 else -1]
    return int(port["tx_frames"]) - _listed(w.packets, np.array(heads))


def check_conservation(w: World) -> int:
    """Frames in queues and on lines, at the end of a run or between any two events.

    Raises
    ------
    ConservationError
        If a frame or a byte of a buffer is unaccounted for.
    """
    engine = w.engine[0]
    at_switches = np.repeat(w.ports["switch"] >= 0, PRIORITIES)
    held_back = w.impairments["held_head"]
    inside = _listed(w.packets, np.concatenate([w.ports["line_head"], w.ports["react_head"], held_back]))
    of_switch = np.repeat(w.ports["switch"], PRIORITIES)
    queue_bytes = np.zeros(len(w.queues), np.int64)
    ingress_bytes = np.zeros(len(w.ingress), np.int64)
    for q in np.flatnonzero(w.queues["head"] >= 0).tolist():
        p = int(w.queues["head"][q])
        while p >= 0:
            inside += 1
            if at_switches[q]:
                size = int(w.packets["wire_bytes"][p]) - LINE_ONLY_BYTES
                queue_bytes[q] += size
                if w.rules["is_lossless"][of_switch[q] * PRIORITIES + q % PRIORITIES]:
                    ingress_bytes[int(w.packets["in_port"][p]) * PRIORITIES + q % PRIORITIES] += size
            p = int(w.packets["next"][p])
    held = len(w.packets) - int(engine["free_count"])
    balance = int(engine["created"] - engine["delivered"] - engine["dropped"] - engine["lost"])
    if not inside == held == balance:
        raise ConservationError(
            f"{engine['created']} frames created, {engine['delivered']} delivered, {engine['dropped']} dropped, "
            f"{engine['lost']} lost, so {balance} should be inside; {inside} are listed and {held} rows are held"
        )
    told_lost = int(w.impairments["counts"][:, 1 : BAD_FCS + 1].sum() + engine["bad_icrc"] + engine["no_route"])
    if told_lost != engine["lost"]:
        raise ConservationError(f"{engine['lost']} frames were lost; causes are known of {told_lost}")
    rules = w.rules[of_switch * PRIORITIES + np.arange(len(of_switch)) % PRIORITIES]
    accounted = np.where(rules["is_lossless"] != 0, w.ingress["bytes"], queue_bytes)
    beyond = np.where(at_switches, np.maximum(accounted - rules["reserve_bytes"], 0), 0)
    shared = np.bincount(rules["shared"], beyond, len(w.shared)).astype(np.int64)
    headroom = np.bincount(of_switch[at_switches], w.ingress["headroom_bytes"][at_switches], len(w.switches))
    for what, told, found in (
        ("queues", w.queues["bytes"], queue_bytes),
        ("ingress ports", w.ingress["bytes"] + w.ingress["headroom_bytes"], ingress_bytes),
        ("shared pools", w.shared["bytes"], shared),
        ("headroom pools", w.switches["headroom_bytes"], headroom.astype(np.int64)),
    ):
        if not np.array_equal(told, found):
            raise ConservationError(f"{what} account for {int(told.sum())} bytes; {int(found.sum())} are there")
    if (w.shared["bytes"] > w.shared["limit_bytes"]).any():
        raise ConservationError("a shared pool holds more than it has")
    if (w.ingress["headroom_bytes"] > w.ingress["headroom_limit_bytes"]).any():
        raise ConservationError("a headroom holds more than it has")
    if (w.switches["headroom_bytes"] > w.switches["headroom_limit_bytes"]).any():
        raise ConservationError("a headroom pool holds more than it has")
    return inside
