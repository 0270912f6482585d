"""The noise of Langevin dynamics as an optax transformation.

It is compared with blackjax's SGLD, and composed with other transformations.
"""

from typing import Any

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_sim.clients.langevin_noise import add_langevin_noise

KEY = jax.random.key(5)
START = {"a": jnp.array([1.0, -2.0, 0.5]), "b": jnp.array([[0.3], [2.0]])}


def gradient(params: Any) -> Any:
    """Compute the gradient of the sum of w^2 - w over all coordinates."""
    return jax.tree.map(lambda w: 2 * w - 1, params)


def path(optimizer: optax.GradientTransformation, steps: int) -> list[Any]:
    """Follow an optimizer from START and return the parameters after each step."""
    params, state, found = START, optimizer.init(START), []
    for _ in range(steps):
        updates, state = optimizer.update(gradient(params), state, params)
        params = optax.apply_updates(params, updates)
        found.append(params)
    return found


def assert_close(a: Any, b: Any) -> None:
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), a, b)


def test_after_gradient_descent_it_is_blackjaxs_sgld() -> None:
    """With the same draws: one vector for the whole tree, drawn by the number of the step."""
    sgld = blackjax.sgld(lambda params, _: jax.tree.map(jnp.negative, gradient(params)))
    params = START
    for k, found in enumerate(
        path(optax.chain(optax.sgd(0.1), add_langevin_noise(KEY, 0.1, 0.7, first=4)), 5)
    ):
        params = sgld.step(jax.random.fold_in(KEY, 4 + k), params, None, 0.1, 0.7)
        assert_close(found, params)


def test_a_schedule_of_step_sizes_is_called_with_the_number_of_the_step() -> None:
    """Noise has variance 2 eta_k tau; its draw depends only on the number k of the step."""
    late = path(
        optax.chain(
            optax.set_to_zero(), add_langevin_noise(KEY, lambda k: 0.1 / (1 + k), 0.5, first=3)
        ),
        1,
    )[0]
    constant = path(optax.chain(optax.set_to_zero(), add_langevin_noise(KEY, 0.1, 0.5)), 4)
    step = jax.tree.map(lambda x, y: x - y, constant[3], constant[2])
    assert_close(jax.tree.map(lambda x, y: (x - y) * 2, late, START), step)


def test_two_noises_and_momentum() -> None:
    """Variances of two noises with different keys add up; temperature 0 adds nothing."""
    both = path(
        optax.chain(
            optax.sgd(0.1, momentum=0.9),
            add_langevin_noise(KEY, 0.1, 0.0),
            add_langevin_noise(KEY, 0.1, 0.0),
        ),
        3,
    )
    assert_close(both, path(optax.sgd(0.1, momentum=0.9), 3))
    keys = jax.vmap(jax.random.key)(jnp.arange(4000))

    def last(key: jax.Array) -> jax.Array:
        noise = optax.chain(
            add_langevin_noise(jax.random.fold_in(key, 0), 0.1, 0.3),
            add_langevin_noise(jax.random.fold_in(key, 1), 0.1, 0.7),
        )
        return noise.update(jnp.zeros(2), noise.init(jnp.zeros(2)))[0]

    found = np.asarray(jax.vmap(last)(keys)).ravel()
    assert abs(found.var() - 0.2) < 5 * 0.2 * np.sqrt(2 / found.size)


def test_noise_of_one_key_is_drawn_once() -> None:
    """A batch of chains with one key and different temperatures, some 0, draws its noise once.

    Every chain gets the same noise as alone. Chains with different keys draw once for each key.
    """
    temperatures, updates, keys = (
        jnp.array([0.5, 0.0, 2.0, 1.0, 3.0]),
        {"w": jnp.arange(3.0)},
        jax.random.split(KEY, 2),
    )

    def noisy(key: jax.Array, temperature: jax.Array) -> jax.Array:
        noise = add_langevin_noise(key, 0.1, temperature)
        return noise.update(updates, noise.init(updates))[0]["w"]

    both = jax.vmap(jax.vmap(noisy, (None, 0)), (0, None))
    found = both(keys, temperatures)
    for i, key in enumerate(keys):
        for k, temperature in enumerate(temperatures):
            np.testing.assert_allclose(found[i, k], noisy(key, temperature), rtol=1e-6)
    np.testing.assert_allclose(
        jax.vmap(jax.vmap(noisy, (0, None)), (None, 0))(keys, temperatures),
        found.swapaxes(0, 1),
        rtol=1e-6,
    )
    drawn = [
        line
        for line in str(jax.make_jaxpr(both)(keys, temperatures)).splitlines()
        if "erf_inv" in line
    ]
    assert len(drawn) == 1 and "f32[2,3]" in drawn[0]


def test_derivatives_pass_through_the_noise() -> None:
    """The derivative by the step size is minus the gradient, plus noise / (2 step size).

    Forward and backward mode, alone and in a batch.
    """

    def after(eta: jax.Array) -> jax.Array:
        optimizer = optax.chain(optax.scale(-1.0 * eta), add_langevin_noise(KEY, eta, 0.7))
        return optimizer.update(jnp.array([1.0, -2.0]), optimizer.init(jnp.zeros(2)))[0]

    eta = jnp.asarray(0.1)
    noise = after(eta) + eta * jnp.array([1.0, -2.0])
    expected = jnp.array([-1.0, 2.0]) + noise / (2 * eta)
    for derivative in (jax.jacfwd, jax.jacrev):
        np.testing.assert_allclose(derivative(after)(eta), expected, rtol=1e-5)
        np.testing.assert_allclose(
            jax.jit(jax.vmap(derivative(after)))(jnp.array([0.2, 0.1]))[1], expected, rtol=1e-5
        )


def test_a_negative_temperature_gives_nan() -> None:
    key, updates = jax.random.key(0), {"w": jnp.arange(3.0)}
    for temperature, is_moved in ((0.0, False), (1.0, True)):
        noise = add_langevin_noise(key, 0.1, temperature)
        after, state = noise.update(updates, noise.init(updates))
        assert bool(jnp.all(after["w"] == updates["w"])) != is_moved and int(state.step) == 1
    lost, _ = add_langevin_noise(key, 0.1, -1.0).update(updates, noise.init(updates))
    assert bool(jnp.isnan(lost["w"]).all())
