"""Networks of flax nnx, equinox and haiku as objects with `init` and `apply`.

flax linen modules need no adapter. Each library is imported when its adapter is called. What a
network remembers from call to call, such as the running statistics of batch normalisation, is
refused: it would be averaged with the parameters without being trained. Calls that take a switch
between training and evaluation, a name in `fedjax_sim.models.calls.SWITCHES`, are given it.

Dimension letters: `B` examples of a mini-batch.
"""

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from fedjax_sim.core.checking import checked
from fedjax_sim.core.settings import ConfigError
from fedjax_sim.core.types import Array, Key, Params
from fedjax_sim.models.calls import Model, check_switches, switches_of

if TYPE_CHECKING:
    import equinox as eqx
    from flax import nnx

Rngs = Mapping[str, Key] | None
"""Random streams by name; None in evaluations."""


@checked
def from_nnx(make: Callable[[Any], Any]) -> Model:
    """Adapt a flax nnx module.

    Example: `from_nnx(lambda rngs: nnx.Linear(4, 1, rngs=rngs))`.

        network = from_nnx(lambda rngs: nnx.Linear(4, 1, rngs=rngs))
        params = network.init(key, jnp.zeros((1, 4)))
        assert network.apply(params, jnp.ones((5, 4))).shape == (5, 1)

    Args:
      make: From `nnx.Rngs` to the module, which takes inputs with examples first.

    Returns:
      A network whose parameters are nested dicts of the module's `nnx.Param`s. In local steps the
      module is in training mode and draws from a new key; in evaluations it is in evaluation mode.

    Raises:
      ConfigError: If the module has variables that are neither parameters nor random streams.
    """
    from flax import nnx

    parts: Any = nnx.split(make(nnx.Rngs(0)), nnx.Param, ...)
    graph, params, rest = parts
    for variable in jax.tree.leaves(rest, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable)):
        if not isinstance(variable, nnx.RngState):
            allowed = "parameters and random streams only"
            raise ConfigError("variable of the nnx module", type(variable).__name__, allowed)
    return _Nnx(make, graph, jax.tree.structure(params), rest)


@checked
def from_equinox(make: Callable[[Key], Any]) -> Model:
    """Adapt an equinox module.

    Example: `from_equinox(lambda key: eqx.nn.MLP(4, 1, 32, 2, key=key))`.

    Args:
      make: From a key to the module, which takes one example, as equinox has it.

    Returns:
      A network whose parameters are the module's floating-point arrays. Mini-batches are mapped
      over by `vmap`. In local steps it is in training mode, and a module that takes `key` gets one
      for each example; in evaluations it is in inference mode.

    Raises:
      ConfigError: If a state comes with the module.
    """
    import equinox as eqx

    module = make(jax.random.key(0))
    if isinstance(module, tuple):  # What `eqx.nn.make_with_state` returns.
        raise ConfigError("equinox module", type(module).__name__, "one without a state")
    for index in jax.tree.leaves(module, is_leaf=lambda leaf: isinstance(leaf, eqx.nn.StateIndex)):
        if isinstance(index, eqx.nn.StateIndex):
            raise ConfigError("equinox module", type(module).__name__, "one without a state")
    fixed = eqx.partition(module, eqx.is_inexact_array)[1]
    takes_key = "key" in inspect.signature(module).parameters
    return _Equinox(make, takes_key, fixed)


@checked
def from_haiku(function: Callable[..., Any]) -> Model:
    """Adapt a function that calls haiku modules.

    Example: `from_haiku(lambda x: hk.nets.MLP([32, 1])(x))`.

    Args:
      function: From inputs with examples first to outputs, as `hk.transform` takes it.

    Returns:
      A network whose parameters are haiku's. In local steps there is a random key for
      `hk.next_rng_key`; in evaluations there is none. It is refused when it is first called if it
      has a state, as `hk.BatchNorm` has.

    Raises:
      ConfigError: If it is no function, or has a switch of another name: dropout could then be off
        in local steps.
    """
    if not callable(function):  # Such as what `hk.transform` returns.
        allowed = "a function that calls haiku modules, which is not transformed"
        raise ConfigError("haiku function", type(function).__name__, allowed)
    check_switches(function)
    return _Haiku(function)


def _dropout_key(train: bool, rngs: Rngs) -> Key | None:
    """Return the key of local steps, None in evaluations."""
    return (rngs or {})["dropout"] if train else None


@dataclasses.dataclass(frozen=True)
class _Nnx:
    """See `from_nnx`. Everything that follows from `make` is left out of comparisons."""

    make: "Callable[[nnx.Rngs], nnx.Module]"
    graph: "nnx.GraphDef" = dataclasses.field(compare=False)
    structure: jax.tree_util.PyTreeDef = dataclasses.field(compare=False)
    rest: "nnx.State" = dataclasses.field(compare=False)

    def init(self, key: Key, x: Array) -> Params:
        """Draw the parameters."""
        from flax import nnx

        return nnx.to_pure_dict(nnx.state(self.make(nnx.Rngs(key)), nnx.Param))

    def apply(self, params: Params, x: Array, *, train: bool = False, rngs: Rngs = None) -> Any:
        """Compute the outputs of `[B, ...]`."""
        from flax import nnx

        key = _dropout_key(train, rngs)
        leaves, structure = jax.tree.flatten(self.rest)
        if key is not None:
            for i, leaf in enumerate(leaves):
                if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
                    leaves[i] = jax.random.fold_in(key, i)
        # Put together anew, because variables belong to the trace in which they were made.
        states = (
            jax.tree.unflatten(self.structure, jax.tree.leaves(params)),
            jax.tree.unflatten(structure, leaves),
        )
        module = nnx.merge(self.graph, *states)
        if train:
            module.train()
        else:
            module.eval()
        return module(x, **switches_of(module.__call__, train=train))


@dataclasses.dataclass(frozen=True)
class _Equinox:
    """See `from_equinox`. Everything that follows from `make` is left out of comparisons."""

    make: "Callable[[Key], eqx.Module]"
    takes_key: bool
    fixed: Any = dataclasses.field(compare=False)

    def init(self, key: Key, x: Array) -> Params:
        """Draw the parameters."""
        import equinox as eqx

        return eqx.filter(self.make(key), eqx.is_inexact_array)

    def apply(self, params: Params, x: Array, *, train: bool = False, rngs: Rngs = None) -> Any:
        """Compute the outputs of `[B, ...]`."""
        import equinox as eqx

        module = eqx.nn.inference_mode(eqx.combine(params, self.fixed), value=not train)
        options = switches_of(module, train=train)
        key = _dropout_key(train, rngs)
        if key is None or not self.takes_key:
            return jax.vmap(lambda x: module(x, **options))(x)
        keys = jax.random.split(key, jax.tree.leaves(x)[0].shape[0])
        return jax.vmap(lambda x, key: module(x, key=key, **options))(x, keys)


@dataclasses.dataclass(frozen=True)
class _Haiku:
    """See `from_haiku`."""

    function: Callable[..., Any]

    def init(self, key: Key, x: Array) -> Params:
        """Draw the parameters."""
        import haiku as hk

        with_state = hk.transform_with_state(self.function)
        options = switches_of(self.function, train=True)
        _, state = jax.eval_shape(lambda key: with_state.init(key, x, **options), key)
        if state:
            raise ConfigError("state of the haiku function", ", ".join(state), "empty")
        options = switches_of(self.function, train=False)
        return hk.transform(self.function).init(key, x, **options)

    def apply(self, params: Params, x: Array, *, train: bool = False, rngs: Rngs = None) -> Any:
        """Compute the outputs of `[B, ...]`."""
        import haiku as hk

        options = switches_of(self.function, train=train)
        key = _dropout_key(train, rngs)
        return hk.transform(self.function).apply(params, key, x, **options)
