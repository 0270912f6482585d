"""The server's optimizer as a part of any averaging system, and what its settings refuse."""

from functools import partial
from typing import Any

import numpy as np
import optax
import pytest

import fedjax_sim
from fedjax_sim import SYSTEMS, ConfigError, settings
from fedjax_sim.core.types import Algorithm, Event, Key, Plan
from fedjax_sim.server import RoundState, Wire
from fedjax_sim.systems import fedavg, oort
from fedjax_sim.timelines import cohort_system
from tests.systems.live_loops import problem_of

N = 6
NESTEROV = partial(optax.sgd, momentum=0.9, nesterov=True)


def run(system: Any, **changes: Any) -> fedjax_sim.Run:
    """Run a system for twelve rounds."""
    given = {"num_clients": N, "num_selected": 3, "batch_size": 1, "local_steps": 3, "lr": 0.05}
    hyper = system.Hyper(**given | changes)
    return fedjax_sim.simulate(system, problem_of(N), hyper, budget=fedjax_sim.Ticks(12))


@pytest.mark.parametrize("optimizer", [optax.adam, NESTEROV])
def test_fedavg_with_an_optimizer_is_fedopt(optimizer: Any) -> None:
    """Bit for bit, and with a schedule of the server's rate."""
    step = {"server_optimizer": optimizer, "server_lr": 0.3, "server_lr_schedule": COSINE}
    ours, theirs = run(SYSTEMS["fedavg"], **step), run(SYSTEMS["fedopt"], **step)
    np.testing.assert_array_equal(ours.models, theirs.models)
    assert np.abs(ours.models - run(SYSTEMS["fedavg"]).models).max() > 1e-3


COSINE = fedjax_sim.core.schedules.Cosine(final=0.1)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["fedprox", "ditto", "apfl", "perfedavg", "oort"])
def test_other_averaging_systems_have_it(name: str) -> None:
    """With plain SGD of rate 1 they learn what they learn without; Adam learns something else."""
    plain = run(SYSTEMS[name]).models
    found = run(SYSTEMS[name], server_optimizer=optax.sgd).models
    np.testing.assert_allclose(found, plain, rtol=1e-5, atol=1e-6)
    adam = run(SYSTEMS[name], server_optimizer=optax.adam, server_lr=0.1).models
    assert np.isfinite(adam).all() and np.abs(adam - plain).max() > 1e-3


def test_heavy_ball_is_a_setting_of_any_optimizer() -> None:
    """FedAvgM is FedAvg whose server follows SGD with momentum."""
    ball = partial(optax.sgd, momentum=0.9)
    ours = run(SYSTEMS["fedavg"], server_optimizer=ball, server_lr=0.5)
    theirs = run(SYSTEMS["fedavgm"], server_momentum=0.9, server_lr=0.5)
    np.testing.assert_array_equal(ours.models, theirs.models)


def test_a_rate_without_an_optimizer_is_refused() -> None:
    with pytest.raises(ConfigError, match="server_lr"):
        run(SYSTEMS["fedavg"], server_lr=0.5)


def test_an_own_system_has_the_step_of_its_settings() -> None:
    """`advance` takes the mean, or steps by the optimizer: whichever the settings say."""

    def algorithm(problem: Any, hyper: Any, plan: Plan) -> Algorithm:
        wire = Wire(problem, hyper, plan)
        train = fedavg.local_training(problem, hyper, plan)

        def init(key: Key) -> RoundState:
            return wire.first_round(problem.init(key))

        def step(key: Key, state: RoundState, event: Event) -> Any:
            local, work = train(key, event, start=wire.received(state))
            return wire.advance(key, event, state, local), work

        return wire.algorithm(init, step)

    system = cohort_system("mine", fedavg.Hyper, algorithm, "The mean.")
    for changes in ({}, {"server_optimizer": optax.adam, "server_lr": 0.1}):
        ours, theirs = run(system, **changes), run(fedavg.system, **changes)
        np.testing.assert_allclose(ours.models, theirs.models, rtol=1e-6)


def test_fednova_without_an_optimizer_moves_by_its_progress() -> None:
    """Its sum is one of progress, whoever makes it: the mean of models is not scaled."""
    ours = run(SYSTEMS["fednova"], server_optimizer=None)
    theirs = run(SYSTEMS["fednova"], server_optimizer=optax.sgd)
    np.testing.assert_allclose(ours.models, theirs.models, rtol=1e-6)


@settings.struct
class ChosenNova(oort.Guided, SYSTEMS["fednova"].Hyper):  # type: ignore[misc]
    """Settings of FedNova whose clients Oort chooses."""


def test_a_choice_of_clients_keeps_the_step() -> None:
    system = oort.selection.on(SYSTEMS["fednova"], name="chosen", Hyper=ChosenNova)
    found = run(system, server_optimizer=optax.adam, server_lr=0.1)
    assert np.isfinite(found.models).all()
