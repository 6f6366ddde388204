"""Kernels that grow and judge the graph of states: a table without copies, edges, and what leads to an end.

States are rows of bytes in the order in which they were found, so the first counterexample is a shortest one.
"""

from __future__ import annotations

import numpy as np

from ttpoe._jit import kernel
from ttpoe.check.layout import FAIR_MASK, STATE_BYTES, STEPS, Step
from ttpoe.check.packing import pack, unpack
from ttpoe.check.promises import judge
from ttpoe.check.step import enabled_steps, take_step

PROGRESS = np.dtype(
    [(name, "i8") for name in ("n_states", "n_edges", "n_steps", "n_cut", "violation", "at_state", "at_step")]
)
"""Where a search stands. ``at_state`` and ``at_step`` say where ``violation`` came; step -1: in the state itself."""

NO_STEP = -1
MOST_SUCCESSORS = 2 * STEPS
"""States that one state can add at most."""

_CUT = 1
_TIMEOUT, _LONG_TIMEOUT, _READ = int(Step.TIMEOUT), int(Step.LONG_TIMEOUT), int(Step.READ)


@kernel(inline=True)
def _hash(state):
    value = 0x811C9DC5
    for k in range(STATE_BYTES):
        value = ((value ^ int(state[k])) * 0x01000193) & 0xFFFFFFFF
    value = ((value ^ (value >> 15)) * 0x2C1B3C6D) & 0xFFFFFFFF
    return value ^ (value >> 13)


@kernel(inline=True)
def _is_same(one, other):
    k = 0
    while k < STATE_BYTES and one[k] == other[k]:
        k += 1
    return k == STATE_BYTES


@kernel
def _find_or_add(states, n_states, table):
    """Place of the state in row ``n_states``: an earlier row that is equal, else that row, which the table now has."""
    mask = len(table) - 1
    state = states[n_states]
    at = _hash(state) & mask
    while table[at] >= 0:
        if _is_same(states[table[at]], state):
            return int(table[at])
        at = (at + 1) & mask
    table[at] = n_states
    return n_states


@kernel(export=True)
def index_states(states, n_states, table):
    """Fill ``table`` (int32, a power of two of slots, modified in place) with the rows of ``states``."""
    mask = len(table) - 1
    for at in range(len(table)):
        table[at] = -1
    for row in range(n_states):
        at = _hash(states[row]) & mask
        while table[at] >= 0:
            at = (at + 1) & mask
        table[at] = row


@kernel(export=True)
def pack_at(w, states, i):
    """:func:`ttpoe.check.packing.pack` into ``states[i]``."""
    return pack(w, states[i])


@kernel(export=True)
def expand(w, states, first, last, table, parents, steps, sources, targets, edge_steps, progress):
    """Take every step from states ``first`` to ``last - 1``, until a promise breaks.

    Parameters
    ----------
    w : World
        Scratch, modified in place.
    states : uint8 array, shape (n, STATE_BYTES), modified in place
        Has room for `MOST_SUCCESSORS` more rows a state.
    first, last : int64
    table : int32 array, modified in place
    parents, steps : int32 and int16 arrays, one per state, modified in place
        Whence each state was first reached, by which step: ``32 * side + kind``.
    sources, targets, edge_steps : int32, int32 and int16 arrays, modified in place
        Edges of steps that need no trouble and no wish. Where the machine asks a full peer again though its reader
        could have read, the target is ``-1 - state``.
    progress : PROGRESS array, shape (1,), modified in place
    """
    told = progress[0]
    n_states = told["n_states"]
    n_edges = told["n_edges"]
    n_steps = 0
    n_cut = 0
    for i in range(first, last):
        unpack(w, states[i])
        is_over = True
        masks_0 = enabled_steps(w, 0)
        masks_1 = enabled_steps(w, 1)
        for side in range(2):
            mask = masks_0 if side == 0 else masks_1
            if mask & FAIR_MASK != 0:
                is_over = False
            for kind in range(STEPS):
                if (mask >> kind) & 1 == 0:
                    continue
                unpack(w, states[i])
                is_asking_again = (
                    (kind == _TIMEOUT or kind == _LONG_TIMEOUT)
                    and w.links[side]["peer_room_bytes"] == 0
                    and ((masks_1 if side == 0 else masks_0) >> _READ) & 1 != 0
                )
                n_steps += 1
                code = take_step(w, side, kind)
                if code == _CUT:
                    n_cut += 1
                    continue
                if code == 0:
                    code = pack(w, states[n_states])
                if code != 0:
                    told["violation"] = code
                    told["at_state"] = i
                    told["at_step"] = 32 * side + kind
                    return
                j = _find_or_add(states, n_states, table)
                if j == n_states:
                    parents[j] = i
                    steps[j] = 32 * side + kind
                    n_states += 1
                if (FAIR_MASK >> kind) & 1 != 0:
                    sources[n_edges] = i
                    targets[n_edges] = -1 - j if is_asking_again else j
                    edge_steps[n_edges] = 32 * side + kind
                    n_edges += 1
        if is_over:
            unpack(w, states[i])
            code = judge(w)
            if code != 0:
                told["violation"] = code
                told["at_state"] = i
                told["at_step"] = NO_STEP
                return
    told["n_states"] = n_states
    told["n_edges"] = n_edges
    told["n_steps"] += n_steps
    told["n_cut"] += n_cut


@kernel(export=True)
def reach_back(offsets, sources, is_reached, queue, n_queue):
    """Mark all states from which a marked one can be reached.

    Parameters
    ----------
    offsets : int64 array, shape (n + 1,)
        Edges into state j are ``sources[offsets[j]:offsets[j + 1]]``.
    sources : int32 array
    is_reached : uint8 array, shape (n,), modified in place
    queue : int32 array, shape (n,), modified in place
        Its first ``n_queue`` are marked already.
    n_queue : int64
    """
    at = 0
    while at < n_queue:
        j = queue[at]
        at += 1
        for e in range(offsets[j], offsets[j + 1]):
            i = sources[e]
            if is_reached[i] == 0:
                is_reached[i] = 1
                queue[n_queue] = i
                n_queue += 1


@kernel(export=True)
def peel(offsets, sources, n_ways, queue, n_queue):
    """Remove states all of whose ways lead to removed ones; what keeps a way out in ``n_ways`` can go round for ever.

    Parameters as for :func:`reach_back`; ``n_ways`` (int32, modified in place) counts the edges out of each state, and
    the first of ``queue`` have none. Returns how many states were removed.
    """
    at = 0
    while at < n_queue:
        j = queue[at]
        at += 1
        for e in range(offsets[j], offsets[j + 1]):
            i = sources[e]
            n_ways[i] -= 1
            if n_ways[i] == 0:
                queue[n_queue] = i
                n_queue += 1
    return n_queue


@kernel(export=True)
def unpack_at(w, states, i):
    """:func:`ttpoe.check.packing.unpack` of ``states[i]``."""
    unpack(w, states[i])


@kernel(export=True)
def take_step_at(w, side, kind):
    """:func:`ttpoe.check.step.take_step`, for a chart."""
    return take_step(w, side, kind)
