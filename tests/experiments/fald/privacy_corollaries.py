"""Simpler bounds that follow from FA-LD's Theorem 6.1 (arXiv 2112.05120) under scheme II."""

import numpy as np

from fedjax_sim.theory.langevin import PrivacySetup


def corollary_step_size(setup: PrivacySetup) -> float:
    """Compute the step size up to which `corollary_epsilon` holds, by (71) and (59).

    Args:
        setup: The run, with scheme II, the adversary "outsider", and delta_1 and delta_2 above 0.
            Its step size is ignored.

    Returns:
        The largest eta.
    """
    share = setup.num_selected / setup.num_clients
    num_steps = setup.local_steps * setup.num_rounds
    of_round = np.log1p(np.sqrt(2 * np.log(1 / setup.delta_round) / setup.local_steps)) ** 2
    of_run = (
        np.log1p(np.sqrt(2 * setup.local_steps * np.log(1 / setup.delta_total) / num_steps) / share)
        ** 2
    )
    least = min(of_round, of_run / (8 * setup.local_steps * np.log(1 / setup.delta_round)))
    return float(
        min(
            setup.largest_step_size,
            setup.private_noise
            / (4 * setup.sensitivity**2 * np.log(1.25 / setup.delta_step))
            * least,
        )
    )


def corollary_epsilon(setup: PrivacySetup) -> float:
    """Compute the simpler bound (75) on epsilon^(3).

    Args:
        setup: The run, as in `corollary_step_size`, whose value its step size must not exceed.

    Returns:
        The bound.
    """
    share = setup.num_selected / setup.num_clients
    factor = np.sqrt(2 * np.log(1.25 / setup.delta_step))
    of_round = (
        4
        * factor
        * setup.sensitivity
        * np.sqrt(
            setup.step_size
            * setup.local_steps
            * np.log(1 / setup.delta_round)
            / setup.private_noise
        )
    )
    return float(
        2
        * np.sqrt(2 * setup.num_rounds * np.log(1 / setup.delta_total))
        * np.log1p(share * np.expm1(of_round))
    )


def leading_epsilon(setup: PrivacySetup) -> float:
    """Compute the leading order of (75) for small step sizes, (76)-(77).

    The paper gives the order; the constant 16 is derived.

    Args:
        setup: The run, as in `corollary_step_size`. Its step size is not checked.

    Returns:
        The leading order of epsilon^(3).
    """
    logs = (
        np.log(1.25 / setup.delta_step)
        * np.log(1 / setup.delta_round)
        * np.log(1 / setup.delta_total)
    )
    num_steps = setup.local_steps * setup.num_rounds
    return float(
        16
        * setup.num_selected
        * setup.sensitivity
        / setup.num_clients
        * np.sqrt(setup.step_size * num_steps * logs / setup.private_noise)
    )
