"""What the pages say is so: their programs print what is shown, and what they name exists."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT, Program, anchors, blocks, links, programs, prose
from tests.faults.jobs import clean_environment, is_open_mpi, launch_line, mpirun_path, run_timed

PACKAGE = ROOT / "mpicoll"
PROGRAMS = [
    pytest.param(
        program, id=f"{program.page}-{program.name}", marks=[pytest.mark.needs_torch] if program.needs_torch else []
    )
    for page in PAGES
    for program in programs(page)
]
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_prints_what_the_page_shows(program: Program, tmp_path: Path) -> None:
    path = tmp_path / program.name
    path.write_text(program.source)
    mpirun = mpirun_path()
    environment = clean_environment(mpirun)
    environment.pop("PYTHONUNBUFFERED", None)  # it writes a line and its end apart, and other ranks' between them
    if is_open_mpi(mpirun):
        environment["OMPI_MCA_mpi_yield_when_idle"] = "1"  # there may be fewer cores than ranks
    ended = run_timed([*launch_line(mpirun, program.ranks), sys.executable, str(path)], environment, 120.0)
    # Ranks print in any order.
    assert (ended.code, ended.lines()) == (0, sorted(program.output.splitlines())), ended.err


def test_the_readme_has_a_program() -> None:
    assert [program for program in programs(ROOT / "README.md") if program.output]


@each_page
def test_links_lead_somewhere(page: Path) -> None:
    for link in links(page):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link


@each_page
def test_make_targets_exist(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text()
    rules = [rule.replace("%", ".+") for rule in re.findall(r"^([a-z%.-]+):", makefile, re.MULTILINE)]
    for target in re.findall(r"\bmake (?!MPI=)([a-z][a-z0-9.-]*)", "\n".join(_code(page))):
        assert any(re.fullmatch(rule, target) for rule in rules), f"make {target}"


@each_page
def test_extras_exist(page: Path) -> None:
    declared = (ROOT / "pyproject.toml").read_text().partition("[project.optional-dependencies]")[2]
    known = set(re.findall(r"^(\w+) = \[", declared.partition("\n[")[0], re.MULTILINE))
    for extras in re.findall(r"(?:mpicoll|\.)\[([\w,]+)\]", "\n".join(_code(page))):
        assert set(extras.split(",")) <= known


@each_page
def test_lines_fit_in_120_columns(page: Path) -> None:
    assert [line for line in page.read_text().splitlines() if len(line) > 120] == []


def test_the_architecture_page_lists_every_module() -> None:
    tree = next(block.text for block in blocks(ROOT / "docs" / "architecture.md") if "mpicoll/" in block.text)
    listed, folder = set(), ""
    for line in tree.splitlines()[1:]:
        indent, name = re.match(r"( +)(\S+)", line).groups()  # type: ignore[union-attr]
        if name.endswith("/"):
            folder = name
        elif name.endswith(".py"):
            listed.add((folder if len(indent) > 2 else "") + name)
    existing = {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if path.name != "__init__.py"}
    assert listed == existing | {"__init__.py"}


def test_the_clients_page_has_the_versions_that_are_tested() -> None:
    pinned = dict(
        re.findall(r"^(?:pytorch-)?(\w+)==(\S+)$", (ROOT / "tests/clients/requirements.txt").read_text(), re.M)
    )
    rows = re.findall(r"^\| (\w+) \| ([\d.]+) \|", (ROOT / "docs" / "clients.md").read_text(), re.M)
    assert rows
    assert dict(rows).items() <= pinned.items()


def test_the_sharp_bits_list_every_variable() -> None:
    pattern = re.compile(r"MPICOLL_[A-Z_]+\b")
    read = {name for path in PACKAGE.rglob("*.py") for name in pattern.findall(path.read_text())}
    rows = re.findall(r"^\| `(MPICOLL_[A-Z_]+)`", prose(ROOT / "docs" / "sharp-bits.md"), re.MULTILINE)
    assert sorted(rows) == sorted(read)


def _code(page: Path) -> list[str]:
    """What a page marks as code, in blocks and within lines."""
    return [block.text for block in blocks(page)] + re.findall(r"`([^`\n]+)`", prose(page))
