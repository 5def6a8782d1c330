"""Reads the pages: their links, headings, code blocks, and the programs whose output they show."""

from __future__ import annotations

import re
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LAUNCH = re.compile(r"\$ mpirun -n (\d+) python (\w+\.py)\n")


class Block(NamedTuple):
    """A fenced block of a page: its language and its text."""

    language: str
    text: str


class Program(NamedTuple):
    """A program in a page, and the command and the output that the page shows below it."""

    page: str
    name: str
    source: str
    ranks: int
    output: str

    @property
    def needs_torch(self) -> bool:
        """Whether it imports torch."""
        return re.search(r"^\s*import torch", self.source, re.MULTILINE) is not None


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page, in their order."""
    return [Block(*match.groups()) for match in _BLOCK.finditer(page.read_text())]


def prose(page: Path) -> str:
    """Return a page without its fenced blocks."""
    return _BLOCK.sub("", page.read_text())


def programs(page: Path) -> list[Program]:
    """Return the programs of a page. Each one's command and output come in the block right behind it.

    A Python block without them is an error: it would be shown and never run.
    """
    found = []
    fenced = blocks(page)
    for block, following in zip_longest(fenced, fenced[1:], fillvalue=Block("", "")):
        if block.language == "python":
            launch = _LAUNCH.match(following.text)
            if launch is None:
                raise ValueError(f"{page.name}: no `$ mpirun -n N python NAME.py` behind the block\n{block.text}")
            output = following.text[launch.end() :]
            found.append(Program(page.name, launch[2], block.text, int(launch[1]), output))
    return found


def links(page: Path) -> list[str]:
    """Return where the links of a page lead, but those to the web."""
    targets = re.findall(r"\]\(([^)\s]+)\)", prose(page))
    return [target for target in targets if "://" not in target]


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}
