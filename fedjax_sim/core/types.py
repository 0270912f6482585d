"""The contract between timelines, systems, problems and the engine.

A simulation has two phases. The *timeline* says when things happen; it is computed first, from a
random key and a delay law, without any model. *Learning* then replays the timeline through an
algorithm with `lax.scan`.

Words: a *tick* is one server action, a *round* a synchronous one, a *local step* one gradient
step, a *slot* the place in a tick where the work of one client is received, and a *lane* one run
of a sweep, that is one pair of settings and seed.

Dimension letters: `N` clients, `S` slots of a tick, `T` ticks, `R` rows of the store of old server
models, `L` lanes, `P` parameters, `B` examples of a mini-batch, `q` numbers of an expected
statistic.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from fedjax_sim.core.clocks import Instant as Instant
from fedjax_sim.core.clocks import Live as Live
from fedjax_sim.core.clocks import Sizes as Sizes
from fedjax_sim.core.events import EMPTY as EMPTY
from fedjax_sim.core.events import Event as Event
from fedjax_sim.core.events import Facts as Facts
from fedjax_sim.core.events import Leaf as Leaf
from fedjax_sim.core.events import PackedRows as PackedRows
from fedjax_sim.core.events import Timeline as Timeline
from fedjax_sim.core.messages import Messages as Messages
from fedjax_sim.core.messages import full_precision_bits as full_precision_bits
from fedjax_sim.core.options import BUDGETS as BUDGETS
from fedjax_sim.core.options import PRECISIONS as PRECISIONS
from fedjax_sim.core.options import Budget as Budget
from fedjax_sim.core.options import Energy as Energy
from fedjax_sim.core.options import Keep as Keep
from fedjax_sim.core.options import Layout as Layout
from fedjax_sim.core.options import Ticks as Ticks
from fedjax_sim.core.options import Time as Time
from fedjax_sim.core.problem import AnyProblem as AnyProblem
from fedjax_sim.core.problem import Array as Array
from fedjax_sim.core.problem import Batch as Batch
from fedjax_sim.core.problem import Extras as Extras
from fedjax_sim.core.problem import Key as Key
from fedjax_sim.core.problem import Keys as Keys
from fedjax_sim.core.problem import LatentProblem as LatentProblem
from fedjax_sim.core.problem import LocalLoss as LocalLoss
from fedjax_sim.core.problem import Losses as Losses
from fedjax_sim.core.problem import Params as Params
from fedjax_sim.core.problem import Problem as Problem
from fedjax_sim.core.problem import Settings as Settings

HyperT = TypeVar("HyperT")
"""A system's settings: a struct made by `fedjax_sim.core.settings.struct`."""
StateT = TypeVar("StateT")
"""State of an algorithm: a pytree."""
InfoT = TypeVar("InfoT")
"""Report of an algorithm on one tick: a NamedTuple of numbers."""


class Plan(NamedTuple):
    """How the machine is used, fixed by the host before compiling.

    Algorithms pass the plan on to the shared parts and do not look inside. What is known of the
    schedule travels with each event, see `fedjax_sim.core.events.Facts`.

    Attributes:
      rows: Rows of the store of old server models: as many as are needed at one time, and one
        scratch row.
      slots_at_once: Slots whose local work runs as one batch. With 1 each slot has its own trip
        count.
      lanes_at_once: Whether lanes are batched by `vmap` (axis name "lane") or run one after
        another.
      client_devices: Devices of the mesh axis "clients", over which the slots of a tick are split.
      family_size: Lanes of one family that are batched by `vmap` (axis name "family"); see
        `fedjax_sim.engine.planning.lanes`.
      static_trips: Whether every slot's loop makes as many trips as the longest slot of any tick
        needs, if that is known, the later ones masked, so that an accelerator need not ask the host
        how often to repeat it.
      narrow: Matrices of parameters with at most so many columns are transposed during local steps.
      live: What a live system's clock never exceeds; None if schedules are planned.
      measures: Numbers to sum over local steps, by name, see `fedjax_sim.clients.with_measures`.
    """

    rows: int = 1
    slots_at_once: int = 1
    lanes_at_once: bool = False
    client_devices: int = 1
    family_size: int = 1
    static_trips: bool = False
    narrow: int = 0
    live: Sizes | None = None
    measures: tuple[tuple[str, Callable[..., Array]], ...] = ()

    def trips(self, facts: Facts) -> int | None:
        """Return the trips of every slot's loop of local steps; None if each tick counts them.

        Args:
          facts: What is known of the event.
        """
        return facts.most_steps if facts.same_steps or self.static_trips else None

    def is_masked(self, facts: Facts) -> bool:
        """Tell whether a slot's loop may make more trips than the slot has steps.

        Args:
          facts: What is known of the event.
        """
        runs_alone = self.slots_at_once == 1 and not self.lanes_at_once and self.family_size == 1
        return not facts.same_steps and (self.trips(facts) is not None or not runs_alone)


class Algorithm(NamedTuple, Generic[StateT, InfoT]):
    """An algorithm bound to a problem, settings and a plan. All functions are pure and traced.

    The `key` of `step` is a key of its tick: what a step draws from it by `jax.random` is new at
    every tick. The shared parts derive from it what is the same at every tick, such as each
    client's order of examples (`fedjax_sim.core.streams.tick_key`).

    A step is called at every tick of the schedule, also where nobody reports: all slots are empty
    then, and models of empty slots are those that they started from. Ticks that only pad a lane to
    the length of others change nothing, whatever a step does.

        def algorithm(problem, hyper, plan):
            train = local_training(problem, hyper, plan)

            def step(key, server, event):
                models, work = train(key, event, start=server)
                return mean_of(event, server, models), work

            return Algorithm(problem.init, step, lambda server: server)

        bound = algorithm(problem, hyper, plan)
        server, work = bound.step(key, bound.init(key), event)
        assert work.needed == 2 + 1  # local steps of the two clients of this tick

    Attributes:
      init: From a key to the initial state.
      step: From key, state and event to the next state and the tick's `Info`, whose fields are
        numbers that the engine sums between two evaluations. A step that changes the clients or the
        steps of its event reports the changed event in the field `event`, as `Work` does.
      model: From a state to the model that is evaluated, sampled and returned.
      metrics: From a state to further metrics, named as those of `Problem.evaluate`.
      client_models: From a state to models that clients hold, leaves `[M, ...]`, and how many
        clients hold each, `[M]`; None if every client holds a server version. Only the opt-in
        metric `client_variance` calls it.
      received: From a state to the model that clients receive of the server's version, for that
        metric; None if they receive the model itself.
      supports: Full names of the settings that it obeys and by which its messages are counted, such
        as those of a `fedjax_sim.server.Wire`, see `Messages.relies_on`.
    """

    init: Callable[[Key], StateT]
    step: Callable[[Key, StateT, Event], tuple[StateT, InfoT]]
    model: Callable[[StateT], Params]
    metrics: Callable[[StateT], Mapping[str, Array]] = lambda state: {}
    client_models: Callable[[StateT], tuple[Params, Array]] | None = None
    received: Callable[[StateT], Params] | None = None
    supports: Collection[str] = ()


class Work(NamedTuple):
    """The `Info` of most systems: evaluations of gradients, or of single examples' statistics.

    Attributes:
      executed: `i32[]`, evaluations that the program ran, masked ones included.
      needed: `i32[]`, evaluations that the algorithm asked for.
      event: The event that was worked on if a step has changed who takes part, how many steps
        they do or with which weight, otherwise (). The schedule that a run returns, and the
        messages and local steps that it counts, are then those that happened.
      seen: What a live clock learns from the tick, such as the losses of its slots: any pytree.
        It is not counted.
      aux: What losses of local steps carried, after the last step of each slot, leaves `[S, ...]`.
        It is not counted.
      measured: Sums of measures over the local steps of each slot, `f[S]` by name, see
        `fedjax_sim.clients.with_measures`; () without measures.
    """

    executed: Array
    needed: Array
    event: Event | tuple[()] = ()
    seen: object = ()
    aux: Params = ()
    measured: Mapping[str, Array] | tuple[()] = ()

    def and_more(self, *others: "Work", times: int = 1) -> "Work":
        """Add further evaluations within the tick.

        Args:
          others: Them.
          times: How often each of the first evaluations counts.

        Returns:
          Their sum.
        """
        executed = times * self.executed + sum(other.executed for other in others)
        needed = times * self.needed + sum(other.needed for other in others)
        return self._replace(executed=executed, needed=needed, seen=())


class Hints(NamedTuple):
    """Estimates that make a run faster and cannot change its result.

    Attributes:
      ticks_within: From the settings and a stretch of virtual time to about how many ticks fit in
        it. It sizes the first request for a timeline, which is doubled until it is long enough.
      step_examples: From the settings to about how many examples one local step of a slot takes.
        The layout on the machine is chosen by it.
    """

    ticks_within: Callable[[Settings, float], Any] = lambda hyper, time: 128
    step_examples: Callable[[Settings], int] = lambda hyper: getattr(hyper, "batch_size", 1)


class Fit(NamedTuple):
    """The problems that a system learns, and settings that follow from the problem.

    Attributes:
      learns: Kind of problem: `Problem` or `LatentProblem`.
      complete: Called on the host before timelines are drawn, with the settings and the problem
        (None if only a schedule is wanted); returns the settings with everything filled in that
        follows from the problem, such as clients' weights. Raises ConfigError if the settings do
        not fit the problem.
    """

    learns: type = Problem
    complete: Callable[[Settings, Any], Settings] = lambda hyper, problem: hyper


class System(NamedTuple, Generic[HyperT, StateT, InfoT]):
    """A federated-learning system, such as those in `fedjax_sim.systems`.

    The first four fields are required; the rest have defaults that suit a system whose clients
    send and receive whole models.

        fields = ("mine", fedavg.Hyper, schedule_cohort_rounds, fedavg.algorithm)
        system = System(*fields, summary="FedAvg, made anew.", messages=ReportMessages())

    Attributes:
      name: Name on the command line and in results.
      Hyper: Class of the settings, made by `fedjax_sim.core.settings.struct`.
      timeline: From the lane's key, the settings and a number of ticks to a timeline. It is traced
        with 64-bit types enabled. The first ticks must not depend on how many are asked for.
      algorithm: From a problem, the settings and a plan to the bound algorithm.
      summary: One line for lists.
      overshoot: Whether a tick that begins before the end of the time budget is completed (servers
        that wait), or whether only ticks that act within the budget count.
      can_repeat: Whether a client may have several slots of a tick. What is written for each client
        would then be written in no fixed order, so that a system must say that it can.
      messages: Bits sent.
      hints: Estimates that size requests and choose layouts.
      fit: Which problems the system learns.
      weigh: From the settings, clients `i32[T, S]` and staleness `i32[T, S]` to the weights of
        slots, `f[T, S]`, if the timeline computes them by this function alone. Settings that
        nothing else of the timeline reads can then be changed and differentiated in a program
        that is bound.
      paper: A function that makes settings with values of a paper, see `timelines.presets`.
      live: How the system makes its events within the step; None if its schedule is planned. The
        timeline of a live system says nothing, see `timelines.live.with_clock`.
    """

    name: str
    Hyper: type[HyperT]
    timeline: Callable[[Key, HyperT, int], Timeline]
    algorithm: Callable[[Any, HyperT, Plan], Algorithm[StateT, InfoT]]
    summary: str = ""
    overshoot: bool = True
    can_repeat: bool = False
    messages: Messages = Messages()
    hints: Hints = Hints()
    fit: Fit = Fit()
    weigh: Callable[[HyperT, Array, Array], Array] | None = None
    paper: Any = None
    live: Live[HyperT] | None = None

    @property
    def system(self) -> "System[HyperT, StateT, InfoT]":
        """The system itself: `NAME.system` works for modules and systems alike."""
        return self
