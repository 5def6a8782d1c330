"""Tells torch.distributed about mpicoll, without importing torch: at once where it is there, else when it comes."""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from types import FrameType, ModuleType
from typing import Any

from mpicoll.errors import ArgumentError
from mpicoll.groups import world
from mpicoll.groups.group import ProcessGroup
from mpicoll.torch_backend import NAME

_IGNITE = "ignite.distributed.comp_models.native"
_env_by_mpi = False  # whether env:// is served by MPI for all backends
_taking_over = False  # whether init_process_group() is given this backend, whatever it is called with
# torch takes the list for what the backend can do; data/arrays.py says of a tensor it cannot reach.
_DEVICES = ["cpu", "cuda", "xpu", "mps", "hpu", "mtia", "privateuseone"]


class TorchDoor:
    """What the first door knows of the second: an instance is `world.second_door`."""

    def check(self, wanted: bool) -> None:
        """Refuse a default group of somebody else's where the user asked for ours."""
        torch_dist = sys.modules.get("torch.distributed")
        if wanted and torch_dist is not None and torch_dist.is_initialized():
            raise ArgumentError(
                "torch: expected torch.distributed without a default group, got one of backend"
                f" {torch_dist.get_backend()!r}. Leave torch=True out, or destroy that group first"
            )

    def open(self, wanted: bool) -> None:
        """Initialise torch.distributed over the world that has just been made.

        Nothing is done where it has a default group of its own, or where torch is not imported and not `wanted`.
        """
        if "torch" not in sys.modules and not wanted:
            return
        import torch.distributed as torch_dist

        register()
        if not torch_dist.is_initialized():
            default = world.current().default
            timeout = timedelta(seconds=default.timeout)
            device = default.bound_device_id
            torch_dist.init_process_group(NAME, init_method="mpi://", timeout=timeout, device_id=device)

    def close(self, group: ProcessGroup) -> bool:
        """Destroy a group by torch's own function if torch knows it, and say so. It comes back by ``shutdown``."""
        if "torch.distributed" not in sys.modules:
            return False
        import torch.distributed as torch_dist

        if not torch_dist.is_initialized():
            return False
        known: Any = torch_dist.distributed_c10d._world.pg_map
        default = torch_dist.group.WORLD
        is_ours = isinstance(default, ProcessGroup) and default.engine is group.engine
        if is_ours:
            torch_dist.destroy_process_group()
        elif group in known:
            torch_dist.destroy_process_group(group)  # type: ignore[arg-type]  # it is one of torch's, too
        else:
            return False
        return True


def install() -> None:
    """Register the backend, and tell ignite of it: now, or when they have been imported."""
    world.second_door = TorchDoor()
    awaited = {"torch": _greet_torch, _IGNITE: _greet_ignite}
    for name in [name for name in awaited if name in sys.modules]:
        awaited.pop(name)()
    if awaited:
        sys.meta_path.insert(0, _Finder(awaited))


def _greet_torch() -> None:
    register()
    if world.is_initialized() and world.current().torch:
        TorchDoor().open(wanted=False)


def _greet_ignite() -> None:
    # Its auto_model makes a DDP of a model if the backend has one of three names, else it leaves it bare: the ranks
    # would drift apart without a word. The name that goes is that of torch's own MPI backend.
    sys.modules[_IGNITE].MPI = NAME  # type: ignore[attr-defined]


def register() -> None:
    """Register the backend and the rendezvous of ``mpi://`` with torch.distributed, once."""
    import torch.distributed as torch_dist

    if not torch_dist.is_available() or NAME in torch_dist.Backend.backend_list:
        return
    torch_dist.Backend.register_backend(NAME, _make_group, extended_api=True, devices=["cpu"])
    # Given to register_backend, they would make mpicoll the default of a device that has none.
    torch_dist.Backend.backend_capability[NAME] = list(_DEVICES)
    handlers = sys.modules["torch.distributed.rendezvous"]._rendezvous_handlers
    handlers["mpi"] = _meet
    env = handlers["env"]

    def meet_by_environment(url: str, **options: Any) -> Iterator[Any]:
        # init_process_group without init_method comes here. Under mpicoll MPI knows what the environment would say.
        return _meet(url, **options) if _env_by_mpi or _asked_for()[0] else env(url, **options)

    handlers["env"] = meet_by_environment
    if _taking_over:
        _replace_init()


def meet_by_mpi() -> None:
    """Serve ``env://`` by MPI, for every backend: ``python -m mpicoll run`` asks for it."""
    global _env_by_mpi
    _env_by_mpi = True


def take_over() -> None:
    """Make this the backend of the default group whatever ``init_process_group()`` is called with from now on."""
    global _taking_over
    _taking_over = True
    if "torch" in sys.modules:
        _replace_init()


def _replace_init() -> None:
    import torch.distributed as torch_dist

    original = torch_dist.init_process_group

    @functools.wraps(original)
    def init_process_group(*args: Any, **options: Any) -> None:
        given = inspect.signature(original).bind(*args, **options).arguments
        given["backend"] = NAME
        given.pop("pg_options", None)  # they are another backend's
        if "store" not in given:
            given["init_method"] = "mpi://"
        original(**given)

    for name, module in list(sys.modules.items()):
        if name.startswith("torch.") and vars(module).get("init_process_group") is original:
            module.init_process_group = init_process_group  # type: ignore[attr-defined]


def _meet(url: str, **options: Any) -> Iterator[Any]:
    from mpicoll.torch_backend import store_torch

    ours, comm = _asked_for()
    return store_torch.meet(url, lazily=ours, comm=comm, **options)


def _asked_for() -> tuple[bool, Any]:
    """Whether the ``init_process_group`` that this runs in was asked for mpicoll, and over which communicator.

    torch does not tell it to the handlers of its rendezvous.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "init_process_group" and "backend" in frame.f_locals:
            ours = NAME in str(frame.f_locals["backend"]).lower()
            return ours, frame.f_locals.get("pg_options") if ours else None
        frame = frame.f_back
    return False, None


def _make_group(options: Any, user_options: Any) -> Any:
    """What torch calls for a new group with this backend, on its members."""
    from mpicoll.torch_backend import creation_torch

    return creation_torch.make_group(options, user_options)


class _Finder(importlib.abc.MetaPathFinder):
    """Waits for the import of modules, and calls a function when one has come."""

    def __init__(self, awaited: dict[str, Callable[[], None]]) -> None:
        self._awaited = awaited

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in self._awaited:
            return None
        greet = self._awaited.pop(name)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, greet)
        return spec


class _Loader(importlib.abc.Loader):
    """Imports a module as its own loader does, and then calls a function."""

    def __init__(self, loader: Any, greet: Callable[[], None]) -> None:
        self._loader = loader
        self._greet = greet

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._greet()
