"""FedAvg (McMahan et al. 2017, arXiv 1602.05629, Algorithm 1), in rounds with a clock.

    w_t -> `state.server`    S_t -> `event.clients`    K -> `hyper.local_steps`    eta -> `hyper.lr`
    E -> `hyper.local_epochs`    n_k / sum n_k over S_t -> `event.weight`

By default everyone has the same weight and does K local steps, as in FAVANO's paper, whose values
`paper` has. The original has `weighting="examples"` and `local_epochs`. Other ways to sample
clients, over-selection with a deadline, and drop-outs are settings of `timelines.CohortRounds`.

Deviation: Algorithm 1 cuts every epoch into batches of B, the last of which may be shorter, and so
takes E ceil(n_k / B) steps. Here batches run on from one epoch into the next, ceil(E n_k / B) full
ones, because arrays have one size: every example still counts E times, up to the last batch.

Readings (FAVANO, arXiv 2305.16099, App. C.2). The server waits for the slowest client of its
cohort, but the text leaves open how long that takes. By default the K running times of a client
are summed, as in QuAFL's public simulator; `round_time` offers the other two readings. None of
these papers compresses messages here, or makes them private; `fedjax_sim.server.reports` says what
these options do.

FedProx, the FedOpts, FedNova and q-FedAvg are here too: in each another part has another value, the
pull of local steps, the server's optimizer, or how much a client's progress counts.
"""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_sim import clients
from fedjax_sim.clients import ClientTraining, LastingTraining, LocalTraining, local_training
from fedjax_sim.core import batching, settings
from fedjax_sim.core.settings import ConfigError, Limit, fixed, is_known, redefault, setting, struct
from fedjax_sim.core.types import EMPTY, Array, Event, Key, Params, Plan, Problem, Work
from fedjax_sim.server import PrivateReports, ReportMessages, Reports, Rounds, RoundState, Wire
from fedjax_sim.server.aggregation import ServerMomentum, ServerRate, ServerStep
from fedjax_sim.server.compression import word_of
from fedjax_sim.timelines import CohortRounds, cohort_system


@struct
class Hyper(CohortRounds, LastingTraining, ServerStep, PrivateReports):
    """Settings of FedAvg: its rounds, local training, messages, and the server's step."""


def algorithm(
    problem: Problem,
    hyper: LastingTraining,
    plan: Plan,
    scale_of: Callable[[Event], Array | None] = lambda event: None,
) -> Rounds:
    """Bind FedAvg to a problem. Clients' optimizers may last, and are kept for every client.

    Args:
      problem: Data and loss.
      hyper: Settings, or those of a system that is FedAvg on another clock.
      plan: How the machine is used.
      scale_of: From an event to factors on the slots' progress, `f[S]`, or None.
    """
    train = clients.lasting_training(problem, hyper, plan)
    wire = Wire(problem, hyper, plan, train=local_training)

    def init(key: Key) -> RoundState:
        server = problem.init(key)
        return wire.first_round(server, clients.first_optimizers(problem, hyper, server))

    def step(key: Key, state: RoundState, event: Event) -> tuple[RoundState, Work]:
        start, scale = wire.received(state), scale_of(event)  # w_t, as far as clients know it
        total = wire.total(event, scale=scale)  # local is a sum then, where that is enough
        local, optimizers, work = train(key, event, state.clients, start=start, total=total)
        after = wire.advance(key, event, state, local, total=total, scale=scale)
        return after._replace(clients=optimizers), work

    return wire.algorithm(init, step)


SUMMARY = "synchronous federated averaging: the server waits for the slowest client of its cohort"
system = cohort_system("fedavg", Hyper, algorithm, SUMMARY)
paper = system.paper


@struct
class FedProx(Hyper):
    """FedProx (Li et al. 2020, arXiv 1812.06127), Algorithm 2.

        w^t -> `state.server`    S_t -> `event.clients`    mu -> `hyper.proximal`
        eta -> `hyper.lr`

    Client k minimises h_k(w) = F_k(w) + mu / 2 ||w - w^t||^2 inexactly, here by local steps, and
    the server takes the mean. With mu = 0 this is FedAvg; the step is that of `fedavg`.

    Deviation: Algorithm 2 draws clients with probability n_k / n and takes the plain mean, which is
    `selection="by_examples"` with `with_replacement`. By default cohorts are uniform, so that
    systems are compared on the same schedules.

    Deviation: the paper's stragglers report what they have when a round's time is over, after fewer
    than E epochs. Here a client that misses the `deadline` is left out, because work is whole or
    empty on this clock; steps differ between clients under `local_epochs` only. Another `timeline`
    may cut them.

    Readings. The local optimizer of the paper is SGD; the state of another one may be kept.
    """

    proximal: float = redefault(Hyper, "proximal", 0.01)


SUMMARY = "federated averaging with a pull of local models to the server's"
fedprox = cohort_system("fedprox", FedProx, algorithm, SUMMARY)


@struct
class FedOpt(Hyper):
    """FedOpt (Reddi et al. 2021, arXiv 2003.00295), Algorithm 1: FedAvg with a server's optimizer.

        x_t -> `state.server`    Delta_t -> `progress`    eta_l -> `hyper.lr`    eta -> `server_lr`

    The clients' mean progress Delta_t stands for a negative gradient, which any optimizer of the
    server may follow. `fedopt` takes any optax optimizer by name (optax's Adam corrects the bias of
    its moments), and so does FedAvg, whose `server_optimizer` is none by default. `fedavgm` is SGD
    with momentum; `fedadagrad`, `fedadam` and `fedyogi` are Algorithm 2.
    """

    server_lr: float = redefault(ServerStep, "server_lr", 0.01)
    server_optimizer: Callable[..., optax.GradientTransformation] | None = redefault(
        ServerStep, "server_optimizer", optax.adam
    )


@struct
class FedAvgM(CohortRounds, LastingTraining, ServerMomentum, PrivateReports):
    """FedAvgM (Hsu, Qi and Brown 2019, arXiv 1909.06335): v <- beta v + Delta, x <- x + eta v.

    eta is 1 in the paper. Deviation: it prints this heavy ball and says that Nesterov's momentum
    was run. The printed rule is followed, as by Reddi et al.; the other one is `fedopt` with the
    optimizer `partial(optax.sgd, momentum=0.9, nesterov=True)`.
    """

    server_momentum: float = redefault(ServerMomentum, "server_momentum", 0.9)


Moments = tuple[Params, Params]
"""The mean m of progress, and v, which is made of its squares."""


@struct
class FedAdam(CohortRounds, LastingTraining, ServerRate, PrivateReports):
    """FedAdam (Reddi et al. 2021, arXiv 2003.00295), Algorithm 2.

    beta_1 -> `first_decay`    beta_2 -> `second_decay`    tau -> `adaptivity`

    It corrects no bias and begins with v = tau^2: x <- x + eta m / (sqrt(v) + tau), with
    m <- beta_1 m + (1 - beta_1) Delta and v by `second`.

    Readings. Defaults of beta_1, beta_2 and tau are those of the experiments; eta is one of their
    grid and has to be tuned.
    """

    server_lr: float = redefault(ServerRate, "server_lr", 0.01)
    first_decay: Annotated[float, Limit(least=0, most=0.999)] = setting(
        0.9, "Decay of the mean of progress, beta_1."
    )
    second_decay: Annotated[float, Limit(least=0, most=0.99999)] = setting(
        0.99, "Decay of the mean of its squares, beta_2."
    )
    adaptivity: settings.Above0 = setting(
        1e-3, "Progress that counts as small, tau: less adapts more."
    )

    def second(self, v: Array, square: Array) -> Array:
        """Average the squares of progress, older ones less."""
        return self.second_decay * v + (1 - self.second_decay) * square

    def server_transformation(self) -> optax.GradientTransformation:
        """Make the server's optimizer, with the state m and v."""

        def init(model: Params) -> Moments:
            first = jax.tree.map(lambda w: jnp.full_like(w, self.adaptivity**2), model)
            return optax.tree.zeros_like(model), first

        def update(slope: Params, state: Moments, model: Params = None) -> tuple[Params, Moments]:
            beta, tau = self.first_decay, self.adaptivity
            m = jax.tree.map(lambda m, g: beta * m + (1 - beta) * g, state[0], slope)
            v = jax.tree.map(lambda v, g: self.second(v, g * g), state[1], slope)
            step = jax.tree.map(lambda m, v: -self.server_lr * m / (jnp.sqrt(v) + tau), m, v)
            return step, (m, v)

        return optax.GradientTransformation(init, update)


@struct
class FedAdagrad(FedAdam):
    """FedAdagrad (Reddi et al. 2021, arXiv 2003.00295): Algorithm 2 with another `second`.

    By default it has no momentum, as in the experiments.
    """

    first_decay: float = redefault(FedAdam, "first_decay", 0.0)
    second_decay: float = fixed(0.0)

    def second(self, v: Array, square: Array) -> Array:
        """Add up the squares, without any decay."""
        return v + square


@struct
class FedYogi(FedAdam):
    """FedYogi (Reddi et al. 2021, arXiv 2003.00295): Algorithm 2 with another `second`."""

    def second(self, v: Array, square: Array) -> Array:
        """Move towards the square by an amount that does not depend on the distance to it."""
        return v - (1 - self.second_decay) * square * jnp.sign(v - square)


SUMMARY = "federated averaging whose server follows the mean progress by"
fedopt = cohort_system("fedopt", FedOpt, algorithm, f"{SUMMARY} any optax optimizer")
fedavgm = cohort_system("fedavgm", FedAvgM, algorithm, f"{SUMMARY} SGD with momentum")
fedadagrad = cohort_system("fedadagrad", FedAdagrad, algorithm, f"{SUMMARY} Adagrad")
fedadam = cohort_system("fedadam", FedAdam, algorithm, f"{SUMMARY} Adam")
fedyogi = cohort_system("fedyogi", FedYogi, algorithm, f"{SUMMARY} Yogi")


@struct
class FedNova(CohortRounds, LastingTraining, ServerStep, Reports):
    """FedNova (Wang et al. 2020, arXiv 2007.07481), Eqs. 5 to 8.

        x -> `state.server`    p_i -> `event.weight`    tau_i -> `event.steps`    eta -> `hyper.lr`
        ||a_i||_1 -> `size`    tau_eff -> `tau`    rho -> `hyper.momentum`    mu -> `hyper.proximal`

    Clients do different numbers of steps, under `local_epochs` for example. FedAvg then weighs a
    client in proportion to its steps and finds another objective's minimum. FedNova divides the
    progress of each client by the size ||a_i||_1 of its accumulated gradients, so that
    x <- x - tau_eff sum_i p_i eta d_i with d_i = (x - x_i) / (eta ||a_i||_1).

    Deviation: Eq. 6 holds for any local optimizer whose progress is a weighted sum of gradients.
    Here it is plain SGD, SGD with momentum, or SGD with a proximal term (Sec. 4.2 and App. B),
    whose sizes have closed forms; Adam's weights depend on the gradients, and it is refused.

    Readings. The paper leaves tau_eff free. Here it is sum_i p_i ||a_i||_1, with which FedNova is
    FedAvg where all clients do equally many steps. Momentum starts afresh with each update.
    """

    training: ClientTraining = settings.group(
        ClientTraining(), clients.ABOUT_TRAINING, without=("optimizer", "optimizer_state")
    )
    server_optimizer: Callable[..., optax.GradientTransformation] | None = redefault(
        ServerStep, "server_optimizer", optax.sgd
    )
    momentum: Annotated[float, Limit(least=0, most=0.999)] = setting(
        0.0, "Momentum of local steps, rho.", simpler_at=(0.0,)
    )

    def check_together(self) -> None:
        """Check combinations of settings."""
        super().check_together()
        for name in self.by_step:
            allowed = "one of round, version, client, work, because sizes are those of equal steps"
            raise ConfigError(f"training.{name}_schedule.by", "step", allowed)
        if np.any(np.asarray(self.momentum) > 0) and np.any(np.asarray(self.proximal) > 0):
            raise ConfigError("momentum", self.momentum, "0 with a proximal term")
        if np.any(np.asarray(self.lr * self.proximal) >= 1):
            raise ConfigError("proximal", self.proximal, "below 1 / lr")

    def local_optimizer(self) -> optax.GradientTransformation:
        """Make the optimizer of local steps."""
        momentum = None if is_known(self.momentum, 0) else self.momentum
        return optax.sgd(self.lr, momentum)

    def size(self, steps: Array) -> Array:
        """Compute ||a_i||_1, the size of accumulated gradients, of numbers of steps: `f[S]`."""
        size = tau = steps * jnp.ones_like(self.lr)
        if not is_known(self.momentum, 0):  # sum_k (1 - rho^(tau - k)) / (1 - rho)
            rho = self.momentum
            size = (tau - rho * (1 - rho**tau) / (1 - rho)) / (1 - rho)
        if not is_known(self.proximal, 0):  # sum_k (1 - eta mu)^k, where rho is 0
            pull = self.lr * self.proximal
            series = -jnp.expm1(tau * jnp.log1p(-pull)) / jnp.where(pull > 0, pull, 1)
            return jnp.where(pull > 0, series, size)
        return size


def normalised(problem: Problem, hyper: FedNova, plan: Plan) -> Rounds:
    """Bind FedNova to a problem."""

    def scale_of(event: Event) -> Array:
        size = hyper.at_slot(hyper.of_slots(event)).size(event.steps)
        return event.weight @ size / jnp.where(size > 0, size, 1)  # tau_eff / ||a_i||_1

    return algorithm(problem, hyper, plan, scale_of)


SUMMARY = "federated averaging of progress per local step: right also if clients' steps differ"
fednova = cohort_system("fednova", FedNova, normalised, SUMMARY)


@struct
class QFedAvg(CohortRounds, LocalTraining, clients.WholeGradients, Reports):
    """q-FedAvg (Li, Sanjabi, Beirami and Smith 2020, arXiv 1905.10497), Algorithm 2.

        w^t -> `state.server`    wbar_k -> `local`    q -> `hyper.fairness`
        S_t -> `event.clients`    F_k(w^t) -> `losses`    eta, 1 / L -> `hyper.lr`
        E -> `hyper.local_epochs`

    The larger a client's loss, the more its progress counts: the objective is the mean of F_k^{q+1}
    / (q + 1). A client sends Delta w_k = L (w^t - wbar_k), and with its loss Delta_k = F_k^q Delta
    w_k and h_k = q F_k^{q-1} ||Delta w_k||^2 + L F_k^q. The server's next model is w^t - sum_k
    Delta_k / sum_k h_k; with q = 0 that is FedAvg.

    Deviation: F_k asks for an additional pass over the client's data. That is
    `client_losses="exact"`; "minibatch" takes the batch of the client's first local step instead.

    Readings. L is 1 / `lr`, as in the paper's experiments, whatever the local optimizer is. The
    sums have the weights of the round, in proportion to examples with `weighting="examples"`; in
    the paper clients are drawn so. Negative losses count as 0, and 1e-10 is added, so that one of 0
    has powers. A client sends wbar_k and F_k, as many numbers as Delta_k and h_k, which the server
    makes of what it decodes; F_k is not compressed, and attackers leave it as it is.
    """

    gradient_setting = "client_losses"
    tells = "their losses"
    fairness: settings.AtLeast0 = setting(1.0, "How much larger losses count, q; 0 for FedAvg.")
    client_losses: Literal["exact", "minibatch"] = setting(
        "exact", "Losses of clients, which they send: of all examples or the next mini-batch."
    )

    def check_together(self) -> None:
        """Check that all clients of a round have one rate, as L is one number."""
        super().check_together()
        schedule = self.training.lr_schedule
        if not schedule.is_constant and schedule.clock != "round":
            allowed = "round, because the clients of a round have one L = 1 / lr"
            raise ConfigError("training.lr_schedule.by", schedule.clock, allowed)


def fair(problem: Problem, hyper: QFedAvg, plan: Plan) -> Rounds:
    """Bind q-FedAvg to a problem."""
    q, wire = hyper.fairness, Wire(problem, hyper, plan)
    train = local_training(problem, hyper, plan)
    losses_of_slots = clients.losses_at(
        problem, hyper, plan, is_exact=hyper.client_losses == "exact"
    )

    def init(key: Key) -> RoundState:
        server = problem.init(key)
        return RoundState(server, memo=wire.first(server))

    def step(key: Key, state: RoundState, event: Event) -> tuple[RoundState, Work]:
        start = wire.received(state)  # w^t
        losses, more = losses_of_slots(key, event, start)
        losses = jnp.maximum(losses, 0) + 1e-10  # F_k
        local, work = train(key, event, start=start)
        starts = batching.replicate(start, event.clients.shape[0])
        reports, memo = wire.receive(key, event, state.memo, starts, local)
        moved = optax.tree.sub(reports, starts)  # -Delta w_k / L
        power = losses**q
        squared = partial(optax.tree.norm, squared=True)
        squares = jax.vmap(squared)(wire.of_trained(moved))
        rate = hyper.of_slots(event).get("lr", hyper.lr)
        steepness = q * power / losses * squares / rate + power  # h_k / L
        is_heard = wire.senders.finite_clients(event, moved) != EMPTY
        total = jnp.where(is_heard, event.weight * steepness, 0).sum()
        scale = power / jnp.where(total > 0, total, 1)
        scale = scale.astype(event.weight.dtype)
        progress, memo = wire.noisy_sum(key, event, moved, memo, scale=scale)
        server = optax.tree.add(state.server, progress)
        memo = wire.publish(key, event, memo, server)
        return RoundState(server, memo=memo), work.and_more(more)

    return wire.algorithm(init, step)


SUMMARY = "federated averaging that minimises larger losses of clients more, for fairness"
LOSSES = ReportMessages(number_bits=lambda model, hyper: word_of(model))  # F_k
qfedavg = cohort_system("qfedavg", QFedAvg, fair, SUMMARY, messages=LOSSES)
