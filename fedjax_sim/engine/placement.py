"""How lanes and slots are laid out on a machine: the one place that decides, and the one that carries it out.

A batched layout (`vmap`) is wide and pads every slot to the longest of its batch; a mapped one runs slots one after the other, each
with its own trip count, and lanes on cores of their own. Systems do not know which they are in.
"""

import contextlib
import math
import os
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from fedjax_sim.settings import ConfigError

TINY = 1e4
"""Operations of a local step below which a CPU runs 300 batched lanes in half the time (FA-LD with 50 clients, 2 parameters, 2 cores); a
fifth or less is gained from 3e4 on."""
LARGE = 5e7
"""Operations of a local step above which a CPU is faster one slot after the other: eight batched perceptrons of 784-128-10 took 0.8 of the
time of eight by themselves (2e7), of 784-512-10 1.5 (8e7), LeNet-5s 2.1 (1.3e8), ResNet-20s 1.5 (8e9), all with batches of 32."""
MOST_AT_ONCE = 2e8
"""Operations of the local steps of lanes that differ in settings alone, beyond which a CPU runs them in batches: up to 1.3e9 little changes
in time (sixteen perceptrons of 784-128-10 with batches of 128), but their models and activations are in memory together."""
MOST_PADDED = 1.5
"""Trips run to trips needed, beyond which batched lanes are split into batches."""


class Layout(NamedTuple):
    """What a caller may fix; `None` leaves it to the measured rule of `choose`."""

    slots_at_once: int | None = None
    """Slots of a tick batched together; 1: each by itself, with its own number of steps."""
    lanes_at_once: bool | None = None
    """Whether the lanes on a device are batched, or run one after the other."""
    lane_devices: int | None = None
    """Devices over which lanes are split."""
    client_devices: int = 1
    """Devices over which the slots of each tick are split."""
    settings_at_once: int | None = None
    """Lanes of one seed, problem and timeline, so that they differ in settings alone, batched together: they see the same mini-batches and
    the same noise, which are drawn once. 1: each by itself."""
    lane_batches: int | None = None
    """Batches into which a device's lanes are sorted by their work, one after the other, where lanes are batched."""


class Placement(NamedTuple):
    """A layout with everything decided."""

    slots_at_once: int
    lanes_at_once: bool
    lane_devices: int
    client_devices: int
    lane_batches: int = 1
    settings_at_once: int = 1
    twins: int = 1
    """Lanes that differ in settings alone, one after the other among all lanes."""

    @property
    def mesh(self) -> jax.sharding.Mesh:
        """The devices as a mesh with axes "lanes" and "clients"."""
        shape = (self.lane_devices, self.client_devices)
        devices = np.asarray(jax.local_devices()[: shape[0] * shape[1]]).reshape(shape)
        return jax.sharding.Mesh(devices, ("lanes", "clients"))

    def deal(self, work: np.ndarray) -> np.ndarray:
        """Deal lanes to devices and their batches: like with like in a batch, and equal shares to the devices.

        work: `[L]`. Returns the lane in each place `i64[>= L]`, device by device, batch by batch, those that differ in settings alone side
        by side; lanes are repeated until all are full.
        """
        sets = np.arange(len(work)).reshape(-1, self.twins)
        sets = np.pad(
            sets, ((0, 0), (0, -self.twins % self.settings_at_once)), mode="edge"
        ).reshape(-1, self.settings_at_once)
        parts = self.lane_devices * self.lane_batches
        order = np.argsort(-work[sets[:, 0]], kind="stable") if parts > 1 else np.arange(len(sets))
        full = np.concatenate([order, np.repeat(order[-1:], -len(sets) % parts)])
        return sets[
            full.reshape(self.lane_batches, -1, self.lane_devices).transpose(2, 0, 1).ravel()
        ].ravel()


def use_cores(num: int | None = None) -> int:
    """Make every CPU core (or `num` of them) a device of its own, so that lanes run side by side; returns the devices there are.

    To be called before JAX does anything: later, it changes nothing.
    """
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    with contextlib.suppress(RuntimeError):  # raised if the backend runs already
        jax.config.update("jax_num_cpu_devices", num or available or 1)
    return jax.local_device_count()


def keep_compiled() -> None:
    """Keep compiled programs on disk for the next process: in JAX's own cache folder if it has one, else `$FEDJAX_SIM_CACHE/jax`.

    `FEDJAX_SIM_CACHE` is `~/.cache/fedjax_sim` by default.
    """
    if jax.config.jax_compilation_cache_dir is None:  # type: ignore[attr-defined]
        folder = (
            Path(os.environ.get("FEDJAX_SIM_CACHE") or "~/.cache/fedjax_sim").expanduser() / "jax"
        )
        jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)


def check_layout(layout: Layout) -> None:
    """Raise ConfigError unless the devices and counts of a layout are there."""
    for name in (
        "slots_at_once",
        "settings_at_once",
        "lane_batches",
        "lane_devices",
        "client_devices",
    ):
        value = getattr(layout, name)
        if value is not None and value < 1:
            raise ConfigError(f"layout.{name}", value, "at least 1")
    wanted, there = (layout.lane_devices or 1) * layout.client_devices, jax.local_device_count()
    if wanted > there:
        raise ConfigError(
            "layout devices (lane_devices x client_devices)",
            wanted,
            f"at most the {there} there are",
        )


def choose(
    layout: Layout, *, num_lanes: int, steps: np.ndarray, operations: float, twins: int = 1
) -> Placement:
    """Fill in what the caller left open.

    steps: `i32[L, T, S]`, the local steps of every slot of the run. operations: of a local step. twins: lanes next to each other that
    differ in settings alone.
    """
    on_cpu = jax.default_backend() == "cpu"
    num_slots = steps.shape[-1]
    padding = steps.max(axis=-1, initial=0).sum() * num_slots / max(steps.sum(), 1)
    devices = (
        max(1, jax.local_device_count() // layout.client_devices)
        if layout.lane_devices is None
        else layout.lane_devices
    )
    settings_at_once = _settings_at_once(
        layout, twins, devices * twins / num_lanes, operations if on_cpu else 0.0
    )
    num_sets = num_lanes // twins * -(-twins // settings_at_once)
    # Batching pads: on a CPU it is worth it only where it saves more than the padded steps cost.
    gain = _batching_gain(operations * settings_at_once)
    is_wide = not on_cpu or padding <= gain
    # Lanes of a tiny model, such as chains by the hundreds, are worth batching too, if their slots are, and all do the same steps.
    is_tiny = bool(
        operations <= TINY and int(steps.max(initial=0)) * steps.size <= gain * max(steps.sum(), 1)
    )
    placement = Placement(
        slots_at_once=min(layout.slots_at_once or (num_slots if is_wide else 1), num_slots),
        lanes_at_once=not on_cpu or is_tiny
        if layout.lanes_at_once is None
        else layout.lanes_at_once,
        lane_devices=devices if layout.lane_devices else min(devices, num_sets),
        client_devices=layout.client_devices,
        settings_at_once=settings_at_once,
        twins=twins,
    )
    if not placement.lanes_at_once:
        return placement
    batches = layout.lane_batches or _lane_batches(steps.max(axis=-1, initial=0), placement)
    return placement._replace(lane_batches=min(batches, num_sets))


def _settings_at_once(layout: Layout, twins: int, devices: float, operations: float) -> int:
    """How many of the lanes that differ in settings alone to batch: as many as leave work to all devices. devices: for these lanes.

    operations: of a local step, if batches of them can be too large.
    """
    if layout.settings_at_once is not None:
        return min(layout.settings_at_once, twins)
    return (
        1
        if operations > LARGE
        else -(-twins // math.ceil(max(1, devices, twins * operations / MOST_AT_ONCE)))
    )


def _lane_batches(trips: np.ndarray, placement: Placement) -> int:
    """The least power of two of batches of lanes that run `MOST_PADDED` times the trips that they need at most. trips: `i32[L, T]`."""
    work, batches = trips.sum(axis=1, dtype=np.int64), 1
    while batches * placement.lane_devices < len(trips) / placement.settings_at_once:
        places = (
            placement._replace(lane_batches=batches)
            .deal(work)
            .reshape(placement.lane_devices * batches, -1)
        )
        run = sum(trips[lanes].max(axis=0).sum(dtype=np.int64) * len(lanes) for lanes in places)
        if run <= MOST_PADDED * work[places].sum():
            break
        batches *= 2
    return batches


def _batching_gain(operations: float) -> float:
    """How much faster a CPU runs a local step among twenty batched ones than by itself.

    Fitted to 2 cores (`scripts/benchmark.py layout`): 1.2 where arithmetic rules, up to 2.1 where the dispatch of operations does. Among
    large ones, whose arrays the cache does not hold all at once, a step is slower: 0.5 to 0.7 for convolutional networks.
    """
    return 1.2 + 0.9 / (1 + operations / 8e4) if operations <= LARGE else 0.6
