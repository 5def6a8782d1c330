"""What all tests share: the options, `needs_torch`, hypothesis' settings, the counts for tests/run.py."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

try:
    import hypothesis
except ImportError:
    pass
else:
    # Nothing may depend on how fast the machine is, nor on what an earlier run left: ranks must all draw the same.
    hypothesis.settings.register_profile("mpicoll", deadline=None, database=None)
    hypothesis.settings.load_profile("mpicoll")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options; pytest wants those of tests/ranks here too."""
    group = parser.getgroup("mpicoll")
    group.addoption("--programs", type=int, default=200, metavar="N", help="how many random programs to draw (200)")
    group.addoption("--seed", type=int, default=0, metavar="N", help="the seed of everything drawn, on all ranks (0)")
    group.addoption(
        "--time-limit",
        type=float,
        default=120.0,
        metavar="S",
        help="seconds after which a test counts as hanging (120)",
    )
    group.addoption(
        "--counts", metavar="FILE", help="for tests/run.py: write how many tests passed, failed, ... to FILE"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what needs torch where there is none."""
    if importlib.util.find_spec("torch") is None:
        left_out = [item for item in items if item.get_closest_marker("needs_torch")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Write the counts for tests/run.py."""
    path = config.getoption("--counts")
    if path:
        stats = {name: len(reports) for name, reports in terminalreporter.stats.items() if name}
        Path(path).write_text(json.dumps(stats))


@pytest.fixture(scope="session")
def programs(pytestconfig: pytest.Config) -> int:
    """Return how many random programs to draw."""
    return int(pytestconfig.getoption("--programs"))


@pytest.fixture(scope="session")
def seed(pytestconfig: pytest.Config) -> int:
    """Return the seed of everything drawn."""
    return int(pytestconfig.getoption("--seed"))
