"""Files that appear whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def replacing(path: str | Path, mode: str = "w") -> Iterator[IO]:
    """Open a file beside ``path`` for writing and rename it to ``path`` on success; on an error nothing is left."""
    path = Path(path)
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(beside, mode, encoding=None if "b" in mode else "utf-8", newline=None if "b" in mode else "") as file:
            yield file
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
