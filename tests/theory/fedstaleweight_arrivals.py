"""Arrivals of clients of unequal speeds in a buffer, and their staleness, drawn in NumPy."""

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]


def arrivals(
    random: np.random.Generator, delays: list[tuple[float, float]], num_arrivals: int
) -> tuple[Integers, Integers]:
    """Draw the arrivals of clients with uniform delays, in order of time.

    Args:
        random: Source of random numbers.
        delays: The smallest and the largest delay of each client.
        num_arrivals: Number of arrivals of all clients together.

    Returns:
        `i64[num_arrivals]`, the client of each arrival; and `i64[num_arrivals]`, the position of
        that client's previous arrival, -1 if it is the first.
    """
    times = [
        np.cumsum(random.uniform(low, high, int(3 * num_arrivals / (low + high))))
        for low, high in delays
    ]
    clients = np.repeat(np.arange(len(delays)), [len(part) for part in times])
    order = np.argsort(np.concatenate(times))[:num_arrivals]
    client, previous = clients[order], np.full(num_arrivals, -1)
    for each in range(len(delays)):
        (positions,) = np.nonzero(client == each)
        assert len(positions) < len(times[each]), "too few arrivals of this client were drawn"
        previous[positions[1:]] = positions[:-1]
    return client, previous


def staleness_of(
    previous: Integers, *, buffer_size: int, pull: str = "after_aggregation"
) -> Integers:
    """Count the versions between the pull at a client's previous arrival and each arrival.

    Args:
        previous: `i64[A]`, the position of the previous arrival of the same client, or -1.
        buffer_size: b.
        pull: When the client that fills the buffer pulls.

    Returns:
        `i64[A]`, the staleness of each arrival.
    """
    arrived = np.arange(len(previous)) // buffer_size
    counted = previous + 1 if pull == "after_aggregation" else previous
    return arrived - np.where(previous >= 0, counted, 0) // buffer_size
