"""FedBuff (Nguyen et al. 2022, arXiv 2106.06639), Algorithm 1: buffered asynchronous aggregation.

    w_t -> `state.server`          K -> `hyper.buffer_size`      M -> `hyper.concurrency`
    eta_g -> `hyper.server_lr`     beta -> `hyper.server_momentum`
    eta_l -> `hyper.lr`      Q -> `hyper.local_steps`
    s(tau) / K -> `event.weight`              -Delta_i -> `progress`

M clients are at work at any time; one that finishes is replaced at once by an idle one, which
starts from the newest model. When the buffer holds K updates the server makes a step with
s(tau) Delta / K, where tau counts the server steps since an update began. The paper's discount is
s(tau) = (1 + tau)^-1/2 (`rule="polynomial"`, not normalised); "mean" is s = 1, and the other rules
of `fedjax_sim.server.StalenessWeights` can be chosen too. The server's momentum is that of FedAvgM:
v <- beta v + mean progress, w <- w + eta_g v.

What the discount does. Its weights do not sum to 1, so it shortens the server's step: if all
updates were tau steps old, it would be a server learning rate of (1 + tau)^-1/2 eta_g. On the
bundled digits with all 30 clients at work, K = 5 and local learning rate 0.5, some of five seeds
collapse without a discount (final accuracy 0.62 +- 0.43; which seeds do depends on rounding). With
the discount it is 0.969 +- 0.003, and with a server learning rate of 0.3 instead 0.969 +- 0.005:
what helps there is the shorter step, not the attention to stale updates. The runs are `fedjax-sim
run fedbuff --preset paper --set restart=after_interaction --set lr=0.5`, to which the others add
`--set rule=mean --set server_lr=1,0.3`.

Deviation: in the paper's simulations clients arrive at a constant rate, so that the number at work
varies. Here exactly M are at work, drawn uniformly, as production systems bound it.

Readings. With `concurrency` M, mean staleness is (M - 1) / K, whatever the clients' speeds are.
FAVANO's paper (arXiv 2305.16099, Sec. 5 and App. C.2) runs FedBuff without discount, with all N
clients at work, and blocks a client from its finish to the end of the exchange that takes its
update: `restart="after_interaction", rule="mean"`. It then starts from the new model (with
`send_old_model` from the one before). QuAFL's public simulator multiplies `lr` by Z / N. The text
also says that a counter is reset at the beginning of each server step. `restart="fresh"` takes it
literally: running times are drawn again for everyone at each server step, so that only fast clients
report if there are enough of them. Mean staleness is then 5.3 server steps with 66 of 100 fast
clients and 0.1 with 11, compared with 8.9 and 8.7 under the continuous clock
(experiments/favano/README.md has the accuracies).
"""

from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_sim.clients import LocalTraining, local_training
from fedjax_sim.core.settings import Limit, is_known, redefault, setting, struct
from fedjax_sim.core.types import Algorithm, Event, Hints, Key, Params, Plan, Problem, System, Work
from fedjax_sim.server import Memo, ScheduledReports, StalenessWeights, Wire
from fedjax_sim.server.aggregation import ServerRate, keep_if_empty
from fedjax_sim.server.report_settings import ReportMessages
from fedjax_sim.server.staleness import WeightedArrivals, schedule_stale_arrivals, weigh_arrivals
from fedjax_sim.server.versions import stale_models
from fedjax_sim.timelines import ArrivalClock, arrivals_within, presets


@struct
class Hyper(WeightedArrivals, LocalTraining, ServerRate, ScheduledReports):
    """Settings of FedBuff: clock, discount, local training, messages, and the server's step."""

    clock: ArrivalClock = redefault(WeightedArrivals, "clock", ArrivalClock(restart="replaced"))
    staleness: StalenessWeights = redefault(
        WeightedArrivals, "staleness", StalenessWeights(rule="polynomial", normalised=False)
    )
    server_momentum: Annotated[float, Limit(least=0, most=0.999)] = setting(
        0.0,
        "Momentum of the server, beta: share of its last step that is added to the next.",
        simpler_at=(0.0,),
    )


class State(NamedTuple):
    """The state of FedBuff.

    Attributes:
      server: The newest model, leaves `[...]`.
      versions: Server models that some client works from, leaves `[R, ...]`.
      memo: What both sides remember of messages.
      velocity: The server's last step, leaves `[...]`; () without momentum.
    """

    server: Params
    versions: Params
    memo: Memo
    velocity: Params = ()


def algorithm(
    problem: Problem, hyper: Any, plan: Plan, *, can_repeat: bool = True
) -> Algorithm[State, Work]:
    """Bind FedBuff to a problem.

    Args:
      problem: Data and loss.
      hyper: Settings, or those of a system that is FedBuff with weights or a clock of its own.
      plan: How the machine is used.
      can_repeat: Whether a client may have several slots of a tick.
    """
    train = local_training(problem, hyper, plan)
    wire = Wire(problem, hyper, plan, can_repeat=can_repeat, train=local_training)
    momentum = getattr(hyper, "server_momentum", 0.0)
    has_momentum = not is_known(momentum, 0)

    def init(key: Key) -> State:
        first = wire.first_version(problem.init(key))
        return State(*first, jax.tree.map(jnp.zeros_like, first.server) if has_momentum else ())

    def step(key: Key, state: State, event: Event) -> tuple[State, Work]:
        start = stale_models(state, event)  # base[i], a stale server model
        local, work = train(key, event, starts=start)  # y[i]
        reports, memo = wire.receive(key, event, state.memo, start, local)
        progress = jax.tree.map(jnp.subtract, reports, start)
        change, memo = wire.noisy_sum(key, event, progress, memo)  # 0 if all slots are empty
        velocity = state.velocity
        if has_momentum:
            change = jax.tree.map(lambda v, d: momentum * v + d, velocity, change)
            still = jax.tree.map(jnp.zeros_like, change)
            velocity = keep_if_empty(event, change, velocity)
            change = keep_if_empty(event, change, still)
        rate = hyper.at_tick(event).server_lr
        server = jax.tree.map(lambda w, d: w + rate * d, state.server, change)
        return State(*wire.next_version(key, event, state, memo, server), velocity), work

    return wire.algorithm(init, step)


paper = presets.preset(Hyper, presets.FAVANO)
system: System[Any, State, Work] = System(
    "fedbuff",
    Hyper,
    schedule_stale_arrivals,
    algorithm,
    "buffered asynchronous aggregation: the server acts when Z updates have arrived",
    can_repeat=True,
    messages=ReportMessages(),
    hints=Hints(arrivals_within),
    weigh=weigh_arrivals,
    paper=paper,
)
