"""From a scenario to messages: who sends how much to whom, and when."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

from emulator.config import ConfigError, IncastConfig, PermutationConfig, ScenarioConfig


def name_hash(seed: int, *names: str) -> int:
    """64 bits that depend on the seed and on names only, the same on every machine."""
    text = "\0".join((str(seed), *names))
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


@dataclass(frozen=True)
class Message:
    """One flow's message."""

    src: int
    dst: int
    size_bytes: int
    start_ps: int
    ordinal: int = 0
    """Counts messages of the same pair, so that each flow has a name of its own."""
    nic: int | None = None
    """Of both hosts; None: in turn."""
    priority: int | None = None
    """Of its data; None: the scenario's."""

    @property
    def name(self) -> str:
        """``h1>h0``, with ``#n`` from a pair's second message on."""
        return f"h{self.src}>h{self.dst}" + (f"#{self.ordinal}" if self.ordinal else "")


def permutation(seed: int, hosts: int) -> list[int]:
    """Whom each host sends to: a cycle through all in random order, so nobody sends to itself.

    Source: Sattolo, "An algorithm to generate a random cyclic permutation", 1986, by way of sorting hashes.
    """
    order = sorted(range(hosts), key=lambda host: name_hash(seed, "permutation", f"h{host}"))
    target = [0] * hosts
    for k, host in enumerate(order):
        target[host] = order[(k + 1) % hosts]
    return target


def make_messages(scenario: ScenarioConfig, seed: int, hosts: int | None) -> list[Message]:
    """The messages of a scenario's workload on so many hosts; None: as many as are named."""
    load = scenario.workload
    if isinstance(load, IncastConfig):
        messages = []
        for sender in range(1, load.senders + 1):
            start_ps = name_hash(seed, "start", f"h{sender}") % (load.jitter_ps + 1)
            messages.append(Message(sender, 0, load.size_bytes, start_ps))
        return messages
    if isinstance(load, PermutationConfig):
        if hosts is None:
            raise ConfigError("topology.hosts: a permutation needs to know how many; set it")
        return [
            Message(src, dst, load.size_bytes, name_hash(seed, "start", f"h{src}") % (load.jitter_ps + 1))
            for src, dst in enumerate(permutation(seed, hosts))
        ]
    count: dict[tuple[int, int], int] = {}
    messages = []
    for k, flow in enumerate(load.flows):
        if flow.src == flow.dst:
            raise ConfigError(f"workload.flows.{k}.dst: a host cannot send to itself; name another than {flow.src}")
        pair = (flow.src, flow.dst)
        ordinal = count.get(pair, 0)
        messages.append(
            Message(flow.src, flow.dst, flow.size_bytes, flow.start_ps, ordinal, flow.nic, flow.priority)
        )
        count[pair] = count.get(pair, 0) + 1
    if not messages:
        raise ConfigError("workload.flows: there is no flow; name at least one")
    return messages


def hosts_needed(messages: list[Message]) -> int:
    """One more than the largest host number."""
    return 1 + max(max(message.src, message.dst) for message in messages)
