"""Leaves of a model by their paths: some are personal, some are frozen, some are given.

A part of a model has the model's structure, with None in place of the leaves that it lacks. JAX
does not count these, so that a part can be trained, averaged and sent like a model.

`TypedStructure` is what tells trees of different kinds apart.
"""

import re
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Jaxpr, JaxprEqn

from fedjax_sim.core.types import AnyProblem, Array, Params

TreeT = TypeVar("TreeT")
"""A pytree of arrays."""


def paths_of(model: Params) -> list[str]:
    """List the paths of a model's leaves, such as "params/Dense_1/kernel".

    Args:
      model: A model, or a part of it.
    """
    return [name for name, _ in named_leaves(model, "/")]


def named_leaves(tree: object, separator: str = ".") -> list[tuple[str, Any]]:
    """List the leaves of a tree with their names, such as "delays.rate_fast".

    Args:
      tree: The tree.
      separator: What stands between the parts of a name.
    """
    return [
        (jax.tree_util.keystr(path, simple=True, separator=separator), leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    ]


def is_traced(tree: object) -> bool:
    """Tell whether a tree has traced leaves, or a program is being traced that closes over it.

    Args:
      tree: object pytree.
    """
    # Within `jit` a constant that is put on a device is traced, too.
    leaves = (*jax.tree.leaves(tree), jax.device_put(0))
    return any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)


def as_array(value: object, dtype: Any = None) -> Array:
    """Return an array on the device, as `jnp.asarray`, which compiles a program for each new shape.

    value: Numbers, or an array of JAX or NumPy, which may be changed later. dtype: Type of the
    numbers; by default JAX's for that of `value`.
    """
    if isinstance(value, jax.Array):
        return jnp.asarray(value, dtype)
    own = np.array(value, dtype)
    kind = own.dtype.newbyteorder("=")  # JAX knows no other order, which files may have.
    return jax.device_put(np.asarray(own, jax.dtypes.canonicalize_dtype(kind)))


def has(value: object, name: str) -> bool:
    """Tell whether an object has an attribute; any failure of the look-up counts as no.

    Args:
      value: The object, such as a problem that hands on the attributes of another one.
      name: Name of the attribute.
    """
    try:
        getattr(value, name)
    except Exception:  # A user's `__getattr__` may raise any.
        return False
    return True


def shapes_of_model(problem: AnyProblem) -> Params:
    """Describe the models of a problem by their shapes and types; nothing is computed.

    Args:
      problem: The problem.

    Returns:
      A model of `jax.ShapeDtypeStruct`.
    """
    return jax.eval_shape(lambda: problem.init(jax.random.key(0)))


class TypedStructure(NamedTuple):
    """The structure of a pytree, with the types of its nodes.

    To JAX 0.10.2 structures of two dataclasses are equal if they have equally many leaves and equal
    static fields, so that a program that is kept by structure alone would serve both.

    Attributes:
      structure: The structure as JAX has it.
      types: The type of the node, and `types` of each child in its place.
    """

    structure: jax.tree_util.PyTreeDef
    types: Hashable

    def unflatten(self, leaves: Sequence[object]) -> Any:
        """Return the tree with these `leaves`, in the order of the structure."""
        return jax.tree.unflatten(self.structure, leaves)


def typed_structure(tree: object) -> TypedStructure:
    """Return the structure of a `tree` with the types of its nodes.

    It equals that of another tree only if the nodes of both are of the same classes.
    """

    def types_in(structure: jax.tree_util.PyTreeDef) -> Hashable:
        node = structure.node_data()
        return node and node[0], tuple(map(types_in, structure.children()))

    structure = jax.tree.structure(tree)
    return TypedStructure(structure, types_in(structure))


def is_predicate(value: Any) -> bool:
    """Tell whether a value can choose leaves: a function of a path, or a regular expression.

    Args:
      value: object value.
    """
    try:
        return callable(value) or bool(re.compile(value))
    except (re.error, TypeError):
        return False


def leaves_that(chosen: str | Callable[[str], object], model: Params) -> Params:
    """Mark the chosen leaves of a model.

    Args:
      chosen: A function from a path to whether its leaf is chosen, or a regular expression that is
        found in the paths of the chosen leaves.
      model: The model, or models.

    Returns:
      Bools in the model's structure.
    """
    is_chosen = chosen if callable(chosen) else re.compile(chosen).search
    flags = [bool(is_chosen(path)) for path in paths_of(model)]
    return jax.tree.unflatten(jax.tree.structure(model), flags)


def split(model: Params, flags: Params) -> tuple[Params, Params]:
    """Split models into two parts: the leaves with the flag False, and those with the flag True.

    Args:
      model: Leaves `[...]`.
      flags: Bools in the model's structure, as `leaves_that` returns them.

    Returns:
      Two parts.
    """
    rest = jax.tree.map(lambda leaf, is_chosen: None if is_chosen else leaf, model, flags)
    return rest, jax.tree.map(lambda leaf, is_chosen: leaf if is_chosen else None, model, flags)


def join(part: Params, other: Params) -> Params:
    """Put two parts together. Where both have a leaf it is that of the first.

    Args:
      part: A part of a model.
      other: Another part.

    Returns:
      The leaves of both.
    """
    return jax.tree.map(
        lambda a, b: b if a is None else a, part, other, is_leaf=lambda leaf: leaf is None
    )


def is_narrow(dtype: np.dtype) -> bool:
    """Tell whether a type is of real numbers of fewer than 32 bits, such as bfloat16.

    Args:
      dtype: The type.
    """
    return jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < 32


def in_32_bits(tree: TreeT) -> TreeT:
    """Return a `tree` with its narrow leaves widened; other leaves are as they were.

    Floats of fewer than 32 bits, such as bfloat16, become float32. Whole numbers of fewer than 8
    bits, which files do not know, become int32.
    """

    def widen(leaf: object) -> Any:
        dtype = getattr(leaf, "dtype", np.dtype(bool))
        if is_narrow(dtype):
            return jnp.asarray(leaf, "float32")
        if jnp.issubdtype(dtype, jnp.integer) and jnp.iinfo(dtype).bits < 8:
            return jnp.asarray(leaf, "int32")
        return leaf

    return jax.tree.map(widen, tree)


def programs_within(equation: JaxprEqn) -> list[Jaxpr]:
    """List the programs that an `equation` of a traced program runs, such as the body of a loop."""
    given = jax.tree.leaves(list(equation.params.values()))
    # Most are closed over constants; those of `jax.checkpoint` are not.
    programs = (getattr(each, "jaxpr", each) for each in given)
    return [each for each in programs if isinstance(each, Jaxpr)]
