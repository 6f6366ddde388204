"""The event queue, and the order of what happens at one instant.

Near events lie in a ring of short buckets of time and are sorted when their bucket comes up: most lines are busy for
nanoseconds and end within microseconds, so a bucket holds a handful. Later ones (pauses, timeouts) lie in a second ring
of eras, each spread over the buckets when it begins; the farthest wait in a 4-ary heap. An
event's order is its time, then its class, then a hash that breaks ties without favour. Knows nothing of what an event
means.
"""

from __future__ import annotations

import numpy as np

from ttpoe._jit import kernel
from ttpoe.units import NEVER

# Classes, in the order in which they happen at one instant.
DEPARTURE = 0  # a port may take its next frame, which frees buffer
LINK_STATE = 1  # a pause takes effect, expires, or is due for renewal
ARRIVAL = 2  # the head of a port's line reaches the far end
TIMER = 3  # a transport's timer, or a flow starts

SCHEDULE = np.dtype(
    [
        (name, "i8")
        for name in (
            "shift",  # a bucket is 2**shift ps
            "bucket",  # number of the bucket that is being served
            "cursor", "due_count",  # its events, sorted: due[cursor:due_count], each time in the bucket, class and hash
            "free_head",  # rows of ``nodes``
            "free_count",  # events that still fit, wherever: in the rings, the far heap, or the bucket being served
            "far_count",
            "summary",  # bit w: words[w] is not zero
            "era_summary",
        )
    ]
    + [("words", "i8", (32,)), ("slots", "i4", (1024,))]  # 32 slots a word, set where not empty; heads of the ring
    + [("era_words", "i8", (32,)), ("era_slots", "i4", (1024,))],  # the same of the ring of eras
    align=True,
)  # fmt: skip

EVENT = np.dtype([("time_ps", "i8"), ("rank", "i8"), ("subject", "i4"), ("next", "i4")], align=True)
"""An event in a ring or in the far heap. ``rank``: class and hash, 34 bits. ``subject``: what it concerns."""

_BLOCK = 32  # our choice: counting costs n**2 / 4 vector steps, a merge pass n
SLOTS = 1024
_SLOT_MASK = SLOTS - 1
_ERA_SHIFT = 10  # an era is as many buckets as the ring of buckets has slots
_CLASS_SHIFT = 32
_ORDER_SHIFT = 34
MAX_SHIFT = 28
_CLASS_MASK = 3

_BIT_OF = np.zeros(32, np.int64)
for _bit in range(32):
    _BIT_OF[((1 << _bit) * 0x077CB531 & 0xFFFFFFFF) >> 27] = _bit


@kernel(inline=True)
def mix32(value):
    """A 32-bit hash of an int64 in [0, 2**32): two rounds of xor-shift and multiply, in masked int64.

    Source: our choice; the multiplier is the one of C. Wellons' prospector search, small enough not to leave int64.
    """
    x = value & 0xFFFFFFFF
    x = ((x ^ (x >> 16)) * 0x45D9F3B) & 0xFFFFFFFF
    x = ((x ^ (x >> 16)) * 0x45D9F3B) & 0xFFFFFFFF
    return x ^ (x >> 16)


@kernel(inline=True)
def _lowest_bit(word):
    """Number of the lowest bit set in a 32-bit word that is not zero (de Bruijn multiplication)."""
    return _BIT_OF[(((word & -word) * 0x077CB531) & 0xFFFFFFFF) >> 27]


@kernel
def _far_push(far, n, node):
    """Add ``node`` (EVENT row) to the heap ``far`` of ``n`` events."""
    time_ps, rank, subject = node["time_ps"], node["rank"], node["subject"]
    i = n
    while i > 0:
        above = far[(i - 1) >> 2]
        if above["time_ps"] < time_ps or (above["time_ps"] == time_ps and above["rank"] < rank):
            break
        far[i]["time_ps"], far[i]["rank"], far[i]["subject"] = above["time_ps"], above["rank"], above["subject"]
        i = (i - 1) >> 2
    far[i]["time_ps"], far[i]["rank"], far[i]["subject"] = time_ps, rank, subject


@kernel
def _far_pop(far, n):
    """Remove the first of ``n`` events of the heap, which the caller has read."""
    n -= 1
    time_ps, rank, subject = far[n]["time_ps"], far[n]["rank"], far[n]["subject"]
    i = 0
    child = 1
    while child < n:
        best = child
        for k in range(child + 1, min(child + 4, n)):
            if far[k]["time_ps"] < far[best]["time_ps"] or (
                far[k]["time_ps"] == far[best]["time_ps"] and far[k]["rank"] < far[best]["rank"]
            ):
                best = k
        below = far[best]
        if time_ps < below["time_ps"] or (time_ps == below["time_ps"] and rank < below["rank"]):
            break
        far[i]["time_ps"], far[i]["rank"], far[i]["subject"] = below["time_ps"], below["rank"], below["subject"]
        i = best
        child = (i << 2) + 1
    far[i]["time_ps"], far[i]["rank"], far[i]["subject"] = time_ps, rank, subject


@kernel
def _sort(due, subjects, spare, spare_subjects, n):
    """Sort ``due[:n]`` and its ``subjects`` in place, by way of the spare arrays.

    In blocks, each event counts those before it, which compiles to vector code without a branch to mispredict; then
    blocks are merged.
    """
    for first in range(0, n, _BLOCK):
        end = min(first + _BLOCK, n)
        for k in range(first, end):
            order = due[k]
            at = first
            for j in range(first, end):
                at += (due[j] < order) | ((due[j] == order) & (j < k))
            spare[at] = order
            spare_subjects[at] = subjects[k]
    width = _BLOCK
    is_in_spare = True
    while width < n:
        for first in range(0, n, 2 * width):
            a, b = first, min(first + width, n)
            a_end, b_end = b, min(first + 2 * width, n)
            for k in range(first, b_end):
                is_a = b == b_end or (a != a_end and spare[a] <= spare[b])
                source = a if is_a else b
                due[k] = spare[source]
                subjects[k] = spare_subjects[source]
                a += is_a
                b += 1 - is_a
        spare, due = due, spare
        spare_subjects, subjects = subjects, spare_subjects
        is_in_spare = not is_in_spare
        width *= 2
    if is_in_spare:
        for k in range(n):
            due[k] = spare[k]
            subjects[k] = spare_subjects[k]


@kernel(inline=True)
def _into_ring(schedule, node, n, slot):
    """Put row ``n``, ``node``, in ``slot`` of the ring of buckets."""
    head = int(schedule["slots"][slot])
    node["next"] = head
    schedule["slots"][slot] = n
    if head < 0:
        schedule["words"][slot >> 5] |= 1 << (slot & 31)
        schedule["summary"] |= 1 << (slot >> 5)


@kernel(inline=True)
def push(world, time_ps, event_class, subject, port):
    """Add an event.

    Parameters
    ----------
    world : World
    time_ps : int64
        Not before the event being served.
    event_class : int64
    subject : int64
        Index of what it concerns, below 2**31.
    port : PORT row, its ``tie`` modified in place
        Ties are broken by a hash of the port's name and its count of events. With time alone one of 32 equal senders
        lost nothing and another everything; with the hash all lose alike.
    """
    schedule = world.schedule[0]
    tie = port["tie"] + 1
    port["tie"] = tie
    rank = (event_class << _CLASS_SHIFT) | mix32(tie)
    bucket = time_ps >> schedule["shift"]
    ahead = bucket - schedule["bucket"]
    schedule["free_count"] -= 1
    if ahead == 0:
        order = ((time_ps - (bucket << schedule["shift"])) << _ORDER_SHIFT) | rank
        i = schedule["due_count"]
        schedule["due_count"] = i + 1
        while i > schedule["cursor"] and world.due[i - 1] > order:
            world.due[i] = world.due[i - 1]
            world.due_subject[i] = world.due_subject[i - 1]
            i -= 1
        world.due[i] = order
        world.due_subject[i] = subject
        return
    n = schedule["free_head"]
    node = world.nodes[n]
    node["time_ps"], node["rank"], node["subject"] = time_ps, rank, subject
    if ahead < SLOTS:
        schedule["free_head"] = int(node["next"])
        _into_ring(schedule, node, n, bucket & _SLOT_MASK)
    elif (bucket >> _ERA_SHIFT) - (schedule["bucket"] >> _ERA_SHIFT) < SLOTS:
        schedule["free_head"] = int(node["next"])
        slot = (bucket >> _ERA_SHIFT) & _SLOT_MASK
        head = int(schedule["era_slots"][slot])
        node["next"] = head
        schedule["era_slots"][slot] = n
        if head < 0:
            schedule["era_words"][slot >> 5] |= 1 << (slot & 31)
            schedule["era_summary"] |= 1 << (slot >> 5)
    else:
        _far_push(world.far, schedule["far_count"], node)
        schedule["far_count"] += 1


@kernel(inline=True)
def _distance(summary, words, start):
    """Slots from ``start`` on, around the ring, to the first that is not empty; ``summary`` is not zero."""
    word = start >> 5
    rest = words[word] >> (start & 31)
    if rest != 0:
        return _lowest_bit(rest)
    later = summary & ~((2 << word) - 1)
    if later == 0:
        later = summary
    word = _lowest_bit(later)
    return ((word << 5) + _lowest_bit(words[word]) - start) & _SLOT_MASK


@kernel(inline=True)
def _next_bucket(world):
    """Number of the next bucket in the ring or the far heap, NEVER if there is none."""
    schedule = world.schedule[0]
    bucket = NEVER
    if schedule["summary"] != 0:
        after = schedule["bucket"] + 1
        bucket = after + _distance(schedule["summary"], schedule["words"], after & _SLOT_MASK)
    if schedule["far_count"] != 0:
        bucket = min(bucket, world.far[0]["time_ps"] >> schedule["shift"])
    return bucket


@kernel(inline=True)
def _open_era(world, bucket):
    """Spread the next era over the ring of buckets, if it begins before ``bucket`` ends; returns the next bucket."""
    schedule = world.schedule[0]
    after = (schedule["bucket"] >> _ERA_SHIFT) + 1
    era = after + _distance(schedule["era_summary"], schedule["era_words"], after & _SLOT_MASK)
    if era > bucket >> _ERA_SHIFT:
        return bucket
    schedule["bucket"] = (era << _ERA_SHIFT) - 1  # nothing lies before the era, so all of it fits the ring
    slot = era & _SLOT_MASK
    n = int(schedule["era_slots"][slot])
    schedule["era_slots"][slot] = -1
    schedule["era_words"][slot >> 5] &= ~(1 << (slot & 31))
    if schedule["era_words"][slot >> 5] == 0:
        schedule["era_summary"] &= ~(1 << (slot >> 5))
    while n >= 0:
        node = world.nodes[n]
        after_n = int(node["next"])
        _into_ring(schedule, node, n, (node["time_ps"] >> schedule["shift"]) & _SLOT_MASK)
        n = after_n
    return _next_bucket(world)


@kernel(inline=True)
def open_next_bucket(world):
    """Serve the next bucket that has events; returns 0 if there is none anywhere. Call when the last one is done."""
    schedule = world.schedule[0]
    schedule["free_count"] += schedule["due_count"]
    schedule["cursor"] = 0
    schedule["due_count"] = 0
    bucket = _next_bucket(world)
    if schedule["era_summary"] != 0:
        bucket = _open_era(world, bucket)
    if bucket == NEVER:
        return 0
    start_ps = bucket << schedule["shift"]
    schedule["bucket"] = bucket
    count = 0
    slot = bucket & _SLOT_MASK
    n = int(schedule["slots"][slot])
    if n >= 0 and world.nodes[n]["time_ps"] >> schedule["shift"] == bucket:
        schedule["slots"][slot] = -1
        word = slot >> 5
        schedule["words"][word] &= ~(1 << (slot & 31))
        if schedule["words"][word] == 0:
            schedule["summary"] &= ~(1 << word)
        while n >= 0:
            node = world.nodes[n]
            world.due[count] = ((node["time_ps"] - start_ps) << _ORDER_SHIFT) | node["rank"]
            world.due_subject[count] = node["subject"]
            count += 1
            after = int(node["next"])
            node["next"] = schedule["free_head"]
            schedule["free_head"] = n
            n = after
    while schedule["far_count"] != 0 and world.far[0]["time_ps"] >> schedule["shift"] == bucket:
        world.due[count] = ((world.far[0]["time_ps"] - start_ps) << _ORDER_SHIFT) | world.far[0]["rank"]
        world.due_subject[count] = world.far[0]["subject"]
        count += 1
        _far_pop(world.far, schedule["far_count"])
        schedule["far_count"] -= 1
    if count > 1:
        _sort(world.due, world.due_subject, world.spare, world.spare_subject, count)
    schedule["due_count"] = count
    return 1


@kernel(inline=True)
def due_time_ps(schedule, due):
    """Time of the first event of the bucket being served."""
    return (schedule["bucket"] << schedule["shift"]) + (due[schedule["cursor"]] >> _ORDER_SHIFT)


@kernel(inline=True)
def due_class(due, cursor):
    """Class of event ``cursor`` of the bucket being served."""
    return (due[cursor] >> _CLASS_SHIFT) & _CLASS_MASK


def bucket_shift(longest_ps: int) -> int:
    """The least shift with which an event ``longest_ps`` ahead still lies in the ring."""
    return min(max((longest_ps // (SLOTS - 1)).bit_length(), 1), MAX_SHIFT)
