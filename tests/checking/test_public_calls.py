"""Every public function and class checks its arguments, or is named here with the reason."""

import dataclasses
import importlib
import inspect
import pkgutil
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import fedjax_sim
from fedjax_sim import settings
from tests.exports import exports_of

INNER = ("checking", "cli", "events", "lifecycle", "settings", "systems")
"""Rooms without calls for users: the mechanism, the command line, events that the engine makes,
what ends processes, settings, on which the mechanism rests, and systems, which are records that
`sweep` and the timelines receive."""
MADE_HERE = {
    # Results, which users read and do not make.
    *("FairnessReport", "Predictive", "Reliability", "Results", "Fitted", "Accounts", "Guarantee"),
    *("RoundTime", "Condition", "Members", "Speeds"),
    # States and messages of algorithms: pytrees, which JAX makes of leaves of any kind.
    *("Memo", "Memory", "RoundState", "Versioned", "SumRequest", "Training"),
    # What live clocks carry, are given and return, likewise.
    *("Instant", "Received", "Clock", "Live", "Drawn"),
    *("Asked", "Choosing", "Round", "Shown", "Flights", "Landed", "Replacing", "Tasks"),
    # What attacks are given, likewise.
    "Cohort",
    # Classes without arguments.
    *("Compressor", "Identity"),
    # Examples and models of problems, likewise.
    *("LowRank", "Matrix", "Seen"),
}
"""Classes that check nothing when they are made."""


def public_modules() -> Iterator[types.ModuleType]:
    """Import every module whose names are public: packages, and the modules that they name.

    A room that exports nothing, such as those inside the engine, has none.
    """
    for found in pkgutil.walk_packages(fedjax_sim.__path__, "fedjax_sim."):
        if found.ispkg and found.name.split(".")[1] not in INNER:
            package = importlib.import_module(found.name)
            if not exports_of(package):
                continue
            yield package
            for name in exports_of(package) or ():
                if isinstance(getattr(package, name, package), types.ModuleType):
                    yield importlib.import_module(f"{found.name}.{name}")


def public_callables() -> dict[str, Any]:
    """Collect what can be called by a public name."""
    found: dict[str, Any] = {}
    for module in public_modules():
        for name, value in vars(module).items():
            home = str(getattr(value, "__module__", ""))
            names = exports_of(module) or ((name,) if home == module.__name__ else ())
            is_own = name in names and home.startswith("fedjax_sim.")
            is_call = isinstance(value, type) or inspect.isroutine(inspect.unwrap(value))
            if is_own and is_call and not name.startswith("_"):
                found[f"{module.__name__}.{name}"] = value
    return found


def is_exempt(cls: type) -> bool:
    """Tell whether a class checks nothing when it is made."""
    return (
        getattr(cls, "_is_protocol", False)
        or issubclass(cls, Exception)
        # Settings are checked by `settings.check`, which a sweep and every checked call does.
        or bool(settings.fields(cls) if dataclasses.is_dataclass(cls) else ())
        or issubclass(cls, settings.Checked)
        or cls.__name__ in MADE_HERE
    )


def makers_of(name: str, value: Any) -> dict[str, Callable[..., Any]]:
    """List what makes an object: a function itself; constructors of a class."""
    if not isinstance(value, type):
        return {name: value}
    alternative = {
        f"{name}.{method}": getattr(value, method)
        for method, kind in vars(value).items()
        if isinstance(kind, classmethod | staticmethod) and not method.startswith("_")
    }
    if is_exempt(value):
        return alternative
    maker = "__new__" if issubclass(value, tuple) else "__init__"
    return {name: vars(value)[maker], **alternative}


CALLS = {
    name: call
    for key, value in public_callables().items()
    for name, call in makers_of(key, value).items()
}


def test_there_are_many() -> None:
    assert len(CALLS) > 290
    assert {"fedjax_sim.engine.sweep", "fedjax_sim.theory.fedem.memory_step"} <= set(CALLS)
    assert {"fedjax_sim.problems.Quadratic.of", "fedjax_sim.engine.Layout"} <= set(CALLS)


@pytest.mark.parametrize("name", CALLS)
def test_it_checks_its_arguments(name: str) -> None:
    assert hasattr(CALLS[name], "__checked__"), f"{name} lacks the decorator `checked`"


def test_names_of_records_exist() -> None:
    made = {value.__name__ for value in public_callables().values() if isinstance(value, type)}
    assert made >= MADE_HERE


def test_annotations_are_understood() -> None:
    """Reading the declared types of all calls raises nothing."""
    for call in CALLS.values():
        call.__checked__()
