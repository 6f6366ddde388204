"""A bare incast on a star, as the yardstick of speed: what the same frames cost with nothing switched on.

One pending event per line, a 4-ary heap, int64 picoseconds, first-in-first-out ports, a fixed window, one
acknowledgement a frame. No shared buffer, no PFC, no loss, no tie-break, no state machine, no counters.
"""

from __future__ import annotations

import numpy as np
from numba import njit

PACKET = np.dtype(
    [("next", "i4"), ("flow", "i4"), ("seq", "i4"), ("size", "i4"), ("hop", "i4"), ("pad", "i4"), ("arrive", "i8")]
)
PORT = np.dtype(
    [("queue_head", "i4"), ("queue_tail", "i4"), ("line_head", "i4"), ("line_tail", "i4"),
     ("busy", "i8"), ("queued", "i8"), ("is_pending", "i8")]
)


@njit(cache=True, nogil=True)
def _push(times, keys, n, time, key):
    i = n
    while i > 0:
        parent = (i - 1) >> 2
        if times[parent] <= time:
            break
        times[i] = times[parent]
        keys[i] = keys[parent]
        i = parent
    times[i] = time
    keys[i] = key
    return n + 1


@njit(cache=True, nogil=True)
def _pop(times, keys, n):
    n -= 1
    time = times[n]
    key = keys[n]
    i = 0
    while True:
        child = (i << 2) + 1
        if child >= n:
            break
        best = child
        for k in range(child + 1, min(child + 4, n)):
            if times[k] < times[best]:
                best = k
        if times[best] >= time:
            break
        times[i] = times[best]
        keys[i] = keys[best]
        i = best
    times[i] = time
    keys[i] = key
    return n


@njit(cache=True, nogil=True)
def bare_incast(senders, packets_each, window, wire_bytes, ack_bytes, ps_per_byte, delay, stagger):
    """Run ``senders`` flows of ``packets_each`` frames to one host; returns (last completion ps, events, hops).

    With ``stagger`` 0 all senders act at the same instants, and a heap that compares times only is then done after one
    comparison; a few ps between their starts make it sort, as a loop must that orders every event.
    """
    hosts = senders + 1
    ports = np.zeros(2 * hosts, PORT)
    for i in range(2 * hosts):
        ports[i]["queue_head"] = -1
        ports[i]["line_head"] = -1
    window = min(window, packets_each)
    capacity = senders * (window + 2)
    packets = np.zeros(capacity, PACKET)
    free = np.arange(capacity).astype(np.int32)
    n_free = capacity
    times = np.empty(8 * hosts + 16, np.int64)
    keys = np.empty(8 * hosts + 16, np.int64)
    n = 0
    una = np.zeros(senders, np.int64)
    sent = np.zeros(senders, np.int64)
    expected = np.zeros(senders, np.int64)
    stack = np.empty(senders * window + 8, np.int32)
    n_stack = 0
    for f in range(senders):
        ports[2 * f + 2]["busy"] = f * stagger + (1 if stagger else 0)
        for _ in range(window):
            n_free -= 1
            p = free[n_free]
            packets[p]["flow"] = 2 * f
            packets[p]["size"] = wire_bytes
            packets[p]["seq"] = sent[f]
            packets[p]["hop"] = 0
            sent[f] += 1
            stack[n_stack] = p
            n_stack += 1
    events = 0
    hops = 0
    done = 0
    now = 0
    while True:
        while n_stack > 0:
            n_stack -= 1
            p = stack[n_stack]
            flow = packets[p]["flow"]
            host = (flow >> 1) + 1 if flow & 1 == 0 else 0
            other = 0 if flow & 1 == 0 else (flow >> 1) + 1
            out = 2 * host if packets[p]["hop"] == 0 else 2 * other + 1
            port = ports[out]
            packets[p]["next"] = -1
            if port["is_pending"] == 0 and now >= port["busy"]:
                port["busy"] = now + packets[p]["size"] * ps_per_byte
                packets[p]["arrive"] = port["busy"] + delay
                hops += 1
                if port["line_head"] < 0:
                    port["line_head"] = p
                    n = _push(times, keys, n, packets[p]["arrive"], 2 * out + 1)
                else:
                    packets[port["line_tail"]]["next"] = p
                port["line_tail"] = p
            else:
                if port["queue_head"] < 0:
                    port["queue_head"] = p
                else:
                    packets[port["queue_tail"]]["next"] = p
                port["queue_tail"] = p
                port["queued"] += packets[p]["size"]
                if port["is_pending"] == 0:
                    port["is_pending"] = 1
                    n = _push(times, keys, n, port["busy"], 2 * out)
        if done == senders or n == 0:
            return now, events, hops
        now = times[0]
        key = keys[0]
        n = _pop(times, keys, n)
        events += 1
        out = key >> 1
        port = ports[out]
        if key & 1 == 0:
            port["is_pending"] = 0
            p = port["queue_head"]
            port["queue_head"] = packets[p]["next"]
            packets[p]["next"] = -1
            port["queued"] -= packets[p]["size"]
            port["busy"] = now + packets[p]["size"] * ps_per_byte
            packets[p]["arrive"] = port["busy"] + delay
            hops += 1
            if port["line_head"] < 0:
                port["line_head"] = p
                n = _push(times, keys, n, packets[p]["arrive"], 2 * out + 1)
            else:
                packets[port["line_tail"]]["next"] = p
            port["line_tail"] = p
            if port["queue_head"] >= 0:
                port["is_pending"] = 1
                n = _push(times, keys, n, port["busy"], 2 * out)
            continue
        p = port["line_head"]
        port["line_head"] = packets[p]["next"]
        if port["line_head"] >= 0:
            n = _push(times, keys, n, packets[port["line_head"]]["arrive"], 2 * out + 1)
        packets[p]["hop"] += 1
        if packets[p]["hop"] < 2:
            stack[n_stack] = p
            n_stack += 1
            continue
        flow = packets[p]["flow"]
        f = flow >> 1
        if flow & 1 == 0:
            if packets[p]["seq"] == expected[f]:
                expected[f] += 1
            packets[p]["flow"] = flow | 1
            packets[p]["seq"] = expected[f]
            packets[p]["size"] = ack_bytes
            packets[p]["hop"] = 0
            stack[n_stack] = p
            n_stack += 1
            continue
        if packets[p]["seq"] > una[f]:
            una[f] = packets[p]["seq"]
            if una[f] == packets_each:
                done += 1
        free[n_free] = p
        n_free += 1
        while sent[f] < packets_each and sent[f] - una[f] < window:
            n_free -= 1
            q = free[n_free]
            packets[q]["flow"] = 2 * f
            packets[q]["seq"] = sent[f]
            packets[q]["size"] = wire_bytes
            packets[q]["hop"] = 0
            sent[f] += 1
            stack[n_stack] = q
            n_stack += 1
