"""Local training with few bits for any flax module: FAVANO[QNN].

The method is that of Leconte, Nguyen and Moulines (arXiv 2305.16099), App. C.3. Weights and
activations are rounded on a uniform grid whose range is that of SAWB (Choi et al. 2018,
arXiv 1807.06964), neural gradients, which are those with respect to the outputs of layers, by LUQ
(Chmiel et al. 2023, arXiv 2112.10769). The parameters themselves, the SGD step, the messages and
the server stay in full precision. Rounded numbers are held in ordinary floats, so this shows what
training loses by few bits, not what hardware gains.

Readings. Section 3 of the paper quantizes the stochastic gradient before the update, App. C.3 the
neural gradients; the latter is implemented. The paper names LUQ but gives none of its constants.
The constants and the levels are those of LUQ's public code (see `rounding.LEVELS`); SAWB's range
for 3 bits comes from another public port, because no source states which one the paper used. The
paper does not say whether the first and the last layer are quantized; here they are, unless
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
from typing import Annotated

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.linen.module import InterceptorContext

from fedjax_sim.core.settings import ConfigError, Limit, OneOf, checked
from fedjax_sim.core.trees import paths_of
from fedjax_sim.core.types import Array, Key, Params
from fedjax_sim.kernels import rounding
from fedjax_sim.models.calls import draw_params, outputs_of
from fedjax_sim.server.compression import luq

Bits = Annotated[int, Limit(least=2, most=24)]
LAYERS = (nn.Dense, nn.DenseGeneral, nn.Conv, nn.ConvLocal, nn.ConvTranspose)
"""The layers that are quantized: flax's layers with one input and a parameter named "kernel"."""


@checked
@dataclass(frozen=True)
class LowBit:
    """A wrapper of a model: its `LAYERS` compute with few bits in training.

    Inputs and kernels of a layer are rounded, with straight-through gradients, and the gradient at
    its output is quantized by LUQ. Biases and other layers are left alone, except that parameters
    named "kernel" of other layers, such as LSTM cells, are rounded. All values of a tensor share
    one scale, and each client has its own scales. Inputs without a negative value are rounded
    on unsigned levels; this is decided for each batch, and always so behind a ReLU.

    With many bits for weights and activations, and `gradients` of None, the limit is full
    precision. LUQ does not become exact with many bits.

    Attributes:
      model: The flax module to wrap.
      weights: Bits of the kernels, from 2 to 24, or None for full precision.
      activations: Bits of the layers' inputs, from 2 to 24, or None for full precision.
      gradients: Bits of the gradients at the layers' outputs, from 2 to 8, or None for full
        precision.
      scale: What sets the range of the uniform grids, a name in `rounding.SCALES`.
      evaluate_quantized: Whether weights and activations are rounded in evaluation too.
      full_precision: Paths of layers to leave alone, such as "Dense_0" or "Block_0/Conv_1".
      levels: Which levels a number of bits stands for, one of `rounding.LEVELS`.
    """

    model: nn.Module
    weights: Bits | None = 3
    activations: Bits | None = 3
    gradients: Annotated[int, Limit(least=2, most=8)] | None = 4
    scale: Annotated[str, OneOf(tuple(rounding.SCALES))] = "sawb"
    evaluate_quantized: bool = True
    full_precision: tuple[str, ...] = ()
    levels: Annotated[str, OneOf(tuple(rounding.LEVELS))] = "reference"

    def __post_init__(self) -> None:
        if not isinstance(self.full_precision, tuple):  # A list could not be hashed.
            raise ConfigError("full_precision", self.full_precision, "a tuple of paths of layers")

    def init(self, key: Key, x: Array) -> Params:
        """Draw the model's parameters, in full precision, for inputs like x.

        Raises:
          ConfigError: If a path in `full_precision` is that of no layer.
        """
        params = draw_params(self.model, key, x)
        kernels = (path for path in paths_of(params) if path.endswith("/kernel"))
        layers = {path.partition("/")[2].rpartition("/")[0] for path in kernels}
        for path in self.full_precision:
            if path not in layers:
                raise ConfigError("full_precision", path, "one of " + ", ".join(sorted(layers)))
        return params

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
        call: Callable[..., Array] = partial(outputs_of, self.model, train=train, rngs=streams)
        if not (train or self.evaluate_quantized):
            return call(params, x)
        call_numbers = itertools.count()

        def layer(
            compute: Callable[..., Array],
            args: tuple[Array, ...],
            kwargs: dict[str, Array],
            context: InterceptorContext,
        ) -> Array:
            module = context.module
            is_layer = context.method_name == "__call__" and isinstance(module, LAYERS)
            if not is_layer or "/".join(module.path) in self.full_precision:
                return compute(*args, **kwargs)
            [inputs] = [*args, *kwargs.values()]
            outputs = compute(self._round(inputs, self.activations, signed=jnp.min(inputs) < 0))
            if not train or self.gradients is None:
                return outputs
            if key is None:
                raise ValueError(
                    'apply needs rngs={"quantize": key} to quantize neural gradients in training'
                )
            top = 2 ** (self.gradients - 1) - (2 if self.levels == "strict" else 1)
            quantize = partial(luq, bits=self.gradients, top=top)
            key_of_layer = jax.random.fold_in(key, next(call_numbers))
            return rounding.quantized_gradient(outputs, key_of_layer, quantize)

        def rounded(path: tuple[jax.tree_util.DictKey, ...], leaf: Array) -> Array:
            return self._round(leaf, self.weights, signed=True) if self.rounds(path) else leaf

        with nn.intercept_methods(layer):
            return call(jax.tree.map_with_path(rounded, params), x)

    def rounds(self, path: tuple[jax.tree_util.DictKey, ...]) -> bool:
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
        uniform = rounding.SCALES[self.scale]
        quantizer = partial(uniform, bits=bits, signed=signed, levels=self.levels)
        return rounding.straight_through(quantizer, x)
