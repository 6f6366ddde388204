"""What a workload is: messages, and which of them wait for others; and the draws that decide them.

Draws are hashes of the seed and of names, in integers: the same on every machine, and unmoved by what else is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np

from emulator.quantities import ConfigError

MAX_MESSAGES = 1_000_000
"""A message takes some 1.5 kB while it is emulated."""


def name_hash(seed: int, *names: str) -> int:
    """64 bits that depend on the seed and on names only, the same on every machine."""
    text = "\0".join((str(seed), *names))
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


def below(bound: int, seed: int, *names: str) -> int:
    """A number in [0, bound), evenly, by the hash of names (to one in 2**64 / bound)."""
    return (name_hash(seed, *names) * bound) >> 64


def received(message: int) -> int:
    """What :attr:`Message.after` names to wait until all bytes of a message (by index) are in order at its receiver."""
    return 2 * message + 1


def acknowledged(message: int) -> int:
    """The same, until the last acknowledgement is back at its sender."""
    return 2 * message


@dataclass(frozen=True, slots=True)
class Message:
    """One flow's message."""

    src: int
    dst: int
    size_bytes: int
    start_ps: int = 0
    """Not before this time."""
    ordinal: int = 0
    """Counts messages of the same pair, so that each flow has a name of its own."""
    nic: int | None = None
    """Of both hosts; None: that with the fewest messages, of both together."""
    group: str = ""
    """Results are also told for the messages of a group by themselves."""
    after: tuple[int, ...] = ()
    """By :func:`received` and :func:`acknowledged`: it starts when these have happened."""
    needs: int | None = None
    """How many of ``after``; None: all."""
    delay_ps: int = 0
    """From then to its start: what its sender computes."""
    priority: int | None = None
    """Of its data; None: the scenario's."""

    @property
    def name(self) -> str:
        """``h1>h0``, with ``#n`` from a pair's second message on."""
        return f"h{self.src}>h{self.dst}" + (f"#{self.ordinal}" if self.ordinal else "")

    @property
    def unmet(self) -> int:
        """How many of ``after`` must still happen."""
        return len(self.after) if self.needs is None else self.needs


@dataclass(frozen=True)
class Collective:
    """What all messages do together, as NCCL's tests count it.

    Source: nccl-tests, PERFORMANCE.md: algorithm bandwidth = size / time; bus bandwidth = that times a factor, which
    is 2 (N-1)/N for all-reduce, (N-1)/N for all-gather, reduce-scatter and all-to-all: then it compares with line rate.
    """

    operation: str
    ranks: int
    size_bytes: int

    @property
    def bus_factor(self) -> float:
        """Bus bandwidth over algorithm bandwidth."""
        return (2 if self.operation == "all-reduce" else 1) * (self.ranks - 1) / self.ranks


@dataclass(frozen=True)
class Workload:
    """Messages, and what they need."""

    messages: list[Message]
    hosts: int = 0
    """At least so many, whether or not a message names them."""
    collective: Collective | None = None
    has_open_links: bool = False
    """Connections are there before the first message, as a communication library makes them once."""

    @property
    def hosts_needed(self) -> int:
        """One more than the largest host number."""
        return max(self.hosts, 1 + max(max(message.src, message.dst) for message in self.messages))


@dataclass(frozen=True)
class Setting:
    """What a workload may depend on besides its own fields."""

    seed: int
    hosts: int | None
    """None: a star of as many as the workload names."""
    rate_bps: int
    """Line rate of a host's cable."""

    def host_count(self, what: str) -> int:
        """Hosts, for a workload that cannot be made without knowing; raises ConfigError."""
        if self.hosts is None:
            raise ConfigError(f"topology.hosts: {what} needs to know how many; set it")
        return self.hosts

    def jitter(self, jitter_ps: int, *names: str) -> int:
        """A start drawn evenly from [0, jitter]."""
        return name_hash(self.seed, "start", *names) % (jitter_ps + 1)


@dataclass
class Numbering:
    """Gives each message of a pair an ordinal of its own."""

    _count: dict[tuple[int, int], int] = field(default_factory=dict)

    def next(self, src: int, dst: int) -> int:
        """The pair's next ordinal, from 0."""
        ordinal = self._count.get((src, dst), 0)
        self._count[src, dst] = ordinal + 1
        return ordinal


def check_size(messages: int) -> None:
    """Refuse a workload that does not fit a machine, before it is made."""
    if messages > MAX_MESSAGES:
        raise ConfigError(
            f"workload: it makes {messages:,} messages, and {MAX_MESSAGES:,} fit in memory; make it smaller"
        )


def require_hosts(hosts: int, least: int, what: str) -> None:
    """Refuse too few hosts for ``what``."""
    if hosts < least:
        raise ConfigError(f"topology.hosts: {what} needs at least {least}, and there are {hosts}; raise it")


def dependents(messages: Sequence[Message]) -> tuple[np.ndarray, np.ndarray]:
    """Who waits for what, from the other side.

    Returns
    -------
    waiting : int32 array
        Indices of messages that wait, event by event.
    first : int32 array, shape (2 * messages + 1,)
        Those that wait for event e (as in :attr:`Message.after`) are ``waiting[first[e] : first[e + 1]]``.
    """
    events = np.array([event for message in messages for event in message.after], np.int64)
    counts = [len(message.after) for message in messages]
    waiting = np.repeat(np.arange(len(messages), dtype=np.int32), counts)
    first = np.zeros(2 * len(messages) + 1, np.int32)
    first[1:] = np.cumsum(np.bincount(events, minlength=2 * len(messages)))
    return waiting[np.argsort(events, kind="stable")], first
