"""FedOpt (Reddi et al. 2021, arXiv 2003.00295): FedAvgM, FedAdagrad, FedAdam, FedYogi, any other.

    x_t -> `state.server`    Delta_t -> `progress`    eta_l -> `hyper.lr`    eta -> `server_lr`
    beta_1 -> `first_decay`    beta_2 -> `second_decay`    tau -> `adaptivity`

Algorithm 1: the clients' mean progress Delta_t stands for a negative gradient, which any optimizer
of the server may follow. `fedopt` takes any optax optimizer by name (optax's Adam corrects the bias
of its moments). `fedavgm` is SGD with momentum. The other three are Algorithm 2, which corrects no
bias and begins with v = tau^2: x <- x + eta m / (sqrt(v) + tau), with
m <- beta_1 m + (1 - beta_1) Delta and v by `adagrad`, `adam` or `yogi`. FedAvgM is that of Hsu et
al. (2019, arXiv 1909.06335): v <- beta v + Delta, x <- x + v.

Deviation: Hsu et al. print this heavy ball and say that they ran Nesterov's momentum. The printed
rule is followed, as by Reddi et al., whose step size eta on v is 1 in Hsu et al. The other one is
`fedopt` with the optimizer `partial(optax.sgd, momentum=0.9, nesterov=True)`.

Readings. Defaults of beta_1, beta_2 and tau are those of Reddi et al.'s experiments; eta is one of
their grid and has to be tuned.
"""

from collections.abc import Callable
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import optax

from fedjax_sim.clients import LocalTraining, local_training
from fedjax_sim.core.settings import Above0, Limit, fixed, redefault, setting, struct
from fedjax_sim.core.types import Algorithm, Array, Event, Key, Params, Plan, Problem, System, Work
from fedjax_sim.server import PrivateReports, RoundState, ServerStep, Wire
from fedjax_sim.timelines import CohortRounds, cohort_system

Decay = Annotated[float, Limit(least=0, most=0.999)]
Rule = Callable[[Array, Array, Array | float], Array]
"""From v, the square of progress and the decay to the new v."""
Moments = tuple[Params, Params]


def adagrad(v: Array, square: Array, decay: Array | float) -> Array:
    """Add up the squares, without any decay."""
    return v + square


def adam(v: Array, square: Array, decay: Array | float) -> Array:
    """Average the squares, older ones less."""
    return decay * v + (1 - decay) * square


def yogi(v: Array, square: Array, decay: Array | float) -> Array:
    """Move towards the square by an amount that does not depend on the distance to it."""
    return v - (1 - decay) * square * jnp.sign(v - square)


@struct
class WithMomentum(CohortRounds, LocalTraining, ServerStep, PrivateReports):
    """Settings of FedAvgM: v <- beta v + Delta, x <- x + eta v on the server."""

    server_optimizer: Any = fixed(None)
    server_momentum: Decay = setting(
        0.9, "Momentum of the server, beta: share of its last step that is added to the next."
    )

    def server_transformation(self) -> optax.GradientTransformation:
        """Make the server's optimizer."""
        return optax.sgd(self.server_lr, self.server_momentum)


@struct
class Adaptive(CohortRounds, LocalTraining, ServerStep, PrivateReports):
    """Settings of FedAdam: Algorithm 2 on the server."""

    server_lr: float = redefault(ServerStep, "server_lr", 0.01)
    server_optimizer: Any = fixed(None)
    rule: Rule = fixed(adam)
    first_decay: Decay = setting(0.9, "Decay of the mean of progress, beta_1.")
    second_decay: Annotated[float, Limit(least=0, most=0.99999)] = setting(
        0.99, "Decay of the mean of its squares, beta_2."
    )
    adaptivity: Above0 = setting(1e-3, "Progress that counts as small, tau: less adapts more.")

    def server_transformation(self) -> optax.GradientTransformation:
        """Make the server's optimizer, with the state m and v."""

        def init(model: Params) -> Moments:
            first = jax.tree.map(lambda w: jnp.full_like(w, self.adaptivity**2), model)
            return optax.tree.zeros_like(model), first

        def update(slope: Params, state: Moments, model: Params = None) -> tuple[Params, Moments]:
            beta, tau = self.first_decay, self.adaptivity
            m = jax.tree.map(lambda m, g: beta * m + (1 - beta) * g, state[0], slope)
            v = jax.tree.map(lambda v, g: self.rule(v, g * g, self.second_decay), state[1], slope)
            step = jax.tree.map(lambda m, v: -self.server_lr * m / (jnp.sqrt(v) + tau), m, v)
            return step, (m, v)

        return optax.GradientTransformation(init, update)


@struct
class Hyper(CohortRounds, LocalTraining, ServerStep, PrivateReports):
    """Settings of FedOpt: its rounds, local training, messages, and the server's optimizer."""

    server_lr: float = redefault(ServerStep, "server_lr", 0.01)
    server_optimizer: Any = redefault(ServerStep, "server_optimizer", optax.adam)


@struct
class WithoutMomentum(Adaptive):
    """Settings of FedAdagrad: Algorithm 2, by default without momentum, as in the experiments."""

    rule: Rule = fixed(adagrad)
    first_decay: float = redefault(Adaptive, "first_decay", 0.0)
    second_decay: float = fixed(0.0)


@struct
class Yogi(Adaptive):
    """Settings of FedYogi: Algorithm 2 on the server."""

    rule: Rule = fixed(yogi)


def algorithm(
    problem: Problem,
    hyper: LocalTraining,
    plan: Plan,
    scale_of: Callable[[Event], Array | None] = lambda event: None,
) -> Algorithm[RoundState, Work]:
    """Bind FedOpt to a problem. The server's memory is the state of its optimizer.

    Args:
      problem: Data and loss.
      hyper: Settings, or those of a system whose server follows scaled progress.
      plan: How the machine is used.
      scale_of: From an event to factors on the slots' progress, `f[S]`, or None.
    """
    train = local_training(problem, hyper, plan)
    wire = Wire(problem, hyper, plan, train=local_training)

    def init(key: Key) -> RoundState:
        return wire.first_step(problem.init(key))

    def step(key: Key, state: RoundState, event: Event) -> tuple[RoundState, Work]:
        scale = scale_of(event)
        total = wire.total(event, of_progress=True, scale=scale)
        local, work = train(key, event, start=wire.received(state), total=total)
        progress, memo = wire.progress(key, event, state, local, total=total, scale=scale)
        return wire.step(key, event, state, memo, progress), work

    return wire.algorithm(init, step)


def _named(name: str, settings: type, optimizer: str) -> System:
    summary = f"federated averaging whose server follows the mean progress by {optimizer}"
    return cohort_system(name, settings, algorithm, summary)


system = _named("fedopt", Hyper, "any optax optimizer")
"""The one that takes any optimizer."""
paper = system.paper
"""Its docstring names the experiments."""
systems = (
    system,
    _named("fedavgm", WithMomentum, "SGD with momentum"),
    _named("fedadagrad", WithoutMomentum, "Adagrad"),
    _named("fedadam", Adaptive, "Adam"),
    _named("fedyogi", Yogi, "Yogi"),
)
"""All of them."""
