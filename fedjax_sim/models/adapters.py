"""Networks of flax nnx, equinox and haiku as objects with `init` and `apply`.

flax linen modules need no adapter. Each library is imported when its adapter is called. What a
network remembers from call to call, such as the running statistics of batch normalisation, is its
state. Its parameters are then a dict of the collections "params" and "batch_stats", and `apply`
takes `mutable=`, see `fedjax_sim.models.calls.state_of`. States of clients are averaged, so whole
numbers in them are kept as float32. Calls that take a switch between training and evaluation, a
name in `fedjax_sim.models.calls.SWITCHES`, are given it.

Dimension letters: `B` examples of a mini-batch.
"""

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
    import equinox as eqx
    from flax import nnx

STATE = "batch_stats"
"""The collection of a network's state."""
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
    """
    from flax import nnx

    parts: Any = nnx.split(make(nnx.Rngs(0)), nnx.Param, nnx.RngState, ...)
    graph, params, streams, state = parts
    return _Nnx(make, graph, jax.tree.structure(params), streams, state)


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
    fixed = eqx.partition(module, eqx.is_inexact_array)[1]
    takes_key = "key" in inspect.signature(module).parameters
    return _Equinox(make, takes_key, fixed, state)


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


def _dropout_key(train: bool, rngs: Rngs) -> Key | None:
    """Return the key of local steps, None in evaluations."""
    return (rngs or {})["dropout"] if train else None


def _collections(params: Params, state: Params) -> Params:
    """Put parameters and a state together; without a state there are only parameters."""
    if not jax.tree.leaves(state):
        return params

    def as_float(leaf: Array) -> Array:
        return leaf if jnp.issubdtype(leaf.dtype, jnp.inexact) else leaf.astype("float32")

    return {PARAMETERS: params, STATE: jax.tree.map(as_float, state)}


def _parts(params: Params, like: Params) -> tuple[Params, Params]:
    """Undo `_collections`; the state gets the structure and types of `like`."""
    leaves, structure = jax.tree.flatten(like)
    if not leaves:
        return params, like

    def typed(kept: Array, leaf: Array) -> Array:
        is_float = jnp.issubdtype(leaf.dtype, jnp.inexact)
        return kept if is_float else jnp.round(kept).astype(leaf.dtype)

    kept = map(typed, jax.tree.leaves(params[STATE]), leaves)
    return params[PARAMETERS], jax.tree.unflatten(structure, kept)


def _results(outputs: Any, state: Params, mutable: Sequence[str]) -> Any:
    """Outputs alone, or with the collection of the new state."""
    return (outputs, {STATE: _collections((), state)[STATE]}) if mutable else outputs


@dataclasses.dataclass(frozen=True)
class _Nnx:
    """See `from_nnx`. Everything that follows from `make` is left out of comparisons."""

    make: "Callable[[nnx.Rngs], nnx.Module]"
    graph: "nnx.GraphDef" = dataclasses.field(compare=False)
    structure: jax.tree_util.PyTreeDef = dataclasses.field(compare=False)
    streams: "nnx.State" = dataclasses.field(compare=False)
    state: "nnx.State" = dataclasses.field(compare=False)

    def init(self, key: Key, x: Array) -> Params:
        """Draw the parameters."""
        from flax import nnx

        parts: Any = nnx.split(self.make(nnx.Rngs(key)), nnx.Param, nnx.RngState, ...)
        return _collections(*map(nnx.to_pure_dict, parts[1::2]))

    def apply(
        self,
        params: Params,
        x: Array,
        *,
        train: bool = False,
        rngs: Rngs = None,
        mutable: Sequence[str] = (),
    ) -> Any:
        """Compute the outputs of `[B, ...]`."""
        from flax import nnx

        key = _dropout_key(train, rngs)
        leaves, structure = jax.tree.flatten(self.streams)
        if key is not None:
            for i, leaf in enumerate(leaves):
                if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
                    leaves[i] = jax.random.fold_in(key, i)
        params, state = _parts(params, self.state)
        # Put together anew, because variables belong to the trace in which they were made.
        states = (
            jax.tree.unflatten(self.structure, jax.tree.leaves(params)),
            jax.tree.unflatten(structure, leaves),
            state,
        )
        module = nnx.merge(self.graph, *states)
        if train:
            module.train()
        else:
            module.eval()
        outputs = module(x, **switches_of(module.__call__, train=train))
        after: Any = nnx.split(module, nnx.Param, nnx.RngState, ...)
        return _results(outputs, nnx.to_pure_dict(after[3]), mutable)


@dataclasses.dataclass(frozen=True)
class _Equinox:
    """See `from_equinox`. Everything that follows from `make` is left out of comparisons."""

    make: "Callable[[Key], eqx.Module]"
    takes_key: bool
    fixed: Any = dataclasses.field(compare=False)
    state: Any = dataclasses.field(compare=False)

    def init(self, key: Key, x: Array) -> Params:
        """Draw the parameters."""
        import equinox as eqx

        module, state = _with_state(self.make(key))
        return _collections(eqx.filter(module, eqx.is_inexact_array), jax.tree.leaves(state))

    def apply(
        self,
        params: Params,
        x: Array,
        *,
        train: bool = False,
        rngs: Rngs = None,
        mutable: Sequence[str] = (),
    ) -> Any:
        """Compute the outputs of `[B, ...]`."""
        import equinox as eqx

        params, state = _parts(params, self.state)
        module = eqx.nn.inference_mode(eqx.combine(params, self.fixed), value=not train)
        options, has_state = switches_of(module, train=train), bool(jax.tree.leaves(state))
        keys = _dropout_key(train, rngs) if self.takes_key else None
        if keys is not None:
            keys = jax.random.split(keys, jax.tree.leaves(x)[0].shape[0])

        def of_one(x: Array, key: Key | None) -> Any:
            given = options if key is None else {"key": key, **options}
            return module(x, state, **given) if has_state else (module(x, **given), ())

        outputs, after = jax.vmap(of_one, out_axes=(0, None), axis_name="batch")(x, keys)
        return _results(outputs, jax.tree.leaves(after), mutable)


def _with_state(made: Any) -> tuple[Any, Any]:
    """Return an equinox module and its state, () for none."""
    return made if isinstance(made, tuple) else (made, ())


@dataclasses.dataclass(frozen=True)
class _Haiku:
    """See `from_haiku`."""

    function: Callable[..., Any]

    def init(self, key: Key, x: Array) -> Params:
        """Draw the parameters."""
        import haiku as hk

        if not jax.tree.leaves(self._shape_of_state(x)):
            options = switches_of(self.function, train=False)
            return hk.transform(self.function).init(key, x, **options)
        options = switches_of(self.function, train=True)
        return _collections(*hk.transform_with_state(self.function).init(key, x, **options))

    def apply(
        self,
        params: Params,
        x: Array,
        *,
        train: bool = False,
        rngs: Rngs = None,
        mutable: Sequence[str] = (),
    ) -> Any:
        """Compute the outputs of `[B, ...]`."""
        import haiku as hk

        has_state = isinstance(params, Mapping) and {*params} == {PARAMETERS, STATE}
        params, state = _parts(params, self._shape_of_state(x) if has_state else {})
        given = _dropout_key(train, rngs), x
        options = switches_of(self.function, train=train)
        made = hk.transform_with_state(self.function)
        return _results(*made.apply(params, state, *given, **options), mutable)

    def _shape_of_state(self, x: Array) -> Params:
        """Describe the state by its shapes and types."""
        import haiku as hk

        init = hk.transform_with_state(self.function).init
        options = switches_of(self.function, train=True)
        return jax.eval_shape(lambda key: init(key, x, **options), jax.random.key(0))[1]
