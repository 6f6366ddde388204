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


def _listed(w: World, heads: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Packets in the lists that begin at ``heads``, and in which of these each is: int64 arrays."""
    after = w.packets["next"]
    found, lists = [], []
    for k in np.flatnonzero(heads >= 0).tolist():
        p = int(heads[k])
        while p >= 0:
            found.append(p)
            lists.append(k)
            p = int(after[p])
    return np.array(found, np.int64), np.array(lists, np.int64)


def _on_lines(w: World) -> tuple[np.ndarray, np.ndarray]:
    """Packets on lines, those that are held back there included, and the port that sent each."""
    impairment = w.ports["impairment"]
    held = np.where(impairment >= 0, w.impairments["held_head"][impairment], -1)
    found, which = _listed(w, np.concatenate([w.ports["line_head"], held]))
    return found, which % len(w.ports)


def arrived(w: World) -> np.ndarray:
    """Frames that each port sent and that are no longer on its line: int64 (ports,)."""
    return np.asarray(w.ports["tx_frames"] - np.bincount(_on_lines(w)[1], minlength=len(w.ports)))


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
    acks = w.retries["ack_head"][: len(w.ports) if engine["retry_bytes"] else 0]
    beside, _ = _listed(w, np.concatenate([w.ports["react_head"], acks]))
    queued, which = _listed(w, queues["head"])
    inside = len(_on_lines(w)[0]) + len(beside) + len(queued)
    of_switch = np.repeat(w.ports["switch"], PRIORITIES)
    queue_bytes = np.zeros(len(queues), np.int64)
    ingress_bytes = np.zeros(len(ingress), np.int64)
    queued, which = queued[at_switches[which]], which[at_switches[which]]
    size_bytes = w.packets["wire_bytes"][queued] - engine["line_only_bytes"]
    np.add.at(queue_bytes, which, size_bytes)
    is_lossless = w.rules["is_lossless"][which % PRIORITIES, of_switch[which]] != 0
    came_by = w.packets["in_port"][queued] * PRIORITIES + which % PRIORITIES
    np.add.at(ingress_bytes, came_by[is_lossless], size_bytes[is_lossless])
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
    flying, senders = _on_lines(w)
    queued, _ = _listed(w, w.queues["head"][:, w.ports["switch"] >= 0].ravel())
    packets = w.packets[np.concatenate([flying, queued])]
    senders = np.concatenate([senders, w.packets["in_port"][queued] ^ 1])
    blocks = -(-(packets["wire_bytes"] - w.engine[0]["line_only_bytes"]) // BLOCK_BYTES)
    counts = (packets["kind"] < PFC) & (packets["fate"] & CUT == 0)  # a CUT one's were freed when its line went down
    np.add.at(out, (senders * PRIORITIES + packets["priority"])[counts], blocks[counts])
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
