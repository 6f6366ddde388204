"""Collective operations as messages that wait for each other: who may send a chunk only once it has another.

Each chunk has a link of its own that is open from the start, as a communication library opens its connections once;
what a transport has learnt of the path does not pass from one chunk to the next.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from emulator.quantities import STRICT, Bytes, ConfigError, Picoseconds
from emulator.workloads.message import (
    Collective,
    Message,
    Numbering,
    Setting,
    Workload,
    acknowledged,
    check_size,
    received,
    require_hosts,
)


def _chunks(size_bytes: int, count: int) -> list[int]:
    """Sizes of so many parts, which differ by a byte at most; raises ConfigError where one would be empty."""
    if size_bytes < count:
        raise ConfigError(f"workload.size_bytes: {size_bytes} bytes cannot be cut in {count} chunks; raise it")
    return [size_bytes * (k + 1) // count - size_bytes * k // count for k in range(count)]


@dataclass(frozen=True, config=STRICT)
class RingConfig:
    """Hosts in a ring; in each step every host passes a chunk of 1/N of the data on to the next one.

    Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009. An
    all-reduce takes 2 (N - 1) steps: N - 1 that reduce and scatter, N - 1 that gather.
    """

    kind: Literal["ring"] = "ring"
    operation: Literal["all-reduce", "all-gather", "reduce-scatter"] = "all-reduce"
    size_bytes: Bytes = 1_000_000
    """Of the data that each host has at the end (all-reduce, all-gather) or begins with (reduce-scatter)."""
    compute_ps: Picoseconds = 0
    """From the arrival of a chunk to its being reduced; what is only gathered is passed on at once."""

    def make(self, setting: Setting) -> Workload:
        """The messages, step by step."""
        hosts = setting.host_count("a ring")
        require_hosts(hosts, 2, "a ring")
        steps = (2 if self.operation == "all-reduce" else 1) * (hosts - 1)
        check_size(hosts * steps)
        sizes = _chunks(self.size_bytes, hosts)
        reducing = {"all-reduce": hosts - 1, "reduce-scatter": hosts - 1, "all-gather": 0}[self.operation]
        messages = []
        for step in range(steps):
            for host in range(hosts):
                before = (step - 1) * hosts + (host - 1) % hosts  # what brought the chunk that is now passed on
                messages.append(
                    Message(
                        host, (host + 1) % hosts, sizes[(host - step) % hosts], ordinal=step,
                        after=(received(before),) if step else (),
                        delay_ps=self.compute_ps if 0 < step <= reducing else 0,
                    )
                )  # fmt: skip
        collective = Collective(self.operation, hosts, self.size_bytes)
        return Workload(messages, hosts, collective, has_open_links=True)


_UNDER_WAY = 2
"""Chunks of an edge on their way at once: one is acknowledged while the next one is sent."""


@dataclass(frozen=True, config=STRICT)
class TreeConfig:
    """All-reduce over a binary tree: chunks are reduced towards h0 and then sent back down, one behind the other.

    Host i's parent is host (i - 1) / 2, rounded down. A single tree, where NCCL has two that share the load: inner
    hosts receive from two, so it reaches at most half of the line rate.
    """

    kind: Literal["tree"] = "tree"
    size_bytes: Bytes = 1_000_000
    chunks: Annotated[int, Field(ge=1, le=65_536, strict=True)] = 8
    """Pieces that follow each other through the tree."""
    compute_ps: Picoseconds = 0
    """From the arrival of a chunk from the last child to its being reduced."""

    def make(self, setting: Setting) -> Workload:
        """The messages, chunk by chunk: up from the last host to h1, then down from h0."""
        hosts = setting.host_count("a tree")
        require_hosts(hosts, 2, "a tree")
        check_size(2 * (hosts - 1) * self.chunks)
        sizes = _chunks(self.size_bytes, self.chunks)
        numbering = Numbering()
        up: dict[tuple[int, int], int] = {}  # (chunk, child): index of its message to its parent
        down: dict[tuple[int, int], int] = {}
        messages: list[Message] = []

        def add(
            src: int, dst: int, chunk: int, way: dict[tuple[int, int], int], after: list[int], is_sum: bool
        ) -> None:
            child = max(src, dst)
            if chunk >= _UNDER_WAY:
                after.append(acknowledged(way[chunk - _UNDER_WAY, child]))
            way[chunk, child] = len(messages)
            messages.append(
                Message(
                    src, dst, sizes[chunk], ordinal=numbering.next(src, dst), after=tuple(after),
                    delay_ps=self.compute_ps if is_sum else 0,
                )
            )  # fmt: skip

        for chunk in range(self.chunks):
            for host in range(hosts - 1, 0, -1):
                got = [received(up[chunk, child]) for child in (2 * host + 1, 2 * host + 2) if child < hosts]
                add(host, (host - 1) // 2, chunk, up, got, bool(got))
            for host in range(1, hosts):
                parent = (host - 1) // 2
                if parent == 0:
                    got = [received(up[chunk, child]) for child in (1, 2) if child < hosts]
                else:
                    got = [received(down[chunk, parent])]
                add(parent, host, chunk, down, got, parent == 0)
        return Workload(messages, hosts, Collective("all-reduce", hosts, self.size_bytes), has_open_links=True)
