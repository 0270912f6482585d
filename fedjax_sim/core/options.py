"""Options of a run: its length, the optional results, and the layout on the machine."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from fedjax_sim.core.settings import Above0, Count, checked


class _Length:
    """The common part of budgets, dataclasses with the length as the first field."""

    @property
    def named(self) -> tuple[str, float]:
        """Name and value of the length."""
        return next(iter(vars(self).items()))


@checked
@dataclasses.dataclass(frozen=True)
class Ticks(_Length):
    """A run that lasts a number of server actions.

    Attributes:
      num_ticks: The number.
    """

    num_ticks: Count


@checked
@dataclasses.dataclass(frozen=True)
class Time(_Length):
    """A run that lasts a stretch of virtual time.

    Attributes:
      time_budget: Its length, in the units of the schedule.
      most_ticks: Largest number of ticks, for live systems, whose ticks cannot be counted before.
        A lane that reaches it ends early. None for four times the system's estimate.
    """

    time_budget: Above0
    most_ticks: Count | None = None


@checked
@dataclasses.dataclass(frozen=True)
class Energy(_Length):
    """A run that lasts as long as its clients' energy, which their `client_table` counts.

    Attributes:
      energy_budget: What the work that the server receives may take, with its messages, of all
        clients together, in the table's unit. A tick that would exceed it does not happen; for live
        systems, by more than a millionth. A run also ends with its trace.
      most_ticks: Largest number of ticks, which live systems need and others refuse. A lane that
        reaches it ends before its energy is used. Evaluations are spread over so many ticks.
    """

    energy_budget: Above0
    most_ticks: Count | None = None


Budget = Ticks | Time | Energy
"""How long a run lasts."""
BUDGETS = ("num_ticks", "time_budget", "energy_budget")
"""Names of the lengths."""


@checked
@dataclasses.dataclass(frozen=True, kw_only=True)
class Keep:
    """Results of a run that are only kept on request.

        keep = fedjax_sim.Keep(models=True)
        budget = fedjax_sim.Ticks(20)
        run = fedjax_sim.simulate(fedavg.system, problem, hyper, budget=budget, keep=keep)
        print(run.samples.shape)  # the models of all evaluations, the initial one first

    Attributes:
      models: Whether the model of every evaluation is kept in host memory (a sampler's samples).
      client_variance: Whether `client_variance` is measured, the sum of squared distances of the
        models that clients hold to the server's. Every server version that a client holds at a
        later evaluation then stays in memory, see `fedjax_sim.engine.planning.schedule`.
      measures: Numbers of each local step that become curves, such as `("drift", "gradient_norm")`:
        names, or functions by name, see `fedjax_sim.clients.with_measures`.
      output: The model that is evaluated, kept and returned: the server's, or "mean", the mean
        mu_t of the server's and all clients' models, which FAVANO's Theorem 1 bounds
        (arXiv 2305.16099). The mean measures `client_variance` too and takes the same memory.
    """

    models: bool = False
    client_variance: bool = False
    measures: Mapping[str, Callable[..., Any]] | Sequence[str] = ()
    output: Literal["server", "mean"] = "server"

    @property
    def of_clients(self) -> tuple[str, object] | None:
        """Name and value of a field for which the models that clients hold must be known."""
        if self.output == "mean":
            return "output", self.output
        return ("client_variance", True) if self.client_variance else None


PRECISIONS = ("float32", "tensorfloat32", "bfloat16")
"""Precisions of matrix products on accelerators; CPUs always compute in the type of the arrays."""


@checked
class Layout(NamedTuple):
    """How lanes and slots are laid out; None leaves a choice to a measured rule.

    With `lanes_at_once` given, lanes that differ only in numeric settings are not batched as
    families either, so that a lane's bits do not depend on which other lanes run.

        in_turn = fedjax_sim.Layout(slots_at_once=1)  # the model of one client at a time
        run = fedjax_sim.simulate(
            fedavg.system, problem, hyper, budget=fedjax_sim.Ticks(20), layout=in_turn
        )

    Attributes:
      slots_at_once: Slots of a tick that are batched; 1 runs each alone, with its own steps.
      lanes_at_once: Whether the lanes on a device are batched, or run one after another.
      lane_devices: Devices over which lanes are split.
      client_devices: Devices over which the slots of each tick are split.
      lane_batches: Batches into which a device's lanes are sorted by their work, if they are
        batched. Lanes that go on take the places of those that were stopped in other batches.
      packed: Whether the slots of a tick, of all lanes that are batched together, are laid end to
        end in rows of equal steps (`fedjax_sim.clients.packing`); by default on GPUs, if slots
        differ enough in their steps.
      max_lanes: Largest number of lanes in memory at one time; by default as many as fit.
      evals_per_chunk: Evaluations between two returns to the host. By default all; 1 if the run
        is watched; with checkpoints as many ticks as take five to ten seconds.
      window: Bytes of examples in memory where these lie in files (`datasets.stored`): two windows,
        of what a stretch of ticks reads and of what the next one will. By default half of the free
        memory; if all examples fit, they are read once.
    """

    slots_at_once: Count | None = None
    lanes_at_once: bool | None = None
    lane_devices: Count | None = None
    client_devices: Count | None = None
    lane_batches: Count | None = None
    packed: bool | None = None
    max_lanes: Count | None = None
    evals_per_chunk: Count | None = None
    window: Count | None = None

    def deciding(self) -> dict[str, int | bool | None]:
        """Return the fields that may decide the bits of results, by name.

        Neither `max_lanes` nor `window` does.
        """
        free = ("max_lanes", "window")
        return {name: value for name, value in self._asdict().items() if name not in free}
