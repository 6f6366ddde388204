"""Several workloads in one: at once, or one after another by the clock."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal, get_args

from pydantic import Field
from pydantic.dataclasses import dataclass

from emulator.quantities import STRICT, ConfigError, Picoseconds
from emulator.workloads.collectives import RingConfig, TreeConfig
from emulator.workloads.files import FileConfig, FlowListConfig, Nic
from emulator.workloads.message import Message, Numbering, Setting, Workload, check_size
from emulator.workloads.patterns import (
    AllToAllConfig,
    HotspotConfig,
    IncastConfig,
    OutcastConfig,
    PermutationConfig,
    VictimConfig,
)
from emulator.workloads.poisson import PoissonConfig

Single = (
    IncastConfig
    | OutcastConfig
    | PermutationConfig
    | AllToAllConfig
    | HotspotConfig
    | VictimConfig
    | PoissonConfig
    | RingConfig
    | TreeConfig
    | FlowListConfig
    | FileConfig
)
SINGLE: tuple[type, ...] = get_args(Single)
"""Every kind that stands for itself."""


@dataclass(frozen=True, config=STRICT)
class PartConfig:
    """One of several workloads."""

    workload: Annotated[Single, Field(discriminator="kind")]
    group: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._:-]{0,39}$")] | None = None
    """Of its messages, in results; None: what it calls them itself, else its kind."""
    start_ps: Picoseconds = 0
    """Added to the start of each message."""
    nic: Nic | None = None
    """Of messages that name none themselves; None: that with the fewest messages."""


def _make(k: int, part: PartConfig, setting: Setting) -> Workload:
    try:
        return part.workload.make(setting)
    except ConfigError as error:
        what = str(error)
        own = what.removeprefix("workload.")
        raise ConfigError(what if own == what else f"workload.parts.{k}.workload.{own}") from None


@dataclass(frozen=True, config=STRICT)
class MixConfig:
    """Several workloads; hosts are the same for all."""

    parts: Annotated[tuple[PartConfig, ...], Field(min_length=1)]
    kind: Literal["mix"] = "mix"

    def make(self, setting: Setting) -> Workload:
        """The messages, part by part."""
        made = [_make(k, part, setting) for k, part in enumerate(self.parts)]
        check_size(sum(len(workload.messages) for workload in made))
        is_open = made[0].has_open_links
        for k, workload in enumerate(made):
            if workload.has_open_links != is_open:
                raise ConfigError(
                    f"workload.parts.{k}.workload.kind: links of ring and tree are open beforehand and those of other "
                    "kinds are not; mix like with like"
                )
        numbering = Numbering()
        messages: list[Message] = []
        for part, workload in zip(self.parts, made, strict=True):
            shift = 2 * len(messages)  # of what messages wait for, see Message.after
            for message in workload.messages:
                messages.append(replace(
                    message,
                    start_ps=message.start_ps + part.start_ps,
                    ordinal=numbering.next(message.src, message.dst),
                    nic=part.nic if message.nic is None else message.nic,
                    group=part.group or message.group or part.workload.kind,
                    after=tuple(event + shift for event in message.after),
                ))  # fmt: skip
        return Workload(messages, max(workload.hosts for workload in made), has_open_links=is_open)
