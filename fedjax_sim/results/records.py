"""Records of a run and of the machine; values as text, as JSON, and as the arrays of a file."""

import dataclasses
import functools
import hashlib
import importlib.metadata
import json
import platform
import re
import subprocess
import sys
import weakref
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import TypeAlias

import jax
import numpy as np
import numpy.typing as npt

from fedjax_sim.core.settings import plain
from fedjax_sim.core.types import Params

_DIGESTS: dict[int, tuple[weakref.ref, bytes]] = {}
"""Digests of arrays by their identity, because problems and groups share large ones."""


def digest_of_array(leaf: npt.ArrayLike) -> bytes:
    """Hash the shape, the type and the content of an array."""
    array = np.asarray(leaf)
    kept = leaf if isinstance(leaf, jax.Array | np.ndarray) else array
    known = _DIGESTS.get(id(kept))
    may_change = isinstance(kept, np.ndarray) and kept.flags.writeable
    if known is None or known[0]() is not kept or may_change:
        content = np.ascontiguousarray(array).view(np.uint8).data if array.size else b""
        digest = hashlib.sha256(repr((array.shape, str(array.dtype))).encode())
        digest.update(content)
        known = _DIGESTS[id(kept)] = weakref.ref(kept), digest.digest()
    return known[1]


def text_of(value: object) -> str:
    """Write a setting as text that is the same in every process, unlike the repr of a function.

    Structs, containers and other objects are written with what they hold, arrays as a digest.
    """
    value, kind = plain(value), type(value).__qualname__
    if isinstance(value, np.ndarray | jax.Array):
        return f"{value.dtype}{list(value.shape)} {digest_of_array(value).hex()[:16]}"
    if isinstance(value, functools.partial):
        words = [text_of(each) for each in value.args]
        words += [f"{name}={text_of(each)}" for name, each in value.keywords.items()]
        return f"{text_of(value.func)}({', '.join(words)})"
    if hasattr(value, "__qualname__"):
        return value.__qualname__
    if dataclasses.is_dataclass(value) or type(value).__repr__ is object.__repr__:
        held = getattr(value, "__dict__", {})
        if dataclasses.is_dataclass(value):
            known = [field.name for field in dataclasses.fields(value) if field.compare]
            held = {name: getattr(value, name) for name in known}
        words = [f"{name}={text_of(each)}" for name, each in held.items()]
        return f"{kind}({', '.join(words)})" if words else kind
    if isinstance(value, Mapping):
        words = sorted(f"{text_of(name)}: {text_of(each)}" for name, each in value.items())
        return f"{kind}({', '.join(words)})"
    if isinstance(value, Sequence | Set) and not isinstance(value, str | bytes):
        words = [text_of(each) for each in value]
        return f"{kind}({', '.join(sorted(words) if isinstance(value, Set) else words)})"
    return re.sub(" at 0x[0-9a-f]+", "", repr(value))


JAX = ("jax", "jaxlib")
"""Packages of which a resumed run may be told to accept another version."""


PACKAGES = ("flax", "optax", "numpy", "xarray")
"""Further packages; config.json records their versions."""


def versions() -> dict[str, str]:
    """Collect the versions that a run must have in common with the run that resumes it."""
    # The root of the package imports this room, which therefore must not import it.
    return {name: sys.modules[name].__version__ for name in ("fedjax_sim", *JAX)}


def environment() -> dict[str, object]:
    """Collect versions, commit and device, for config.json."""
    numbers = versions() | {"python": platform.python_version()}
    numbers |= {name: importlib.metadata.version(name) for name in PACKAGES}
    first = jax.devices()[0]
    device = {"platform": first.platform, "kind": first.device_kind, "count": jax.device_count()}
    return {"versions": numbers, "commit": _commit(), "device": device}


@functools.cache
def _commit() -> str | None:
    """Find the commit of the repository that holds the package; None if no repository does.

    "-dirty" is appended if files differ from the commit.
    """
    here = Path(__file__).parents[1]
    try:
        for command in (
            ["ls-files", "--error-unmatch", "__init__.py"],
            ["describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
        ):
            done = subprocess.run(
                ["git", *command], cwd=here, capture_output=True, text=True, timeout=10, check=True
            )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def to_json(content: object) -> str:
    """Write a value as JSON: arrays become lists, functions their names, nan and inf null."""

    def plain(value: object) -> object:
        if isinstance(value, Mapping):
            return {str(key): plain(x) for key, x in value.items()}
        if isinstance(value, list | tuple):
            return [plain(x) for x in value]
        if isinstance(value, np.generic | np.ndarray):
            return plain(value.tolist())
        if isinstance(value, float) and not np.isfinite(value):
            return None
        is_simple = value is None or isinstance(value, bool | int | float | str)
        return value if is_simple else getattr(value, "__name__", str(value))

    return json.dumps(plain(content), indent=1, allow_nan=False) + "\n"


Arrays: TypeAlias = dict[str, np.ndarray]
"""The arrays of a tree, as files of checkpoints have them."""


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
