"""Privacy of FA-LD runs from their settings, against dp-accounting and by neighbouring data."""

import math
import types
import warnings
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_sim
from experiments.fald.privacy import HYPER, PROBLEM
from fedjax_sim import ConfigError
from fedjax_sim.core.schedules import InverseTime
from fedjax_sim.problems import from_logdensity
from fedjax_sim.systems import fedavg, langevin
from fedjax_sim.theory import langevin as privacy

dp = pytest.importorskip("dp_accounting", reason="epsilon is computed by dp-accounting")
REPLACE = dp.NeighboringRelation.REPLACE_ONE


def by_rdp(noise: float, num_steps: int, delta: float) -> float:
    """Call dp-accounting's RDP accountant on mini-batches of 100 of 1000 examples."""
    event = dp.SampledWithoutReplacementDpEvent(1000, 100, dp.GaussianDpEvent(noise))
    accountant = dp.rdp.RdpAccountant(neighboring_relation=REPLACE)
    return float(accountant.compose(event, num_steps).get_epsilon(delta))


def test_mini_batches_of_the_papers_setting() -> None:
    """A thousand steps: 13.4 by the paper's bound against the server, 0.345 by Renyi accounting."""
    found = privacy.privacy_of(HYPER, PROBLEM, 100, sensitivity=1.0)
    noise = 0.1 * math.sqrt(2 * 0.75 / 50 / 1e-7)
    assert found.noise_multiplier == pytest.approx(noise, rel=1e-12)
    assert found.num_steps == 1000 and math.isnan(found.pld)
    assert found.rdp == pytest.approx(by_rdp(noise, 1000, 1e-5), rel=1e-12)
    setup = found.setup._replace(delta_step=1e-6, delta_round=1e-6, delta_total=1e-5)
    printed = privacy.guarantee(setup)
    assert printed.epsilon == pytest.approx(13.4148, rel=1e-5)
    at_its_delta = privacy.privacy_of(HYPER, PROBLEM, 100, sensitivity=1.0, delta=printed.delta)
    assert at_its_delta.rdp == pytest.approx(0.345289, rel=1e-5)
    assert at_its_delta.paper > 30 * at_its_delta.rdp


def test_all_examples() -> None:
    """Gaussian steps compose to one, whose exact epsilon is that of loss distributions."""
    found = privacy.privacy_of(HYPER.replace(gradient="exact"), PROBLEM, 10, sensitivity=2.0)
    noise = math.sqrt(2 * 0.75 / 50 / 1e-7) / 2
    exact = dp.get_epsilon_gaussian(noise / math.sqrt(100), 1e-5)
    assert found.noise_multiplier == pytest.approx(noise, rel=1e-12)
    assert found.pld == pytest.approx(exact, rel=1e-4)
    event = dp.SelfComposedDpEvent(dp.GaussianDpEvent(2 * noise), 100)
    accountant = dp.pld.PLDAccountant(neighboring_relation=REPLACE)
    assert found.pld == pytest.approx(accountant.compose(event).get_epsilon(1e-5), rel=1e-6)
    event = dp.SelfComposedDpEvent(dp.GaussianDpEvent(noise), 100)
    direct = dp.rdp.RdpAccountant(neighboring_relation=REPLACE).compose(event).get_epsilon(1e-5)
    assert found.rdp == pytest.approx(direct, rel=1e-12)
    assert found.pld < found.rdp < found.paper


def test_control_variates_of_clients() -> None:
    """Whole gradients at the anchor are in every step, so that nothing is amplified.

    A step is sensitive to 2 + q times as much as one of a mini-batch, and Gaussian steps compose.
    """
    hyper = HYPER.replace(anchor="client", example_clip=1.0)
    found = privacy.privacy_of(hyper, PROBLEM, 2, sensitivity=1.0)
    noise = 0.1 / 2.1 * math.sqrt(2 * 0.75 / 50 / 1e-7)
    assert found.noise_multiplier == pytest.approx(noise, rel=1e-12) and math.isnan(found.paper)
    exact = dp.get_epsilon_gaussian(noise / math.sqrt(20), 1e-5)
    assert found.pld == pytest.approx(exact, rel=1e-4)
    with pytest.raises(ConfigError, match=r"sensitivity is 0\.0, .* without control variates"):
        privacy.privacy_of(hyper, PROBLEM, 2)


def test_outsiders_only_by_choice() -> None:
    """With a warning, and a smaller epsilon by the paper's bound alone."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        server = privacy.privacy_of(HYPER, PROBLEM, 100, sensitivity=1.0)
    with pytest.warns(privacy.OutsiderWarning, match="where clients' models lie apart"):
        outsider = privacy.privacy_of(HYPER, PROBLEM, 100, sensitivity=1.0, adversary="outsider")
    assert outsider.paper < server.paper / 3 and outsider.rdp == server.rdp
    assert server.setup.adversary == "server"
    with pytest.warns(privacy.OutsiderWarning), pytest.raises(ConfigError, match="as delta would"):
        drawn = HYPER.replace(participants="with_replacement")
        privacy.privacy_of(drawn, PROBLEM, 100, sensitivity=1.0, adversary="outsider")


def log_likelihood(w: Any, x: Any) -> Any:
    """The gradient is x, whatever w is."""
    return w @ x


def flat(w: Any) -> Any:
    return jnp.zeros(())


@pytest.fixture(scope="module")
def moved() -> Any:
    """Run one step of neighbouring data sets with clipped gradients and without noise."""
    data = np.random.default_rng(0).normal(size=(12, 2)).astype("float32")
    data[0] = [3.0, 4.0]
    runs = []
    for first in (1.0, -1.0):
        changed = data.copy()
        changed[0] *= first
        problem = from_logdensity(log_likelihood, flat, changed, np.arange(12) % 3, jnp.zeros(2))
        hyper = langevin.paper(
            num_clients=3,
            num_selected=2,
            participants="without_replacement",
            local_steps=1,
            step_size=0.1,
            temperature=1e-9,
            batch_size=2,
            example_clip=0.5,
        )
        runs.append(
            fedjax_sim.sweep(
                langevin.system,
                problem,
                hyper,
                seeds=8,
                budget=fedjax_sim.Ticks(3),
                num_evals=3,
                keep=fedjax_sim.Keep(models=True),
            )
        )
    return problem, runs


@pytest.mark.slow
def test_clipping_bounds_the_change_of_a_step(moved: Any) -> None:
    """A step of one of two clients moves by eta 2 C / (q p_c), which opposite examples attain."""
    _, runs = moved
    steps = [np.diff(run.samples, axis=1) for run in runs]
    change = np.linalg.norm(steps[0] - steps[1], axis=-1).ravel()
    # C = 1/2; a batch of q = 1/2 of the examples of a client with weight 1/3, of two averaged.
    bound = 0.1 * 2 * 0.5 / (0.5 / 3) / 2
    np.testing.assert_allclose(change[change > 1e-4], bound, rtol=1e-3)
    # The client is selected in two of three rounds, and the example in half of its batches.
    assert 0.1 < np.mean(change > 1e-4) < 0.6


def test_schedules_say_how_often_a_client_took_part(moved: Any) -> None:
    problem, runs = moved
    hyper = runs[0].hypers[0].replace(temperature=1.0)
    run = types.SimpleNamespace(hypers=[hyper] * 8, timelines=runs[0].timelines)
    for timeline in run.timelines:
        assert np.bincount(timeline.clients.ravel(), minlength=3).max() >= 2
    one = types.SimpleNamespace(hypers=[hyper], timelines=run.timelines[:1])
    times = int(np.bincount(one.timelines[0].clients.ravel()).max())
    found = privacy.privacy_of(one, problem)
    assert found.num_steps == times and found.setup.num_rounds == times
    assert found.setup.sensitivity == 1.0
    assert found.rdp == privacy.privacy_of(hyper, problem, times).rdp
    other = types.SimpleNamespace(
        hypers=[hyper, hyper.replace(rho=0.5)], timelines=run.timelines[:2]
    )
    with pytest.raises(ConfigError, match=r"rho is '0.0, 0.5', but must be one value"):
        privacy.privacy_of(other, problem)


def test_rounds_that_a_run_does_not_have_are_refused(moved: Any) -> None:
    """Its schedules do not say who takes part in them; settings alone do, in the worst case."""
    problem, runs = moved
    hyper = runs[0].hypers[0].replace(temperature=1.0)
    run = types.SimpleNamespace(hypers=[hyper] * 8, timelines=runs[0].timelines)
    assert privacy.privacy_of(run, problem, 3) == privacy.privacy_of(run, problem)
    with pytest.raises(ConfigError, match="rounds is 4, but must be at most 3, those of the run"):
        privacy.privacy_of(run, problem, 4)
    assert privacy.privacy_of(hyper, problem, 4).num_steps == 4


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"step_size_schedule": InverseTime()}, "step_size_schedule is .*, but must be constant"),
        ({"noise_correction": True}, "dynamics.noise_correction is True, but must be false"),
        (
            {"preconditioner": "rmsprop"},
            "preconditioning.preconditioner is 'rmsprop', but must be none",
        ),
        ({"transform": partial(optax.clip, 1.0)}, "but must be optax.identity"),
        ({"client_weights": np.arange(1.0, 51.0)}, "client_weights is .* one value"),
    ],
)
def test_every_lane_is_checked(changes: dict, words: str) -> None:
    """A sweep in which another lane than the first has what changes the privacy."""
    lanes = types.SimpleNamespace(hypers=[HYPER, HYPER.replace(**changes)])
    with pytest.raises(ConfigError, match=words):
        privacy.privacy_of(lanes, PROBLEM, 10, sensitivity=1.0)
    same = types.SimpleNamespace(hypers=[HYPER, HYPER.replace(client_weights=2.0)])
    assert privacy.privacy_of(same, PROBLEM, 10, sensitivity=1.0).num_steps == 100


@pytest.mark.filterwarnings("ignore::fedjax_sim.theory.langevin.OutsiderWarning")
@pytest.mark.parametrize("adversary", ["server", "outsider"])
def test_the_setup_is_that_of_the_papers_epsilon(adversary: str) -> None:
    """With its deltas, which add up to that of the run."""
    hyper = HYPER.replace(participants="without_replacement")
    found = privacy.privacy_of(hyper, PROBLEM, 100, sensitivity=1.0, adversary=adversary)
    printed = privacy.guarantee(found.setup)
    assert printed.epsilon == found.paper and 0.4e-5 < printed.delta <= found.delta * (1 + 1e-9)


@pytest.mark.parametrize(
    ("hyper", "options", "words"),
    [
        (HYPER, {}, "sensitivity is 0.0, but must be above 0 and finite, or else .* example_clip"),
        (HYPER, {"sensitivity": 1.0, "rounds": None}, "rounds is None, but must be"),
        (HYPER, {"sensitivity": 1.0, "delta": 1.0}, "delta is 1.0"),
        (HYPER.replace(rho=1.0), {"sensitivity": 1.0}, "shared noise protects nothing"),
        (
            HYPER.replace(anchor="global"),
            {"sensitivity": 1.0},
            "control_variates.anchor is 'global'",
        ),
        (
            HYPER.replace(preconditioner="rmsprop"),
            {"sensitivity": 1.0},
            "preconditioning.preconditioner is",
        ),
        (
            HYPER.replace(transform=partial(optax.clip, 1.0)),
            {"sensitivity": 1.0},
            "but must be optax.identity",
        ),
        (fedavg.paper(), {"sensitivity": 1.0}, "must be one of FA-LD, or a run of it"),
    ],
)
def test_what_is_refused(hyper: Any, options: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        privacy.privacy_of(hyper, PROBLEM, **({"rounds": 10} | options))
