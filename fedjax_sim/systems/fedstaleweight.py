"""FedStaleWeight (Ma, Tu, Chen, Reddi, arXiv 2406.02877): buffered asynchronous aggregation with weights from averaged staleness.

    w_v -> `state.server`    b -> `hyper.buffer_size`    Q -> `hyper.local_steps`    eta_l -> `hyper.lr`    eta_g -> `hyper.server_lr`
    tau_i -> tick - version    E[tau_i], as estimated -> `staleness.mean_staleness`    alpha_i -> `timeline.weight`

Algorithm 1: when the buffer holds b updates, tau_j = v - k_j joins the average of its client; alpha_j = (E[tau_j] b + 1) / n, divided by
the buffer's sum; w_{v+1} = w_v + eta_g sum_j alpha_j Delta_j. The weights follow from the schedule alone and are part of the timeline.

Deviation: Algorithm 1's own line has no b; it is then not the inverse of a client's share of arrivals (Eq. 7), so Eq. 8 is the default.

Readings. The weight is Eq. 8's, which the proof uses too; `weighting` offers Algorithm 1's line ("alg1", without b), that of the public
bench ("code", without + 1; "code_exact" with its window that drops the newest value) and the rules that it is compared with, "mean" being
the buffered baseline. "Moving average" is the mean of a client's last five values, the present one included, as in the bench; at
buffers as large as the number of clients the window is biased, and `average="cumulative"` should be used. A client takes the newest model
as soon as its update is in, after the step that it may have completed (`restart="free"`, which Eq. 6 needs); "before_aggregation"
and "new_version" are the other two. One update of each client in a buffer at most (the remedy named for the theorem's assumption) is
`restart="after_interaction"` without an exchange. Silent in the paper and taken from the bench: Q = 1, batches of 32 from a shuffle of
each update's own, eta_l = 0.01, eta_g = 1, times U(1, 2) and U(8, 12) of ten fast clients and the last five. The bench's aliasing of
server models is not followed.
"""

from fedjax_sim.clients.gradient_steps import LocalTraining
from fedjax_sim.server.buffer import StaleArrivals, buffered_sgd, schedule_stale_arrivals
from fedjax_sim.settings import real, redefault, struct
from fedjax_sim.timelines import arrivals_within
from fedjax_sim.types import System


@struct
class Hyper(StaleArrivals, LocalTraining):
    """Settings of FedStaleWeight: its clock's and weights', its local training's and the server's learning rate."""

    lr: float = redefault(LocalTraining, "lr", 0.01)
    batch_size: int = redefault(LocalTraining, "batch_size", 32)
    sampling: str = redefault(LocalTraining, "sampling", "reshuffled")
    server_lr: float = real(1.0, "Server lr.", above=0)


system = System(
    name="fedstaleweight",
    summary="buffered asynchronous aggregation with weights from staleness that give slow clients their part",
    Hyper=Hyper,
    timeline=schedule_stale_arrivals,
    algorithm=buffered_sgd,
    ticks_within=arrivals_within,
)
