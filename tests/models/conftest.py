"""A fixture that makes it an error to use a random key twice."""

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture
def key_reuse_check() -> Iterator[None]:
    with jax.debug_key_reuse(True):
        yield
