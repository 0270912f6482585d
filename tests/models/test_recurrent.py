"""Recurrent networks for text."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_sim import models


@pytest.mark.few(1)
@pytest.mark.parametrize(("cell", "expected"), [("lstm", 820_522), ("gru", None)])
def test_recurrent_network(cell: str, expected: int | None) -> None:
    """The number of parameters is the published one; logits depend on no later character."""
    model = models.CharacterRNN(90, cell=cell)
    params = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 80), int))
    assert expected in (None, sum(leaf.size for leaf in jax.tree.leaves(params)))
    small = models.CharacterRNN(5, 3, (4, 4), cell)
    codes = jnp.array([[0, 1, 2, 3, 4], [0, 1, 2, 4, 4]])
    weights = small.init(jax.random.key(1), codes)
    logits = small.apply(weights, codes)
    assert logits.shape == (2, 5, 5)
    np.testing.assert_array_equal(logits[0, :3], logits[1, :3])
    assert not np.allclose(logits[0, 3:], logits[1, 3:])
    np.testing.assert_allclose(small.apply(weights, codes[0]), logits[0], atol=1e-6)
    assert models.MODELS[f"char_{cell}"].make(90, None) == model  # type: ignore[arg-type]
