"""Networks of flax nnx, equinox and haiku as objects with `init` and `apply`.

flax linen modules need no adapter. Each library is imported when its adapter is called. What a
network remembers from call to call, such as the running statistics of batch normalisation, is its
state. Its parameters are then a dict of the collections "params" and "batch_stats", and `apply`
takes `mutable=`, see `fedjax_sim.models.calls.state_of`. States of clients are averaged, so whole
numbers in them are kept as float32. Calls that take a switch between training and evaluation, a
name in `fedjax_sim.models.calls.SWITCHES`, are given it.

Dimension letters: `B` examples of a mini-batch.
"""

import abc
import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from fedjax_sim.core.settings import ConfigError, checked
from fedjax_sim.core.types import Array, Key, Params
from fedjax_sim.models.calls import PARAMETERS, Model, check_switches, switches_of

if TYPE_CHECKING:
    from flax import nnx

STATE = "batch_stats"
"""The collection of a network's state."""


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
    """
    from flax import nnx

    parts: Any = nnx.split(make(nnx.Rngs(0)), nnx.Param, nnx.RngState, ...)
    return _Nnx(make, parts)


@checked
def from_equinox(make: Callable[[Key], Any]) -> Model:
    """Adapt an equinox module.

    Example: `from_equinox(lambda key: eqx.nn.MLP(4, 1, 32, 2, key=key))`.

    Args:
      make: From a key to the module, which takes one example, as equinox has it; with
        `eqx.nn.make_with_state` one example and the state, with the axis name "batch".

    Returns:
      A network whose parameters are the module's floating-point arrays. Mini-batches are mapped
      over by `vmap`. In local steps it is in training mode, and a module that takes `key` gets one
      for each example; in evaluations it is in inference mode.

    Raises:
      ConfigError: If a module has a state that does not come with it.
    """
    import equinox as eqx

    module, state = _with_state(make(jax.random.key(0)))
    for index in jax.tree.leaves(module, is_leaf=lambda leaf: isinstance(leaf, eqx.nn.StateIndex)):
        if isinstance(index, eqx.nn.StateIndex) and isinstance(state, tuple):
            allowed = "one without a state, or made by eqx.nn.make_with_state"
            raise ConfigError("equinox module", type(module).__name__, allowed)
    return _Equinox(make, eqx.partition(module, eqx.is_inexact_array)[1], state)


@checked
def from_haiku(function: Callable[..., Any]) -> Model:
    """Adapt a function that calls haiku modules.

    Example: `from_haiku(lambda x: hk.nets.MLP([32, 1])(x))`.

    Args:
      function: From inputs with examples first to outputs, as `hk.transform` takes it.

    Returns:
      A network whose parameters are haiku's. In local steps there is a random key for
      `hk.next_rng_key`; in evaluations there is none.

    Raises:
      ConfigError: If it is no function, or has a switch of another name: dropout could then be off
        in local steps.
    """
    if not callable(function):  # Such as what `hk.transform` returns.
        allowed = "a function that calls haiku modules, which is not transformed"
        raise ConfigError("haiku function", type(function).__name__, allowed)
    check_switches(function)
    return _Haiku(function)


@dataclasses.dataclass(frozen=True)
class _Adapted(abc.ABC):
    """A network of another library, compared with others by `make` alone.

    Attributes:
      make: Makes the library's module, or is the function that calls its modules.
    """

    make: Callable[..., Any]

    @abc.abstractmethod
    def draw(self, key: Key, x: Array) -> tuple[Params, Params]:
        """Draw the parameters and the state; without leaves there is no state."""

    @abc.abstractmethod
    def like(self, x: Array) -> Params:
        """Return the state, or its shapes, with the library's structure and types."""

    @abc.abstractmethod
    def call(
        self, params: Params, state: Params, x: Array, key: Key | None, *, train: bool
    ) -> tuple[Params, Params]:
        """Compute the outputs of `[B, ...]` and the next state; the key is that of local steps."""

    def init(self, key: Key, x: Array) -> Params:
        """Draw the parameters, and the state in a separate collection."""
        params, state = self.draw(key, x)
        if not jax.tree.leaves(state):
            return params
        return {PARAMETERS: params, STATE: jax.tree.map(_as_float, state)}

    def apply(
        self,
        params: Params,
        x: Array,
        *,
        train: bool = False,
        rngs: Mapping[str, Key] | None = None,
        mutable: Sequence[str] = (),
    ) -> Params:
        """Compute the outputs of `[B, ...]`; with `mutable` also the collection of the state."""
        has_state = isinstance(params, Mapping) and {*params} == {PARAMETERS, STATE}
        state: Params = self.like(x) if has_state else {}
        if leaves := jax.tree.leaves(state):
            kept = map(_as_typed, jax.tree.leaves(params[STATE]), leaves)
            state = jax.tree.unflatten(jax.tree.structure(state), kept)
            params = params[PARAMETERS]
        key = (rngs or {})["dropout"] if train else None
        outputs, state = self.call(params, state, x, key, train=train)
        return (outputs, {STATE: jax.tree.map(_as_float, state)}) if mutable else outputs


def _as_float(leaf: Array) -> Array:
    return leaf if jnp.issubdtype(leaf.dtype, jnp.inexact) else leaf.astype("float32")


def _as_typed(kept: Array, leaf: Array) -> Array:
    """Undo `_as_float` for a leaf of a known type."""
    return kept if jnp.issubdtype(leaf.dtype, jnp.inexact) else jnp.round(kept).astype(leaf.dtype)


@dataclasses.dataclass(frozen=True)
class _Nnx(_Adapted):
    """See `from_nnx`; the parts are a module's graph, parameters, random streams and state."""

    parts: "tuple[nnx.GraphDef, nnx.State, nnx.State, nnx.State]" = dataclasses.field(compare=False)

    def draw(self, key: Key, x: Array) -> tuple[Params, Params]:
        from flax import nnx

        parts: Any = nnx.split(self.make(nnx.Rngs(key)), nnx.Param, nnx.RngState, ...)
        return nnx.to_pure_dict(parts[1]), nnx.to_pure_dict(parts[3])

    def like(self, x: Array) -> Params:
        return self.parts[3]

    def call(
        self, params: Params, state: Params, x: Array, key: Key | None, *, train: bool
    ) -> tuple[Params, Params]:
        from flax import nnx

        graph, own, streams, _ = self.parts
        leaves, structure = jax.tree.flatten(streams)
        if key is not None:
            for i, leaf in enumerate(leaves):
                if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
                    leaves[i] = jax.random.fold_in(key, i)
        # Put together anew, because variables belong to the trace in which they were made.
        params = jax.tree.unflatten(jax.tree.structure(own), jax.tree.leaves(params))
        state = state if jax.tree.leaves(state) else self.parts[3]
        module = nnx.merge(graph, params, jax.tree.unflatten(structure, leaves), state)
        if train:
            module.train()
        else:
            module.eval()
        outputs = module(x, **switches_of(module.__call__, train=train))
        after: Any = nnx.split(module, nnx.Param, nnx.RngState, ...)
        return outputs, nnx.to_pure_dict(after[3])


@dataclasses.dataclass(frozen=True)
class _Equinox(_Adapted):
    """See `from_equinox`."""

    fixed: Any = dataclasses.field(compare=False)
    state: Params = dataclasses.field(compare=False)

    def draw(self, key: Key, x: Array) -> tuple[Params, Params]:
        import equinox as eqx

        module, state = _with_state(self.make(key))
        return eqx.filter(module, eqx.is_inexact_array), jax.tree.leaves(state)

    def like(self, x: Array) -> Params:
        return self.state

    def call(
        self, params: Params, state: Params, x: Array, key: Key | None, *, train: bool
    ) -> tuple[Params, Params]:
        import equinox as eqx

        module = eqx.nn.inference_mode(eqx.combine(params, self.fixed), value=not train)
        options, has_state = switches_of(module, train=train), bool(jax.tree.leaves(state))
        keys = None
        if key is not None and "key" in inspect.signature(module).parameters:
            keys = jax.random.split(key, jax.tree.leaves(x)[0].shape[0])

        def of_one(x: Array, key: Key | None) -> Params:
            given = options if key is None else {"key": key, **options}
            return module(x, state, **given) if has_state else (module(x, **given), ())

        outputs, after = jax.vmap(of_one, out_axes=(0, None), axis_name="batch")(x, keys)
        return outputs, jax.tree.leaves(after)


def _with_state(made: Any) -> tuple[Any, Any]:
    """Return an equinox module and its state, () for none."""
    return made if isinstance(made, tuple) else (made, ())


@dataclasses.dataclass(frozen=True)
class _Haiku(_Adapted):
    """See `from_haiku`."""

    def draw(self, key: Key, x: Array) -> tuple[Params, Params]:
        import haiku as hk

        if jax.tree.leaves(self.like(x)):
            return self._draw_in_training(key, x)
        return hk.transform(self.make).init(key, x, **switches_of(self.make, train=False)), {}

    def like(self, x: Array) -> Params:
        return jax.eval_shape(lambda key: self._draw_in_training(key, x), jax.random.key(0))[1]

    def call(
        self, params: Params, state: Params, x: Array, key: Key | None, *, train: bool
    ) -> tuple[Params, Params]:
        import haiku as hk

        options = switches_of(self.make, train=train)
        return hk.transform_with_state(self.make).apply(params, state, key, x, **options)

    def _draw_in_training(self, key: Key, x: Array) -> tuple[Params, Params]:
        import haiku as hk

        options = switches_of(self.make, train=True)
        return hk.transform_with_state(self.make).init(key, x, **options)
