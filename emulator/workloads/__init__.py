"""From a scenario to messages: who sends how much to whom, when, and after what."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from emulator.quantities import ConfigError
from emulator.workloads.files import FlowConfig
from emulator.workloads.message import Collective, Message, Setting, Workload, dependents, name_hash
from emulator.workloads.mix import SINGLE, MixConfig, PartConfig, Single

__all__ = [
    "CONFIGS", "SINGLE", "Collective", "FlowConfig", "Message", "PartConfig", "Setting", "Workload", "WorkloadConfig",
    "dependents", "make_workload", "name_hash",
]  # fmt: skip

CONFIGS = (*SINGLE, MixConfig)
"""Every kind of workload."""

WorkloadConfig = Annotated[Single | MixConfig, Field(discriminator="kind")]


def make_workload(config: WorkloadConfig, setting: Setting) -> Workload:
    """The messages of a workload.

    Raises
    ------
    ConfigError
        Where it cannot be made, or names hosts that are not there.
    """
    workload = config.make(setting)
    if not workload.messages:
        raise ConfigError("workload: not one message comes of it; make it longer or larger")
    needed = workload.hosts_needed
    if setting.hosts is not None and setting.hosts < needed:
        raise ConfigError(
            f"topology.hosts: the workload names host {needed - 1}, and there are {setting.hosts}; make it {needed}"
        )
    return workload
