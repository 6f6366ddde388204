"""``ttpoe multipath``: a workload on a fabric with many paths, side by side over transports and routing policies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ttpoe.cli.networks import NETWORK_FIELDS, network_options, network_values
from ttpoe.cli.transports import ROUTING_HELP, TRANSPORT_HELP
from ttpoe.cli.types import LOAD, RATE, SIZE, TIME, names, output_options, set_field

_OPTIONS = {
    "transports": "--transport",
    "routings": "--routing",
    **NETWORK_FIELDS,
    "workload.size_bytes": "--size",
    "workload.jitter_ps": "--jitter",
    "workload.path": "--flows",
    "workload.load": "--load",
    "workload.distribution": "--distribution",
    "workload.messages": "--messages",
    "workload.duration_ps": "--duration",
    "workload": "--workload",
    "frame_overhead": "--frame-overhead",
    "link.rate_bps": "--rate",
    "link.delay_ps": "--delay",
    "switch.buffer_bytes": "--buffer",
    "ttpoe.mtu_bytes": "--mtu",
    "roce.mtu_bytes": "--mtu",
    "tcp.mtu_bytes": "--mtu",
    "ttpoe.window_bytes": "--window",
    "ttpoe.mode": "--ipv4",
    "ttpoe": "--window and --mtu",
    "seed": "--seed",
    "repeat": "--repeat",
    "capture": "--capture",
}

_WORKLOADS: dict[str, dict[str, Any]] = {
    "permutation": {"kind": "permutation"},
    "incast": {"kind": "incast"},
    "outcast": {"kind": "outcast"},
    "victim": {"kind": "victim"},
    "hotspot": {"kind": "hotspot"},
    "all-to-all": {"kind": "all-to-all", "order": "naive"},
    "shifted-all-to-all": {"kind": "all-to-all", "order": "shifted"},
    "poisson": {"kind": "poisson"},
    "ring-all-reduce": {"kind": "ring"},
    "tree-all-reduce": {"kind": "tree"},
}
_OPTIONS_OF = {
    "size": {"size_bytes": set(_WORKLOADS)},
    "jitter": {"jitter_ps": {"permutation", "incast", "outcast", "victim", "hotspot"}},
    "load": {"load": {"poisson"}},
    "distribution": {"distribution": {"poisson"}},
    "messages": {"messages": {"poisson"}, "messages_per_host": {"hotspot"}},
    "duration": {"duration_ps": {"poisson"}},
    "peers": {"senders": {"incast", "victim"}, "receivers": {"outcast"}},
    "parallel": {"parallel": {"all-to-all", "shifted-all-to-all"}},
    "chunks": {"chunks": {"tree-all-reduce"}},
    "compute": {"compute_ps": {"ring-all-reduce", "tree-all-reduce"}},
}
"""Which field an option sets, and of which workloads."""
_EVERYONE = {"incast": "senders", "outcast": "receivers"}
"""What all hosts but h0 are, unless --peers says otherwise."""


def _workload(name: str | None, flows: Path | None, hosts: int, given: dict[str, Any]) -> dict[str, Any]:
    """Plain values of a workload; an option that it has no use for is refused."""
    if flows is not None and name is not None:
        raise click.UsageError("--flows and --workload both say who sends; give one of them")
    what = "--flows" if flows is not None else f"--workload {name or 'permutation'}"
    values: dict[str, Any] = dict(_WORKLOADS[name or "permutation"])
    if flows is not None:
        values = {"kind": "file", "path": str(flows)}
    for option, value in given.items():
        if value is None:
            continue
        fields = [field for field, kinds in _OPTIONS_OF[option].items() if (name or "permutation") in kinds]
        if flows is not None or not fields:
            raise click.UsageError(f"--{option}: {what} has no use for it; leave it out")
        values[fields[0]] = value
    if name in _EVERYONE:
        values.setdefault(_EVERYONE[name], hosts - 1)
    if name == "victim":
        values.setdefault("senders", max(1, hosts - 2))
    return values


@click.command()
@network_options
@click.option(
    "--workload", type=click.Choice(list(_WORKLOADS)), help="Who sends to whom; docs/cli.md tells. [permutation]"
)
@click.option(
    "--flows", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
    help="Messages from a CSV file (src,dst,size,start), or from htsim's connection matrix (.cm), instead.",
)  # fmt: skip
@click.option("--transport", metavar="LIST", help=TRANSPORT_HELP)
@click.option("--routing", metavar="LIST", help=ROUTING_HELP)
@click.option("--size", type=SIZE, help="Each message, or a collective's data; MB is 10^6. [the workload's]")
@click.option("--peers", type=click.IntRange(1, 65_535), metavar="N", help="Senders or receivers beside h0. [all]")
@click.option("--load", type=LOAD, help="poisson: payload over hosts' line rate, as 0.5 or 50%; to 400%. [50%]")
@click.option("--distribution", metavar="NAME", help="poisson: websearch, hadoop or alistorage. [websearch]")
@click.option("--messages", type=click.IntRange(1, 1_000_000), metavar="N", help="poisson: in all; hotspot: per host.")
@click.option("--duration", type=TIME, help="poisson: time in which messages start, instead of --messages.")
@click.option("--parallel", type=click.IntRange(0, 65_535), metavar="N", help="all-to-all: under way per host. [1]")
@click.option("--chunks", type=click.IntRange(1, 65_536), metavar="N", help="tree-all-reduce: pieces. [8]")
@click.option("--compute", type=TIME, help="all-reduce: time to reduce a chunk. [0us]")
@click.option("--rate", type=RATE, help="Line rate of every link, or of hosts' beside --uplink-rate. [100G]")
@click.option("--delay", type=TIME, help="Propagation of each link. [1us]")
@click.option("--mtu", type=SIZE, help="Payload of a frame, for every transport. [ttpoe 1024, roce 4096, iwarp 1440]")
@click.option("--buffer", type=SIZE, help="Shared buffer of each switch. [12MB]")
@click.option("--window", type=SIZE, help="TTPoE's window of payload, per link. [1MB]")
@click.option("--ipv4", "is_ipv4", is_flag=True, help="TTPoE in IPv4 mode, where frames can be marked.")
@click.option(
    "--frame-overhead", type=click.Choice(["real", "peer"]), help="peer: no headers, as other simulators. [real]"
)
@click.option("--jitter", type=TIME, help="Senders start at random within this time. [0us]")
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), metavar="N", help="Decides pairs, paths and ties. [1]")
@click.option("--repeat", type=click.IntRange(1, 10_000), metavar="N", help="Paired seeds from --seed on. [1]")
@output_options
def command(
    workload: str | None, flows: Path | None, transport: str | None, routing: str | None,
    size: int | None, peers: int | None, load: float | None, distribution: str | None, messages: int | None,
    duration: int | None, parallel: int | None, chunks: int | None, compute: int | None,
    rate: int | None, delay: int | None, mtu: int | None, buffer: int | None, window: int | None, is_ipv4: bool,
    frame_overhead: str | None, jitter: int | None, seed: int | None, repeat: int | None,
    out: Path | None, capture: str | None, timestamps: str, as_json: bool, **network: Any,
) -> int:  # fmt: skip
    """Hosts of a fabric send across it: how transports fare with each way to choose among equal paths.

    Completion times run from submission to the last byte in order at the receiver. Exit status 3: a flow did not
    finish; 4: a lossless priority dropped a frame.
    """
    from emulator.config import ConfigError, make_scenario
    from ttpoe.cli.experiment import run_scenario, usage_error

    topology = network_values(rate, **network)
    hosts = network["hosts"] or 16
    given: dict[str, Any] = {
        "size": size, "jitter": jitter, "load": load, "distribution": distribution, "messages": messages,
        "duration": duration, "peers": peers, "parallel": parallel, "chunks": chunks, "compute": compute,
    }  # fmt: skip
    values: dict[str, Any] = {
        "name": f"{flows.name if flows else workload or 'permutation'} on {topology['kind']} of {hosts} hosts",
        "topology": topology,
        "workload": _workload(workload, flows, hosts, given),
    }
    for field, value in (
        ("transports", names(transport)), ("routings", names(routing)), ("link.rate_bps", rate),
        ("link.delay_ps", delay), ("switch.buffer_bytes", buffer), ("ttpoe.mtu_bytes", mtu), ("roce.mtu_bytes", mtu),
        ("tcp.mtu_bytes", mtu), ("ttpoe.mode", "ipv4" if is_ipv4 else None),
        ("ttpoe.window_bytes", window), ("frame_overhead", frame_overhead), ("seed", seed), ("repeat", repeat),
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
