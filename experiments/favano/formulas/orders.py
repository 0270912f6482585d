"""Server steps that FAVANO and QuAFL need for an accuracy, float64.

The paper is Leconte, Nguyen and Moulines, arXiv 2305.16099, Table 1. "Deviation:" marks where this
module corrects it. In comments, eps is the accuracy, and n, s, K, L, sigma^2, G^2, B^2, F, a, b are
the fields of `FavanoSetup`.
"""

from typing import NamedTuple

from fedjax_sim.core.settings import checked
from fedjax_sim.theory.favano import FavanoSetup


class Orders(NamedTuple):
    """A number of server steps, c_2 / eps^2 + c_32 / eps^(3/2) + c_1 / eps up to constant factors.

    The accuracy eps bounds a squared gradient.

    Attributes:
        two: c_2.
        three_halves: c_32.
        one: c_1.
    """

    two: float
    three_halves: float
    one: float


@checked
def favano_orders(setup: FavanoSetup) -> Orders:
    """Collect FAVANO's row of Table 1, which is also the corollary (11)-(12).

    The middle term is that of the bound which is proved, not the printed one.
    """
    n, s, K, squared = (setup.num_clients, setup.num_contacted, setup.max_steps, setup.max_steps**2)
    sigma2, G2, a, b = (
        setup.gradient_variance,
        setup.dissimilarity,
        setup.noise_constant,
        setup.drift_constant,
    )
    FL = setup.initial_gap * setup.smoothness
    # Deviation: in the middle term the paper prints F L^2 for F L and L^2 K^2 G^2 for K^2 G^2. As
    # printed, its unit differs from that of the other terms.
    middle = (
        n / s * FL * (squared * sigma2 + squared * G2 + s**2 * sigma2 * a + s**2 * G2 * b) ** 0.5
    )
    return Orders(
        FL * (sigma2 * a + 8 * G2 * b), middle, n * FL * setup.dissimilarity_factor * K * b
    )


@checked
def favano_orders_printed(setup: FavanoSetup) -> Orders:
    """Collect FAVANO's row of Table 1 as printed."""
    n, s, K, L = setup.num_clients, setup.num_contacted, setup.max_steps, setup.smoothness
    sigma2, G2, a, b = (
        setup.gradient_variance,
        setup.dissimilarity,
        setup.noise_constant,
        setup.drift_constant,
    )
    root = (K**2 * sigma2 + L**2 * K**2 * G2 + s**2 * sigma2 * a + s**2 * G2 * b) ** 0.5
    return favano_orders(setup)._replace(three_halves=n / s * setup.initial_gap * L**2 * root)


@checked
def quafl_orders(setup: FavanoSetup, *, mean_steps: float) -> Orders:
    """Collect QuAFL's row of Table 1.

    `mean_steps` is E, the expected number of local steps between two contacts.
    """
    n, s, K = setup.num_clients, setup.num_contacted, setup.max_steps
    FL, spread = (
        setup.initial_gap * setup.smoothness,
        setup.gradient_variance + 2 * K * setup.dissimilarity,
    )
    return Orders(
        FL * K * spread / mean_steps**2,
        n**1.5 * FL * K * spread**0.5 / (mean_steps**1.5 * s**0.5),
        n**1.5 * FL * setup.dissimilarity_factor**0.5 * K**2 / (mean_steps * s**0.5),
    )
