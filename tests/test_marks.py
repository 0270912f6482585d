"""The mark `few` leaves the first and the last cases of a test, and some between them."""

import os

import pytest


@pytest.mark.few(3)
@pytest.mark.parametrize("case", range(9))
def test_a_few_cases_run_by_default(case: int) -> None:
    assert case in (0, 4, 8) or os.environ.get("FEDJAX_SIM_SLOW_TESTS")
