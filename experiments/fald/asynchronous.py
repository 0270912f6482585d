"""Asynchronous FA-LD over buffered arrivals: what staleness does to the law of its model.

No paper claims anything here. Clients never wait: one that has sent its progress starts again from
the newest model. When the buffer holds Z updates the server adds their mean,

    theta <- theta + (1 / Z) sum_z (beta_z - start_z),

where client c has done K Langevin steps from a model that the server made some ticks ago. Private
noise is multiplied by Z instead of 1 / p_c, so that a tick adds noise of the variance 2 eta tau K
whatever Z is, and all clients are equally fast, so that f has equal weights.

Schedules are data, and given its schedule the model follows affine maps of the models that clients
started from. For Gaussian clients its law is therefore exactly Gaussian, and a recursion over the
last models gives mean and covariance (`conditional_laws`). Chains are compared with it by their
residuals, each whitened by the law of the chain's schedule, which are standard normal. The law
at rest is the mixture over ticks and schedules. The same schedules with fresh models in place of
stale ones say how much of the error is staleness.

A delay of s time units in dX = -h X(t - s) dt + sqrt(2 tau) dW multiplies the variance tau / h by
(1 + sin h s) / cos h s (Kuechler and Mensch 1992). Here s is eta K times the staleness.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import optax
from matplotlib.figure import Figure

import fedjax_sim
from experiments.fald.formulas import exact_laws as oracle
from experiments.fald.formulas.exact_laws import GaussianTarget
from experiments.fald.gaussian import clients_of
from experiments.harness import Arguments, Outcome, Sizes, Study, table
from fedjax_sim import server, timelines, types
from fedjax_sim.clients import Training, add_langevin_noise, local_steps
from fedjax_sim.core.settings import Above0, AtLeast0, setting, struct
from fedjax_sim.core.streams import stream
from fedjax_sim.core.types import Algorithm
from fedjax_sim.problems import GaussianClients
from fedjax_sim.results import plots
from fedjax_sim.results.diagnostics import Gaussian, wasserstein2
from fedjax_sim.server.reports import Versioned
from fedjax_sim.timelines import ArrivalClock, Arrivals, ClientDelays

NUM_CLIENTS, LOCAL_STEPS = 8, 2
STUDY = Study(
    full=Sizes(
        seeds=200, ticks=300, buffers=(1, 2, 4, 8), step_sizes=(0.005, 0.01, 0.02, 0.04, 0.08)
    ),
    smoke=Sizes(seeds=100, ticks=30, buffers=(2,), step_sizes=(0.02, 0.04)),
)
"""Seeds are chains. Each chain draws another schedule."""


@struct
class Hyper(Arrivals):
    """Settings of asynchronous FA-LD: its clock, and Langevin steps with exact gradients."""

    step_size: Above0 = setting(0.01, "Step size eta.")
    temperature: AtLeast0 = setting(1.0, "Temperature tau.")


def algorithm(problem: Any, hyper: Hyper, plan: types.Plan) -> Algorithm[Versioned, types.Work]:
    """Bind asynchronous FA-LD to a problem whose clients have equal weights."""
    scale = problem.counts.sum()  # from the gradient of a client's mean loss to that of f^c

    def init(key: types.Key) -> Versioned:
        return server.first_version(problem.init(key), plan)

    def step(key: types.Key, state: Versioned, event: types.Event) -> tuple[Versioned, types.Work]:
        def training(start: types.Params, client: types.Array, offset: types.Array) -> Training:
            losses = problem.alone(client)
            noise = stream(jax.random.fold_in(stream(key, "local"), client), "private noise")
            tau = hyper.temperature * hyper.buffer_size
            steps = optax.chain(
                optax.scale(-hyper.step_size * scale),
                add_langevin_noise(noise, hyper.step_size, tau, first=offset),
            )
            return Training(lambda w, q: jax.grad(losses.client_loss)(w, client, None), steps)

        start = server.stale_models(state, event)
        local, _, work = local_steps(plan, event, training, starts=start)
        moved = server.weighted_sum(event.weight, jax.tree.map(jnp.subtract, local, start))
        return server.next_version(state, event, jax.tree.map(jnp.add, state.server, moved)), work

    return Algorithm(init, step, model=lambda state: state.server)


system = types.System(
    "async_fald",
    Hyper,
    timelines.schedule_arrivals,
    algorithm,
    can_repeat=True,  # Nothing is kept for a client.
    hints=types.Hints(timelines.arrivals_within),
)


def make_problem() -> GaussianClients:
    """Make clients in the plane with unequal Hessians and modes."""
    random = np.random.default_rng(3)
    turns, _ = np.linalg.qr(random.normal(size=(NUM_CLIENTS, 2, 2)))
    values = np.exp(random.uniform(-0.7, 0.7, (NUM_CLIENTS, 1, 2))) * np.array([1.0, 4.0])
    hessians = (turns * values) @ np.swapaxes(turns, 1, 2)
    centers = random.normal(size=(NUM_CLIENTS, 2))
    return GaussianClients.of(hessians.astype("float32"), centers.astype("float32"))


def conditional_laws(
    target: GaussianTarget,
    schedule: types.Timeline,
    start: np.ndarray,
    *,
    step_size: float,
    local_steps: int,
    is_fresh: bool = False,
) -> Gaussian:
    """Compute the exact law of the model after every tick of a schedule.

    Args:
      target: The clients and the temperature.
      schedule: The schedule, of T ticks.
      start: The initial model, `f64[P]`.
      step_size: eta.
      local_steps: K.
      is_fresh: Whether clients are taken to start from the newest model instead.

    Returns:
      The laws, `f64[T + 1, P]` and `f64[T + 1, P, P]`.
    """
    dim, (num_ticks, num_slots) = target.shape[1], schedule.clients.shape
    now = np.arange(num_ticks)[:, None]
    version = np.broadcast_to(now, schedule.version.shape) if is_fresh else schedule.version
    window = int((now - version).max()) + 1
    factors = np.eye(dim) - step_size * target.hessians
    powers = np.linalg.matrix_power(factors, local_steps) - np.eye(dim)
    noise = np.zeros_like(factors)
    for _ in range(local_steps):
        noise = factors @ noise @ factors + 2 * step_size * target.temperature * num_slots * np.eye(
            dim
        )
    # The newest model comes first in the stack of the last ones.
    mean, covariance = np.tile(start, window), np.zeros((window * dim, window * dim))
    keep = np.eye(window * dim, k=-dim)
    laws = [(mean[:dim], covariance[:dim, :dim])]
    for t in range(num_ticks):
        move, shift, added = keep.copy(), np.zeros(window * dim), np.zeros((dim, dim))
        move[:dim, :dim] += np.eye(dim)
        for client, old, weight in zip(
            schedule.clients[t], version[t], schedule.weight[t], strict=True
        ):
            place = slice((t - old) * dim, (t - old + 1) * dim)
            move[:dim, place] += weight * powers[client]
            shift[:dim] -= weight * powers[client] @ target.centers[client]
            added += weight**2 * noise[client]
        mean, covariance = move @ mean + shift, move @ covariance @ move.T
        covariance[:dim, :dim] += added
        laws.append((mean[:dim], covariance[:dim, :dim]))
    return Gaussian(*(np.stack(each) for each in zip(*laws, strict=True)))


def at_rest(laws: Sequence[Gaussian]) -> Gaussian:
    """Return the moments of the mixture of the second halves of several schedules' laws."""
    half = len(laws[0].mean) // 2
    means = np.concatenate([law.mean[half:] for law in laws])
    covariances = np.concatenate([law.covariance[half:] for law in laws])
    apart = means - means.mean(axis=0)
    return Gaussian(means.mean(axis=0), covariances.mean(axis=0) + apart.T @ apart / len(means))


def whitened(models: np.ndarray, laws: Sequence[Gaussian]) -> np.ndarray:
    """Return the residuals of chains' last models, whitened by their laws: `f64[R, P]`."""
    roots = np.linalg.cholesky(np.stack([law.covariance[-1] for law in laws]))
    off = models - np.stack([law.mean[-1] for law in laws])
    return np.linalg.solve(roots, off[..., None])[..., 0]


def deviation(residuals: np.ndarray) -> float:
    """Return how far residuals are from standard normal ones, in standard errors.

    The largest over all means and second moments, which have variances 1, 2 and 1 (off diagonal).
    """
    num, dim = residuals.shape
    of_mean = np.abs(residuals.mean(axis=0)) * np.sqrt(num)
    errors = np.sqrt((np.eye(dim) + 1) / num)
    of_square = np.abs(residuals.T @ residuals / num - np.eye(dim)) / errors
    return float(max(of_mean.max(), of_square.max()))


def constant_delay(delay: npt.ArrayLike) -> np.ndarray:
    """Return the growth of the variance under a constant delay h s; infinity from pi / 2 on."""
    h_s = np.asarray(delay, float)
    grown = (1 + np.sin(h_s)) / np.cos(np.minimum(h_s, 1.5))
    return np.where(h_s < np.pi / 2, grown, np.inf)


@plots.styled()
def draw(
    found: Mapping[tuple[int, float], tuple[float, ...]], sizes: Sizes, curvature: float
) -> Figure:
    """Draw W2 against the step size, and the growth of the variance against the delay."""
    figure = Figure(figsize=(13, 4.2))
    left, right = figure.subplots(1, 2)
    delays = np.linspace(0, 1.4, 100)
    for i, size in enumerate(sizes.buffers):
        errors = np.array([found[size, eta][:2] for eta in sizes.step_sizes])
        staleness = found[size, sizes.step_sizes[0]][2]
        label = f"Z = {size}, staleness {staleness:.1f}"
        left.plot(sizes.step_sizes, errors[:, 0], label=label, **plots.look(i, "all"))
        left.plot(sizes.step_sizes, errors[:, 1], **plots.look(i, "none", linestyle=":"))
        at = curvature * LOCAL_STEPS * staleness * np.array(sizes.step_sizes)
        growth = [found[size, eta][3] for eta in sizes.step_sizes]
        right.plot(at, growth, **plots.look(i, "only"))
    left.set(xlabel="step size", ylabel="W2 at rest", xscale="log", yscale="log")
    left.set_xticks(sizes.step_sizes, [f"{eta:g}" for eta in sizes.step_sizes])
    left.minorticks_off()
    left.set_title("dotted: fresh models on the same schedules")
    right.plot(delays, constant_delay(delays), **plots.look(4, "none", linestyle="-"))
    right.set(xlabel="mean curvature × step size × K × staleness", xscale="log", yscale="log")
    right.set_ylabel("variance, stale over fresh")
    right.set_title("line: constant delay, which is unstable from π / 2 on")
    plots.name_beside(figure, left)
    return figure


def run(arguments: Arguments) -> Outcome:
    """Run the chains, compute the laws on their schedules, and draw errors against staleness."""
    sizes, problem = STUDY.choose(arguments, least_seeds=10), make_problem()
    target = clients_of(problem)
    goal = oracle.target_law(target)
    curvature = float(np.trace(np.linalg.inv(goal.covariance)) / 2)
    rows, found, curves, far = [], {}, {}, {}
    for size in sizes.buffers:
        hyper = Hyper(
            num_clients=NUM_CLIENTS,
            local_steps=LOCAL_STEPS,
            buffer_size=size,
            clock=ArrivalClock(restart="free"),
            delays=ClientDelays(rate_spread=0.0),
        )
        ran = fedjax_sim.sweep(
            system,
            problem,
            hyper,
            seeds=sizes.seeds,
            settings={"step_size": sizes.step_sizes},
            budget=fedjax_sim.Ticks(sizes.ticks),
            num_evals=1,
            **arguments.kept(f"buffer {size}"),
        )
        models = np.asarray(ran.models, float).reshape(len(sizes.step_sizes), sizes.seeds, -1)
        staleness = float(ran.curves.staleness_mean.mean())
        for i, eta in enumerate(sizes.step_sizes):
            how: dict[str, Any] = {"step_size": eta, "local_steps": LOCAL_STEPS}
            # Settings do not change the schedules, which depend on the seed.
            schedules = ran.timelines[: sizes.seeds]
            start = np.zeros(target.shape[1])
            laws = [conditional_laws(target, each, start, **how) for each in schedules]
            fresh = [
                conditional_laws(target, each, start, **how, is_fresh=True) for each in schedules
            ]
            stale_law, fresh_law = at_rest(laws), at_rest(fresh)
            off = [float(wasserstein2(*law, *goal)) for law in (stale_law, fresh_law)]
            growth = float(np.trace(stale_law.covariance) / np.trace(fresh_law.covariance))
            delay = curvature * eta * LOCAL_STEPS * staleness
            expected = float(constant_delay(delay))
            far[f"Z = {size}, eta = {eta:g}"] = deviation(whitened(models[i], laws))
            found[size, eta] = (*off, staleness, growth)
            cells = [f"{value:.3g}" for value in (staleness, *off, growth, expected)]
            rows.append([size, f"{eta:g}", *cells])
        curves[f"buffer {size}"] = ran.curves
    figure = draw(found, sizes, curvature)
    text = (
        table(
            ["Z", "eta", "staleness", "W2, stale", "W2, fresh", "variance ratio", "constant delay"],
            rows,
        )
        + f"\n\nChains are at most {max(far.values()):.1f} standard errors off their exact laws."
    )
    config = sizes.config() | {"standard errors off": far}
    return Outcome(curves, {"asynchronous.png": figure}, [], config, text)
