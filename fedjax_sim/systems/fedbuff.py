"""FedBuff (Nguyen et al. 2022), as FAVANO's paper (arXiv 2305.16099, Sec. 5 and App. C.2) runs it.

    w_t -> `state.server`    Z -> `hyper.buffer_size`    K -> `hyper.local_steps`    eta_l -> `hyper.lr * hyper.lr_scale`

Readings. A client is blocked from its finish to the end of the exchange that takes its update (`restart`: other readings), then starts
from the new model (`send_old_model`: the one before). The local learning rate is `lr`; `lr_scale=Z / N` gives the public simulator's.
The text also says that a counter is reset at the beginning of each server step; by default that is the difference of one continuous
clock. `restart="fresh"` takes it literally: running times are drawn anew for everyone at each server step, so that fast clients alone
report where there are enough of them. Mean staleness is then 5.3 server steps with 66 of 100 fast clients and 0.1 with 11, against 8.9
and 8.7 of the continuous clock (experiments/README.md has the accuracies).
"""

from fedjax_sim.clients.gradient_steps import LocalTraining
from fedjax_sim.server.buffer import buffered_sgd
from fedjax_sim.settings import real, struct
from fedjax_sim.timelines import Arrivals, arrivals_within, schedule_arrivals
from fedjax_sim.types import System


@struct
class Hyper(Arrivals, LocalTraining):
    """Settings of FedBuff: its clock's, its local training's and the server's learning rate."""

    server_lr: float = real(1.0, "Server lr.", above=0)


system = System(
    name="fedbuff",
    summary="buffered asynchronous aggregation: the server acts when Z updates have arrived",
    Hyper=Hyper,
    timeline=schedule_arrivals,
    algorithm=buffered_sgd,
    ticks_within=arrivals_within,
)
