"""What ``ttpoe send`` and ``ttpoe recv`` share: options, addresses, the report of one file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from ttpoe.cli.types import Quantity
from ttpoe.constants import MAX_PAYLOAD_BYTES
from ttpoe.ipv4 import is_unicast, parse_ipv4
from ttpoe.state import CONGESTION_CONTROLS
from ttpoe.units import parse_size_bytes
from ttpoe.wire import is_unicast_mac, parse_mac

if TYPE_CHECKING:
    from ttpoe.config import EndpointConfig

KEEPALIVE_S = 5.0
"""The sender says that it lives this often while it has nothing to send, or waits for the receiver's verdict."""
FAREWELL_S = 1.0
"""What we give a peer to take our last words, before we leave on Ctrl-C."""
WINDOW = Quantity("size", parse_size_bytes, minimum=1, maximum=2**38)
"""A quarter of what a buffer may have: that of the receiver is four windows."""
MTU = Quantity("size", parse_size_bytes, minimum=1, maximum=0xFFFF - 46)


@dataclass
class FileReport:
    """What became of one file; every name carries its unit. ``path`` is where it was stored, here or at the peer."""

    peer: str | None = None
    name: str | None = None
    path: str | None = None
    finished: bool = False
    reason: str | None = None
    bytes: int = 0
    sha256: str | None = None
    seconds: float | None = None
    goodput_gbps: float | None = None
    packets_sent: int | None = None
    resent_packets: int | None = None

    def tell(self, verb: str, as_json: bool, *, on_stderr: bool = False) -> None:
        """Print it: a line, or JSON; what went wrong goes to standard error."""
        if as_json:
            import json

            click.echo(json.dumps(asdict(self)))
        elif self.finished:
            rate = "" if self.goodput_gbps is None else f" in {self.seconds:.3f} s, {self.goodput_gbps:.3f} Gb/s"
            what = "standard input" if self.name == "" else self.name
            click.echo(f"{verb} {what}: {self.bytes:,} bytes{rate}, SHA-256 {self.sha256}", err=on_stderr)
        else:
            click.echo(f"not {verb}: {self.reason}", err=True)

    def set_time(self, seconds: float) -> None:
        """Duration and goodput."""
        self.seconds = max(seconds, 1e-9)
        self.goodput_gbps = self.bytes * 8 / self.seconds / 1e9


class Peer(click.ParamType):
    """An address: a tuple of mode and text."""

    name = "address"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        for mode, parse, is_one_host in (("ethernet", parse_mac, is_unicast_mac), ("ipv4", parse_ipv4, is_unicast)):
            try:
                address = parse(value)
            except ValueError:
                continue
            if not is_one_host(address):
                self.fail(f"{value} is not the address of one peer; give the peer's own", param, ctx)
            return mode, value
        self.fail(f"{value!r} is no address; write a MAC as in 98:ed:5c:00:00:02 or IPv4 as in 10.0.0.2", param, ctx)


profile_option = click.option(
    "--profile", type=click.Choice(["spec", "reference"]), default="spec",
    help="What the peer is: of the specification, or the reference module. [spec]",
)  # fmt: skip


congestion_option = click.option(
    "--congestion-control", type=click.Choice(CONGESTION_CONTROLS), default="fixed",
    help="Beside --window; dctcp in IPv4 mode. [fixed]",
)  # fmt: skip


def endpoint_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command ``--interface``, ``--mtu``, ``--window``, ``--congestion-control``, ``--profile``, ``--json``."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print JSON, an object a line."),
        profile_option,
        congestion_option,
        click.option("--window", type=WINDOW, default="1MB", help="Payload that may wait for its ACK. [1MB]"),
        click.option("--mtu", type=MTU, default="1024", help="Payload of a frame; above 1024 is ttpoe-jumbo. [1024]"),
        click.option("--interface", required=True, metavar="IF", help="Network interface."),
    ):
        command = option(command)
    return command


def endpoint_config(mtu: int, window: int, profile: str, congestion_control: str, mode: str) -> EndpointConfig:
    """Config for the options; a usage error names the option. ``mode``: ``ethernet`` or ``ipv4``."""
    from ttpoe.config import EndpointConfig

    if window < mtu:
        raise click.UsageError(f"--window is {window}, below one payload of --mtu {mtu}; raise it")
    if profile == "reference" and mtu > MAX_PAYLOAD_BYTES:
        raise click.UsageError(f"--mtu is {mtu}; the reference module takes at most {MAX_PAYLOAD_BYTES}")
    try:
        config = EndpointConfig.profile(
            profile, mtu_bytes=mtu, window_bytes=window, send_buffer_bytes=2 * window, receive_buffer_bytes=4 * window,
            congestion_control=congestion_control,
        )  # fmt: skip
        config.check_mode(is_ipv4=mode == "ipv4")
    except ValueError as error:
        field, _, rest = str(error).partition(" is ")
        raise click.UsageError(
            f"--congestion-control is {rest}" if field == "congestion_control" else f"--window, --mtu: {error}"
        ) from None
    return config
