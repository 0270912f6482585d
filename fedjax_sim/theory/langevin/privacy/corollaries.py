"""What follows from Theorem 6.1: simpler bounds under scheme II, and the largest rho."""

import numpy as np

from fedjax_sim.checking import Above0, Probability, checked
from fedjax_sim.theory.langevin.privacy.setup import PrivacySetup, check_run, check_step_size
from fedjax_sim.theory.langevin.privacy.theorem import guarantee


@checked
def corollary_step_size(setup: PrivacySetup) -> float:
    """Compute the step size up to which `corollary_epsilon` holds, by (71) and (59).

    Args:
        setup: The run, with scheme II, the adversary "outsider", and delta_1 and delta_2 above 0.
            Its step size is ignored.

    Returns:
        The largest eta.

    Raises:
        ValueError: If the corollary does not hold for the run, or a setting is outside its range.
    """
    _check_corollary(setup)
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


@checked
def corollary_epsilon(setup: PrivacySetup) -> float:
    """Compute the simpler bound (75) on epsilon^(3).

    Args:
        setup: The run, as in `corollary_step_size`, whose value its step size must not exceed.

    Returns:
        The bound.

    Raises:
        ValueError: If the step size is not positive or too large, the corollary does not hold for
            the run, or a setting is outside its range.
    """
    check_step_size(setup.step_size, corollary_step_size(setup), "conditions (59) and (71)")
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


@checked
def leading_epsilon(setup: PrivacySetup) -> float:
    """Compute the leading order of (75) for small step sizes, (76)-(77).

    The paper gives the order; the constant 16 is derived.

    Args:
        setup: The run, as in `corollary_step_size`. Its step size is not checked.

    Returns:
        The leading order of epsilon^(3).

    Raises:
        ValueError: If the corollary does not hold for the run, or a setting is outside its range.
    """
    _check_corollary(setup)
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


@checked
def largest_rho(setup: PrivacySetup, *, epsilon: Above0, delta: Probability = 1.0) -> float:
    """Find the largest rho at which the guarantee is still within epsilon and delta.

    This is the tuning of Sec. 6: a larger rho is more accurate and less private.

    Args:
        setup: The run. Its rho is ignored.
        epsilon: Largest acceptable epsilon^(3).
        delta: Largest acceptable delta^(3).

    Returns:
        rho, in [0, 1).

    Raises:
        ValueError: If even rho = 0 does not meet both, or a setting is outside its range.
    """

    def is_within(rho: float) -> bool:
        at = setup._replace(rho=rho)
        if rho >= 1 or setup.step_size > at.largest_step_size:
            return False
        reached = guarantee(at)
        return reached.epsilon <= epsilon and reached.delta <= delta

    if not is_within(0.0):
        raise ValueError(
            f"epsilon is {epsilon:g} and delta is {delta:g}, but must be larger: the run does not "
            "reach them even at rho = 0."
        )
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if is_within(middle) else (low, middle)
    return low


def _check_corollary(setup: PrivacySetup) -> None:
    """Refuse runs for which the corollaries do not hold."""
    check_run(setup)
    for name, value, needed in (
        ("scheme", setup.scheme, "without_replacement"),
        ("adversary", setup.adversary, "outsider"),
    ):
        if value != needed:
            raise ValueError(f"{name} is {value!r}, but must be {needed!r} in the corollaries.")
    for name, slack in (("delta_round", setup.delta_round), ("delta_total", setup.delta_total)):
        if slack == 0:
            raise ValueError(f"{name} is 0, but must be above 0 in the corollaries.")
