"""How many rounds FA-LD (arXiv 2112.05120) needs for an accuracy: by its bounds, and exactly for Gaussian clients.

Accuracy is a 2-Wasserstein distance to the target. By the bounds, rounds first fall then rise in the number K of local steps, with the
best K near sqrt(kappa) (Sec. 5). Exactly, it depends on who chooses the step size (derived): with a fixed one rounds fall like 1 / K
until the bias exceeds the accuracy, and are infinite from there on; with one tuned for each K, they never rise where gradient noise
limits the step size, and K = 1 is best where nothing does.
"""

from collections.abc import Iterator

import numpy as np

from fedjax_sim.diagnostics.gaussians import Gaussian, wasserstein2
from fedjax_sim.theory.langevin.bounds import LangevinSetup, start_bound
from fedjax_sim.theory.langevin.exact_laws import (
    FULL,
    GaussianTarget,
    Numbers,
    Participation,
    Real,
    iterate_rounds,
    one_round,
    target,
)

CHUNK = 64
"""Rounds that are followed at once."""


# By the bounds ------------------------------------------------------------------------------------------------------------------------


def sufficient_step_size(setting: LangevinSetup, accuracy: float, *, local_steps: int) -> float:
    """Compute a step size at which Theorem B.6's bias is half the accuracy, if the theorem allows it. Derived."""
    kappa, drift = setting.condition_number, (local_steps - 1) ** 2 + setting.condition_number
    scale = 3600 * kappa**2 * setting.strong_convexity * setting.dim * drift * setting.spread
    return float(min(setting.largest_step_size, accuracy**2 / scale))


def sufficient_steps(setting: LangevinSetup, accuracy: float, *, local_steps: int) -> int:
    """Compute a number of steps of that size after which Theorem B.6 guarantees the accuracy. Derived; rounds are this over K."""
    rate = (
        sufficient_step_size(setting, accuracy, local_steps=local_steps) * setting.strong_convexity
    )
    return max(0, int(np.ceil(4 / rate * np.log(2 * start_bound(setting) / accuracy))))


def sufficient_decreasing_steps(
    setting: LangevinSetup, accuracy: float, *, local_steps: int
) -> int:
    """Compute a number of steps after which Theorem B.7 guarantees the accuracy, at decreasing step sizes. Derived."""
    kappa, drift = setting.condition_number, (local_steps - 1) ** 2 + setting.condition_number
    needed = 2025 * kappa**2 * drift * setting.spread * setting.dim / accuracy**2
    return max(0, int(np.ceil(12 * (needed - 2 * kappa))))


def best_local_steps(condition_number: float) -> float:
    """Compute the K that minimises ((K - 1)^2 + kappa) / K, to which the rounds that Theorem B.6 asks for are proportional. Derived."""
    return float(np.sqrt(1 + condition_number))


# Exactly ------------------------------------------------------------------------------------------------------------------------------


def rounds_to(
    clients: GaussianTarget,
    start: Gaussian,
    accuracy: float,
    *,
    step_size: Real,
    local_steps: int,
    rho: float = 0.0,
    participation: Participation = FULL,
    most_rounds: int = 100_000,
) -> Numbers:
    """Count the rounds to the first model within the accuracy; infinite if that takes more than `most_rounds`.

    step_size: a number or `f64[E]`. Returns `f64[]` or `f64[E]`.
    """
    first = np.full(np.shape(step_size), np.inf)
    for begun, distance in _distances(
        clients, start, step_size, local_steps, rho, participation, most_rounds
    ):
        is_close = distance <= accuracy
        found = np.where(is_close.any(axis=0), begun + is_close.argmax(axis=0), np.inf)
        first = np.minimum(first, found)
        if np.isfinite(first).all():
            break
    return first


def tuned_rounds(
    clients: GaussianTarget,
    start: Gaussian,
    accuracy: float,
    *,
    local_steps: int,
    between: tuple[float, float],
    rho: float = 0.0,
    participation: Participation = FULL,
    most_rounds: int = 100_000,
    refinements: int = 2,
) -> tuple[float, float]:
    """Find the fewest rounds to the accuracy over step sizes, and a step size that achieves them.

    between: the least and the largest step size tried: 60 in equal ratios, then as many around the best, `refinements` times. Returns
    infinite rounds if no step size gets there.
    """
    least, most = np.log(between)
    low, high = least, most
    best, chosen = np.inf, np.nan
    for _ in range(refinements + 1):
        grid = np.linspace(low, high, 60)
        how = {
            "step_size": np.exp(grid),
            "local_steps": local_steps,
            "rho": rho,
            "participation": participation,
        }
        found = _fewest(clients, start, accuracy, most_rounds, how)
        if found is None:
            break
        count, place = found
        if count < best:
            best, chosen = count, float(np.exp(grid[place]))
        gap = grid[1] - grid[0]
        low, high = max(grid[place] - gap, least), min(grid[place] + gap, most)
    return best, chosen


def _fewest(
    clients: GaussianTarget, start: Gaussian, accuracy: float, most_rounds: int, how: dict
) -> tuple[float, int] | None:
    """The first round at which any step size has arrived, and the one of those that is then closest."""
    for begun, distance in _distances(clients, start, **how, most_rounds=most_rounds):
        is_close = (distance <= accuracy).any(axis=1)
        if is_close.any():
            row = int(is_close.argmax())
            # A step size that diverges has left the numbers by then.
            return float(begun + row), int(np.nan_to_num(distance[row], nan=np.inf).argmin())
    return None


def _distances(
    clients: GaussianTarget,
    start: Gaussian,
    step_size: Real,
    local_steps: int,
    rho: float,
    participation: Participation,
    most_rounds: int,
) -> Iterator[tuple[int, Numbers]]:
    """W2 to the target round by round, `f64[CHUNK + 1, ...]`, with the number of rounds before the first."""
    taken = one_round(
        clients, step_size=step_size, local_steps=local_steps, rho=rho, participation=participation
    )
    goal = target(clients)
    for begun in range(0, most_rounds + 1, CHUNK):
        laws = iterate_rounds(taken, start, min(CHUNK, most_rounds - begun))
        yield begun, wasserstein2(*laws, *goal)
        start = Gaussian(laws.mean[-1], laws.covariance[-1])
