"""Local training whose optimizers remember: a client's state lasts from one update to the next.

Dimension letters: those of `fedjax_sim.types`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from fedjax_sim import batching
from fedjax_sim.clients import gradient_steps, rows
from fedjax_sim.clients.gradient_steps import Direction, Total
from fedjax_sim.clients.local_settings import ABOUT_TRAINING, ClientTraining, LocalTraining
from fedjax_sim.settings import group, struct
from fedjax_sim.types import Array, Event, Key, Losses, Params, Plan, Work


@struct
class LastingTraining(LocalTraining):
    """Settings of clients' local training, whose optimizers may remember.

    They are inherited by the settings of systems whose clients keep momentum, for example.

        kept = ClientTraining(optimizer=optax.adam, optimizer_state="kept")
        hyper = LastingTraining(lr=0.01, training=kept)
    """

    training: ClientTraining = group(ClientTraining(), ABOUT_TRAINING)


def first_optimizers(problem: Losses, hyper: LastingTraining, model: Params) -> Any:
    """Make the initial states of all clients' optimizers.

        kept = ClientTraining(optimizer=optax.adam, optimizer_state="kept")
        states = first_optimizers(problem, LastingTraining(training=kept), model)
        assert states[0].mu.shape == (8, 3)  # of eight clients

    Args:
      model: A model, leaves `[...]`.

    Returns:
      Leaves `[N, ...]`; () if states are not kept.
    """
    if hyper.training.optimizer_state == "fresh":
        return ()
    return batching.replicate(hyper.local_optimizer().init(model), problem.counts.shape[0])


def lasting_training(
    problem: Losses,
    hyper: LastingTraining,
    plan: Plan,
    *,
    direction: Direction | None = None,
    proximal: Array | float | None = None,
) -> Callable[..., tuple[Params, Any, Work]]:
    """Bind local training whose optimizers may remember; see `fedjax_sim.clients.local_training`.

    `direction` and `proximal` are those of `local_training`.

        kept = ClientTraining(optimizer=optax.adam, optimizer_state="kept")
        hyper = LastingTraining(batch_size=1, training=kept)
        states = first_optimizers(problem, hyper, model)
        train = lasting_training(problem, hyper, plan)
        models, states, work = train(key, event, states, start=model)
        assert states[0].count[jnp.array([0, 3, 7])].tolist() == [2, 1, 0]  # steps of these clients

    Returns:
      A function like a `fedjax_sim.clients.Train`, whose slots all start from `start`. After the
      event, in which a client fills at most one slot, it takes the states of all clients'
      optimizers, as `first_optimizers` makes them. It returns the models reached, leaves `[S,
      ...]`, or the sum, leaves `[...]`; the states after the steps; and the gradient evaluations
      spent. The model of an empty slot is its start.
    """
    training = gradient_steps.training_of(
        problem, hyper, plan, direction=direction, proximal=proximal
    )

    def train(
        key: Key,
        event: Event,
        optimizers: Any,
        *,
        start: Params,
        extras: Any = (),
        total: Total | None = None,
    ) -> tuple[Params, Any, Work]:
        is_kept = hyper.training.optimizer_state == "kept"
        ends, states, work = gradient_steps.lasting_steps(
            plan,
            event,
            partial(training, key, event.facts),
            start=start,
            extras=extras,
            states=rows.read_clients(optimizers, event.clients) if is_kept else None,
            total=total,
        )
        return ends, rows.write_clients(optimizers, event.clients, states) if is_kept else (), work

    return train
