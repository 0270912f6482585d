"""The contract between timelines, systems, problems and the engine.

A simulation has two phases. The *timeline* says when things happen: it is computed first, from a key and the delay law, with no
model in sight. *Learning* replays the timeline through an algorithm with `lax.scan`.

Dimension letters used throughout: `N` clients, `S` slots of a tick, `T` ticks (server actions), `R` rows of the store of old server
models, `P` parameters, `B` examples of a mini-batch. A *tick* is a server action, a *round* a synchronous one, a *step* one local
gradient step, a *lane* one (setting, seed) pair.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax

Key = jax.Array
Array = jax.Array
Params = Any
"""A pytree of arrays: one model."""
State = Any
Info = Any
Hyper = Any
Settings = Hyper
Leaf = Any
"""An array of a record that lives on the device as a JAX array and on the host as a NumPy one."""

EMPTY = -1
"""The client index of an empty slot. Zero local steps do not make a slot empty: a FAVANO client with none still reports."""


class Timeline(NamedTuple):
    """A schedule of server actions, known before any learning. Times are 64-bit: float32 misorders arrivals.

    A tick of time `inf` never happens (a recorded trace has ended); `nan` means that more ticks must be asked for to know it.
    """

    time: Leaf  # f64[T]     virtual time at which the server acts, non-decreasing
    clients: Leaf  # i32[T, S]  whose work is received in each slot; EMPTY for none
    steps: Leaf  # i32[T, S]  local steps behind it
    version: Leaf  # i32[T, S]  server version the work started from (0: the initial model); staleness = tick - version
    weight: Leaf  # f64[T, S]  multiplier of the slot's progress, as far as the schedule fixes it
    holds: Leaf  # i32[T, S]  server version that the client holds after the tick (its base model)


class Event(NamedTuple):
    """One tick of a timeline as the engine hands it to `Algorithm.step`, with what the host worked out from the whole schedule."""

    tick: Leaf  # i32[]   number of server actions before this one
    clients: Leaf  # i32[S]  as in Timeline
    steps: Leaf  # i32[S]
    version: Leaf  # i32[S]
    weight: Leaf  # f[S]   in 64 bits where these are on
    offset: Leaf  # i32[S]  local steps the client had delivered before these: its place in its own stream of mini-batches
    read: Leaf  # i32[S]  row of the store that holds the server model of `version`
    write: Leaf  # i32[]   row of the store for the server model made by this tick (a scratch row if nobody starts from it)


class Plan(NamedTuple):
    """Static facts that the host read off the timelines before compiling. Systems pass it on and do not look inside."""

    rows: int = 1
    """Rows of the store of old server models: as many as are needed at once, and one scratch row."""
    slots_at_once: int = 1
    """Slots whose local work runs as one batch; 1 gives each slot its own trip count."""
    lanes_at_once: bool = False
    """Whether lanes are batched (`vmap`, axis name "lane") or run one after the other."""
    client_devices: int = 1
    """Devices of the mesh axis "clients" over which the slots of a tick are split."""
    settings_at_once: int = 1
    """Lanes batched together that differ in settings alone (`vmap`, axis name "settings")."""
    reports: bool = True
    """Whether `Algorithm.report` is called; else the store keeps only models that somebody works from."""


class Algorithm(NamedTuple):
    """An algorithm bound to a problem, hyperparameters and a plan; all three functions are pure and run inside the trace.

    `key` is the lane's learning key, the same at every tick: derive streams from it by `fold_in` of tick, slot, client or step.
    A tick whose slots are all empty must change nothing but the scratch row: lanes are padded by such. The fields of `Info` are numbers,
    and are summed between evaluations.
    """

    init: Callable[[Key], State]
    step: Callable[[Key, State, Event], tuple[State, Info]]
    model: Callable[[State], Params]
    """What is evaluated, sampled or reported."""
    report: Callable[[State, Array], Mapping[str, Array]] = lambda state, holders: {}
    """Metrics of the state itself. holders: `i32[R]`, how many clients' base model stands in each row of the store."""


class Work(NamedTuple):
    """The Info of systems whose clients evaluate gradients of mini-batches, or expected statistics of single examples."""

    executed: Array  # i32[]  evaluations the program ran, masked ones included
    needed: Array  # i32[]  evaluations the algorithm asked for


@runtime_checkable
class Problem(Protocol):
    """What is learnt: data on the client axis plus a loss. A frozen struct whose arrays are pytree leaves, never closed over."""

    @property
    def counts(self) -> Array:
        """`i32[N]`, true number of examples of each client (padding left out)."""

    def init(self, key: Key) -> Params:
        """Draw initial parameters."""

    def loss(self, params: Params, client: Array, examples: Array, key: Key) -> Array:
        """Mean loss of a client's examples; differentiated by local steps.

        client: `i32[]`. examples: `i32[B]`, positions below `counts[client]`. key: for noise or augmentation. Returns `f[]`.
        """

    def evaluate(self, params: Params) -> Mapping[str, Array]:
        """Metrics of a model, each a scalar."""


class ExactProblem(Problem, Protocol):
    """A problem that also has a client's loss as a whole, for systems that can do without mini-batches."""

    def client_loss(self, params: Params, client: Array, key: Key) -> Array:
        """Mean loss of all of a client's examples."""


class ClientLosses(Protocol):
    """A client's losses by themselves, as `Problem` and `ExactProblem` have them of all; `client` does not matter."""

    def loss(self, params: Params, client: Array, examples: Array, key: Key) -> Array:
        """Mean loss of some of the client's examples."""

    def client_loss(self, params: Params, client: Array, key: Key) -> Array:
        """Mean loss of all of them; only if the problem has it."""


class SeparableProblem(Problem, Protocol):
    """A problem that may, but need not, hand out a client's losses, which spares each of many tiny local steps to look its data up."""

    def alone(self, client: Array) -> ClientLosses:
        """The losses of client `i32[]`, with the values that the problem gives for it."""


@runtime_checkable
class LatentProblem(Protocol):
    """What is learnt by expectation maximisation: data on the client axis plus a latent-variable model of an exponential family.

    Expected statistics and natural parameters are vectors of q numbers, s and phi(theta) in p(y, z; theta) = rho(y, z)
    exp(<s(y, z), phi(theta)> - psi(theta)). The E-step of an example depends on theta through phi alone.
    """

    @property
    def counts(self) -> Array:
        """`i32[N]`, true number of examples of each client (padding left out)."""

    def init(self, key: Key) -> Array:
        """Draw initial expected statistics: `f[q]`."""

    def maximise(self, statistics: Array) -> Params:
        """The M-step T: parameters that maximise the penalised complete-data likelihood with statistics `f[q]`."""

    def natural(self, params: Params) -> Array:
        """phi(theta): `f[q]`."""

    def statistics(self, natural: Array, client: Array, examples: Array, weight: Array) -> Array:
        """The E-step: the weighted sum of the expected statistics of a client's examples.

        natural: `f[q]`. client: `i32[]`. examples: `i32[B]`, positions below `counts[client]`. weight: `f[B]`. Returns `f[q]`.
        """

    def client_statistics(self, natural: Array) -> Array:
        """The mean expected statistics of every client's examples: `f[N, q]`."""

    def evaluate(self, statistics: Array) -> Mapping[str, Array]:
        """Metrics of a server's statistics `f[q]`, each a scalar."""


AnyProblem = Problem | LatentProblem


class LatentModel(Protocol):
    """A latent-variable model without data: the mathematics behind a `LatentProblem`, whose letters and vectors it shares.

    A frozen struct; arrays that it holds are leaves. Examples are pytrees of leaves `[B, ...]`, weights `f[B]`.
    """

    def with_data(self, examples: Any, weight: Array) -> "LatentModel":
        """Take in what the server must know of all data before it learns; weights sum to 1."""

    def initial(self, key: Key, examples: Any, weight: Array) -> Array:
        """Draw natural parameters to start from, given all data: `f[q]`."""

    def maximise(self, statistics: Array) -> Params:
        """The M-step."""

    def natural(self, params: Params) -> Array:
        """phi(theta): `f[q]`."""

    def statistics(self, natural: Array, examples: Any, weight: Array) -> Array:
        """The weighted sum of expected statistics: `f[q]`."""

    def loss(self, params: Params, examples: Any) -> Array:
        """-log p(y; theta) of every example, up to a constant: `f[B]`."""

    def penalty(self, params: Params) -> Array:
        """R(theta)."""

    def metrics(self, statistics: Array, params: Params) -> Mapping[str, Array]:
        """What else is worth watching, each a scalar."""


class System(NamedTuple):
    """What a file in `systems/` exports, and what the command line lists."""

    name: str
    summary: str
    Hyper: type
    timeline: Callable[[Key, Settings, int], Timeline]
    """Called with the lane's key, inside the trace, with 64-bit types on; the first ticks do not depend on how many are asked for."""
    algorithm: Callable[[Any, Settings, Plan], Algorithm]
    """Called with a problem of the kind `learns`."""
    ticks_within: Callable[[Settings, float], float]
    """About how many ticks fit in a stretch of virtual time: only to size the first request for a timeline."""
    overshoot: bool = True
    """Whether a tick that begins before the end of the time budget is run to its end (waiting servers), or must act within it."""
    message_bits: Callable[[Params, Settings], tuple[int, int]] = lambda params, hyper: (
        (full_precision_bits(params),) * 2
    )
    """Bits of one client's message to the server and of the server's to one client; `params` holds shapes and dtypes."""
    traffic: Callable[[Any, Settings, Timeline], tuple[Leaf, Leaf]] | None = None
    """Bits sent up and down at each tick, `i64[T]` each, given the problem, settings and one lane's schedule: where not every filled slot
    is a message each way, all of one length."""
    learns: type = Problem
    """The kind of problem: this module's `Problem` or `LatentProblem`."""
    complete: Callable[[Settings, Any], Settings] = lambda hyper, problem: hyper
    """Fills in settings that follow from the problem (clients' weights), on the host, before timelines are drawn. Raises ConfigError if
    the two do not fit. None: only a schedule is wanted."""
    step_examples: Callable[[Settings], int] = lambda hyper: getattr(hyper, "batch_size", 1)
    """About how many examples a slot's local step takes, by which the layout on the machine is chosen."""
    keeps_versions: bool = True
    """Whether the state holds a store of old server models, for whose rows the schedule is searched."""


class Model(Protocol):
    """Anything with `init` and `apply`, such as a flax module: parameters and logits.

    If its calls (a flax module's `__call__`, else `apply`) take `train`, local steps pass `train=True` and `rngs`, keys by stream.
    """

    def init(self, key: Key, x: Array, /) -> Any: ...
    def apply(self, params: Params, x: Array, /) -> Any: ...


def full_precision_bits(params: Params) -> int:
    """Bits of a model sent as it is; params may be arrays or `ShapeDtypeStruct`s."""
    return sum(8 * leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(params))
