"""VR-FedEM against VR-DIANA: the best step size as the number m of a client's examples grows.

Judges claim 31. Both look for the root of the same h(S), the mean over clients and their m examples
of kappa_ij (y_ij - S). This is FedEM's mean field of a noisy mean, and minus the gradient that
VR-DIANA follows. Each runs as its theory says: VR-FedEM with k_in = (1 + omega) sqrt(m / 2) and
batches of k_in / (1 + omega)^2, VR-DIANA with one example, and a pass with probability 1 / m. The
messages of both are block-2-quantized with omega = 1.

There are two fields. In a model of the noisy mean all slopes kappa are above 0. Theorem 2 and
VR-DIANA's theory without convexity allow both signs: slopes of standard deviation 1 around a small
mean. There examples of one sign drive models apart until the next pass, after about m steps.
"""

from collections.abc import Mapping
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

import fedjax_sim
from experiments import harness
from experiments.fedem import setup
from experiments.fedem.claims import CLAIMS, SMOKE, Found, verdict
from experiments.fedem.formulas import variance_reduction
from experiments.harness import Arguments, Interval, Judges, Outcome, Sizes, Study, Verdict
from fedjax_sim.core.types import Array
from fedjax_sim.problems import latent, log_density
from fedjax_sim.problems.latent.noisy_mean import Seen

NUM, DIM, START, TARGET, OMEGA = 4, 4, 3.0, 1e-3, 1.0
FIELDS = ("a noisy mean", "both signs")
METHODS = {"VR-FedEM": ("vr_fedem", "gamma"), "VR-DIANA": ("vr_diana", "lr")}
"""The system of each method, and its step size."""
STUDY = Study(
    full=Sizes(
        seeds=20,
        slow_seeds=8,
        examples=(25, 100, 400),
        rates=tuple(2 ** (i / 2) for i in range(-10, 2)),
        ticks={"VR-FedEM": (400, 1000), "VR-DIANA": (1000, 4000)},
    ),
    smoke=Sizes(
        seeds=2,
        slow_seeds=2,
        examples=(4, 9),
        rates=(0.1, 0.2),
        ticks={"VR-FedEM": (20, 20), "VR-DIANA": (30, 30)},
    ),
)


@struct.dataclass
class Slopes(latent.NoisyMean):
    """The field of a noisy mean with slopes kappa of either sign, which is no model's."""

    def with_data(self, examples: Seen, weight: Array) -> Self:
        """Take examples as they are."""
        return self


def log_likelihood(params: Array, example: Seen) -> Array:
    """Minus VR-DIANA's loss of one example, whose gradient is kappa (y - S)."""
    return -example.kappa / 2 * jnp.sum(jnp.square(example.y - params))


def examples_of(field: str, num: int) -> Seen:
    """Draw the examples of all clients, num each: y `f64[N, m, q]` and kappa `f64[N, m]`."""
    random = np.random.default_rng(7)
    y = setup.clients_apart(NUM, num, DIM, spread=2.0, seed=7)
    if field == FIELDS[0]:
        return Seen(y, random.uniform(0.1, 1, (NUM, num)))
    kappa = random.uniform(-np.sqrt(3), np.sqrt(3), (NUM, num))
    return Seen(y, kappa - kappa.mean(axis=1, keepdims=True) + 0.015)


def ticks_to_target(method: str, field: str, num: int, sizes: Sizes) -> np.ndarray:
    """Count server steps until ||h||^2 is `TARGET` of its start: `f64[rates, seeds]`, or inf."""
    examples, inner = (
        examples_of(field, num),
        round(variance_reduction.best_inner_steps(num, OMEGA)),
    )
    flat = Seen(examples.y.reshape(-1, DIM), examples.kappa.ravel())
    name, rate = METHODS[method]
    system = fedjax_sim.SYSTEMS[name]
    ticks = sizes.ticks[method][FIELDS.index(field)]
    if method == "VR-DIANA" and field == FIELDS[1]:
        ticks += ticks * num // 133  # To 16,000 for 400 examples.
    seeds = sizes.seeds if method == "VR-FedEM" else sizes.slow_seeds
    common = {"num_clients": NUM, "compression": setup.BLOCKS, "memory_start": "mean_field"}
    with jax.enable_x64(True):
        data, start = Seen(*map(jnp.asarray, flat)), jnp.full(DIM, START)
        if method == "VR-FedEM":
            problem: Any = latent.make_estimation(Slopes(), data, setup.even(NUM, num), start=start)
            batch = variance_reduction.batch_size(inner, OMEGA)
            hyper = system.paper(**common, batch_size=batch, inner_steps=float(inner))
        else:
            problem = log_density.from_logdensity(
                log_likelihood, lambda _: jnp.zeros(()), data, setup.even(NUM, num), start=start
            )
            hyper = system.paper(**common)
        run = fedjax_sim.sweep(
            system,
            problem,
            hyper,
            settings={rate: sizes.rates},
            seeds=seeds,
            budget=fedjax_sim.Ticks(ticks),
            num_evals=min(500, ticks),
            keep=fedjax_sim.Keep(models=True),
        )
    pull = (examples.kappa[..., None] * examples.y).mean(axis=(0, 1))
    models = np.asarray(run.samples, float).reshape(len(sizes.rates), seeds, -1, DIM)
    square = np.sum((pull - examples.kappa.mean() * models) ** 2, axis=-1)
    hit = square <= TARGET * square[..., :1]
    done = run.curves.ticks.transpose(rate, "seed", "eval").values
    first = np.take_along_axis(done, hit.argmax(axis=-1)[..., None], axis=-1)[..., 0]
    return np.where(hit.any(axis=-1), first, np.inf)


def judge(found: Found) -> Verdict:
    """Judge claim 31 by the power of m that the best step size follows, by method and field."""
    marks, parts, told = CLAIMS[31].criterion, {}, []
    for method, fields in found["power"].items():
        for field in fields:
            power, best = Interval.read(fields[field]), found["best"][method][field]
            shown = ", ".join(f"{value:.2g}" for value in best.values())
            told.append(f"{method}, {field}: {shown}, like m^({power.mean:.2f} ± {power.half:.2f})")
            if method == "VR-FedEM":
                parts[f"{method}, {field}"] = power.above(-marks.flat)
            elif field == FIELDS[1]:
                falling = Interval(-power.mean, power.half)
                known = [part for each in fields.values() for part in Interval.read(each)]
                parts[f"{method} falls"] = harness.unless_unknown(
                    falling.above(marks.falling), known
                )
    ruling = harness.rule(parts, deciding=harness.begins("VR-FedEM"))
    sizes = ", ".join(found["best"]["VR-FedEM"][FIELDS[0]])
    seeds = " and ".join(f"{num}" for num in found["seeds"].values())
    why = f"best step sizes at m = {sizes}: {'; '.join(told)} (95 %, {seeds} seeds)"
    return verdict(31, found, ruling, why, seeds=found["seeds"]["VR-FedEM"])


JUDGES: Judges = {31: judge}


def run(arguments: Arguments) -> Outcome:
    """Run both methods on both fields at all step sizes, and judge how the best one moves."""
    sizes = STUDY.choose(arguments)
    found: dict[str, Any] = {"power": {}, "best": {}, "ticks": {}}
    found["seeds"] = dict(zip(METHODS, (sizes.seeds, sizes.slow_seeds), strict=True))
    for method in sizes.ticks:
        for name in ("power", "best", "ticks"):
            found[name][method] = {}
        for field in FIELDS:
            counts = {m: ticks_to_target(method, field, m, sizes) for m in sizes.examples}
            best = np.log(sizes.rates)[[each.argmin(axis=0) for each in counts.values()]]
            known = np.isfinite([each.min(axis=0) for each in counts.values()])
            best = np.where(known, best, np.nan)  # No step size reached the target.
            centered = np.log(sizes.examples) - np.log(sizes.examples).mean()
            power = centered @ best / (centered @ centered)  # Least squares.
            found["power"][method][field] = harness.interval(power)._asdict()
            found["best"][method][field] = _by(sizes.examples, np.exp(best.mean(axis=1)))
            fewest = [each.min(axis=0).mean() for each in counts.values()]
            found["ticks"][method][field] = _by(sizes.examples, fewest)
    verdicts = harness.judge_all(JUDGES, {31: found}, SMOKE if arguments.smoke else "")
    return Outcome({}, {}, verdicts, sizes.config())


def _by(examples: Any, values: Any) -> Mapping[str, float]:
    """Name values by the number of examples."""
    return {f"{m}": float(value) for m, value in zip(examples, values, strict=True)}
