"""The engine against named alternatives: a scan written by hand, wide layouts, lanes one by one."""

import itertools
import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
import optax
from benchmarks.timing import in_turns, wall

import fedjax_sim
from fedjax_sim.datasets import Dataset
from fedjax_sim.engine.planning import placement
from fedjax_sim.models import MLP, LeNet, LogisticRegression, resnet20
from fedjax_sim.partition import iid
from fedjax_sim.problems import Classification, make_classifications
from fedjax_sim.systems import favano, fedavg


def image_problems(
    hidden: int,
    num: int = 1,
    *,
    size: int = 28,
    examples: int = 60_000,
    test_examples: int = 1000,
    network: Any = None,
) -> list[Classification]:
    """Make problems of 100 clients with equal shares of random images, one partition each.

    Args:
      hidden: Units of the hidden layer of the perceptron to train.
      num: Number of problems.
      size: Height and width of the images, in pixels of one byte.
      examples: Number of training images.
      test_examples: Number of test images.
      network: Another network to train.
    """
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (examples + test_examples, size, size, 1), dtype=np.uint8)
    labels = rng.integers(0, 10, examples + test_examples).astype(np.int32)
    data = Dataset(
        images[:examples], labels[:examples], images[examples:], labels[examples:], 10, "random"
    )
    return make_classifications(
        network or MLP((hidden,), 10),
        data,
        [iid(data.train_labels, num_clients=100, seed=seed) for seed in range(num)],
    )


def plain_fedavg(
    problem: Classification, *, rounds: int, cohort: int, steps: int, batch: int, lr: float
) -> Callable[[], Any]:
    """Write FedAvg as one would by hand, and return a function that runs it.

    One scan over rounds, one vmap over the cohort, mini-batches with replacement, nothing more.
    """

    def train(problem: Classification, model: Any, key: Any, client: Any) -> Any:
        def step(model: Any, key: Any) -> tuple[Any, None]:
            examples = jax.random.randint(key, (batch,), 0, problem.counts[client])
            gradient = jax.grad(problem.loss)(model, client, examples, key)
            return optax.apply_updates(model, jax.tree.map(lambda g: -lr * g, gradient)), None

        return jax.lax.scan(step, model, jax.random.split(key, steps))[0]

    def one_round(problem: Classification, model: Any, key: Any) -> tuple[Any, None]:
        clients = jax.random.permutation(key, problem.counts.shape[0])[:cohort]
        models = jax.vmap(partial(train, problem), (None, 0, 0))(
            model, jax.random.split(key, cohort), clients
        )
        return jax.tree.map(lambda leaf: leaf.mean(axis=0), models), None

    @jax.jit
    def run(problem: Classification, model: Any, key: Any) -> Any:
        return jax.lax.scan(partial(one_round, problem), model, jax.random.split(key, rounds))[0]

    model = problem.init(jax.random.key(0))
    return lambda: run(problem, model, jax.random.key(1))


def bench_fedavg(turns: int) -> dict[str, Any]:
    """Measure rounds per second of FedAvg, in whole calls.

    100 clients with 600 images of 28x28 each, 20 clients a round, 20 steps of batch 32, a
    perceptron of 784-128-10.
    """
    rounds = 60
    (problem,) = image_problems(128)
    hyper = fedavg.paper(batch_size=32, lr=0.1, sampling="with_replacement")
    plain = plain_fedavg(problem, rounds=rounds, cohort=20, steps=20, batch=32, lr=0.1)
    seconds = in_turns(
        {
            "engine": lambda: wall(
                lambda: (
                    fedjax_sim.simulate(
                        fedavg.system, problem, hyper, budget=fedjax_sim.Ticks(rounds), num_evals=1
                    ).models
                )
            ),
            "plain vmapped scan": lambda: wall(plain),
        },
        turns,
    )
    return {
        "rounds_per_second": {name: rounds / value for name, value in seconds.items()},
        "engine_over_plain": seconds["plain vmapped scan"] / seconds["engine"],
    }


def bench_favano(turns: int) -> dict[str, Any]:
    """Measure lanes per hour (of 714 ticks) of FAVANO in Table 2's setting, a lane per core.

    Also reported: gradient evaluations executed per needed one.
    """
    lanes = max(2, jax.local_device_count())
    ticks = 60
    problems = image_problems(32, lanes)
    layouts = {
        "chosen": fedjax_sim.Layout(),
        "masked wide vmap, lanes batched": fedjax_sim.Layout(
            slots_at_once=20, lanes_at_once=True, lane_devices=1
        ),
        "masked wide vmap, lane per core": fedjax_sim.Layout(slots_at_once=20, lanes_at_once=False),
    }
    executed = {}

    def run(name: str) -> float:
        began = time.perf_counter()
        result = fedjax_sim.sweep(
            favano.system,
            problems,
            seeds=lanes,
            budget=fedjax_sim.Ticks(ticks),
            num_evals=3,
            layout=layouts[name],
        )
        executed[name] = float(result.curves.executed.sum() / result.curves.needed.sum())
        return time.perf_counter() - began

    seconds = in_turns({name: partial(run, name) for name in layouts}, turns)
    per_hour = {name: 3600 * lanes * ticks / 714 / value for name, value in seconds.items()}
    wide = max(value for name, value in per_hour.items() if name != "chosen")
    return {
        "lanes_per_hour": per_hour,
        "chosen_over_best_wide": per_hour["chosen"] / wide,
        "executed_per_needed": executed,
    }


def bench_sweep(turns: int) -> dict[str, Any]:
    """Measure local steps per second of sixteen learning rates of FedAvg, in whole calls.

    20 clients a round, 20 steps of batch 32. The lanes of a seed draw the same mini-batches; in one
    sweep they are drawn once for all lanes.
    """
    rounds, rates = 10, {}
    for name, network in {
        "logistic regression": LogisticRegression(10),
        "MLP 784-128-10": MLP((128,), 10),
    }.items():
        (problem,) = image_problems(0, examples=6000, network=network)
        hyper, settings = fedavg.paper(batch_size=32), {"lr": list(np.geomspace(0.001, 0.1, 16))}

        def run(
            max_lanes: int | None,
            problem: Classification = problem,
            hyper: Any = hyper,
            settings: Any = settings,
        ) -> float:
            return wall(
                lambda: (
                    fedjax_sim.sweep(
                        fedavg.system,
                        problem,
                        hyper,
                        settings=settings,
                        budget=fedjax_sim.Ticks(rounds),
                        num_evals=1,
                        layout=fedjax_sim.Layout(max_lanes=max_lanes),
                    ).models
                )
            )

        seconds = in_turns({"together": partial(run, None), "one by one": partial(run, 1)}, turns)
        rates[name] = {each: 16 * 20 * 20 * rounds / value for each, value in seconds.items()}
        rates[name]["together over one by one"] = seconds["one by one"] / seconds["together"]
    return {"local steps per second": rates}


def bench_layout(turns: int) -> dict[str, Any]:
    """Measure the layouts that the engine can choose for one lane, and say which one it chooses.

    20 slots of equal steps run one by one and together, and on several devices also split over
    these. Run it once on all cores and once bound to one; the results are kept apart.
    """
    cores = jax.local_device_count()
    networks = {
        **{f"784-{hidden}-10": MLP((hidden,), 10) for hidden in (8, 32, 128, 512)},
        "LeNet": LeNet(10),
        "ResNet-20": resnet20(10),
    }
    ways = list(itertools.product((1, 20), sorted({1, min(cores, 20)})))
    measured: dict[str, Any] = {}
    for (name, network), batch in itertools.product(networks.items(), (8, 32, 128)):
        size = 32 if name == "ResNet-20" else 28
        # Few test images: every device that takes slots evaluates the model once.
        (problem,) = image_problems(0, size=size, examples=6000, test_examples=10, network=network)
        _, cost = placement.measure_step(problem, batch)
        # One to three seconds of arithmetic: setting a call up takes a few percent of that.
        trips = int(np.clip(1e11 / cost.operations, 20, 200_000))
        steps = min(20, trips // 20)
        hyper = fedavg.paper(batch_size=batch, lr=0.01, local_steps=steps)

        def run(
            slots: int,
            devices: int,
            problem: Classification = problem,
            hyper: Any = hyper,
            ticks: int = trips // (20 * steps),
        ) -> float:
            layout = fedjax_sim.Layout(slots_at_once=slots, client_devices=devices)

            def models() -> Any:
                result = fedjax_sim.simulate(
                    fedavg.system,
                    problem,
                    hyper,
                    budget=fedjax_sim.Ticks(ticks),
                    num_evals=1,
                    layout=layout,
                )
                return result.models

            return wall(models)

        seconds = in_turns({_layout_name(*way): partial(run, *way) for way in ways}, turns)
        per_step = {each: 1e6 * value / trips for each, value in seconds.items()}
        chosen = placement.choose(
            fedjax_sim.Layout(),
            rows=np.zeros(1, int),
            steps=np.full((1, 1, 20), steps),
            cost=cost,
        )
        choice = _layout_name(chosen.slots_at_once, chosen.client_devices)
        measured[f"{name}, batch {batch}"] = {
            "operations": cost.operations,
            "bytes": cost.bytes,
            "microseconds a local step": per_step,
            "chosen": choice,
            "chosen over best": per_step[choice] / min(per_step.values()),
        }
        print(name, batch, json.dumps(measured[f"{name}, batch {batch}"]), flush=True)
    worst = max(each["chosen over best"] for each in measured.values())
    name = "1 core" if cores == 1 else f"{cores} cores"
    return {name: {"worst chosen over best": worst, **measured}}


def _layout_name(slots: int, devices: int) -> str:
    return f"{slots} slots together, {devices} devices"
