"""Rounds of a server that samples clients, may ask for more than it needs, and may lose some.

The settings are those of FedAvg (McMahan et al. 2017, arXiv 1602.05629, Algorithm 1), with
over-selection, deadlines and lost reports (`drop_rate`) as in Bonawitz et al. (2019, arXiv
1902.01046, Sec. 2.2).
With the defaults a round is that of `schedule_rounds`, with the same random numbers.

Dimension letters: `N` clients, `T` ticks (a tick is a round), `A` clients asked in a round, `S`
slots of a tick, that is reports that the server uses.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.checking import Above0, Count, checked
from fedjax_sim.settings import (
    Checked,
    ConfigError,
    choice,
    count,
    filled,
    fixed,
    group,
    real,
    struct,
    switch,
    value_of,
)
from fedjax_sim.streams import stream
from fedjax_sim.timelines.cohorts import (
    Draws,
    draw_by_share,
    draw_cohorts,
    draw_poisson_cohorts,
    draw_with_replacement,
)
from fedjax_sim.timelines.delays.devices import draw_devices, is_lost, times_in_rounds
from fedjax_sim.timelines.presets import FAVANO, preset
from fedjax_sim.timelines.rounds.synchronous import RoundClock, Rounds, draw_work_times
from fedjax_sim.types import (
    EMPTY,
    Algorithm,
    Array,
    Fit,
    Hints,
    Key,
    Messages,
    Plan,
    System,
    Timeline,
)


@struct
class CohortClock(RoundClock):
    """Settings of the time that a round takes whose reports may be late."""

    num_asked: int = count(
        0,
        "Clients that are asked to take part in a round, of which the first `num_selected` reports "
        "are used; 0 asks `num_selected`.",
        least=0,
    )
    deadline: float = real(
        0.0,
        "Longest time that a round waits for reports, in units of virtual time; 0 for no limit.",
        least=0,
        simpler_at=(0.0,),
    )


@struct
class Cohort(Checked):
    """Settings of who is asked in a round, and of what the reports weigh."""

    weighting: str = choice(
        "equal",
        ("equal", "examples"),
        "Weights of the clients whose reports are used: equal, or in proportion to their numbers "
        "of examples.",
    )
    selection: str = choice(
        "uniform",
        ("uniform", "by_examples", "poisson"),
        'Who is asked. "uniform": a uniform set of clients. "by_examples": chances in proportion '
        'to numbers of examples. "poisson": each client independently with probability S / N, S '
        "being `num_selected`, and all weights are 1 / S.",
    )
    with_replacement: bool = switch(
        False,
        "Whether a client may be drawn several times in a round. It works once, and its weight is "
        "counted as often as it was drawn.",
    )


@struct
class CohortRounds(Rounds):
    """Settings of rounds of sampled clients.

    With `selection="by_examples"`, `with_replacement` and equal weights, the mean of the reports
    is an unbiased estimate of the mean over all clients weighted by their examples.
    """

    local_epochs: float = real(
        0.0,
        "Passes over its m examples that a client makes in a round, E, instead of `local_steps`: "
        "ceil(E m / batch_size) steps. 0 for the same number of steps for all clients.",
        least=0,
    )
    cohort: Cohort = group(Cohort(), "who is asked, and what the reports weigh")
    clock: CohortClock = group(CohortClock(), "how long a round takes")
    # Filled in by `completed`: whether rounds last for epochs, and the clients' numbers of
    # examples, `f64[N]`, if something depends on them.
    has_epochs: bool = fixed(False)
    examples: Any = filled()

    def check_cohort(self) -> None:
        """Check the sizes of the cohort.

        Raises:
          ConfigError: If fewer are asked than are needed, or more than there are.
        """
        if self.cohort.selection == "poisson":
            for name, only in (
                ("cohort.weighting", "equal"),
                ("cohort.with_replacement", False),
                ("clock.num_asked", 0),
            ):
                if value_of(self, name) != only:
                    allowed = f'{only!r} with selection = "poisson"'
                    raise ConfigError(name, value_of(self, name), allowed)
        if not self.cohort.with_replacement:
            super().check_cohort()
            if self.clock.num_asked > self.num_clients:
                allowed = f"at most num_clients = {self.num_clients}"
                raise ConfigError("clock.num_asked", self.clock.num_asked, allowed)
        if 0 < self.clock.num_asked < self.num_selected:
            allowed = f"0, or at least num_selected = {self.num_selected}"
            raise ConfigError("clock.num_asked", self.clock.num_asked, allowed)

    def completed(self, problem: Any) -> Any:
        """Fill in the clients' numbers of examples, if something depends on them.

        Args:
          problem: What is learnt. Without one, None, all clients have equally many examples.

        Returns:
          The settings with what was missing.

        Raises:
          ConfigError: If rounds last for epochs and there is no problem, or if the settings do not
            fit the problem.
        """
        hyper = cast(Any, super().completed(problem))
        has_epochs = bool(self.local_epochs > 0)
        if (
            self.cohort.weighting == "equal"
            and self.cohort.selection != "by_examples"
            and not has_epochs
        ):
            return hyper
        if problem is None and has_epochs:
            allowed = "0 for a schedule without a problem, which says how many examples there are"
            raise ConfigError("local_epochs", self.local_epochs, allowed)
        counts = np.ones(self.num_clients) if problem is None else np.asarray(problem.counts, float)
        return hyper.replace(examples=counts, has_epochs=has_epochs)

    def shares(self, counts: Array) -> Array:
        """Compute the clients' weights in the objective, `f[N]` of sum 1, from their examples."""
        share = counts if self.cohort.weighting == "examples" else jnp.ones_like(counts)
        return share / share.sum()


HyperT = TypeVar("HyperT", bound=CohortRounds)


@checked
def rounds_within(hyper: Any, time: Above0) -> Any:
    """Estimate how many rounds fit in a stretch of time: those of fast clients, of mean length.

    With a recorded trace these are rounds of its mean work.

    Args:
      time: Units of virtual time.
    """
    if hyper.delays.trace is None:
        work = hyper.times_per_update / hyper.delays.largest_rate
    else:
        work = (hyper.delays.trace.finish - hyper.delays.trace.start).mean()
    # Work of a trace may take no time.
    return time / np.maximum(hyper.clock.server_interact + work, 1e-200)


@checked
def cohort_system(
    name: str,
    hyper: type[HyperT],
    algorithm: Callable[[Any, HyperT, Plan], Algorithm[Any, Any]],
    summary: str,
    *,
    messages: Messages = Messages(),
) -> System[HyperT, Any, Any]:
    """Combine an algorithm with rounds of sampled clients; `paper` is FAVANO's comparison.

    Args:
      name: Name on the command line.
      hyper: Class of the settings.
      algorithm: As in `System`.
      summary: As in `System`.
      messages: As in `System`.

    Returns:
      The system.
    """
    return System(
        name,
        hyper,
        schedule_cohort_rounds,
        algorithm,
        summary,
        messages=messages,
        hints=Hints(rounds_within),
        paper=preset(hyper, FAVANO),
        fit=Fit(complete=lambda hyper, problem: hyper.completed(problem)),
    )


@checked
def schedule_cohort_rounds(key: Key, hyper: Any, num_ticks: Count) -> Timeline:
    """Schedule rounds of sampled clients.

    A round ends when `num_selected` reports are in, or when nobody is left to wait for, or at the
    deadline. A report that is lost is waited for until it should have come. Reports that are not
    used leave no trace in the timeline, nor in the local steps and bits that are counted. The first
    rounds do not depend on `num_ticks`.

    Args:
      hyper: Settings of `CohortRounds`; completed if needed, and with a `batch_size`.
      num_ticks: Number of rounds T.

    Returns:
      A timeline whose weights sum to 1 in every round in which somebody reports; under Poisson
      sampling they are all 1 / S.
    """
    num_asked = hyper.clock.num_asked or hyper.num_selected
    asked = _draw_asked(stream(key, "cohorts"), hyper, num_asked, num_ticks)
    steps = _steps_of(asked.clients, hyper)
    work_time = draw_work_times(key, asked.clients, hyper, steps if hyper.has_epochs else None)
    devices = draw_devices(key, hyper)
    # In an empty cohort of Poisson sampling a client stands in that does nothing.
    has_work = asked.times > 0
    working = jnp.where(has_work, asked.clients, EMPTY)
    version = jnp.broadcast_to(jnp.arange(num_ticks)[:, None], asked.clients.shape)
    is_lost_here = is_lost(devices, jnp.maximum(asked.clients, 0), version) & has_work
    is_asked = asked.clients != EMPTY
    limit = jnp.where(hyper.clock.deadline > 0, hyper.clock.deadline, jnp.inf)
    # All reports of a Poisson cohort are used, however many they are, and so all are waited for.
    is_poisson = hyper.cohort.selection == "poisson"
    num_awaited = asked.clients.shape[1] if is_poisson else hyper.num_selected

    def arrivals(taken: Array, is_asked: Array, is_lost_here: Array) -> Array:
        """Compute when reports are in, infinite for those that never are: `f64[..., A]`."""
        return jnp.where(is_asked & ~is_lost_here, taken, jnp.inf)

    def length(taken: Array, is_asked: Array, is_lost_here: Array) -> Array:
        """Compute how long a round lasts, `f64[...]`."""
        first = jnp.sort(arrivals(taken, is_asked, is_lost_here))[..., :num_awaited]
        is_in = jnp.isfinite(first) & (first <= limit)
        last = jnp.where(is_in, first, 0).max(axis=-1)
        is_whole = is_in.sum(axis=-1) >= jnp.minimum(is_asked.sum(axis=-1), num_awaited)
        # A loss is known when the report should have come.
        known = jnp.maximum(last, jnp.where(is_lost_here, taken, 0).max(axis=-1))
        until = jnp.where(hyper.clock.deadline > 0, hyper.clock.deadline, known)
        return hyper.clock.server_interact + jnp.where(is_whole, last, until)

    facts = is_asked, is_lost_here
    taken = times_in_rounds(devices, working, work_time, length, *facts)
    time, arrival = jnp.cumsum(length(taken, *facts)), arrivals(taken, *facts)
    steps = jnp.where(has_work, steps, 0)
    if num_asked > hyper.num_selected:
        first = jnp.argsort(arrival, axis=1, stable=True)[:, : hyper.num_selected]
        asked, steps, arrival, version = jax.tree.map(
            lambda leaf: jnp.take_along_axis(leaf, first, axis=1), (asked, steps, arrival, version)
        )
    is_in = jnp.isfinite(arrival) & (arrival <= limit)
    clients, times = asked
    share = jnp.where(is_in, times, 0).astype(arrival.dtype)
    if hyper.cohort.weighting == "examples" and hyper.examples is not None:
        share = share * hyper.examples[clients]
    total = jnp.maximum(share.sum(axis=1, keepdims=True), jnp.finfo(share.dtype).tiny)
    return Timeline(
        time=time,
        clients=jnp.where(is_in, clients, EMPTY),
        steps=jnp.where(is_in, steps, 0),
        version=version,
        weight=share / (hyper.num_selected if hyper.cohort.selection == "poisson" else total),
        holds=version,
    )


def _draw_asked(key: Key, hyper: CohortRounds, num: int, num_ticks: int) -> Draws:
    """Draw the clients that are asked, and how often each was drawn: `[T, A]`."""
    if hyper.cohort.selection == "poisson":
        cohort, is_member = draw_poisson_cohorts(key, hyper.num_clients, num, num_ticks)
        return Draws(cohort, is_member.astype(cohort.dtype))
    if hyper.cohort.selection == "uniform" and not hyper.cohort.with_replacement:
        clients = draw_cohorts(key, hyper.num_clients, num, num_ticks)
        return Draws(clients, jnp.ones_like(clients))
    share = jnp.ones(hyper.num_clients)
    if hyper.cohort.selection == "by_examples" and hyper.examples is not None:
        share = hyper.examples
    if hyper.cohort.with_replacement:
        return draw_with_replacement(key, share, num, num_ticks)
    clients = draw_by_share(key, share, num, num_ticks)
    return Draws(clients, jnp.ones_like(clients))


def _steps_of(clients: Array, hyper: Any) -> Array:
    """Compute the local steps of each slot's client: `i[T, A]`."""
    steps = jnp.full(clients.shape, hyper.local_steps)
    if not hyper.has_epochs:
        return steps
    # A quotient that is a whole number must not become the next one by rounding.
    quotient = hyper.local_epochs * hyper.examples / hyper.batch_size
    return jnp.ceil(quotient - 1e-9).astype(steps.dtype)[clients]
