"""FedStaleWeight (Ma, Tu, Chen and Reddi, arXiv 2406.02877): weights from averaged staleness.

    w_v -> `state.server`      b -> `hyper.buffer_size`    Q -> `hyper.local_steps`
    eta_l -> `hyper.lr`        eta_g -> `hyper.server_lr`  tau_i -> tick - version
    E[tau_i], as estimated -> `server.staleness.mean_staleness`    alpha_i -> `event.weight`

Algorithm 1: when the buffer holds b updates, tau_j = v - k_j joins the average of its client;
alpha_j = (E[tau_j] b + 1) / n, divided by the buffer's sum; w_{v+1} = w_v + eta_g sum_j alpha_j
Delta_j. The weights follow from the schedule alone and are part of the timeline; the step with them
is FedBuff's (`fedbuff`).

Deviation: Algorithm 1 prints the weight without b. It is then not the inverse of a client's share
of arrivals (Eq. 7), so Eq. 8 is the default.

Readings. The weight is that of Eq. 8, which the proof also uses. `rule` offers Algorithm 1's line
("alg1", without b), that of the authors' public code ("code", without + 1; "code_exact", which also
averages as that code does, over a client's first four values and its latest), and the rules that
the paper compares with; "mean" is the buffered baseline. Otherwise "moving average" is read as the
mean of a client's last five values, the present one included; five is the public code's number. If
buffers are as large as the number of clients that window is biased, and `average="cumulative"`
should be used. A client takes the newest model as soon as its update is in, after the step that
this update may have completed (`restart="free"`, which Eq. 6 needs); "before_aggregation" is
an alternative. At most one update of each client in a buffer, the remedy that the
paper names for its theorem's assumption, is `restart="after_interaction"` without an exchange time.
Where the paper is silent, `paper` follows the public code: Q = 1, batches of 32 from a new shuffle
for each update, eta_l = 0.01, eta_g = 1, and updates that take U(1, 2) units of time for ten fast
clients and U(8, 12) for the last five. In one point the code is not followed: there server models
share memory, here each version keeps its values.
"""

from fedjax_sim.clients import LocalTraining
from fedjax_sim.core.settings import redefault, struct
from fedjax_sim.server import Reports, ServerRate, WeightedArrivals
from fedjax_sim.systems import fedbuff
from fedjax_sim.timelines import ArrivalClock, presets


@struct
class Hyper(WeightedArrivals, LocalTraining, ServerRate, Reports):
    """Settings of FedStaleWeight: its clock, weights, local training, and server learning rate."""

    clock: ArrivalClock = redefault(WeightedArrivals, "clock", ArrivalClock(restart="free"))


paper = presets.preset(Hyper, presets.STALENESS)
SUMMARY = "buffered asynchronous aggregation; weights from staleness give slow clients their share"
system = fedbuff.system._replace(name="fedstaleweight", Hyper=Hyper, summary=SUMMARY, paper=paper)
