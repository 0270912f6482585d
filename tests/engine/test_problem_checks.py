"""A problem that a user wrote wrongly gets one sentence, before anything learns."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

import fedjax_sim
from fedjax_sim.core.settings import ConfigError
from fedjax_sim.problems import Quadratic
from fedjax_sim.systems import em, fedavg

HYPER = fedavg.paper(num_clients=5, num_selected=2, local_steps=2, batch_size=2)


@struct.dataclass
class Own:
    """Least squares, as a user would write it."""

    counts: Any
    inputs: Any

    def init(self, key: jax.Array) -> Any:
        return jnp.zeros(3)

    def loss(self, params: Any, client: Any, examples: Any, key: Any) -> Any:
        return ((self.inputs[client, examples] @ params - 1) ** 2).mean()

    def evaluate(self, params: Any) -> Any:
        return {"loss": (params**2).sum()}


OWN = Own(jnp.full(5, 4, "int32"), jnp.ones((5, 4, 3)))


def changed(**members: Any) -> Any:
    """Make the problem with other methods."""
    return struct.dataclass(type("Other", (Own,), members))(OWN.counts, OWN.inputs)


class Lacking:
    counts = OWN.counts

    def init(self, key: Any) -> Any: ...


class Plain(Lacking):
    def loss(self, params: Any, client: Any, examples: Any, key: Any) -> Any: ...
    def evaluate(self, params: Any) -> Any: ...


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class WithText(Plain):
    text: str


def run(problem: Any) -> fedjax_sim.Run:
    return fedjax_sim.simulate(fedavg.system, problem, HYPER, budget=fedjax_sim.Ticks(3))


def test_a_right_one_learns() -> None:
    """Also with counts of another integer type, or arrays of NumPy."""
    first = run(OWN)
    other = run(Own(np.full(5, 4), np.ones((5, 4, 3), "float32")))
    np.testing.assert_array_equal(first.models, other.models)
    assert float(np.abs(first.models).max()) > 0


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "nothing": (lambda: None, "problem is 'NoneType', but must be a Problem"),
    "text": (lambda: "mnist", "problem is 'str', but must be a Problem"),
    "an array": (lambda: np.zeros((5, 3)), "problem is 'ndarray', but must be a Problem"),
    "no problem for a seed": (list, "problem is 'a list of 0', but must be one per seed, 1."),
    "one of a list": (lambda: [Lacking()], "problem is 'Lacking', but must be a Problem"),
    "its class": (lambda: Quadratic, "problem is 'Quadratic', but must be .*, not a class"),
    "lacks methods": (
        Lacking,
        "problem is 'Lacking', but .* for fedavg; it lacks loss and evaluate",
    ),
    "no pytree": (
        Plain,
        "problem is 'Plain', but must be a pytree of arrays, such as a class with",
    ),
    "holds text": (lambda: WithText("a"), "problem is 'WithText', but .*; it holds 'str'"),
    "counts no array": (
        lambda: Own([4] * 5, OWN.inputs),
        r"counts is 'list', but must be an array i32\[N\]",
    ),
    "counts no whole numbers": (
        lambda: Own(jnp.full(5, 4.0), OWN.inputs),
        r"counts is 'float32\[5\]', but must be an array i32\[N\]",
    ),
    "counts of pairs": (
        lambda: Own(jnp.full((5, 1), 4), OWN.inputs),
        r"counts is 'int32\[5, 1\]', but must be an array i32\[N\]",
    ),
    "a client without examples": (
        lambda: Own(OWN.counts.at[2].set(0), OWN.inputs),
        "counts is 0, but must be at least 1, for every client",
    ),
    "loss without a key": (
        lambda: changed(loss=lambda self, params, client, examples: params.sum()),
        r"signature of loss of Other is '\(params, client, examples\)', but must be a method that "
        r"can be called with \(params, client, examples, key\)\.",
    ),
    "losses of examples": (
        lambda: changed(loss=lambda self, params, *_: params),
        r"loss of a mini-batch is 'float32\[3\]', but must be one real number, f\[\]",
    ),
    "a loss and more": (
        lambda: changed(loss=lambda self, params, *_: (params.sum(), params)),
        r"loss of a mini-batch is 'float32\[\], float32\[3\]', but must be one real number",
    ),
    "a whole number as loss": (
        lambda: changed(loss=lambda self, *_: jnp.int32(1)),
        r"loss of a mini-batch is 'int32\[\]', but must be one real number",
    ),
    "a model of whole numbers": (
        lambda: changed(init=lambda self, key: {"a": jnp.zeros(3, "int32")}),
        r"model\['a'\] that init returns is 'int32\[3\]', but must be an array of floating-point",
    ),
    "a model of numbers of Python": (
        lambda: changed(init=lambda self, key: {"a": jnp.zeros(3), "b": 0.5}),
        r"model\['b'\] that init returns is 'float', but must be an array of floating-point",
    ),
    "a model without numbers": (
        lambda: changed(init=lambda self, key: {}),
        "model that init returns is {}, but must be a pytree with at least one array",
    ),
    "metrics without names": (
        lambda: changed(evaluate=lambda self, params: params.sum()),
        r"result of evaluate is 'float32\[\]', but must be a mapping from names to numbers",
    ),
    "metrics by number": (
        lambda: changed(evaluate=lambda self, params: {0: params.sum()}),
        "name of a metric is 0, but must be a string",
    ),
    "a metric of text": (
        lambda: changed(evaluate=lambda self, params: {"loss": "small"}),
        "metric loss is 'str', but must be a number, or an array of numbers",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_problem_gets_one_sentence(name: str) -> None:
    make, sentence = WRONG[name]
    with pytest.raises(ConfigError, match=sentence) as caught:
        run(make())
    assert "\n" not in str(caught.value)


def test_what_a_users_method_raises_is_left_alone() -> None:
    with pytest.raises(ZeroDivisionError):
        run(changed(init=lambda self, key: 1 / 0))


def test_systems_of_latent_models_say_what_they_learn() -> None:
    hyper = em.paper(num_clients=5)
    with pytest.raises(ConfigError, match=r"a LatentProblem .* for em; it lacks .*maximise"):
        fedjax_sim.simulate(em.system, OWN, hyper, budget=fedjax_sim.Ticks(2))
