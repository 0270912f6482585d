"""NIID-Bench's SCAFFOLD (Li et al. 2021, arXiv 2102.02079), whose local steps have momentum.

After each step of SGD with momentum the model moves by the rate times the difference of the control
variates, which does not go into momentum. Both means are weighted by the reports' weights.
Karimireddy et al.'s Algorithm 1 has no momentum, and neither has this project's `scaffold`.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from fedjax_sim import Algorithm, clients
from fedjax_sim.core.batching import replicate
from fedjax_sim.core.settings import ConfigError
from fedjax_sim.core.types import Array, Event, Key, Params, Plan, Problem, Work
from fedjax_sim.server import Rounds, RoundState, expand, weighted_sum
from fedjax_sim.systems import fedavg, scaffold
from fedjax_sim.timelines import cohort_system

MOMENTUM = 0.9
Memory = tuple[Params, Array, Array]
"""What a client's optimizer remembers: momentum, its number of steps, and the last one's rate."""


def descent(
    rate_of: Callable[[Array], Array], shift: Params | None
) -> optax.GradientTransformation:
    """Make SGD with momentum and a shift.

    Args:
      rate_of: From the number of steps before to the rate of a step.
      shift: What is added to momentum in each step; None for nothing.
    """

    def init(model: Params) -> Memory:
        return optax.tree.zeros_like(model), jnp.int32(0), jnp.float32(0)

    def update(slope: Params, memory: Memory, model: Params = None) -> tuple[Params, Memory]:
        momentum, count, _ = memory
        momentum, rate = optax.tree.add_scale(slope, MOMENTUM, momentum), rate_of(count)
        way = momentum if shift is None else optax.tree.add(momentum, shift)
        return optax.tree.scale(-rate, way), (momentum, count + 1, rate)

    return optax.GradientTransformation(init, update)


def constant(lr: Array, shift: Params | None = None) -> optax.GradientTransformation:
    """Make the optimizer of one rate, for the setting `optimizer`."""
    return descent(lambda count: jnp.asarray(lr, "float32"), shift)


def corrected(problem: Problem, hyper: fedavg.Hyper, plan: Plan) -> Rounds:
    """Bind NIID-Bench's SCAFFOLD, of which all clients take part, to a problem.

    The setting `optimizer` takes a rate and a shift.

    Raises:
      ConfigError: If not all clients take part.

    x -> `state.server`    c -> `state.memory`    c_i and optimizers -> `state.clients`
    """
    if hyper.num_selected != hyper.num_clients:
        raise ConfigError("num_selected", hyper.num_selected, f"all {hyper.num_clients} clients")
    bound = clients.local_training(problem, hyper, plan)

    def init(key: Key) -> RoundState:
        x = problem.init(key)
        c, optimizers = optax.tree.zeros_like(x), hyper.training.optimizer(hyper.lr).init(x)
        return RoundState(x, c, replicate((c, optimizers), hyper.num_clients))

    def step(key: Key, state: RoundState, event: Event) -> tuple[RoundState, Work]:
        before, optimizers = clients.read_clients(state.clients, event.clients)
        if hyper.training.optimizer_state == "fresh":
            optimizers = optax.tree.zeros_like(optimizers)
        shifts = jax.tree.map(lambda c, c_i: c[None] - c_i, state.memory, before)

        def training(
            start: Params, client: Array, offset: Array, shift: Params, **rates: Array
        ) -> clients.Training:
            given = bound.training(key, event.facts, start, client, offset, **rates)
            lr = hyper.at_slot(rates).lr
            return given._replace(optimizer=hyper.training.optimizer(lr, shift))

        rates, slots = hyper.of_slots(event), {"extras": (shifts,), "states": optimizers}
        local, optimizers, work = clients.local_steps(
            plan, event, training, start=state.server, rates=rates, **slots
        )
        moved = jax.tree.map(lambda y, x: y - x[None], local, state.server)
        # c_i - c + (x - y_i) / (K eta), with the rate eta of the last step
        covered = event.steps * optimizers[-1]
        after = jax.tree.map(lambda d, shift: -d / expand(covered, d) - shift, moved, shifts)
        gain = weighted_sum(event.weight, (moved, optax.tree.sub(after, before)))
        x, c = optax.tree.add((state.server, state.memory), gain)
        kept = clients.write_clients(state.clients, event.clients, (after, optimizers))
        return RoundState(x, c, kept), work

    return Algorithm(init, step, lambda state: state.server)


SUMMARY = "NIID-Bench's SCAFFOLD, whose local steps have momentum"
system = cohort_system("corrected", fedavg.Hyper, corrected, SUMMARY, messages=scaffold.TWO)
