"""The precision of matrix products is part of the program and of a run's configuration."""

from collections.abc import Callable

import jax
import pytest

import fedjax_sim
from fedjax_sim.core.targets import is_for_cpu, tracing_for
from fedjax_sim.core.types import PRECISIONS
from fedjax_sim.engine.shares import listed

FEDAVG = fedjax_sim.SYSTEMS["fedavg"]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_programs_of_a_cpu_do_not_depend_on_the_precision(
    precision: str, regression: Callable, small: Callable
) -> None:
    """A CPU computes in the type of the arrays."""

    def text(**options: str) -> str:
        devices = jax.local_devices()[:1]
        (program,) = listed(
            FEDAVG,
            regression(),
            small(FEDAVG),
            seeds=1,
            devices=devices,
            budget=fedjax_sim.Ticks(2),
            **options,
        ).lower()
        return program.as_text()

    assert text(precision=precision) == text()


def test_what_is_traced_knows_its_machine() -> None:
    assert is_for_cpu()
    with tracing_for("gpu"):
        assert not is_for_cpu()
        with tracing_for("cpu"):
            assert is_for_cpu()
    assert is_for_cpu()
