"""``python -m ttpoe``, and the console script: Ctrl-C ends it quietly while the command is still being imported."""

from __future__ import annotations

import os
import signal


def _leave(*_: object) -> None:
    os._exit(130)  # nothing is begun that would have to be ended


def main() -> None:
    """Import the command and run it."""
    is_ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # else our caller has us ignore it
    if is_ours:
        signal.signal(signal.SIGINT, _leave)
    from ttpoe.cli import main as run

    if is_ours:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


if __name__ == "__main__":
    main()
