"""Lower bounds of epsilon: by jax_privacy and in closed form, and of trainings on the digits."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import fedjax_sim
from fedjax_sim import ConfigError, datasets, models, partition, problems
from fedjax_sim.core.types import EMPTY, Timeline
from fedjax_sim.server.attacks import Canary, Cohort
from fedjax_sim.server.privacy import audit_canaries, gaussian_epsilon, one_run_bound, parse_privacy

DELTA = 1e-5
NUM_CLIENTS, CANARIES, TICKS, RUNS, GUESSES = 320, tuple(range(300)), 4, 20, 60


@pytest.mark.parametrize(
    ("num_canaries", "guesses", "correct", "delta", "public"),
    [
        (400, 80, 76, 1e-6, 2.082540659996822),
        (100, 20, 20, 1e-5, 1.819596907485671),
        (1000, 200, 150, 0.0, 0.8213961378933643),
        (50, 50, 26, 1e-3, 0.0),
    ],
)
def test_bounds(num_canaries: int, guesses: int, correct: int, delta: float, public: float) -> None:
    """The values are those of `auditing._epsilon_one_run` of jax_privacy 2.0.0."""
    found = one_run_bound(num_canaries, num_guesses=guesses, num_correct=correct, delta=delta)
    assert found == pytest.approx(public, abs=2e-6)


def test_all_guesses_right() -> None:
    """Without delta: q^r = 0.05 for q = e^epsilon / (1 + e^epsilon)."""
    right = 0.05 ** (1 / 30)
    found = one_run_bound(30, num_guesses=30, num_correct=30, delta=0.0)
    assert found == pytest.approx(np.log(right / (1 - right)), abs=2e-6)


@pytest.mark.slow
def test_randomised_response_is_seldom_above_its_epsilon() -> None:
    """Of 2,000 audits of answers that are (1, 0)-private at most 5 % and 5 standard errors fail."""
    random = np.random.default_rng(0)
    coins = random.random((2000, 40)) < 0.5
    truthful = random.random((2000, 40)) < 1 / (1 + np.exp(-1.0))
    scores = np.where(coins == truthful, 1.0, 0.0) + 1e-3 * random.random((2000, 40))
    bounds = [
        audit_canaries(score, coin, num_guesses=20, delta=0.0).epsilon
        for score, coin in zip(scores, coins, strict=True)
    ]
    failures = np.mean(np.array(bounds) > 1)
    assert failures < 0.05 + 5 * np.sqrt(0.05 * 0.95 / 2000)
    assert max(bounds) > 0.5


def test_what_cannot_be_audited_is_refused() -> None:
    for changes, words in (
        ({"num_guesses": 3}, "num_guesses is 3, but must be even and at most 4"),
        ({"num_guesses": 6}, "num_guesses is 6, but must be even and at most 4"),
        (
            {"num_guesses": 2, "confidence": 1.0},
            "confidence is 1.0, .* above 0 and below",
        ),
        ({"num_guesses": 2, "included": [True]}, "shape of scores"),
    ):
        given = {"included": [True, False] * 2, "delta": 0.0} | changes
        with pytest.raises(ConfigError, match=words):
            audit_canaries(np.arange(4.0), **given)
    with pytest.raises(ConfigError, match="num_correct is 5, but must be at most 4"):
        one_run_bound(9, num_guesses=4, num_correct=5, delta=0.0)


def test_canaries() -> None:
    """A vector of the given norm, or 0, by fair coins; the same in whatever slot."""
    canary = Canary(norm=2.0, seed=3)
    messages = {"a": jnp.ones((400, 3, 5)), "b": jnp.ones((400, 7))}
    clients = jnp.arange(400)[::-1]
    here = jnp.ones(400, bool)
    sent = canary.forge(jax.random.key(0), messages, Cohort(clients, here, here, here / 400))
    norms = np.sqrt(sum((np.asarray(leaf) ** 2).reshape(400, -1).sum(1) for leaf in sent.values()))
    coins = canary.included(clients)
    np.testing.assert_allclose(norms, np.where(coins, 2, 0), rtol=1e-5)
    assert stats.binomtest(int(coins.sum()), 400).pvalue > 1e-6
    assert (Canary(seed=4).included(clients) != coins).any()
    # Scores of sums of canaries alone; that of the last one is of two ticks.
    models = np.concatenate([np.zeros((1, 22)), np.zeros((1, 22)), np.zeros((1, 22))])
    assert (canary.scores(models, [0, 1]) == 0).all()
    flat = np.concatenate([sent["a"].reshape(400, 15), sent["b"]], axis=1)[::-1]
    chosen = np.flatnonzero(coins[::-1])[:2]
    models[1:] += flat[chosen[0]]
    models[2:] += flat[chosen[1]]
    found = canary.scores({"a": models[:, :15].reshape(3, 3, 5), "b": models[:, 15:]}, chosen)
    cosine = flat[chosen[0]] @ flat[chosen[1]] / 2
    np.testing.assert_allclose(found, 2 + cosine, rtol=1e-5)


def test_scores_leave_out_ticks_without_noise() -> None:
    """A tick in which nobody reports keeps the noises of the others as they are."""
    moves = np.random.default_rng(0).normal(size=(4, 5))
    models = np.concatenate([np.zeros((1, 5)), np.cumsum(moves, axis=0)])
    clients = np.array([[0], [1], [0], [1]])
    weight = np.ones(clients.shape)
    whole = Timeline(np.arange(4.0), clients, clients, clients, weight, clients)
    expected = Canary().scores(models, [0, 1], whole, bands=3)
    later = jax.tree.map(lambda leaf: np.insert(leaf, 2, leaf[2], axis=0), whole)
    later.clients[2], later.weight[2] = EMPTY, 0
    found = Canary().scores(np.insert(models, 2, models[2], axis=0), [0, 1], later, bands=3)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


class Audited(NamedTuple):
    """Upper bounds and lower ones of 20 runs, `f64[20]` each."""

    upper: np.ndarray
    lower: np.ndarray


def audited(name: str, texts: list[str], bands: int, **changes: Any) -> list[Audited]:
    """Train on the digits with 300 canaries among 320 clients, for each privacy, in one program."""
    digits = datasets.load("digits")
    split = partition.make("iid", digits.train_labels, num_clients=NUM_CLIENTS, seed=0)
    system = fedjax_sim.SYSTEMS[name]
    hyper = system.Hyper(
        num_clients=NUM_CLIENTS,
        local_steps=2,
        batch_size=2,
        attackers=CANARIES,
        attack=Canary(),
        **changes,
    )
    canaries = [Canary(seed=seed) for seed in range(RUNS)]
    run = fedjax_sim.sweep(
        system,
        problems.make_classifications(models.MLP((16,), 10), digits, [split]),
        hyper,
        settings={
            "privacy": [parse_privacy(f"{text}:delta={DELTA}") for text in texts],
            "attack": canaries,
        },
        budget=fedjax_sim.Ticks(TICKS),
        num_evals=TICKS,
        keep=fedjax_sim.Keep(models=True),
    )
    shape = len(texts), RUNS, TICKS + 1
    samples = [np.asarray(leaf) for leaf in jax.tree.leaves(run.samples)]
    # In the order of the leaves, as one vector.
    seen = np.concatenate([leaf.reshape(*shape, -1) for leaf in samples], axis=-1)
    lower = np.zeros(shape[:2])
    for place, canary in enumerate(canaries):
        coins = canary.included(CANARIES)
        for row in range(len(texts)):
            scores = canary.scores(seen[row, place], CANARIES, run.timelines[0], bands=bands)
            found = audit_canaries(scores, coins, num_guesses=GUESSES, delta=DELTA)
            lower[row, place] = found.epsilon
    upper = np.asarray(run.curves.epsilon)[..., -1].reshape(shape[:2])
    return [Audited(*rows) for rows in zip(upper, lower, strict=True)]


@pytest.mark.slow
def test_digits_with_everyone_in_every_round() -> None:
    """20 runs of FedAvg with each noise: lower bounds are never above upper ones.

    They are near 1.7 and 0.2 on average, below 6.65 and 1.37.
    """
    texts = ["correlated:noise=1.4", "correlated:noise=5.6"]
    strong, weak = audited("fedavg", texts, 1, num_selected=NUM_CLIENTS)
    for found, noise in ((strong, 1.4), (weak, 5.6)):
        exact = gaussian_epsilon(np.sqrt(TICKS), noise, DELTA)
        np.testing.assert_allclose(found.upper, exact, rtol=1e-6)
        assert (found.lower <= found.upper).all()
        assert found.lower.max() > 0
    assert strong.lower.mean() > 1.2
    # The audit can fail: with a quarter of the noise that is claimed it does.
    assert (strong.lower > weak.upper).mean() > 0.5


@pytest.mark.slow
def test_digits_with_correlated_noise_and_with_fedbuff() -> None:
    """20 runs each of DP-FTRL and of FedBuff."""
    for name, privacy, bands, changes in (
        ("fedavg", "correlated:noise=6:bands=4", 4, {"num_selected": NUM_CLIENTS}),
        ("fedbuff", "correlated:noise=2", 1, {"buffer_size": 80, "concurrency": NUM_CLIENTS}),
    ):
        [found] = audited(name, [privacy], bands, **changes)
        assert (found.lower <= found.upper).all()
        assert found.lower.mean() > 0.1, name
