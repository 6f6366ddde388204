"""Options that say what regular network there is, for the commands that take one; other networks come from files."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import click

from ttpoe.cli.types import RATE, RATIO

KINDS = ("fat-tree", "leaf-spine", "rail", "star")
_OF = {
    "tiers": ("fat-tree",),
    "pod_oversubscription": ("fat-tree",),
    "oversubscription": ("fat-tree", "leaf-spine", "rail"),
    "uplink_rate": ("fat-tree", "leaf-spine", "rail"),
    "hosts_per_leaf": ("leaf-spine", "rail"),
    "spines": ("leaf-spine", "rail"),
    "nics": ("rail",),
}
"""Which topologies an option is of."""

NETWORK_FIELDS = {
    "topology.uplink": "--uplink-rate",
    "topology.pod_oversubscription": "--pod-oversubscription",
    "topology.spines": "--spines",
    "topology.servers_per_group": "--hosts-per-leaf",
    "topology.rails": "--nics",
    "topology": "--topology and --hosts",
}
"""The option for a field of a scenario, as :func:`ttpoe.cli.experiment.usage_error` takes them."""


def network_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of a network, besides ``--rate``; all are None unless given."""
    count = click.IntRange(1, 65_536)
    for option in reversed((
        click.option("--topology", type=click.Choice(KINDS), help="Scenario files have more. [fat-tree]"),
        click.option("--hosts", type=click.IntRange(2, 65_536), metavar="N", help="Hosts of it. [16]"),
        click.option("--tiers", type=click.IntRange(2, 3), metavar="2|3", help="fat-tree: tiers of switches. [3]"),
        click.option(
            "--oversubscription", type=RATIO,
            help="Of leaves: rate of their hosts over that of their uplinks. [as many uplinks as hosts]",
        ),
        click.option("--pod-oversubscription", type=RATIO, help="fat-tree: of aggregation switches. [1:1]"),
        click.option("--hosts-per-leaf", type=count, metavar="N", help="leaf-spine, rail: on each leaf. [any; all]"),
        click.option(
            "--spines", type=click.IntRange(0, 4096), metavar="N",
            help="leaf-spine, rail: instead of --oversubscription; rail: 0 for none.",
        ),
        click.option("--nics", type=click.IntRange(2, 64), metavar="N", help="rail: NICs of a host, a rail each. [4]"),
        click.option("--uplink-rate", type=RATE, help="Line rate between switches. [--rate]"),
    )):  # fmt: skip
        command = option(command)
    return command


def network_values(rate: int | None, topology: str | None, hosts: int | None, **given: Any) -> dict[str, Any]:
    """Plain values of a scenario's ``topology``; an option that it has no use for is refused.

    Parameters
    ----------
    rate : int, optional
        Of hosts' cables, bit/s.
    topology, hosts
        As given, or None.
    **given
        The other options of :func:`network_options`.
    """
    from emulator.config import LinkConfig

    kind, hosts = topology or "fat-tree", hosts or 16
    for option, value in given.items():
        if value is not None and kind not in _OF[option]:
            others = " or ".join(_OF[option])
            raise click.UsageError(f"--{option.replace('_', '-')}: is for {others}, not for {kind}; leave it out")
    if given["spines"] is not None and given["oversubscription"] is not None:
        raise click.UsageError("--spines and --oversubscription both say how many uplinks there are; give one of them")
    link = LinkConfig()
    host_bps = rate or link.rate_bps
    uplink_bps = given["uplink_rate"] or host_bps
    hosts_an_uplink = (given["oversubscription"] or Fraction(host_bps, uplink_bps)) * Fraction(uplink_bps, host_bps)
    values: dict[str, Any] = {"kind": kind}
    if given["uplink_rate"]:
        values["uplink"] = {"rate_bps": uplink_bps}
    if kind == "fat-tree":
        values |= _fat_tree(hosts, hosts_an_uplink, given["tiers"] or 3, given["pod_oversubscription"])
    elif kind == "leaf-spine":
        per_leaf = given["hosts_per_leaf"] or _leaf_size(hosts, hosts_an_uplink)
        if hosts % per_leaf:
            raise click.UsageError(f"--hosts-per-leaf: {per_leaf} does not divide the {hosts} of --hosts")
        spines = _spines(given["spines"], per_leaf, hosts_an_uplink)
        values |= {"leaves": hosts // per_leaf, "hosts_per_leaf": per_leaf, "spines": spines}
    elif kind == "rail":
        group = given["hosts_per_leaf"] or hosts
        spines = _spines(given["spines"], group, hosts_an_uplink)
        values |= {"servers": hosts, "rails": given["nics"] or 4, "servers_per_group": group, "spines": spines}
    else:
        values["hosts"] = hosts
    return values


def _fat_tree(hosts: int, hosts_an_uplink: Fraction, tiers: int, pod: Fraction | None) -> dict[str, Any]:
    if hosts_an_uplink.denominator > 1 or hosts_an_uplink < 1:
        raise click.UsageError(
            f"--oversubscription: a leaf of a fat tree has a whole number of hosts an uplink, not "
            f"{float(hosts_an_uplink):g}; change it, or --uplink-rate, or take --topology leaf-spine"
        )
    if pod is not None and tiers == 2:
        raise click.UsageError("--pod-oversubscription: two tiers have no aggregation switches; leave it out")
    if pod is not None and (pod.denominator > 1 or pod < 1):
        raise click.UsageError("--pod-oversubscription: must be a whole number to 1, as in 2:1")
    values = {"hosts": hosts, "tiers": tiers, "leaf_oversubscription": int(hosts_an_uplink)}
    return values if pod is None else {**values, "pod_oversubscription": int(pod)}


def _leaf_size(hosts: int, hosts_an_uplink: Fraction) -> int:
    """Hosts of a leaf: what divides them, is near their square root and makes whole spines."""
    sizes = [n for n in range(1, hosts + 1) if hosts % n == 0 and (n / hosts_an_uplink).denominator == 1]
    below = [n for n in sizes if n * n <= hosts]
    return below[-1] if below else sizes[0] if sizes else hosts


def _spines(given: int | None, per_leaf: int, hosts_an_uplink: Fraction) -> int:
    spines = per_leaf / hosts_an_uplink if given is None else Fraction(given)
    if spines.denominator > 1:
        raise click.UsageError(
            f"--oversubscription: {per_leaf} hosts a leaf would need {float(spines):g} spines; "
            "change it, or --hosts-per-leaf or --hosts"
        )
    return int(spines)
