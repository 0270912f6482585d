"""What systems carry from tick to tick: as few models as they need."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import fedjax_sim
from fedjax_sim import Plan, System
from fedjax_sim.core.types import LatentProblem
from fedjax_sim.engine.program import replay
from tests.conftest import slow_but
from tests.systems.conftest import Kind

NUM_CLIENTS, ROWS = 7, 24
SHAPES = {
    "fedavg": [()],
    "fedprox": [()],
    "fedpa": [()],
    "scaffold": [(), (), (NUM_CLIENTS,)],
    "fednova": [()],
    "fedavgm": [(), ()],
    "feddyn": [(), (), (NUM_CLIENTS,)],
    "mimelite": [(), ()],
    "oort": [()],
    "pisces": [(), (ROWS,)],
    "fedat": [(), (ROWS,), (1,)],
    "safa": [(), (ROWS,), (NUM_CLIENTS,)],
    "ditto": [(), (NUM_CLIENTS,)],
    "apfl": [(), (NUM_CLIENTS,)],
    "pfedme": [()],
    "perfedavg": [()],
    "qfedavg": [()],
    "ifca": [(2,)],
    "ca2fl": [(), (ROWS,), (), (NUM_CLIENTS,)],
    "asyncfeded": [(), (ROWS,)],
    "asyncfeded_adaptive": [(), (ROWS,)],
    "langevin": [()],
    "em": [()],
    "favano": [(), (ROWS,)],
    "fedbuff": [(), (ROWS,)],
    "fedstaleweight": [(), (ROWS,)],
    "fedasync": [(), (ROWS,)],
    "gen_async": [(), (ROWS,)],
    "quafl": [(), (NUM_CLIENTS,)],
    "hierarchical": [(), (4,)],
    "async_hierarchical": [(), (ROWS,)],
    "fedem": [(), (NUM_CLIENTS,), (), (), ()],
    "vr_fedem": [(), (NUM_CLIENTS,), (), (), (), (NUM_CLIENTS,), ()],
    "async_fedem": [(), (NUM_CLIENTS,), (), (), (), (ROWS,)],
    "diana": [(), (NUM_CLIENTS,), ()],
    "vr_diana": [(), (NUM_CLIENTS,), (), (), (NUM_CLIENTS,)],
}
"""Leading axes of each model, or vector of statistics, in a state; a store has `ROWS` rows.

The four groups of the hierarchical system have one model each, and none for each client.
"""


def test_models_in_the_state(system: System, kind: Kind, small: Callable) -> None:
    """Only systems whose clients start from old server models keep these."""
    if system.name in ("fedper", "fedbn"):
        pytest.skip("the body and the clients' heads are in test_personal.py")
    problem = kind.make()
    algorithm = system.algorithm(problem, small(system), Plan(rows=ROWS))
    state = jax.eval_shape(algorithm.init, jax.random.key(0))
    model = jax.eval_shape(problem.init, jax.random.key(0))
    shapes = [leaf.shape for leaf in jax.tree.leaves(state) if leaf.dtype == model.dtype]
    assert shapes == [(*leading, *model.shape) for leading in SHAPES[system.name]]
    counters = [leaf for leaf in jax.tree.leaves(state) if leaf.dtype != model.dtype]
    # FedAT counts what tiers have sent, and SAFA knows which version a cached update is of.
    # IFCA keeps the number of each client's cluster, and AsyncFedED its number of local steps.
    of_clients = {key: [(NUM_CLIENTS,)] for key in ("safa", "ifca", "asyncfeded_adaptive")}
    own = {"fedat": [(1,)], **of_clients}.get(system.name, [])
    assert [leaf.shape for leaf in counters if leaf.shape] == own
    assert (system.fit.learns is LatentProblem) or len(counters) == len(own)


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_but(["fedbuff"], ["fedavg", "fedbuff"]))
def test_old_versions_in_the_compiled_program(
    regression: Callable, small: Callable, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """FedAvg's program carries one model; measuring `client_variance` adds the versions held.

    FedBuff's clients work from at most eight different versions here. Those held at evaluations are
    kept in a store apart from these. Its server may have momentum, and so carries its last step.
    """
    system, carried = fedjax_sim.SYSTEMS[name], []
    advance = replay.Replay.advance

    def noted(self: replay.Replay, carries: Any, *inputs: Any) -> Any:
        carried.append([leaf.shape for leaf in jax.tree.leaves(carries)])
        return advance(self, carries, *inputs)

    monkeypatch.setattr(replay.Replay, "advance", noted)
    for client_variance in (False, True):
        fedjax_sim.simulate(
            system,
            regression(NUM_CLIENTS),
            small(system),
            budget=fedjax_sim.Ticks(24),
            num_evals=24,
            keep=fedjax_sim.Keep(client_variance=client_variance),
        )
    without, with_variance = carried
    assert without == {"fedavg": [(1, 3)], "fedbuff": [(1, 3), (1, 8, 3), (1, 3)]}[name]
    assert with_variance[:-1] == without
    assert np.prod(with_variance[-1]) >= 8 * 3
