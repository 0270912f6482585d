"""The corollaries of FA-LD's Theorem 6.1, compared with the theorem and with values."""

import math

import numpy as np
import pytest

from experiments.fald.privacy import RUN
from fedjax_sim.theory.langevin import guarantee
from tests.experiments.fald import privacy_corollaries as corollaries

PRINTED = RUN._replace(step_size=1e-6)
pytestmark = pytest.mark.filterwarnings("ignore::fedjax_sim.theory.langevin.OutsiderWarning")


def test_corollaries() -> None:
    bare = PRINTED._replace(delta_round=0.0, delta_total=0.0)
    found = guarantee(bare)
    np.testing.assert_allclose(
        found.epsilon, 100 * math.log1p(0.2 * math.expm1(10 * found.epsilon_batch)), rtol=1e-12
    )
    np.testing.assert_allclose(found.delta, 0.2 * 0.1 * 1000 * 1e-6, rtol=1e-12)
    limit = corollaries.corollary_step_size(PRINTED)
    assert 0 < limit < PRINTED.largest_step_size
    for share in (1e-6, 1e-3, 0.1, 1.0):
        setup = PRINTED._replace(step_size=share * limit)
        assert guarantee(setup).epsilon <= corollaries.corollary_epsilon(setup)
        assert corollaries.leading_epsilon(setup) <= corollaries.corollary_epsilon(setup)
    small = PRINTED._replace(step_size=1e-9 * limit)
    np.testing.assert_allclose(
        corollaries.leading_epsilon(small), corollaries.corollary_epsilon(small), rtol=1e-3
    )
    halves = [PRINTED._replace(step_size=limit), PRINTED._replace(step_size=limit / 4)]
    np.testing.assert_allclose(
        corollaries.leading_epsilon(halves[0]),
        2 * corollaries.leading_epsilon(halves[1]),
        rtol=1e-12,
    )


def test_step_size_of_the_corollary_by_value() -> None:
    """The limit is (71) as printed and (59); each of the three conditions is the sharpest once."""
    sharpest = set()
    many = {
        "num_clients": 10**9,
        "least_weight": 1e-9,
        "num_selected": 1,
        "num_rounds": 1,
        "batch_fraction": 1.0,
    }
    for changes in ({}, {"batch_fraction": 1e-3}, {"delta_total": 1e-300, "rho": 0.8}, many):
        s = PRINTED._replace(
            sensitivity=1.7, temperature=0.6, delta_round=1e-3, local_steps=3, **changes
        )
        noise, logs = 0.6 * (1 - s.rho**2) * s.least_weight, math.log(1.25 / 1e-6)
        num_steps = 3 * s.num_rounds
        first = math.log(1 + math.sqrt(2 * math.log(1 / 1e-3) / 3)) ** 2
        second = (
            math.log(
                1
                + s.num_clients
                / s.num_selected
                * math.sqrt(2 * 3 * math.log(1 / s.delta_total) / num_steps)
            )
            ** 2
        )
        second /= 8 * 3 * math.log(1 / 1e-3)
        limits = (
            noise * s.batch_fraction**2 / (1.7**2 * logs),
            *(noise / (4 * 1.7**2 * logs) * term for term in (first, second)),
        )
        np.testing.assert_allclose(corollaries.corollary_step_size(s), min(limits), rtol=1e-12)
        sharpest.add(limits.index(min(limits)))
    assert sharpest == {0, 1, 2}
