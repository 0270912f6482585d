"""What must be equal for a run to resume another one: the identity of a group's checkpoints."""

import dataclasses
import functools
import hashlib
import re
import weakref
from collections.abc import Mapping, Sequence, Set
from typing import Any

import jax
import numpy as np

from fedjax_sim.engine.checkpoint import TIMELINE, Checkpoint
from fedjax_sim.engine.drawing import timeline_digest
from fedjax_sim.engine.lanes import Lane, groups_of
from fedjax_sim.engine.options import ANY_JAX, Options
from fedjax_sim.engine.records import versions
from fedjax_sim.settings import fields, plain
from fedjax_sim.types import System


def checkpoint_of(system: System, group: list[Lane], options: Options) -> Checkpoint:
    """Describe the checkpoints of a group by what must not change until it is resumed.

    The rest of it, such as the digest of the program, is known after planning only.
    """
    assert options.checkpoint is not None
    return Checkpoint(
        options.checkpoint,
        asked_of(system, group, options),
        resume=bool(options.resume),
        any_jax=options.resume == ANY_JAX,
        every=options.checkpoint_every,
    )


def asked_of(system: System, group: list[Lane], options: Options) -> dict[str, Any]:
    """Collect every input that affects the results of lanes, apart from the program itself."""
    distinct = {id(lane.problem): lane.problem for lane in group}
    problems = {key: _digest_of_tree(problem) for key, problem in distinct.items()}
    configuration = {
        "versions": versions(),
        "system": system.name,
        TIMELINE: [timeline_digest(system, each[0].hyper) for each in groups_of(group)],
        "overshoot": system.overshoot,
        "seeds": [lane.seed for lane in group],
        "settings": [
            {name: text_of(getattr(lane.hyper, name)) for name in fields(type(lane.hyper))}
            for lane in group
        ],
        "problems": [problems[id(lane.problem)] for lane in group],
        "time_budget": options.time_budget,
        "num_ticks": options.num_ticks,
        "num_evals": options.num_evals,
        "evals_per_chunk": options.evals_per_chunk,
        "keep_models": options.keep_models,
        "client_variance": options.client_variance,
        "layout": options.layout._asdict(),
        "precision": options.precision,
    }
    if options.on_evaluation is not None:
        configuration["on_evaluation"] = "given"
    if group[0].start is not None:
        configuration["start"] = [_digest_of_tree(lane.start) for lane in group]
    return configuration


def _digest_of_tree(tree: Any) -> str:
    """Hash a problem or model: its class, static fields as far as they have a text, and arrays."""
    leaves, structure = jax.tree.flatten(tree)
    digest = hashlib.sha256(re.sub(" at 0x[0-9a-f]+", "", str(structure)).encode())
    for leaf in leaves:
        digest.update(_digest_of_array(leaf))
    return digest.hexdigest()[:16]


_DIGESTS: dict[int, tuple[weakref.ref, bytes]] = {}
"""Digests of arrays by their identity, because problems and groups share large ones."""


def _digest_of_array(leaf: Any) -> bytes:
    """Hash the shape, the type and the content of an array."""
    array = np.asarray(leaf)
    kept = leaf if isinstance(leaf, jax.Array | np.ndarray) else array
    known = _DIGESTS.get(id(kept))
    if known is None or known[0]() is not kept:
        content = np.ascontiguousarray(array).view(np.uint8).data if array.size else b""
        digest = hashlib.sha256(repr((array.shape, str(array.dtype))).encode())
        digest.update(content)
        known = _DIGESTS[id(kept)] = weakref.ref(kept), digest.digest()
    return known[1]


def text_of(value: Any) -> str:
    """Write a setting as text that is the same in every process, unlike the repr of a function.

    Structs, containers and other objects are written with what they hold, arrays as a digest.
    """
    value, kind = plain(value), type(value).__qualname__
    if isinstance(value, np.ndarray | jax.Array):
        return f"{value.dtype}{list(value.shape)} {_digest_of_array(value).hex()[:16]}"
    if isinstance(value, functools.partial):
        words = [text_of(each) for each in value.args]
        words += [f"{name}={text_of(each)}" for name, each in value.keywords.items()]
        return f"{text_of(value.func)}({', '.join(words)})"
    if hasattr(value, "__qualname__"):
        return value.__qualname__
    if dataclasses.is_dataclass(value) or type(value).__repr__ is object.__repr__:
        held = getattr(value, "__dict__", {})
        if dataclasses.is_dataclass(value):
            held = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        words = [f"{name}={text_of(each)}" for name, each in held.items()]
        return f"{kind}({', '.join(words)})" if words else kind
    if isinstance(value, Mapping):
        words = sorted(f"{text_of(name)}: {text_of(each)}" for name, each in value.items())
        return f"{kind}({', '.join(words)})"
    if isinstance(value, Sequence | Set) and not isinstance(value, str | bytes):
        words = [text_of(each) for each in value]
        return f"{kind}({', '.join(sorted(words) if isinstance(value, Set) else words)})"
    return re.sub(" at 0x[0-9a-f]+", "", repr(value))
