"""Patterns of messages that a few fields describe. Each config makes its own messages."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from emulator.quantities import STRICT, Bytes, ConfigError, Host, Picoseconds
from emulator.workloads.message import (
    Collective,
    Message,
    Numbering,
    Setting,
    Workload,
    acknowledged,
    below,
    check_size,
    name_hash,
    require_hosts,
)

_Peers = Annotated[int, Field(ge=1, le=65_535, strict=True)]


def _others(host: int, count: int) -> list[int]:
    """The first ``count`` hosts besides one."""
    return [h for h in range(count + 1) if h != host][:count]


@dataclass(frozen=True, config=STRICT)
class IncastConfig:
    """The first N other hosts each send one message to the receiver: h1 to hN to h0."""

    kind: Literal["incast"] = "incast"
    senders: _Peers = 32
    receiver: Host = 0
    size_bytes: Bytes = 1_000_000
    jitter_ps: Picoseconds = 0
    """Each sender starts at a time drawn evenly from [0, jitter]."""

    def make(self, setting: Setting) -> Workload:
        """The messages."""
        to, size = self.receiver, self.size_bytes
        others = _others(to, self.senders)
        return Workload([Message(h, to, size, setting.jitter(self.jitter_ps, f"h{h}")) for h in others])


@dataclass(frozen=True, config=STRICT)
class OutcastConfig:
    """The sender sends one message to each of the first N other hosts: h0 to h1 to hN."""

    kind: Literal["outcast"] = "outcast"
    receivers: _Peers = 32
    sender: Host = 0
    size_bytes: Bytes = 1_000_000
    jitter_ps: Picoseconds = 0
    """Each message starts at a time drawn evenly from [0, jitter]."""

    def make(self, setting: Setting) -> Workload:
        """The messages."""
        src, size = self.sender, self.size_bytes
        others = _others(src, self.receivers)
        return Workload([Message(src, h, size, setting.jitter(self.jitter_ps, f"h{h}")) for h in others])


def permutation(seed: int, hosts: int) -> list[int]:
    """Whom each host sends to: a cycle through all in random order, so nobody sends to itself.

    Source: Sattolo, "An algorithm to generate a random cyclic permutation", 1986, by way of sorting hashes.
    """
    order = sorted(range(hosts), key=lambda host: name_hash(seed, "permutation", f"h{host}"))
    target = [0] * hosts
    for k, host in enumerate(order):
        target[host] = order[(k + 1) % hosts]
    return target


@dataclass(frozen=True, config=STRICT)
class PermutationConfig:
    """Every host sends one message to another, and every host receives one; the seed decides who."""

    kind: Literal["permutation"] = "permutation"
    size_bytes: Bytes = 2_000_000
    jitter_ps: Picoseconds = 0
    """Each sender starts at a time drawn evenly from [0, jitter]."""

    def make(self, setting: Setting) -> Workload:
        """The messages."""
        hosts = setting.host_count("a permutation")
        targets = permutation(setting.seed, hosts)
        return Workload(
            [Message(h, to, self.size_bytes, setting.jitter(self.jitter_ps, f"h{h}")) for h, to in enumerate(targets)]
        )


@dataclass(frozen=True, config=STRICT)
class AllToAllConfig:
    """Every host sends one message to every other host."""

    kind: Literal["all-to-all"] = "all-to-all"
    size_bytes: Bytes = 100_000
    """Of each message."""
    order: Literal["naive", "shifted"] = "shifted"
    """naive: all go to h0, h1, h2, ... in turn, and so meet; shifted: host i begins with i + 1."""
    parallel: Annotated[int, Field(ge=0, le=65_535, strict=True)] = 1
    """Messages that a host has under way; the next one starts when one is acknowledged. 0: all at once."""

    def make(self, setting: Setting) -> Workload:
        """The messages, host by host in the order in which they are sent."""
        hosts = setting.host_count("an all-to-all")
        require_hosts(hosts, 2, "an all-to-all")
        check_size(hosts * (hosts - 1))
        messages: list[Message] = []
        for src in range(hosts):
            shift = src + 1 if self.order == "shifted" else 0
            turns = [dst for k in range(hosts) if (dst := (shift + k) % hosts) != src]
            first = len(messages)
            for k, dst in enumerate(turns):
                waits = self.parallel != 0 and k >= self.parallel
                after = (acknowledged(first + k - self.parallel),) if waits else ()
                messages.append(Message(src, dst, self.size_bytes, after=after))
        return Workload(messages, hosts, Collective("all-to-all", hosts, hosts * self.size_bytes))


@dataclass(frozen=True, config=STRICT)
class HotspotConfig:
    """Messages to random hosts, of which a share goes to a few hot ones.

    Source: the traffic of Pfister and Norton, "Hot spot contention and combining", 1985.
    """

    kind: Literal["hotspot"] = "hotspot"
    hotspots: Annotated[int, Field(ge=1, le=65_535, strict=True)] = 1
    """Hot hosts; the seed decides which."""
    share: Annotated[float, Field(ge=0, le=1, strict=True)] = 0.5
    """A message goes to a hot host with this probability, in steps of 2**-32, else to any other host."""
    messages_per_host: Annotated[int, Field(ge=1, le=100_000, strict=True)] = 4
    size_bytes: Bytes = 200_000
    jitter_ps: Picoseconds = 0
    """Each message starts at a time drawn evenly from [0, jitter]."""

    def make(self, setting: Setting) -> Workload:
        """The messages; those to hot hosts are the group ``hot``, the others ``other``."""
        hosts, seed = setting.host_count("a hotspot"), setting.seed
        require_hosts(hosts, 2, "a hotspot")
        check_size(hosts * self.messages_per_host)
        if self.hotspots >= hosts:
            raise ConfigError(f"workload.hotspots: {self.hotspots} of {hosts} hosts leave none cold; lower it")
        order = sorted(range(hosts), key=lambda host: name_hash(seed, "hotspot", f"h{host}"))
        hot = order[: self.hotspots]
        numbering = Numbering()
        messages = []
        for src in range(hosts):
            for k in range(self.messages_per_host):
                names = (f"h{src}", str(k))
                is_hot = below(2**32, seed, "share", *names) < round(self.share * 2**32)
                among = [h for h in hot if h != src] if is_hot else []
                if among:
                    dst = among[below(len(among), seed, "hot", *names)]
                else:
                    dst = (src + 1 + below(hosts - 1, seed, "any", *names)) % hosts
                start_ps = setting.jitter(self.jitter_ps, *names)
                group = "hot" if dst in hot else "other"
                messages.append(
                    Message(src, dst, self.size_bytes, start_ps, numbering.next(src, dst), group=group)
                )  # fmt: skip
        return Workload(messages, hosts)


@dataclass(frozen=True, config=STRICT)
class VictimConfig:
    """An incast from h1 to hN to h0, and one message that goes elsewhere: the victim, if it suffers."""

    kind: Literal["victim"] = "victim"
    senders: _Peers = 4
    size_bytes: Bytes = 1_000_000
    """Of each message of the incast."""
    victim_size_bytes: Bytes | None = None
    """None: the same."""
    victim_src: Host = 1
    """By default one of the incast's senders, whose NIC is paused with PFC."""
    victim_dst: Host | None = None
    """None: hN+1, where nobody else sends."""
    victim_start_ps: Picoseconds = 0
    jitter_ps: Picoseconds = 0
    """Each sender of the incast starts at a time drawn evenly from [0, jitter]."""

    def make(self, setting: Setting) -> Workload:
        """The messages, in the groups ``incast`` and ``victim``."""
        dst = self.senders + 1 if self.victim_dst is None else self.victim_dst
        if dst in (self.victim_src, 0):
            raise ConfigError(
                f"workload.victim_dst: h{dst} is the victim's sender or the incast's receiver; name another"
            )
        size_bytes = self.size_bytes if self.victim_size_bytes is None else self.victim_size_bytes
        hosts = range(1, self.senders + 1)
        messages = [
            Message(h, 0, self.size_bytes, setting.jitter(self.jitter_ps, f"h{h}"), group="incast") for h in hosts
        ]
        messages.append(Message(self.victim_src, dst, size_bytes, self.victim_start_ps, group="victim"))
        return Workload(messages)
