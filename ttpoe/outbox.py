"""What an endpoint has to send: control frames in their order, then PAYLOAD, a burst of a link at a time. Sans-I/O."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ttpoe.batch import cut_payloads, next_sendable, write_answers
from ttpoe.config import EndpointConfig
from ttpoe.constants import HEADER_BYTES, MAX_VC, MIN_FRAME_BYTES
from ttpoe.errors import LocalProtocolError
from ttpoe.link import Link, LinkRows
from ttpoe.machine import MAX_ANSWERS
from ttpoe.state import FRAME

_ANSWER_SLOTS = 512


class Outbox:
    """Frames that wait for the line, as bytes.

    Parameters
    ----------
    rows : LinkRows
    config : EndpointConfig

    Attributes
    ----------
    out : FRAME array, shape (MAX_ANSWERS,)
        Scratch of the machine's kernels.
    answers : uint8 array, shape (n, 64)
        Control frames; kernels write from ``n_answers`` on.
    n_answers : int
        Those written, some of which may have been sent.
    """

    def __init__(self, rows: LinkRows, config: EndpointConfig) -> None:
        self._rows = rows
        self.out = np.zeros(MAX_ANSWERS, FRAME)
        self.answers = np.zeros((_ANSWER_SLOTS, MIN_FRAME_BYTES), np.uint8)
        self.n_answers = 0
        self._next_answer = 0
        self._answer_views = [slot.data for slot in self.answers]
        cut_bytes = max(HEADER_BYTES + config.mtu_bytes, MIN_FRAME_BYTES)
        self._cut_slots = np.zeros((config.burst_frames, cut_bytes), np.uint8)
        self._cut_views = [slot.data for slot in self._cut_slots]
        self._cut_lengths = np.zeros(config.burst_frames, np.int64)
        self._cut: list[int] = []  # lengths of the frames in the slots
        self._next_cut = 0
        self._turns = np.zeros(MAX_VC + 1, np.int64)  # rows of the links that had the last turns

    def put(self, n_out: int, row: int) -> None:
        """Add the first ``n_out`` rows of ``out``, which are of link ``row``."""
        if self.n_answers + n_out > _ANSWER_SLOTS:
            raise LocalProtocolError("too many control frames wait to be sent; send what poll_transmit gives first")
        self.n_answers = write_answers(self.out, n_out, self._rows.headers, row, self.answers, self.n_answers)

    @property
    def waiting(self) -> int:
        """Control frames to send."""
        return self.n_answers - self._next_answer

    @property
    def room(self) -> int:
        """Control frames that still fit."""
        return _ANSWER_SLOTS - self.n_answers

    def poll(self, links: Mapping[int, Link], now_ps: int) -> memoryview | None:
        """Next frame to send, valid until the next call; None if there is none. ``links``: by row."""
        if self._next_answer < self.n_answers:
            view = self._answer_views[self._next_answer]
            self._next_answer += 1
            if self._next_answer == self.n_answers:
                self._next_answer = self.n_answers = 0
            return view
        if self._next_cut == len(self._cut) and not self._cut_burst(links, now_ps):
            return None
        at = self._next_cut
        self._next_cut += 1
        return self._cut_views[at][: self._cut[at]]

    def _cut_burst(self, links: Mapping[int, Link], now_ps: int) -> bool:
        """Cut the frames of the next link's turn."""
        rows = self._rows
        self._cut, self._next_cut = [], 0
        row = next_sendable(rows.links, self._turns, rows.ring, rows.pools, rows.params, now_ps)
        if row == 0:
            return False
        n = cut_payloads(
            rows.links, row, rows.ring, rows.pools, rows.params, rows.headers, links[row].send_buffer, now_ps,
            self.out, self._cut_slots, self._cut_lengths,
        )  # fmt: skip
        self._cut = self._cut_lengths[:n].tolist()
        return n > 0
