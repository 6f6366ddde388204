"""The house rules that a tool can check: lint, types, who may import whom, how fast the command answers."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("command", [["ruff", "check", "--quiet"], ["mypy"], ["lint-imports"]], ids=lambda c: c[0])
def test_checker_is_content(command):
    tool = shutil.which(command[0], path=str(Path(sys.executable).parent))
    if tool is None:
        pytest.skip(f"{command[0]} is not installed; pip install -e '.[dev]'")
    done = subprocess.run([tool, *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from ttpoe.cli import group; group.main(['--help'], standalone_mode=False); "
        "print(sorted({'numba', 'numpy', 'scapy', 'matplotlib', 'pydantic', 'asyncio'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_every_package_is_typed_and_installed():
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert config["project"]["scripts"] == {"ttpoe": "ttpoe.__main__:main"}
    for package in ("ttpoe", "emulator", "traces"):
        assert (ROOT / package / "py.typed").exists()


def test_the_table_of_rooms_names_every_module_once():
    text = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    house = text[text.index("## The house") : text.index("Who may import whom")]
    named = []
    for cell in re.findall(r"^\| (`.+?`) \|", house, re.MULTILINE):
        first, *others = re.findall(r"`([^`]+)`", cell)
        folder = first.split("/")[0]
        named += [first, *(f"{folder}/{other}" for other in others)]
    there = {
        path.relative_to(ROOT).as_posix() + ("/" if path.is_dir() else "")
        for package in ("ttpoe", "emulator", "traces") for path in (ROOT / package).iterdir()
        if (path.suffix == ".py" and path.name != "__init__.py") or (path / "__init__.py").exists()
    }  # fmt: skip
    assert sorted(named) == sorted(there)
