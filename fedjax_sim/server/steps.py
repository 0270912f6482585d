"""Settings of the server's step along the clients' mean progress, by any optax transformation.

Reddi et al. (2021, arXiv 2003.00295), Algorithm 1: the negative of the mean progress stands for a
gradient.
"""

from collections.abc import Callable
from typing import Any

import optax

from fedjax_sim.clients.local_settings import optimizer_named, refuse_name
from fedjax_sim.core.checking import Above0
from fedjax_sim.core.settings import setting, struct


def _makes_transformations(value: Any) -> bool:
    refuse_name("server_optimizer", value)
    try:
        return isinstance(value(0.1), optax.GradientTransformation)
    except (TypeError, ValueError):
        return False


@struct
class ServerStep:
    """Settings of the server's step. With the defaults it takes the clients' mean progress.

    They are inherited by the settings of FedOpt, for example.

        optimizer, progress = ServerStep(server_lr=0.5).server_transformation(), jnp.array([4.0])
        update, _ = optimizer.update(-progress, optimizer.init(progress))
        assert update == 0.5 * 4.0
        hyper = fedjax_sim.SYSTEMS["fedopt"].Hyper(server_lr=0.1, server_optimizer=optax.adam)
    """

    server_lr: Above0 = setting(1.0, "Learning rate of the server.")
    server_optimizer: Callable[..., optax.GradientTransformation] = setting(
        optax.sgd,
        "Optimizer of the server, whose state lasts.",
        allowed="the name of an optax optimizer, or a function from a learning rate to a gradient "
        "transformation",
        accepts=_makes_transformations,
        parse=optimizer_named,
    )

    def server_transformation(self) -> optax.GradientTransformation:
        """Make the server's optimizer."""
        return self.server_optimizer(self.server_lr)
