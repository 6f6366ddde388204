"""The console script before the command is up: ``python -m ttpoe`` is the same function."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ttpoe import cli

ROOT = Path(__file__).resolve().parent.parent


def start(tmp_path: Path, click: str, handler: int | None = None) -> subprocess.CompletedProcess[str]:
    """Run ``python -m ttpoe`` with a stand-in for the first library that it imports."""
    (tmp_path / "click.py").write_text(click)
    path = os.pathsep.join([str(tmp_path), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, "-m", "ttpoe", "--version"], env={**os.environ, "PYTHONPATH": path}, capture_output=True,
        text=True, timeout=60, check=False, preexec_fn=handler and (lambda: signal.signal(signal.SIGINT, handler)),
    )  # fmt: skip


INTERRUPTED = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nraise SystemExit(7)\n"


def test_ctrl_c_while_modules_are_imported_is_quiet(tmp_path):
    done = start(tmp_path, INTERRUPTED)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_who_is_told_to_ignore_ctrl_c_does(tmp_path):
    """As shells tell what they put into the background."""
    assert start(tmp_path, INTERRUPTED, signal.SIG_IGN).returncode == 7


def test_ctrl_c_right_before_the_command_is_told_like_any_other(monkeypatch, capsys):
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli.group, "main", interrupted)
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_what_is_imported_first_is_what_the_other_tests_stand_in_for(tmp_path):
    done = start(tmp_path, "print('ttpoe imports it')\nraise SystemExit(0)\n")
    assert done.stdout == "ttpoe imports it\n"
