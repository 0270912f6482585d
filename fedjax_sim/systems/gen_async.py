"""Generalized AsyncSGD (Leconte, Jonckheere, Samsonov and Moulines 2024, arXiv 2405.00017).

    w_k -> `state.server`    C -> `hyper.num_tasks`    p_i -> `timelines.routing_shares`
    eta -> `hyper.lr`        J_k -> `event.clients`      I_k -> `event.version`
    1 / (n p_i) -> `event.weight`

C tasks circulate: a client works on its tasks in the order in which they came, each a gradient at
the model that the task carries. When client J_k has finished one, the server makes the step
w_{k+1} = w_k - eta / (n p_{J_k}) g_{J_k}(w_{I_k}), draws a client with probabilities p, and sends
it a task with the new model. In the long run client i sends a share p_i of the gradients, whatever
its speed is, so that the weight 1 / (n p_i) makes all clients count equally. The step is FedBuff's
(`fedbuff`) with a buffer of one.

Deviation: the paper begins with a given set of C clients. Here the first C tasks are drawn with
probabilities p as well, because a set would be one more setting, which is forgotten after a while.

Readings. Several local steps make a task an update of the model (`local_steps`; the paper has one
gradient), and `server_lr` scales the server's step. `routing_exponent` names a family of
probabilities; `routing` gives them one by one.
"""

from functools import partial

from fedjax_sim.clients import LocalTraining
from fedjax_sim.core.settings import struct
from fedjax_sim.core.types import Hints, System
from fedjax_sim.server import ReportMessages, Reports, ServerRate
from fedjax_sim.systems import fedbuff
from fedjax_sim.timelines import ClientQueues, client_queues_within, presets, schedule_client_queues


@struct
class Hyper(ClientQueues, LocalTraining, ServerRate, Reports):
    """Settings of Generalized AsyncSGD: queues, local training, messages, and the server's step."""


paper = presets.preset(Hyper, {**presets.FAVANO, "local_steps": 1})
system = System(
    "gen_async",
    Hyper,
    schedule_client_queues,
    partial(fedbuff.algorithm, can_repeat=False),
    "clients with queues; each finished gradient is a server step, weighted by 1 / (n p_i)",
    messages=ReportMessages(),
    hints=Hints(client_queues_within),
    paper=paper,
)
