"""Chains of FA-LD on its paper's simulation, against NumPy and blackjax on the same target.

The NumPy loop holds all chains and clients in one array. blackjax runs its SGLD. All of it is
measured in float64 and in float32.
"""

import time
from collections.abc import Callable
from typing import Any

import blackjax
import jax
import jax.numpy as jnp
import numpy as np

import fedjax_sim
from fedjax_sim.engine.machine.compiling import COMPILE_EVENT
from fedjax_sim.problems import GaussianClients, make_gaussian_clients
from fedjax_sim.systems import langevin

CHAINS, CLIENTS, LOCAL_STEPS, ROUNDS = 300, 50, 100, 3
STEP_SIZES = (1e-6, 3e-7, 1e-7, 3e-8, 1e-8)
SINGLE_STEPS = 3000
LANES = CHAINS * len(STEP_SIZES)


def bench_langevin(turns: int) -> dict[str, Any]:
    """Measure chain-steps per second of 300 chains x 50 clients x 5 step sizes, K = 100 and 1.

    A chain-step is one step of all clients. In the engine, the chains of one seed have the same
    noise at all step sizes, which is drawn once; the alternatives draw noise for each step size.
    """
    measured: dict[str, Any] = {"chains x step sizes x clients": [CHAINS, len(STEP_SIZES), CLIENTS]}
    for dtype in ("float64", "float32"):
        with jax.enable_x64(dtype == "float64"):
            measured[dtype] = _measure(dtype, turns)
    return measured


def _measure(dtype: str, turns: int) -> dict[str, Any]:
    """Measure all contestants in one floating-point type."""
    problem = make_gaussian_clients(0, alpha=0.0, dtype=dtype)
    pooled = GaussianClients.of(
        np.asarray(problem.hessians)[:1],
        problem.posterior().mean[None].astype(dtype),
        counts=50_000,
    )
    steps = {
        "engine, K = 100": (LOCAL_STEPS * ROUNDS, lambda: _engine(problem, LOCAL_STEPS, ROUNDS)),
        "plain NumPy loop, K = 100": (
            LOCAL_STEPS * ROUNDS,
            lambda: _numpy(problem, LOCAL_STEPS, ROUNDS),
        ),
        "engine, K = 1": (SINGLE_STEPS // 10, lambda: _engine(problem, 1, SINGLE_STEPS // 10)),
        "engine, K = 1, one client": (SINGLE_STEPS, lambda: _engine(pooled, 1, SINGLE_STEPS)),
        "plain NumPy loop, K = 1, one client": (
            SINGLE_STEPS,
            lambda: _numpy(pooled, 1, SINGLE_STEPS),
        ),
        "blackjax SGLD": (SINGLE_STEPS, _blackjax(pooled, SINGLE_STEPS)),
    }
    programs = _programs_of(steps["engine, K = 100"][1])
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(turns + 1):
        for name, (_, run) in steps.items():
            began = time.perf_counter()
            run()
            if turn > 0:
                seconds[name].append(time.perf_counter() - began)
    rate = {name: LANES * steps[name][0] / float(np.median(seconds[name])) for name in steps}
    return {
        "chain-steps per second, whole calls": rate,
        "compiled programs of learning for the sweep": programs.count("jit(_advance)"),
        "engine over NumPy, K = 100": rate["engine, K = 100"] / rate["plain NumPy loop, K = 100"],
        "engine of one client over NumPy, K = 1": rate["engine, K = 1, one client"]
        / rate["plain NumPy loop, K = 1, one client"],
        "engine of one client over blackjax, K = 1": rate["engine, K = 1, one client"]
        / rate["blackjax SGLD"],
    }


def _programs_of(run: Callable[[], Any]) -> list[str]:
    """List the names of the programs that are compiled for a first call."""
    names: list[str] = []

    def note(event: str, duration_secs: float, **facts: Any) -> None:
        if event == COMPILE_EVENT:
            names.append(str(facts.get("fun_name")))

    jax.monitoring.register_event_duration_secs_listener(note)
    run()
    jax.monitoring.unregister_event_duration_listener(note)
    return names


def _engine(problem: GaussianClients, local_steps: int, rounds: int) -> None:
    """Run the sweep as a user would."""
    hyper = langevin.paper(
        num_clients=problem.counts.shape[0], local_steps=local_steps, gradient="exact"
    )
    run = fedjax_sim.sweep(
        langevin.system,
        problem,
        hyper,
        seeds=CHAINS,
        settings={"step_size": STEP_SIZES},
        budget=fedjax_sim.Ticks(rounds),
        num_evals=1,
    )
    assert not run.curves.failed.any()


def _numpy(problem: GaussianClients, local_steps: int, rounds: int) -> None:
    """Run all chains and clients as one array, with a Python loop over steps; equal weights."""
    centers, hessian = np.asarray(problem.centers), np.asarray(problem.hessians)[0]
    random = np.random.default_rng(0)
    eta = np.repeat(np.asarray(STEP_SIZES, centers.dtype), CHAINS)[:, None, None]
    deviation = np.sqrt(2 * eta * len(centers))
    server = np.zeros((LANES, 1, 2), centers.dtype)
    for _ in range(rounds):
        theta = np.repeat(server, len(centers), axis=1)
        for _ in range(local_steps):
            theta = (
                theta
                - eta * ((theta - centers) @ hessian)
                + deviation * random.standard_normal(theta.shape, theta.dtype)
            )
        server = theta.mean(axis=1, keepdims=True)
    assert np.isfinite(server).all()


def _blackjax(problem: GaussianClients, steps: int) -> Callable[[], None]:
    """Make a function that runs SGLD on the pooled energy in one compiled call.

    Chains are batched, steps scanned.
    """
    mean, covariance = problem.posterior()
    mean, precision = (
        jnp.asarray(x, problem.centers.dtype) for x in (mean, np.linalg.inv(covariance))
    )
    sgld = blackjax.sgld(lambda theta, _: -precision @ (theta - mean))

    @jax.jit
    def chains(keys: jax.Array, eta: jax.Array) -> jax.Array:
        def chain(key: jax.Array, eta: jax.Array) -> jax.Array:
            def step(theta: jax.Array, key: jax.Array) -> tuple[jax.Array, None]:
                return sgld.step(key, theta, None, eta), None

            return jax.lax.scan(step, jnp.zeros_like(mean), jax.random.split(key, steps))[0]

        return jax.vmap(chain)(keys, eta)

    keys, eta = (
        jax.random.split(jax.random.key(0), LANES),
        jnp.repeat(jnp.asarray(STEP_SIZES, mean.dtype), CHAINS),
    )

    def run() -> None:
        chains(keys, eta).block_until_ready()

    return run
