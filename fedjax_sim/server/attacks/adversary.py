"""Attacks by name, who sends them at which ticks, and the forged messages.

Dimension letters: those of `fedjax_sim.core.types`.
"""

import functools
from collections.abc import Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp

from fedjax_sim.clients.clipping import finite
from fedjax_sim.core import settings, streams
from fedjax_sim.core.settings import (
    Checked,
    ConfigError,
    Named,
    OneOfSeveral,
    fixed,
    setting,
    struct,
)
from fedjax_sim.core.settings.declared import Count, Probability, Whole
from fedjax_sim.core.types import Array, Event, Key, Params
from fedjax_sim.kernels.rounding import wide_of
from fedjax_sim.server.attacks import informed, simple
from fedjax_sim.server.attacks.base import Attack, Cohort, Honest, along


@struct
class OneAttack(OneOfSeveral, Attack):
    """One of several attacks, chosen by its number, which is traced and can be swept.

    `attacks_of_one_program` makes such attacks of a list. As of `rules.OneOf`, only the chosen one
    is executed where lanes run one after another.

        second = OneAttack(which=1, options=(Honest(), Scaling(scale=3.0)))
        cohort = Cohort(jnp.arange(3), jnp.arange(3) == 2, jnp.ones(3, bool), jnp.full(3, 1 / 3))
        forged = second.forge(key, jnp.array([[1.0], [3.0], [5.0]]), cohort)
        assert forged[2] == 3 * 5.0
    """

    name: str = fixed("one_of")

    which: Whole = setting(0, "Number of the attack, counted from 0.", traced=True)
    options: tuple[Attack, ...] = setting(
        (Honest(),),
        "The attacks.",
        allowed="a tuple of attacks; on the command line joined by |, and written last",
        parse=lambda text: tuple(map(parse_attack, text.split("|"))),
    )

    def is_forging(self) -> Array:
        """Tell whether the chosen attack forges anything: `bool[]`."""
        forging = jnp.stack([jnp.asarray(attack.is_forging()) for attack in self.options])
        return forging[jnp.asarray(self.which).astype("int32")]

    def forge(self, key: Key, messages: Params, cohort: Cohort) -> Params:
        """Return the chosen attack's messages."""

        memories = cohort.memory or [()] * len(self.options)

        def forging(attack: Attack, memory: Params) -> Params:
            forged = attack.forge(key, messages, cohort._replace(memory=memory))
            return jax.tree.map(
                lambda leaf, like: jnp.broadcast_to(leaf, like.shape).astype(like.dtype),
                forged,
                messages,
            )

        pairs = zip(self.options, memories, strict=True)
        branches = [functools.partial(forging, *each) for each in pairs]
        return jax.lax.switch(jnp.asarray(self.which).astype("int32"), branches)

    def first_memory(self, message: Params) -> Params:
        """Return a memory for each attack; () if none needs one."""
        memories = tuple(attack.first_memory(message) for attack in self.options)
        return memories if jax.tree.leaves(memories) else ()

    def remember(self, key: Key, messages: Params, cohort: Cohort, memory: Params) -> Params:
        """Return the memories of all attacks, whichever is chosen."""
        return tuple(
            attack.remember(key, messages, cohort, each)
            for attack, each in zip(self.options, memory, strict=True)
        )


_KINDS = Honest, *simple.KINDS, *informed.KINDS, OneAttack
ATTACKS: Named[type[Attack]] = Named.of("attack", *_KINDS, example="sign_flip:scale=2")
"""Every kind of attack, by name."""


def parse_attack(text: str) -> Attack:
    """Read an attack from text.

        assert parse_attack("alie:z=1.5") == ALittleIsEnough(z=1.5)

    Args:
      text: A name of `ATTACKS`, followed by values for its fields, such as
        "min_max:perturbation=sign". Other fields have their defaults.

    Returns:
      The attack.

    Raises:
      ConfigError: If the name, a field or a value is not allowed.
    """
    return settings.parse_kind("attack", ATTACKS, text, last="options")


def attacks_of_one_program(attacks: Sequence[Attack]) -> list[OneAttack]:
    """Make attacks that share the compiled program of a sweep, one for each of a list.

        attacks = attacks_of_one_program([Honest(), SignFlip(), SignFlip(scale=3.0)])
        settings = {"adversary.attack": attacks, "malicious": [0.1, 0.2]}

    Args:
      attacks: Attacks, several of which may differ in numbers alone.

    Returns:
      As many attacks, each of which is one of the same kinds.
    """
    return [
        OneAttack(which=which, options=options) for which, options in settings.alternatives(attacks)
    ]


ROUNDING = 1e-5
"""Tolerance of the mean weight, relative: a mean of equal weights is rounded."""


def _is_attack(attack: Any) -> bool:
    return not isinstance(attack, Honest)


@struct
class Adversary(Checked):
    """Settings of an attack on the messages that clients send to the server.

    They are a group of the settings of every system that averages messages.

        twenty_ticks = Adversary(
            attack=SignFlip(), malicious=0.2, attack_from=100, attack_ticks=20
        )
        hyper = fedavg.Hyper(adversary=twenty_ticks, aggregator=Median())
    """

    attack: Attack = setting(
        Honest(),
        "What malicious clients send instead of their progress.",
        allowed=ATTACKS,
        parse=parse_attack,
    )
    malicious: Probability = setting(
        0.0,
        "Share of the clients that are malicious. Its product with the number of clients is "
        "rounded. Which clients they are is drawn for each seed; those of a smaller share stay "
        "malicious with a larger one.",
        simpler_at=(0.0,),
        only_with={"attack": _is_attack, "attackers": lambda clients: not clients},
    )
    attackers: tuple[Whole, ...] = settings.clients_named(
        "Numbers of the clients that are malicious, instead of a share of them.",
        only_with={"attack": _is_attack},
    )
    attack_from: Whole = setting(
        0,
        "Number of server actions before the attack; malicious clients are honest until then.",
        begins="the attack",
        only_with={"attack": _is_attack},
        traced=True,
    )
    attack_ticks: Whole = setting(
        0,
        "Number of server actions that the attack lasts; 0 is for ever.",
        only_with={"attack": _is_attack},
        traced=True,
    )
    attack_when: Literal["always", "heavy"] = setting(
        "always",
        "Whether malicious clients send forgeries always, or only where their weight in the "
        "server action is at least the mean weight of those who report, as it is for heavy "
        "reports of asynchronous systems. Otherwise they are honest.",
        only_with={"attack": _is_attack},
    )

    @property
    def is_nobody(self) -> bool:
        """Whether it is known that nobody is malicious."""
        return not self.attackers and settings.is_known(self.malicious, 0)

    @property
    def is_idle(self) -> bool:
        """Whether it is known that nobody attacks."""
        return isinstance(self.attack, Honest) or self.is_nobody


def attacked(
    adversary: Adversary,
    key: Key,
    event: Event,
    starts: Params,
    local: Params,
    num_clients: Count,
    *,
    memory: Params = (),
    draws: Key | None = None,
) -> Params:
    """Replace the progress of malicious clients by forgeries.

        adversary = Adversary(attack=SignFlip(), attackers=(3,))
        starts, local = jnp.ones((2, 1)), jnp.full((2, 1), 5.0)  # of clients 0 and 3
        claimed = attacked(adversary, key, event, starts, local, 8)
        assert claimed.ravel().tolist() == [5.0, 1.0 - 4.0]

    Args:
      adversary: The settings.
      key: The lane's learning key.
      event: The tick.
      starts: Models from which the clients started, leaves `[S, ...]`.
      local: Models that they have reached, leaves `[S, ...]`.
      num_clients: Number of clients, N.
      memory: What attackers remember, after this tick too.
      draws: Key of the forgeries' draws; by default one of each tick.

    Returns:
      Models that they claim to have reached, leaves `[S, ...]` in their types: the start plus the
      forged progress for attackers, the same bits as before for others.
    """
    if adversary.is_idle:
        return local
    own, messages, cohort = _seen(adversary, key, event, starts, local, num_clients)
    slots, cohort = cohort.is_malicious, cohort._replace(memory=memory)
    forged = adversary.attack.forge(own if draws is None else draws, messages, cohort)

    def claim(end: Array, start: Array, progress: Array) -> Array:
        reached = (wide_of(start) + progress).astype(end.dtype)
        return jnp.where(along(slots, end), reached, end)

    return jax.tree.map(claim, local, starts, forged)


def remembering(
    adversary: Adversary,
    memory: Params,
    key: Key,
    event: Event,
    starts: Params,
    local: Params,
    num_clients: Count,
) -> Params:
    """Let attackers remember a tick.

    They learn from finite messages of clients that are no attackers, whether attackers are at work
    or not. A tick without such a message teaches them nothing.

    `starts` and `local` are those of `attacked`.

        adversary = Adversary(attack=Mimic(warmup=10), attackers=(3,))
        starts, local = jnp.zeros((2, 1)), jnp.array([[5.0], [1.0]])  # of clients 0 and 3
        memory = adversary.attack.first_memory(local[0])
        memory = remembering(adversary, memory, key, event, starts, local, 8)
        assert memory.ticks == 1 and memory.target == 0

    Args:
      adversary: The settings.
      memory: What attackers remember of earlier ticks, see `Attack.first_memory`.
      num_clients: Number of clients, N.

    Returns:
      The memory after the tick.
    """
    if not jax.tree.leaves(memory):
        return memory
    draws, messages, cohort = _seen(adversary, key, event, starts, local, num_clients)
    # They learn from those who are honest for ever, as far as their messages are finite.
    is_foe = are_malicious(adversary, key, num_clients, cohort.clients)
    _, honest = finite(messages, cohort.is_present & ~is_foe)
    cohort = cohort._replace(is_malicious=cohort.is_present & ~honest)
    # A key that draws independently of the forgeries of the same tick.
    own_key = streams.tick_key(draws, event.tick, "remember")
    new = adversary.attack.remember(own_key, messages, cohort, memory)
    is_there = honest.any()
    return jax.tree.map(lambda new, old: jnp.where(is_there, new, old), new, memory)


def _seen(
    adversary: Adversary, key: Key, event: Event, starts: Params, local: Params, num_clients: int
) -> tuple[Key, Params, Cohort]:
    """Key of attackers' draws, the messages that they see, and the slots of a tick."""
    clients, weight = jnp.asarray(event.clients), jnp.asarray(event.weight)
    slots = malicious_slots(adversary, key, event, num_clients)
    messages = jax.tree.map(lambda end, start: wide_of(end) - wide_of(start), local, starts)
    draws = jax.random.fold_in(streams.lane_stream(key, "attack"), event.tick)
    return draws, messages, Cohort(clients, slots, clients >= 0, weight)


def malicious_slots(adversary: Adversary, key: Key, event: Event, num_clients: Count) -> Array:
    """Find the slots of a tick in which an attacker is at work.

        adversary = Adversary(attack=SignFlip(), attackers=(3,), attack_from=10)
        before = malicious_slots(adversary, key, event.within(tick=9), 8)
        after = malicious_slots(adversary, key, event.within(tick=10), 8)
        assert not before.any() and after.tolist() == [False, True]  # clients 0 and 3

    Args:
      adversary: The settings.
      key: The lane's learning key.
      event: The tick.
      num_clients: Number of clients, N.

    Returns:
      `bool[S]`; False in empty slots.
    """
    clients, weight = jnp.asarray(event.clients), jnp.asarray(event.weight)
    slots = (clients >= 0) & are_malicious(adversary, key, num_clients, clients)
    slots = slots & adversary.attack.is_forging()
    since = event.tick - adversary.attack_from
    lasting = jnp.asarray(adversary.attack_ticks)
    slots = slots & (since >= 0) & ((lasting == 0) | (since < lasting))
    if adversary.attack_when == "heavy":
        is_present = clients >= 0
        mean = jnp.where(is_present, weight, 0).sum() / jnp.maximum(is_present.sum(), 1)
        slots = slots & (weight >= (1 - ROUNDING) * mean)
    return slots


def are_malicious(adversary: Adversary, key: Key, num_clients: Count, clients: Array) -> Array:
    """Tell which clients are malicious, at work or not.

        adversary = Adversary(attack=SignFlip(), malicious=0.2)
        key = stream(jax.random.key(0), "learning")  # of the lane with seed 0
        is_malicious = are_malicious(adversary, key, 10, jnp.arange(10))

    Args:
      adversary: The settings.
      key: The lane's learning key.
      num_clients: Number of clients, N.
      clients: `i32[...]`, numbers of clients below N; others are taken for client 0 where a share
        is malicious.

    Returns:
      `bool[...]`, of round(malicious * N) clients true, or of those in `attackers`.

    Raises:
      ConfigError: If `attackers` names a client that there is not.
    """
    if adversary.attackers:
        if max(adversary.attackers) >= num_clients:
            allowed = f"of clients from 0 to {num_clients - 1}"
            raise ConfigError("adversary.attackers", adversary.attackers, allowed)
        return jnp.isin(clients, jnp.asarray(adversary.attackers, "int32"))
    # Who comes early in a random order of the clients, so that shares are nested.
    bits = streams.shuffle_bits(streams.lane_stream(key, "malicious"))
    places = streams.shuffled_index(bits, jnp.maximum(clients, 0), num_clients)
    return places < jnp.round(jnp.asarray(adversary.malicious, float) * num_clients)
