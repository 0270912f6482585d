"""Settings that are said to have no effect have none."""

from collections.abc import Callable

import jax
import numpy as np
import optax
import pytest

import fedjax_sim
from fedjax_sim import System
from fedjax_sim.core.settings import checks, idle_of
from fedjax_sim.core.types import LatentProblem
from tests.systems.conftest import Kind
from tests.test_settings import other_value

OTHERS = {
    "fedbuff": {"restart": "after_interaction", "rule": "mean"},
    "fedstaleweight": {"rule": "code_exact"},
    "fedasync": {"rule": "hinge"},
    "langevin": {"participants": "full", "temperature": 0.0},
    "fedem": {"field_rule": "naive"},
    "diana": {"field_rule": "naive"},
    "vr_diana": {"field_rule": "naive"},
    "favano": {"reweight": "none"},
    "hierarchical": {"delays_of": "client", "sync_time": 0.0},
    "fedavg": {"local_epochs": 1.0, "slow_fraction": 1.0},
    "fedprox": {"slow_fraction": 0.0},
    "gen_async": {"routing": 1.0},
    "mimelite": {"optimizer": optax.adam},
}
"""Choices of which some are not the defaults, by system."""


@pytest.mark.slow
def test_settings_without_effect_change_no_bit(
    system: System, kind: Kind, chosen: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that have none at the chosen values are changed together."""
    monkeypatch.setattr(checks, "_refuse_idle", lambda *given: None)
    hyper = chosen(**OTHERS.get(system.name, {}))
    values = {name: other_value(system.Hyper, name) for name in idle_of(hyper)}
    values = {name: value for name, value in values.items() if value is not None}
    options = {"budget": fedjax_sim.Ticks(5), "num_evals": 5}
    first, second = (
        fedjax_sim.simulate(system, kind.make(), each, **options)
        for each in (hyper, hyper.replace(**values))
    )
    assert values or system.fit.learns is LatentProblem
    jax.tree.map(np.testing.assert_array_equal, first.timelines[0], second.timelines[0])
    jax.tree.map(np.testing.assert_array_equal, first.models, second.models)
    assert first.curves.drop_attrs().equals(second.curves.drop_attrs())
