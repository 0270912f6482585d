"""Choices of clients on other systems of rounds than FedAvg, from outside the package."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim
from fedjax_sim import ConfigError, settings
from fedjax_sim.core.types import Key
from fedjax_sim.server.privacy import parse_privacy
from fedjax_sim.systems import fedopt, fedprox, oort, scaffold
from fedjax_sim.timelines.live import Asked, Choosing, LiveCohorts, Selection, Selector
from tests.systems.live_loops import problem_of

N = 12


@settings.struct
class GuidedFedOpt(oort.Guided, fedopt.Hyper):
    """Settings of FedOpt whose clients Oort chooses."""


@settings.struct
class GuidedScaffold(oort.Guided, scaffold.Hyper):
    """Settings of SCAFFOLD whose clients Oort chooses."""


SYSTEMS = {
    "fedopt": oort.selection.on(fedopt.system, name="oort_fedopt", Hyper=GuidedFedOpt),
    "scaffold": oort.selection.on(scaffold.system, name="oort_scaffold", Hyper=GuidedScaffold),
}


def run(system: Any, **changes: Any) -> fedjax_sim.Run:
    given = {"num_clients": N, "num_selected": 4, "batch_size": 1, "local_steps": 3, "lr": 0.05}
    hyper = system.Hyper(**given | changes)
    return fedjax_sim.simulate(system, problem_of(N), hyper, budget=fedjax_sim.Ticks(25))


@pytest.mark.few(1)
@pytest.mark.parametrize("name", SYSTEMS)
def test_oort_chooses_for_other_systems(name: str) -> None:
    """Everyone is tried, then some are preferred; losses are counted; bits are the system's."""
    found = run(SYSTEMS[name])
    clients = found.timelines[0].clients
    times = np.bincount(clients.ravel(), minlength=N)
    assert times.min() >= 1 and times.max() > times.min() + 2
    assert found.curves.needed == clients.size * (3 + 1)
    model = 32 * 3
    of_each = 2 * model if name == "scaffold" else model
    assert found.curves.uplink_bits[-1] == clients.size * of_each


@pytest.mark.slow
def test_its_first_cohorts_are_those_of_oort() -> None:
    """As long as nobody is known, only speeds count, and these do not depend on the system."""
    first = [run(each).timelines[0].clients[0] for each in (oort.system, *SYSTEMS.values())]
    for clients in first[1:]:
        np.testing.assert_array_equal(clients, first[0])


@pytest.mark.slow
def test_the_server_optimizer_steps() -> None:
    """With plain SGD of rate 1 on the server, FedOpt is FedAvg on the same choice."""
    import optax

    sgd = run(SYSTEMS["fedopt"], server_lr=1.0, server_optimizer=optax.sgd)
    plain = run(oort.system)
    np.testing.assert_array_equal(sgd.timelines[0].clients, plain.timelines[0].clients)
    np.testing.assert_allclose(sgd.models, plain.models, rtol=1e-5)


def _largest(problem: Any, hyper: Any) -> Selector:
    def select(key: Key, now: Choosing) -> Asked:
        return Asked(jnp.argsort(-problem.counts)[: hyper.num_selected])

    return Selector(select)


@settings.struct
class LargestFedProx(LiveCohorts, fedprox.Hyper):
    """Settings of FedProx with clients of most examples."""


def test_reports_weigh_as_the_settings_say() -> None:
    """By a choice in three lines, which says nothing of weights."""
    system = Selection(_largest).on(fedprox.system, name="largest", Hyper=LargestFedProx)
    counts = np.asarray(problem_of(N).counts)
    chosen = np.argsort(-counts, kind="stable")[:4]
    for weighting, weight in (("equal", np.ones(4)), ("examples", counts[chosen])):
        found = run(system, weighting=weighting).timelines[0]
        assert (np.sort(found.clients) == np.sort(chosen)).all()
        expected = np.broadcast_to(weight / weight.sum(), found.weight.shape)
        np.testing.assert_allclose(found.weight, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"privacy": parse_privacy("fixed:clip=0.5:noise=1")}, "privacy .* no accountant covers"),
        ({"selection": "by_examples"}, "selection"),
        ({"local_epochs": 1.0}, "local_epochs"),
    ],
)
def test_settings_of_planned_rounds_are_refused(changes: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        run(SYSTEMS["fedopt"], **changes)


@pytest.mark.parametrize("changes", [{"selection": "by_examples"}, {"with_replacement": True}])
def test_a_choice_of_clients_is_not_left_out(changes: Any) -> None:
    """Also by settings that do not inherit those of live rounds."""
    system = Selection(_largest).on(fedprox.system, name="largest")
    with pytest.raises(ConfigError, match=f"cohort.{next(iter(changes))} .* live clock"):
        run(system, **changes)
