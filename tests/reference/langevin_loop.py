"""FA-LD as a slow loop in plain NumPy: every client takes part in the shared noise, and some in the average."""

from collections.abc import Callable

import numpy as np


def run(
    *,
    start: np.ndarray,
    share: np.ndarray,
    rounds: list[list[tuple[int, float]]],
    num_steps: int,
    step_size: Callable[[int], float],
    temperature: float,
    rho: float,
    gradient: Callable[[int, int, np.ndarray], np.ndarray],
    private: Callable[[int, int], np.ndarray],
    shared: Callable[[int], np.ndarray],
) -> list[np.ndarray]:
    """Simulate rounds, each a list of clients with their weights; returns the server's model after each.

    share: `f64[N]`, p_c. gradient(client, k, model): of the client's rescaled energy f^c, at global step k. private(client, k), shared(k):
    standard normal vectors.
    """
    server, k, models = start.copy(), 0, []
    for members in rounds:
        local = {client: server.copy() for client, _ in members}
        for _ in range(num_steps):
            eta = step_size(k)
            for client in local:
                own = np.sqrt(2 * eta * temperature * (1 - rho**2) / share[client]) * private(
                    client, k
                )
                common = np.sqrt(2 * eta * temperature * rho**2) * shared(k)
                local[client] = (
                    local[client] - eta * gradient(client, k, local[client]) + common + own
                )
            k += 1
        server = sum(weight * local[client] for client, weight in members)
        models.append(server.copy())
    return models
