"""Time the engine against named alternatives in one and the same run, and keep the ratios with date and hardware.

    python scripts/benchmark.py            all but the last, written to scripts/benchmark_results.json
    python scripts/benchmark.py fedavg     the engine against a hand-written vmapped scan of the same work
    python scripts/benchmark.py favano     FAVANO in Table 2's setting: the layout that is chosen against the masked wide one
    python scripts/benchmark.py sweep      sixteen learning rates of one seed as one batch, beside each by itself
    python scripts/benchmark.py layout     a local step by itself and batched, for the rule in fedjax_sim/layout.py
    python scripts/benchmark.py arrivals   schedules of up to a million clients against a plain heap, and learning on the largest
    python scripts/benchmark.py asynchronous   FedStaleWeight's 16,000 server steps in virtual time
    python scripts/benchmark.py langevin   chains of FA-LD against a NumPy loop and blackjax's SGLD
    python scripts/benchmark.py em         expected statistics of a mixture per second, beside NumPy and scikit-learn
    python scripts/benchmark.py hierarchical   what padding costs in a sweep of sync times and exchange delays as one program
    python scripts/benchmark.py convolution   a local step of each convolutional network: the library's convolution and ours (by itself)

Contestants take turns, and the median of their rounds counts. The images are random bytes: their content does not change the time.
"""

import argparse
import datetime
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import fedjax_sim

# One device with all cores for the convolutions, whose comparison is of single programs; else a device per core.
fedjax_sim.use_cores(1 if sys.argv[1:2] == ["convolution"] else None)

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import optax  # noqa: E402
from benchmark_arrivals import bench_arrivals, bench_asynchronous  # noqa: E402
from benchmark_em import bench_em  # noqa: E402
from benchmark_hierarchical import bench_hierarchical  # noqa: E402
from benchmark_langevin import bench_langevin  # noqa: E402
from benchmark_timing import in_turns, wall  # noqa: E402
from flax import linen as nn  # noqa: E402

from fedjax_sim.datasets import Dataset  # noqa: E402
from fedjax_sim.engine import step_cost  # noqa: E402
from fedjax_sim.models import (
    CONVOLUTIONS,
    MLP,
    DoubleConvNet,
    LeNet,
    LogisticRegression,
    SmallCNN,
    resnet18,
    resnet20,
)  # noqa: E402
from fedjax_sim.partition import iid  # noqa: E402
from fedjax_sim.problems import Classification, make_classifications  # noqa: E402
from fedjax_sim.systems import favano, fedavg  # noqa: E402

RESULTS = Path(__file__).parent / "benchmark_results.json"


def image_problems(
    hidden: int, num: int = 1, *, size: int = 28, examples: int = 60_000, network: Any = None
) -> list[Classification]:
    """100 clients with equal shares of random `size` x `size` byte images, one partition per problem."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (examples + 1000, size, size, 1), dtype=np.uint8)
    labels = rng.integers(0, 10, examples + 1000).astype(np.int32)
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
    """FedAvg as one would write it by hand: one scan over rounds, vmap over the cohort, with replacement, nothing else."""

    def client(problem: Classification, model: Any, key: Any, client: Any) -> Any:
        def step(model: Any, key: Any) -> tuple[Any, None]:
            examples = jax.random.randint(key, (batch,), 0, problem.counts[client])
            gradient = jax.grad(problem.loss)(model, client, examples, key)
            return optax.apply_updates(model, jax.tree.map(lambda g: -lr * g, gradient)), None

        return jax.lax.scan(step, model, jax.random.split(key, steps))[0]

    def one_round(problem: Classification, model: Any, key: Any) -> tuple[Any, None]:
        who = jax.random.permutation(key, problem.counts.shape[0])[:cohort]
        models = jax.vmap(partial(client, problem), (None, 0, 0))(
            model, jax.random.split(key, cohort), who
        )
        return jax.tree.map(lambda leaf: leaf.mean(axis=0), models), None

    @jax.jit
    def run(problem: Classification, model: Any, key: Any) -> Any:
        return jax.lax.scan(partial(one_round, problem), model, jax.random.split(key, rounds))[0]

    model = problem.init(jax.random.key(0))
    return lambda: run(problem, model, jax.random.key(1))


def bench_fedavg(turns: int) -> dict[str, Any]:
    """100 clients x 600 of 28x28, 20 a round, 20 steps of batch 32, MLP 784-128-10: rounds per second, whole calls."""
    rounds = 60
    (problem,) = image_problems(128)
    hyper = fedavg.Hyper(batch_size=32, lr=0.1, sampling="with_replacement")
    plain = plain_fedavg(problem, rounds=rounds, cohort=20, steps=20, batch=32, lr=0.1)
    seconds = in_turns(
        {
            "engine": lambda: wall(
                lambda: (
                    fedjax_sim.simulate(
                        fedavg.system, problem, hyper, num_ticks=rounds, num_evals=1
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
    """FAVANO in Table 2's setting, a lane per core: lanes per hour (of 714 ticks), and gradient evaluations executed per needed one."""
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
            favano.system, problems, seeds=lanes, num_ticks=ticks, num_evals=3, layout=layouts[name]
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
    """Sixteen learning rates of FedAvg, 20 clients a round, 20 steps of batch 32: lanes' local steps per second, whole calls."""
    rounds, rates = 10, {}
    for name, network in {
        "logistic regression": LogisticRegression(10),
        "MLP 784-128-10": MLP((128,), 10),
    }.items():
        (problem,) = image_problems(0, examples=6000, network=network)
        hyper, settings = fedavg.Hyper(batch_size=32), {"lr": list(np.geomspace(0.001, 0.1, 16))}

        def run(
            at_once: int | None,
            problem: Classification = problem,
            hyper: Any = hyper,
            settings: Any = settings,
        ) -> float:
            how = {
                "num_ticks": rounds,
                "num_evals": 1,
                "layout": fedjax_sim.Layout(settings_at_once=at_once),
            }
            return wall(
                lambda: (
                    fedjax_sim.sweep(fedavg.system, problem, hyper, settings=settings, **how).models
                )
            )

        seconds = in_turns(
            {"together": partial(run, None), "each by itself": partial(run, 1)}, turns
        )
        rates[name] = {each: 16 * 20 * 20 * rounds / value for each, value in seconds.items()}
        rates[name]["together over each by itself"] = (
            seconds["each by itself"] / seconds["together"]
        )
    return {"local steps per second": rates}


def bench_layout(turns: int) -> dict[str, Any]:
    """Seconds of 20 slots of 20 equal steps, one after the other over batched: the gain that `layout.choose` weighs against padding."""
    gains = {}
    perceptrons = (
        (8, 16, 8),
        (8, 32, 16),
        (28, 8, 8),
        (28, 32, 32),
        (28, 32, 128),
        (28, 128, 32),
        (28, 512, 32),
    )
    for network, size, batch in (
        *((MLP((hidden,), 10), size, batch) for size, hidden, batch in perceptrons),
        (LeNet(10), 28, 32),
    ):
        (problem,) = image_problems(0, size=size, examples=6000, network=network)
        hyper = fedavg.Hyper(batch_size=batch, lr=0.01)
        work = step_cost.of_a_step(problem, jax.eval_shape(problem.init, jax.random.key(0)), batch)
        ticks = 40 if work < 1e7 else 4

        def run(
            slots: int, problem: Classification = problem, hyper: Any = hyper, ticks: int = ticks
        ) -> float:
            layout = fedjax_sim.Layout(slots_at_once=slots)
            return wall(
                lambda: (
                    fedjax_sim.simulate(
                        fedavg.system, problem, hyper, num_ticks=ticks, num_evals=1, layout=layout
                    ).models
                )
            )

        seconds = in_turns({"alone": partial(run, 1), "batched": partial(run, 20)}, turns)
        gains[f"{work:.2g} operations a step, {type(network).__name__}"] = (
            seconds["alone"] / seconds["batched"]
        )
    return {"gain_of_batching": gains}


IN_A_LOOP, OPERATIONS_IN_A_LOOP = 5, 2e9
"""Steps of a loop: at least so many, and so many that it has this many operations."""
MANY, FEW = (4, 16, 32), (4,)
"""Numbers of clients with weights of their own."""
NETWORKS: dict[str, tuple[Callable[..., Any], tuple[int, int, int], int, tuple[int, ...]]] = {
    "LeNet-type, FedStaleWeight (32x32x3)": (
        partial(DoubleConvNet, blocks=(32, 64, 128)),
        (32, 32, 3),
        32,
        MANY,
    ),
    "small, as pfl's (32x32x3)": (SmallCNN, (32, 32, 3), 32, MANY),
    "LeNet-5 (32x32x3)": (LeNet, (32, 32, 3), 32, MANY),
    "ResNet-20 (32x32x3)": (resnet20, (32, 32, 3), 32, FEW),
}


def local_step(
    model: Any, shape: tuple[int, int, int], batch: int
) -> tuple[Any, Any, Callable[[Any, Any], Any]]:
    """Parameters, images, and one step of gradient descent on them."""
    images = jax.random.normal(jax.random.key(0), (batch, *shape))
    labels = jnp.arange(batch) % 10

    def step(params: Any, images: Any) -> Any:
        def loss(params: Any) -> Any:
            return optax.softmax_cross_entropy_with_integer_labels(
                model.apply(params, images), labels
            ).mean()

        return jax.tree.map(lambda w, g: w - 0.01 * g, params, jax.grad(loss)(params))

    return model.init(jax.random.key(1), images), images, step


def multiplications(model: Any, shape: tuple[int, int, int], batch: int) -> float:
    """Multiply-adds of one local step: of the forward products, their weights' gradients, and all inputs' gradients but the first's."""
    sizes = []

    def note(next_call: Callable[..., Any], args: Any, kwargs: Any, context: Any) -> Any:
        y = next_call(*args, **kwargs)
        if isinstance(context.module, nn.Dense) and context.method_name == "__call__":
            sizes.append(y.size * context.module.variables["params"]["kernel"].size / y.shape[-1])
        return y

    def counted(lhs: Any, kernel: Any, *args: Any, **options: Any) -> Any:
        y = CONVOLUTIONS["lax"](lhs, kernel, *args, **options)
        sizes.append(y.size * kernel.size / y.shape[-1])
        return y

    with nn.intercept_methods(note):
        jax.eval_shape(
            lambda: model.clone(convolution=counted).init_with_output(
                jax.random.key(0), jnp.zeros((batch, *shape))
            )
        )
    return 3 * sum(sizes) - sizes[0]


def speeds(
    make: Callable[..., Any],
    shape: tuple[int, int, int],
    batch: int,
    clients: tuple[int, ...],
    turns: int,
) -> dict[str, float]:
    """GFLOP/s of one network's local step, by convolution and surroundings."""
    contestants: dict[str, Callable[[], float]] = {}
    work: dict[str, float] = {}

    def add(how: str, steps: int, flops: float, run: Callable[..., Any], *arguments: Any) -> None:
        compiled = jax.jit(run)
        contestants[how] = lambda: wall(lambda: compiled(*arguments))
        work[how] = steps * flops / 1e9

    for by in ("lax", "patches"):
        model = make(10, convolution=CONVOLUTIONS[by])
        params, images, step = local_step(model, shape, batch)
        flops = 2 * multiplications(model, shape, batch)
        steps = max(IN_A_LOOP, round(OPERATIONS_IN_A_LOOP / flops))
        loop = partial(in_a_loop, step, steps)
        add(f"{by}, alone", 1, flops, step, params, images)
        add(f"{by}, in a loop", steps, flops, loop, params, images)
        for num in clients if by == "patches" else ():
            each = jax.tree.map(lambda leaf, num=num: jnp.stack([leaf] * num), (params, images))
            add(f"{by}, {num} clients", num, flops, jax.vmap(step), *each)
            add(f"{by}, {num} clients, in a loop", num * steps, flops, jax.vmap(loop), *each)
    return {how: work[how] / value for how, value in in_turns(contestants, turns).items()}


def in_a_loop(step: Callable[[Any, Any], Any], steps: int, params: Any, images: Any) -> Any:
    """Several steps on the same images, compiled as a loop."""
    return jax.lax.fori_loop(0, steps, lambda _, params: step(params, images), params)


def bench_convolution(turns: int) -> dict[str, Any]:
    """GFLOP/s of a local step, by itself, in a loop, and with weights per client; beside a large matrix product in the same run."""
    matrix = jnp.ones((2048, 2048))
    product = jax.jit(lambda a: a @ a)
    rate = (
        2
        * 2048**3
        / in_turns({"product": lambda: wall(lambda: product(matrix))}, 2 * turns)["product"]
        / 1e9
    )
    found: dict[str, Any] = {"large matrix product, GFLOP/s": rate}
    for name, network in NETWORKS.items():
        speed = speeds(*network, turns)
        found[name] = {
            "GFLOP/s": speed,
            "ours in a loop over the best outside": speed["patches, in a loop"]
            / max(value for how, value in speed.items() if "loop" not in how),
            "ours in a loop over lax in a loop": speed["patches, in a loop"]
            / speed["lax, in a loop"],
        }
        print(name, json.dumps(found[name], indent=1), flush=True)
    return found | {"memory": step_memory()}


def step_memory() -> dict[str, Any]:
    """Bytes that a compiled local step of ResNet-18 holds besides its arguments, and that its results take: 64x64 images, batch 32."""
    found = {}
    for by in ("lax", "patches"):
        params, images, step = local_step(
            resnet18(200, convolution=CONVOLUTIONS[by]), (64, 64, 3), 32
        )
        memory = jax.jit(step).lower(params, images).compile().memory_analysis()
        found[f"ResNet-18, {by}, MiB"] = {
            "temporary": memory.temp_size_in_bytes / 2**20,
            "weights": memory.output_size_in_bytes / 2**20,
        }
    return found


BENCHMARKS = {
    "fedavg": bench_fedavg,
    "favano": bench_favano,
    "sweep": bench_sweep,
    "layout": bench_layout,
    "arrivals": bench_arrivals,
    "asynchronous": bench_asynchronous,
    "langevin": bench_langevin,
    "em": bench_em,
    "hierarchical": bench_hierarchical,
    "convolution": bench_convolution,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "benchmarks", nargs="*", choices=[[], *BENCHMARKS], help="which; all by default"
    )
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    device = jax.devices()[0]
    results = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    if "convolution" in arguments.benchmarks[1:]:
        parser.error("convolution runs by itself")
    for name in arguments.benchmarks or [name for name in BENCHMARKS if name != "convolution"]:
        measured = BENCHMARKS[name](arguments.turns)
        machine = f"{device.device_kind}, {jax.local_device_count()} devices, {os.cpu_count()} cores, {platform.machine()}"
        facts = {
            "date": datetime.date.today().isoformat(),
            "machine": machine,
            "jax": jax.__version__,
            "turns": arguments.turns,
        }
        results.setdefault(jax.default_backend(), {})[name] = facts | measured
        print(name, json.dumps(measured, indent=1))
        arguments.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    jnp.zeros(1).block_until_ready()
    main()
