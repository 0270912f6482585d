"""Attacks by the names of the command line."""

from fedjax_sim.checking import checked
from fedjax_sim.server.attacks.base import Attack, Honest
from fedjax_sim.server.attacks.choosing import OneAttack
from fedjax_sim.server.attacks.informed import (
    ALittleIsEnough,
    InnerProduct,
    Mimic,
    MinMax,
    MinSum,
)
from fedjax_sim.server.attacks.simple import FreeRider, Gaussian, NotFinite, Scaling, SignFlip
from fedjax_sim.settings import parse_kind

ATTACKS: dict[str, type[Attack]] = {
    kind.name: kind
    for kind in (
        Honest,
        SignFlip,
        Scaling,
        Gaussian,
        FreeRider,
        NotFinite,
        ALittleIsEnough,
        InnerProduct,
        MinMax,
        MinSum,
        Mimic,
        OneAttack,
    )
}
"""Every kind of attack, by name."""


@checked
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
    return parse_kind("attack", ATTACKS, text, "sign_flip:scale=2", last="options")
