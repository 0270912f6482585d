"""Attacks on the messages that clients send to the server.

An attack says what malicious clients send instead of their progress. Attackers may read all
messages of the tick. Attacks are frozen structs whose strengths are traced leaves: attacks of one
kind with other strengths share a compiled program.

Clients that know only their own message (`simple`):

- `SignFlip`: the reversed progress (Li et al. 2019).
- `Scaling`: many times the progress, model replacement (Bagdasaryan et al. 2020).
- `Gaussian`: normal numbers (Blanchard et al. 2017).
- `FreeRider`: no progress, or noise (Lin et al. 2019, Fraboni et al. 2021).
- `NotFinite`: nan or inf.

Clients that know all messages (`informed`):

- `ALittleIsEnough`: the honest mean minus some standard deviations (Baruch et al. 2019).
- `InnerProduct`: the reversed honest mean (Xie et al. 2020).
- `MinMax`, `MinSum`: as far from the honest mean as honest messages are apart (Shejwalkar and
  Houmansadr 2021).
- `Mimic`: the message of one honest client (Karimireddy et al. 2022), which attackers may choose by
  what they remember of earlier ticks.

Clients that can be seen, by which privacy is audited, are in `canaries`. They are not among the
attacks of the command line.

Other modules:

- `base`: the interface `Attack`, the slots of a tick (`Cohort`), and no attack (`Honest`).
- `catalogue`: attacks by the names of the command line, and one of several of them.
- `adversary`: who is malicious and when (`Adversary`), and what the server then receives.

Attacks on clients' data are in `fedjax_sim.problems.poisoning`.
"""

from fedjax_sim.server.attacks.adversary import (
    Adversary,
    are_malicious,
    attacked,
    malicious_slots,
    remembering,
)
from fedjax_sim.server.attacks.base import Attack, Cohort, Honest
from fedjax_sim.server.attacks.canaries import Canary
from fedjax_sim.server.attacks.catalogue import (
    ATTACKS,
    OneAttack,
    attacks_of_one_program,
    parse_attack,
)
from fedjax_sim.server.attacks.informed import (
    ALittleIsEnough,
    InnerProduct,
    Mimic,
    MinMax,
    MinSum,
)
from fedjax_sim.server.attacks.simple import FreeRider, Gaussian, NotFinite, Scaling, SignFlip

__all__ = [
    "ATTACKS",
    "ALittleIsEnough",
    "Adversary",
    "Attack",
    "Canary",
    "Cohort",
    "FreeRider",
    "Gaussian",
    "Honest",
    "InnerProduct",
    "Mimic",
    "MinMax",
    "MinSum",
    "NotFinite",
    "OneAttack",
    "Scaling",
    "SignFlip",
    "are_malicious",
    "attacked",
    "attacks_of_one_program",
    "malicious_slots",
    "parse_attack",
    "remembering",
]
