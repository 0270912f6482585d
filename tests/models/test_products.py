"""The dense layers' matrix product has the library's values and derivatives for any width."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax import lax

from fedjax_sim.kernels import products

DENSE = (((1,), (0,)), ((), ()))


@pytest.mark.few(1)
@pytest.mark.parametrize("outputs", [1, products.NARROW, products.NARROW + 1])
def test_values_and_derivatives_are_the_librarys(outputs: int) -> None:
    random = np.random.default_rng(0)
    x, w, along = (
        jnp.asarray(random.normal(size=shape), "float32")
        for shape in ((6, 9), (9, outputs), (9, outputs))
    )

    def loss(by, w, x):
        return jnp.sum(jnp.tanh(by(x, w, DENSE)) ** 2)

    for derivative in (
        lambda by: by(x, w, DENSE),
        lambda by: jax.grad(loss, argnums=(1, 2))(by, w, x),
        lambda by: jax.jvp(lambda w: jax.grad(loss, argnums=1)(by, w, x), (w,), (along,)),
        lambda by: jax.vmap(jax.grad(loss, argnums=1), in_axes=(None, 0, None))(
            by, jnp.stack([w, along]), x
        ),
    ):
        for ours, theirs in zip(
            jax.tree.leaves(derivative(products.auto)),
            jax.tree.leaves(derivative(lax.dot_general)),
            strict=True,
        ):
            np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-5)


def test_a_narrow_layers_weights_are_transposed_and_a_wide_ones_are_not() -> None:
    x = jnp.ones((4, 5))
    of_width = [
        str(jax.make_jaxpr(lambda w: products.auto(x, w, DENSE))(jnp.ones((5, n))))
        for n in (products.NARROW, products.NARROW + 1)
    ]
    assert ["optimization_barrier" in program for program in of_width] == [True, False]


def test_other_products_pass_as_they_are() -> None:
    random = np.random.default_rng(1)
    x, y = (jnp.asarray(random.normal(size=shape), "float32") for shape in ((2, 3, 4), (2, 4, 5)))
    batched = (((2,), (1,)), ((0,), (0,)))
    np.testing.assert_array_equal(products.auto(x, y, batched), lax.dot_general(x, y, batched))
    layer = nn.Dense(3, dot_general=products.auto, dtype="bfloat16", precision="highest")
    out, params = layer.init_with_output(jax.random.key(0), x)
    kernel = params["params"]["kernel"].astype("bfloat16")
    assert out.dtype == jnp.bfloat16
    np.testing.assert_allclose(
        out.astype("float32"), (x.astype("bfloat16") @ kernel).astype("float32"), rtol=2e-2
    )
