"""Problems that are made without their builders are checked before a run, in one sentence."""

import dataclasses
import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import fedjax_sim
from fedjax_sim import ConfigError, models, problems
from fedjax_sim.problems import latent
from fedjax_sim.systems import em, fedavg

CENTERS, EYES = jnp.array([[0.0, 1], [1, 2], [3, 1]]), jnp.eye(2)[None].repeat(3, axis=0)
DATA, INDEX = jnp.array([[1.0], [2], [3]]), jnp.array([0, 1, 2])
OFFSETS, COUNTS = jnp.array([0, 2]), jnp.array([2, 1])
HELD = problems.Held(INDEX, OFFSETS, COUNTS, 2)


def log_likelihood(mean: Any, example: Any) -> Any:
    return -((example - mean) ** 2).sum()


def log_prior(mean: Any) -> Any:
    return -(mean**2).sum()


MADE = {
    "quadratic": problems.Quadratic(CENTERS, jnp.ones(3), jnp.array(0.0), jnp.zeros(2)),
    "gaussian": problems.GaussianClients(
        EYES, CENTERS, 0 * EYES, jnp.ones(3, "int32"), jnp.zeros(2)
    ),
    "log_density": problems.LogDensity(DATA, HELD, jnp.zeros(1), log_likelihood, log_prior),
    "supervised": problems.Supervised(
        (DATA, DATA), (DATA, DATA), HELD, models.MLP((2,), 1), problems.squared_error
    ),
    "latent": latent.Estimation(
        latent.NoisyMean(), latent.Seen(DATA, jnp.ones(3)), HELD, jnp.ones(2)
    ),
}


def run(problem: Any) -> Any:
    if isinstance(problem, latent.Estimation):
        return fedjax_sim.simulate(em.system, problem, budget=fedjax_sim.Ticks(1))
    hyper = fedavg.system.Hyper(num_selected=1)
    return fedjax_sim.simulate(fedavg.system, problem, hyper, budget=fedjax_sim.Ticks(1))


@pytest.mark.parametrize(
    ("name", "changed", "words"),
    [
        ("quadratic", {"curvature": -jnp.ones(3)}, "of finite numbers of at least 0 with N = 3"),
        ("quadratic", {"curvature": jnp.ones(4)}, "must be an array of shape [N]"),
        ("quadratic", {"centers": CENTERS * jnp.nan}, "an array of shape [N, P] of finite numbers"),
        ("quadratic", {"centers": [[0.0, 1.0]]}, "centers is [[0.0, 1.0]], but must be an array"),
        ("quadratic", {"centers": "a"}, "centers is 'a', but must be an array of shape [N, P]"),
        ("quadratic", {"centers": None}, "centers is None, but must be an array of shape [N, P]"),
        ("quadratic", {"noise": jnp.array(-1.0)}, "noise is Array(-1., dtype=float32"),
        ("quadratic", {"noise": jnp.zeros(3)}, "must be an array of shape [] of finite numbers"),
        ("quadratic", {"start": jnp.zeros(3)}, "of shape [P] of finite numbers with P = 2"),
        ("quadratic", {"per_client": "yes"}, "per_client is 'yes', but must be true or false"),
        ("gaussian", {"hessians": -EYES}, "smallest eigenvalue of hessians is -1.0, but must be"),
        (
            "gaussian",
            {"hessians": jnp.diag(jnp.array([1.0, -1e-3]))[None].repeat(3, axis=0)},
            "smallest eigenvalue of hessians is -0.001",
        ),
        (
            "gaussian",
            {"hessians": EYES + jnp.eye(2, k=1)[None]},
            "hessians is 'matrices that differ from their transposes', but must be symmetric",
        ),
        ("gaussian", {"hessians": EYES[0]}, "must be an array of shape [N, P, P]"),
        ("gaussian", {"noise": EYES[0]}, "of shape [N, P, P] of finite numbers with N = 3, P = 2"),
        ("gaussian", {"counts": jnp.zeros(3, "int32")}, "of whole numbers from 1 to 2147483647"),
        ("gaussian", {"counts": jnp.ones(4, "int32")}, "must be an array of shape [N]"),
        ("gaussian", {"counts": jnp.full(3, 2**30, "int32")}, "sum of counts is 3221225472"),
        ("gaussian", {"start": jnp.zeros(3)}, "start is Array([0., 0., 0.]"),
        ("log_density", {"held": HELD.replace(index=INDEX + 5)}, "index is 5, but must be from 0"),
        ("log_density", {"held": HELD.replace(index=INDEX[None])}, "must be an array of shape [P]"),
        ("log_density", {"held": HELD.replace(index=1.0 * INDEX)}, "type of index is 'float32'"),
        (
            "log_density",
            {"held": HELD.replace(counts=COUNTS + 5)},
            "offsets is '0 of client 0, which has 7 examples', but must be such that ranges of",
        ),
        (
            "log_density",
            {"held": HELD.replace(offsets=OFFSETS - 1)},
            "offsets is '-1 of client 0, which has 2 examples', but must be such that ranges of",
        ),
        ("log_density", {"held": HELD.replace(counts=COUNTS - 1)}, "counts is 0, but must be at"),
        ("log_density", {"held": HELD.replace(most=1)}, "most is 1, but must be at least 2, the"),
        ("log_density", {"held": INDEX}, "but must be a Held"),
        ("log_density", {"data": (DATA, DATA[:2])}, "examples in the arrays of data is [2, 3]"),
        ("log_density", {"log_prior": 3}, "log_prior is 3, but must be a function"),
        (
            "log_density",
            {"log_likelihood": lambda mean, example: mean * example},
            "log_likelihood is 'a function to (1,)', but must be a function to one number",
        ),
        (
            "log_density",
            {"log_prior": lambda mean: mean["a"]},
            "must be a function of float32[1] (JAX does not support string indexing",
        ),
        ("supervised", {"held": HELD.replace(index=INDEX - 1)}, "index is -1, but must be from 0"),
        ("supervised", {"model": 3}, "model is 3, but must be a Model, with apply, init"),
        ("supervised", {"loss_of": 3}, "loss_of is 3, but must be a function"),
        (
            "supervised",
            {"loss_of": lambda outputs, targets: outputs},
            "shape of the loss is (2, 1)",
        ),
        ("supervised", {"data": (DATA[:, :0], DATA)}, "examples of test is '(float32[2, 1],"),
        ("supervised", {"prior_precision": jnp.array(-1.0)}, "of finite numbers of at least 0"),
        ("supervised", {"test_block": 0}, "test_block is 0, but must be a whole number of at"),
        (
            "supervised",
            {"test_held": HELD.replace(index=INDEX + 9)},
            "test_index is 9, but must be from 0 to 2",
        ),
        (
            "supervised",
            {"test_held": problems.Held(INDEX, INDEX, jnp.ones(3, int), 1)},
            "clients of test_held is 3, but must be 2, as of held",
        ),
        ("supervised", {"test_rows": INDEX}, "must be given if and only if num_tests is"),
        ("latent", {"share": -jnp.ones(2)}, "of finite numbers above 0 with N = 2"),
        ("latent", {"share": jnp.ones(3)}, "of finite numbers above 0 with N = 2"),
        ("latent", {"held": HELD.replace(index=INDEX + 7)}, "index is 7, but must be from 0 to 2"),
        ("latent", {"start": jnp.zeros(4)}, "shape of start is (4,), but must be (1,)"),
        ("latent", {"model": latent.NoisyMean(ridge=-3.0)}, "ridge is -3.0, but must be a finite"),
        ("latent", {"model": latent.NoisyMean(ridge="a")}, "ridge is 'a', but must be a finite"),
        ("latent", {"model": 3}, "model is 3, but must be a LatentModel"),
        ("latent", {"data": DATA}, "must be examples that NoisyMean takes"),
    ],
)
def test_fields_are_checked_before_a_run(name: str, changed: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        run(dataclasses.replace(MADE[name], **changed))


@pytest.mark.parametrize("name", ["quadratic", "gaussian", "log_density", "supervised"])
def test_structs_run_as_they_are_and_may_be_rebuilt(name: str) -> None:
    made = MADE[name]
    run(made)
    leaves, structure = jax.tree.flatten(made)
    jax.tree.unflatten(structure, [object()] * len(leaves))
    rebuilt = jax.vmap(lambda lane: jax.tree.map(lambda leaf: leaf, lane))
    rebuilt(jax.tree.map(lambda leaf: leaf[None], made))


def test_negative_eigenvalues_are_refused_by_builders() -> None:
    with pytest.raises(ConfigError, match=re.escape("smallest eigenvalue of hessians is -1.0")):
        problems.GaussianClients.of(-1.0, CENTERS)
