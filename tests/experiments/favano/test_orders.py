"""FAVANO's times: the tuning lemma, the rows of Table 1, and the time of a server step."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from experiments.favano.formulas import bounds as formulas
from experiments.favano.formulas.orders import (
    Orders,
    favano_orders,
    favano_orders_printed,
    quafl_orders,
)
from fedjax_sim.theory import favano as theory
from tests.experiments.favano import table1
from tests.experiments.favano.quadratics import small_quadratics


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(11)


# Time to an accuracy


def test_tuning_lemma(random: np.random.Generator) -> None:
    for _ in range(300):
        terms = formulas.ErrorTerms(*10 ** random.uniform(-3, 3, 4))
        for ticks in (1, 37, 10_000):
            step_size = table1.tuned_step_size(terms, num_ticks=ticks)
            error = (
                terms.initial / (step_size * ticks)
                + terms.linear * step_size
                + terms.quadratic * step_size**2
            )
            assert step_size <= 1 / terms.cap * (1 + 1e-12)
            assert error <= table1.tuned_bound(terms, num_ticks=ticks) * (1 + 1e-12)
        accuracy = 10 ** random.uniform(-3, 1)
        enough = int(np.ceil(table1.sufficient_ticks(terms, accuracy=accuracy)))
        assert table1.tuned_bound(terms, num_ticks=enough) <= accuracy


def test_tuning_lemma_needs_its_factors_of_two() -> None:
    """With one term to balance, the error equals the bound, up to the negligible term in d.

    The bound is twice (b r_0 / T)^(1/2) or twice e^(1/3) (r_0 / T)^(2/3).
    """
    for terms in (
        formulas.ErrorTerms(2.0, 3.0, 0.0, 1e-9),
        formulas.ErrorTerms(2.0, 0.0, 3.0, 1e-9),
    ):
        step_size = table1.tuned_step_size(terms, num_ticks=100)
        error = (
            terms.initial / (step_size * 100)
            + terms.linear * step_size
            + terms.quadratic * step_size**2
        )
        np.testing.assert_allclose(error, table1.tuned_bound(terms, num_ticks=100), rtol=1e-6)
    np.testing.assert_allclose(
        table1.sufficient_ticks(formulas.ErrorTerms(2.0, 3.0, 4.0, 5.0), accuracy=0.25),
        3456 + 480 + 120,
    )
    plain = formulas.ErrorTerms(2.0, 0.0, 0.0, 5.0)
    assert table1.tuned_step_size(plain, num_ticks=100) == 0.2


def test_sufficient_ticks_of_the_theorem(random: np.random.Generator) -> None:
    """The corollary with its constants, where the paper's condition on the step size binds."""
    setup = small_quadratics(random).setup(3, "stochastic")
    assert formulas.bound(setup, step_size=1e-4, num_ticks=10**6) == pytest.approx(
        formulas.error_terms(setup).initial / 100
        + formulas.error_terms(setup).linear * 1e-4
        + formulas.error_terms(setup).quadratic * 1e-8
    )
    gap, b = setup.initial_gap, setup.drift_constant
    first = (
        72 * gap * (setup.gradient_variance * setup.noise_constant + 8 * setup.dissimilarity * b)
    )
    last = 120 * 11 * gap * b * 8
    for accuracy, leading in ((1e-12, first / 1e-24), (1e12, last / 1e12)):
        np.testing.assert_allclose(
            table1.sufficient_ticks(formulas.error_terms(setup), accuracy=accuracy),
            leading,
            rtol=1e-4,
        )
    orders = favano_orders(setup)
    np.testing.assert_allclose([orders.two, orders.one], [first / 72, last / 120 * 10 / 11])


ROWS: dict[str, Callable[[theory.FavanoSetup], Orders]] = {
    "favano": favano_orders,
    "fedavg": table1.fedavg_orders,
    "async_sgd": partial(table1.async_sgd_orders, mean_delay=9.0, max_delay=30.0),
    "quafl": partial(quafl_orders, mean_steps=5.0),
    "favano_printed": favano_orders_printed,
    "fedavg_printed": table1.fedavg_orders_printed,
    "async_sgd_printed": partial(table1.async_sgd_orders_printed, mean_delay=9.0, max_delay=30.0),
}
SETUP = theory.FavanoSetup(
    num_clients=100,
    num_contacted=20,
    max_steps=20,
    smoothness=1.7,
    gradient_variance=0.6,
    dissimilarity=2.3,
    dissimilarity_factor=1.4,
    initial_gap=3.1,
    noise_constant=0.35,
    drift_constant=1.35,
)


@pytest.mark.parametrize("row", ROWS)
def test_time_does_not_depend_on_units(row: str) -> None:
    """In other units of objective and weights, times stay; only the rows as printed change."""
    objective, length = 3.0, 0.7
    square = (objective / length) ** 2
    scaled = SETUP._replace(
        smoothness=SETUP.smoothness * objective / length**2,
        gradient_variance=SETUP.gradient_variance * square,
        dissimilarity=SETUP.dissimilarity * square,
        initial_gap=SETUP.initial_gap * objective,
    )
    in_units = np.array(ROWS[row](scaled)) / square ** np.array([2, 1.5, 1])
    assert np.allclose(in_units, ROWS[row](SETUP)) != row.endswith("_printed")


@pytest.mark.parametrize("row", ["favano", "fedavg", "async_sgd"])
def test_printed_rows_agree_where_the_slips_do_not_show(row: str) -> None:
    """With smoothness and gap equal to 1, the misprints make no difference."""
    unit = SETUP._replace(smoothness=1.0, initial_gap=1.0)
    np.testing.assert_allclose(ROWS[row + "_printed"](unit), ROWS[row](unit))


def test_dependence_on_the_number_of_clients() -> None:
    """FAVANO's lower-order terms grow like n, QuAFL's like n^1.5; the leading terms stay."""
    more = SETUP._replace(num_clients=1600)
    for row, power in (("favano", 1), ("quafl", 1.5)):
        np.testing.assert_allclose(
            np.array(ROWS[row](more)) / ROWS[row](SETUP), [1, 16**power, 16**power]
        )


def test_values_of_the_rows() -> None:
    """All rows for one setup, worked out by hand."""
    setup = theory.FavanoSetup(4, 2, 3, 1.0, 1.0, 1.0, 4.0, 2.0, 0.5, 2.0)
    np.testing.assert_allclose(favano_orders(setup), [33.0, 4 * 28**0.5, 192.0])
    np.testing.assert_allclose(table1.fedavg_orders(setup), [5 / 6, 2.0, 8.0])
    np.testing.assert_allclose(
        table1.async_sgd_orders(setup, mean_delay=2.0, max_delay=8.0), [14.0, 4.0, 8.0]
    )
    np.testing.assert_allclose(
        quafl_orders(setup, mean_steps=2.0), [10.5, 12 * 7**0.5, 72 * 2**0.5]
    )
    steep = setup._replace(smoothness=4.0)
    np.testing.assert_allclose(favano_orders_printed(steep), [132.0, 64 * 163**0.5, 768.0])
    np.testing.assert_allclose(table1.fedavg_orders_printed(steep), [9.5 / 6, 4.0, 32.0])
    np.testing.assert_allclose(
        table1.async_sgd_orders_printed(steep, mean_delay=2.0, max_delay=8.0), [56.0, 16.0, 32**0.5]
    )
