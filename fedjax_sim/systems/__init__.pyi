"""The systems, each once: for type checkers, and for the package, which is lazy."""

import fedjax_sim.core.settings as _settings
import fedjax_sim.core.types as _types

from . import diana as diana
from . import favano as favano
from . import fedavg as fedavg
from . import fedbuff as fedbuff
from . import fedem as fedem
from . import fedpa as fedpa
from . import hierarchical as hierarchical
from . import langevin as langevin
from . import oort as oort
from . import scaffold as scaffold
from .diana import vr_diana as vr_diana
from .favano import quafl as quafl
from .fedavg import fedadagrad as fedadagrad
from .fedavg import fedadam as fedadam
from .fedavg import fedavgm as fedavgm
from .fedavg import fednova as fednova
from .fedavg import fedopt as fedopt
from .fedavg import fedprox as fedprox
from .fedavg import fedyogi as fedyogi
from .fedavg import qfedavg as qfedavg
from .fedbuff import asyncfeded as asyncfeded
from .fedbuff import ca2fl as ca2fl
from .fedbuff import fedasync as fedasync
from .fedbuff import fedstaleweight as fedstaleweight
from .fedbuff import gen_async as gen_async
from .fedem import async_fedem as async_fedem
from .fedem import em as em
from .fedem import vr_fedem as vr_fedem
from .hierarchical import async_hierarchical as async_hierarchical
from .in_flight import asyncfeded_adaptive as asyncfeded_adaptive
from .in_flight import fedat as fedat
from .in_flight import pisces as pisces
from .in_flight import safa as safa
from .oort import powerofchoice as powerofchoice
from .personal import apfl as apfl
from .personal import ditto as ditto
from .personal import fedbn as fedbn
from .personal import fedper as fedper
from .personal import ifca as ifca
from .personal import perfedavg as perfedavg
from .personal import pfedme as pfedme
from .response_times import adacomm as adacomm
from .response_times import fedcs as fedcs
from .response_times import tifl as tifl
from .scaffold import feddyn as feddyn
from .scaffold import mimelite as mimelite

SYSTEMS: _settings.Named[_types.System]
"""The systems by name, in the order in which they are listed."""
