"""The server's own update, with which rules such as FLTrust compare the messages of a tick.

The server has root data: examples of the problem, drawn uniformly without replacement among all
clients' examples, or among those of some. They stay the same in a run and differ between seeds. So
any problem will do as it is, and no client has to be set apart, whose data would be of one kind
where clients' data differ.

Deviation: clients keep these examples as well. In the public demonstration of Cao et al. (2021,
arXiv 2012.13995) the server's examples are taken from the training data before clients get theirs.
Here a problem's clients are the same whatever the rule is, so that rules are compared on the same
data.

In every tick the server trains on the root data as clients do: with their batch size, optimizer and
rate, from the model that a client would receive now, with as many local steps as the longest update
of the tick. Updates of asynchronous clients have begun at older models, and are compared with the
one that begins now; but FedAT then moves from its tier's older model. In each tick the root data
are shuffled anew, and the optimizer's state begins anew, also where clients keep theirs. If the
loss is noisy, the noise of each root example is drawn apart, so that the mean over a batch is less
noisy than a client's. In FedNova, messages are scaled to the effective number of steps, and the
server's update is not.

Its steps are counted among those that are executed and needed, as the work of one more slot. They
are not counted in `local_steps`, which are the clients'. Where the slots of a tick run on several
devices, each device does the server's steps. They run in a second loop, after which an accelerator
has launched about twice as many kernels as for the clients' steps alone.

Dimension letters: those of `fedjax_sim.core.types`; `M` root examples.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.clients import Train
from fedjax_sim.core.settings import ConfigError
from fedjax_sim.core.streams import lane_stream, shuffle_bits, shuffled_index
from fedjax_sim.core.types import Array, Event, Facts, Key, Losses, Params, Plan, Work
from fedjax_sim.server.rules import Rule

Training = Callable[[Any, Any, Plan], Train]
"""From a problem, the settings and a plan to the local training of the system's clients."""


class RootData(NamedTuple):
    """Examples of some clients, as the data of one client.

    Attributes:
      problem: The problem.
      clients: `i32[M]`, whose examples they are.
      examples: `i32[M]`, their positions.
      counts: `i32[1]`, how many of them there are.
    """

    problem: Losses
    clients: Array
    examples: Array
    counts: Array

    def loss(self, params: Params, client: Array, examples: Array, key: Key) -> Array:
        """Compute the mean of the losses of single examples, each with another key.

        Args:
          params: The model, leaves `[...]`.
          client: Ignored.
          examples: `i32[B]`, which of the root examples.
          key: For noise or augmentation.

        Returns:
          `f[]`.
        """

        def of_one(example: Array, place: Array) -> Array:
            own = jax.random.fold_in(key, place)
            position = self.examples[example][None]
            return self.problem.loss(params, self.clients[example], position, own)

        return jax.vmap(of_one)(examples, jnp.arange(examples.shape[0])).mean()


def draw_root(problem: Losses, key: Key, rule: Rule) -> RootData:
    """Draw the root data.

    Args:
      problem: What is learnt.
      key: The lane's learning key.
      rule: The rule, whose settings say how many examples of whom they are.

    Returns:
      The root data; fewer examples than the rule asks for if there are no more.

    Raises:
      ConfigError: If alternatives of the rule ask for different ones, or for clients that there are
        not.
    """
    root: Any = rule.roots()[0]
    if len({(each.examples, each.owners) for each in rule.roots()}) > 1:  # type: ignore[attr-defined]
        allowed = "rules that all have the same root data, as the server trains once"
        raise ConfigError("aggregator", " | ".join(map(str, rule.roots())), allowed)
    num_clients = problem.counts.shape[0]
    if max(root.owners, default=0) >= num_clients:
        raise ConfigError("owners", root.owners, f"of clients from 0 to {num_clients - 1}")
    owners = jnp.asarray(np.array(root.owners or range(num_clients), "int32"))
    counts = problem.counts[owners]
    ends = jnp.cumsum(counts)
    # Places among all examples of these clients, one client's after the other's.
    numbers = jnp.minimum(jnp.arange(root.examples, dtype="int32"), ends[-1] - 1)
    places = shuffled_index(shuffle_bits(lane_stream(key, "root data")), numbers, ends[-1])
    row = jnp.searchsorted(ends, places, side="right", method="scan_unrolled")
    first = (ends - counts)[row]
    size = jnp.minimum(root.examples, ends[-1])[None].astype("int32")
    return RootData(problem, owners[row], (places - first).astype("int32"), size)


def own_update(
    problem: Losses,
    hyper: Any,
    plan: Plan,
    training: Training,
    key: Key,
    event: Event,
    *,
    rule: Rule,
    start: Params,
) -> tuple[Params, Work]:
    """Train on the root data for a tick.

    Args:
      problem: What is learnt.
      hyper: The system's settings.
      training: How the system's clients train.
      key: The lane's learning key.
      event: The tick.
      rule: The rule. Nothing is trained where it is one of several, and needs no such update.
      start: The model to start from, leaves `[...]`.

    Returns:
      The progress, leaves `[...]`, 0 in an empty tick; and the work.
    """
    facts, is_needed = event.facts, rule.needs_own()
    longest = jnp.asarray(event.steps).max()
    is_even = facts.same_steps and is_needed is True
    inner = Facts(
        is_inner=True,
        all_filled=facts.all_filled and is_even,
        most_steps=facts.most_steps,
        same_steps=is_even,
    )
    steps = jnp.where(is_needed, longest, 0)[None]
    none = jnp.zeros(1, "int32")
    now = event.tick[None]
    slot = event.within(facts=inner, clients=none, steps=steps, offset=none, version=now)
    alone = plan._replace(slots_at_once=1, client_devices=1)
    train = training(draw_root(problem, key, rule), hyper, alone)
    # How many steps the ticks before this one had is not known here, as it depends on the layout.
    own_key = jax.random.fold_in(lane_stream(key, "own update"), event.tick)
    reached, work = train(own_key, slot, start=start)
    return jax.tree.map(lambda y, x: y[0] - x, reached, start), work
