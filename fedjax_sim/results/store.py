"""The arrays of a tree in one file with their digest, and back: the files of checkpoints."""

from collections.abc import Mapping
from typing import TypeAlias

import jax
import numpy as np

from fedjax_sim.core.types import Params

Arrays: TypeAlias = dict[str, np.ndarray]


def pack(tree: Params) -> Arrays:
    """Fetch the arrays of a tree, by the paths to them, such as "state/params/kernel".

    Args:
      tree: Arrays in containers. Random keys become words.

    Returns:
      The arrays, in the order of the tree.
    """
    arrays: Arrays = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        while name in arrays:  # Keys may have slashes.
            name += "'"
        is_key = jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        arrays[name] = np.asarray(jax.random.key_data(leaf) if is_key else leaf)
    return arrays


def part(arrays: Mapping[str, np.ndarray], owner: str) -> Arrays:
    """Select the arrays that an outermost container held, by the paths inside it.

    Args:
      arrays: The arrays of `pack`.
      owner: Its name.

    Returns:
      The arrays, in their order.
    """
    return {
        name.removeprefix(f"{owner}/"): values
        for name, values in arrays.items()
        if name.partition("/")[0] == owner
    }


def unpack(arrays: Mapping[str, np.ndarray], like: Params) -> Params:
    """Put arrays into the containers of a tree.

    Args:
      arrays: The arrays of `pack`, or a part of them.
      like: A tree of the same structure.

    Returns:
      The tree.
    """
    return jax.tree.unflatten(jax.tree.structure(like), arrays.values())
