"""Weights from staleness (FedStaleWeight, Ma, Tu, Chen and Reddi, arXiv 2406.02877).

    tau -> `staleness`           E[tau_i], as estimated -> `mean_staleness`
    alpha -> `staleness_weights` b -> S           n -> `num_clients`

The weights are those of Algorithm 1 and Eq. 8, and the rules that the paper compares them with.
Staleness depends on the schedule alone, never on a model, so averages and weights of all ticks are
computed together. When its buffer is full the server first notes the staleness of all updates in
it, in slot order, and then reads the averages: several updates of one client in one buffer share
an average. FedBuff, FedStaleWeight and FedAsync inherit the settings and use the schedule.

Dimension letters: `T` ticks, `S` slots (the buffer size), `A` arrivals.
"""

from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp

from fedjax_sim.core.settings import Checked, checked, declared, group, setting, struct
from fedjax_sim.core.settings.declared import Above0, AtLeast0, Count, Limit, OneOf
from fedjax_sim.core.types import Array, Key, Timeline
from fedjax_sim.timelines import Arrivals, schedule_arrivals

AVERAGED = ("eq8", "alg1", "code")
"""Weightings that use a client's average staleness."""


RULES = (*AVERAGED, "code_exact", "mean", "exponential", "polynomial", "hinge")


@struct
class StalenessWeights(Checked):
    """Settings of the weights in a buffer.

    They are a group of the settings of FedBuff, for example.

        late = StalenessWeights(rule="hinge", hinge_start=2.0, normalised=False)
        hyper = fedjax_sim.SYSTEMS["fedbuff"].Hyper(staleness=late)
    """

    rule: Annotated[str, OneOf(RULES)] = setting(
        "eq8",
        'Raw weight of an update. From its client\'s average staleness: "eq8" is (average b + 1) '
        '/ n, the inverse of n times the client\'s share of arrivals; "alg1" is (average + 1) / n, '
        'as Algorithm 1 prints it; "code" is average b / n, as in the authors\' code; "code_exact" '
        "is the same with that code's window of 5, which drops the newest value instead of the "
        'oldest, and is always normalised. Without staleness: "mean" is 1 (FedBuff). From the '
        'update\'s staleness tau: "exponential" is base^tau; "polynomial" is (1 + tau)^-exponent; '
        '"hinge" is 1 up to hinge_start and 1 / (hinge_slope (tau - hinge_start) + 1) beyond '
        "(FedAsync).",
    )
    average: Literal["window", "cumulative", "exponential", "none"] = setting(
        "window",
        'How "eq8", "alg1" and "code" average a client\'s staleness: over its last `window` '
        "updates, over all of them, as an exponential moving average that begins with the first "
        "value, or not at all.",
        only_with={"rule": AVERAGED},
    )
    window: Count = setting(
        5,
        "Last updates of a client over which its staleness is averaged; fewer if it has sent less.",
        only_with={"rule": AVERAGED, "average": ("window",)},
    )
    decay: declared.Probability = setting(
        0.9,
        "Share of the past that the exponential moving average keeps at each update.",
        only_with={"rule": AVERAGED, "average": ("exponential",)},
    )
    base: Above0 = setting(
        0.5,
        'Base of "exponential"; above 1 it favours stale updates.',
        only_with={"rule": ("exponential",)},
    )
    exponent: AtLeast0 = setting(
        0.5, 'Exponent of "polynomial".', only_with={"rule": ("polynomial",)}
    )
    hinge_start: AtLeast0 = setting(
        4.0,
        'Largest staleness that "hinge" does not discount (FedAsync\'s experiments).',
        only_with={"rule": ("hinge",)},
    )
    hinge_slope: AtLeast0 = setting(
        10.0,
        'How fast "hinge" falls beyond hinge_start (FedAsync\'s experiments).',
        only_with={"rule": ("hinge",)},
    )
    normalised: bool = setting(
        True,
        "Whether the weights of a buffer are divided by their sum, as in Algorithm 1. Otherwise "
        'they are divided by b: then influence is equal for "eq8" but the length of a server step '
        'varies, and "polynomial" becomes FedBuff\'s s(tau) / b.',
        only_with={"rule": tuple(name for name in RULES if name != "code_exact")},
    )


@checked
def staleness_weights(
    clients: Annotated[Array, declared.shape("T S")],
    staleness: Annotated[Array, declared.shape("T S"), Limit(least=0)],
    settings: Any,
    *,
    num_clients: Count,
) -> Array:
    """Weight each update of every buffer by its staleness.

    With equal averages a normalised row is the plain mean, 1 / b; with b = 1 it is 1. With "code"
    and "code_exact" a buffer without any staleness has weights 0: its tick is counted but leaves
    the model unchanged, except by a momentum of the server.

        clients, staleness = jnp.array([[0, 1]]), jnp.array([[0, 3]])
        settings = StalenessWeights(rule="polynomial", exponent=0.5)
        weights = staleness_weights(clients, staleness, settings, num_clients=2)
        assert jnp.allclose(weights, jnp.array([[2 / 3, 1 / 3]]))  # 1 and (1 + 3)^-0.5, to sum 1

    Args:
      clients: `i32[T, S]`, none empty, slots in order of arrival. Any numbers tell clients apart.
      staleness: `i32[T, S]`, in server versions.
      settings: Any struct with the fields of `StalenessWeights`.
      num_clients: Number of clients, n.

    Returns:
      `f64[T, S]`. A normalised row sums to 1.
    """
    num_slots = clients.shape[1]
    stale = mean_staleness(clients, staleness, settings)
    is_normalised = settings.normalised or settings.rule == "code_exact"
    match settings.rule:
        case "eq8":
            raw = (stale * num_slots + 1) / num_clients
        case "alg1":
            raw = (stale + 1) / num_clients
        case "code" | "code_exact":
            raw = stale * num_slots / num_clients
        case "mean":
            raw = jnp.ones_like(stale)
        case "exponential":
            log = stale * jnp.log(settings.base)
            # The buffer's largest factor cancels; dividing by it avoids overflow at long staleness.
            raw = jnp.exp(log - log.max(axis=1, keepdims=True) if is_normalised else log)
        case "polynomial":
            raw = (1 + stale) ** -settings.exponent
        case "hinge":
            raw = 1 / (settings.hinge_slope * jnp.maximum(stale - settings.hinge_start, 0) + 1)
    # Summed slot by slot: a reduction over a longer schedule might use another order.
    add = lambda total, slot: (total + slot, None)  # noqa: E731
    total = jax.lax.scan(add, jnp.zeros_like(raw[:, 0]), raw.T)[0][:, None]
    return raw / jnp.where(total > 0, total, 1) if is_normalised else raw / num_slots


def mean_staleness(clients: Array, staleness: Array, settings: StalenessWeights) -> Array:
    """Average the staleness of each slot's client, as the server knows it when the buffer is full.

    For weightings without an average, and for the average "none", this is the staleness itself.

    `clients`, `staleness` and `settings` are those of `staleness_weights`.

    Returns:
      `f64[T, S]`, in server versions.
    """
    is_exact = settings.rule == "code_exact"
    average = "code_exact" if is_exact else settings.average
    if average == "none" or not (is_exact or settings.rule in AVERAGED):
        return staleness.astype(float)
    # Sorted by client; the updates of a client are in order of arrival.
    order = jnp.argsort(clients.ravel(), stable=True)
    client, tick = clients.ravel()[order], order // clients.shape[1]
    tau = staleness.ravel()[order].astype(float)
    place = jnp.arange(tau.size)
    is_first = client != jnp.roll(client, 1).at[0].set(-1)
    is_opening = is_first | (tick != jnp.roll(tick, 1))  # The client's first in its buffer.
    first = jax.lax.cummax(jnp.where(is_first, place, 0))
    known = _running_average(average, tau, place, first, settings)
    is_closing = jnp.roll(is_opening, -1).at[-1].set(True)
    read = known[jax.lax.cummin(jnp.where(is_closing, place, tau.size), reverse=True)]
    return jnp.zeros_like(tau).at[order].set(read).reshape(clients.shape)


def _running_average(
    average: str, tau: Array, place: Array, first: Array, settings: StalenessWeights
) -> Array:
    """Average a client's staleness just after each of its updates.

    Args:
      average: Which average.
      tau: `f64[A]`, staleness sorted by client.
      place: `i32[A]`, positions 0, 1, ...
      first: `i32[A]`, position of the client's first update.
      settings: As in `staleness_weights`.
    """
    if average == "exponential":
        # e <- keep e + add, where the first update keeps nothing. Steps are composed over 1, 2, 4,
        # ... updates of the client, so that the sum has the same bits wherever the client stands
        # and however many updates there are.
        keep = jnp.where(place == first, 0, settings.decay)
        run = keep, (1 - keep) * tau, place, first
        return jax.lax.fori_loop(0, tau.size.bit_length(), _double, run)[1]
    before = jnp.cumsum(tau) - tau  # Exact, because these are whole numbers.
    if average == "code_exact":
        # From the fifth update on, the first four and the latest, as in the authors' public code.
        kept = jnp.minimum(place, first + 4)
        return (before[kept] - before[first] + tau) / (kept - first + 1)
    start = jnp.maximum(first, place + 1 - settings.window) if average == "window" else first
    return (before - before[start] + tau) / (place + 1 - start)


def _double(k: Array, run: tuple[Array, ...]) -> tuple[Array, ...]:
    """Compose each step of an exponential average with the 2^k steps before it."""
    keep, add, place, first = run
    before = jnp.maximum(place - 2**k, 0)
    is_more = place - 2**k >= first
    added = jnp.where(is_more, add[before] * keep + add, add)
    return jnp.where(is_more, keep[before] * keep, keep), added, place, first


@struct
class WeightedArrivals(Arrivals):
    """Settings of arrivals that are weighted by staleness.

    They are inherited by the settings of FedBuff, for example.

        weights = StalenessWeights(rule="exponential", base=0.9)
        hyper = WeightedArrivals(num_clients=8, buffer_size=3, staleness=weights)
    """

    staleness: StalenessWeights = group(StalenessWeights(), "weights of the updates in a buffer")


def schedule_stale_arrivals(key: Key, hyper: WeightedArrivals, num_ticks: Count) -> Timeline:
    """Schedule buffered arrivals, with weights from their clients' staleness.

    Args:
      num_ticks: Number of ticks, T.

    Returns:
      The schedule.
    """
    schedule = schedule_arrivals(key, hyper, num_ticks)
    staleness = jnp.arange(num_ticks)[:, None] - schedule.version
    return schedule._replace(weight=weigh_arrivals(hyper, schedule.clients, staleness))


def weigh_arrivals(hyper: WeightedArrivals, clients: Array, staleness: Array) -> Array:
    """Weight buffered arrivals by their staleness, as `staleness_weights` does.

        halved = StalenessWeights(rule="exponential", base=0.5)
        hyper = WeightedArrivals(num_clients=8, buffer_size=2, staleness=halved)
        weight = weigh_arrivals(hyper, jnp.array([[0, 1]]), jnp.array([[0, 1]]))
        assert jnp.allclose(weight, jnp.array([[2 / 3, 1 / 3]]))  # 1 and 0.5, to sum 1

    Args:
      clients: `i32[T, S]`, none empty, slots in order of arrival.
      staleness: `i32[T, S]`, in server versions.

    Returns:
      `f[T, S]`.
    """
    return staleness_weights(clients, staleness, hyper.staleness, num_clients=hyper.num_clients)
