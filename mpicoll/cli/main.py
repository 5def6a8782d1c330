"""The commands and their arguments."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from mpicoll.cli import run


def main(words: Sequence[str] | None = None) -> None:
    """Carry out a command line."""
    parser = argparse.ArgumentParser(prog="python -m mpicoll", description="torch.distributed's words on MPI.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    run.add_command(commands)
    arguments = parser.parse_args(sys.argv[1:] if words is None else words)
    arguments.carry_out(arguments)
