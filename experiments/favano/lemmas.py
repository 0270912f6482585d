"""FAVANO's mean-model identity, reweighting and contraction on small problems (claims 1 to 3).

See arXiv 2305.16099. Server steps are those of `fedjax_sim.systems.favano`, step counts and alpha
come from its clock, and expected values from the paper's `formulas`.

Dimension letters: `I` instances, `M` cohorts, `N` clients, `P` parameters.
"""

import itertools
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from experiments import harness
from experiments.favano.claims import CLAIMS
from experiments.favano.formulas import bounds as formulas
from experiments.harness import Arguments, Judges, Outcome, Sizes, Study, draw
from fedjax_sim.core.types import EMPTY, Array, Event, Plan
from fedjax_sim.problems import Quadratic
from fedjax_sim.results.plots import look, styled
from fedjax_sim.server.reports import Versioned
from fedjax_sim.systems import favano
from fedjax_sim.theory import favano as theory

REWEIGHTINGS = ("stochastic", "deterministic")


STUDY = Study(
    full=Sizes(seeds=64, problems=10, instances=400),
    smoke=Sizes(seeds=16, problems=2, instances=60),
)
"""Seeds are the lanes of claim 2, at least two; `problems` are those of claim 1 per shape;
`instances` are those of claim 3 per number of clients."""


# Claim 1 -----------------------------------------------------------------------------------------


@partial(jax.jit, static_argnums=0)
def server_step(plan: Plan, problem: Any, hyper: Any, state: Versioned, event: Event) -> Versioned:
    """Take one server step of FAVANO."""
    return favano.algorithm(problem, hyper, plan).step(jax.random.key(0), state, event)[0]


def identity_error(
    random: np.random.Generator, n: int, s: int, most_steps: int, size: int, ticks: int = 25
) -> float:
    """Follow random quadratics with random cohorts, step counts and weights.

    Returns:
      The largest error of the identity over the largest move of the mean model.
    """
    centers, curvature = random.normal(size=(n, size)), np.exp(random.normal(size=n))
    lr = float(random.uniform(0.05, 1))
    hyper = favano.paper(num_clients=n, num_selected=s, local_steps=most_steps, lr=lr, batch_size=1)
    problem = Quadratic.of(centers, curvature=curvature)
    server, held = random.normal(size=size), np.zeros(n, np.int32)
    state = Versioned(jnp.asarray(server), jnp.zeros((ticks + 1, size)).at[0].set(server))
    errors, moves = [], []
    for t in range(ticks):
        clients = random.permutation(n)[:s].astype(np.int32)
        steps = random.integers(0, most_steps + 1, s, dtype=np.int32)
        weight = np.exp(random.normal(size=s))
        row, nowhere = held[clients], np.zeros(s, np.int32)
        event = Event(np.int32(t), clients, steps, row, weight, nowhere, row, np.int32(t + 1))
        before = (np.asarray(state.server) + np.asarray(state.versions)[held].sum(0)) / (n + 1)
        progress = np.zeros(size)
        for client, num, scale in zip(clients, steps, weight, strict=True):
            local = np.asarray(state.versions)[held[client]].copy()
            for _ in range(num):
                gradient = curvature[client] * (local - centers[client])
                progress, local = progress + scale * gradient, local - lr * gradient
        state = server_step(Plan(rows=ticks + 1), problem, hyper, state, event)
        held[clients] = t + 1
        after = (np.asarray(state.server) + np.asarray(state.versions)[held].sum(0)) / (n + 1)
        moves.append(np.linalg.norm(after - before))
        errors.append(np.linalg.norm(after - before + lr / (n + 1) * progress))
    return float(np.max(errors) / np.max(moves))


def measure_identity(sizes: Sizes) -> dict[str, Any]:
    """Measure the identity's error on random quadratics, for claim 1."""
    shapes = [(5, 2, 3, 4), (8, 8, 5, 3), (30, 10, 20, 10)]
    random = np.random.default_rng(1)
    with jax.enable_x64(True):
        errors = [identity_error(random, *shape) for shape in shapes for _ in range(sizes.problems)]
    return {"relative_error": np.max(errors), "problems": len(errors)}


# Claim 2 -----------------------------------------------------------------------------------------


def measure_reweighting(sizes: Sizes, *, ticks: int = 400, warm: int = 60) -> dict[str, Any]:
    """Measure the reweighted progress for claim 2, with the clock's step counts and alpha.

    There are n = 100 clients, s = 20 contacted and K = 20 local steps. Gradients are independent
    and skewed, with given mean and variance. The first `warm` server steps are left out.
    """
    random, mean, deviation = np.random.default_rng(2), 1.5, 2.0
    law = theory.step_law(
        [1 / 2, 1 / 16], contact_probability=0.2, round_time=7, max_steps=20, law="runtime_geom"
    )
    measured, far = {}, []
    for reweighting in REWEIGHTINGS:
        hyper = favano.paper(reweight=reweighting)
        timeline = draw(favano.system, [hyper], sizes.seeds, ticks)
        clients, steps, weight = (
            leaf[0, :, warm:] for leaf in (timeline.clients, timeline.steps, timeline.weight)
        )
        noise = deviation * (random.gamma(np.maximum(steps, 1)) - steps) * (steps > 0)
        reweighted = weight * (steps * mean + noise)
        found = [
            harness.estimate(harness.by_speed(x, clients, harness.are_fast(hyper, sizes.seeds)))
            for x in (reweighted, (reweighted - mean) ** 2)
        ]
        stated = formulas.reweighted_variance(
            theory.step_moments(law), mean=mean, variance=deviation**2, reweighting=reweighting
        )
        far += [
            each.deviation(expected) for each, expected in zip(found, (mean, stated), strict=True)
        ]
        measured[reweighting] = {
            "mean": found[0].mean,
            "variance": found[1].mean,
            "stated_mean": mean,
            "stated_variance": stated,
        }
    draws = sizes.seeds * (ticks - warm) * 20
    return {"largest_deviation": np.max(far), "contacts": draws, **measured}


# Claim 3 -----------------------------------------------------------------------------------------


def potential(server: np.ndarray, bases: np.ndarray) -> np.ndarray:
    """Sum the squared distances of the server's and the clients' models to their mean."""
    everyone = np.concatenate([server[..., None, :], bases], axis=-2)
    return np.sum((everyone - everyone.mean(-2, keepdims=True)) ** 2, axis=(-2, -1))


@jax.jit
def after_contacts(server: Array, bases: Array, progress: Array, cohorts: Array) -> Array:
    """Compute the server's next model for every instance and cohort: `[I, M, P]`.

    One step of rate 1 on ||w - (base - progress)||^2 / 2 makes the progress that is wanted. Bases
    and progress are `[I, N, P]`, and cohorts `i32[M, N]`, padded with `EMPTY`.
    """
    n = bases.shape[1]
    hyper = favano.paper(num_clients=n, num_selected=n, local_steps=1, lr=1.0, batch_size=1)

    def one(server: Array, bases: Array, progress: Array, cohort: Array) -> Array:
        row = jnp.maximum(cohort, 0)
        steps, nowhere = (cohort != EMPTY).astype("int32"), jnp.zeros_like(row)
        event = Event(jnp.int32(0), cohort, steps, row, jnp.ones(n), nowhere, row, jnp.int32(n))
        state = Versioned(server, jnp.concatenate([bases, server[None]]))
        problem = Quadratic.of(bases - progress)
        return server_step(Plan(rows=n + 1), problem, hyper, state, event).server

    over_cohorts = jax.vmap(one, (None, None, None, 0))
    return jax.vmap(over_cohorts, (0, 0, 0, None))(server, bases, progress, cohorts)


@styled()
def measure_contraction(sizes: Sizes) -> tuple[dict[str, Any], Figure]:
    """Compute exact expectations over all cohorts of 2 to 6 clients, for claim 3."""
    random = np.random.default_rng(3)
    errors, ratios = [], []
    for n in range(2, 7):
        shrunk: list[np.ndarray] = []
        masks = np.array([mask for mask in itertools.product([False, True], repeat=n) if any(mask)])
        cohorts = np.where(masks, np.arange(n), EMPTY).astype(np.int32)
        server = random.normal(size=(sizes.instances, 2))
        bases = random.normal(size=(sizes.instances, n, 2))
        scale = 10 ** random.uniform(-2, 2, (sizes.instances, 1, 1))
        # Progress away from the mean does the most harm.
        is_outwards = (np.arange(sizes.instances) % 2)[:, None, None]
        outwards = is_outwards * (bases.mean(1, keepdims=True) - bases)
        progress = scale * (outwards + 0.3 * random.normal(size=bases.shape))
        before = potential(server, bases)
        for moved in (np.zeros_like(bases), progress):
            with jax.enable_x64(True):
                servers = np.asarray(after_contacts(server, bases, moved, cohorts))
            after = potential(
                servers, np.where(masks[:, :, None], servers[:, :, None], bases[:, None])
            )
            for s in range(1, n + 1):
                expected = after[:, masks.sum(1) == s].mean(1)
                if not moved.any():
                    exact = [
                        formulas.expected_potential(*each, num_contacted=s)
                        for each in zip(server, bases, strict=True)
                    ]
                    errors.append(np.max(np.abs(expected - exact) / before))
                    shrunk.append(expected / before)
                grown = 3 * s**2 / n * np.sum(moved**2, axis=(1, 2))
                ratios += [
                    np.max(expected / ((1 - rate(n, s)) * before + grown))
                    for rate in (formulas.kappa, theory.kappa_sharp)
                ]
    measured = {
        "error_of_formula": np.max(errors),
        "largest_share_of_bound": np.max(ratios),
        "instances": 5 * sizes.instances,
    }
    figure = Figure(figsize=(6.4, 4.2))
    axes = figure.subplots()
    sizes_of_cohort = np.arange(1, n + 1)
    axes.boxplot(1 - np.array(shrunk).T, positions=sizes_of_cohort, widths=0.3, whis=(0, 100))
    for i, (rate, words) in enumerate(
        (
            (formulas.kappa_star, "exact, server at the mean"),
            (theory.kappa_sharp, "bound κ'"),
            (formulas.kappa, "bound κ"),
        )
    ):
        rates = [rate(n, int(s)) for s in sizes_of_cohort]
        axes.plot(sizes_of_cohort, rates, **look(i, "all"), label=words)
    axes.set(
        xlabel="clients contacted, of 6",
        ylabel="share of the potential lost in a server step",
        title="Random models without progress; boxes: quartiles, whiskers: all",
    )
    axes.legend()
    return measured, figure


JUDGES: Judges = CLAIMS.declared(1, 2, 3)


def run(arguments: Arguments) -> Outcome:
    """Measure and judge the claims."""
    sizes = STUDY.choose(arguments, least_seeds=2)
    contraction, figure = measure_contraction(sizes)
    measured = {1: measure_identity(sizes), 2: measure_reweighting(sizes), 3: contraction}
    verdicts = harness.judge_all(JUDGES, measured)
    return Outcome({}, {"contraction.png": figure}, verdicts, sizes.config())
