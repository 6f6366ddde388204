"""The ``ttpoe`` command: the one place that joins the transport, the emulator and the traces.

Each command lives in a module of its own that is imported only when it is called, so that ``ttpoe --help`` is instant.
"""

from __future__ import annotations

import importlib
import os
import sys
from difflib import get_close_matches
from enum import IntEnum

import click


class ExitStatus(IntEnum):
    """What the shell is told."""

    OK = 0
    ERROR = 1  # what was asked for failed: an unreadable file, a missing right
    USAGE = 2  # a wrong option or field, named
    UNFINISHED = 3  # it ran, but a flow or transfer did not finish, or arrived changed
    PROMISE_BROKEN = 4  # a lossless priority dropped a frame, or a check found a counterexample
    DEADLOCK = 5  # lines under PFC wait for each other for ever
    INTERRUPTED = 130  # Ctrl-C; what was done is kept


_COMMANDS = {
    "incast": ("ttpoe.cli.incast", "N senders to one receiver over TTPoE and RoCE: who finishes when, and why."),
    "multipath": ("ttpoe.cli.multipath", "A workload on a fabric with many paths, over transports and routings."),
    "topology": ("ttpoe.cli.topology", "Count, measure and draw a network."),
    "validate": ("ttpoe.cli.validate", "The emulator beside theory and other tools' results, row by row."),
    "run": ("ttpoe.cli.run", "Run a scenario file (TOML)."),
    "loopback": ("ttpoe.cli.loopback", "Move a file over raw sockets between two network namespaces."),
    "send": ("ttpoe.cli.send", "Send a file to another machine where `ttpoe recv` runs."),
    "recv": ("ttpoe.cli.recv", "Receive files from `ttpoe send`."),
    "check": ("ttpoe.cli.check", "Search every state that two ends can get into, for a broken promise."),
    "trace": ("ttpoe.cli.trace", "Look into capture files."),
}


class _LazyGroup(click.Group):
    """Knows its commands by name and one line; imports one when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            close = get_close_matches(cmd_name, _COMMANDS, n=1)
            ctx.fail(f"There is no command {cmd_name!r}; " + (f"did you mean {close[0]}?" if close else "see --help."))
        command: click.Command = importlib.import_module(_COMMANDS[cmd_name][0]).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in _COMMANDS.items()])


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="ttpoe", message="%(prog)s %(version)s")
def group() -> None:
    """TTPoE over emulated switches and over real Ethernet, beside RoCE over PFC."""


def main() -> None:
    """Run the command line."""
    try:
        sys.exit(group.main(standalone_mode=False))
    except (click.exceptions.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        sys.exit(ExitStatus.INTERRUPTED)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.exceptions.Exit as end:
        sys.exit(end.exit_code)
    except BrokenPipeError:  # the reader of our output left, as in `| head`
        sys.stderr.close()
        sys.exit(ExitStatus.OK)
    except MemoryError as error:  # from sizes that no check can know to be too large for this machine
        click.echo(f"error: there is not enough memory for this; ask for less: {error or 'none is left'}", err=True)
        sys.exit(ExitStatus.ERROR)
    except OSError as error:  # such as a full disk behind standard output
        click.echo(f"error: {error.filename or 'output'}: {error.strerror or error}", err=True)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or the interpreter tries to flush again as it ends
        sys.exit(ExitStatus.ERROR)
