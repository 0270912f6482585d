"""Which launchers there are, and a Ray that ends with the tests."""

import importlib.util
import sys
from collections.abc import Iterator
from concurrent.futures import Future

import absl.logging
import pytest

HAS_RAY = importlib.util.find_spec("ray") is not None
# Importing submitit ends all logging handlers. The one of absl then closes its stream unless that
# is the standard error of this moment; pytest has replaced it since the handler was made.
absl.logging.get_absl_handler().python_handler.stream = sys.stderr
try:
    import submitit  # noqa: F401

    HAS_SUBMITIT = True
except ImportError:
    HAS_SUBMITIT = False
WITHOUT = {"submitit": not HAS_SUBMITIT, "ray": not HAS_RAY}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests that are marked with a launcher that is not installed."""
    for item in items:
        for mark in item.iter_markers("launched_by"):
            if WITHOUT.get(mark.args[0]):
                item.add_marker(pytest.mark.skip(reason=f"{mark.args[0]} is not installed"))


def pytest_configure(config: pytest.Config) -> None:
    """Declare the mark."""
    config.addinivalue_line("markers", "launched_by(name): needs this package")


@pytest.fixture(scope="session", autouse=True)
def ray_ends() -> Iterator[None]:
    """Shut Ray down after the tests, if it runs."""
    yield
    if "ray" in sys.modules:
        sys.modules["ray"].shutdown()


def ended(code: int) -> Future[int]:
    """Return the exit code of a job that has ended as a launcher does."""
    future = Future[int]()
    future.set_result(code)
    return future
