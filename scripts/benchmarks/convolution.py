"""A local step of convolutional networks, with the library's convolution and with ours."""

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from benchmarks.timing import in_turns, wall
from flax import linen as nn

from fedjax_sim.models import CONVOLUTIONS, DoubleConvNet, LeNet, SmallCNN, resnet18, resnet20

LEAST_STEPS, LEAST_OPERATIONS = 5, 2e9
"""A loop has at least this many steps, and enough of them for this many operations."""
MANY, FEW = (4, 16, 32), (4,)
"""Numbers of clients whose steps are batched, each with its own weights."""
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
    """Make parameters, images, and a function that takes one step of gradient descent."""
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
    """Count the multiply-adds of one local step.

    Each product of the forward pass counts three times: for the forward pass, for the gradient of
    the weights, and for the gradient of the inputs, which the first layer does not need.
    """
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
    """Measure GFLOP/s of one network's local step, by convolution and by what is around it."""
    contestants: dict[str, Callable[[], float]] = {}
    work: dict[str, float] = {}

    def add(how: str, steps: int, flops: float, run: Callable[..., Any], *arguments: Any) -> None:
        compiled = jax.jit(run)
        contestants[how] = lambda: wall(lambda: compiled(*arguments))
        work[how] = steps * flops / 1e9

    for name in ("lax", "patches", "auto"):
        model = make(10, convolution=CONVOLUTIONS[name])
        params, images, step = local_step(model, shape, batch)
        flops = 2 * multiplications(model, shape, batch)
        steps = max(LEAST_STEPS, round(LEAST_OPERATIONS / flops))
        loop = partial(in_a_loop, step, steps)
        add(f"{name}, alone", 1, flops, step, params, images)
        add(f"{name}, in a loop", steps, flops, loop, params, images)
        for num in clients if name != "lax" else ():
            each = jax.tree.map(lambda leaf, num=num: jnp.stack([leaf] * num), (params, images))
            add(f"{name}, {num} clients", num, flops, jax.vmap(step), *each)
            add(f"{name}, {num} clients, in a loop", num * steps, flops, jax.vmap(loop), *each)
    return {how: work[how] / value for how, value in in_turns(contestants, turns).items()}


def in_a_loop(step: Callable[[Any, Any], Any], steps: int, params: Any, images: Any) -> Any:
    """Take several steps on the same images, compiled as a loop."""
    return jax.lax.fori_loop(0, steps, lambda _, params: step(params, images), params)


def bench_convolution(turns: int) -> dict[str, Any]:
    """Measure GFLOP/s of a local step: alone, in a loop, and with weights per client.

    A large matrix product is measured in the same run for comparison.
    """
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
            "ours in a loop over the best outside": speed["auto, in a loop"]
            / max(value for how, value in speed.items() if "loop" not in how),
            "ours in a loop over lax in a loop": speed["auto, in a loop"] / speed["lax, in a loop"],
        }
        print(name, json.dumps(found[name], indent=1), flush=True)
    return found | {"memory": step_memory()}


def step_memory() -> dict[str, Any]:
    """Read off the memory of a compiled local step of ResNet-18: 64x64 images, batch 32.

    Temporary memory comes on top of the arguments; the results are as large as the weights.
    """
    found = {}
    for name in ("lax", "patches", "auto"):
        params, images, step = local_step(
            resnet18(200, convolution=CONVOLUTIONS[name]), (64, 64, 3), 32
        )
        memory = jax.jit(step).lower(params, images).compile().memory_analysis()
        found[f"ResNet-18, {name}, MiB"] = {
            "temporary": memory.temp_size_in_bytes / 2**20,
            "weights": memory.output_size_in_bytes / 2**20,
        }
    return found
