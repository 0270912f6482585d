"""Weights from staleness: FedStaleWeight (Ma, Tu, Chen, Reddi, arXiv 2406.02877, Alg. 1 and Eq. 8) and the rules it is compared with.

    tau -> `staleness`    E[tau_i], as estimated -> `mean_staleness`    alpha -> `staleness_weights`    b -> S    n -> `num_clients`

Staleness depends on the schedule alone, never on a model, so averages and weights of all ticks are computed at once. When its buffer is
full the server first notes the staleness of all updates in it, in slot order, and then reads the averages: updates of one client in one
buffer share an average. Dimension letters: `T` ticks, `S` slots (the buffer size), `A` arrivals.
"""

import jax
import jax.numpy as jnp

from fedjax_sim.settings import choice, count, real, struct, switch
from fedjax_sim.types import Array

AVERAGED = ("eq8", "alg1", "code")
CODE_WINDOW = 5


@struct
class StalenessWeights:
    """Settings of the weights in a buffer."""

    weighting: str = choice(
        "eq8",
        (*AVERAGED, "code_exact", "mean", "exponential", "polynomial", "hinge"),
        'The raw weight of an update. Of its client\'s average staleness: "eq8" (average b + 1) / n, the inverse of n times the client\'s share of arrivals; "alg1" (average + 1) / n, as Algorithm 1 prints it; "code" average b / n, as in the authors\' code; "code_exact" the same with that code\'s window of 5, which drops the newest value instead of the oldest, and always normalised. Of no staleness: "mean" 1, the buffer mean (FedBuff). Of the update\'s own staleness tau: "exponential" base^tau; "polynomial" (1 + tau)^-exponent; "hinge" 1 up to hinge_start, beyond it 1 / (hinge_slope (tau - hinge_start) + 1) (FedAsync).',
    )
    average: str = choice(
        "window",
        ("window", "cumulative", "exponential", "none"),
        'How "eq8", "alg1" and "code" average a client\'s staleness: over its last updates, first in first out; over all of them; as an exponential moving average that begins with the first value; or not at all (the update\'s own staleness).',
    )
    window: int = count(5, "Updates in the window; fewer if the client has sent fewer.")
    decay: float = real(
        0.9,
        "Of the exponential moving average: what the past keeps at each update.",
        least=0,
        most=1,
    )
    base: float = real(0.5, 'Of "exponential"; above 1 it favours stale updates.', above=0)
    exponent: float = real(0.5, 'Of "polynomial".', least=0)
    hinge_start: float = real(
        4.0, "The largest staleness without a discount (FedAsync's experiments).", least=0
    )
    hinge_slope: float = real(
        10.0, 'How fast "hinge" falls beyond (FedAsync\'s experiments).', least=0
    )
    include_current: bool = switch(
        True,
        "Whether the buffer's own updates count in the averages read for it. If not, a client without history has average 0.",
    )
    normalised: bool = switch(
        True,
        'Whether the weights of a buffer are divided by their sum, as Algorithm 1 does, or by b: influence is then equal for "eq8", but the length of a server step varies; "polynomial" becomes FedBuff\'s s(tau) / b.',
    )


def staleness_weights(
    clients: Array, staleness: Array, settings: StalenessWeights, *, num_clients: int
) -> Array:
    """Weight each update of every buffer by its staleness.

    clients, staleness: `i32[T, S]`, none EMPTY, slots in order of arrival. settings: any struct with these fields. Returns `f64[T, S]`.

    A row sums to 1 if normalised, whatever n. With equal averages it is the plain mean, 1 / b; with b = 1 it is 1. Under "code" and
    "code_exact" a buffer without any staleness has weights 0: its tick is counted, but leaves the model as it is.
    """
    num_slots = clients.shape[1]
    stale = mean_staleness(clients, staleness, settings)
    is_normalised = settings.normalised or settings.weighting == "code_exact"
    match settings.weighting:
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
            # The buffer's largest factor cancels; with it a long staleness would overflow.
            raw = jnp.exp(log - log.max(axis=1, keepdims=True) if is_normalised else log)
        case "polynomial":
            raw = (1 + stale) ** -settings.exponent
        case "hinge":
            raw = 1 / (settings.hinge_slope * jnp.maximum(stale - settings.hinge_start, 0) + 1)
    # Slot by slot, as a reduction of a longer schedule may add them up in another order.
    total = jax.lax.scan(
        lambda total, slot: (total + slot, None), jnp.zeros_like(raw[:, 0]), raw.T
    )[0][:, None]
    return raw / jnp.where(total > 0, total, 1) if is_normalised else raw / num_slots


def mean_staleness(clients: Array, staleness: Array, settings: StalenessWeights) -> Array:
    """Average the staleness of each slot's client as the server knows it when the buffer is full.

    Arguments as in `staleness_weights`. Returns `f64[T, S]`, in server steps. For weightings without an average and for the average "none"
    this is the staleness itself, whatever `include_current` says.
    """
    average = {"code_exact": "code_exact", **dict.fromkeys(AVERAGED, settings.average)}.get(
        settings.weighting, "none"
    )
    if average == "none":
        return staleness.astype(float)
    # Client by client, each one's updates in order of arrival.
    order = jnp.argsort(clients.ravel(), stable=True)
    client, tick = clients.ravel()[order], order // clients.shape[1]
    tau = staleness.ravel()[order].astype(float)
    place = jnp.arange(tau.size)
    is_first = client != jnp.roll(client, 1).at[0].set(-1)
    is_opening = is_first | (tick != jnp.roll(tick, 1))  # the first of its client in its buffer
    first = jax.lax.cummax(jnp.where(is_first, place, 0))
    known = _running_average(average, tau, place, first, settings)
    if settings.include_current:
        is_closing = jnp.roll(is_opening, -1).at[-1].set(True)
        read = known[jax.lax.cummin(jnp.where(is_closing, place, tau.size), reverse=True)]
    else:
        opening = jax.lax.cummax(jnp.where(is_opening, place, 0))
        read = jnp.where(opening > first, known[opening - 1], 0)
    return jnp.zeros_like(tau).at[order].set(read).reshape(clients.shape)


def _running_average(
    average: str, tau: Array, place: Array, first: Array, settings: StalenessWeights
) -> Array:
    """A client's average just after each of its updates. tau: `f64[A]`, client by client. first: place of the client's first update."""
    if average == "exponential":
        # e <- keep e + add, where the first update keeps nothing. Of 1, 2, 4, ... of the client at a time, whose sum is the same bits
        # wherever the client stands and however many updates there are.
        keep = jnp.where(place == first, 0, settings.decay)

        def double(k: Array, run: tuple[Array, Array]) -> tuple[Array, Array]:
            keep, add = run
            before = jnp.maximum(place - 2**k, 0)
            is_more = place - 2**k >= first
            return jnp.where(is_more, keep[before] * keep, keep), jnp.where(
                is_more, add[before] * keep + add, add
            )

        return jax.lax.fori_loop(0, tau.size.bit_length(), double, (keep, (1 - keep) * tau))[1]
    before = jnp.cumsum(tau) - tau  # exact: whole numbers
    if average == "code_exact":
        # From the fifth update on, the first four and the latest.
        kept = jnp.minimum(place, first + CODE_WINDOW - 1)
        return (before[kept] - before[first] + tau) / (kept - first + 1)
    start = jnp.maximum(first, place + 1 - settings.window) if average == "window" else first
    return (before - before[start] + tau) / (place + 1 - start)
