"""Switches of a network that are alike, so that what is counted for one of them holds for all.

Knows which switches are cabled and at which rate, nothing else.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np


def twins(tail: np.ndarray, head: np.ndarray, switches: int) -> np.ndarray:
    """Class of each switch: those of a class have the same neighbours, by as many cables.

    Parameters
    ----------
    tail, head : int array, shape (lines,)
        Switches that are cabled, one direction an entry.
    switches : int

    Returns
    -------
    int64 array, shape (switches,)
        Numbered from 0.
    """
    return _numbered(_profiles(tail, head, np.ones(len(tail), np.int64), switches))


def balanced(tail: np.ndarray, head: np.ndarray, weight: np.ndarray, own: np.ndarray) -> np.ndarray:
    """Class of each switch: those of a class are equal in ``own``, and in the sum of weights to each class.

    The coarsest such classes, found by refinement: a fat tree has one for each tier, whatever its size.

    Parameters
    ----------
    tail, head : int array, shape (lines,)
        As for :func:`twins`.
    weight : int64 array, shape (lines,)
    own : int64 array, shape (switches, n)

    Returns
    -------
    int64 array, shape (switches,)
    """
    kind = _numbered([row.tobytes() for row in own])
    while True:
        profiles = _profiles(tail, kind[head], weight, len(own))
        finer = _numbered([(kind[switch], profile) for switch, profile in enumerate(profiles)])
        if finer.max() == kind.max():
            return kind
        kind = finer


def _profiles(tail: np.ndarray, label: np.ndarray, weight: np.ndarray, switches: int) -> list[bytes]:
    """By switch: the labels at the far ends of its lines, and the sum of weights to each, as bytes to compare."""
    span = int(label.max()) + 1 if len(label) else 1
    keys, which = np.unique(tail.astype(np.int64) * span + label, return_inverse=True)
    sums = np.zeros(len(keys), np.int64)
    np.add.at(sums, which, weight)
    rows = np.column_stack([keys % span, sums])
    bounds = np.searchsorted(keys // span, np.arange(switches + 1))
    return [rows[low:high].tobytes() for low, high in pairwise(bounds)]


def _numbered(keys: list[bytes] | list[tuple[int, bytes]]) -> np.ndarray:
    numbers: dict[bytes | tuple[int, bytes], int] = {}
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.int64)
