"""What matrix products of fewer bits do to accuracies and to a verdict, emulated on a CPU.

    python scripts/benchmark.py rounding --data-dir FASHION_MNIST

Claim 1 of `experiments/selection` (Oort is more than 1.2 times as fast as FedAvg) is run again with
the rates that were chosen for it, ten seeds, and every factor of every matrix product rounded as a
GPU rounds it, in forward and backward passes: to 10 bits of mantissa for TF32, and to 7 for
bfloat16. Sums stay in float32, as they do there. Nothing is timed.
"""

import argparse
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

import fedjax_sim
from experiments.harness.images import dirichlet_problems, pooled
from experiments.selection import rules
from fedjax_sim import datasets
from fedjax_sim.core.types import Array
from fedjax_sim.studies.statistics import interval

BITS = {"float32": 23, "tensorfloat32": 10, "bfloat16": 7}
"""Bits of the mantissa of each factor."""
SYSTEMS = ("FedAvg", "Oort", "FedBuff")
RATES = {"lr": 0.3, "server_lr": 0.3}
"""Those that were chosen for the claim."""


def rounded(x: Array, bits: int) -> Array:
    """Round float32 to a mantissa of so many bits, to nearest and ties to even."""
    if bits == 23:
        return x
    word, drop = jax.lax.bitcast_convert_type(x, "uint32"), 23 - bits
    half = jnp.uint32((1 << (drop - 1)) - 1) + ((word >> drop) & 1)
    kept = (word + half) & jnp.uint32(~((1 << drop) - 1) & 0xFFFFFFFF)
    return jnp.where(jnp.isfinite(x), jax.lax.bitcast_convert_type(kept, "float32"), x)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def product(x: Array, w: Array, bits: int) -> Array:
    """Multiply `x [..., D]` and `w [D, F]` with factors that are rounded, backwards as well."""
    return jnp.matmul(rounded(x, bits), rounded(w, bits))


def _forward(x: Array, w: Array, bits: int) -> tuple[Array, Any]:
    return product(x, w, bits), (x, w)


def _backward(bits: int, kept: Any, gradient: Array) -> tuple[Array, Array]:
    x, w = (rounded(each, bits) for each in kept)
    gradient = rounded(gradient, bits)
    rows = gradient.reshape(-1, gradient.shape[-1])
    return jnp.matmul(gradient, w.T), jnp.matmul(x.reshape(-1, x.shape[-1]).T, rows)


product.defvjp(_forward, _backward)


class Rounded(nn.Module):
    """The perceptron of the claim, its products with factors of fewer bits.

    Attributes:
      hidden: Units of the hidden layer.
      num_classes: Number of logits.
      bits: Bits of the mantissa.
    """

    hidden: int
    num_classes: int
    bits: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Compute the logits `[..., num_classes]`."""
        x = x.reshape(*x.shape[:-3], -1)
        for features in (self.hidden, self.num_classes):
            bound, layer = x.shape[-1] ** -0.5, f"Dense_{int(features == self.num_classes)}"

            def initial(key: Any, shape: Any, dtype: Any, bound: float = bound) -> Array:
                return jax.random.uniform(key, shape, dtype, -bound, bound)

            def multiply(x: Array, w: Array, *_: Any, **options: Any) -> Array:
                return product(x, w, self.bits)

            dense = nn.Dense(
                features, kernel_init=initial, bias_init=initial, dot_general=multiply, name=layer
            )
            x = dense(nn.relu(x) if layer == "Dense_1" else x)
        return x


def measure(name: str, problems: Any, target: float) -> dict[str, np.ndarray]:
    """Run a system: accuracies at the end in percent, and times to the target, `[S]` each."""
    sizes = rules.STUDY.full
    method = rules.methods(sizes)[name]
    choice = {key: value for key, value in RATES.items() if key in method.grid}
    curves = fedjax_sim.sweep(
        method.system,
        problems,
        method.hyper.replace(**choice),
        seeds=len(problems),
        budget=fedjax_sim.Time(sizes.budget, most_ticks=400 * method.every),
        num_evals=400,
        layout=fedjax_sim.Layout(lanes_at_once=False),
    ).curves
    found = rules.measure(curves, sizes.budget, target)
    return {key: np.asarray(found[key].values) for key in ("ends", "times")}


def main(arguments: list[str]) -> None:
    """Run, and print accuracies, differences of pairs, and the claim's ratio."""
    parser = argparse.ArgumentParser(
        prog="benchmark.py rounding",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--data-dir", help="folder with Fashion-MNIST, if it is not downloaded")
    parser.add_argument("--target", type=float, default=0.731, help="the claim's, by default")
    parser.add_argument("--seeds", type=int, default=10)
    options = parser.parse_args(arguments)
    sizes = rules.STUDY.full
    data = pooled(datasets.load(sizes.dataset, data_dir=options.data_dir), sizes.side)
    found: dict[str, dict[str, dict[str, np.ndarray]]] = {}
    for kind, bits in BITS.items():
        network = partial(Rounded, 32, bits=bits)
        split = {"num_clients": sizes.clients, "alpha": sizes.alpha}
        problems = dirichlet_problems(network, data, seeds=range(options.seeds), **split)
        found[kind] = {name: measure(name, problems, options.target) for name in SYSTEMS}
        for name, each in found[kind].items():
            more = each["ends"] - found["float32"][name]["ends"]
            print(
                f"{kind:13} {name:8} end {each['ends'].mean():.2f} %, {interval(more)} points more"
            )
        times = (np.log(found[kind][name]["times"]) for name in SYSTEMS[:2])
        ratio = interval(np.subtract(*times))
        low, high = (np.exp(ratio.mean + sign * ratio.half) for sign in (-1, 1))
        print(
            f"{kind:13} FedAvg / Oort {np.exp(ratio.mean):.2f} ({low:.2f} to {high:.2f})",
            flush=True,
        )
