"""The house rules of docs/architecture.md, read off the source."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Container, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import mpicoll

PACKAGE = Path(__file__).resolve().parent.parent.parent / "mpicoll"
MODULES = sorted(PACKAGE.rglob("*.py"))
# A module imports from its own room and from those before it.
ROOMS = ["errors", "mpi", "data", "transport", "groups", "guard", "api", "torch_backend", "cli"]
# Modules at the top of the package that give the rooms' names to users, and so stand above all rooms.
FACES = {"__init__", "__main__", "differentiable"}
MAX_LINES = 420  # "about 400"


class Import(NamedTuple):
    """One imported name, as `mpicoll.data.dtypes.table`, and how it is imported."""

    name: str
    line: int
    in_function: bool
    for_types: bool


def name_of(path: Path) -> str:
    """Return a module's dotted name."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def imports(path: Path, source: str) -> list[Import]:
    """Return what a module imports, at its top or in a function, relative imports resolved."""
    package = list(path.relative_to(PACKAGE.parent).parent.parts)
    found: list[Import] = []

    def visit(node: ast.AST, in_function: bool, for_types: bool) -> None:
        if isinstance(node, ast.Import):
            found.extend(Import(alias.name, node.lineno, in_function, for_types) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            prefix = ".".join([*base, *filter(None, [node.module])])
            found.extend(Import(f"{prefix}.{alias.name}", node.lineno, in_function, for_types) for alias in node.names)
        elif isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            for statement in node.body:
                visit(statement, in_function, True)
            for statement in node.orelse:
                visit(statement, in_function, for_types)
        else:
            inside = in_function or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            for child in ast.iter_child_nodes(node):
                visit(child, inside, for_types)

    visit(ast.parse(source), False, False)
    return found


def room(module: str) -> str:
    """Return the room of a dotted name within mpicoll; the package itself and its faces are `face`."""
    parts = module.split(".")
    if len(parts) == 1 or parts[1] in FACES:
        return "face"
    # `from mpicoll import all_reduce` names something that is no room: it is a name of the face
    return parts[1] if parts[1] in ROOMS else "face"


def height(room_name: str) -> int:
    """Return how high in the house a room is."""
    return ROOMS.index(room_name) if room_name in ROOMS else len(ROOMS)


def wrong_arrows(path: Path, source: str) -> Iterator[str]:
    """Yield the imports of a module that run back up the list of rooms."""
    here = room(name_of(path))
    for found in imports(path, source):
        if found.name.split(".")[0] == "mpicoll" and not found.for_types and height(room(found.name)) > height(here):
            yield f"{path.name}:{found.line}: {here} imports {found.name}"


def module_of(name: str, modules: Container[str]) -> str | None:
    """Return the module of ours that an imported name is, or is in; None for other packages' names."""
    return next((found for found in (name, name.rpartition(".")[0]) if found in modules), None)


def circles(sources: dict[str, tuple[Path, str]]) -> list[str]:
    """Return the modules that import one another in a circle, by whichever statement, types aside."""
    arrows = {
        name: {module_of(one.name, sources) for one in imports(path, source) if not one.for_types} - {name}
        for name, (path, source) in sources.items()
    }
    left = set(arrows)
    while ends := {name for name in left if not (arrows[name] & left and any(name in arrows[one] for one in left))}:
        left -= ends
    return sorted(left)  # and those between two circles


def relative(path: Path) -> str:
    """Return a module's path for a test's name."""
    return str(path.relative_to(PACKAGE))


each_module = pytest.mark.parametrize("path", MODULES, ids=relative)


@pytest.mark.parametrize(
    ("module", "source", "wrong"),
    [
        ("data/arrays.py", "from mpicoll.errors import MpicollError", 0),
        ("data/arrays.py", "from . import dtypes", 0),
        ("data/arrays.py", "from mpicoll.guard import checks", 1),
        ("data/arrays.py", "from ..guard import checks", 1),
        ("data/arrays.py", "from .. import guard", 1),
        ("data/arrays.py", "def f():\n    import mpicoll.api.groups", 1),
        ("data/arrays.py", "from mpicoll import all_reduce", 1),
        ("data/__init__.py", "from .arrays import Array", 0),
        ("data/__init__.py", "from ..api import groups", 1),
        ("transport/work.py", "if TYPE_CHECKING:\n    from mpicoll.groups.group import ProcessGroup", 0),
        ("transport/work.py", "if TYPE_CHECKING:\n    pass\nelse:\n    from mpicoll.groups import group", 1),
        ("guard/checks.py", "from mpicoll.groups.group import ProcessGroup", 0),
        ("errors.py", "from mpicoll.mpi import library", 1),
        ("__init__.py", "from mpicoll.api.groups import new_group", 0),
    ],
)
def test_the_arrow_test_sees_what_it_must(module: str, source: str, wrong: int) -> None:
    assert len(list(wrong_arrows(PACKAGE / module, source))) == wrong


@each_module
def test_imports_run_one_way(path: Path) -> None:
    assert not list(wrong_arrows(path, path.read_text()))


@pytest.mark.parametrize(
    ("one", "other", "found"),
    [
        ("from mpicoll.data import dtypes", "from mpicoll.data.arrays import Array", True),
        ("from mpicoll.data import dtypes", "def f():\n    from mpicoll.data import arrays", True),
        ("from mpicoll.data import dtypes", "import mpicoll.data.arrays", True),
        ("from mpicoll.data import dtypes", "if TYPE_CHECKING:\n    from mpicoll.data import arrays", False),
        ("from mpicoll.data import dtypes", "from mpicoll.errors import DTypeError", False),
    ],
)
def test_the_circle_test_sees_what_it_must(one: str, other: str, found: bool) -> None:
    sources = {"mpicoll.data.arrays": one, "mpicoll.data.dtypes": other, "mpicoll.errors": ""}
    placed = {name: (PACKAGE / "data" / f"{name}.py", source) for name, source in sources.items()}
    assert circles(placed) == (["mpicoll.data.arrays", "mpicoll.data.dtypes"] if found else [])


def test_modules_import_in_no_circle() -> None:
    assert not circles({name_of(path): (path, path.read_text()) for path in MODULES})


@each_module
def test_every_module_is_in_a_room(path: Path) -> None:
    first = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    assert first in FACES or first in ROOMS


@each_module
def test_only_one_module_imports_mpi4py(path: Path) -> None:
    if path != PACKAGE / "mpi" / "library.py":
        found = imports(path, path.read_text())
        assert not [one for one in found if one.name.split(".")[0] == "mpi4py" and not one.for_types]


@each_module
def test_torch_is_imported_on_first_use(path: Path) -> None:
    # A module whose name says torch is itself imported on first use: test_import.py sees if it is not.
    if path.stem.endswith("_torch") or path.stem == "autograd" or "torch_backend" in path.parts:
        return
    found = imports(path, path.read_text())
    assert not [one for one in found if one.name.split(".")[0] == "torch" and not one.for_types and not one.in_function]


@each_module
def test_files_stay_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MAX_LINES


def test_public_names_are_sorted_and_exist() -> None:
    names = list(mpicoll.__all__)
    assert names == sorted(names)
    assert len(names) == len(set(names))
    assert not [name for name in names if not hasattr(mpicoll, name)]


@pytest.mark.parametrize("name", mpicoll.__all__)
def test_every_public_name_has_a_docstring(name: str) -> None:
    value = getattr(mpicoll, name)
    # inspect.getdoc finds a base class's docstring too, which says nothing of this class
    text = value.__doc__ if inspect.isclass(value) else inspect.getdoc(value)
    assert text
    assert text.strip()
