"""Local training with optimizers that remember: a client's state lasts from update to update.

Dimension letters: those of `fedjax_sim.types`.
"""

from collections.abc import Callable
from functools import partial

from fedjax_sim import batching, checking
from fedjax_sim.clients import gradient_steps, rows
from fedjax_sim.clients.gradient_steps import SumRequest
from fedjax_sim.clients.local_settings import ABOUT_TRAINING, ClientTraining, LocalTraining
from fedjax_sim.settings import group, struct
from fedjax_sim.types import Array, Event, Key, Losses, Params, Plan, Work


@struct
class LastingTraining(LocalTraining):
    """Settings of clients' local training, with optimizers that may remember.

    They are inherited by the settings of systems whose clients keep momentum, for example.

        kept = ClientTraining(optimizer=optax.adam, optimizer_state="kept")
        hyper = LastingTraining(lr=0.01, training=kept)
    """

    training: ClientTraining = group(ClientTraining(), ABOUT_TRAINING)


@checking.checked
def first_optimizers(problem: Losses, hyper: LastingTraining, model: Params) -> Params:
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


@checking.checked
def lasting_training(
    problem: Losses,
    hyper: LastingTraining,
    plan: Plan,
    *,
    proximal: Array | float | None = None,
) -> Callable[..., tuple[Params, Params, Work]]:
    """Bind local training with optimizers that may remember; see `local_training`.

    `proximal` is that of `local_training`.

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
    bind = checking.unchecked(gradient_steps.local_training)
    bound, is_kept = (
        bind(problem, hyper, plan, proximal=proximal),
        hyper.training.optimizer_state == "kept",
    )

    def train(
        key: Key,
        event: Event,
        optimizers: Params,
        *,
        start: Params,
        total: SumRequest | None = None,
    ) -> tuple[Params, Params, Work]:
        training = partial(bound.training, key, event.facts)
        states = rows.read_clients(optimizers, event.clients) if is_kept else None
        ends, states, work = checking.unchecked(gradient_steps.local_steps)(
            plan, event, training, start=start, states=states, total=total
        )
        return ends, rows.write_clients(optimizers, event.clients, states) if is_kept else (), work

    return train
