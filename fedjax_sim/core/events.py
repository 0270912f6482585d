"""The event of one tick, and the facts of it that are known before tracing.

An event carries the facts of the schedule that it comes from, such as that no slot is ever empty.
Shared parts take shortcuts by them. Whoever replaces a field of an event gets an event without the
facts about that field, so that what runs and what is counted follow the new values.

Dimension letters: those of `fedjax_sim.core.types`.
"""

import dataclasses
from collections.abc import Collection
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.core.settings import ConfigError

Leaf = Any
"""An array that is a JAX array on the device and a NumPy array on the host."""

EMPTY = -1
"""Client number of an empty slot.

A slot with zero local steps is not empty: a FAVANO client that finished no step still reports.
"""

HAPPENED = "happened:"
"""Beginning of the names of recorded fields of events that differ from their schedule."""
MEASURED = "measured:"
"""The beginning of names of sums over clients' local steps; the rest is empty for their number."""


@dataclasses.dataclass(frozen=True, eq=False)
class Trace:
    """The trace of one step, which its events carry.

    It equals itself alone, so that no function is taken from JAX's cache with what an earlier trace
    has noted.

    Attributes:
      is_fixed: Whether loops of local steps have a fixed length, see `check_fixed`.
      replaced: Those of the fields `clients` and `steps` that the step has replaced in an event of
        the schedule.
    """

    is_fixed: bool = False
    replaced: set[str] = dataclasses.field(default_factory=set)


class PackedRows(NamedTuple):
    """Rows into which slots are laid end to end, see `fedjax_sim.clients.packing`.

    Attributes:
      pooled: Rows for the slots of all lanes that run together.
      of_lane: Rows for the slots of a lane that shares no rows with others.
      pooled_slots: Slots for which `pooled` was counted.
      lane_slots: Slots for which `of_lane` was counted.
    """

    pooled: int
    of_lane: int
    pooled_slots: int
    lane_slots: int


class Timeline(NamedTuple):
    """A schedule of server actions, known before any learning.

    Times are 64-bit floats, because float32 puts arrivals in the wrong order. A tick at time `inf`
    never happens (a recorded trace has ended). A time of `nan` means that the tick cannot be known
    before more ticks are drawn.

        timeline = run.timelines[0]
        stale = (np.arange(len(timeline.time))[:, None] - timeline.version)[timeline.clients >= 0]
        print(timeline.time[-1], stale.max())

    Attributes:
      time: `f64[T]`, virtual time at which the server acts; non-decreasing.
      clients: `i32[T, S]`, client whose work is received in each slot; `EMPTY` for none.
      steps: `i32[T, S]`, local steps behind that work.
      version: `i32[T, S]`, server version the work started from; version 0 is the initial model
        and tick t makes version t + 1. The staleness of the work is tick - version.
      weight: `f64[T, S]`, weight of the slot's progress, as far as the schedule determines it.
      holds: `i32[T, S]`, server version that the client holds after the tick (its base model).
    """

    time: Leaf
    clients: Leaf
    steps: Leaf
    version: Leaf
    weight: Leaf
    holds: Leaf


class Facts(NamedTuple):
    """Static facts of all events of a schedule.

    Attributes:
      is_drawn: Whether they come from a schedule that was drawn before.
      replaced: Names of the fields that were replaced since.
      is_inner: Whether the event describes work within a tick, and not the tick; see
        `Event.within`.
      all_filled: Whether no slot is ever empty.
      most_steps: The most local steps of a slot at any tick; None if that is not known.
      same_steps: Whether every slot that is not empty does `most_steps` steps at every tick.
      packed: Rows of `most_steps` steps into which slots are laid end to end; None if they are not.
      sums_to_one: Whether the weights of every tick in which somebody reports sum to 1.
      is_live: Whether they come from a live clock: its events are no ones that were drawn before,
        and nobody has replaced anything of them.
      trace: The trace of the step that is under way; None outside of steps.
      owner: What their rows and clients belong to: the system's name, its number of clients, and
        the rows of the store. Empty outside of bound programs.
    """

    is_drawn: bool = False
    replaced: tuple[str, ...] = ()
    is_inner: bool = False
    all_filled: bool = False
    most_steps: int | None = None
    same_steps: bool = False
    packed: PackedRows | None = None
    sums_to_one: bool = False
    is_live: bool = False
    trace: Trace | None = None
    owner: tuple[str | int, ...] = ()

    def without(self, names: Collection[str]) -> "Facts":
        """Return the facts that still hold after fields of an event were replaced.

        Args:
          names: The fields.
        """
        known = self._replace(replaced=tuple(sorted({*self.replaced, *names})))
        if "steps" in names:
            known = known._replace(most_steps=None)
        if "clients" in names:
            # Emptied slots lose their steps, so the most steps of a slot are no more than before.
            known = known._replace(all_filled=False)
        if {"steps", "clients"} & {*names}:
            known = known._replace(same_steps=False).unpacked()
        return known

    def keeps(self, *names: str) -> bool:
        """Tell whether none of some fields was replaced.

        Args:
          names: The fields.
        """
        return not {*names} & {*self.replaced}

    def unpacked(self) -> "Facts":
        """Return the facts without those that hold only for packed slots."""
        return self._replace(packed=None)

    @property
    def has_own_clients(self) -> bool:
        """Whether the clients are those that a schedule or a live clock has named."""
        return self.is_drawn and self.keeps("clients")

    @property
    def is_scheduled(self) -> bool:
        """Whether clients, steps and weights are those of a schedule that was drawn before."""
        return self.is_drawn and not self.is_live and self.keeps("clients", "steps", "weight")


DRAWN = Facts(is_drawn=True)
"""Facts of every event of a schedule."""


class _Fields(NamedTuple):
    tick: Leaf
    clients: Leaf
    steps: Leaf
    version: Leaf
    weight: Leaf
    offset: Leaf
    read: Leaf
    write: Leaf


@jax.tree_util.register_pytree_with_keys_class
class Event(_Fields):
    """One tick of a timeline as `Algorithm.step` receives it.

    The host adds to the timeline what it can only know from the whole schedule: each client's
    position in its stream of mini-batches, and rows of the store of old server models.

    A step may change who takes part, with how many steps and with which weight:
    `event._replace(steps=...)`. Local work, what it counts and the schedule that a run returns
    follow the change. Weights of other slots stay: where models are averaged, missing weight counts
    for the model that clients started from. `take` selects slots.

    The facts of an event are static and stay with it in `jit`, `scan` and `vmap`. A changed event
    is of another structure than the one before, so choose between values of a field, as in
    `event._replace(steps=jnp.where(...))`, and not between events.

        shorter = event._replace(steps=jnp.minimum(event.steps, 1))  # they were 2 and 1
        assert shorter.steps.tolist() == [1, 1]
        assert shorter.take(jnp.array([1])).clients.tolist() == [3]

    Attributes:
      tick: `i32[]`, number of server actions before this one.
      clients: `i32[S]`, as in `Timeline`.
      steps: `i32[S]`, as in `Timeline`; 0 in empty slots.
      version: `i32[S]`, as in `Timeline`.
      weight: `f[S]`, as in `Timeline`; 64 bits only where models have 64; 0 in
        empty slots.
      offset: `i32[S]`, local steps that the client delivered before these, by the schedule. A
        client's mini-batches are numbered from here: a step that changes `steps` at many ticks
        changes this too if no mini-batch shall be used twice or left out.
      read: `i32[S]`, row of the store that holds the server model of `version`.
      write: `i32[]`, row of the store for the server model that this tick makes; a scratch row if
        no client starts from that model.
      facts: What is known of all events of the schedule. No leaf and no field.
    """

    facts: Facts = Facts()

    def __new__(cls, *fields: Leaf, facts: Facts = Facts(), **named: Leaf) -> Self:
        """Make an event; without `facts` nothing is taken for granted."""
        found = super().__new__(cls, *fields, **named)
        found.facts = facts
        return found

    def _replace(self, *, most_steps: int | None = None, **changes: Any) -> Self:
        """Change who takes part, with how many steps, with which weight, or with which batches.

        A slot that becomes empty has no steps and no weight. A tick whose slots are all empty stays
        so, because short lanes are padded with such ticks.

        Args:
          most_steps: The most that a slot's new `steps` can be. Reverse mode needs it, because
            loops then have this length. More steps are refused, or make the next state nan where
            they are traced.
          changes: New values of `clients`, `steps`, `weight` or `offset`, of the shape of the old
            ones or one number for all slots. A negative client stands for nobody. A negative number
            of steps is refused, or makes the next state nan where it is traced.

        Returns:
          The event, without the facts about what was replaced.

        Raises:
          ConfigError: If a value does not fit, or another field is replaced: which old models are
            kept is decided before learning. Or if `steps` are replaced without `most_steps` within
            a program that was bound as differentiable.
        """
        for name, value in changes.items():
            if name not in ("clients", "steps", "weight", "offset"):
                allowed = "one of clients, steps, weight, offset, which a step may change"
                raise ConfigError("field of the event", name, allowed)
            changes[name] = _fitted(name, value, getattr(self, name))
        if "clients" in changes:
            is_tick = self.facts.all_filled or jnp.any(jnp.asarray(self.clients) != EMPTY)
            is_there = is_tick & (changes["clients"] >= 0)
            changes["clients"] = jnp.where(is_there, changes["clients"], EMPTY)
        if "steps" in changes:
            _check_steps(changes.get("clients", self.clients), changes["steps"], most_steps)
        known = self.facts.without(changes)
        if most_steps is not None:
            if "steps" not in changes:
                raise ConfigError("most_steps", most_steps, "given with new steps only")
            known = known._replace(most_steps=int(most_steps))
        if (trace := known.trace) is not None:
            if "steps" in changes and trace.is_fixed:
                check_fixed(known)
            if known.is_drawn:
                trace.replaced.update(changes.keys() & {"clients", "steps"})
        found = self.within(facts=known, **changes)
        is_tidy = known.all_filled and "steps" not in changes
        return found if is_tidy or not changes.keys() - {"offset"} else found.tidied()

    def within(self, *, facts: Facts | None = None, **changes: Leaf) -> Self:
        """Describe other work within the tick, such as that of the clients of a group.

        Unlike `_replace` this does not change what the tick is: who reports, and what is counted.

        Args:
          facts: Facts of that work; nothing is known of it if None.
          changes: The fields that differ, of any shape.

        Returns:
          An event.
        """
        facts = Facts(is_inner=True, trace=self.facts.trace) if facts is None else facts
        return type(self)(**{**self._asdict(), **changes}, facts=facts)

    def take(self, slots: jax.Array) -> Self:
        """Select some of the slots.

        Args:
          slots: `i32[...]`, their places.

        Returns:
          An event of these slots.
        """
        per_slot = {name: leaf[slots] for name, leaf in self._asdict().items() if leaf.ndim}
        return self.within(facts=self.facts.unpacked(), **per_slot)

    def tidied(self) -> Self:
        """Take steps and weights from empty slots."""
        is_there = self.clients >= 0
        steps = jnp.where(is_there, self.steps, 0)
        weight = jnp.where(is_there, self.weight, 0)
        return self.within(facts=self.facts, steps=steps, weight=weight)

    @property
    def changed(self) -> "Event | tuple[()]":
        """The event itself if the tick is not that of the schedule, otherwise ()."""
        return () if self.facts.is_scheduled or self.facts.is_inner else self

    def tree_flatten_with_keys(self) -> tuple[Any, Facts]:
        """Return the fields with their names, and the facts."""
        keys = map(jax.tree_util.GetAttrKey, self._fields)
        return tuple(zip(keys, self, strict=True)), self.facts

    @classmethod
    def tree_unflatten(cls, facts: Facts, fields: Any) -> Self:
        """Return the event of these `facts` and `fields`."""
        return cls(*fields, facts=facts)


def _fitted(name: str, value: Any, old: Leaf) -> jax.Array:
    """Check a new value of a field, and give it the shape of the old one."""
    is_whole = name != "weight"
    kinds, allowed = ("iu", "whole numbers") if is_whole else ("iufb", "numbers")
    try:
        found = jnp.asarray(value)
    except (TypeError, ValueError):
        raise ConfigError(f"event.{name}", value, allowed) from None
    # Types that JAX adds to NumPy, such as bfloat16, are of kind "V".
    is_real = jnp.issubdtype(found.dtype, jnp.floating)
    if found.dtype.kind not in kinds and (is_whole or not is_real):
        raise ConfigError(f"event.{name}", str(found.dtype), allowed)
    shape = jnp.shape(old)
    if found.shape not in (shape, ()):
        allowed = f"{allowed} of shape {list(shape)}, the slots of the tick, or one for all"
        raise ConfigError(f"shape of event.{name}", list(found.shape), allowed)
    return jnp.broadcast_to(found.astype(jnp.result_type(old)), shape)


def _check_steps(clients: Leaf, steps: Leaf, most: int | None) -> None:
    """Check the steps of filled slots where they are not traced."""
    if most is not None and not (isinstance(most, int | np.integer) and most >= 0):
        raise ConfigError("most_steps", most, "a whole number of at least 0")
    if isinstance(clients, jax.core.Tracer) or isinstance(steps, jax.core.Tracer):
        return
    filled = np.where(np.asarray(clients) >= 0, steps, 0)
    if (least := filled.min(initial=0)) < 0:
        raise ConfigError("event.steps", int(least), "at least 0")
    if most is not None and (largest := filled.max(initial=0)) > most:
        raise ConfigError("event.steps", int(largest), f"at most {most}, as most_steps says")


def check_fixed(facts: Facts) -> None:
    """Check that loops of local steps have a fixed length, which reverse mode needs.

    Args:
      facts: What is known of the event.

    Raises:
      ConfigError: If steps were replaced by nobody knows how many.
    """
    if not facts.keeps("steps") and facts.most_steps is None:
        allowed = "given with most_steps, as in event._replace(steps=..., most_steps=5), in a "
        allowed += "program that was bound as differentiable: its loops have a fixed length"
        raise ConfigError("event.steps", "replaced", allowed)
