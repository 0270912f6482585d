"""The delays of groups under the linear model of Ali and Arafa, arXiv 2302.04851 (Sec. IV)."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fedjax_sim.core.settings import checked
from fedjax_sim.theory.hierarchical import Delays


@checked
def linear_delays(sizes: npt.ArrayLike, coefficients: Sequence[float]) -> Delays:
    """Compute the delays of groups of given sizes under the paper's linear model (Sec. IV).

    Group i has c_i = d size + b and 1 / lambda_i = e size + f. The global server has the same
    form with the number of groups in place of the size. The coefficients are d, b, e, f, d_g,
    b_g, e_g, f_g, in the paper's order.
    """
    d, b, e, f, d_g, b_g, e_g, f_g = coefficients
    clients = np.asarray(sizes, np.float64)
    return Delays(
        d * clients + b, e * clients + f, d_g * len(clients) + b_g, e_g * len(clients) + f_g
    )
