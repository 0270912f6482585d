"""One loss for every client, as an option of problems that are given by their losses.

Dimension letters: `N` clients.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import ClassVar

import jax
import jax.numpy as jnp

from fedjax_sim.core.types import Array, Params

CLIENTS_AT_ONCE = 50
"""Number of clients for which losses are computed together."""


class ClientLosses:
    """Shared by problems with the method `client_loss` and the option `per_client`.

    Their clients have no test examples, so that a client's loss is that of its training data.
    """

    per_client: bool
    client_loss: Callable[..., Array]
    less_is_better: ClassVar[Sequence[str]] = ("loss", "client_loss")

    @property
    def metric_labels(self) -> Mapping[str, Sequence[Hashable]]:
        """Names of the clients, if they have some."""
        names = getattr(self, "client_ids", None)
        return {} if names is None else {"client": names}

    def losses_of_clients(self, params: Params, num_clients: int) -> dict[str, Array]:
        """Compute the loss of every client, if `per_client` asks for it.

        Args:
          params: The model, which is the same for all.
          num_clients: N.

        Returns:
          "client_loss[client]": `f[N]`, `client_loss` of each client; otherwise nothing.
        """
        if not self.per_client:
            return {}
        losses = jax.lax.map(
            lambda client: self.client_loss(params, client, jax.random.key(0)),
            jnp.arange(num_clients),
            batch_size=CLIENTS_AT_ONCE,
        )
        return {"client_loss[client]": losses}
