"""Rounds of a server that samples clients, may ask for more than it needs, and may lose some.

The settings are those of FedAvg (McMahan et al. 2017, arXiv 1602.05629, Algorithm 1), with
over-selection, deadlines and lost reports (`drop_rate`) as in Bonawitz et al. (2019, arXiv
1902.01046, Sec. 2.2).
With the defaults the server waits for everyone of a uniform cohort.

Dimension letters: `N` clients, `T` ticks (a tick is a round), `A` clients asked in a round, `S`
slots of a tick, that is reports that the server uses.
"""

from collections.abc import Callable
from typing import Any, Literal, TypeVar, cast

import jax.numpy as jnp
import numpy as np

from fedjax_sim.core import settings, streams, types
from fedjax_sim.core.checking import AtLeast0, Count, checked
from fedjax_sim.core.settings import Checked, ConfigError, fixed, setting, struct
from fedjax_sim.core.types import Algorithm
from fedjax_sim.timelines import cohorts, presets
from fedjax_sim.timelines.cohorts import Draws
from fedjax_sim.timelines.delays.laws import Clients
from fedjax_sim.timelines.rounds import synchronous
from fedjax_sim.timelines.rounds.synchronous import CohortClock


@struct
class Cohort(Checked):
    """Settings of the choice of clients in a round, and of the weights of reports.

    They are a group of the settings of FedAvg, for example.

        by_size = Cohort(selection="by_examples", with_replacement=True)
        hyper = fedavg.Hyper(num_selected=5, cohort=by_size)
    """

    weighting: cohorts.Weighting = cohorts.client_weighting("the mean of the reports that are used")
    selection: Literal["uniform", "by_examples", "poisson"] = setting(
        "uniform",
        'Who is asked. "uniform": a uniform set of clients. "by_examples": chances in proportion '
        'to numbers of examples. "poisson": each client independently with probability S / N, S '
        "being `num_selected`, and all weights are 1 / S.",
    )
    with_replacement: bool = setting(
        False,
        "Whether a client may be drawn several times in a round. It works once, and its weight is "
        "counted as often as it was drawn.",
    )


@struct
class CohortRounds(Clients):
    """Settings of rounds of sampled clients.

    With `selection="by_examples"`, `with_replacement` and equal weights, the mean of the reports
    is an unbiased estimate of the mean over all clients weighted by their examples.

        hyper = CohortRounds(num_selected=2, weighting="examples")
        assert hyper.shares(jnp.array([1.0, 3.0])).tolist() == [1 / 4, 3 / 4]
    """

    local_epochs: AtLeast0 = setting(
        0.0,
        "Passes over its m examples that a client makes in a round, E, instead of `local_steps`: "
        "ceil(E m / batch_size) steps. 0 for the same number of steps for all clients.",
    )
    num_selected: Count = setting(10, "Size of the cohort, S.")
    cohort: Cohort = settings.group(Cohort(), "who is asked, and what the reports weigh")
    clock: CohortClock = settings.group(CohortClock(), "how long a round takes")
    # Filled in by `completed`: whether rounds last for epochs, and the clients' numbers of
    # examples, `f64[N]`, if something depends on them.
    has_epochs: bool = fixed(False)
    examples: Any = settings.filled()

    def check_together(self) -> None:
        """Check combinations of settings.

        Raises:
          ConfigError: If fewer are asked than are needed, or more than there are, or if a trace
            lacks rows of some client.
        """
        super().check_together()
        if self.cohort.selection == "poisson":
            values = {"cohort.weighting": "equal", "cohort.with_replacement": False}
            settings.check_left(self, values | {"clock.num_asked": 0}, 'with selection = "poisson"')
        are_distinct = not self.cohort.with_replacement
        synchronous.check_clients(self, are_distinct=are_distinct)
        if are_distinct and self.clock.num_asked > self.num_clients:
            allowed = f"at most num_clients = {self.num_clients}"
            raise ConfigError("clock.num_asked", self.clock.num_asked, allowed)
        if 0 < self.clock.num_asked < self.num_selected:
            allowed = f"0, or at least num_selected = {self.num_selected}"
            raise ConfigError("clock.num_asked", self.clock.num_asked, allowed)

    def decided(self) -> dict[str, str]:
        """Settings without effect by name, with words for their replacements."""
        found = super().decided() | self.delays.decided_by_trace("clock.round_time")
        # The privacy of single examples bounds updates by local_steps in any case.
        is_bound = getattr(getattr(self, "privacy", None), "name", "") == "examples"
        if np.all(np.asarray(self.local_epochs) > 0) and not is_bound:
            found["local_steps"] = "local_epochs"
        return found

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
        hyper, cohort = cast(Any, super().completed(problem)), self.cohort
        has_epochs = bool(self.local_epochs > 0)
        needs_examples = cohort.weighting != "equal" or cohort.selection == "by_examples"
        if not needs_examples and not has_epochs:
            return hyper
        if problem is None and has_epochs:
            allowed = "0 for a schedule without a problem, which says how many examples there are"
            raise ConfigError("local_epochs", self.local_epochs, allowed)
        counts = np.ones(self.num_clients) if problem is None else np.asarray(problem.counts, float)
        return hyper.replace(examples=counts, has_epochs=has_epochs)

    def shares(self, counts: types.Array) -> types.Array:
        """Compute the clients' weights in the objective, `f[N]` of sum 1, from their examples."""
        share = counts if self.cohort.weighting == "examples" else jnp.ones_like(counts)
        return share / share.sum()


HyperT = TypeVar("HyperT", bound=CohortRounds)


@checked
def cohort_system(
    name: str,
    hyper: type[HyperT],
    algorithm: Callable[[Any, HyperT, types.Plan], Algorithm[Any, Any]],
    summary: str,
    *,
    messages: types.Messages = types.Messages(),
) -> types.System[HyperT, Any, Any]:
    """Combine an algorithm with rounds of sampled clients; `paper` is FAVANO's comparison.

    `algorithm`, `summary` and `messages` are those of `System`.

        system = cohort_system("mine", fedavg.Hyper, fedavg.algorithm, "FedAvg by another name.")
        assert system.Hyper is fedavg.Hyper

    Args:
      name: Name on the command line.
      hyper: Class of the settings.

    Returns:
      The system.
    """
    return types.System(
        name,
        hyper,
        schedule_cohort_rounds,
        algorithm,
        summary,
        messages=messages,
        hints=types.Hints(synchronous.rounds_within),
        paper=presets.preset(hyper, presets.FAVANO),
        fit=types.Fit(complete=lambda hyper, problem: hyper.completed(problem)),
    )


@checked
def schedule_cohort_rounds(
    key: types.Key, hyper: types.Settings, num_ticks: Count
) -> types.Timeline:
    """Schedule rounds of sampled clients.

    Reports that are not used leave no trace in the timeline, nor in the local steps and bits that
    are counted. The first rounds do not depend on `num_ticks`.

        rounds = schedule_cohort_rounds(key, fedavg.Hyper(num_clients=8, num_selected=3), 5)
        assert rounds.clients.shape == (5, 3) and (rounds.version == jnp.arange(5)[:, None]).all()

    Args:
      hyper: Settings of `CohortRounds`; completed if needed, and with a `batch_size`.
      num_ticks: Number of rounds T.

    Returns:
      A timeline whose weights sum to 1 in every round in which somebody reports; under Poisson
      sampling they are all 1 / S.
    """
    num_asked = hyper.clock.num_asked or hyper.num_selected
    clients, times = _draw_asked(streams.lane_stream(key, "cohorts"), hyper, num_asked, num_ticks)
    share = times.astype(float)
    if hyper.cohort.weighting == "examples" and hyper.examples is not None:
        share = share * hyper.examples[clients]
    is_poisson = hyper.cohort.selection == "poisson"

    def weigh(share: types.Array) -> types.Array:
        total = jnp.maximum(share.sum(axis=1, keepdims=True), jnp.finfo(share.dtype).tiny)
        return share / (hyper.num_selected if is_poisson else total)

    num_used, steps = clients.shape[1] if is_poisson else hyper.num_selected, None
    if hyper.has_epochs:
        # A quotient that is a whole number must not become the next one by rounding.
        quotient = hyper.local_epochs * hyper.examples / hyper.batch_size
        steps = jnp.ceil(quotient - 1e-9).astype(int)[clients]
    rounds = synchronous.assemble_rounds
    return rounds(key, hyper, clients, share, weigh, num_used=num_used, steps=steps)


def _draw_asked(key: types.Key, hyper: CohortRounds, num: int, num_ticks: int) -> Draws:
    """Draw the clients that are asked, and how often each was drawn: `[T, A]`."""
    if hyper.cohort.selection == "poisson":
        cohort, is_member = cohorts.draw_poisson_cohorts(key, hyper.num_clients, num, num_ticks)
        return Draws(cohort, is_member.astype(cohort.dtype))
    if hyper.cohort.selection == "uniform" and not hyper.cohort.with_replacement:
        clients = cohorts.draw_cohorts(key, hyper.num_clients, num, num_ticks)
        return Draws(clients, jnp.ones_like(clients))
    share = jnp.ones(hyper.num_clients)
    if hyper.cohort.selection == "by_examples" and hyper.examples is not None:
        share = hyper.examples
    if hyper.cohort.with_replacement:
        return cohorts.draw_with_replacement(key, share, num, num_ticks)
    clients = cohorts.draw_by_share(key, share, num, num_ticks)
    return Draws(clients, jnp.ones_like(clients))
