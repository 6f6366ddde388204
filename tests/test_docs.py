"""Every command that the docs show runs; every file that they link to is there."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from ttpoe.cli import group

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
SCRIPT = Path(sys.executable).with_name("ttpoe")


def commands() -> list[str]:
    """Lines of shell blocks that call ttpoe or an example as a reader would, in order, each once."""
    lines = []
    for page in PAGES:
        for block in re.findall(r"^```sh\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
            lines += [line for line in block.splitlines() if line.startswith(("ttpoe ", "python examples/"))]
    return list(dict.fromkeys(lines))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A directory with examples/, where the docs' commands run one after another."""
    path = tmp_path_factory.mktemp("docs")
    (path / "examples").symlink_to(ROOT / "examples")
    return path


def test_there_are_commands():
    assert len(commands()) > 10


@pytest.mark.parametrize("line", commands())
def test_command_of_the_docs_runs(line, folder):
    words = shlex.split(line)
    if words[1] == "loopback" and os.geteuid() != 0:
        pytest.skip("ttpoe loopback needs root")
    for word in words:
        if word.endswith(".pcapng") and "trace" in words and not (folder / word).exists():
            pytest.skip(f"{word} was not made, since the command that makes it was skipped")
    program = sys.executable if words[0] == "python" else SCRIPT
    done = subprocess.run([program, *words[1:]], cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("name", group.list_commands(click.Context(group)))
def test_each_command_has_a_section_and_is_in_the_readme(name):
    headings = re.findall(r"^## (.*)$", (ROOT / "docs" / "cli.md").read_text(), re.MULTILINE)
    assert any(re.search(rf"ttpoe {name}\b", heading) for heading in headings)
    assert f"ttpoe {name}" in (ROOT / "README.md").read_text()


def test_readme_has_the_two_commands():
    first, second = re.findall(r"^```sh\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)[:2]
    assert first.count("\n") == second.count("\n") == 1
    assert "ttpoe incast" in first
    assert "pytest" in second
