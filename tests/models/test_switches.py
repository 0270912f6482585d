"""Networks in training and in evaluation: switches by any usual name, and state, which is refused.

Dropout is shown to be active in local steps by gradients that differ by key, and to be off in
evaluations, which are equal to those of the same network without dropout.
"""

from typing import Any

import equinox as eqx
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx, struct

import fedjax_sim
from fedjax_sim import ConfigError, models, problems
from fedjax_sim.models.quantized import LowBit
from fedjax_sim.systems import fedavg
from tests.conftest import Regression

KEY = jax.random.key(3)
X = np.random.default_rng(0).normal(size=(12, 3)).astype("float32")
TARGETS = np.sin(X).sum(axis=1)


def problem_of(model: Any, **options: Any) -> Any:
    return problems.supervised(
        model, problems.squared_error, (X, TARGETS), clients=["u", "v"] * 6, **options
    )


def layers(x: jax.Array, is_off: bool, rate: float = 0.5) -> jax.Array:
    wide = nn.relu(nn.Dense(5)(x))
    return nn.Dense(1)(nn.Dropout(rate, deterministic=is_off)(wide))


class Plain(nn.Module):
    """What the networks below compute without dropout."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return layers(x, True, rate=0.0)


class Train(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array, train: bool = True) -> jax.Array:
        return layers(x, not train)


class Training(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array, *, training: bool) -> jax.Array:
        return layers(x, not training)


class IsTraining(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array, is_training: bool = False) -> jax.Array:
        return layers(x, not is_training)


class Deterministic(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array, deterministic: bool = False) -> jax.Array:
        return layers(x, deterministic)


class OfAttribute(nn.Module):
    deterministic: bool | None = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        assert self.deterministic is not None
        return layers(x, self.deterministic)


class Mode(nn.Module):
    """A switch of another name, which nobody turns."""

    @nn.compact
    def __call__(self, x: jax.Array, mode: str = "eval") -> jax.Array:
        return layers(x, mode == "eval")


class Always(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return layers(x, False)


class Attention(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array, is_off: bool = True) -> jax.Array:
        attend = nn.MultiHeadDotProductAttention(1, dropout_rate=0.5)
        return nn.Dense(1)(attend(nn.Dense(2)(x)[:, None], deterministic=is_off)[:, 0])


class Normalised(nn.Module):
    is_fixed: bool

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        x = nn.BatchNorm(use_running_average=self.is_fixed or not train)(nn.Dense(4)(x))
        return nn.Dense(1)(x)


class Inference(eqx.Module):
    """An equinox module with a switch among its arguments."""

    out: eqx.nn.Linear
    drop: eqx.nn.Dropout

    def __init__(self, key: jax.Array):
        self.out, self.drop = eqx.nn.Linear(3, 1, key=key), eqx.nn.Dropout(0.5, inference=True)

    def __call__(self, x: jax.Array, key: Any = None, inference: bool = True) -> jax.Array:
        return self.out(self.drop(x, key=key, inference=inference))


class Nnx(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.out, self.drop = nnx.Linear(3, 1, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x: jax.Array, deterministic: bool = True) -> jax.Array:
        return self.out(self.drop(x, deterministic=deterministic))


def haiku(x: jax.Array, is_training: bool) -> jax.Array:
    return hk.Linear(1)(hk.dropout(hk.next_rng_key(), 0.5, x) if is_training else x)


def gradients(problem: Any, params: Any) -> list[Any]:
    """Return the gradients of a mini-batch for two keys."""
    slope = jax.jit(jax.grad(problem.loss))
    examples = jnp.arange(4)
    return [
        jax.tree.leaves(slope(params, jnp.int32(0), examples, jax.random.key(seed)))
        for seed in (0, 1)
    ]


@pytest.mark.parametrize(
    "model",
    [
        *(Train(), Training(), IsTraining(), Deterministic(), OfAttribute(), OfAttribute(True)),
        LowBit(Deterministic(), None, None, None),
    ],
    ids=lambda model: type(model).__name__,
)
def test_dropout_is_active_in_local_steps_and_off_in_evaluations(model: Any) -> None:
    problem = problem_of(model)
    params = problem.init(KEY)
    a, b = gradients(problem, params)
    assert any(not np.allclose(x, y) for x, y in zip(a, b, strict=True))
    plain = problem_of(Plain()).evaluate(params)
    np.testing.assert_allclose(problem.evaluate(params)["loss"], plain["loss"], rtol=1e-6)


@pytest.mark.parametrize(
    "model",
    [models.from_equinox(Inference), models.from_nnx(Nnx), models.from_haiku(haiku)],
    ids=lambda model: type(model).__name__,
)
def test_switches_of_other_libraries(model: Any) -> None:
    problem = problem_of(model)
    params = problem.init(KEY)
    a, b = gradients(problem, params)
    assert any(not np.allclose(x, y) for x, y in zip(a, b, strict=True))
    (weights, bias) = sorted(map(np.asarray, jax.tree.leaves(params)), key=lambda leaf: -leaf.size)
    outputs = X @ weights.reshape(3, 1) + bias
    np.testing.assert_allclose(problem.outputs(params), outputs, rtol=1e-5, atol=1e-6)


class Unturned(nn.Module):
    """Batch normalisation whose switch has another name, so that it would never learn."""

    @nn.compact
    def __call__(self, x: jax.Array, is_train: bool = False) -> jax.Array:
        return nn.Dense(1)(nn.BatchNorm(use_running_average=not is_train)(x))


class Custom:
    """A network of one's own, whose switch has another name."""

    def init(self, key: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.ones((3, 1))

    def apply(self, params: jax.Array, x: jax.Array, is_train: bool = False) -> jax.Array:
        return x @ params


class Wrapper:
    """A network of one's own around a flax module, of which nothing shows."""

    def __init__(self, module: nn.Module):
        self.module = module

    def init(self, key: jax.Array, x: jax.Array) -> Any:
        return self.module.init(key, x)

    def apply(self, params: Any, x: jax.Array) -> jax.Array:
        return self.module.apply(params, x)


OFF = "dropout .* is 'off', but must be random in local steps: the network takes none of train, "
STATE = "variables is 'batch_stats', but must be params or frozen"


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Mode(), OFF),
        (Attention(), OFF),
        (Wrapper(IsTraining()), OFF),
        (LowBit(Mode()), OFF),
        (Always(), "draws only in local steps, which set one of train, training"),
        (Custom(), "switch of the network is 'is_train', but must be one of train, training"),
        (Unturned(), "switch of the network is 'is_train', but must be one of train, training"),
        (LowBit(Normalised(True)), STATE),
        (Wrapper(Normalised(True)), STATE),
    ],
)
def test_what_is_not_understood_is_refused(model: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        problem_of(model)


def test_adapters_refuse_states_apart_and_unknown_switches() -> None:
    with pytest.raises(ConfigError, match="equinox module is 'BatchNorm', but must be one without"):
        models.from_equinox(lambda key: eqx.nn.BatchNorm(3, "batch", mode="ema"))
    with pytest.raises(ConfigError, match=r"is TransformedWithState.*, but must be a function"):
        models.from_haiku(hk.transform_with_state(haiku))
    with pytest.raises(ConfigError, match="switch of the network is 'is_train', but must be one"):
        models.from_haiku(lambda x, is_train=False: x)


def test_frozen_statistics_are_those_of_the_start() -> None:
    """They belong to a network that was trained elsewhere, and stay as they are."""
    model = Normalised(True)
    variables = model.init(KEY, X[:1])
    statistics = jax.tree.map(lambda leaf: leaf + 2, variables["batch_stats"])
    problem = problem_of(model, start={"batch_stats": statistics}, frozen="^batch_stats")
    params = problem.init(KEY)
    assert not jax.tree.leaves(params["batch_stats"])
    expected = model.apply({"params": params["params"], "batch_stats": statistics}, X)
    np.testing.assert_allclose(problem.outputs(params), expected, rtol=1e-5, atol=1e-6)


@struct.dataclass
class WithStatistics(Regression):
    """A problem of one's own that would train running statistics."""

    def init(self, key: jax.Array) -> Any:
        return {"params": super().init(key), "batch_stats": {"mean": jnp.zeros(3)}}


def test_running_statistics_are_refused_in_problems_of_ones_own(regression: Any) -> None:
    problem = WithStatistics(**vars(regression()))
    hyper = fedavg.paper(num_clients=7, num_selected=2)
    with pytest.raises(ConfigError, match="statistics in the model that init returns is 'batch_st"):
        fedjax_sim.simulate(fedavg.system, problem, hyper, budget=fedjax_sim.Ticks(1))
