"""Local training with few bits for any flax module: FAVANO[QNN].

The method is that of Leconte, Nguyen and Moulines (arXiv 2305.16099), App. C.3. Weights and
activations are rounded on a uniform grid whose range is that of SAWB (Choi et al. 2018,
arXiv 1807.06964), neural gradients, which are those with respect to the outputs of layers, by LUQ
(Chmiel et al. 2023, arXiv 2112.10769). The parameters themselves, the SGD step, the messages and
the server stay in full precision. Rounded numbers are held in ordinary floats, so this shows what
training loses by few bits, not what hardware gains.

Readings. Section 3 of the paper quantizes the stochastic gradient before the update, App. C.3 the
neural gradients; the latter is implemented. The paper names LUQ but gives none of its constants.
The constants and the levels are those of LUQ's public code (see `LEVELS`); SAWB's range for 3 bits
comes from another public port, because no source states which one the paper used. The paper does
not say whether the first and the last layer are quantized; here they are, unless
`LowBit.full_precision` names them. Straight-through gradients pass clipped values too, as in LUQ's
code. Models are evaluated with weights and activations rounded as in training, because that is the
network that was trained; `evaluate_quantized=False` evaluates them as they are sent. (FAVANO on
MNIST, IID, three seeds, 1500 units of time: full precision reaches 89.1 %, few bits reach 87.5 %
rounded and 86.1 % as sent.)

Deviation: LUQ's code scales by the largest gradient with its sign, which clips negative gradients
of larger magnitude. Here the scale is the largest magnitude.
"""

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from fedjax_sim.compression import luq
from fedjax_sim.linear import linear_with_transpose
from fedjax_sim.models.calls import draw_params, outputs_of
from fedjax_sim.settings import ConfigError
from fedjax_sim.types import Array, Key, Params

SAWB = {3: (7.40, 6.66), 4: (12.1, 12.2)}
"""Coefficients (c_1, c_2) of SAWB's range by number of bits.

For other numbers of bits the range is the largest magnitude.
"""

LEVELS = ("reference", "strict")
"""Which levels b bits stand for.

"reference", as in LUQ's code: 2^b + 1 signed levels of a uniform grid, and for LUQ zero and 2^(b-1)
powers of two of either sign. That is one level more than b bits can hold.
"strict": levels that fit into b bits. The uniform grid lacks the largest positive level, and LUQ
has one power of two fewer.
"""

LAYERS = (nn.Dense, nn.DenseGeneral, nn.Conv, nn.ConvLocal, nn.ConvTranspose)
"""The layers that are quantized: flax's layers with one input and a parameter named "kernel"."""


def uniform(
    x: Array, *, bits: int, scale: Array | float, signed: Array | bool, levels: str = "reference"
) -> Array:
    """Round to the nearest whole multiple of a step, and clamp to the range of the grid.

    Signed codes run from -2^(bits-1) to 2^(bits-1), or to one less if levels are "strict". Unsigned
    codes run from 0 to 2^bits - 1. The step is 2 * scale divided by the number of codes less one,
    so unsigned values reach 2 * scale.

    Args:
      x: Values, floats `[...]`.
      bits: Number of bits, at least 2.
      scale: Half the width of the range, `f[]`.
      signed: Whether the codes are signed, `bool[]`; it may be traced.
      levels: One of `LEVELS`.

    Returns:
      The rounded values, with the shape and dtype of x. They are computed in at least 32 bits.
    """
    low = jnp.where(signed, -(2 ** (bits - 1)), 0)
    high = jnp.where(signed, 2 ** (bits - 1) - (levels == "strict"), 2**bits - 1)
    wide = x.astype(jnp.promote_types(x.dtype, "float32"))
    step = 2 * jnp.asarray(scale, wide.dtype) / (high - low).astype(wide.dtype)
    code = jnp.clip(jnp.round(wide / jnp.where(step == 0, 1, step)), low, high)
    return (step * code).astype(x.dtype)


def max_abs(x: Array, *, bits: int, signed: Array | bool, levels: str = "reference") -> Array:
    """Round on a uniform grid that reaches the largest magnitude.

    Args:
      x: Values, floats `[...]`.
      bits: Number of bits, at least 2.
      signed: Whether the codes are signed, `bool[]`; it may be traced.
      levels: One of `LEVELS`.

    Returns:
      The rounded values, with the shape and dtype of x.
    """
    return uniform(x, bits=bits, scale=_max_scale(x, signed), signed=signed, levels=levels)


def sawb(x: Array, *, bits: int, signed: Array | bool, levels: str = "reference") -> Array:
    """Round on a uniform grid with SAWB's range.

    The grid clips at c = c_1 sqrt(mean(x^2)) - c_2 mean(|x|); unsigned values are clipped at 2 c,
    as in LUQ's code. With other than 3 or 4 bits, or if c is not above 0 (all values have about the
    same magnitude), the grid reaches the largest magnitude. Source: Choi et al. 2018 (arXiv
    1807.06964).

    Args:
      x: Values, floats `[...]`.
      bits: Number of bits, at least 2.
      signed: Whether the codes are signed, `bool[]`; it may be traced.
      levels: One of `LEVELS`.

    Returns:
      The rounded values, with the shape and dtype of x.
    """
    if bits not in SAWB:
        return max_abs(x, bits=bits, signed=signed, levels=levels)
    wide = x.astype(jnp.promote_types(x.dtype, "float32"))
    c_1, c_2 = SAWB[bits]
    clip = c_1 * jnp.sqrt(jnp.mean(jnp.square(wide))) - c_2 * jnp.mean(jnp.abs(wide))
    scale = jnp.where(clip <= 0, _max_scale(x, signed), clip)
    return uniform(x, bits=bits, scale=scale, signed=signed, levels=levels)


def _max_scale(x: Array, signed: Array | bool) -> Array:
    """Return the scale with which `uniform` reaches the largest magnitude."""
    largest = jnp.max(jnp.abs(x)).astype(jnp.promote_types(x.dtype, "float32"))
    return jnp.where(signed, largest, largest / 2)


SCALES = {"sawb": sawb, "max": max_abs}
"""Uniform quantizers by the name of their range."""


def straight_through(quantizer: Callable[[Array], Array], x: Array) -> Array:
    """Quantize values and give the result the gradient of the identity.

    Args:
      quantizer: Any function of an array that keeps its shape.
      x: Values, floats `[...]`.

    Returns:
      `quantizer(x)`, to the last bit.
    """
    constant = jax.lax.stop_gradient(x)
    return quantizer(constant) + (x - constant)


@partial(jax.custom_jvp, nondiff_argnums=(2, 3))
def quantized_gradient(x: Array, key: Key, bits: int, top: int | None = None) -> Array:
    """Return x, and quantize its gradient by LUQ on the way back.

    In forward mode the tangent is passed on as it is: this is the identity, and nothing is
    quantized.

    Args:
      x: Values, floats `[...]`.
      key: Key of LUQ's random numbers.
      bits: Number of bits of the gradient.
      top: Number of powers of two below the largest magnitude, by default LUQ's for these bits.

    Returns:
      x.
    """
    return x


@quantized_gradient.defjvp
def _quantized_gradient_jvp(
    bits: int, top: int | None, inputs: tuple[Array, Key], tangents: tuple[Array, Any]
) -> tuple[Array, Array]:
    x, key = inputs

    def quantized(key: Key, slope: Array) -> Array:
        return luq(key, slope, bits=bits, top=top)

    return x, linear_with_transpose(lambda _, tangent: tangent, quantized, key, tangents[0], like=x)


@dataclass(frozen=True)
class LowBit:
    """A wrapper of a model: its `LAYERS` compute with few bits in training.

    Inputs and kernels of a layer are rounded, with straight-through gradients, and the gradient at
    its output is quantized by LUQ. Biases and other layers are left alone. All values of a tensor
    share one scale, and each client has its own scales. Inputs without a negative value are rounded
    on unsigned levels; this is decided for each batch, and always so behind a ReLU.

    With many bits for weights and activations, and `gradients` of None, the limit is full
    precision. LUQ does not become exact with many bits.

    Attributes:
      model: The flax module to wrap.
      weights: Bits of the kernels, from 2 to 24, or None for full precision.
      activations: Bits of the layers' inputs, from 2 to 24, or None for full precision.
      gradients: Bits of the gradients at the layers' outputs, from 2 to 8, or None for full
        precision.
      scale: What sets the range of the uniform grids, a name in `SCALES`.
      evaluate_quantized: Whether weights and activations are rounded in evaluation too.
      full_precision: Paths of layers to leave alone, such as "Dense_0" or "Block_0/Conv_1".
      levels: Which levels a number of bits stands for, one of `LEVELS`.
    """

    model: nn.Module
    weights: int | None = 3
    activations: int | None = 3
    gradients: int | None = 4
    scale: str = "sawb"
    evaluate_quantized: bool = True
    full_precision: tuple[str, ...] = ()
    levels: str = "reference"

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
        """Draw the model's parameters, in full precision, for inputs like x."""
        return draw_params(self.model, key, x)

    def apply(
        self,
        params: Params,
        x: Array,
        *,
        train: bool = False,
        rngs: Mapping[str, Key] | None = None,
    ) -> Array:
        """Compute the logits.

        Args:
          params: Parameters in full precision.
          x: Inputs of the wrapped model.
          train: Whether this is a local step, in which gradients are quantized.
          rngs: In training, the key "quantize" and the random streams that the model takes.

        Returns:
          The logits of the wrapped model.

        Raises:
          ValueError: If gradients are to be quantized and there is no key "quantize".
        """
        streams = dict(rngs or {})
        key = streams.pop("quantize", None)
        call: Callable[..., Any] = partial(outputs_of, self.model, train=train, rngs=streams)
        if not (train or self.evaluate_quantized):
            return call(params, x)
        call_numbers = itertools.count()

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
                outputs, jax.random.fold_in(key, next(call_numbers)), self.gradients, top
            )

        def rounded(path: tuple[Any, ...], leaf: Array) -> Array:
            return self._round(leaf, self.weights, signed=True) if self.rounds(path) else leaf

        with nn.intercept_methods(layer):
            return call(jax.tree.map_with_path(rounded, params), x)

    def rounds(self, path: tuple[Any, ...]) -> bool:
        """Tell whether training rounds a parameter, which is so if it is a layer's kernel.

        Args:
          path: Path of the parameter's leaf, as `jax.tree.map_with_path` gives it.
        """
        _, *modules, name = (str(part.key) for part in path)
        is_low = name == "kernel" and "/".join(modules) not in self.full_precision
        return self.weights is not None and is_low

    def _round(self, x: Array, bits: int | None, *, signed: Array | bool) -> Array:
        """Round values with a straight-through gradient, or not at all if bits is None."""
        if bits is None:
            return x
        return straight_through(
            partial(SCALES[self.scale], bits=bits, signed=signed, levels=self.levels), x
        )
