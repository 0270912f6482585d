"""Clients' own noise: its epsilon, what is sent, and what is refused."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim
from fedjax_sim import ConfigError, Event, Plan
from fedjax_sim.core.settings import check
from fedjax_sim.server import Wire
from fedjax_sim.server.attacks import parse_attack
from fedjax_sim.server.privacy import (
    clip_sums,
    clip_updates,
    local_epsilon,
    most_participations,
    most_sent,
    parse_local_privacy,
    privatise,
)
from fedjax_sim.server.reports import Memo
from fedjax_sim.server.rules import parse_rule
from fedjax_sim.systems import fedavg, fedbuff

dp = pytest.importorskip("dp_accounting", reason="epsilon is computed by dp-accounting")
GAUSSIAN, LAPLACE = "gaussian:clip=0.1:noise=8", "laplace:clip=0.1:noise=20"


@pytest.mark.parametrize(
    ("noise", "messages", "delta"), [(8, 1, 1e-6), (20, 100, 1e-5), (3, 7, 1e-3)]
)
def test_gaussian_messages(noise: float, messages: int, delta: float) -> None:
    """Two updates are up to 2 C apart: dp-accounting, which composes messages one by one."""
    privacy: Any = parse_local_privacy(f"gaussian:noise={noise}:delta={delta}")
    replace = dp.NeighboringRelation.REPLACE_ONE
    by_pld = dp.pld.PLDAccountant(neighboring_relation=replace)
    by_pld.compose(dp.GaussianDpEvent(noise), messages)
    by_rdp = dp.rdp.RdpAccountant(neighboring_relation=replace)
    by_rdp.compose(dp.GaussianDpEvent(noise / 2), messages)
    found = float(local_epsilon(messages, privacy))
    assert found == pytest.approx(by_pld.get_epsilon(delta), rel=1e-3)
    assert found < by_rdp.get_epsilon(delta) < 1.3 * found


@pytest.mark.parametrize(
    ("noise", "messages", "delta"), [(20, 100, 1e-6), (5, 30, 1e-5), (2, 9, 1e-3)]
)
def test_laplace_messages(noise: float, messages: int, delta: float) -> None:
    """By dp-accounting for one number, and by adding epsilons; one message in closed form."""
    privacy: Any = parse_local_privacy(f"laplace:noise={noise}:delta={delta}")
    public = dp.pld.privacy_loss_distribution.from_laplace_mechanism(noise / 2)
    direct = public.self_compose(messages).get_epsilon_for_delta(delta)
    assert float(local_epsilon(messages, privacy)) == pytest.approx(
        min(direct, 2 * messages / noise)
    )
    pure: Any = parse_local_privacy(f"laplace:noise={noise}")
    assert float(local_epsilon(messages, pure)) == pytest.approx(2 * messages / noise)
    # delta = 1 - exp((epsilon - 2 / z) / 2).
    exact = 2 / noise + 2 * np.log1p(-delta)
    assert float(local_epsilon(1, privacy)) == pytest.approx(exact, abs=2e-4)


def test_one_number_is_the_worst_case_of_laplace_noise() -> None:
    """delta(e) of two numbers, by integration, is as derived and below that of one number."""
    grid = np.linspace(-25, 25, 2501)
    weights = np.full(grid.size, grid[1] - grid[0])
    for first, second in ((1.0, 1.0), (2.0, 0.5), (0.2, 3.0)):
        loss = [np.abs(grid - s) - np.abs(grid) for s in (first, second)]
        total = loss[0][:, None] + loss[1][None, :]
        law = np.exp(-np.abs(grid[:, None]) - np.abs(grid[None, :])) / 4 * weights[0] ** 2
        for epsilon in (0.0, 0.7, 2.0):
            found = (np.maximum(0, 1 - np.exp(epsilon - total)) * law).sum()
            rest = first + second - epsilon
            far = epsilon >= abs(first - second)
            lost = rest / 4 if far else min(first, second) / 2
            derived = max(0, 1 - (1 + lost) * np.exp(-rest / 2)) if rest > 0 else 0
            assert found == pytest.approx(derived, abs=2e-4)
            assert derived <= max(0, 1 - np.exp(-rest / 2))


def test_no_message_and_no_noise() -> None:
    clipped: Any = parse_local_privacy("gaussian")
    assert local_epsilon([0, 2], clipped).tolist() == [0, np.inf]
    curve = local_epsilon([[0, 1], [10, 100]], parse_local_privacy(GAUSSIAN)).ravel()
    assert curve[0] == 0
    assert (np.diff(curve) > 0).all()


def test_what_is_clipped() -> None:
    """L1 norms against NumPy, in 64 bits; whatever is not finite counts as 0."""
    with jax.enable_x64(True):
        random = np.random.default_rng(1)
        updates = {"a": random.normal(size=(5, 3)), "b": random.normal(size=(5, 2, 2))}
        flat = np.concatenate([updates["a"], updates["b"].reshape(5, 4)], axis=1)
        norm = np.abs(flat).sum(axis=1, keepdims=True)
        clipped = clip_sums(updates, 4.0)
        np.testing.assert_allclose(
            np.concatenate([clipped["a"], clipped["b"].reshape(5, 4)], axis=1),
            flat * np.minimum(1, 4 / norm),
            rtol=1e-14,
        )
        assert (norm < 4).any()
        assert (norm > 4).any()
        updates["a"][0, 1], updates["b"][1, 0, 0] = np.nan, np.inf
        for name in ("gaussian", "laplace"):
            privacy: Any = parse_local_privacy(f"{name}:clip=2")
            keys = jax.random.split(jax.random.key(0), 5)
            sent = privatise(keys, privacy, updates)
            rows = np.concatenate([sent["a"], sent["b"].reshape(5, 4)], axis=1)
            assert (rows[:2] == 0).all()
            order = 1 if name == "laplace" else 2
            assert np.linalg.norm(rows, order, axis=1).max() == pytest.approx(2)


def test_norms_whose_squares_are_too_large_and_the_derivative_at_0() -> None:
    """Also of float16, whose squares are infinite from 256 on, and with leaves of two types."""
    for kind, size in (("float32", 1e30), ("float16", 3e4), ("bfloat16", 1e30)):
        updates = {"a": jnp.full((2, 3), size, kind), "b": jnp.full((2, 1), size, "float32")}
        clipped, is_short = clip_updates(updates, 4.0)
        assert not is_short.any()
        np.testing.assert_allclose(clipped["a"].astype("float32"), 2, rtol=1e-2)
        np.testing.assert_allclose(clipped["b"], 2, rtol=1e-2)
        clipped = clip_sums(jax.tree.map(lambda leaf: leaf / 10, updates), 4.0)
        np.testing.assert_allclose(clipped["a"].astype("float32"), 1, rtol=1e-2)
    long = jnp.full((1, 2000), 60.0, "float16")
    assert np.abs(clip_sums(long, 4.0).astype("float32")).sum() == pytest.approx(4, rel=1e-2)
    slope = jax.grad(lambda update: clip_updates(update, 1.0)[0].sum())(jnp.zeros((1, 3)))
    assert (slope == 1).all()


@pytest.mark.parametrize(("name", "mean_size"), [("gaussian", np.sqrt(2 / np.pi)), ("laplace", 1)])
def test_what_is_drawn(name: str, mean_size: float) -> None:
    """The mean size of 40,000 numbers, within 5 standard errors."""
    privacy: Any = parse_local_privacy(f"{name}:clip=0.5:noise=3")
    keys = jax.random.split(jax.random.key(2), 4)
    sent = np.asarray(privatise(keys, privacy, jnp.zeros((4, 10_000))))
    sizes = np.abs(sent) / 1.5
    error = sizes.std() / np.sqrt(sizes.size)
    assert abs(sizes.mean() - mean_size) < 5 * error
    assert abs(sent.mean()) < 5 * sent.std() / np.sqrt(sent.size)
    assert abs(np.corrcoef(sent)[np.triu_indices(4, 1)]).max() < 0.05


# On the wire


def tick_of(clients: list[int]) -> Event:
    """Make tick 3, in which all clients do two steps."""
    slots = jnp.asarray(clients, "int32")
    zero = jnp.zeros_like(slots)
    weight = jnp.full(slots.shape, 1 / 4)
    return Event(jnp.int32(3), slots, zero + 2, zero, weight, zero, zero, jnp.int32(0))


def received(hyper: Any, event: Event, problem: Any, *, can_repeat: bool = False) -> np.ndarray:
    """Return the progress that the server decodes where clients have made progress 3, 3, 3."""
    wire = Wire(problem, hyper, Plan(rows=2), can_repeat=can_repeat)
    starts = jnp.ones((event.clients.shape[0], 3))
    found, _ = wire.receive(jax.random.key(5), event, Memo(), starts, starts + 3)
    return np.asarray(found - starts)


def test_noise_depends_on_client_and_tick_alone(regression: Callable, small: Callable) -> None:
    """Order of slots does not matter, and no draw is used twice in a tick."""
    hyper = small(fedavg.system, local_privacy=parse_local_privacy(GAUSSIAN))
    problem = regression()
    here = received(hyper, tick_of([4, 2, 0, 1]), problem)
    there = received(hyper, tick_of([1, 2, 3, 4]), problem)
    np.testing.assert_array_equal(here[[0, 1, 3]], there[[3, 1, 0]])
    assert len(np.unique(here)) == here.size
    later = tick_of([4, 2, 0, 1]).within(tick=jnp.int32(4))
    assert (received(hyper, later, problem) != here).all()
    # A client that fills three slots draws three times.
    hyper = small(fedbuff.system, local_privacy=parse_local_privacy(GAUSSIAN))
    twice = received(hyper, tick_of([4, 2, 4, 4]), problem, can_repeat=True)
    assert len(np.unique(twice)) == twice.size


def test_attackers_neither_clip_nor_see_through_noise(
    regression: Callable, small: Callable
) -> None:
    """Client 2 reverses all that it has learnt; Mimic repeats a message as it was sent."""
    options = {"local_privacy": parse_local_privacy("gaussian:clip=1:noise=0.1"), "attackers": (2,)}
    problem, event = regression(), tick_of([4, 2, 0, 1])
    honest = received(small(fedavg.system, local_privacy=options["local_privacy"]), event, problem)
    np.testing.assert_allclose(np.linalg.norm(honest, axis=1), 1, atol=0.5)
    hyper = small(fedavg.system, attack=parse_attack("sign_flip"), **options)
    found = received(hyper, event, problem)
    np.testing.assert_array_equal(found[[0, 2, 3]], honest[[0, 2, 3]])
    assert (found[1] <= -3).all()
    hyper = small(fedavg.system, attack=parse_attack("mimic"), **options)
    mimic = received(hyper, event, problem)[1]
    assert np.abs(honest[[0, 2, 3]] - mimic).max(axis=1).min() < 1e-6


@pytest.mark.parametrize("feedback", [False, True])
def test_estimates_are_made_of_noisy_messages(
    feedback: bool, regression: Callable, small: Callable
) -> None:
    """Two clients' data change what is decoded by no more than the change of clipped progress."""
    hyper = small(
        fedavg.system,
        local_privacy=parse_local_privacy("gaussian:clip=1:noise=0.5"),
        compression=fedjax_sim.server.compression.parse_compressor("top_k:kept=3"),
        error_feedback=feedback,
    )
    wire = Wire(regression(), hyper, Plan(rows=2))
    starts, memo = jnp.zeros((4, 3)), wire.first(jnp.zeros(3))
    found = {}
    for size in (3.0, 3e6):
        reports, after = wire.receive(
            jax.random.key(5), tick_of([4, 2, 0, 1]), memo, starts, starts + size
        )
        found[size] = np.asarray(reports), [np.asarray(x) for x in jax.tree.leaves(after)]
    # Both are clipped to the same vector, so that nothing on either side differs.
    np.testing.assert_allclose(found[3.0][0], found[3e6][0], rtol=1e-5)
    assert len(found[3.0][1]) == feedback
    for one, other in zip(found[3.0][1], found[3e6][1], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


# In runs


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("fedavg", marks=pytest.mark.slow),
        "fedbuff",
        pytest.param("favano", marks=pytest.mark.slow),
    ],
)
def test_epsilon_of_runs(name: str, regression: Callable, small: Callable) -> None:
    """The curve is that of the client with most participations so far, whatever the rule."""
    system = fedjax_sim.SYSTEMS[name]
    rules = {} if name == "favano" else {"aggregator": parse_rule("median")}
    run = fedjax_sim.sweep(
        system,
        regression(),
        small(system, **rules),
        settings={"local_privacy": [parse_local_privacy(t) for t in (GAUSSIAN, LAPLACE, "none")]},
        seeds=2,
        budget=fedjax_sim.Ticks(12),
        num_evals=3,
    )
    spent = np.asarray(run.curves.epsilon)
    assert run.curves.epsilon.dims == ("local_privacy", "seed", "eval")
    for seed in range(2):
        timeline = run.timelines[seed]
        count = most_sent if name == "fedbuff" else most_participations
        messages = count(timeline, 7, [0, 4, 8, 12])
        for place, text in enumerate((GAUSSIAN, LAPLACE)):
            expected = local_epsilon(messages, parse_local_privacy(text))
            np.testing.assert_array_equal(spent[place, seed], expected)
    assert (spent[:2, :, 1:] > 0).all()
    assert np.isnan(spent[2]).all()
    assert not np.asarray(run.curves.failed).any()


IN_FLIGHT = ("safa", "fedat", "asyncfeded_adaptive")
"""Systems with messages on their way when a tick ends, which no drawn schedule names."""


@pytest.mark.parametrize(
    ("system", "changes", "words"),
    [
        ("fedavg", {"num_asked": 20}, ["num_asked", "not in the schedule"]),
        ("fedavg", {"deadline": 3.0}, ["deadline", "not in the schedule"]),
        ("fedbuff", {"drop_rate": 0.1}, ["drop_rate", "not in the schedule"]),
        ("powerofchoice", {}, ["local_privacy", "losses"]),
        ("qfedavg", {}, ["local_privacy", "losses"]),
        ("ifca", {}, ["local_privacy", "clusters"]),
        ("fedcs", {}, ["local_privacy", "late reports"]),
        *((name, {}, ["local_privacy", "live clock"]) for name in IN_FLIGHT),
        ("hierarchical", {}, ["local_privacy", "who is behind an iteration"]),
        ("async_hierarchical", {}, ["local_privacy", "who is behind an iteration"]),
        (
            "fedavg",
            {
                "privacy": fedjax_sim.server.privacy.parse_privacy("fixed:noise=1"),
                "sampling": "reshuffled",
            },
            ["local_privacy", "one epsilon"],
        ),
    ],
)
def test_what_is_not_covered_is_refused(
    system: str, changes: dict[str, Any], words: list[str]
) -> None:
    hyper = fedjax_sim.SYSTEMS[system].paper(local_privacy=parse_local_privacy(GAUSSIAN), **changes)
    with pytest.raises(ConfigError) as caught:
        check(hyper)
    assert all(word in str(caught.value) for word in words), caught.value


def test_bad_text_is_refused() -> None:
    for text, words in (
        ("laplace:noise=-1", "at least 0"),
        ("gaussian:delta=0", "above 0"),
        ("uniform", "one of none, gaussian, laplace"),
    ):
        with pytest.raises(ConfigError, match=words):
            parse_local_privacy(text)
    assert str(parse_local_privacy(GAUSSIAN)) == GAUSSIAN


def test_steps_that_change_who_takes_part_are_refused(
    regression: Callable, small: Callable
) -> None:
    """Epsilon would be that of another schedule."""
    hyper = small(fedavg.system, local_privacy=parse_local_privacy(GAUSSIAN))
    event = tick_of([4, 2, 0, 1])._replace(clients=jnp.asarray([4, 2, 0, -1]))
    with pytest.raises(
        ConfigError, match=r"local_privacy is 'gaussian'.*epsilon is the schedule's"
    ):
        received(hyper, event, regression())


@pytest.mark.parametrize("bound", [-1.0, 0.0, float("nan")])
def test_a_bound_that_is_not_above_0_is_refused(bound: float) -> None:
    """Updates would be turned round, or be lost, without a word."""
    for clip in (clip_updates, clip_sums):
        with pytest.raises(ConfigError, match=r"bound is .* above 0"):
            clip(jnp.ones((2, 3)), bound)
