"""FA-LD on a Bayesian logistic regression: what K and rho do to a posterior that is not normal.

The data are scikit-learn's breast cancer: 426 patients, 30 standardised features and an intercept,
with prior N(0, I / 10), under which several thousand steps are many. Five clients have 54 to 117
patients, 13 to 98 % of them of one class, so that weights and Hessians differ. Everyone is
averaged, gradients are exact, the step size is 1e-3 for all K, and chains start at the mode. The
reference is blackjax's NUTS (of the extra `test`). All K share FA-LD's noise, so that the change
against K = 1 has a far smaller error than the distance from the reference.

The normal approximation is the exact law of quadratic clients with the same mean slopes and
curvatures. It has the error of the steps, but not what private noise does to means, as normal laws
have no skewness. Claim 8 is judged on this posterior: what shared noise does to the largest biases
of means and of standard deviations.

Dimension letters: `P` coefficients, `M` draws.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from arviz_stats.base import array_stats
from matplotlib.figure import Figure
from sklearn.linear_model import LogisticRegression

import fedjax_sim
from experiments import harness
from experiments.fald import gaussian
from experiments.fald.claims import CLAIMS, Found, verdict
from experiments.fald.formulas import exact_laws as oracle
from experiments.harness import Arguments, Estimate, Judges, Outcome, Sizes, Study, Verdict, rule
from fedjax_sim import datasets
from fedjax_sim.core.settings import ConfigError
from fedjax_sim.partition import dirichlet
from fedjax_sim.problems import Logistic, make_logistic
from fedjax_sim.results import diagnostics, plots
from fedjax_sim.systems import langevin

STEP_SIZE, PRIOR_PRECISION, NUM_CLIENTS = 1e-3, 10.0, 5
RHOS = (0.0, 1.0)
EVERY = 100
"""Local steps between two samples that are kept, a multiple of every K."""
NOTHING = 1e-6
"""What rounding leaves of the normal approximation where it has no bias."""
LAYOUT = fedjax_sim.Layout(slots_at_once=NUM_CLIENTS, lanes_at_once=True)


STUDY = Study(
    full=Sizes(
        seeds=150,
        burn_in=10,
        samples=70,
        draws=20_000,
        adaptation=500,
        local_steps=(1, 2, 5, 10, 20, 50),
    ),
    smoke=Sizes(seeds=8, burn_in=2, samples=4, draws=100, adaptation=60, local_steps=(1, 50)),
)
"""Seeds are chains, at least four. The burn-in is a number of samples, the initial model included;
`draws` and steps of `adaptation` are those of each of the four chains of NUTS."""


class Moments(NamedTuple):
    """Means and standard deviations of a sampler's draws, with their errors: leaves `f64[P]`."""

    mean: Estimate
    log_deviation: Estimate  # logarithm of the standard deviation
    rhat: np.ndarray
    ess: np.ndarray


class Bias(NamedTuple):
    """Differences from a reference: leaves `f64[P]`."""

    mean: Estimate  # in standard deviations of the reference
    deviation: Estimate  # logarithm of the ratio of standard deviations


def split_problem() -> Logistic:
    """Split the regression among its clients, and start it at its mode."""
    data = datasets.load("breast_cancer")
    part = dirichlet(data.train_labels, num_clients=NUM_CLIENTS, alpha=0.5, seed=3, min_examples=30)
    return at_mode(make_logistic(data, part, prior_precision=PRIOR_PRECISION))


def at_mode(problem: Logistic) -> Logistic:
    """Start a problem from the posterior's mode."""
    assert problem.prior_precision is not None and problem.start is not None  # It has a prior.
    ridge = LogisticRegression(
        C=1 / float(problem.prior_precision), fit_intercept=False, tol=1e-8, max_iter=10_000
    )
    fitted = ridge.fit(np.asarray(problem.data[0], float), np.asarray(problem.data[1], int))
    return replace(problem, start=jnp.asarray(fitted.coef_[0], problem.start.dtype))


def nuts(
    problem: Logistic, draws: int, *, adaptation: int = 500, chains: int = 4, seed: int = 0
) -> np.ndarray:
    """Draw from the posterior by blackjax's NUTS, after steps of adaptation: `f[chains, draws, P]`.

    Raises:
      ConfigError: If blackjax is not installed.
    """
    try:
        import blackjax  # Only here: the package does without it.
    except ImportError:
        raise ConfigError("blackjax", None, "installed, as the reference is drawn by it") from None

    def density(w: Any) -> Any:
        return -problem.energy(w)

    def chain(key: Any) -> Any:
        warm, drawn = jax.random.split(key)
        (state, parameters), _ = blackjax.window_adaptation(blackjax.nuts, density).run(
            warm, problem.start, adaptation
        )
        kernel = blackjax.nuts(density, **parameters)

        def step(state: Any, key: Any) -> tuple[Any, Any]:
            state, _ = kernel.step(key, state)
            return state, state.position

        return jax.lax.scan(step, state, jax.random.split(drawn, draws))[1]

    return np.asarray(jax.jit(jax.vmap(chain))(jax.random.split(jax.random.key(seed), chains)))


def effective_size(draws: np.ndarray) -> np.ndarray:
    """Effective sample size for the mean, of all chains together (Vehtari et al. 2021): `f64[P]`.

    It is nan for a parameter that never changes.
    """
    return np.asarray(array_stats.ess(draws, chain_axis=0, draw_axis=1, method="mean"))


def moments(draws: np.ndarray, *, excess: float = 0.0) -> Moments:
    """Estimate means and standard deviations, with errors from effective numbers of samples.

    For standard deviations these are the effective numbers of the squares. `draws` are
    `f[chains, draws, P]`, and `excess` is a known error of all variances, which is subtracted.
    """
    values = np.asarray(draws, float)
    mean = values.mean(axis=(0, 1))
    squares = np.square(values - mean)
    variance = squares.mean(axis=(0, 1))
    ess = effective_size(values)
    of_squares = squares.std(axis=(0, 1)) / np.sqrt(effective_size(squares))
    log_deviation = Estimate(np.log(variance - excess) / 2, of_squares / (variance - excess) / 2)
    rhat = np.asarray(array_stats.rhat(values, chain_axis=0, draw_axis=1))
    return Moments(Estimate(mean, np.sqrt(variance / ess)), log_deviation, rhat, ess)


def bias(found: Moments, reference: Moments) -> Bias:
    """Compare independent draws."""
    scale = np.exp(reference.log_deviation.mean)
    (mean, error), (other, its_error) = found.mean, reference.mean
    of_mean = Estimate((mean - other) / scale, np.hypot(error, its_error) / scale)
    (mean, error), (other, its_error) = found.log_deviation, reference.log_deviation
    return Bias(of_mean, Estimate(mean - other, np.hypot(error, its_error)))


def paired_bias(draws: np.ndarray, reference: np.ndarray) -> Bias:
    """Compare chains with others of the same noise, `f[chains, draws, P]` both.

    Errors come from the differences of single chains.
    """
    pair = [np.asarray(each, float) for each in (draws, reference)]
    centred = [each - each.mean(axis=(0, 1)) for each in pair]
    variances = [np.square(each).mean(axis=(0, 1)) for each in centred]
    scale = np.sqrt(variances[1])
    mean = harness.estimate((pair[0].mean(axis=1) - pair[1].mean(axis=1)) / scale)
    squares = [
        np.square(each).mean(axis=1) / variance / 2
        for each, variance in zip(centred, variances, strict=True)
    ]
    ratio = np.log(variances[0] / variances[1]) / 2
    return Bias(mean, Estimate(ratio, harness.estimate(squares[0] - squares[1]).error))


def quadratics(problem: Logistic, draws: np.ndarray) -> oracle.GaussianTarget:
    """Make the normal approximation: quadratic energies with mean slopes and curvatures.

    These are averages over draws of the posterior, `f[M, P]`.
    """

    key = jax.random.key(0)  # Nothing is drawn.

    def averages(client: Any) -> Any:
        return tuple(
            jax.vmap(of(problem.client_loss), (0, None, None))(draws, client, key).mean(axis=0)
            for of in (jax.grad, jax.hessian)
        )

    counts = np.asarray(problem.counts, float)
    slopes, hessians = (
        counts.sum() * np.asarray(leaf, float)
        for leaf in jax.jit(jax.vmap(averages))(jnp.arange(len(counts)))
    )
    centers = draws.mean(axis=0) - np.linalg.solve(hessians, slopes[..., None])[..., 0]
    return oracle.GaussianTarget(hessians, centers, counts / counts.sum())


def thin(draws: np.ndarray, num: int = 400) -> np.ndarray:
    """Take about `num` of all chains' draws, evenly: `f[M, P]`."""
    pooled = draws.reshape(-1, draws.shape[-1])
    return pooled[:: max(1, len(pooled) // num)]


def normal_bias(
    clients: oracle.GaussianTarget, *, step_size: float, local_steps: int, rho: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the bias of the exact laws of quadratic clients, as in `Bias`: `f64[P]` each."""
    how: dict[str, Any] = {"step_size": step_size, "local_steps": local_steps, "rho": rho}
    law, goal = gaussian.at_rest(clients, **how), oracle.target_law(clients)
    variance = np.diagonal(goal.covariance)
    wider = np.log(np.diagonal(law.covariance) / variance) / 2
    return (law.mean - goal.mean) / np.sqrt(variance), wider


def chains(
    problem: Logistic, sizes: Sizes, local_steps: int, options: dict[str, Any]
) -> tuple[np.ndarray, xr.Dataset]:
    """Run FA-LD for all rho.

    Returns:
      Models every hundred local steps, `f[rhos, chains, samples, P]`, and the last values of the
      sweep's curves.
    """
    num_samples = sizes.burn_in + sizes.samples
    run = fedjax_sim.sweep(
        langevin.system,
        problem,
        langevin.paper(
            num_clients=NUM_CLIENTS, local_steps=local_steps, step_size=STEP_SIZE, gradient="exact"
        ),
        seeds=sizes.seeds,
        settings={"rho": RHOS},
        budget=fedjax_sim.Ticks((num_samples - 1) * EVERY // local_steps),
        num_evals=num_samples - 1,
        keep=fedjax_sim.Keep(models=True),
        layout=LAYOUT,
        **options,
    )
    models = diagnostics.thin_samples(run.samples, burn_in=sizes.burn_in)
    return models.reshape(len(RHOS), sizes.seeds, sizes.samples, -1), run.curves.isel(eval=[-1])


class Compared(NamedTuple):
    """The comparisons for one rho and K."""

    rho: float
    local_steps: int
    moments: Moments
    bias: Bias  # against the reference
    paired: Bias  # against K = 1 with the same noise
    normal: tuple[np.ndarray, np.ndarray]


def compare(
    problem: Logistic, sizes: Sizes, exact: np.ndarray, arguments: Arguments
) -> tuple[list[Compared], dict[str, xr.Dataset]]:
    """Run all K, and compare them with exact draws."""
    reference, clients = moments(exact), quadratics(problem, thin(exact))
    compared: list[Compared] = []
    curves: dict[str, xr.Dataset] = {}
    single: list[np.ndarray] = []  # with K = 1, the first
    for local_steps in sizes.local_steps:
        name = f"K = {local_steps}"
        models, curves[name] = chains(problem, sizes, local_steps, arguments.kept(name))
        single = single or [*models]
        for rho, draws, one in zip(RHOS, models, single, strict=True):
            found = moments(draws)
            both = bias(found, reference), paired_bias(draws, one)
            normal = normal_bias(clients, step_size=STEP_SIZE, local_steps=local_steps, rho=rho)
            compared.append(Compared(rho, local_steps, found, *both, normal))
    return compared, curves


def measure(compared: list[Compared], sizes: Sizes) -> Found:
    """Compare the largest biases against K = 1 at rho = 0 and 1."""
    by_rho = [[each.paired for each in compared if each.rho == rho] for rho in RHOS]
    later = [i for i, local_steps in enumerate(sizes.local_steps) if local_steps > 1]
    measured: dict[str, Any] = {
        "local steps": [sizes.local_steps[i] for i in later],
        "chains": sizes.seeds,
    }
    for p, name in enumerate(("means", "standard deviations")):
        pairs = [[largest(found[i][p]) for found in by_rho] for i in later]
        far = [(one[0] - none[0]) / np.hypot(one[1], none[1]) for none, one in pairs]
        measured[name] = {"biases at rho = 0 and 1": pairs, "standard errors apart": far}
    return measured


def judge(found: Found) -> Verdict:
    """Judge claim 8: whether the largest biases against K = 1 are smaller at rho = 1 than at 0."""
    marks, shown = CLAIMS[8].criterion, []
    parts: dict[str, bool | None] = {}
    for name in ("means", "standard deviations"):
        pairs, far = found[name]["biases at rho = 0 and 1"], found[name]["standard errors apart"]
        above, below = np.asarray(far) > marks.apart, np.asarray(far) < -marks.apart
        known = True if below.all() else False if above.any() else None
        parts[f"less error in {name} of a logistic posterior"] = known
        biases = ", ".join(f"{none[0]:.3f} and {one[0]:.3f}" for none, one in pairs)
        shown.append(f"{name} {biases} ({', '.join(f'{x:+.1f}' for x in far)} standard errors)")
    steps = ", ".join(map(str, found["local steps"]))
    why = f"largest biases at rho = 0 and 1 for K = {steps}: {'; '.join(shown)}"
    return verdict(8, found, rule(parts), why)


@plots.styled()
def figure_of(compared: list[Compared]) -> Figure:
    """Draw the largest biases against K."""
    figure = Figure(figsize=(13, 4.2))
    titles = ("mean, in standard deviations", "logarithm of standard deviation")
    panels = figure.subplots(1, 2)
    for p, (axes, title) in enumerate(zip(panels, titles, strict=True)):
        for c, rho in enumerate(RHOS):
            of_rho = [each for each in compared if each.rho == rho]
            steps = np.array([each.local_steps for each in of_rho])
            kinds = {"bias": "against NUTS", "paired": "against K = 1, same noise"}
            for j, (kind, label) in enumerate(kinds.items()):
                found = [
                    largest(getattr(each, kind)[p])
                    for each in of_rho
                    if kind == "bias" or each.local_steps > 1
                ]
                at = steps[-len(found) :] * 1.03 ** (2 * c - 1)
                style = plots.look(2 * c + j, "only", label=f"{label}, rho = {rho:g}")
                axes.errorbar(at, *np.transpose(found), **style)
            expected = np.array([np.abs(each.normal[p]).max() for each in of_rho])
            is_any = expected > NOTHING
            normal = f"normal approximation, rho = {rho:g}"
            axes.plot(steps[is_any], expected[is_any], label=normal, **plots.look(2 * c, "none"))
        axes.set(xlabel="local steps K", xscale="log", yscale="log", title=title)
        axes.set_ylabel("largest bias (bars: standard error)")
    plots.name_beside(figure, panels[0])
    return figure


def largest(found: Estimate) -> tuple[float, float]:
    """Return the largest size over all coefficients, and its error."""
    at = np.abs(found.mean).argmax()
    return float(np.abs(found.mean[at])), float(found.error[at])


def rows(compared: list[Compared]) -> list[list[str]]:
    """Return the rows of the table, by rho and K."""
    lines = []
    for each in sorted(compared, key=lambda each: (each.rho, each.local_steps)):
        line = [f"{each.rho:g}", f"{each.local_steps}"]
        for found, paired, normal in zip(each.bias, each.paired, each.normal, strict=True):
            root = np.sqrt(np.mean(np.square(paired.mean)))
            changed = f"{largest(paired)[0]:.3f}, {root:.3f}" if each.local_steps > 1 else ""
            against = f"{largest(found)[0]:.3f} ({found.deviation(0.0):.1f})"
            line += [against, changed, f"{np.abs(normal).max():.3f}"]
        lines.append(line)
    return lines


JUDGES: Judges = {8: judge}


def run(arguments: Arguments) -> Outcome:
    """Run the chains, compare them and draw the figure."""
    sizes = STUDY.choose(arguments, least_seeds=4)
    problem = split_problem()
    exact = nuts(problem, sizes.draws, adaptation=sizes.adaptation)
    compared, curves = compare(problem, sizes, exact, arguments)
    columns = ("against NUTS", "against K = 1", "normal")
    header = ["rho", "K", *(f"{of} {each}" for of in ("mean", "log sd") for each in columns)]
    errors = max(float(found.error.max()) for each in compared for found in each.paired)
    words = [
        "Largest of all coefficients; in brackets the largest in standard errors; against K = 1 "
        "also root mean squares "
        f"(errors of single coefficients up to {errors:.3f})."
    ]
    for name, found in (("NUTS", [moments(exact)]), ("FA-LD", [each.moments for each in compared])):
        rhat = max(each.rhat.max() for each in found)
        ess = min(each.ess.min() for each in found)
        words.append(f"{name}: R-hat at most {rhat:.4f}, effective samples at least {ess:.0f}.")
    judged = judge(measure(compared, sizes))
    text = "\n\n".join([harness.table(header, rows(compared)), "\n".join(words)])
    config = {**sizes.config(), "step_size": STEP_SIZE, "prior_precision": PRIOR_PRECISION}
    return Outcome(curves, {"logistic.png": figure_of(compared)}, [judged], config, text)
