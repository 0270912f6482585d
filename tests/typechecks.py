"""A plugin of pytest that checks every call inside most rooms against its declared types.

    python -m pytest -p tests.typechecks tests/server tests/clients

The package itself checks the calls of users, see `fedjax_sim.core.settings.checked`; with this
plugin inner helpers are checked too, by beartype, which wraps them while they are imported. Structs
that JAX rebuilds are not checked.
"""

from typing import Any

import jax
import numpy as np
import pytest
from beartype import BeartypeConf, BeartypeDecorPlace, BeartypeHintOverrides
from beartype.claw import beartype_packages

from fedjax_sim import types

ROOMS = (
    *("clients", "core", "datasets", "engine", "kernels", "models", "partition", "problems"),
    *("server", "systems", "theory", "timelines"),
)
"""Rooms whose functions are checked. Annotations in `results` name packages that load late."""
OBJECTS = ("fedjax_sim.clients.packing",)
"""Modules with functions that have rules for `vmap`, which they lose if they are wrapped."""


def wider_types() -> dict[Any, Any]:
    """Map declared types to those that are allowed.

    A number may be an array, and an array one of NumPy, a number, or its shape and type, as in the
    package's own checks; `ArrayLike` is a union with `complex`, and may be anything. Protocols are
    not looked at, because they are not made for `isinstance`.
    """
    array = jax.Array | np.ndarray | np.generic | jax.ShapeDtypeStruct | jax.stages.ArgInfo
    protocols = [each for each in vars(types).values() if getattr(each, "_is_protocol", False)]
    return {
        bool: bool | array,
        int: int | array,
        float: float | int | array,
        complex: object,
        jax.Array: array | float | int,
        np.ndarray: array,
        **dict.fromkeys([types.System, *protocols], Any),
    }


beartype_packages(
    [f"fedjax_sim.{room}" for room in ROOMS],
    conf=BeartypeConf(
        claw_decor_place_func=BeartypeDecorPlace.FIRST,
        claw_decor_place_type=BeartypeDecorPlace.FIRST,
        claw_is_pep526=False,
        claw_skip_package_names=OBJECTS,
        hint_overrides=BeartypeHintOverrides(wider_types()),
    ),
)


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Leave functions as they are whose types beartype cannot check."""
    config.addinivalue_line("filterwarnings", "ignore::beartype.roar.BeartypeClawDecorWarning")
