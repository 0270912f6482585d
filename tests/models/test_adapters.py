"""Networks of nnx, equinox and haiku: outputs of the libraries themselves, dropout, and training.

Linen modules need no adapter and stand next to them.
"""

from typing import Any

import equinox as eqx
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx

import fedjax_sim
from fedjax_sim import models, problems
from fedjax_sim.systems import fedavg

KEY = jax.random.key(3)
X = np.random.default_rng(0).normal(size=(40, 3)).astype("float32")
TARGETS = np.sin(X).sum(axis=1)


class Nnx(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.wide = nnx.Linear(3, 5, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)
        self.out = nnx.Linear(5, 1, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.out(self.drop(nnx.relu(self.wide(x))))


class Equinox(eqx.Module):
    wide: eqx.nn.Linear
    drop: eqx.nn.Dropout
    out: eqx.nn.Linear

    def __init__(self, key: jax.Array):
        keys = jax.random.split(key)
        self.wide, self.out = eqx.nn.Linear(3, 5, key=keys[0]), eqx.nn.Linear(5, 1, key=keys[1])
        self.drop = eqx.nn.Dropout(0.5)

    def __call__(self, x: jax.Array, key: jax.Array | None = None) -> jax.Array:
        return self.out(self.drop(jax.nn.relu(self.wide(x)), key=key))


def haiku(x: jax.Array, train: bool = False) -> jax.Array:
    wide = jax.nn.relu(hk.Linear(5)(x))
    return hk.Linear(1)(hk.dropout(hk.next_rng_key(), 0.5, wide) if train else wide)


class Linen(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool = False) -> jax.Array:
        return nn.Dense(1)(nn.Dropout(0.5, deterministic=not train)(nn.relu(nn.Dense(5)(x))))


def of_library(name: str) -> tuple[Any, Any]:
    """Return an adapted network, and the outputs that its library computes for the same key."""
    if name == "nnx":
        module = Nnx(nnx.Rngs(KEY))
        module.eval()
        return models.from_nnx(Nnx), module(X)
    if name == "equinox":
        inferring = eqx.nn.inference_mode(Equinox(KEY))
        return models.from_equinox(Equinox), jax.vmap(inferring)(X)
    if name == "haiku":
        made = hk.transform(haiku)
        return models.from_haiku(haiku), made.apply(made.init(KEY, X[:1]), None, X)
    return Linen(), Linen().apply(Linen().init(KEY, X[:1]), X)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["nnx", "equinox", "haiku", "linen"])
def test_a_network_computes_what_its_library_does_and_learns(name: str) -> None:
    """Dropout makes losses of local steps random, and evaluations are certain."""
    model, expected = of_library(name)
    params = model.init(KEY, X[:1])
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == 3 * 5 + 5 + 5 + 1
    np.testing.assert_allclose(model.apply(params, X), expected, rtol=1e-5, atol=1e-6)
    problem = problems.supervised(
        model, problems.squared_error, (X, TARGETS), clients=["u", "v"] * 20
    )
    loss = jax.jit(problem.loss)
    found = [
        float(loss(params, jnp.int32(0), jnp.arange(8), jax.random.key(seed))) for seed in (0, 0, 1)
    ]
    assert found[0] == found[1] != found[2]
    hyper = fedavg.paper(num_clients=2, num_selected=2, local_steps=10, batch_size=8, lr=0.05)
    curves = fedjax_sim.simulate(
        fedavg.system, problem, hyper, budget=fedjax_sim.Ticks(10), num_evals=1
    ).curves
    assert float(curves.loss[1]) < float(curves.loss[0])


def test_networks_of_equal_makers_share_a_program() -> None:
    """They are equal and can be keys, as static parts of problems must."""
    for adapt, make in (
        (models.from_nnx, Nnx),
        (models.from_equinox, Equinox),
        (models.from_haiku, haiku),
    ):
        assert adapt(make) == adapt(make)
        assert hash(adapt(make)) == hash(adapt(make))


class NnxNorm(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.norm, self.out = nnx.BatchNorm(3, rngs=rngs), nnx.Linear(3, 1, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.out(self.norm(x))


class EquinoxNorm(eqx.Module):
    norm: eqx.nn.BatchNorm
    out: eqx.nn.Linear

    def __init__(self, key: jax.Array):
        self.norm = eqx.nn.BatchNorm(3, "batch", mode="batch")
        self.out = eqx.nn.Linear(3, 1, key=key)

    def __call__(self, x: jax.Array, state: Any) -> tuple[jax.Array, Any]:
        x, state = self.norm(x, state)
        return self.out(x), state


def haiku_norm(x: jax.Array, is_training: bool) -> jax.Array:
    return hk.Linear(1)(hk.BatchNorm(True, True, 0.9)(x, is_training))


class LinenNorm(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        return nn.Dense(1)(nn.BatchNorm(use_running_average=not train)(x))


def of_library_in_training(name: str) -> tuple[Any, Any, list[jax.Array]]:
    """Return a network, its outputs after one call in training, and its state, by its library."""
    if name == "nnx":
        module = NnxNorm(nnx.Rngs(KEY))
        module.train()
        module(X)
        module.eval()
        state = [module.norm.mean.get_value(), module.norm.var.get_value()]
        return models.from_nnx(NnxNorm), module(X), state
    if name == "equinox":
        make = eqx.nn.make_with_state(EquinoxNorm)
        module, state = make(KEY)
        axes = {"axis_name": "batch", "out_axes": (0, None)}
        _, state = jax.vmap(lambda x: module(x, state), **axes)(X)
        found = jax.vmap(lambda x: eqx.nn.inference_mode(module)(x, state)[0])(X)
        return models.from_equinox(make), found, jax.tree.leaves(state)
    if name == "haiku":
        made = hk.transform_with_state(haiku_norm)
        params, state = made.init(KEY, X[:1], True)
        _, state = made.apply(params, state, None, X, True)
        found = made.apply(params, state, None, X, False)[0]
        return models.from_haiku(haiku_norm), found, jax.tree.leaves(state)
    variables = LinenNorm().init(KEY, X[:1])
    _, state = LinenNorm().apply(variables, X, train=True, mutable=["batch_stats"])
    found = LinenNorm().apply({**variables, **state}, X)
    return LinenNorm(), found, jax.tree.leaves(state)


@pytest.mark.few(2)
@pytest.mark.parametrize("name", ["nnx", "equinox", "haiku", "linen"])
def test_a_state_is_averaged_and_not_trained(name: str) -> None:
    """One client's step of all examples leaves the library's own statistics in the model."""
    model, expected, state = of_library_in_training(name)
    problem = problems.supervised(
        model, problems.squared_error, (X, TARGETS), clients=["u"] * 40, test=(X, TARGETS)
    )
    assert problem.state == ("batch_stats",)
    hyper = fedavg.paper(num_clients=1, num_selected=1, local_steps=1, batch_size=40, lr=1e-9)
    start = problem.init(KEY)
    run = fedjax_sim.simulate(
        fedavg.system, problem, hyper, budget=fedjax_sim.Ticks(1), start=start
    )
    kept = [np.asarray(leaf, "float32") for leaf in state]
    found = jax.tree.leaves(run.models["batch_stats"])
    assert sorted(map(np.shape, found)) == sorted(map(np.shape, kept))
    assert all(any(np.allclose(x, y, atol=1e-5) for y in kept) for x in found)
    assert not all(
        np.array_equal(x, y)
        for x, y in zip(found, jax.tree.leaves(start["batch_stats"]), strict=True)
    )
    np.testing.assert_allclose(problem.outputs(run.models), expected, rtol=1e-4, atol=1e-4)


def test_a_transformer_sees_no_later_characters_and_adapts_by_low_rank() -> None:
    """New changes are zero; a change of rank 1 adds x A B to a projection."""
    codes = jnp.array([[1, 2, 3, 4, 5, 6]])
    plain, adapted = (models.CharacterTransformer(9, 8, 2, 2, rank=rank) for rank in (0, 1))
    params, more = plain.init(KEY, codes), adapted.init(KEY, codes)
    logits = plain.apply(params, codes)
    assert logits.shape == (1, 6, 9)
    later = plain.apply(params, codes.at[0, 4].set(7))
    np.testing.assert_allclose(later[:, :4], logits[:, :4], atol=1e-6)
    assert not np.allclose(later[:, 4:], logits[:, 4:])
    np.testing.assert_allclose(adapted.apply(more, codes), logits, atol=1e-6)
    query = more["params"]["attention_0"]["query"]
    query["lora_b"] = jnp.ones((1, 8))
    merged = params["params"]["attention_0"]["query"]["dense"]
    merged["kernel"] = merged["kernel"] + query["lora_a"] @ query["lora_b"]
    found = adapted.apply(more, codes)
    np.testing.assert_allclose(found, plain.apply(params, codes), atol=1e-5)
    assert not np.allclose(found, logits)
