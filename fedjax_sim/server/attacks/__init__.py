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
- `adversary`: attacks by the names of the command line, and one of several of them; who is
  malicious and when (`Adversary`), and what the server then receives.

Attacks on clients' data are in `fedjax_sim.problems.poisoning`.
"""

from fedjax_sim.server.attacks.adversary import ATTACKS as ATTACKS
from fedjax_sim.server.attacks.adversary import Adversary as Adversary
from fedjax_sim.server.attacks.adversary import OneAttack as OneAttack
from fedjax_sim.server.attacks.adversary import are_malicious as are_malicious
from fedjax_sim.server.attacks.adversary import attacked as attacked
from fedjax_sim.server.attacks.adversary import attacks_of_one_program as attacks_of_one_program
from fedjax_sim.server.attacks.adversary import malicious_slots as malicious_slots
from fedjax_sim.server.attacks.adversary import parse_attack as parse_attack
from fedjax_sim.server.attacks.adversary import remembering as remembering
from fedjax_sim.server.attacks.base import Attack as Attack
from fedjax_sim.server.attacks.base import Cohort as Cohort
from fedjax_sim.server.attacks.base import Honest as Honest
from fedjax_sim.server.attacks.canaries import Canary as Canary
from fedjax_sim.server.attacks.informed import ALittleIsEnough as ALittleIsEnough
from fedjax_sim.server.attacks.informed import InnerProduct as InnerProduct
from fedjax_sim.server.attacks.informed import Mimic as Mimic
from fedjax_sim.server.attacks.informed import MinMax as MinMax
from fedjax_sim.server.attacks.informed import MinSum as MinSum
from fedjax_sim.server.attacks.simple import FreeRider as FreeRider
from fedjax_sim.server.attacks.simple import Gaussian as Gaussian
from fedjax_sim.server.attacks.simple import NotFinite as NotFinite
from fedjax_sim.server.attacks.simple import Scaling as Scaling
from fedjax_sim.server.attacks.simple import SignFlip as SignFlip
