"""``ttpoe incast``: N senders to one receiver, side by side over several transports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ttpoe.cli.transports import TRANSPORT_HELP
from ttpoe.cli.types import RATE, SIZE, TIME, names, output_options, set_field
from ttpoe.state import CONGESTION_CONTROLS

_OPTIONS = {
    "transports": "--transport",
    "workload.senders": "--senders",
    "workload.size_bytes": "--size",
    "workload.jitter_ps": "--jitter",
    "link.rate_bps": "--rate",
    "link.delay_ps": "--delay",
    "switch.buffer_bytes": "--buffer",
    "switch.alpha": "--alpha",
    "ttpoe.mtu_bytes": "--mtu",
    "roce.mtu_bytes": "--mtu",
    "tcp.mtu_bytes": "--mtu",
    "ttpoe.window_bytes": "--window",
    "ttpoe.congestion_control": "--congestion-control",
    "ttpoe.mode": "--ipv4",
    "tcp.rto_min_ps": "--rto-min",
    "hosts.drain_rate_bps": "--drain-rate",
    "hosts": "--drain-rate",
    "ttpoe": "--window and --mtu",
    "tcp": "--rto-min and --mtu",
    "seed": "--seed",
    "repeat": "--repeat",
    "capture": "--capture",
}


@click.command()
@click.option("--transport", metavar="LIST", help=TRANSPORT_HELP)
@click.option("--senders", type=click.IntRange(1, 65_535), metavar="N", help="Hosts that send to one. [32]")
@click.option("--size", type=SIZE, help="Message of each sender; MB is 10^6, MiB 2^20. [1MB]")
@click.option("--rate", type=RATE, help="Line rate of every link; 100G is 10^11 bit/s. [100G]")
@click.option("--delay", type=TIME, help="Propagation of each link. [1us]")
@click.option("--mtu", type=SIZE, help="Payload of a frame, for every transport. [ttpoe 1024, roce 4096, iwarp 1440]")
@click.option("--buffer", type=SIZE, help="Shared buffer of the switch. [12MB]")
@click.option("--alpha", type=float, metavar="FACTOR", help="Dynamic threshold: a queue's share of what is free. [1.0]")
@click.option("--window", type=SIZE, help="TTPoE's window of payload, per link. [1MB]")
@click.option("--congestion-control", type=click.Choice(CONGESTION_CONTROLS), help="TTPoE's, beside --window. [fixed]")
@click.option("--ipv4", "is_ipv4", is_flag=True, help="TTPoE in IPv4 mode, where frames can be marked.")
@click.option("--rto-min", type=TIME, help="iWARP's least retransmission timeout. [200ms]")
@click.option("--drain-rate", type=RATE, help="TTPoE's receiver is read no faster than this, per link. [at once]")
@click.option("--jitter", type=TIME, help="Senders start at random within this time. [0us]")
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), metavar="N", help="Decides ties, ids and jitter. [1]")
@click.option("--repeat", type=click.IntRange(1, 10_000), metavar="N", help="Paired seeds from --seed on. [1]")
@output_options
def command(
    transport: str | None, senders: int | None, size: int | None, rate: int | None, delay: int | None,
    mtu: int | None, buffer: int | None, alpha: float | None, window: int | None, congestion_control: str | None,
    is_ipv4: bool, rto_min: int | None, drain_rate: int | None, jitter: int | None, seed: int | None,
    repeat: int | None, out: Path | None, capture: str | None, timestamps: str, as_json: bool,
) -> int:  # fmt: skip
    """N senders send one message each to one receiver, at once: who finishes when, and why.

    Completion times run from submission to the last byte in order at the receiver. Exit status 3: a flow did not
    finish; 4: a lossless priority dropped a frame.
    """
    from emulator.config import ConfigError, make_scenario
    from ttpoe.cli.experiment import run_scenario, usage_error

    values: dict[str, Any] = {"name": "incast", "workload": {"kind": "incast"}}
    set_field(values, "transports", names(transport))
    set_field(values, "workload.senders", senders)
    set_field(values, "workload.size_bytes", size)
    set_field(values, "workload.jitter_ps", jitter)
    set_field(values, "link.rate_bps", rate)
    set_field(values, "link.delay_ps", delay)
    set_field(values, "switch.buffer_bytes", buffer)
    set_field(values, "switch.alpha", alpha)
    set_field(values, "ttpoe.mtu_bytes", mtu)
    set_field(values, "roce.mtu_bytes", mtu)
    set_field(values, "ttpoe.window_bytes", window)
    set_field(values, "ttpoe.congestion_control", congestion_control)
    set_field(values, "ttpoe.mode", "ipv4" if is_ipv4 else None)
    set_field(values, "tcp.mtu_bytes", mtu)
    set_field(values, "tcp.rto_min_ps", rto_min)
    set_field(values, "hosts.drain_rate_bps", drain_rate)
    set_field(values, "seed", seed)
    set_field(values, "repeat", repeat)
    try:
        scenario = make_scenario(values)
    except ConfigError as error:
        raise usage_error(str(error), _OPTIONS) from None
    return run_scenario(
        scenario, out=out, capture=capture, timestamps=timestamps, as_json=as_json, option_names=_OPTIONS
    )
