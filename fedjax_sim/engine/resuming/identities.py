"""What must be equal for a run to resume another one: the identity of a group's checkpoints."""

import hashlib
import re
from typing import Any

import jax

from fedjax_sim.engine.planning.drawing import timeline_digest
from fedjax_sim.engine.planning.lanes import Lane, groups_of
from fedjax_sim.engine.request import ANY_JAX, Options
from fedjax_sim.engine.resuming.checkpoint import TIMELINE, Checkpoint
from fedjax_sim.results.records import digest_of_array, text_of, versions
from fedjax_sim.settings import fields
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
        digest.update(digest_of_array(leaf))
    return digest.hexdigest()[:16]
