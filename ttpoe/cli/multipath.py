"""``ttpoe multipath``: a workload on a fabric with many paths, side by side over transports and routing policies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ttpoe.cli.transports import ROUTING_HELP, TRANSPORT_HELP
from ttpoe.cli.types import RATE, SIZE, TIME, names, output_options, set_field

_OPTIONS = {
    "transports": "--transport",
    "routings": "--routing",
    "topology": "--topology and --hosts",
    "workload.size_bytes": "--size",
    "workload.jitter_ps": "--jitter",
    "workload": "--workload",
    "link.rate_bps": "--rate",
    "link.delay_ps": "--delay",
    "switch.buffer_bytes": "--buffer",
    "ttpoe.mtu_bytes": "--mtu",
    "roce.mtu_bytes": "--mtu",
    "tcp.mtu_bytes": "--mtu",
    "ttpoe.window_bytes": "--window",
    "ttpoe": "--window and --mtu",
    "seed": "--seed",
    "repeat": "--repeat",
    "capture": "--capture",
}


def _topology(kind: str, hosts: int) -> dict[str, Any]:
    """Plain values of a non-blocking network of so many hosts."""
    if kind == "leaf-spine":
        per_leaf = next((n for n in range(int(hosts**0.5), 0, -1) if hosts % n == 0), 1)
        return {"kind": kind, "leaves": hosts // per_leaf, "hosts_per_leaf": per_leaf, "spines": per_leaf}
    if kind == "fat-tree-2":
        return {"kind": "fat-tree", "tiers": 2, "hosts": hosts}
    return {"kind": kind, "hosts": hosts}


@click.command()
@click.option(
    "--topology", type=click.Choice(["fat-tree", "fat-tree-2", "leaf-spine", "star"]), default="fat-tree",
    help="Without oversubscription; scenario files have more. [fat-tree]",
)  # fmt: skip
@click.option("--hosts", type=click.IntRange(2, 65_536), default=16, metavar="N", help="Hosts of the fabric. [16]")
@click.option("--workload", type=click.Choice(["permutation"]), default="permutation", help="[permutation]")
@click.option("--transport", metavar="LIST", help=TRANSPORT_HELP)
@click.option("--routing", metavar="LIST", help=ROUTING_HELP)
@click.option("--size", type=SIZE, help="Each message; MB is 10^6, MiB 2^20. [2MB]")
@click.option("--rate", type=RATE, help="Line rate of every link; 100G is 10^11 bit/s. [100G]")
@click.option("--delay", type=TIME, help="Propagation of each link. [1us]")
@click.option("--mtu", type=SIZE, help="Payload of a frame, for every transport. [ttpoe 1024, roce 4096, iwarp 1440]")
@click.option("--buffer", type=SIZE, help="Shared buffer of each switch. [12MB]")
@click.option("--window", type=SIZE, help="TTPoE's window of payload, per link. [1MB]")
@click.option("--jitter", type=TIME, help="Senders start at random within this time. [0us]")
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), metavar="N", help="Decides pairs, paths and ties. [1]")
@click.option("--repeat", type=click.IntRange(1, 10_000), metavar="N", help="Paired seeds from --seed on. [1]")
@output_options
def command(
    topology: str, hosts: int, workload: str, transport: str | None, routing: str | None, size: int | None,
    rate: int | None, delay: int | None, mtu: int | None, buffer: int | None, window: int | None, jitter: int | None,
    seed: int | None, repeat: int | None, out: Path | None, capture: str | None, timestamps: str, as_json: bool,
) -> int:  # fmt: skip
    """Hosts of a fabric send across it, at once: how transports fare with each way to choose among equal paths.

    Completion times run from submission to the last byte in order at the receiver. Exit status 3: a flow did not
    finish; 4: a lossless priority dropped a frame.
    """
    from emulator.config import ConfigError, make_scenario
    from ttpoe.cli.experiment import run_scenario, usage_error

    values: dict[str, Any] = {
        "name": f"{workload} on {topology} of {hosts} hosts",
        "topology": _topology(topology, hosts),
        "workload": {"kind": workload},
    }
    for field, value in (
        ("transports", names(transport)), ("routings", names(routing)), ("workload.size_bytes", size),
        ("workload.jitter_ps", jitter), ("link.rate_bps", rate), ("link.delay_ps", delay),
        ("switch.buffer_bytes", buffer), ("ttpoe.mtu_bytes", mtu), ("roce.mtu_bytes", mtu),
        ("tcp.mtu_bytes", mtu),
        ("ttpoe.window_bytes", window), ("seed", seed), ("repeat", repeat),
    ):  # fmt: skip
        set_field(values, field, value)
    try:
        scenario = make_scenario(values)
    except ConfigError as error:
        raise usage_error(str(error), _OPTIONS) from None
    return run_scenario(
        scenario, out=out, capture=capture, timestamps=timestamps, as_json=as_json, option_names=_OPTIONS,
        figure="multipath.png",
    )  # fmt: skip
