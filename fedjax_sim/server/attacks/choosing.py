"""One of several attacks, chosen by a number: attacks as an axis of one compiled program."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from fedjax_sim.checking import checked
from fedjax_sim.server.attacks.base import Attack, Cohort, Honest
from fedjax_sim.settings import (
    alternatives,
    check_alternative,
    fixed,
    parts,
    struct,
    whole,
    write_kind,
)
from fedjax_sim.types import Key, Params


def parse_options(text: str) -> tuple[Attack, ...]:
    """Read attacks from text.

    Args:
      text: Their texts with "|" between them, such as "none|sign_flip:scale=2".

    Returns:
      The attacks.

    Raises:
      ConfigError: If a name, a field or a value is not allowed.
    """
    from fedjax_sim.server.attacks.catalogue import parse_attack  # It knows this kind as well.

    return tuple(map(parse_attack, text.split("|")))


@struct
class OneAttack(Attack):
    """One of several attacks, chosen by its number, which is traced and can be swept.

    `attacks_of_one_program` makes such attacks of a list. As of `rules.OneOf`, only the chosen one
    is executed where lanes run one after another.
    """

    name: str = fixed("one_of")

    which: int = whole(0, "Number of the attack, counted from 0.", least=0)
    options: tuple[Attack, ...] = parts(
        (Honest(),),
        "a tuple of attacks; on the command line joined by |, and written last",
        Attack,
        parse_options,
        meaning="The attacks.",
    )

    def check_together(self) -> None:
        """Check that there is an attack of this number.

        Raises:
          ConfigError: If there is none.
        """
        super().check_together()
        check_alternative(self.which, self.options)

    @property
    def chosen(self) -> Attack:
        """The attack that is chosen, on the host."""
        return self.options[int(self.which)]

    def forge(self, key: Key, messages: Params, cohort: Cohort) -> Params:
        """Return the chosen attack's messages."""

        def forging(attack: Attack) -> Params:
            forged = attack.forge(key, messages, cohort)
            return jax.tree.map(
                lambda leaf, like: jnp.broadcast_to(leaf, like.shape).astype(like.dtype),
                forged,
                messages,
            )

        branches = [lambda attack=each: forging(attack) for each in self.options]
        return jax.lax.switch(jnp.asarray(self.which).astype("int32"), branches)

    def __str__(self) -> str:
        """Write the attack as `parse_attack` reads it, the attacks to choose from last."""
        outer = write_kind(dataclasses.replace(self, options=(Honest(),)))
        return f"{outer}:options={'|'.join(map(str, self.options))}"


@checked
def attacks_of_one_program(attacks: Sequence[Attack]) -> list[OneAttack]:
    """Make attacks that share a compiled program, one for each of a list.

        attacks = attacks_of_one_program([Honest(), SignFlip(), SignFlip(scale=3.0)])
        settings = {"adversary.attack": attacks, "malicious": [0.1, 0.2]}

    Args:
      attacks: Attacks, several of which may differ in numbers alone.

    Returns:
      As many attacks, each of which is one of the same kinds.
    """
    return [OneAttack(which=which, options=options) for which, options in alternatives(attacks)]
