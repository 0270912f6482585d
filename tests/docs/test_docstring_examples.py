"""The examples in docstrings run: indented Python, with the names that `prelude` makes."""

import ast
import importlib
import inspect
import textwrap
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
import pytest
import xarray as xr
from flax import nnx

import fedjax_sim
from fedjax_sim import Event, Plan, datasets, models, partition, problems
from fedjax_sim.core.events import Facts
from fedjax_sim.core.settings import Checked, check
from fedjax_sim.core.streams import stream
from fedjax_sim.problems import latent
from fedjax_sim.systems import favano, fedavg, fedem
from tests.clients.test_gradient_steps import event_of
from tests.exports import exports_of

ROOMS = (
    *("clients", "compression", "datasets", "diagnostics", "models", "partition", "privacy"),
    *("problems", "problems.latent", "server", "server.attacks", "server.rules", "settings"),
    *("timelines", "timelines.live"),
)
MAIN = (
    *("Algorithm", "Bound", "Checkpoints", "Event", "Keep", "Layout", "Part", "Run", "System"),
    *("Timeline", "Watch", "bind", "bind_together", "load", "simulate", "sweep"),
    *("clients.ClientTraining", "clients.batch_gradient", "clients.batch_loss"),
    *("clients.lasting_training", "clients.local_steps", "clients.local_training"),
    *("clients.whole_gradient", "compression.Compressor"),
    *("compression.parse_compressor", "datasets.from_arrays", "datasets.from_text"),
    *("datasets.load", "datasets.make_synthetic", "diagnostics.fairness_report"),
    *("diagnostics.predictive", "diagnostics.to_arviz"),
    *("models.MLP", "models.from_nnx", "partition.dirichlet"),
    *("partition.iid", "partition.natural", "privacy.CorrelatedNoise"),
    *("privacy.epsilon_after", "privacy.parse_privacy"),
    *("problems.Metric", "problems.Quadratic", "problems.from_dataframe"),
    *("problems.from_logdensity", "problems.make_classification", "server.ClientMessages"),
    *("server.Reports", "server.Wire", "server.exchange", "server.expand"),
    *("server.keep_if_empty", "server.mean_of", "server.next_version", "server.ReportMessages"),
    *("server.scaled_progress", "server.stale_models", "server.staleness_weights"),
    *("server.weighted_sum", "server.attacks.Adversary", "server.attacks.Attack"),
    *("server.rules.Median", "server.rules.Rule", "server.rules.parse_rule"),
    *("settings.struct", "timelines.Arrivals", "timelines.ClientDelays", "timelines.ClientTable"),
    *("timelines.CohortRounds", "timelines.Contacts", "timelines.Groups", "timelines.Trace"),
    *("timelines.cohort_system", "timelines.read_client_table"),
    *("timelines.schedule_arrivals", "timelines.schedule_cohort_rounds"),
    *("timelines.schedule_contacts", "timelines.schedule_group_rounds", "timelines.live.Clock"),
    *("timelines.live.live_rounds", "timelines.live.live_tasks", "timelines.live.with_clock"),
)
"""What a stranger meets first, which has an example."""


def module_of(room: str) -> ModuleType:
    """Find the module of a room, or of one that the root hands on."""
    name = getattr(fedjax_sim, room.partition(".")[0]).__name__
    return importlib.import_module(".".join([name, *room.split(".")[1:]]))


def public() -> Iterator[tuple[str, Any]]:
    """List the names of the package and its rooms, and the public methods of its classes."""
    rooms: list[tuple[str, ModuleType]] = [("", fedjax_sim)]
    rooms += [(f"{name}.", module_of(name)) for name in ROOMS]
    for prefix, room in rooms:
        names = exports_of(room) or [n for n in vars(room) if n[0] != "_"]
        for name in names:
            value = getattr(room, name)
            if not getattr(value, "__module__", "").startswith("fedjax_sim"):
                continue
            yield prefix + name, value
            if inspect.isclass(value):
                for method, function in inspect.getmembers(value, callable):
                    if method[0] != "_":
                        yield f"{prefix}{name}.{method}", function


def examples_in(value: Any) -> list[str]:
    """Find the indented blocks of a docstring, outside its sections, that are Python calls."""
    text = inspect.getdoc(value) if callable(value) else ""
    found: list[str] = []
    block: list[str] = []
    for line in [*(text or "").splitlines(), "end"]:
        if line.endswith(":") and line[:1].isupper() and " " not in line.strip():
            break  # The sections begin, such as "Args:".
        if line.startswith("    ") or (block and not line):
            block.append(line)
            continue
        found.append(textwrap.dedent("\n".join(block)).strip())
        block = []
    found.append(textwrap.dedent("\n".join(block)).strip())
    return [each for each in dict.fromkeys(found) if _is_code(each)]


def _is_code(text: str) -> bool:
    try:
        body = ast.parse(text).body
    except SyntaxError:
        return False
    kinds = (ast.Call, ast.ClassDef, ast.Attribute)
    return any(isinstance(node, kinds) for each in body for node in ast.walk(each))


EXAMPLES = {
    f"{name}-{number}": example
    for name, value in public()
    for number, example in enumerate(examples_in(value))
}


@pytest.fixture(scope="module")
def prelude() -> dict[str, Any]:
    """The names that examples take for granted."""
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (60, 4, 4, 1), dtype=np.uint8)
    labels = np.arange(60, dtype="int32") % 10
    data = datasets.Dataset(images[:50], labels[:50], images[50:], labels[50:], 10, "random")
    problem = problems.Quadratic.of(random.normal(size=(8, 3)))
    hyper = fedavg.Hyper(num_clients=8, num_selected=4, batch_size=1, local_steps=2)
    budget, keep = fedjax_sim.Ticks(4), fedjax_sim.Keep(models=True)
    run = fedjax_sim.sweep(fedavg.system, problem, hyper, seeds=1, budget=budget, keep=keep)
    # Clients 0 and 1 report at time 1, and client 0 at time 3, both times from the first model.
    clients, zeros = np.array([[0, 1], [0, -1]]), np.zeros((2, 2), "int32")
    weight = np.array([[0.5, 0.5], [1.0, 0.0]])
    timeline = fedjax_sim.Timeline(np.array([1.0, 3.0]), clients, zeros, zeros, weight, zeros)
    event: Event = event_of([0, 3], [2, 1], [0, 0]).within(weight=jnp.full(2, 0.5), facts=Facts())
    seen = latent.Seen(np.arange(6, dtype="float32")[:, None], np.ones(6, "float32"))
    halves = partition.Partition(np.arange(6, dtype="int32"), np.array([3, 3]))
    noisy_mean = latent.make_estimation(latent.NoisyMean(), seen, halves)
    two = data._replace(train_labels=labels[:50] % 2, test_labels=labels[50:] % 2, num_classes=2)
    logistic = problems.make_logistic(two, partition.iid(two.train_labels, num_clients=5, seed=0))
    # Two samples of one chain, w = 0.
    chains = {"w": (("chain", "draw", "w_dim_0"), np.zeros((1, 2, 17)))}
    tree = xr.DataTree.from_dict({"posterior": xr.Dataset(chains, {"chain": [0], "draw": [1, 2]})})
    names = {"np": np, "jax": jax, "jnp": jnp, "optax": optax, "pd": pd, "nnx": nnx}
    names |= {"fedjax_sim": fedjax_sim, "fedavg": fedavg, "favano": favano, "models": models}
    names |= {"datasets": datasets, "fedem": fedem}
    names |= {"problems": problems, "partial": partial, "stream": stream, "data": data}
    names |= {"Plan": Plan, "System": fedjax_sim.System, "Algorithm": fedjax_sim.Algorithm}
    names |= {"problem": problem, "hyper": hyper, "run": run, "event": event, "plan": Plan()}
    names |= {"latent": noisy_mean, "logistic": logistic, "tree": tree, "timeline": timeline}
    names |= {"inputs": np.ones((6, 2)), "targets": np.ones((6, 1)), "names": list("aabbcc")}
    return names | {"key": jax.random.key(0), "model": jnp.zeros(3)}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs(name: str, prelude: dict[str, Any], tmp_path: Path) -> None:
    own = [room for room in ROOMS if name.startswith(f"{room}.")]  # Its names come last.
    names: dict[str, Any] = {}
    for room in (*ROOMS, *own):
        names |= vars(module_of(room))
    names |= prelude | {"folder": tmp_path, "settings": fedjax_sim.core.settings}
    before = set(map(id, names.values()))
    exec(compile(EXAMPLES[name], name, "exec"), names)
    for value in names.values():
        if isinstance(value, Checked) and id(value) not in before:
            check(value)  # A run would do so.


@pytest.mark.parametrize("name", MAIN)
def test_what_a_stranger_meets_first_has_an_example(name: str) -> None:
    assert f"{name}-0" in EXAMPLES
