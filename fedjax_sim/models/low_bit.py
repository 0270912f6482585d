"""Local training in few bits: FAVANO[QNN] (Leconte, Nguyen, Moulines, arXiv 2305.16099, App. C.3), for any flax module.

Weights and activations are rounded on a uniform grid whose range is that of SAWB (Choi et al. 2018, arXiv 1807.06964), neural gradients
by LUQ (Chmiel et al. 2023, arXiv 2112.10769). The parameters themselves, the SGD step, messages and the server stay in full precision;
numbers of few bits are held in ordinary floats, so this shows what training loses by them and not what hardware gains.

Readings. The paper's Section 3 has the stochastic gradient quantized before the update, its App. C.3 the neural gradients: the latter is
taken. It names LUQ but none of its constants: those of LUQ's public code are taken, with its levels (`LEVELS`), and for 3 bits another
public port's range, as nobody says which was used. First and last layer are quantized like the others, on which the paper is silent too;
`LowBit.full_precision` names layers to leave alone. Straight-through gradients pass clipped values as well, as in LUQ's code. Models are
evaluated with weights and activations rounded as in training, for that is the network that was trained; `evaluate_quantized=False`
evaluates them as they are sent. (FAVANO, MNIST, IID, three seeds, 1500 units of time: full precision reaches 89.1 %, and in few bits 87.5
rounded and 86.1 as sent.)

Deviation: LUQ's code scales by the largest signed gradient, here it is the largest magnitude; by the other, negative ones are clipped.
"""

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from fedjax_sim.compression import luq
from fedjax_sim.models.calls import takes_train
from fedjax_sim.settings import ConfigError
from fedjax_sim.types import Array, Key, Params, full_precision_bits

SAWB = {3: (7.40, 6.66), 4: (12.1, 12.2)}
"""Coefficients c_1 and c_2 by bits; other bits are scaled by the largest value."""

LEVELS = ("reference", "strict")
"""What b bits hold. "reference", as LUQ's code: 2^b + 1 signed levels, and a LUQ of 0 and 2^(b-1) powers of two of either sign.

"strict": what fits into b bits, the largest of these left out of each: 2^b signed levels, and one power of two fewer.
"""

LAYERS = (nn.Dense, nn.DenseGeneral, nn.Conv, nn.ConvLocal, nn.ConvTranspose)
"""Flax's layers of one input and a parameter named "kernel"."""


def uniform(
    x: Array, *, bits: int, scale: Array | float, signed: Array | bool, levels: str = "reference"
) -> Array:
    """Round to the nearest whole multiple of a step, and clamp.

    scale: `f[]`, half the width of the range. Signed codes run from -2^(b-1) to 2^(b-1) (one less if "strict"), others from 0 to 2^b - 1;
    the step is 2 scale over their number less one, so unsigned values reach 2 scale. signed: `bool[]`, traced or not.
    """
    low = jnp.where(signed, -(2 ** (bits - 1)), 0)
    high = jnp.where(signed, 2 ** (bits - 1) - (levels == "strict"), 2**bits - 1)
    wide = x.astype(jnp.promote_types(x.dtype, "float32"))
    step = 2 * jnp.asarray(scale, wide.dtype) / (high - low).astype(wide.dtype)
    code = jnp.clip(jnp.round(wide / jnp.where(step == 0, 1, step)), low, high)
    return (step * code).astype(x.dtype)


def max_abs(x: Array, *, bits: int, signed: Array | bool, levels: str = "reference") -> Array:
    """Round on a uniform grid that reaches the largest magnitude."""
    return uniform(x, bits=bits, scale=_max_scale(x, signed), signed=signed, levels=levels)


def sawb(x: Array, *, bits: int, signed: Array | bool, levels: str = "reference") -> Array:
    """Round on a uniform grid that clips at c = c_1 sqrt(mean(x^2)) - c_2 mean(|x|), nonnegative values at 2 c as in LUQ's code.

    With other than 3 or 4 bits, and where c is not above 0 (all values about as large), the grid reaches the largest magnitude.
    """
    if bits not in SAWB:
        return max_abs(x, bits=bits, signed=signed, levels=levels)
    wide = x.astype(jnp.promote_types(x.dtype, "float32"))
    of_square, of_mean = SAWB[bits]
    clip = of_square * jnp.sqrt(jnp.mean(jnp.square(wide))) - of_mean * jnp.mean(jnp.abs(wide))
    return uniform(
        x,
        bits=bits,
        scale=jnp.where(clip <= 0, _max_scale(x, signed), clip),
        signed=signed,
        levels=levels,
    )


def _max_scale(x: Array, signed: Array | bool) -> Array:
    largest = jnp.max(jnp.abs(x)).astype(jnp.promote_types(x.dtype, "float32"))
    return jnp.where(signed, largest, largest / 2)


SCALES = {"sawb": sawb, "max": max_abs}
"""What the range of a grid is read from, by name."""


def straight_through(quantizer: Callable[[Array], Array], x: Array) -> Array:
    """Quantize a value, exactly, with the gradient of the identity."""
    fixed = jax.lax.stop_gradient(x)
    return quantizer(fixed) + (x - fixed)


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def quantized_gradient(x: Array, key: Key, bits: int, top: int | None = None) -> Array:
    """Return x, whose cotangent passes through `luq` on its way back."""
    return x


def _backward(bits: int, top: int | None, key: Key, slope: Array) -> tuple[Array, np.ndarray]:
    return luq(key, slope, bits=bits, top=top), np.zeros(key.shape, jax.dtypes.float0)


quantized_gradient.defvjp(lambda x, key, bits, top: (x, key), _backward)


@dataclass(frozen=True)
class LowBit:
    """A model whose `LAYERS` compute in few bits while training: a part of None bits stays in full precision.

    Inputs and kernels are rounded straight-through, and the gradient at each layer's output by LUQ; biases and other layers are left
    alone. All of a tensor shares a scale, which is its client's own. Inputs without a negative value have unsigned levels, as seen in
    each batch: behind a ReLU that is always so. As `gradients` grows LUQ does not become exact, so that full precision is the limit of
    many weight and activation bits with `gradients` of None.
    """

    model: nn.Module
    weights: int | None = 3
    activations: int | None = 3
    gradients: int | None = 4
    scale: str = "sawb"
    """What a grid's range is read from; one of SCALES."""
    evaluate_quantized: bool = True
    """Whether weights and activations are rounded in evaluation too."""
    full_precision: tuple[str, ...] = ()
    """Paths of layers to leave alone, such as "Dense_0" or "Block_0/Conv_1"."""
    levels: str = "reference"
    """One of LEVELS."""

    def __post_init__(self) -> None:
        for name, most in (("weights", 24), ("activations", 24), ("gradients", 8)):
            bits = getattr(self, name)
            if bits is not None and (
                isinstance(bits, bool) or not isinstance(bits, int) or not 2 <= bits <= most
            ):
                raise ConfigError(name, bits, f"a whole number of bits from 2 to {most}, or None")
        for name, options in (("scale", SCALES), ("levels", LEVELS)):
            if getattr(self, name) not in options:
                raise ConfigError(name, getattr(self, name), "one of " + ", ".join(options))
        if not isinstance(self.full_precision, tuple):
            raise ConfigError("full_precision", self.full_precision, "a tuple of paths of layers")

    def init(self, key: Key, x: Array) -> Params:
        """Draw the model's parameters, in full precision."""
        return self.model.init(key, x)

    def apply(
        self,
        params: Params,
        x: Array,
        *,
        train: bool = False,
        rngs: Mapping[str, Key] | None = None,
    ) -> Array:
        """Compute the logits. rngs: while training the key "quantize", and whatever streams the model takes."""
        streams = dict(rngs or {})
        key = streams.pop("quantize", None)
        options: dict[str, Any] = {"train": train} if takes_train(self.model) else {}
        call: Callable[..., Any] = partial(self.model.apply, rngs=streams, **options)
        if not (train or self.evaluate_quantized):
            return call(params, x)
        calls = itertools.count()

        def layer(
            compute: Callable[..., Array], args: tuple, kwargs: dict[str, Any], context: Any
        ) -> Array:
            module = context.module
            if (
                context.method_name != "__call__"
                or not isinstance(module, LAYERS)
                or "/".join(module.path) in self.full_precision
            ):
                return compute(*args, **kwargs)
            (inputs,) = (*args, *kwargs.values())
            outputs = compute(self._round(inputs, self.activations, signed=jnp.min(inputs) < 0))
            if not train or self.gradients is None:
                return outputs
            if key is None:
                raise ValueError(
                    'apply needs rngs={"quantize": key} to quantize neural gradients in training'
                )
            top = 2 ** (self.gradients - 1) - (2 if self.levels == "strict" else 1)
            return quantized_gradient(
                outputs, jax.random.fold_in(key, next(calls)), self.gradients, top
            )

        def rounded(path: tuple[Any, ...], leaf: Array) -> Array:
            return self._round(leaf, self.weights, signed=True) if self.rounds(path) else leaf

        with nn.intercept_methods(layer):
            return call(jax.tree.map_with_path(rounded, params), x)

    def rounds(self, path: tuple[Any, ...]) -> bool:
        """Whether training rounds a leaf of the parameters, given its path of keys: kernels, by their name."""
        _, *modules, name = (str(part.key) for part in path)
        return (
            self.weights is not None
            and name == "kernel"
            and "/".join(modules) not in self.full_precision
        )

    def _round(self, x: Array, bits: int | None, *, signed: Array | bool) -> Array:
        if bits is None:
            return x
        return straight_through(
            partial(SCALES[self.scale], bits=bits, signed=signed, levels=self.levels), x
        )


def training_bits(params: Params, low: LowBit) -> dict[str, int]:
    """Count the bits of the weights that one local step computes with, "low_bit", and of the model as it is, "full_precision".

    A "reference" grid is counted by its name though it has a level more than its bits hold. What is kept and sent is not smaller.
    """
    leaves = jax.tree.leaves_with_path(params)
    saved = sum(
        (8 * leaf.dtype.itemsize - (low.weights or 0)) * leaf.size
        for path, leaf in leaves
        if low.rounds(path)
    )
    whole = full_precision_bits(params)
    return {"low_bit": whole - saved, "full_precision": whole}
