"""Compiled calls over many frames: what stands between arrays of received bytes and the machine, and back.

One call takes a batch of frames from the line through parsing, the link table and the machine, writes the answers as
bytes and gathers the payload; another cuts PAYLOAD frames of one link from its send buffer. Python pays for a call,
not for a frame. Knows nothing of sockets, clocks and owners.

Row 0 of the LINK array belongs to nobody: it stays CLOSED, like a row that was used before, and answers from the state
tables for links unknown. So what strangers send costs no memory.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag

import numpy as np

from ttpoe._jit import kernel
from ttpoe.constants import HEADER_BYTES, MIN_FRAME_BYTES, SHIM_LENGTH_BASE, TOTAL_LENGTH_BASE
from ttpoe.fsm import Opcode, State
from ttpoe.guard import PASS, WAIT, idle_deadline_ps, on_idle, pick_victim, screen
from ttpoe.ipv4 import build_ipv4_header, marks_of, parse_ipv4_header, set_ipv4_lengths, set_marks
from ttpoe.machine import MAX_ANSWERS, next_payload_bytes, on_frame, on_timeout, poll_payload
from ttpoe.rules import Rule
from ttpoe.tagtable import find_row, tag_set
from ttpoe.units import NEVER
from ttpoe.wire import Mode, Reason, build_header, check_transport, parse_header


class LinkEvent(IntFlag):
    """What happened on a link since its owner last looked."""

    OPENED = 1
    DATA = 2  # bytes can be read
    ACKED = 4  # the send buffer has more room
    CLOSED = 8  # an orderly end
    FAILED = 16  # another end: ``link["failure"]``


class Stop(IntEnum):
    """Why :func:`take_frames` returned."""

    DONE = 0
    LINK_ENDED = 1  # release its row, then go on
    STRANGER_OPENS = 2  # an OPEN for no row: give it a row, ``victim``'s if not 0, and go on there; or skip it
    ANSWERS_FULL = 3  # no room for answers: send them first


DROPS = (
    *(reason.name.lower() for reason in Reason),
    "foreign_destination", "bad_source", "unknown_link", "open_refused", "open_waits", "answers_full",
)  # fmt: skip
"""Names of the counters of refused frames: the reasons of :mod:`ttpoe.wire`, then those of an endpoint."""
FOREIGN_DESTINATION, BAD_SOURCE, UNKNOWN_LINK, OPEN_REFUSED, OPEN_WAITS, ANSWERS_FULL = range(len(Reason), len(DROPS))

BATCH = np.dtype(
    [(name, "i8") for name in ("next_frame", "n_answers", "n_changed", "n_deliveries", "stop", "victim")],
    align=True,
)
"""Where a batch stands. ``n_answers`` goes in and out, the rest comes out."""

LIMITS = np.dtype(
    [(name, "i8") for name in ("set_bits", "idle_timeout_ps", "victim_idle_ps", "takes_opens")], align=True
)
"""Of an endpoint: the tag table's sets as a power of two, when a silent peer is asked, when a link may have to go for
another, and whether a stranger's OPEN may get a row."""

SERVING_ORDER = (1, 0, 2)
"""Place of each virtual channel: REQ_HI goes before REQ_LO, and that before DATA."""

_OPEN, _PAYLOAD, _S_CLOSED, _S_OPEN = int(Opcode.OPEN), int(Opcode.PAYLOAD), int(State.CLOSED), int(State.OPEN)
_E_OPENED, _E_DATA, _E_ACKED = int(LinkEvent.OPENED), int(LinkEvent.DATA), int(LinkEvent.ACKED)
_E_CLOSED, _E_FAILED = int(LinkEvent.CLOSED), int(LinkEvent.FAILED)
_DONE, _LINK_ENDED = int(Stop.DONE), int(Stop.LINK_ENDED)
_STRANGER_OPENS, _STOP_ANSWERS_FULL = int(Stop.STRANGER_OPENS), int(Stop.ANSWERS_FULL)
_GROUP_BIT = 1 << 40  # of a MAC in an int: multicast and broadcast
_IPV4 = int(Mode.IPV4)
_SHIM_TOO_SHORT, _SHORT_SHIM = int(Reason.SHIM_TOO_SHORT), int(Rule.SHORT_SHIM)


@kernel(inline=True)
def _copy(source, source_at, target, target_at, count):
    for k in range(count):  # a slice assignment would allocate
        target[target_at + k] = source[source_at + k]


@kernel
def _write_frame(header, frame, slot):
    """Bytes of ``frame`` (FRAME row) before its payload, addressed as ``header`` (HEADER row, modified in place)."""
    length = frame["payload_bytes"]
    header["opcode"] = frame["opcode"]
    header["vc"] = frame["vc"]
    header["tx_seq"] = frame["tx_seq"]
    header["rx_seq"] = frame["rx_seq"]
    if header["mode"] == _IPV4:
        set_marks(header, frame["marks"])
        set_ipv4_lengths(header, length)
        build_ipv4_header(header, slot)
    else:
        header["shim_length"] = SHIM_LENGTH_BASE + length
        header["total_length"] = TOTAL_LENGTH_BASE + length
        build_header(header, slot)


@kernel
def _is_from_a_peer(header, own_mac, own_ip):
    """Source addresses that a peer can have: a host's, and not ours."""
    src_mac, src_ip = header["src_mac"], header["src_ip"]
    if src_mac == own_mac or src_mac & _GROUP_BIT != 0:
        return False
    network = src_ip >> 24
    return own_ip == 0 or (src_ip != own_ip and 1 <= network < 224 and network != 127)


@kernel
def _note(link, row, state, rx_bytes, acked_bytes, events, changed, n_changed):
    """Compare a link with its fields before, add what happened to ``events[row]``; returns the rows in ``changed``."""
    news = 0
    if link["rx_bytes"] != rx_bytes:
        news |= _E_DATA
    if link["acked_bytes"] != acked_bytes:
        news |= _E_ACKED
    if link["state"] != state:
        if link["state"] == _S_OPEN:
            news |= _E_OPENED
        elif link["state"] == _S_CLOSED:
            news |= _E_CLOSED if link["failure"] == 0 else _E_FAILED
    if news != 0:
        if events[row] == 0:
            changed[n_changed] = row
            n_changed += 1
        events[row] |= news
    return n_changed


@kernel(export=True)
def write_answers(out, n_out, headers, row, answers, n_answers):
    """Bytes of the first ``n_out`` rows of ``out`` into ``answers`` from ``n_answers`` on; returns those in use."""
    for k in range(n_out):
        _write_frame(headers[row], out[k], answers[n_answers + k])
    return n_answers + n_out


@kernel(export=True)
def take_frames(
    first, n_frames, now_ps, own_mac, own_ip, max_payload_bytes, slots, lengths, batch, limits, links, guards, ring,
    pools, params, headers, tags, keys, header, frame, out, answers, events, changed, deliveries, delivered, drops,
):
    """Take received frames through the machine, until all are taken or the caller has something to decide.

    Parameters
    ----------
    first, n_frames : int64
        Frames ``first`` to ``n_frames - 1`` of ``slots`` are taken.
    now_ps, own_mac, own_ip, max_payload_bytes : int64
        ``own_ip`` is our IPv4 address in IPv4 mode, and 0 in Ethernet mode.
    slots : uint8 array, shape (n, bytes)
    lengths : int64 array, shape (n,)
        Bytes received in each slot.
    batch : BATCH array, shape (1,), modified in place
    limits : LIMITS array, shape (1,)
    links, guards, ring, pools, params : arrays of the machine and of :mod:`ttpoe.guard`, modified in place
    headers : HEADER array, modified in place
        Addresses of each link.
    tags, keys : int64 arrays
        See :func:`ttpoe.tagtable.find_row`.
    header, frame, out : HEADER (1,), FRAME (1,) and FRAME (MAX_ANSWERS,) arrays, modified in place
        Scratch; after STRANGER_OPENS ``header`` and ``frame`` hold the OPEN.
    answers : uint8 array, shape (n, 64), modified in place
        Frames to send, from ``batch["n_answers"]`` on. Zero behind byte 60.
    events, changed : int64 arrays, one per row, modified in place
        `LinkEvent` bits of each row, and the rows that have some.
    deliveries : int64 array, shape (n, 3), modified in place
        Row, start and end in ``delivered`` of payload in order; neighbours of one link are joined.
    delivered : uint8 array, modified in place
        Room for the payload of all slots.
    drops : int64 array, modified in place
        Counts by `DROPS`.
    """
    set_bits = limits[0]["set_bits"]
    n_answers = batch[0]["n_answers"]
    n_changed = 0
    n_deliveries = 0
    end = 0
    stop = _DONE
    k = first
    while k < n_frames:
        if n_answers + MAX_ANSWERS > len(answers):
            stop = _STOP_ANSWERS_FULL
            break
        if own_ip == 0:
            reason = int(parse_header(slots[k], lengths[k], max_payload_bytes, header[0]))
            peer = header[0]["src_mac"]
        else:
            reason = int(parse_ipv4_header(slots[k], lengths[k], max_payload_bytes, header[0]))
            peer = header[0]["src_ip"]
        if reason == _SHIM_TOO_SHORT and params[0]["rules"] & _SHORT_SHIM != 0:
            reason = check_transport(header[0], max_payload_bytes)
            if reason == 0 and header[0]["opcode"] != _PAYLOAD:
                reason = _SHIM_TOO_SHORT
            header[0]["payload_bytes"] = 0
        if reason == 0:
            if header[0]["dst_mac"] != own_mac or (own_ip != 0 and header[0]["dst_ip"] != own_ip):
                reason = FOREIGN_DESTINATION
            elif not _is_from_a_peer(header[0], own_mac, own_ip):
                reason = BAD_SOURCE
        if reason != 0:
            drops[reason] += 1
            k += 1
            continue
        frame[0]["opcode"] = header[0]["opcode"]
        frame[0]["vc"] = header[0]["vc"]
        frame[0]["tx_seq"] = header[0]["tx_seq"]
        frame[0]["rx_seq"] = header[0]["rx_seq"]
        frame[0]["payload_bytes"] = header[0]["payload_bytes"]
        frame[0]["marks"] = marks_of(header[0]) if own_ip != 0 and params[0]["rules"] == 0 else 0
        opcode = int(frame[0]["opcode"])
        vc = int(frame[0]["vc"])
        row = find_row(tags, keys, set_bits, peer, vc)
        link = links[row]
        if row == 0:
            if opcode == _OPEN:
                if limits[0]["takes_opens"] != 0:
                    ways = tags[vc, tag_set(peer, set_bits)]
                    victim = pick_victim(ways, links, guards, now_ps, limits[0]["victim_idle_ps"])
                    if victim >= 0:
                        batch[0]["victim"] = victim
                        stop = _STRANGER_OPENS
                        break
                    if victim == WAIT:  # it comes again, and finds the way free
                        drops[OPEN_WAITS] += 1
                        k += 1
                        continue
                drops[OPEN_REFUSED] += 1
            if opcode == _PAYLOAD:
                drops[UNKNOWN_LINK] += 1
            link["vc"] = frame[0]["vc"]
            headers[0]["dst_mac"] = header[0]["src_mac"]
            headers[0]["dst_node"] = header[0]["src_mac"] & 0xFFFFFF
            headers[0]["dst_ip"] = header[0]["src_ip"]
        state = link["state"]
        rx_bytes = link["rx_bytes"]
        acked_bytes = link["acked_bytes"]
        n_out = PASS
        if row != 0:
            n_out = screen(link, guards[row], params[0], frame[0], now_ps, out)
        if n_out == PASS:
            n_out = on_frame(link, ring, pools[0], params[0], frame[0], now_ps, out, 0)
        for j in range(n_out):
            _write_frame(headers[row], out[j], answers[n_answers])
            n_answers += 1
        n_changed = _note(link, row, state, rx_bytes, acked_bytes, events, changed, n_changed)
        length = link["rx_bytes"] - rx_bytes
        if length > 0 or link["acked_bytes"] != acked_bytes:
            guards[row]["used_at_ps"] = now_ps
        if length > 0:
            if n_deliveries == 0 or deliveries[n_deliveries - 1, 0] != row:
                deliveries[n_deliveries, 0] = row
                deliveries[n_deliveries, 1] = end
                n_deliveries += 1
            _copy(slots[k], HEADER_BYTES, delivered, end, length)
            end += length
            deliveries[n_deliveries - 1, 2] = end
        if row != 0 and link["state"] == _S_CLOSED:
            stop = _LINK_ENDED
            k += 1
            break
        k += 1
    batch[0]["next_frame"] = k
    batch[0]["n_answers"] = n_answers
    batch[0]["n_changed"] = n_changed
    batch[0]["n_deliveries"] = n_deliveries
    batch[0]["stop"] = stop


@kernel(export=True)
def expire_timers(now_ps, batch, limits, links, guards, params, headers, out, answers, events, changed):
    """:func:`ttpoe.machine.on_timeout` and :func:`ttpoe.guard.on_idle` on every link whose time has come.

    Parameters as for :func:`take_frames`.
    """
    n_answers = batch[0]["n_answers"]
    n_changed = 0
    for row in range(1, len(links)):
        link = links[row]
        is_due = link["timer_at_ps"] <= now_ps
        is_idle = idle_deadline_ps(link, guards[row], limits[0]["idle_timeout_ps"]) <= now_ps
        if not (is_due or is_idle) or n_answers + MAX_ANSWERS > len(answers):
            continue
        state = link["state"]
        acked_bytes = link["acked_bytes"]
        if is_idle:
            n_out = on_idle(link, guards[row], params[0], now_ps, out, 0)
        else:
            n_out = on_timeout(link, params[0], now_ps, out, 0)
        for j in range(n_out):
            _write_frame(headers[row], out[j], answers[n_answers])
            n_answers += 1
        n_changed = _note(link, row, state, link["rx_bytes"], acked_bytes, events, changed, n_changed)
    batch[0]["n_answers"] = n_answers
    batch[0]["n_changed"] = n_changed


@kernel(export=True)
def earliest_deadline_ps(links, guards, limits, ring, pools, params):
    """When :func:`expire_timers` has something to do, or a link that waits may send; NEVER if none waits."""
    earliest = NEVER
    for row in range(1, len(links)):
        link = links[row]
        earliest = min(earliest, link["timer_at_ps"])
        earliest = min(earliest, idle_deadline_ps(link, guards[row], limits[0]["idle_timeout_ps"]))
        if 0 < link["pace_at_ps"] < earliest and next_payload_bytes(link, pools[0], params[0], ring) > 0:
            earliest = link["pace_at_ps"]
    return earliest


@kernel(export=True)
def next_sendable(links, turns, ring, pools, params, now_ps):
    """Row that may send a PAYLOAD now, or 0: of the first channel in `SERVING_ORDER` that has some, the next in turn.

    Parameters
    ----------
    links, ring, pools, params, now_ps : as for :func:`take_frames`
    turns : int64 array, shape (channels,), modified in place
        Row of each channel that had the last turn.
    """
    n_rows = len(links)
    chosen = 0
    least = NEVER
    for row in range(1, n_rows):
        if links[row]["pace_at_ps"] <= now_ps and next_payload_bytes(links[row], pools[0], params[0], ring) > 0:
            vc = links[row]["vc"]
            place = SERVING_ORDER[vc] * n_rows + (row - turns[vc] - 1) % n_rows
            if place < least:
                least = place
                chosen = row
    if chosen != 0:
        turns[links[chosen]["vc"]] = chosen
    return chosen


@kernel(export=True)
def cut_payloads(links, row, ring, pools, params, headers, send_buffer, now_ps, out, slots, lengths):
    """Write PAYLOAD frames of one link into ``slots`` until they are full or none may be sent; returns how many.

    Parameters
    ----------
    links, row, ring, pools, params, headers, out :
        As for :func:`take_frames`.
    send_buffer : uint8 array
        Byte ``offset`` of the stream is at ``offset % len(send_buffer)``.
    now_ps : int64
    slots : uint8 array, shape (n, bytes), modified in place
    lengths : int64 array, shape (n,), modified in place
        Bytes of each frame, padding to 64 included.
    """
    capacity = len(send_buffer)
    link = links[row]
    n = 0
    while n < len(slots):
        if poll_payload(link, ring, pools[0], params[0], now_ps, out, 0) != 1:
            break
        slot = slots[n]
        _write_frame(headers[row], out[0], slot)
        length = out[0]["payload_bytes"]
        at = (link["sent_bytes"] - length) % capacity
        until_wrap = min(length, capacity - at)
        _copy(send_buffer, at, slot, HEADER_BYTES, until_wrap)
        _copy(send_buffer, 0, slot, HEADER_BYTES + until_wrap, length - until_wrap)
        lengths[n] = max(HEADER_BYTES + length, MIN_FRAME_BYTES)
        for k in range(HEADER_BYTES + length, MIN_FRAME_BYTES):
            slot[k] = 0
        n += 1
    return n
