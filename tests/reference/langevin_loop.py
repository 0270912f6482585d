"""FA-LD as a slow loop in plain NumPy."""

from collections.abc import Callable

import numpy as np


def run(
    *,
    start: np.ndarray,
    share: np.ndarray,
    rounds: list[list[tuple[int, float]]],
    num_steps: int | list[int],
    step_size: Callable[[int], float],
    temperature: float,
    rho: float,
    gradient: Callable[[int, int, np.ndarray], np.ndarray],
    private: Callable[[int, int], np.ndarray],
    shared: Callable[[int], np.ndarray],
) -> list[np.ndarray]:
    """Simulate rounds.

    Args:
      start: The initial model.
      share: p_c, `f64[N]`.
      rounds: For each round, the clients with their weights in the average.
      num_steps: K, or the steps of each round.
      step_size: From the global step k to eta.
      temperature: tau.
      rho: Weight of the shared noise.
      gradient: From client, k and model to the gradient of f^c.
      private: From client and k to a standard normal vector.
      shared: From k to a standard normal vector.

    Returns:
      The server's model after each round.
    """
    server, k, models = start.copy(), 0, []
    for t, members in enumerate(rounds):
        local = {client: server.copy() for client, _ in members}
        for _ in range(num_steps if isinstance(num_steps, int) else num_steps[t]):
            eta = step_size(k)
            for client in local:
                private_tau = temperature * (1 - rho**2) / share[client]
                private_noise = np.sqrt(2 * eta * private_tau) * private(client, k)
                shared_noise = np.sqrt(2 * eta * temperature * rho**2) * shared(k)
                drift = -eta * gradient(client, k, local[client])
                local[client] = local[client] + drift + shared_noise + private_noise
            k += 1
        server = sum(weight * local[client] for client, weight in members)
        models.append(server.copy())
    return models
