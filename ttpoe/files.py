"""Files that appear whole or not at all."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, BinaryIO


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


def check_target(path: Path, *, force: bool) -> None:
    """Raise OSError if a file must not get the name ``path``: it is taken, and not by a file that may be replaced."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
        raise OSError(errno.EINVAL, "is there and is no regular file", str(path))
    if not force:
        raise FileExistsError(errno.EEXIST, "is there already; --force overwrites it", str(path))


@contextmanager
def arriving(path: Path, *, force: bool = False) -> Iterator[BinaryIO]:
    """A file that gets its name when all of it is on the disk, and leaves nothing if the body raises.

    Parameters
    ----------
    path : Path
        Its name. Without ``force`` it must be free, now and at the end: a file that others put there is never replaced.
    force : bool
        Replace a file, or a symbolic link, of that name.
    """
    check_target(path, force=force)
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with open(beside, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        _give_name(beside, path, force=force)
    finally:
        beside.unlink(missing_ok=True)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _give_name(beside: Path, path: Path, *, force: bool) -> None:
    if not force:
        try:
            os.link(beside, path)  # unlike a rename it fails if the name is taken
            return
        except FileExistsError:
            check_target(path, force=False)
            raise
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS):
                raise
    check_target(path, force=force)  # this file system has no hard links: the moment between is left
    os.replace(beside, path)
