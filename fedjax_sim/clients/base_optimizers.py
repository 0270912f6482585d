"""Base optimizers with statistics of the server's, for MIME and MimeLite.

Karimireddy et al. (2021, arXiv 2008.03606) split an optimizer into an update U(g, s) and a rule
V(g, s) for its statistics s. Here both are results of an optax optimizer's `update`. Local steps
use U with the server's statistics and leave these as they are.

Dimension letters: those of `fedjax_sim.core.types`.
"""

from collections.abc import Callable
from typing import Annotated

import optax

from fedjax_sim.clients.gradient_steps import Training, local_steps, local_training
from fedjax_sim.clients.local_settings import LocalTraining
from fedjax_sim.core.settings import Limit, setting, struct
from fedjax_sim.core.types import Array, Event, Key, Losses, Params, Plan, Work


@struct
class BaseOptimizer(LocalTraining):
    """Settings of local training with a base optimizer, by default SGD with momentum.

    Momentum has the paper's form, U = V = beta s + (1 - beta) g.

        hyper = BaseOptimizer(lr=1.0, momentum=0.9)
        base = hyper.local_optimizer()
        update, _ = base.update(jnp.array([4.0]), base.init(jnp.array([0.0])))
        assert jnp.allclose(update, -(1 - 0.9) * 4.0)
    """

    momentum: Annotated[float, Limit(least=0, most=0.999)] = setting(
        0.9, "Momentum of local steps, beta, if the base optimizer is sgd."
    )

    @property
    def has_momentum(self) -> bool:
        """Whether the base is SGD with momentum, and not another optimizer."""
        return self.training.optimizer is optax.sgd

    def decided(self) -> dict[str, str]:
        """Name the settings without effect, and those in their place."""
        found = super().decided()
        return found if self.has_momentum else found | {"momentum": "another optimizer"}

    def local_optimizer(self) -> optax.GradientTransformation:
        """Make the base optimizer."""
        if not self.has_momentum:
            return super().local_optimizer()
        scale = optax.scale_by_learning_rate(self.lr)
        return optax.chain(optax.scale(1 - self.momentum), optax.trace(self.momentum), scale)


def frozen_training(
    problem: Losses, hyper: BaseOptimizer, plan: Plan
) -> Callable[[Key, Event, Params, Params], tuple[Params, Work]]:
    """Bind local training: y <- y - lr U(g, s), as often as the event says.

        hyper = BaseOptimizer(lr=0.5, momentum=0.0, batch_size=1)
        statistics = hyper.local_optimizer().init(model)
        models, _ = frozen_training(problem, hyper, plan)(key, event, model, statistics)
        assert jnp.allclose(models[1], 0.5 * problem.centers[3])  # one step of client 3

    Returns:
      A function from the lane's learning key, the tick, the model that all slots start from and
      the statistics s to the models reached, leaves `[S, ...]`, and the gradient evaluations spent.
    """
    bound = local_training(problem, hyper, plan)

    def train(key: Key, event: Event, start: Params, statistics: Params) -> tuple[Params, Work]:
        def frozen(given: Training) -> Training:
            base, at_step = given.optimizer, given.at_step
            optimizer = optax.GradientTransformation(
                lambda y: (), lambda g, _, y: (base.update(g, statistics, y)[0], ())
            )
            later = None if at_step is None else lambda q: frozen(at_step(q))
            return given._replace(optimizer=optimizer, is_elementwise=False, at_step=later)

        def training(*slot: Params, **rates: Array) -> Training:
            return frozen(bound.training(key, event.facts, *slot, **rates))

        rates = hyper.of_slots(event)
        models, _, work = local_steps(plan, event, training, start=start, rates=rates)
        return models, work

    return train
