"""The step sizes of FedEM and VR-FedEM, against pinned values."""

import pytest

from fedjax_sim.core.settings import ConfigError
from fedjax_sim.theory import fedem as theory
from fedjax_sim.theory.fedem import Constants, FedEMSetup

UNIT = Constants(1.0, 1.0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("clients", "omega", "participation", "total", "second"),
    [
        (100, 1, 1, 1, 1.767767),
        (10, 1, 1, 1, 0.559017),
        (10, 9, 1, 9, 0.037268),
        (100, 1, 0.75, 5 / 3, 1.026980),
        (10, 1, 0.5, 3, 0.161374),
        (10, 9, 0.5, 19, 0.012825),
    ],
)
def test_largest_step_sizes(
    clients: int, omega: float, participation: float, total: float, second: float
) -> None:
    """The second term of (7) and of Theorem 3 has the pinned values; the first is 1/2."""
    setup = FedEMSetup(UNIT, clients, omega, participation)
    assert setup.total_omega == pytest.approx(total)
    assert theory.largest_step_size(setup) == pytest.approx(min(0.5, second), abs=1e-6)
    steep = setup._replace(constants=UNIT._replace(lyapunov_smoothness=0.01))
    assert theory.largest_step_size(steep) == pytest.approx(second, abs=1e-6)
    half = steep._replace(alpha=0.5 / (1 + omega))
    assert theory.largest_step_size(half) == pytest.approx(second / 2, abs=1e-6)
    with pytest.raises(ConfigError, match=r"alpha is .* at most 1 / "):
        theory.largest_step_size(setup._replace(alpha=1.01 / (1 + omega)))


@pytest.mark.parametrize(
    ("clients", "omega", "gamma"),
    [(100, 1, 0.364490), (10, 1, 0.153524), (16, 2.5, 0.077706), (1, 0, 1 / 3)],
)
def test_step_sizes_with_variance_reduction(clients: int, omega: float, gamma: float) -> None:
    found = theory.vr_step_size(UNIT, num_clients=clients, omega=omega)
    assert found == pytest.approx(gamma, rel=1e-5)
    unlike = Constants(2.0, 3.0, 0.5, 0.7)
    alone = theory.vr_step_size(unlike, num_clients=1, omega=0)
    assert alone == pytest.approx(0.5 / (3 + 2 * 0.7 * 2))


def test_numbers_without_a_bound_are_refused() -> None:
    """A step size that is no step size, such as a negative one, is not returned."""
    for given in ({"alpha": 0.0}, {"alpha": -1.0}, {"participation": 0.0}):
        [name] = given
        with pytest.raises(ConfigError, match=f"{name} is "):
            FedEMSetup(**{"constants": UNIT, "num_clients": 10, "omega": 1.0} | given)
    with pytest.raises(ConfigError, match=r"participation is 0\.0"):
        theory.total_omega(1.0, 0.0)
    for name in ("lyapunov_smoothness", "least", "most"):
        with pytest.raises(ConfigError, match=f"{name} is -1.0, but must be .* above 0"):
            Constants(**UNIT._asdict() | {name: -1.0})
