"""Models and metrics of bfloat16 and other narrow types: measured, averaged, saved and resumed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import struct

import fedjax_sim
from fedjax_sim import Algorithm, Event, Plan, System, datasets, partition, problems
from fedjax_sim.core.batching import map_slots, weighted_sum
from fedjax_sim.core.lifecycle import storable
from fedjax_sim.core.types import Work
from fedjax_sim.engine.program.replay import client_variance
from fedjax_sim.problems.losses import is_right
from fedjax_sim.server.aggregation import mean_with_server
from tests.conftest import slow_but
from tests.systems.test_minimal_system import Hyper, timeline

KEY = jax.random.key(0)
TYPES = ("float16", "bfloat16", "float8_e5m2", "float8_e4m3fn")
NUM, CLASSES = 102, 2
RANDOM = np.random.default_rng(0)
INPUTS = RANDOM.normal(size=(NUM, 3)).astype("float32")


class Net(nn.Module):
    """A network whose parameters and outputs are of the type."""

    dtype: str
    num: int = CLASSES

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return nn.Dense(self.num, dtype=self.dtype, param_dtype=self.dtype)(x)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_means_are_those_of_64_bits(dtype: str) -> None:
    """Accuracies are whole numbers of examples; losses are means of what the outputs say."""
    model = Net(dtype)
    # 52 of the 102 labels are those that the network will say.
    params = model.init(KEY, INPUTS[:1])
    outputs = np.asarray(model.apply(params, INPUTS), "float64")
    labels = (outputs.argmax(axis=1) + (np.arange(NUM) >= 52)) % CLASSES
    problem = problems.supervised(
        model,
        problems.cross_entropy,
        (INPUTS, labels.astype("int32")),
        clients=[0] * 51 + [1] * 51,
        test=(INPUTS, labels.astype("int32")),
        test_clients=[0] * 51 + [1] * 51,
        metrics={"accuracy": is_right},
        test_block=7,
        per_client=True,
    )
    found = jax.jit(problem.evaluate)(params)
    losses = np.log(np.exp(outputs).sum(axis=1)) - outputs[np.arange(NUM), labels]
    right = outputs.argmax(axis=1) == labels
    assert right.sum() == 52
    for name, each in (("accuracy", right), ("loss", losses)):
        np.testing.assert_allclose(found[name], each.mean(), rtol=1e-6)
        of_clients = each.reshape(2, 51).mean(axis=1)
        np.testing.assert_allclose(found[f"client_{name}[client]"], of_clients, rtol=1e-6)
    whole = jax.jit(problem.client_loss)(params, jnp.int32(0), KEY)
    np.testing.assert_allclose(whole, losses[:51].mean(), rtol=1e-6)
    assert {leaf.dtype for leaf in jax.tree.leaves((found, whole))} == {np.dtype("float32")}


def bfloat16(tree: Any) -> Any:
    return jax.tree.map(
        lambda leaf: leaf.astype("bfloat16") if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf,
        tree,
    )


def test_other_problems_measure_in_32_bits() -> None:
    centers = RANDOM.normal(size=(6, 3)).astype("float32")
    data = datasets.load("breast_cancer")
    split = partition.iid(data.train_labels, num_clients=3, seed=0)
    logistic = problems.make_logistic(data, split, dtype="bfloat16")
    for problem in (
        logistic,
        bfloat16(problems.Quadratic.of(centers)),
        bfloat16(problems.GaussianClients.of(np.eye(3), centers)),
        problems.from_logdensity(
            lambda w, x: -jnp.square(w - x).sum() / 2,
            lambda w: -jnp.square(w).sum() / 2,
            jnp.asarray(centers, "bfloat16"),
            np.arange(6) % 2,
            jnp.ones(3, "bfloat16"),
        ),
    ):
        params = problem.init(KEY) + 1
        assert params.dtype == jnp.bfloat16
        assert {value.dtype for value in problem.evaluate(params).values()} == {
            jnp.dtype("float32")
        }
    num_right = 143 * float(logistic.evaluate(logistic.init(KEY) + 1)["accuracy"])
    np.testing.assert_allclose(num_right, round(num_right), atol=1e-4)


def test_sums_of_whole_numbers_do_not_overflow() -> None:
    targets = np.full(NUM, 2**30, "int32")
    problem = problems.supervised(
        Net("float32", 1),
        lambda outputs, targets: outputs[:, 0] * 0 + 1.0,
        (INPUTS, targets),
        clients=[0] * NUM,
        metrics={"size": lambda outputs, targets: targets},
    )
    found = problem.evaluate(problem.init(KEY))
    assert float(found["size"]) == 2.0**30


def test_means_of_models_have_no_bias() -> None:
    """In bfloat16 seven weights of 1/7 sum to .998; means would be too small by that much."""
    weights, steps = jnp.full(7, 1 / 7), jnp.ones(7, "int32")
    models = jnp.asarray(RANDOM.uniform(1, 2, (7, 5000)), "bfloat16")
    is_present = jnp.arange(7) < 6
    in_turn, _ = map_slots(
        lambda trips, model: (model, 0),
        Plan(slots_at_once=1),
        *(steps, models),
        trips=1,
        weights=weights,
    )
    means = (weighted_sum(weights, models), in_turn[0])
    expected = np.asarray(models, float).mean(axis=0)
    for mean in (*means, mean_with_server(models[6], models, is_present)):
        assert mean.dtype == jnp.bfloat16
        bias = np.mean(np.asarray(mean, float) - expected)
        assert abs(bias) < 5 * 2**-9 / np.sqrt(5000)


def test_distances_of_clients_are_summed_in_32_bits() -> None:
    held = jnp.zeros((1, 1001), "bfloat16")
    found = client_variance(held, jnp.array([3]), jnp.ones(1001, "bfloat16"))
    assert found.dtype == jnp.float32 and float(found) == 3003


@struct.dataclass
class OfAllTypes:
    """A model with a leaf of each type, and metrics of each type and of others."""

    counts: Any = struct.field(default_factory=lambda: jnp.ones(7, "int32"))

    def init(self, key: jax.Array) -> dict[str, jax.Array]:
        return {name: jnp.arange(3, dtype="float32").astype(name) for name in TYPES}

    def loss(self, *arguments: Any) -> jax.Array:
        return jnp.float32(0)

    def evaluate(self, params: dict[str, jax.Array]) -> dict[str, jax.Array]:
        total = params["float16"].astype("float32").sum()
        whole = {name: total.astype(name) for name in ("bool", "int8", "int4")}
        return whole | {f"m_{name}": leaf[1] for name, leaf in params.items()}


def visits(problem: Any, hyper: Hyper, plan: Plan) -> Algorithm:
    """Add 1 to every number of a model at every visit."""

    def step(key: jax.Array, model: Any, event: Event) -> tuple[Any, Work]:
        after = jax.tree.map(lambda x: (x.astype("float32") + 1).astype(x.dtype), model)
        return after, Work(jnp.int32(1), jnp.int32(1))

    return Algorithm(problem.init, step, model=lambda model: model)


def test_whatever_ran_can_be_saved_and_resumed(tmp_path: Path) -> None:
    system = System("visits", Hyper, timeline, visits)

    def run(ticks: int, **options: Any) -> fedjax_sim.Run:
        return fedjax_sim.sweep(
            system,
            OfAllTypes(),
            Hyper(),
            seeds=2,
            budget=fedjax_sim.Ticks(ticks),
            num_evals=2,
            keep=fedjax_sim.Keep(models=True),
            **options,
        )

    run(4, checkpoints=fedjax_sim.Checkpoints(tmp_path / "states"))
    again = run(4, checkpoints=fedjax_sim.Checkpoints(tmp_path / "states", resume=True))
    again.save(tmp_path / "run")
    for found in (again, fedjax_sim.load(tmp_path / "run")):
        for name in TYPES:
            assert found.models[name].dtype == found.samples[name].dtype == jnp.dtype(name)
            np.testing.assert_array_equal(found.models[name].astype(float), [[4, 5, 6]] * 2)
            values = found.curves[f"m_{name}"]
            assert values.dtype == np.float32
            np.testing.assert_array_equal(values, [[1, 3, 5]] * 2)
        assert found.curves["int8"].dtype == np.int8 and found.curves["bool"].dtype == bool


@pytest.mark.parametrize("dtype", [*TYPES, "float32"])
def test_files_keep_the_bits_of_types_that_they_do_not_know(dtype: str) -> None:
    """NumPy's and netCDF's formats know float16 and float32, and none that JAX adds."""
    values = np.asarray(jnp.asarray([1.5, -2, 0.25], dtype))
    kept, name = storable(values)
    assert name == ("" if dtype in ("float16", "float32") else dtype)
    assert kept.dtype == (f"u{values.dtype.itemsize}" if name else dtype)
    np.testing.assert_array_equal(kept.view(name) if name else kept, values)


def test_a_run_in_bfloat16_can_be_saved(
    regression: Callable, small: Callable, tmp_path: Path
) -> None:
    favano = fedjax_sim.SYSTEMS["favano"]
    run = fedjax_sim.simulate(
        favano,
        bfloat16(regression()),
        small(favano),
        budget=fedjax_sim.Ticks(4),
        keep=fedjax_sim.Keep(client_variance=True),
    )
    run.save(tmp_path)
    assert fedjax_sim.load(tmp_path).curves.identical(run.curves)
    assert run.curves.loss.dtype == run.curves.client_variance.dtype == np.float32


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "fedbuff",
        *slow_but(
            [], ["scaffold", "feddyn", "fedadam", "gen_async", "async_hierarchical", "pfedme"]
        ),
    ],
)
def test_settings_of_32_bits_leave_models_narrow(name: str, small: Callable) -> None:
    """These systems multiply what clients send by settings, and add that to models."""
    system = fedjax_sim.SYSTEMS[name]
    problem = bfloat16(problems.Quadratic.of(np.random.default_rng(0).normal(size=(7, 3))))
    run = fedjax_sim.simulate(system, problem, small(system), budget=fedjax_sim.Ticks(3))
    assert run.models.dtype == "bfloat16"
    assert run.curves.loss.isel(eval=-1) < run.curves.loss.isel(eval=0)


@struct.dataclass
class Scaled:
    """Squared distances of bfloat16, times a number that may be one of Python."""

    points: Any
    scale: Any

    @property
    def counts(self) -> jax.Array:
        return jnp.full(len(self.points), 2, "int32")

    def init(self, key: jax.Array) -> jax.Array:
        return self.scale * jnp.ones(2, "bfloat16")

    def loss(self, params: Any, client: Any, examples: Any, key: Any) -> jax.Array:
        distance = params - self.points[client].astype(params.dtype)
        return jnp.square(distance * self.scale).sum()

    def evaluate(self, params: Any) -> dict[str, jax.Array]:
        return {"loss": jnp.square(params[None] - self.points).sum()}


@pytest.mark.few(1)
@pytest.mark.parametrize("make", [float, jnp.asarray, np.float32])
@pytest.mark.parametrize("devices", [1, 2])
def test_numbers_of_python_in_a_problem(
    make: Callable, devices: int, small: Callable, tmp_path: Path
) -> None:
    """They have no definite type, in every lane and layout, and leave models as narrow as they are.

    Numbers of NumPy have one, also where other lanes have none.
    """
    system = fedjax_sim.SYSTEMS["fedavg"]
    hyper, budget = small(system), fedjax_sim.Ticks(3)
    points = RANDOM.normal(size=(hyper.num_clients, 2)).astype("float32")
    first, second = Scaled(points, make(0.3)), Scaled(points, make(0.7))
    kind = "float32" if make is np.float32 else "bfloat16"

    def bound(problem: Scaled, seed: int) -> Any:
        found = fedjax_sim.bind(system, problem, hyper, seed=seed, budget=budget)
        return found.model(found.run(found.init())[0])

    expected = [bound(problem, seed) for seed, problem in enumerate([first, second, first])]
    assert {leaf.dtype for leaf in expected} == {np.dtype(kind)}
    layout = fedjax_sim.Layout(lane_devices=devices)
    for problems_of_seeds in ([first, second, first], first):
        given = system, problems_of_seeds, hyper
        saved = fedjax_sim.Checkpoints(tmp_path / str(type(problems_of_seeds)), resume=True)
        how: Any = {"seeds": 3, "num_evals": 3, "layout": layout, "checkpoints": saved}
        models = fedjax_sim.sweep(*given, budget=budget, **how).models
        assert models.dtype == kind
        again = fedjax_sim.sweep(*given, budget=budget, **how).models
        np.testing.assert_array_equal(again.astype("float32"), models.astype("float32"))
        for lane in (0, 2):
            np.testing.assert_allclose(
                models[lane].astype("float32"), expected[lane].astype("float32"), rtol=1e-5
            )
    others = Scaled(points, np.float32(0.7)), Scaled(points, 0.7)
    for pair in ([first, others[0]], [first, others[1]]):
        models = fedjax_sim.sweep(system, pair, hyper, seeds=2, budget=budget).models
        np.testing.assert_allclose(models[0].astype("float32"), expected[0].astype("float32"), 1e-5)
