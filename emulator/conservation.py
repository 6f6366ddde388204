"""Every frame is somewhere: what was created was delivered, dropped or lost, or is in a queue or on a line."""

from __future__ import annotations

import numpy as np

from emulator.buffer import PRIORITIES
from emulator.credits import BLOCK_BYTES
from emulator.impair import BIT_ERRORS
from emulator.packet import CUT, PFC
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


def arrived(w: World) -> np.ndarray:
    """Frames that each port sent and that are no longer on its line: int64 (ports,)."""
    impairment = w.ports["impairment"]
    on_line = np.zeros(len(w.ports), np.int64)
    for heads in (w.ports["line_head"], np.where(impairment >= 0, w.impairments["held_head"][impairment], -1)):
        for i in np.flatnonzero(heads >= 0).tolist():
            on_line[i] += _listed(w.packets, heads[i : i + 1])
    return w.ports["tx_frames"] - on_line


def check_conservation(w: World) -> int:
    """Frames in queues and on lines, at the end of a run or between any two events.

    Raises
    ------
    ConservationError
        If a frame or a byte of a buffer is unaccounted for.
    """
    engine = w.engine[0]
    queues, ingress = w.queues.T.ravel(), w.ingress.T.ravel()  # port by port
    at_switches = np.repeat(w.ports["switch"] >= 0, PRIORITIES)
    held_back = w.impairments["held_head"]
    acks = w.retries["ack_head"][: len(w.ports) if engine["retry_bytes"] else 0]
    inside = _listed(w.packets, np.concatenate([w.ports["line_head"], w.ports["react_head"], held_back, acks]))
    of_switch = np.repeat(w.ports["switch"], PRIORITIES)
    queue_bytes = np.zeros(len(queues), np.int64)
    ingress_bytes = np.zeros(len(ingress), np.int64)
    for q in np.flatnonzero(queues["head"] >= 0).tolist():
        p = int(queues["head"][q])
        while p >= 0:
            inside += 1
            if at_switches[q]:
                size = int(w.packets["wire_bytes"][p]) - int(engine["line_only_bytes"])
                queue_bytes[q] += size
                if w.rules["is_lossless"][q % PRIORITIES, of_switch[q]]:
                    ingress_bytes[int(w.packets["in_port"][p]) * PRIORITIES + q % PRIORITIES] += size
            p = int(w.packets["next"][p])
    held = len(w.packets) - int(engine["free_count"])
    balance = int(engine["created"] - engine["delivered"] - engine["dropped"] - engine["lost"])
    if not inside == held == balance:
        raise ConservationError(
            f"{engine['created']} frames created, {engine['delivered']} delivered, {engine['dropped']} dropped, "
            f"{engine['lost']} lost, so {balance} should be inside; {inside} are listed and {held} rows are held"
        )
    told_lost = int(w.impairments["counts"][:, 1 : BIT_ERRORS + 1].sum() + engine["bad_icrc"] + engine["no_route"])
    told_lost += int(w.ports["link_down"].sum())
    if told_lost != engine["lost"]:
        raise ConservationError(f"{engine['lost']} frames were lost; causes are known of {told_lost}")
    rules = w.rules[np.arange(len(of_switch)) % PRIORITIES, of_switch]
    accounted = np.where(rules["is_lossless"] != 0, ingress["bytes"], queue_bytes)
    beyond = np.where(at_switches, np.maximum(accounted - rules["reserve_bytes"], 0), 0)
    shared = np.bincount(rules["shared"], beyond, len(w.shared)).astype(np.int64)
    headroom = np.bincount(of_switch[at_switches], ingress["headroom_bytes"][at_switches], len(w.switches))
    for what, told, found in (
        ("queues", queues["bytes"], queue_bytes),
        ("ingress ports", ingress["bytes"] + ingress["headroom_bytes"], ingress_bytes),
        ("shared pools", w.shared["bytes"], shared),
        ("headroom pools", w.switches["headroom_bytes"], headroom.astype(np.int64)),
    ):
        if not np.array_equal(told, found):
            raise ConservationError(f"{what} account for {int(told.sum())} bytes; {int(found.sum())} are there")
    if (w.shared["bytes"] > w.shared["limit_bytes"]).any():
        raise ConservationError("a shared pool holds more than it has")
    if (ingress["headroom_bytes"] > ingress["headroom_limit_bytes"]).any():
        raise ConservationError("a headroom holds more than it has")
    if (w.switches["headroom_bytes"] > w.switches["headroom_limit_bytes"]).any():
        raise ConservationError("a headroom pool holds more than it has")
    if engine["is_credited"]:
        _check_credits(w)
    return inside


def _check_credits(w: World) -> None:
    """Each block that was sent is on the line, in the far buffer, or was freed there."""
    out = np.zeros(len(w.credits), np.int64)
    line_only = int(w.engine[0]["line_only_bytes"])

    def count(head: int, port: int | None) -> None:
        p = head
        while p >= 0:
            packet = w.packets[p]
            if packet["kind"] < PFC and not packet["fate"] & CUT:  # whose blocks were freed when its line went down
                sender = (int(packet["in_port"]) ^ 1) if port is None else port
                row = sender * PRIORITIES + int(packet["priority"])
                out[row] += -(-(int(packet["wire_bytes"]) - line_only) // BLOCK_BYTES)
            p = int(packet["next"])

    for i in range(len(w.ports)):
        count(int(w.ports["line_head"][i]), i)
        if w.ports["impairment"][i] >= 0:
            count(int(w.impairments["held_head"][w.ports["impairment"][i]]), i)
        if w.ports["switch"][i] >= 0:
            for head in w.queues["head"][:, i].tolist():
                count(head, None)
    far = np.arange(len(w.credits)) ^ PRIORITIES
    freed = (w.credits["granted_blocks"] - w.credits["buffer_blocks"])[far]
    if not np.array_equal(w.credits["sent_blocks"], out + freed):
        raise ConservationError(
            f"{int(w.credits['sent_blocks'].sum())} blocks were sent; {int(out.sum())} are in buffers and on lines, "
            f"and {int(freed.sum())} were freed"
        )
    if (w.credits["limit_blocks"] > w.credits["granted_blocks"][far]).any():
        raise ConservationError("a sender believes in more credits than its receiver has granted")
    if (out > w.credits["buffer_blocks"][far]).any():
        raise ConservationError("more is on a line and in the buffer behind it than the buffer holds")
