"""``python -m mpicoll run``: a script written for torchrun, started by mpirun or srun and left as it is."""

from __future__ import annotations

import argparse
import os
import runpy
import sys
from typing import TYPE_CHECKING, Any

from mpicoll.groups import places
from mpicoll.guard import failures
from mpicoll.mpi import library
from mpicoll.torch_backend import registration

if TYPE_CHECKING:
    from mpicoll.mpi.library import Comm

_DESCRIPTION = """\
Run a Python script on every rank with the variables in its environment that torchrun sets, and end the job when a rank
fails. The ranks meet by MPI: init_process_group() needs no address and no port.

    mpirun -n 4 python -m mpicoll run script.py [arguments]
    srun -n 4 python -m mpicoll run --backend mpicoll script.py [arguments]
"""


def add_command(commands: Any) -> None:
    """Add the command to the parser's."""
    parser = commands.add_parser(
        "run",
        help="run a script as torchrun does, under mpirun or srun",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--backend",
        choices=["mpicoll"],
        help="take mpicoll as the default group's backend, whatever init_process_group() in the script names",
    )
    parser.add_argument("-m", "--module", action="store_true", help="the script is a module, as in python -m MODULE")
    parser.add_argument("script", help="a file, or a module with -m")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the script's own arguments")
    parser.set_defaults(carry_out=_run)


def _run(arguments: argparse.Namespace) -> None:
    if not arguments.module and not os.path.exists(arguments.script):
        sys.exit(f"python -m mpicoll run: can't open {arguments.script!r}: there is no such file")
    library.start()
    failures.install()
    failures.watch_exit()
    _set_variables()
    registration.meet_by_mpi()
    if arguments.backend is not None:
        registration.take_over()
        # mpicoll has no GPU arrays. Without this accelerate, and transformers' Trainer, look for a GPU to train on, and
        # where there is none each rank trains alone.
        os.environ.setdefault("ACCELERATE_USE_CPU", "true")
    sys.argv = [arguments.script, *arguments.arguments]
    if arguments.module:
        sys.path.insert(0, os.getcwd())
        runpy.run_module(arguments.script, run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = os.path.dirname(os.path.abspath(arguments.script))
        runpy.run_path(arguments.script, run_name="__main__")


def _set_variables() -> None:
    """Set what torchrun would; what is set must agree with MPI."""
    library.refuse_singleton()
    comm = library.MPI.COMM_WORLD.Dup()
    local_rank, local_size = places.on_node(comm)
    variables = places.variables(comm, local_rank, local_size)
    places.agree(comm, places.disagreement(variables))
    variables |= _torchruns(comm, local_rank)
    comm.Free()
    if local_size > 1:
        variables["OMP_NUM_THREADS"] = "1"
    for name, value in variables.items():
        os.environ.setdefault(name, value)


def _torchruns(comm: Comm, local_rank: int) -> dict[str, str]:
    """The variables that torchrun alone sets. Its groups are nodes; its roles are one."""
    firsts = [rank for rank, place in enumerate(comm.allgather(local_rank)) if place == 0]
    node = comm.Split_type(library.MPI.COMM_TYPE_SHARED)
    first = node.bcast(comm.Get_rank(), root=0)
    node.Free()
    return {
        "GROUP_RANK": str(firsts.index(first)),
        "GROUP_WORLD_SIZE": str(len(firsts)),
        "ROLE_NAME": "default",
        "ROLE_RANK": str(comm.Get_rank()),
        "ROLE_WORLD_SIZE": str(comm.Get_size()),
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": "mpicoll",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }
