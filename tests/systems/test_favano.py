"""FAVANO against its identities, the paper's illustration, its reweightings' formulas, and its long-run means and bound on quadratics."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from scipy import stats

import fedjax_sim
from fedjax_sim import Event, Layout, Plan, Timeline
from fedjax_sim.problems import Quadratic
from fedjax_sim.streams import stream
from fedjax_sim.systems import favano
from fedjax_sim.theory.favano import bounds as theory
from fedjax_sim.timelines import client_rates, schedule_contacts

SYSTEM = fedjax_sim.SYSTEMS["favano"]


@struct.dataclass
class Located(Quadratic):
    """Quadratics, as a user would change them: evaluation tells where the model is."""

    def evaluate(self, params: jax.Array) -> Mapping[str, jax.Array]:
        return {f"w{i}": params[i] for i in range(params.shape[0])}


def descend(model: np.ndarray, center: np.ndarray, *, rate: float, steps: int) -> np.ndarray:
    """Gradient descent on a quadratic, in closed form. rate: step size times curvature."""
    return center + (1 - rate) ** steps * (model - center)


def test_identities_of_the_mean_model() -> None:
    """The mean of server and base models moves by the reweighted progress alone; so does the server, but for mixing. To rounding."""
    n, s, ticks, dim, lr = 6, 3, 5, 4, 0.3
    random = np.random.default_rng(0)
    centers, curvature = random.normal(size=(n, dim)), random.uniform(0.2, 2.0, n)
    rows = n + ticks + 1
    with jax.enable_x64(True):
        problem = Quadratic.of(centers, curvature=curvature)
        algorithm = SYSTEM.algorithm(
            problem,
            SYSTEM.Hyper(num_clients=n, num_selected=s, local_steps=7, lr=lr),
            Plan(rows, s),
        )
        # Client i starts from a model of its own, in row i; tick t writes row n + t.
        state = favano.State(
            jnp.asarray(random.normal(size=dim)), jnp.asarray(random.normal(size=(rows, dim)))
        )
        row = np.arange(n)
        step = jax.jit(algorithm.step)
        for t in range(ticks):
            bases = np.asarray(state.versions)[row]
            server = np.asarray(state.server)
            clients = random.permutation(n)[:s]
            steps, weight = random.integers(0, 8, s), random.uniform(0.1, 3.0, s)
            whole = (jnp.asarray(x, "int32") for x in (clients, steps, np.zeros(s)))
            event = Event(
                jnp.int32(t),
                *whole,
                jnp.asarray(weight),
                jnp.zeros(s, "int32"),
                jnp.asarray(row[clients]),
                jnp.int32(n + t),
            )
            state, _ = step(jax.random.key(0), state, event)
            row[clients] = n + t
            ends = [
                descend(bases[i], centers[i], rate=lr * curvature[i], steps=k)
                for i, k in zip(clients, steps, strict=True)
            ]
            progress = weight @ (np.array(ends) - bases[clients])

            def mean(server: np.ndarray, bases: np.ndarray) -> np.ndarray:
                return (server + bases.sum(0)) / (n + 1)

            after = mean(np.asarray(state.server), np.asarray(state.versions)[row])
            np.testing.assert_allclose(
                after, mean(server, bases) + progress / (n + 1), rtol=0, atol=1e-13
            )
            mixed = (server + bases[clients].sum(0)) / (s + 1)
            np.testing.assert_allclose(state.server, mixed + progress / (s + 1), rtol=0, atol=1e-13)


def test_three_clients_of_whom_two_are_contacted_at_a_time() -> None:
    """The paper's illustration (Fig. 4): at the second tick, client 2 reports from w_0 and client 3 from w_1; client 1 keeps w_1."""
    centers = np.array([[1.0, 0.0], [-2.0, 1.0], [0.5, 3.0]])
    start = np.array([4.0, -1.0])

    def timeline(key: jax.Array, hyper: Any, num_ticks: int) -> Timeline:
        return Timeline(
            time=jnp.array([7.0, 14.0]),
            clients=jnp.array([[0, 2], [1, 2]]),
            steps=jnp.array([[3, 1], [2, 4]]),
            version=jnp.array([[0, 0], [0, 1]]),
            weight=jnp.array([[0.5, 1.0], [0.25, 2.0]]),
            holds=jnp.array([[1, 1], [2, 2]]),
        )

    def report(base: np.ndarray, client: int, steps: int, weight: float) -> np.ndarray:
        return base + weight * (descend(base, centers[client], rate=0.1, steps=steps) - base)

    first = (start + report(start, 0, 3, 0.5) + report(start, 2, 1, 1.0)) / 3
    second = (first + report(start, 1, 2, 0.25) + report(first, 2, 4, 2.0)) / 3
    hyper = SYSTEM.Hyper(num_clients=3, num_selected=2, local_steps=4, lr=0.1, batch_size=1)
    problem = Located.of(centers.astype("float32"), start=start)
    run = fedjax_sim.simulate(
        SYSTEM._replace(timeline=timeline), problem, hyper, num_ticks=2, layout=Layout(2, False, 1)
    )
    models = np.stack([run.curves.w0, run.curves.w1], axis=-1)
    # Tolerance: float32.
    np.testing.assert_allclose(models, [start, first, second], rtol=1e-6)
    distance = [2 * 0.0, np.sum((start - first) ** 2), np.sum((first - second) ** 2)]
    np.testing.assert_allclose(run.curves.client_variance, distance, rtol=1e-5, atol=1e-6)
    assert run.curves.local_steps.values.tolist() == [0, 4, 10]


SMALL = {
    "num_clients": 6,
    "num_selected": 2,
    "local_steps": 4,
    "server_wait": 2.0,
    "server_interact": 1.0,
    "rate_slow": 0.1,
}
PERIOD, K, SHARE = 3, 4, 2 / 6


@pytest.fixture(scope="module")
def scheduled(draw: Callable) -> Callable[[Any], dict[str, np.ndarray]]:
    """Facts of a schedule of 60 ticks, and 1 / alpha under the given settings."""

    def facts(hyper: Any) -> dict[str, np.ndarray]:
        schedule, window = draw(schedule_contacts, contact_settings(hyper), num_ticks=60, seeds=[3])
        schedule, window = Timeline(*(leaf[0] for leaf in schedule)), window[0]
        with jax.enable_x64(True):
            rate = client_rates(stream(jax.random.key(3), "timeline"), hyper)
            weight = favano.inverse_alpha(
                Timeline(*map(jnp.asarray, schedule)), jnp.asarray(window), rate, hyper
            )
        return {
            "weight": weight,
            "steps": schedule.steps,
            "window": window,
            "clients": schedule.clients,
            "rate": np.asarray(rate),
        }

    return facts


def contact_settings(hyper: Any) -> Any:
    """The same for all reweightings, so that they are drawn by one program."""
    return hyper.replace(reweight="none", alpha_by_tick=False)


def expected_by_round(
    rate: float, value: Callable[[np.ndarray], np.ndarray], *, law: str, rounds: int | None = None
) -> float:
    """E[value(E)] by summing over windows of R rounds, R geometric, at most `rounds`."""
    longest = 400 if rounds is None else rounds
    r = np.arange(1, longest + 1)
    chance = stats.geom.pmf(r, SHARE)
    chance[-1] = stats.geom.sf(longest - 1, SHARE)
    counts = np.arange(300)[:, None]
    pmf = (
        stats.binom.pmf(counts, PERIOD * r, rate)
        if law == "runtime_geom"
        else stats.poisson.pmf(counts, PERIOD * r * rate)
    )
    return float(value(counts[:, 0]) @ pmf @ chance)


def at_least_one(counts: np.ndarray) -> np.ndarray:
    return (counts > 0).astype(float)


def capped(counts: np.ndarray) -> np.ndarray:
    return np.minimum(counts, K).astype(float)


@pytest.mark.parametrize("law", ["runtime_geom", "runtime_exp"])
@pytest.mark.parametrize("by_tick", [False, True])
def test_weights_from_the_law(scheduled: Callable, law: str, by_tick: bool) -> None:
    """1 / (P(E > 0) X) and 1 / E[X], of the stationary law or of the server step's own; 0 without a step. To float64 rounding."""
    for reweight, function in (("stochastic", at_least_one), ("deterministic", capped)):
        hyper = SYSTEM.Hyper(**SMALL, runtime_law=law, reweight=reweight, alpha_by_tick=by_tick)
        found = scheduled(hyper)
        rate = found["rate"][found["clients"]]
        expected = np.empty(rate.shape)
        table: dict[tuple, float] = {}
        for t, slot in np.ndindex(rate.shape):
            place = (rate[t, slot], t + 1 if by_tick else None)
            if place not in table:
                table[place] = expected_by_round(place[0], function, law=law, rounds=place[1])
            expected[t, slot] = table[place]
        alpha = expected * found["steps"] if reweight == "stochastic" else expected
        some = found["steps"] > 0
        np.testing.assert_allclose(found["weight"][some], 1 / alpha[some], rtol=1e-9)
        assert not found["weight"][~some].any()
        assert some.any() and not some.all()


def test_weights_given_the_window(scheduled: Callable) -> None:
    for reweight in ("conditional", "conditional_stochastic"):
        found = scheduled(SYSTEM.Hyper(**SMALL, reweight=reweight))
        rate, window = found["rate"][found["clients"]], found["window"]
        counts = np.arange(300)[:, None, None]
        pmf = stats.binom.pmf(counts, window[None], rate[None])
        mean = np.tensordot(capped(counts[:, 0, 0]), pmf, 1)
        alpha = mean if reweight == "conditional" else (1 - pmf[0]) * found["steps"]
        some = found["steps"] > 0
        np.testing.assert_allclose(found["weight"][some], 1 / alpha[some], rtol=1e-9)
        assert not found["weight"][~some].any()


@pytest.mark.parametrize(
    ("strict", "whole"), [(False, np.floor), (True, lambda window: np.ceil(window) - 1)]
)
def test_weights_given_a_window_that_is_not_whole(
    scheduled: Callable, strict: bool, whole: Callable
) -> None:
    """Geometric running times are whole: a step counts in the window's whole units, the last of them not if the deadline is strict."""
    hyper = SYSTEM.Hyper(
        **SMALL | {"server_wait": 3.25, "server_interact": 0.75},
        busy_during_interaction=True,
        strict_deadline=strict,
    )
    found = scheduled(hyper.replace(reweight="conditional"))
    window = whole(found["window"])
    assert (window < found["window"]).any()
    counts = np.arange(300)[:, None, None]
    pmf = stats.binom.pmf(counts, window[None], found["rate"][found["clients"]][None])
    some = found["steps"] > 0
    np.testing.assert_allclose(
        found["weight"][some], 1 / np.tensordot(capped(counts[:, 0, 0]), pmf, 1)[some], rtol=1e-9
    )


def test_the_law_by_tick_needs_a_first_window() -> None:
    hyper = SYSTEM.Hyper(alpha_by_tick=True, first_contact=0.5)
    with pytest.raises(
        fedjax_sim.ConfigError,
        match="alpha_by_tick is True, but must be false unless first_contact is 1",
    ):
        fedjax_sim.settings.check(hyper)


def test_weights_from_a_clients_own_history(scheduled: Callable) -> None:
    """Running means over its contacts so far, this one included."""
    for reweight in ("estimated", "estimated_stochastic"):
        found = scheduled(SYSTEM.Hyper(**SMALL, reweight=reweight))
        history: dict[int, list[int]] = {}
        for t, slot in np.ndindex(found["steps"].shape):
            steps = int(found["steps"][t, slot])
            own = history.setdefault(int(found["clients"][t, slot]), [])
            own.append(steps)
            alpha = np.mean(own) if reweight == "estimated" else np.mean(np.array(own) > 0) * steps
            expected = 1 / alpha if steps else 0.0
            np.testing.assert_allclose(found["weight"][t, slot], expected, rtol=1e-12)


def test_no_reweighting(scheduled: Callable) -> None:
    assert (np.asarray(scheduled(SYSTEM.Hyper(**SMALL, reweight="none"))["weight"]) == 1).all()


def test_reweighting_is_unbiased(draw: Callable) -> None:
    """The mean of X / alpha over contacts is 1 for fast and slow clients under both reweightings, within 5 standard errors.

    With constant gradients this is what the expected contribution of a client is multiplied by.
    """
    hyper = SYSTEM.Hyper(num_clients=20, num_selected=4)
    schedules, windows = draw(schedule_contacts, contact_settings(hyper), num_ticks=1500, seeds=8)
    samples: dict[tuple[str, float], list[np.ndarray]] = {}
    for seed, window in enumerate(windows):
        schedule = Timeline(*(jnp.asarray(leaf[seed]) for leaf in schedules))
        with jax.enable_x64(True):
            rate = client_rates(stream(jax.random.key(seed), "timeline"), hyper)
            for reweight in ("stochastic", "deterministic"):
                weight = favano.inverse_alpha(
                    schedule, jnp.asarray(window), rate, hyper.replace(reweight=reweight)
                )
                contribution = np.asarray(schedule.steps * weight)[50:]
                own = np.asarray(rate)[schedule.clients[50:]]
                for speed in (hyper.rate_fast, hyper.rate_slow):
                    samples.setdefault((reweight, speed), []).append(contribution[own == speed])
    for each in samples.values():
        sample = np.concatenate(each)
        error = sample.std() / np.sqrt(sample.size)
        assert error < 0.02
        assert abs(sample.mean() - 1) < 5 * error


@pytest.mark.parametrize(
    ("reweight", "expected"),
    [("deterministic", 0.31656), ("stochastic", 0.23100), ("none", -0.54409)],
)
def test_long_run_mean_of_two_groups(reweight: str, expected: float) -> None:
    """Four fast clients want -1, four slow ones +1: the server's long-run mean is the solution of nine linear equations.

    Clock, reweighting and aggregation together, within 5 standard errors over seeds. The optimum is 0: reweighting removes the bias
    towards fast clients and over-corrects, by a known amount.
    """
    hyper = SYSTEM.Hyper(
        num_clients=8,
        num_selected=3,
        local_steps=20,
        slow_fraction=0.5,
        lr=0.2,
        batch_size=1,
        reweight=reweight,
    )
    seeds, ticks, burn_in = 24, 2000, 100

    def problem(seed: int) -> Located:
        with jax.enable_x64(True):
            rates = np.asarray(client_rates(stream(jax.random.key(seed), "timeline"), hyper))
        assert (rates == hyper.rate_slow).sum() == 4
        return Located.of(np.where(rates == hyper.rate_slow, 1.0, -1.0)[:, None].astype("float32"))

    layout = Layout(slots_at_once=3, lanes_at_once=True, lane_devices=1)
    run = fedjax_sim.sweep(
        SYSTEM, problem, hyper, seeds=seeds, num_ticks=ticks, num_evals=ticks // 4, layout=layout
    )
    means = run.curves.w0[:, burn_in // 4 :].mean("eval").values
    error = means.std(ddof=1) / np.sqrt(seeds)
    assert error < 0.006
    assert abs(means.mean() - expected) < 5 * error


@pytest.fixture(scope="module")
def theorem() -> Callable[[str, float | None], tuple[float, theory.FavanoSetup, float]]:
    """Run ten clients on quadratics; return the mean squared gradient at the mean model, the setting, and the step size used."""

    def run(reweight: str, lr: float | None) -> tuple[float, theory.FavanoSetup, float]:
        n, s, K, ticks, seeds, dim, sigma = 10, 3, 8, 1000, 6, 5, 0.5
        random = np.random.default_rng(4)
        centers = random.normal(size=(n, dim))
        start = np.full(dim, 3.0)
        law = theory.step_law(
            [0.5] * 5 + [1 / 16] * 5,
            contact_probability=s / n,
            round_time=7,
            max_steps=K,
            law="runtime_geom",
        )
        noise_constants, drift = theory.reweighting_constants(
            theory.step_moments(law), max_steps=K, reweighting=reweight
        )
        spread = float(np.mean(np.sum((centers - centers.mean(0)) ** 2, axis=1)))
        gap = float(np.sum((start - centers.mean(0)) ** 2) / 2)
        setting = theory.FavanoSetup(
            n, s, K, 1.0, sigma**2, spread, 1.0, gap, float(noise_constants.mean()), drift
        )
        lr = theory.largest_step_size(setting) if lr is None else lr
        hyper = SYSTEM.Hyper(
            num_clients=n,
            num_selected=s,
            local_steps=K,
            slow_fraction=0.5,
            lr=lr,
            batch_size=1,
            reweight=reweight,
        )
        problem = Located.of(centers.astype("float32"), noise=sigma, start=start)
        layout = Layout(slots_at_once=3, lanes_at_once=True, lane_devices=1)
        left = fedjax_sim.sweep(
            SYSTEM, problem, hyper, seeds=seeds, num_ticks=ticks, num_evals=ticks, layout=layout
        )
        server = np.stack([left.curves[f"w{i}"] for i in range(dim)], axis=-1)
        squares = []
        with np.errstate(all="ignore"):  # A run may be meant to diverge.
            for seed in range(seeds):
                held = np.zeros(n, int)
                for t in range(ticks):
                    mean_model = (server[seed, t] + server[seed, held].sum(0)) / (n + 1)
                    squares.append(np.sum((mean_model - centers.mean(0)) ** 2))
                    held[left.timelines[seed].clients[t]] = left.timelines[seed].holds[t]
            return float(np.mean(squares)), setting, lr

    return run


@pytest.mark.parametrize("reweight", ["stochastic", "deterministic"])
def test_theorem_1(theorem: Callable, reweight: str) -> None:
    """The bound with all its terms holds at the largest step size that meets every condition of the proof, by a factor of 2 or so."""
    square, setting, lr = theorem(reweight, None)
    assert all(condition.holds for condition in theory.conditions(setting, step_size=lr))
    bound = theory.bound(setting, step_size=lr, num_ticks=1000)
    assert square < bound
    assert square > bound / 10, "so far below the bound, the run cannot have been the one meant"


def test_theorem_1_can_fail(theorem: Callable) -> None:
    """Far beyond its conditions the iteration diverges, past anything the formula says."""
    square, setting, lr = theorem("stochastic", 4.0)
    assert not all(condition.holds for condition in theory.conditions(setting, step_size=lr))
    assert not square < theory.bound(setting, step_size=lr, num_ticks=1000)
