"""A bar on a terminal while bytes move; silence elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack


def progress_bar(total_bytes: int | None, stack: ExitStack) -> Callable[[int], object]:
    """What to call with the bytes that have moved; the bar ends with ``stack``. None for a total that is unknown."""
    if not sys.stderr.isatty():
        return lambda received_bytes: None
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    bar = Progress(
        BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn(),
        console=Console(stderr=True), transient=True,
    )  # fmt: skip
    stack.enter_context(bar)
    task = bar.add_task("", total=total_bytes)
    return lambda received_bytes: bar.update(task, completed=received_bytes)
