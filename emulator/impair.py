"""What an impaired line does to a frame: lose, damage, double, hold back and delay it, drawn from a hash.

The same impairments as those of :mod:`ttpoe.impair` on a real line, in the same order; each draws from the seed, the
port's name and the number of the frame on its line, so that neither slices, transports nor another impairment change
what one does. A lost frame flies on and is lost where it would arrive, so a line keeps one event. Knows nothing of
what is in a frame, but for its ECN field.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from emulator.packet import CE, ECT, PFC, free_packet, take_packet
from emulator.schedule import mix32
from emulator.workloads.message import name_hash
from emulator.world import TTPOE
from ttpoe._jit import kernel
from ttpoe.impairments import ImpairmentConfig
from ttpoe.units import NEVER

# Causes of a loss, in the order in which they are looked at; a packet's ``fate``.
LINK_DOWN = 1
LOST_BY_NAME = 2
LOST_EVERY = 3
LOST_IN_BURSTS = 4
LOST = 5
BAD_FCS = 6
BIT_ERRORS = 7
# Other counters.
DUPLICATED = 8
REORDERED = 9
CORRUPTED = 10
MARKED = 11
COUNTERS = (
    "link_down", "lost_by_name", "lost_every", "lost_in_bursts", "lost", "bad_fcs", "bit_errors", "duplicated",
    "reordered", "corrupted", "marked",
)  # fmt: skip
"""Names by number, from 1; those of :class:`ttpoe.impairments.ImpairmentCounters`."""

IS_CORRUPTED = 64
"""Bit of a packet's ``fate`` that it keeps from line to line."""
CAUSE = 63
"""Mask of the cause in a packet's ``fate``."""

# Streams of random numbers.
_S_LOSS, _S_BAD_FCS, _S_CORRUPT, _S_DUPLICATE, _S_REORDER, _S_BURST = 0, 1, 2, 3, 4, 5
_S_OVERTAKING, _S_JITTER, _S_JITTER_LOW, _S_BITS, _S_BITS_LOW, _S_MARK = 6, 7, 8, 9, 10, 11
_STREAMS = 12

_CHANCES = ("loss", "bad_fcs", "corrupt_undetected", "mark", "duplicate", "reorder", "burst_begins", "burst_ends")
"""Fields of a row that are probabilities, in 2**-32."""

IMPAIRMENT = np.dtype(
    [
        (name, "i8")
        for name in (
            *_CHANCES,
            "loss_every", "flap_up_ps", "flap_period_ps", "jitter_ps", "max_overtaking", "overtaking_wait_ps",
            "counted_from",  # frames that entered before what holds now; loss_every and names count from there
            "name_next", "name_end",  # ordinals of frames that are lost, in the list of all ports
            "bad_next", "bad_end",  # of those that arrive damaged
            # state
            "first_ps",  # when the first frame entered; NEVER before
            "is_in_burst",
            "right_bits",  # before the next wrong one; -1: not drawn yet
            "latest_ps",  # arrival of the last frame on the line: none arrives before it
            "held_head", "held_tail",  # frames that wait to be overtaken, in the order in which they came
            "chain_tail",  # scratch: the last of what :func:`enter_line` or :func:`let_go_overdue` returned
        )
    ]
    + [("bits_per_error", "f8"), ("salts", "i8", (2 * _STREAMS,)), ("counts", "i8", (1 + len(COUNTERS),))],
    align=True,
)  # fmt: skip
"""One impaired way of a cable. Its packets' ``in_port`` counts, while they are held, who is yet to overtake them, and
``arrive_ps`` is when they are let go at the latest."""


def build_impairments(
    seed: int, port_names: Sequence[str], configs: Mapping[int, ImpairmentConfig],
    bad_fcs: Mapping[int, Sequence[int]], later: Collection[int] = (),
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # fmt: skip
    """Rows of the impaired ports, their ordinals, and int32 (ports,) with each port's row or -1.

    ``later`` are ports whose lines events impair: they have rows from the start, so that all their frames are counted.
    """
    row_of = np.full(len(port_names), -1, np.int32)
    ports = sorted({*configs, *bad_fcs, *later})
    rows = np.zeros(max(len(ports), 1), IMPAIRMENT)
    rows["held_head"] = rows["held_tail"] = -1
    ordinals = np.zeros(1, np.int64)
    for k, port in enumerate(ports):
        row_of[port] = k
        ordinals = impair_row(rows[k], configs.get(port, ImpairmentConfig()), 0, ordinals)
        rows[k]["bad_next"] = len(ordinals)
        ordinals = _listed(ordinals, bad_fcs.get(port, ()))
        rows[k]["bad_end"] = len(ordinals)
        salt = name_hash(seed, "impairment", port_names[port])
        rows[k]["salts"] = [name_hash(salt, "stream", str(n)) & 0xFFFFFFFF for n in range(2 * _STREAMS)]
    return rows, ordinals, row_of


def impair_row(row: np.void, config: ImpairmentConfig, frames: int, ordinals: np.ndarray) -> np.ndarray:
    """Have an IMPAIRMENT row, modified in place, do from now on what ``config`` says; returns the new ordinals.

    ``frames`` have entered the line so far. What has happened to them stays so; bursts, bits and flaps begin anew.
    """
    for name in _CHANCES:
        row[name] = round(getattr(config, name) * 2**32)
    for name in ("loss_every", "flap_up_ps", "jitter_ps", "max_overtaking", "overtaking_wait_ps", "bits_per_error"):
        row[name] = getattr(config, name)
    row["flap_period_ps"] = config.flap_up_ps + config.flap_down_ps if config.flap_down_ps else 0
    row["first_ps"], row["is_in_burst"], row["right_bits"], row["counted_from"] = NEVER, 0, -1, frames
    row["name_next"] = len(ordinals)
    ordinals = _listed(ordinals, config.lose_frames)
    row["name_end"] = len(ordinals)
    return ordinals


def _listed(ordinals: np.ndarray, more: Sequence[int]) -> np.ndarray:
    """Ordinals with others behind them, sorted; int64 even if there are none, as kernels compile for a type."""
    return np.append(ordinals, np.array(sorted(set(more)), np.int64))


@kernel(inline=True)
def _draw(row, stream, n):
    """A number from 0 to 2**32 - 1 for the ``n``-th frame of the line."""
    return mix32(mix32(n ^ row["salts"][2 * stream]) + row["salts"][2 * stream + 1])


@kernel(inline=True)
def _is_named(ordinals, row, n):
    """1 if frame ``n`` is the next to be lost by name; frames are asked for in their order."""
    while row["name_next"] < row["name_end"] and ordinals[row["name_next"]] < n:
        row["name_next"] += 1
    return row["name_next"] < row["name_end"] and ordinals[row["name_next"]] == n


@kernel(inline=True)
def _has_wrong_bit(row, n, size_bytes):
    """1 if one of the bits of frame ``n`` is wrong: those before the next wrong bit are counted down, drawn once."""
    if row["right_bits"] < 0:
        u = (((_draw(row, _S_BITS, n) << 20) | (_draw(row, _S_BITS_LOW, n) >> 12)) + 0.5) * 2.0**-52
        row["right_bits"] = int(min(-math.log(u) * row["bits_per_error"], float(NEVER)))
    if row["right_bits"] < 8 * size_bytes:
        row["right_bits"] = -1  # what follows this frame does not know of it
        return 1
    row["right_bits"] -= 8 * size_bytes
    return 0


@kernel
def cause_of_loss(row, ordinals, n, size_bytes, now_ps):
    """Why the line loses frame ``n`` of ``size_bytes``, FCS and all but preamble and gap, or 0."""
    is_wrong = 0
    if row["bits_per_error"] != 0:
        is_wrong = _has_wrong_bit(row, n, size_bytes)
    if row["burst_begins"] != 0:
        turn = row["burst_ends"] if row["is_in_burst"] else row["burst_begins"]
        if _draw(row, _S_BURST, n) < turn:
            row["is_in_burst"] = 1 - row["is_in_burst"]
    if row["first_ps"] == NEVER:
        row["first_ps"] = now_ps
    if row["flap_period_ps"] != 0 and (now_ps - row["first_ps"]) % row["flap_period_ps"] >= row["flap_up_ps"]:
        return LINK_DOWN
    since = n - row["counted_from"]
    if _is_named(ordinals, row, since):
        return LOST_BY_NAME
    if row["loss_every"] != 0 and since % row["loss_every"] == 0:
        return LOST_EVERY
    if row["is_in_burst"] != 0:
        return LOST_IN_BURSTS
    if row["loss"] != 0 and _draw(row, _S_LOSS, n) < row["loss"]:
        return LOST
    if row["bad_fcs"] != 0 and _draw(row, _S_BAD_FCS, n) < row["bad_fcs"]:
        return BAD_FCS
    if row["bad_next"] < row["bad_end"] and ordinals[row["bad_next"]] <= n:
        row["bad_next"] += 1
        if ordinals[row["bad_next"] - 1] == n:
            return BAD_FCS
    return BIT_ERRORS if is_wrong else 0


@kernel(inline=True)
def _chain(packets, row, first, p, arrive_ps):
    """Put packet ``p`` behind what is to enter the line; returns the first of that."""
    packets[p]["arrive_ps"] = arrive_ps
    packets[p]["next"] = -1
    if first < 0:
        first = p
    else:
        packets[row["chain_tail"]]["next"] = p
    row["chain_tail"] = p
    return first


@kernel(inline=True)
def _copy(engine, packets, frames, p):
    """Another packet like ``p``."""
    q = take_packet(engine, packets)
    packet, copy = packets[p], packets[q]
    for_pfc = packet["kind"] >= PFC
    copy["cookie"] = packet["cookie"] if for_pfc else q
    copy["wire_bytes"] = packet["wire_bytes"]
    copy["end"] = packet["end"]
    copy["dst"] = packet["dst"]
    copy["in_port"] = -1
    copy["kind"] = packet["kind"]
    copy["priority"] = packet["priority"]
    copy["ecn"] = packet["ecn"]
    copy["fate"] = packet["fate"]
    frames[q]["opcode"] = frames[p]["opcode"]
    frames[q]["marks"] = frames[p]["marks"]
    frames[q]["vc"] = frames[p]["vc"]
    frames[q]["tx_seq"] = frames[p]["tx_seq"]
    frames[q]["rx_seq"] = frames[p]["rx_seq"]
    frames[q]["payload_bytes"] = frames[p]["payload_bytes"]
    return q


@kernel
def enter_line(engine, row, ordinals, packets, frames, p, n, now_ps):
    """Frame ``n`` of a line, packet ``p``, is being sent and would arrive at its ``arrive_ps``.

    Parameters
    ----------
    engine : ENGINE row, modified in place
    row : IMPAIRMENT row, modified in place
    ordinals : int64 array
    packets, frames : PACKET and FRAME arrays, modified in place
    p, n, now_ps : int64

    Returns
    -------
    int64
        The first of a chain of packets to be put on the line now, or -1; ``row["chain_tail"]`` is the last.
    """
    packet = packets[p]
    due_ps = max(packet["arrive_ps"], row["latest_ps"])
    cause = cause_of_loss(row, ordinals, n, int(packet["wire_bytes"]) - engine["line_only_bytes"], now_ps)
    if cause != 0:
        packet["fate"] = int(packet["fate"]) | cause
        row["latest_ps"] = due_ps
        return _chain(packets, row, -1, p, due_ps)
    if row["corrupt_undetected"] != 0 and _draw(row, _S_CORRUPT, n) < row["corrupt_undetected"]:
        packet["fate"] = int(packet["fate"]) | IS_CORRUPTED
        row["counts"][CORRUPTED] += 1
    if row["mark"] != 0 and int(packet["ecn"]) == ECT and _draw(row, _S_MARK, n) < row["mark"]:
        packet["ecn"] = CE
        row["counts"][MARKED] += 1
    if row["jitter_ps"] != 0:
        share = (_draw(row, _S_JITTER, n) << 20) | (_draw(row, _S_JITTER_LOW, n) >> 12)  # 52 bits: above an hour
        due_ps = max(packet["arrive_ps"] + share % (row["jitter_ps"] + 1), due_ps)
    row["latest_ps"] = due_ps
    first = -1
    is_doubled = row["duplicate"] != 0 and _draw(row, _S_DUPLICATE, n) < row["duplicate"]
    is_held = row["reorder"] != 0 and _draw(row, _S_REORDER, n) < row["reorder"]
    if is_doubled:
        row["counts"][DUPLICATED] += 1
        first = _chain(packets, row, first, _copy(engine, packets, frames, p), due_ps)
    if not is_held:
        first = _chain(packets, row, first, p, due_ps)
    before = -1
    held = row["held_head"]
    while held >= 0:  # this frame overtakes them
        after = int(packets[held]["next"])
        packets[held]["in_port"] = int(packets[held]["in_port"]) - 1
        if packets[held]["in_port"] == 0:
            if before < 0:
                row["held_head"] = after
            else:
                packets[before]["next"] = after
            if after < 0:
                row["held_tail"] = before
            first = _chain(packets, row, first, held, due_ps)
        else:
            before = held
        held = after
    if is_held:
        row["counts"][REORDERED] += 1
        packet["in_port"] = 1 + (_draw(row, _S_OVERTAKING, n) * row["max_overtaking"] >> 32)
        packet["arrive_ps"] = due_ps + row["overtaking_wait_ps"]
        packet["next"] = -1
        if row["held_tail"] < 0:
            row["held_head"] = p
        else:
            packets[row["held_tail"]]["next"] = p
        row["held_tail"] = p
    return first


@kernel
def let_go_overdue(row, packets, now_ps):
    """What too few have overtaken in time enters the line behind what is on it; as :func:`enter_line`."""
    first = -1
    while row["held_head"] >= 0 and packets[row["held_head"]]["arrive_ps"] <= now_ps:
        p = row["held_head"]
        row["held_head"] = int(packets[p]["next"])
        if row["held_head"] < 0:
            row["held_tail"] = -1
        row["latest_ps"] = max(row["latest_ps"], now_ps)
        first = _chain(packets, row, first, p, row["latest_ps"])
    return first


@kernel(inline=True)
def next_overdue_ps(row, packets):
    """When :func:`let_go_overdue` is due; NEVER if nothing is held."""
    return packets[row["held_head"]]["arrive_ps"] if row["held_head"] >= 0 else NEVER


@kernel
def is_lost(engine, rows, packets, p, i, is_at_host):
    """1 if packet ``p``, at the end of the line of row ``i``, goes no further: counted and freed.

    The line may have lost it; a host refuses what was corrupted on any line, as RoCE's ICRC or TCP's
    checksum shows; TTPoE has neither.
    """
    fate = int(packets[p]["fate"])
    if fate & CAUSE:
        rows[i]["counts"][fate & CAUSE] += 1
    elif is_at_host != 0 and engine["protocol"] != TTPOE and packets[p]["kind"] < PFC:
        engine["bad_icrc"] += 1
    else:
        return 0
    engine["lost"] += 1
    free_packet(engine, packets, p)
    return 1
