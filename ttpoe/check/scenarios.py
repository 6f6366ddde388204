"""Bounds that together reach every rule of the machine; each finishes in seconds."""

from __future__ import annotations

from ttpoe.check.search import Bounds

SCENARIOS = {
    "transfer": Bounds(submits=(3, 0), closes=(1, 0), losses=1, duplicates=1, delays=1, retry_limit=6),
    "duplex": Bounds(submits=(2, 1), closes=(1, 1), losses=1, duplicates=1, retry_limit=3),
    "crossing": Bounds(opens=(1, 1), submits=(1, 1), closes=(1, 1), losses=1, early_timeouts=1, retry_limit=6),
    "reader": Bounds(submits=(3, 1), closes=(1, 1), reader_bytes=(0, 1), losses=1, retry_limit=3),
    "restart": Bounds(submits=(1, 1), closes=(1, 1), losses=1, crashes=1, retry_limit=3),
    "probe": Bounds(submits=(4, 0), closes=(1, 1), window=3, mtu_bytes=2, losses=2, tail_probe=True, retry_limit=6),
    "giving-up": Bounds(submits=(2, 0), closes=(1, 1), losses=3, retry_limit=1),
}
"""Data one way, both ways, after both ends opened at once, to a slow reader, to an end that begins anew, with probes of
the tail and payloads of several lengths, and with more loss than the retry limit allows."""
