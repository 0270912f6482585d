"""Attacks by the names of the command line, and one of several, chosen by a number."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_sim.core import settings
from fedjax_sim.core.checking import Whole
from fedjax_sim.core.settings import Named, OneOfSeveral, fixed, setting, struct
from fedjax_sim.core.types import Array, Key, Params
from fedjax_sim.server.attacks import informed, simple
from fedjax_sim.server.attacks.base import Attack, Cohort, Honest


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

        def forging(attack: Attack, memory: Any) -> Params:
            forged = attack.forge(key, messages, cohort._replace(memory=memory))
            return jax.tree.map(
                lambda leaf, like: jnp.broadcast_to(leaf, like.shape).astype(like.dtype),
                forged,
                messages,
            )

        pairs = zip(self.options, memories, strict=True)
        branches = [functools.partial(forging, *each) for each in pairs]
        return jax.lax.switch(jnp.asarray(self.which).astype("int32"), branches)

    def first_memory(self, message: Params) -> Any:
        """Return a memory for each attack; () if none needs one."""
        memories = tuple(attack.first_memory(message) for attack in self.options)
        return memories if jax.tree.leaves(memories) else ()

    def remember(self, key: Key, messages: Params, cohort: Cohort, memory: Any) -> Any:
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
