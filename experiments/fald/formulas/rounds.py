"""How many rounds FA-LD (arXiv 2112.05120) needs for an accuracy.

The accuracy is a 2-Wasserstein distance W2 to the target law. There are two answers.

By the bounds, the number of rounds first falls and then rises with the number K of local steps; the
best K is near sqrt(kappa) (Sec. 5).

Exactly, for Gaussian clients, it depends on how the step size is chosen (derived). With a fixed
step size, rounds fall like 1 / K until the bias exceeds the accuracy, and are infinite for larger
K. With a step size tuned for each K, rounds never rise with K if gradient noise limits the step
size, and K = 1 is best if gradients are exact.

Symbols are those of `experiments.fald.formulas.bounds`. Dimension letter: `E` step sizes tried.

Arguments: `setup` has constants that are single numbers; `target` has the clients and the
temperature, without batch axes; `start` is the law of the first model, `f64[P]` and `f64[P, P]`;
`accuracy` is the required W2, positive; `local_steps` is K, at least 1; `rho` is the mixing weight
of the shared noise, in [0, 1]; `participation` says which clients are averaged; `most_rounds` is
the number of rounds after which to give up. A rho outside [0, 1] and a participation that is not
possible raise a ValueError.
"""

from collections.abc import Iterator

import numpy as np

from experiments.fald.formulas import exact_laws
from experiments.fald.formulas.bounds import LangevinSetup, start_bound
from experiments.fald.formulas.exact_laws import GaussianTarget, Numbers, Participation, Real
from fedjax_sim.core.settings import Above0, Count, Whole, checked
from fedjax_sim.results.diagnostics import Gaussian, wasserstein2

CHUNK = 64
"""Number of rounds that are computed before checking whether the accuracy is reached."""


# By the bounds ------------------------------------------------------------------------------------


@checked
def sufficient_step_size(setup: LangevinSetup, accuracy: Above0, *, local_steps: Count) -> float:
    """Compute the step size at which the bias of Theorem B.6 is half of the accuracy. Derived.

    It is limited to the largest step size for which the theorem holds, 1 / (2 L).
    """
    kappa, drift = setup.condition_number, (local_steps - 1) ** 2 + setup.condition_number
    scale = 3600 * kappa**2 * setup.strong_convexity * setup.dim * drift * setup.spread
    return float(min(setup.largest_step_size, accuracy**2 / scale))


@checked
def sufficient_steps(setup: LangevinSetup, accuracy: Above0, *, local_steps: Count) -> int:
    """Compute after how many steps Theorem B.6 guarantees the accuracy. Derived.

    Steps are of `sufficient_step_size`. The number of rounds is this over K.
    """
    rate = sufficient_step_size(setup, accuracy, local_steps=local_steps) * setup.strong_convexity
    return max(0, int(np.ceil(4 / rate * np.log(2 * start_bound(setup) / accuracy))))


# Exactly ------------------------------------------------------------------------------------------


@checked
def rounds_to(
    target: GaussianTarget,
    start: Gaussian,
    accuracy: Above0,
    *,
    step_size: Real,
    local_steps: Count,
    rho: float = 0.0,
    participation: Participation = exact_laws.FULL,
    most_rounds: Whole = 100_000,
) -> Numbers:
    """Count the rounds until the model's law is first within the accuracy of the target law.

    step_size is eta, a number or `f64[E]`, and so is the result, infinite where `most_rounds` are
    not enough.
    """
    first = np.full(np.shape(step_size), np.inf)
    for begun, distance in _distances(
        target, start, step_size, local_steps, rho, participation, most_rounds
    ):
        is_close = distance <= accuracy
        found = np.where(is_close.any(axis=0), begun + is_close.argmax(axis=0), np.inf)
        first = np.minimum(first, found)
        if np.isfinite(first).all():
            break
    return first


@checked
def tuned_rounds(
    target: GaussianTarget,
    start: Gaussian,
    accuracy: Above0,
    *,
    local_steps: Count,
    between: tuple[float, float],
    rho: float = 0.0,
    participation: Participation = exact_laws.FULL,
    most_rounds: Whole = 100_000,
    refinements: Whole = 2,
) -> tuple[float, float]:
    """Find the fewest rounds to the accuracy over all step sizes, and a step size that takes them.

    It tries 60 step sizes in equal ratios, and then `refinements` times 60 between the neighbours
    of the best. `between` has the smallest and the largest step size to try, both positive.

    Returns:
        The rounds and the step size; infinity and NaN if no step size reaches the accuracy.
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
        found = _fewest(target, start, accuracy, most_rounds, how)
        if found is None:
            break
        count, place = found
        if count < best:
            best, chosen = count, float(np.exp(grid[place]))
        gap = grid[1] - grid[0]
        low, high = max(grid[place] - gap, least), min(grid[place] + gap, most)
    return best, chosen


def _fewest(
    target: GaussianTarget, start: Gaussian, accuracy: float, most_rounds: int, how: dict
) -> tuple[float, int] | None:
    """Find the first round at which any step size has arrived, and the step size closest then."""
    for begun, distance in _distances(target, start, **how, most_rounds=most_rounds):
        is_close = (distance <= accuracy).any(axis=1)
        if is_close.any():
            row = int(is_close.argmax())
            # A step size that diverges may have overflowed to NaN by then.
            return float(begun + row), int(np.nan_to_num(distance[row], nan=np.inf).argmin())
    return None


def _distances(
    target: GaussianTarget,
    start: Gaussian,
    step_size: Real,
    local_steps: int,
    rho: float,
    participation: Participation,
    most_rounds: int,
) -> Iterator[tuple[int, Numbers]]:
    """Yield the number of rounds before a chunk, and W2 at its rounds, `f64[CHUNK + 1, ...]`."""
    taken = exact_laws.one_round(
        target, step_size=step_size, local_steps=local_steps, rho=rho, participation=participation
    )
    goal = exact_laws.target_law(target)
    for begun in range(0, most_rounds + 1, CHUNK):
        laws = exact_laws.iterate_rounds(taken, start, min(CHUNK, most_rounds - begun))
        yield begun, wasserstein2(*laws, *goal)
        start = Gaussian(laws.mean[-1], laws.covariance[-1])
