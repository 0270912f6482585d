"""Hierarchical FL's lemma and theorems, measured on logistic regression (claims 4 to 8, 30 to 33).

See arXiv 2302.04851. Inputs have length at most 1 and batches one example; groups of 3 and 5
clients take 1 and 1/2 units for an iteration. Delays are fixed, and expectations are means over
seeds. G^2 and sigma^2 are the largest second moment and variance met on the way.

Dimension letters: `N` clients, `n` examples of a client, `P` parameters, `U` rounds of `J` ticks,
`M` groups.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from flax import struct
from matplotlib.figure import Figure

import fedjax_sim
from experiments import harness
from experiments.harness import Arguments, Judges, Outcome, Sizes, Study, Verdict
from experiments.hierarchical.claims import CLAIMS, verdict
from experiments.hierarchical.formulas import bounds as formulas
from experiments.hierarchical.setup import fixed_clock
from fedjax_sim.core.types import Algorithm, Array, Key, Plan
from fedjax_sim.results.plots import look, styled
from fedjax_sim.server import RoundState
from fedjax_sim.systems import fedavg, hierarchical
from fedjax_sim.theory.hierarchical import Delays
from fedjax_sim.timelines import list_members

SIZES, SHIFTS = (3, 5), (1.0, 0.5)
DELAYS = Delays(np.array(SHIFTS), np.zeros(2), 4.0)
ROUNDS = (32, 128, 512, 2048, 8192)
"""Numbers of rounds U of Corollary 1, each with its own learning rate."""
STUDY = Study(full=Sizes(seeds=400), smoke=Sizes(seeds=60))
LAYOUT = fedjax_sim.Layout(lanes_at_once=True)


@struct.dataclass
class Logistic:
    """Logistic regression.

    `evaluate` returns loss, squared gradient, and clients' largest second moment and variance of a
    gradient.
    """

    inputs: Array  # f[N, n, P]
    labels: Array  # f[N, n]  -1 or 1

    @classmethod
    def make(cls, seed: int) -> "Logistic":
        """Draw inputs, and labels of a noisy linear rule, that differ between clients."""
        random, num = np.random.default_rng(seed), sum(SIZES)
        inputs = random.normal(size=(num, 12, 4)) + random.normal(size=(num, 1, 4))
        inputs /= np.linalg.norm(inputs, axis=-1, keepdims=True) * random.uniform(
            1.0, 1.5, (num, 12, 1)
        )
        labels = np.sign(inputs @ random.normal(size=4) + 0.3 * random.normal(size=(num, 12)))
        return cls(jnp.asarray(inputs, "float32"), jnp.asarray(labels, "float32"))

    @property
    def counts(self) -> Array:
        return jnp.full(self.labels.shape[0], self.labels.shape[1])

    @property
    def smoothness(self) -> float:
        """L, the largest of any client."""
        return (
            max(
                float(np.linalg.eigvalsh(a.T @ a / len(a))[-1])
                for a in np.asarray(self.inputs, float)
            )
            / 4
        )

    def init(self, key: Key) -> Array:
        return jnp.array([2.0, -2.0, 1.0, 0.0])

    def loss(self, params: Array, client: Array, examples: Array, key: Key) -> Array:
        return jnp.mean(
            jax.nn.softplus(
                -self.labels[client, examples] * (self.inputs[client, examples] @ params)
            )
        )

    def evaluate(self, params: Array) -> Mapping[str, Array]:
        return self.measure(params, jnp.arange(self.labels.shape[0]))

    def measure(self, params: Array, clients: Array) -> dict[str, Array]:
        """Measure what `evaluate` does over some of the clients."""
        inputs, labels = self.inputs[clients], self.labels[clients]
        margin = labels * (inputs @ params)
        each = -(labels * jax.nn.sigmoid(-margin))[..., None] * inputs
        second = jnp.sum(jnp.square(each), axis=-1).mean(axis=1)
        of_clients = each.mean(axis=1)
        return {
            "loss": jax.nn.softplus(-margin).mean(),
            "gradient_square": jnp.sum(jnp.square(of_clients.mean(axis=0))),
            "second_moment": second.max(),
            "variance": (second - jnp.sum(jnp.square(of_clients), axis=-1)).max(),
        }


@struct.dataclass
class Opposed:
    """Constant gradients: v for the clients of the first group, -v for the others."""

    signs: Array  # f[N]
    gradient: Array  # f[P]

    @property
    def counts(self) -> Array:
        return jnp.ones(self.signs.shape[0], "int32")

    def init(self, key: Key) -> Array:
        return jnp.zeros_like(self.gradient)

    def loss(self, params: Array, client: Array, examples: Array, key: Key) -> Array:
        return self.signs[client] * (self.gradient @ params)

    def evaluate(self, params: Array) -> Mapping[str, Array]:
        return {"loss": self.signs.mean() * (self.gradient @ params)}


def watched(problem: Any, hyper: Any, plan: Plan) -> Algorithm:
    """Bind the algorithm with further metrics on the groups' models.

    They are the deviation from the global model, and loss, gradient and moments.
    """
    algorithm = hierarchical.algorithm(problem, hyper, plan)
    everyone = list_members(hyper)

    def metrics(state: RoundState) -> dict[str, Array]:
        found = {}
        for i, size in enumerate(everyone.size):
            model = state.clients[i]
            found[f"deviation_{i}"] = jnp.sum(jnp.square(state.server - model))
            if isinstance(problem, Logistic):
                measured = problem.measure(model, jnp.asarray(everyone.clients[i, :size]))
                found |= {f"{name}_{i}": value for name, value in measured.items()}
                begun = problem.measure(state.server, jnp.asarray(everyone.clients[i, :size]))
                found[f"gradient_square_begun_{i}"] = begun["gradient_square"]
        return found

    return algorithm._replace(metrics=metrics)


SYSTEM = hierarchical.system._replace(algorithm=watched)


def play(
    problem: Any,
    seeds: int,
    settings: Mapping[str, Sequence[float]],
    changes: Mapping[str, Any],
    num_ticks: int,
) -> xr.Dataset:
    """Sweep seeds on the fixed delays, evaluating at every tick."""
    common = {"num_clients": problem.counts.shape[0], "batch_size": 1, "group_sizes": SIZES}
    hyper = hierarchical.paper(**{**common, **fixed_clock(SHIFTS, (0.0, 0.0), 4.0, 0.0), **changes})
    options: dict[str, Any] = {
        "budget": fedjax_sim.Ticks(num_ticks),
        "num_evals": num_ticks,
        "layout": LAYOUT,
    }
    return fedjax_sim.sweep(
        SYSTEM, problem, hyper, seeds=seeds, settings=settings, **options
    ).curves


class Means(NamedTuple):
    """Means over seeds of a run that is evaluated at every iteration of the fast group."""

    iterations: np.ndarray  # i[U, M]
    deviation: np.ndarray  # f[U, M]  after each round
    global_square: np.ndarray  # f[U]  at each round's beginning
    descent: float  # of the global loss, over the run
    group_square: list[np.ndarray]  # per group, at the beginning of each of its iterations
    group_descent: list[float]
    constants: formulas.Constants


def means_of(data: xr.Dataset, problem: Logistic, iterations: Sequence[int], ticks: int) -> Means:
    """Average a run with the same iterations in every round over seeds."""

    def mean(name: str) -> np.ndarray:
        return data[name].transpose("seed", "eval").values.astype(float).mean(axis=0)

    names = [f"{name}{end}" for name in ("second_moment", "variance") for end in ("", "_0", "_1")]
    largest = {name: float(data[name].max()) for name in names}
    square, loss = mean("gradient_square"), mean("loss")
    rounds = (len(square) - 1) // ticks
    starts = np.arange(rounds) * ticks
    group_square, descents = [], []
    for i, t in enumerate(iterations):
        # At a round's end a group is evaluated where it stopped; it begins the next round from the
        # global model.
        begun, later = mean(f"gradient_square_begun_{i}"), mean(f"gradient_square_{i}")
        points = [begun[starts], *(later[starts + k * ticks // t] for k in range(1, t))]
        group_square.append(np.stack(points, axis=1).ravel())
        descents.append(float(mean(f"loss_{i}")[0] - mean(f"loss_{i}")[-1]))
    return Means(
        np.tile(np.asarray(iterations), (rounds, 1)),
        np.stack([mean(f"deviation_{i}")[starts + ticks] for i in range(2)], axis=1),
        square[starts],
        float(loss[0] - loss[-1]),
        group_square,
        descents,
        formulas.Constants(
            problem.smoothness,
            max(value for name, value in largest.items() if name.startswith("second")),
            max(value for name, value in largest.items() if name.startswith("variance")),
        ),
    )


# Verdicts ----------------------------------------------------------------------------------------


def measure_centralised(problem: Logistic) -> dict[str, float]:
    """Compare losses with those of FedAvg with one local step of every client, for claim 4."""
    common: dict[str, Any] = {"num_clients": 8, "batch_size": 1, "lr": 0.5}
    flat = fedavg.paper(
        **{**common, "num_selected": 8, "local_steps": 1, "sampling": "with_replacement"}
    )
    options: dict[str, Any] = {"budget": fedjax_sim.Ticks(50), "num_evals": 50}
    expected = fedjax_sim.simulate(fedavg.system, problem, flat, **options).curves.loss.values
    differences = []
    for sizes in ((8,), (3, 5), (1, 2, 5)):
        clock = fixed_clock([1.0] * len(sizes), [0.1] * len(sizes), 1.0, 0.1)
        hyper = hierarchical.paper(**{**common, **clock, "sync_time": 0.0, "group_sizes": sizes})
        found = fedjax_sim.simulate(
            hierarchical.system, problem, hyper, **options
        ).curves.loss.values
        differences.append(np.abs(found / expected - 1))
    return {"largest relative difference": float(np.max(differences))}


def measure_lemma(means: Means, lr: float) -> dict[str, float]:
    """Compare deviations with their bounds, along a run and with opposing gradients: claim 5."""
    weight = np.array(SIZES) / sum(SIZES)
    square = means.constants.gradient_square
    sharp = formulas.deviation_bound_sharp(
        means.iterations, lr=lr, gradient_square=square, group_weight=weight
    )
    loose = formulas.deviation_bound(
        means.iterations, lr=lr, gradient_square=square, group_size=SIZES
    )
    problem = Opposed(jnp.repeat(jnp.array([1.0, -1.0]), jnp.array(SIZES)), jnp.array([3.0, 4.0]))
    data = play(problem, 1, {}, {"sync_time": 3.0, "lr": 0.25}, 1)
    return {
        "over bound": float(np.max(means.deviation / loose)),
        "over sharp bound": float(np.max(means.deviation / sharp)),
        "sharp bound over (18)": float(np.max(sharp / loose)),
        "attained": float(data.deviation_0.values.ravel()[-1]) ** 0.5,
        "expected": 0.25 * 5 * (3 + 1 - 2 * float(weight[0])),
    }


def measure_global(means: Means, lr: float) -> dict[str, Any]:
    """Compute both sides of Theorem 2 along a run, for claim 6."""
    terms: dict[str, Any] = {
        "lr": lr,
        "constants": means.constants,
        "group_size": SIZES,
        "descent": means.descent,
    }
    whole, direct = (
        formulas.global_bound(means.iterations, **terms),
        formulas.global_bound_direct(means.iterations, **terms),
    )
    return {
        "left": float(means.global_square.mean()),
        "direct": direct.total,
        "paper": whole.total,
        "terms": whole._asdict(),
        "rounds": len(means.iterations),
    }


def measure_group(means: Means, alone: Means, lr: float) -> dict[str, dict[str, float]]:
    """Compute both sides of Theorem 1 on many rounds, and on one, for claim 7."""
    measured = {}
    for name, each in (("many rounds", means), ("one round", alone)):
        for i in range(2):
            terms: dict[str, Any] = {
                "lr": lr,
                "constants": each.constants,
                "group_size": SIZES,
                "group": i,
                "descent": each.group_descent[i],
            }
            measured[f"{name}, group {i + 1}"] = {
                "left": float(each.group_square[i].mean()),
                "bound": formulas.group_bound(each.iterations, **terms).total,
                "G^2": each.constants.gradient_square,
                "vacuous": bool(formulas.is_group_bound_vacuous(each.iterations, group=i)),
            }
    return measured


def judge_corollary(measured: Mapping[str, Any]) -> Verdict:
    """Judge claim 8 from numbers of `measure_corollary`."""
    scaled, limits, rounds = (measured[name] for name in ("scaled", "bounds", "rounds"))
    growth = [b / a for a, b in itertools.pairwise(scaled)]
    holds = (
        all(s <= limit for s, limit in zip(scaled, limits, strict=True))
        and all(later < earlier for earlier, later in itertools.pairwise(growth))
        and growth[-1] < CLAIMS[8].criterion.factor
    )
    told = ", ".join(
        f"{s:.3f} (bound {limit:.2f}) at U = {each}"
        for each, s, limit in zip(rounds, scaled, limits, strict=True)
    )
    why = (
        f"sqrt(U) x left side {told}; it grows by {', '.join(f'{g:.2f}' for g in growth)} as U "
        f"grows fourfold"
    )
    known = harness.unless_unknown(holds, measured)
    return verdict(8, measured, known, why, seeds=measured["seeds"])


def measure_remarks() -> dict[int, dict[str, float]]:
    """Compute the terms of Lemma 1's formula that claims 30 to 32, remarks on it, are about."""
    most = int(CLAIMS[31].criterion.most)
    t = np.arange(1, most + 1)

    def lemma(sizes: Sequence[int]) -> np.ndarray:
        return formulas.deviation_bound(t, lr=1.0, gradient_square=1.0, group_size=sizes)

    ratio, groups = lemma([8]) / (4.0 * t**2), {"one": [8], "two": [3, 5], "three": [1, 9, 90]}
    return {
        30: {"one group": formulas.imbalance([8]), "two equal groups": formulas.imbalance([8, 8])},
        31: {"largest": ratio.max(), **{f"at t = {k}": ratio[k - 1] for k in (1, 2, most)}},
        # (18) is alpha^2 times that at alpha = 1.
        32: {
            name: np.max(lemma(sizes) / (2 * (t**2 + len(sizes)))) for name, sizes in groups.items()
        },
    }


@styled()
def measure_corollary(
    problem: Logistic, seeds: int, rounds: Sequence[int]
) -> tuple[dict[str, Any], Figure]:
    """Measure the scaled left side of Corollary 1 and its bound, for claim 8.

    There is one run for each learning rate, of which the first U rounds count.
    """
    rates = [formulas.corollary_lr(each, smoothness=problem.smoothness) for each in rounds]
    data = play(problem, seeds, {"lr": rates}, {"sync_time": 3.0}, rounds[-1])
    figure = Figure(figsize=(6.4, 4))
    axes = figure.subplots()
    scaled, limits = [], []
    for each, lr in zip(rounds, rates, strict=True):
        rounds_run = data.sel(lr=lr).isel(eval=slice(0, each + 1))
        square = (
            rounds_run.gradient_square.transpose("seed", "eval").values.astype(float)[:, :-1].mean()
        )
        loss = rounds_run.loss.transpose("seed", "eval").values.astype(float).mean(axis=0)
        largest = [
            max(float(rounds_run[f"{name}{end}"].max()) for end in ("", "_0", "_1"))
            for name in ("second_moment", "variance")
        ]
        constants = formulas.Constants(problem.smoothness, *largest)
        options: dict[str, Any] = {
            "sync_time": 3.0,
            "delays": DELAYS,
            "constants": constants,
            "group_size": SIZES,
        }
        limits.append(
            formulas.corollary_bound(each, descent=float(loss[0] - loss[-1]), **options) * each**0.5
        )
        scaled.append(float(square) * each**0.5)
    axes.loglog(rounds, scaled, label="measured", **look(0, "all"))
    axes.loglog(rounds, limits, label="bound", **look(1, "all"))
    axes.set(
        xlabel="global rounds U",
        ylabel="√U × mean squared gradient",
        title=f"Corollary 1, mean of {seeds} seeds",
    )
    axes.set_xticks(rounds, [str(each) for each in rounds])
    axes.set_xticks([], minor=True)
    axes.legend()
    found = {"scaled": scaled, "bounds": limits, "rounds": list(rounds), "seeds": seeds}
    return found, figure


JUDGES: Judges = {**CLAIMS.declared(4, 5, 6, 7, 30, 31, 32, 33), 8: judge_corollary}


def run(arguments: Arguments) -> Outcome:
    """Measure and judge the claims."""
    sizes = STUDY.choose(arguments, least_seeds=2)
    seeds = sizes.seeds
    problem, lr = Logistic.make(2), 0.5
    data = play(problem, seeds, {}, {"sync_time": 6.0, "lr": lr, "ticks_per_round": 12}, 12 * 20)
    means = means_of(data, problem, (6, 12), 12)
    apart = play(problem, seeds, {}, {"sync_time": 30.0, "lr": lr, "ticks_per_round": 60}, 60)
    alone = means_of(apart, problem, (30, 60), 60)
    corollary, figure = measure_corollary(problem, max(2, seeds // 4), ROUNDS)
    groups = measure_group(means, alone, lr)
    measured = {
        4: measure_centralised(problem),
        5: measure_lemma(means, lr),
        6: measure_global(means, lr),
        7: groups,
        8: corollary,
        33: {name: each for name, each in groups.items() if name.startswith("one round")},
        **measure_remarks(),
    }
    verdicts = harness.judge_all(JUDGES, measured)
    return Outcome({}, {"corollary.png": figure}, verdicts, {"seeds": seeds, "lr": lr})
