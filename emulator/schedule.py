"""The event queue: a 4-ary heap of (time, key), and the order of what happens at one instant.

A key holds the event's class, a hash that breaks ties without favour, and the index of what it concerns. Knows
nothing of what events mean.
"""

from __future__ import annotations

import numpy as np

from ttpoe._jit import kernel

EVENT = np.dtype([("time_ps", "i8"), ("key", "i8")], align=True)

# Classes, in the order in which they happen at one instant.
DEPARTURE = 0  # a port may take its next frame, which frees buffer
LINK_STATE = 1  # a pause takes effect, expires, or is due for renewal
ARRIVAL = 2  # the head of a port's line reaches the far end
TIMER = 3  # a transport's timer, or a flow starts

_CLASS_SHIFT = 60
_HASH_SHIFT = 28
INDEX_MASK = (1 << _HASH_SHIFT) - 1
"""At most 2**28 ports, ends and flows."""


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
def event_key(event_class, index, port):
    """Key of an event; the tie-break hashes the port's name (in ``salt``) and its count of events so far.

    With time alone one of 32 equal senders lost nothing and another everything; with the hash all lose alike.
    ``port``: PORT row, its count modified in place.
    """
    count = port["event_count"] + 1
    port["event_count"] = count
    return (event_class << _CLASS_SHIFT) | (mix32(port["salt"] + count) << _HASH_SHIFT) | index


@kernel(inline=True)
def event_class(key):
    """The class within a key."""
    return key >> _CLASS_SHIFT


@kernel
def push(heap, n, time_ps, key):
    """Add an event to ``heap`` (EVENT array with ``n`` events, modified in place); returns the new count."""
    i = n
    while i > 0:
        parent = (i - 1) >> 2
        above = heap[parent]
        if above["time_ps"] < time_ps or (above["time_ps"] == time_ps and above["key"] < key):
            break
        heap[i]["time_ps"] = above["time_ps"]
        heap[i]["key"] = above["key"]
        i = parent
    heap[i]["time_ps"] = time_ps
    heap[i]["key"] = key
    return n + 1


@kernel
def pop(heap, n):
    """Remove the first event, ``heap[0]``, which the caller has read; returns the new count."""
    n -= 1
    time_ps = heap[n]["time_ps"]
    key = heap[n]["key"]
    i = 0
    while True:
        child = (i << 2) + 1
        if child >= n:
            break
        best = child
        best_time = heap[child]["time_ps"]
        end = min(child + 4, n)
        for k in range(child + 1, end):
            t = heap[k]["time_ps"]
            if t < best_time or (t == best_time and heap[k]["key"] < heap[best]["key"]):
                best = k
                best_time = t
        if time_ps < best_time or (time_ps == best_time and key < heap[best]["key"]):
            break
        heap[i]["time_ps"] = best_time
        heap[i]["key"] = heap[best]["key"]
        i = best
    heap[i]["time_ps"] = time_ps
    heap[i]["key"] = key
    return n
