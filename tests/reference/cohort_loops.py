"""The methods of synchronous rounds as slow loops in plain NumPy, written from their papers.

Each yields the server's model after every round. A round is given as its clients, their numbers of
local steps, and their weights in the mean.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

Gradient = Callable[[int, int, np.ndarray], np.ndarray]


class Rounds(NamedTuple):
    """What the loops are given.

    Attributes:
      start: The initial model.
      cohorts: Clients of each round.
      steps: Local steps of each client of each round.
      weights: Weights of each client of each round.
      share: Every client's weight in the objective.
      lr: Learning rate of local steps.
      gradient: From client, k and model to the gradient of the client's k-th local step so far.
      whole: From client and model to the gradient of all of its examples, if clients compute that
        at the server's model; otherwise they take the gradient of their next local step there.
    """

    start: np.ndarray
    cohorts: list[list[int]]
    steps: list[list[int]]
    weights: list[list[float]]
    share: np.ndarray
    lr: float
    gradient: Gradient
    whole: Callable[[int, np.ndarray], np.ndarray] | None = None

    def at_server(self, client: int, before: int, model: np.ndarray) -> np.ndarray:
        """Return the gradient at the server's model of a client that did so many steps before."""
        return (
            self.gradient(client, before, model)
            if self.whole is None
            else self.whole(client, model)
        )

    def listed(self) -> Iterator[Any]:
        """List the rounds: their clients with step counts, weights and steps done before."""
        ever = np.zeros(len(self.share), int)
        for cohort, steps, weights in zip(self.cohorts, self.steps, self.weights, strict=True):
            yield [(i, k, w, int(ever[i])) for i, k, w in zip(cohort, steps, weights, strict=True)]
            for i, k in zip(cohort, steps, strict=True):
                ever[i] += k

    def descend(
        self, model: np.ndarray, client: int, num: int, before: int, change: Any = None
    ) -> np.ndarray:
        """Take local steps. change: from a gradient and the model to what a step follows."""
        for k in range(num):
            slope = self.gradient(client, before + k, model)
            model = model - self.lr * (slope if change is None else change(slope, model))
        return model


class Wire:
    """Messages that arrive as they were sent."""

    def known(self, sent: np.ndarray) -> np.ndarray:
        """Return what clients know of what the server sends."""
        return sent

    def report(self, client: int, progress: np.ndarray) -> np.ndarray:
        """Return what the server decodes of a client's progress."""
        return progress

    def publish(self, sent: np.ndarray) -> None:
        """Send what is new from the server."""


class Compressed(Wire):
    """The largest entries with EF21 up (Richtarik et al. 2021), signs with EF21-P down.

    Attributes:
      estimates: d_i of all clients.
      heard: v.
      kept: Entries of a message up.
    """

    def __init__(self, sent: np.ndarray, num_clients: int, *, kept: int, size: int | None = None):
        self.heard, self.kept = sent.copy(), kept
        self.estimates = np.zeros((num_clients, len(sent) if size is None else size))

    def known(self, sent: np.ndarray) -> np.ndarray:
        return self.heard

    def report(self, client: int, progress: np.ndarray) -> np.ndarray:
        estimate = self.estimates[client]
        self.estimates[client] = estimate + largest(progress - estimate, self.kept)
        return self.estimates[client].copy()

    def publish(self, sent: np.ndarray) -> None:
        self.heard = self.heard + signs(sent - self.heard)


def largest(x: np.ndarray, kept: int) -> np.ndarray:
    """Keep the entries of largest magnitude."""
    result = np.zeros_like(x)
    for place in np.argsort(-np.abs(x), kind="stable")[:kept]:
        result[place] = x[place]
    return result


def signs(x: np.ndarray) -> np.ndarray:
    """Send signs and the mean magnitude."""
    return np.abs(x).mean() * np.where(x >= 0, 1.0, -1.0)


PLAIN = Wire()


def fedavg(rounds: Rounds, wire: Wire = PLAIN) -> Iterator[np.ndarray]:
    """McMahan et al. 2017, Algorithm 1."""
    x = rounds.start
    for cohort in rounds.listed():
        known, moved = wire.known(x), np.zeros_like(x)
        for i, k, w, before in cohort:
            moved += w * wire.report(i, rounds.descend(known, i, k, before) - known)
        x = x + moved
        wire.publish(x)
        yield x


def fedavg_with_adam(rounds: Rounds, *, is_kept: bool) -> Iterator[np.ndarray]:
    """FedAvg whose clients use Adam (Kingma and Ba 2015), with or without memory."""
    fresh = (0, np.zeros_like(rounds.start), np.zeros_like(rounds.start))
    x, kept = rounds.start, [fresh] * len(rounds.share)
    for cohort in rounds.listed():
        ends = []
        for i, steps, w, before in cohort:
            y, (t, m, v) = x, kept[i] if is_kept else fresh
            for k in range(steps):
                g = rounds.gradient(i, before + k, y)
                t, m, v = t + 1, 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
                y = y - rounds.lr * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
            kept[i] = (t, m, v)
            ends.append(w * y)
        x = sum(ends)
        yield x


def fedprox(rounds: Rounds, *, mu: float) -> Iterator[np.ndarray]:
    """Li et al. 2020, Algorithm 2."""
    w = rounds.start
    for cohort in rounds.listed():
        pull = lambda g, y, w=w: g + mu * (y - w)  # noqa: E731
        w = sum(p * rounds.descend(w, i, k, before, pull) for i, k, p, before in cohort)
        yield w


def scaffold(
    rounds: Rounds, *, server_lr: float, option: int, wire: Wire = PLAIN
) -> Iterator[np.ndarray]:
    """Karimireddy et al. 2020, Algorithm 1; option 1 uses gradients at x."""
    x, c = rounds.start, np.zeros_like(rounds.start)
    controls = np.zeros((len(rounds.share), len(x)))
    for cohort in rounds.listed():
        moved, gained = np.zeros_like(x), np.zeros_like(x)
        known, control = np.split(wire.known(np.concatenate([x, c])), 2)
        for i, k, w, before in cohort:
            c_i = controls[i].copy()
            change = lambda g, y, c_i=c_i, c=control: g - c_i + c  # noqa: E731
            y = rounds.descend(known, i, k, before, change)
            new = rounds.at_server(i, before, known) if option == 1 else 0
            if option == 2:
                new = c_i - control + (known - y) / (k * rounds.lr)
            message = wire.report(i, np.concatenate([y - known, new - c_i]))
            delta_y, delta_c = np.split(message, 2)
            moved = moved + w * delta_y
            gained = gained + rounds.share[i] * delta_c
            controls[i] = c_i + delta_c
        x, c = x + server_lr * moved, c + gained
        wire.publish(np.concatenate([x, c]))
        yield x


def fednova(rounds: Rounds, *, momentum: float, mu: float) -> Iterator[np.ndarray]:
    """Wang et al. 2020, Eqs. 5 to 8, with a_i as the vector of weights of the gradients."""
    x, eta = rounds.start, rounds.lr
    for cohort in rounds.listed():
        directions, sizes = [], []
        for i, tau, _, before in cohort:
            y, velocity = x, np.zeros_like(x)
            for k in range(tau):
                g = rounds.gradient(i, before + k, y) + mu * (y - x)
                velocity = momentum * velocity + g
                y = y - eta * velocity
            a = [
                sum(momentum**j for j in range(tau - k)) if momentum else (1 - eta * mu) ** k
                for k in range(tau)
            ]
            directions.append((x - y) / (eta * sum(a)))
            sizes.append(sum(a))
        p = np.array([w for _, _, w, _ in cohort])
        x = x - (p @ sizes) * eta * sum(w * d for w, d in zip(p, directions, strict=True))
        yield x


def fedopt(rounds: Rounds, follow: Callable[[np.ndarray], np.ndarray]) -> Iterator[np.ndarray]:
    """Reddi et al. 2021, Algorithm 1. follow: from the mean progress to the server's step."""
    x = rounds.start
    for cohort in rounds.listed():
        delta = sum(w * (rounds.descend(x, i, k, before) - x) for i, k, w, before in cohort)
        x = x + follow(delta)
        yield x


def second_moments(
    rule: str, *, eta: float, b1: float, b2: float, tau: float
) -> Callable[[np.ndarray], np.ndarray]:
    """Reddi et al. 2021, Algorithm 2: FedAdagrad, FedAdam and FedYogi."""
    m, v = 0.0, tau**2

    def follow(delta: np.ndarray) -> np.ndarray:
        nonlocal m, v
        m = b1 * m + (1 - b1) * delta
        if rule == "fedadagrad":
            v = v + delta**2
        elif rule == "fedyogi":
            v = v - (1 - b2) * delta**2 * np.sign(v - delta**2)
        else:
            v = b2 * v + (1 - b2) * delta**2
        return eta * m / (np.sqrt(v) + tau)

    return follow


def heavy_ball(*, beta: float) -> Callable[[np.ndarray], np.ndarray]:
    """Hsu et al. 2019: FedAvgM."""
    velocity = 0.0

    def follow(delta: np.ndarray) -> np.ndarray:
        nonlocal velocity
        velocity = beta * velocity + delta
        return velocity

    return follow


def feddyn(rounds: Rounds, *, alpha: float, wire: Wire = PLAIN) -> Iterator[np.ndarray]:
    """Acar et al. 2021, Algorithm 1, with local steps."""
    theta, h = rounds.start, np.zeros_like(rounds.start)
    slopes = np.zeros((len(rounds.share), len(theta)))
    for cohort in rounds.listed():
        mean, moved, known = np.zeros_like(theta), np.zeros_like(theta), wire.known(theta)
        for i, k, w, before in cohort:
            change = lambda g, y, i=i, x=known: g - slopes[i] + alpha * (y - x)  # noqa: E731
            y = known + wire.report(i, rounds.descend(known, i, k, before, change) - known)
            slopes[i] = slopes[i] - alpha * (y - known)
            mean, moved = mean + w * y, moved + rounds.share[i] * (y - known)
        h = h - alpha * moved
        theta = mean - h / alpha
        wire.publish(theta)
        yield theta


def mimelite(rounds: Rounds, *, beta: float, wire: Wire = PLAIN) -> Iterator[np.ndarray]:
    """Karimireddy et al. 2021, Algorithm 1, with SGD with momentum."""
    x, s = rounds.start, np.zeros_like(rounds.start)
    for cohort in rounds.listed():
        known, used = np.split(wire.known(np.concatenate([x, s])), 2)
        use = lambda g, y, s=used: (1 - beta) * g + beta * s  # noqa: E731
        mean, slope = np.zeros_like(x), np.zeros_like(x)
        for i, k, w, before in cohort:
            y = rounds.descend(known, i, k, before, use)
            message = np.concatenate([y - known, rounds.at_server(i, before, known)])
            moved, gradient = np.split(wire.report(i, message), 2)
            mean, slope = mean + w * moved, slope + w * gradient
        x, s = x + mean, (1 - beta) * slope + beta * s
        wire.publish(np.concatenate([x, s]))
        yield x


def mimelite_with_adam(rounds: Rounds) -> Iterator[np.ndarray]:
    """MimeLite whose base is Adam with corrected bias; a local step adds its gradient to both.

    The first moment of the step and the second are those that Adam would have after it.
    """
    x, m, v = rounds.start, np.zeros_like(rounds.start), np.zeros_like(rounds.start)
    for t, cohort in enumerate(rounds.listed(), start=1):

        def moments(g: np.ndarray, m: np.ndarray = m, v: np.ndarray = v) -> Any:
            return 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g

        def use(g: np.ndarray, y: np.ndarray, t: int = t, moments: Any = moments) -> np.ndarray:
            first, second = moments(g)
            return first / (1 - 0.9**t) / (np.sqrt(second / (1 - 0.999**t)) + 1e-8)

        slope = sum(w * rounds.gradient(i, before, x) for i, _, w, before in cohort)
        x = sum(w * rounds.descend(x, i, k, before, use) for i, k, w, before in cohort)
        m, v = moments(slope)
        yield x


def ditto(rounds: Rounds, *, pull: float) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Li et al. 2021, Algorithm 1: the global model and all personal ones, `[N, P]`."""
    w, own = rounds.start, np.stack([rounds.start] * len(rounds.share))
    for cohort in rounds.listed():
        ends = []
        for i, k, p, before in cohort:
            ends.append(p * rounds.descend(w, i, k, before))
            change = lambda g, v, w=w: g + pull * (v - w)  # noqa: E731
            own[i] = rounds.descend(own[i], i, k, before, change)
        w = sum(ends)
        yield w, own.copy()


def fedper(
    rounds: Rounds, *, num_shared: int, head_steps: int, proximal: float
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Arivazhagan et al. 2019, or Collins et al. 2021: the body, and the heads of all clients."""
    body, head = rounds.start[:num_shared], rounds.start[num_shared:]
    heads = np.stack([head] * len(rounds.share))
    for cohort in rounds.listed():
        ends = []
        for i, steps, w, before in cohort:
            model = first = np.concatenate([body, heads[i]])
            for k in range(steps):
                slope = rounds.gradient(i, before + k, model) + proximal * (model - first)
                if head_steps and k < head_steps:
                    slope[:num_shared] = 0
                elif head_steps:
                    slope[num_shared:] = 0
                model = model - rounds.lr * slope
            heads[i] = model[num_shared:]
            ends.append(w * model[:num_shared])
        body = sum(ends)
        yield body, heads.copy()


def apfl(
    rounds: Rounds, *, alpha: float, is_adaptive: bool
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Deng et al. 2020, Algorithm 1: the global model and all mixtures with it, `[N, P]`."""
    w, own = rounds.start, np.stack([rounds.start] * len(rounds.share))
    alphas = np.full(len(own), alpha)
    for cohort in rounds.listed():
        ends = []
        for i, steps, p, before in cohort:
            w_i, v, a = w, own[i], alphas[i]
            for k in range(steps):
                used = min(max(a, 0), 1)
                at_mixture = rounds.gradient(i, before + k, used * v + (1 - used) * w_i)
                if is_adaptive:
                    a = a - rounds.lr * (v - w_i) @ at_mixture
                w_i = w_i - rounds.lr * rounds.gradient(i, before + k, w_i)
                v = v - rounds.lr * used * at_mixture
            own[i], alphas[i] = v, min(max(a, 0), 1)
            ends.append(p * w_i)
        w = sum(ends)
        yield w, alphas[:, None] * own + (1 - alphas[:, None]) * w


def perfedavg(rounds: Rounds, *, alpha: float) -> Iterator[np.ndarray]:
    """Fallah et al. 2020, Algorithm 1 with first-order gradients."""
    w = rounds.start
    for cohort in rounds.listed():
        ends = []
        for i, steps, p, before in cohort:
            y = w
            for k in range(before, before + steps):
                adapted = y - alpha * rounds.gradient(i, 2 * k, y)
                y = y - rounds.lr * rounds.gradient(i, 2 * k + 1, adapted)
            ends.append(p * y)
        w = sum(ends)
        yield w


def proximal_point(
    w: np.ndarray, slope: Callable[[np.ndarray], np.ndarray], *, pull: float, inner: Any
) -> np.ndarray:
    """Take steps to the minimum of f(theta) + pull / 2 ||theta - w||^2. inner: number and size."""
    theta = w
    for _ in range(inner[0]):
        theta = theta - inner[1] * (slope(theta) + pull * (theta - w))
    return theta


def pfedme(
    rounds: Rounds, *, pull: float, beta: float, inner: tuple[int, float]
) -> Iterator[np.ndarray]:
    """Dinh et al. 2020, Algorithm 1. inner: steps to a personal model, and their size."""
    w = rounds.start
    for cohort in rounds.listed():
        mean = np.zeros_like(w)
        for i, steps, p, before in cohort:
            local = w
            for k in range(before, before + steps):
                slope = lambda theta, i=i, k=k: rounds.gradient(i, k, theta)  # noqa: E731
                theta = proximal_point(local, slope, pull=pull, inner=inner)
                local = local - rounds.lr * pull * (local - theta)
            mean = mean + p * local
        w = (1 - beta) * w + beta * mean
        yield w


Loss = Callable[[int, int, np.ndarray], float]


def qfedavg(rounds: Rounds, loss: Loss, *, q: float) -> Iterator[np.ndarray]:
    """Li et al. 2020, Algorithm 2. loss: of a client that did so many steps before."""
    w = rounds.start
    for cohort in rounds.listed():
        delta, total = np.zeros_like(w), 0.0
        for i, steps, p, before in cohort:
            value, lipschitz = max(loss(i, before, w), 0) + 1e-10, 1 / rounds.lr
            change = lipschitz * (w - rounds.descend(w, i, steps, before))
            delta = delta + p * value**q * change
            total += p * (q * value ** (q - 1) * change @ change + lipschitz * value**q)
        w = w - delta / total
        yield w


def ifca(rounds: Rounds, loss: Loss, starts: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Ghosh et al. 2020, Algorithm 1, option II: all models, `[k, P]`, and clients' clusters."""
    models, found = starts, np.zeros(len(rounds.share), int)
    for cohort in rounds.listed():
        sums, weights = np.zeros_like(models), np.zeros(len(models))
        for i, steps, p, before in cohort:
            j = found[i] = int(np.argmin([loss(i, before, model) for model in models]))
            sums[j] += p * rounds.descend(models[j], i, steps, before)
            weights[j] += p
        there = weights > 0
        models = models.copy()
        models[there] = sums[there] / weights[there, None]
        yield models, found.copy()


def diloco(
    rounds: Rounds, *, outer_lr: float, momentum: float, decay: float
) -> Iterator[np.ndarray]:
    """Douillard et al. 2023, Algorithm 1: AdamW for H steps, Nesterov's momentum outside."""
    theta, velocity = rounds.start, np.zeros_like(rounds.start)
    for cohort in rounds.listed():
        outer = np.zeros_like(theta)
        for i, steps, w, before in cohort:
            y, m, v = theta, np.zeros_like(theta), np.zeros_like(theta)
            for k in range(steps):
                g = rounds.gradient(i, before + k, y)
                m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
                first, second = m / (1 - 0.9 ** (k + 1)), v / (1 - 0.999 ** (k + 1))
                y = y - rounds.lr * (first / (np.sqrt(second) + 1e-8) + decay * y)
            outer = outer + w * (theta - y)  # the outer gradient
        velocity = momentum * velocity + outer
        theta = theta - outer_lr * (outer + momentum * velocity)
        yield theta


def fedpa(
    rounds: Rounds,
    *,
    burn_in: int,
    number: int,
    rho: float,
    server_lr: float,
    early: int,
) -> Iterator[np.ndarray]:
    """FedPA (Al-Shedivat et al. 2021), with each covariance as a matrix.

    Args:
      burn_in: Steps before the first sample.
      number: Samples, of nearly as many steps each.
      rho: Shrinkage.
      server_lr: Rate of the server's SGD.
      early: First rounds, which are FedAvg's.
    """
    server = rounds.start
    for t, listed in enumerate(rounds.listed()):
        mean = np.zeros_like(server)
        for client, num, weight, before in listed:
            model, path = server, []
            for k in range(num):
                model = rounds.descend(model, client, 1, before + k)
                path.append(model)
            groups = np.arange(num - burn_in) * number // max(num - burn_in, 1)
            left = np.array(path[burn_in:])
            samples = np.array([left[groups == g].mean(axis=0) for g in np.unique(groups)])
            if t < early or len(samples) < 2:
                assert t < early or len(samples) == 0
                mean += weight * (server - path[-1])
                continue
            share = 1 / (1 + (len(samples) - 1) * rho)
            covariance = share * np.eye(len(server)) + (1 - share) * np.cov(samples.T)
            delta = np.linalg.inv(covariance) @ (server - samples.mean(axis=0))
            mean += weight * delta
        server = server - server_lr * mean
        yield server
