"""Decide how lanes and slots are laid out on a machine.

A batched layout (`vmap`) is wide and pads every slot to the longest of its batch. A mapped layout
runs slots one after another, each with its own trip count, and each lane on one core.

The thresholds below were measured on 2 CPU cores by `scripts/benchmark.py layout` and
`scripts/benchmark.py sweep`; "operations" are those of one local step, see `measure_step`.
"""

import functools
import math
from typing import NamedTuple

import jax
import numpy as np
from jax.extend.core import Jaxpr

from fedjax_sim.core.settings import ConfigError, plain
from fedjax_sim.core.trees import TypedStructure, programs_within, typed_structure
from fedjax_sim.core.types import PRECISIONS, AnyProblem, Key, Layout, PackedRows, Params
from fedjax_sim.engine import contract

TINY = 1e4
"""Operations below which a CPU batches lanes.

300 lanes of FA-LD with 50 clients and 2 parameters take half the time; from 3e4 operations on a
fifth or less is gained.
"""


IN_CACHE = 2**22
"""Bytes of the weights and gradients of batched slots, above which a CPU runs them one by one.

A batch of 20 slots against slots one by one, per step, on one core: 784-8-10 (1 MB) 1.33 times as
fast with batches of 8, 1.08 with 32; 784-32-10 (4 MB) 1.03 with batches of 8; 784-128-10 (16 MB)
0.71 to 0.89; 784-512-10 (64 MB) 0.45 to 0.77; LeNet 0.59 to 0.80; ResNet-20 0.34 to 0.55.
"""


LARGE = 4e6
"""Operations of a local step above which a CPU runs one slot after another.

784-8-10 with batches of 128 and 784-32-10 with batches of 32 (5e6 operations) take 1.08 and 1.06
times as long in a batch on one core and as long on two, 784-32-10 with batches of 128 (2e7) 1.12
and 1.19 times.
"""


NARROW = 32
"""Columns up to which a CPU transposes matrices of parameters during local steps.

XLA multiplies by a matrix with few columns slowly: of 784-8-10, 784-16-10 and 784-32-10 a step took
1.7, 1.6 and 1.5 times as long with batches of 8, and 1.4, 1.5 and 1.3 times with batches of 32.
With 64 columns and more nothing is gained.
"""


WIDEST = 2**31
"""Columns up to which accelerators do so: all matrices.

Gradients of matrices come out of JAX transposed; without it a GPU copies all weights back at every
step.
"""


WORTH_PACKING = 0.9
"""Steps run with packed slots over steps run without, up to which a GPU packs.

Counted on programs compiled for an H200 and not measured: of four lanes or more, packing adds no
launch to a local step, and five to a tick; of one lane it adds two to a local step (see
`scripts/benchmark.py packing`). It writes and reads every slot's model once more. On a TPU the
program for FAVANO with four lanes takes 0.65 times the operations, but 1.4 times the bytes and
twice the instructions for a step, so TPUs do not pack unless they are asked to.
"""


WORTH_SPLITTING = 2e7
"""Operations of a tick above which idle devices take slots."""


LARGEST_IN_FAMILY = 1e7
"""Operations above which a CPU gains nothing by batching a family.

Nine step sizes of FA-LD on MNIST (9e6 operations) run 1.9 times as fast as a family; perceptrons of
784-128-10 (2e7) run 1.00 times as fast.
"""


LARGEST_FAMILY = 2e8
"""Operations of all members of a batched family together, beyond which the family is split."""


DEVICES = "layout devices (lane_devices x client_devices)"
"""Name in messages of the number of devices that a layout asks for."""


MOST_PADDED = 1.5
"""Trips run over trips needed, beyond which batched lanes are split into batches."""


class StepCost(NamedTuple):
    """Cost of one local step of one slot.

    Attributes:
      operations: Arithmetic operations.
      bytes: Weights and gradients.
    """

    operations: float
    bytes: int


def measure_step(
    problem: AnyProblem, num_examples: int, *, has_loss: bool = True, code: int = 0
) -> tuple[Params, StepCost]:
    """Describe the models that a problem draws, and estimate the cost of one local step.

    The operations are three times those of the matrix products and convolutions in the loss of the
    step's `num_examples`, and at least six for each parameter and example. Problems of expectation
    maximisation have no loss, and get the latter. `code` is the number of the problem's code.

    Raises:
      ConfigError: If the model cannot be learnt, or the loss is no number.
    """
    given = tuple(map(jax.typeof, jax.tree.leaves(problem)))
    is_wide = jax.dtypes.result_type(float) == "float64"
    structure = typed_structure(problem)
    model, products = _traced(structure, given, num_examples, has_loss, code, is_wide)
    size, num_bytes = 0, 0
    for leaf in jax.tree.leaves(model):
        size, num_bytes = size + leaf.size, num_bytes + leaf.size * leaf.dtype.itemsize
    return model, StepCost(max(6.0 * size * num_examples, 3.0 * products), 2 * num_bytes)


@functools.lru_cache(maxsize=256)
def _traced(
    structure: TypedStructure,
    leaves: tuple,
    num_examples: int,
    has_loss: bool,
    code: int,
    is_wide: bool,
) -> tuple[Params, float]:
    """Check the model and the loss, once for problems of equal shapes, and count its products."""
    problem, key = structure.unflatten(leaves), jax.eval_shape(jax.random.key, 0)

    def init(problem: AnyProblem, key: Key) -> Params:
        model = problem.init(key)
        contract.check_model(problem, model)  # Outside of the trace, Python's numbers are arrays.
        return model

    model = jax.eval_shape(init, problem, key)
    if not has_loss:
        return model, 0.0
    given = model, np.int32(0), np.zeros(num_examples, "int32"), key
    program = jax.make_jaxpr(lambda problem, *given: problem.loss(*given))(problem, *given)
    contract.check_loss(program.out_avals)
    return model, _count_products(program.jaxpr)


def _count_products(program: Jaxpr) -> float:
    """Count the operations of matrix products and convolutions in a jaxpr.

    The body of a `scan` counts once per iteration, of other loops once; of a `cond` the largest
    branch counts.
    """
    total = 0.0
    for equation in program.eqns:
        name, shaped = equation.primitive.name, jax.core.ShapedArray
        if name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            left, out = equation.invars[0].aval, equation.outvars[0].aval
            assert isinstance(left, shaped) and isinstance(out, shaped)
            total += 2.0 * out.size * math.prod(left.shape[axis] for axis in contracted)
        elif name == "conv_general_dilated":
            kernel, out = equation.invars[1].aval, equation.outvars[0].aval
            assert isinstance(kernel, shaped) and isinstance(out, shaped)
            features = kernel.shape[equation.params["dimension_numbers"].rhs_spec[0]]
            total += 2.0 * out.size * kernel.size / features
        else:
            counts = [*map(_count_products, programs_within(equation))]
            if name == "cond":
                total += max(counts, default=0)
            else:
                total += sum(counts) * (equation.params["length"] if name == "scan" else 1)
    return total


class Placement(NamedTuple):
    """A layout with everything decided; its first fields are those of `Layout`.

    Attributes:
      family_size: Members of a family that are batched; 1 batches none.
      members: Lanes of each family; the members of a family are adjacent among all lanes.
      narrow: As in `Plan`.
      packed: As in `Layout`.
      window: As in `Layout`; None if all examples are in memory.
      devices: Devices to compile for, if these are only described; () for those there are.
    """

    slots_at_once: int
    lanes_at_once: bool
    lane_devices: int
    client_devices: int
    lane_batches: int = 1
    family_size: int = 1
    members: int = 1
    narrow: int = 0
    packed: bool = False
    window: int | None = None
    devices: tuple[jax.Device, ...] = ()

    @property
    def mesh(self) -> jax.sharding.Mesh:
        """The devices of all processes as a mesh with axes "lanes" and "clients"."""
        shape = (self.lane_devices, self.client_devices)
        devices = (self.devices or jax.devices())[: shape[0] * shape[1]]
        return jax.sharding.Mesh(np.asarray(devices).reshape(shape), ("lanes", "clients"))

    @property
    def platform(self) -> str:
        """The kind of machine, such as "cpu" or "gpu"."""
        return self.devices[0].platform if self.devices else jax.default_backend()

    def layout(self) -> dict[str, int | bool]:
        """Return all but the devices, for a checkpoint's identity; windows if there are some."""
        left_out = {"devices"} if self.window else {"devices", "window"}
        fields = self._asdict().items()
        return {name: plain(value) for name, value in fields if name not in left_out}

    @property
    def refills(self) -> bool:
        """Whether lanes that go on take the places of those that have ended in other batches."""
        return self.lane_batches > 1 and self.family_size == 1

    def deal(self, work: np.ndarray) -> np.ndarray:
        """Deal lanes with `work`, `[L]`, to devices, equal shares, and batches, of equal work.

        Returns:
          The lane in each place, `i64[>= L]`, device by device and batch by batch, the members of a
          batched family adjacent. Lanes are repeated until all places are filled.
        """
        families = np.arange(len(work)).reshape(-1, self.members)
        padding = ((0, 0), (0, -self.members % self.family_size))
        sets = np.pad(families, padding, mode="edge").reshape(-1, self.family_size)
        parts = self.lane_devices * self.lane_batches
        order = np.argsort(-work[sets[:, 0]], kind="stable") if parts > 1 else np.arange(len(sets))
        full = np.concatenate([order, np.repeat(order[-1:], -len(sets) % parts)])
        dealt = full.reshape(self.lane_batches, -1, self.lane_devices).transpose(2, 0, 1)
        return sets[dealt.ravel()].ravel()

    def count_rows(self, steps: np.ndarray, work: np.ndarray, row: np.ndarray) -> PackedRows:
        """Count the rows into which slots are packed, enough for every tick.

        Args:
          steps: `i32[D or 1, ..., S]`, local steps of the slots of all ticks of D schedules. Axes
            along which nothing changes may have length 1.
          work: `[D, T]`, by which `deal` sorts lanes when it is summed over ticks.
          row: `i64[L]`, the number of each lane's schedule.

        """
        length, num_slots = max(1, int(steps.max(initial=0))), steps.shape[-1]
        lane_slots = -(-num_slots // self.client_devices)
        shares = np.arange(0, num_slots, lane_slots)
        totals = np.add.reduceat(steps, shares, axis=-1, dtype=np.int64)
        totals = totals.reshape(len(steps), -1, len(shares))
        of_lane = int(totals.max())
        together, pooled_slots = of_lane, lane_slots
        # The members of a family share the steps of a row, and so do lanes of equal schedules.
        lanes = self.deal(work.sum(axis=1, dtype=np.int64)[row])[:: self.family_size]
        of_device = np.minimum(row[lanes], len(totals) - 1).reshape(self.lane_devices, -1)
        if self.lanes_at_once and any((rows != rows[0]).any() for rows in of_device):
            # Lanes that go on fill the places of others, so that any may be in a batch.
            width = of_device.shape[1] // self.lane_batches
            most = [np.sort(totals[rows], axis=0)[-width:].sum(axis=0) for rows in of_device]
            together, pooled_slots = int(np.max(most)), pooled_slots * width
        pooled, alone = (max(1, -(-steps // length)) for steps in (together, of_lane))
        return PackedRows(pooled, alone, pooled_slots, lane_slots)


def check_layout(layout: Layout) -> None:
    """Check a layout as a whole.

    Raises:
      ConfigError: If there are fewer devices than the layout asks for, or its fields do not go
        together.
    """
    Layout(*layout)  # Checks fields that were replaced.
    if layout.packed and layout.slots_at_once is not None:
        allowed = "false with slots_at_once, because packed slots share rows and not batches"
        raise ConfigError("layout.packed", True, allowed)
    if layout.lane_batches is not None and layout.lanes_at_once is False:
        allowed = "left out with lanes_at_once false, because single lanes are in no batches"
        raise ConfigError("layout.lane_batches", layout.lane_batches, allowed)
    wanted, there = (layout.lane_devices or 1) * (layout.client_devices or 1), jax.device_count()
    if wanted > there:
        raise ConfigError(DEVICES, wanted, f"at most the {there} there are")
    if jax.process_count() > 1:
        _over_processes(layout, 1, there)


def check_precision(precision: str) -> None:
    """Check the name of a precision.

    Raises:
      ConfigError: If there is no such precision.
    """
    if precision not in PRECISIONS:
        raise ConfigError("precision", precision, "one of " + ", ".join(PRECISIONS))


def choose(
    layout: Layout,
    *,
    rows: np.ndarray,
    steps: np.ndarray,
    cost: StepCost,
    members: int = 1,
    devices: tuple[jax.Device, ...] = (),
    has_alternatives: bool = False,
) -> Placement:
    """Choose the parts of the layout that the caller left open.

    Args:
      layout: The caller's layout.
      rows: `i64[L]`, the number of each lane's schedule, below D.
      steps: `i32[D, ..., S]`, local steps of the slots of all ticks of D schedules. Axes along
        which nothing changes may have length 1.
      cost: What one local step costs.
      members: Lanes of each family; the members of a family are adjacent.
      devices: Devices to compile for, if these are only described; () for the local ones.
      has_alternatives: Whether a lane executes one of several alternatives, and batched lanes all.
    """
    num_lanes = len(rows)
    num_devices = len(devices) or jax.device_count()
    if not devices and jax.process_count() > 1:
        layout = _over_processes(layout, num_lanes, num_devices)
    platform = devices[0].platform if devices else jax.default_backend()
    on_cpu = platform == "cpu"
    if has_alternatives and on_cpu and layout.lanes_at_once is None:
        layout = layout._replace(lanes_at_once=False)
    num_slots = steps.shape[-1]
    longest = steps.max(axis=-1, initial=0)
    padding = longest.sum() * num_slots / max(steps.sum(), 1)
    for_lanes = layout.lane_devices or max(1, num_devices // (layout.client_devices or 1))
    family_size = 1
    if layout.lanes_at_once is None and members > 1:
        devices_per_family = for_lanes * members / num_lanes
        # So that every device has work, and on a CPU no batch is too large.
        operations = cost.operations if on_cpu else 0.0
        if operations <= LARGEST_IN_FAMILY:
            batches = max(1.0, devices_per_family, members * operations / LARGEST_FAMILY)
            family_size = -(-members // math.ceil(batches))
    num_sets = num_lanes // members * -(-members // family_size)
    lane_devices = layout.lane_devices or min(for_lanes, num_sets)
    # Batching pads: a CPU should batch only where that saves more than the padded steps cost.
    # The gain is fitted to 1.72, 1.42, 1.33 and 1.03 to 1.08 times at 6e4, 2.3e5, 3.1e5 and 1.2e6
    # operations.
    is_in_cache = family_size * num_slots * cost.bytes <= IN_CACHE and cost.operations <= LARGE
    gain = 1 + 0.8 * math.exp(-cost.operations / 3.5e5) if is_in_cache else 0.0
    is_wide = not on_cpu or padding <= gain
    # Lanes of a tiny model, such as hundreds of chains, are worth batching too, if their slots are
    # batched and nearly all do the same steps.
    is_even = int(steps.max(initial=0)) * steps.size <= gain * max(steps.sum(), 1)
    is_tiny = cost.operations <= TINY and is_even
    lanes_at_once = layout.lanes_at_once
    if lanes_at_once is None:
        lanes_at_once = not on_cpu or is_tiny
    client_devices, idle = layout.client_devices or 1, num_devices // lane_devices
    if idle > 1 and layout.client_devices is layout.lane_devices is None and not lanes_at_once:
        # Devices that have no lane take slots, if a tick has enough work to share.
        work = cost.operations * family_size * steps.sum(axis=-1).mean()
        client_devices = min(idle, num_slots) if work >= WORTH_SPLITTING else 1
    packed = bool(layout.packed)
    if layout.packed is None and layout.slots_at_once is None and platform == "gpu":
        # Steps that run if all slots share rows, over those of the longest slot for all.
        most = int(steps.max(initial=0)) * steps.shape[0] * num_slots
        run = float(steps.sum(axis=(0, -1), dtype=np.int64).max(initial=0))
        packed = run / max(1, most) <= WORTH_PACKING
    placement = Placement(
        slots_at_once=min(layout.slots_at_once or (num_slots if is_wide else 1), num_slots),
        lanes_at_once=lanes_at_once,
        lane_devices=lane_devices,
        client_devices=client_devices,
        family_size=family_size,
        members=members,
        narrow=NARROW if on_cpu else WIDEST,
        packed=packed,
        window=layout.window,
        devices=devices,
    )
    if not lanes_at_once or num_sets == 1:
        return placement
    batches = layout.lane_batches or 1
    # The slots of all lanes fill packed rows better than those of a batch.
    if layout.lane_batches is None and not packed:
        trips = longest.reshape(len(longest), -1)[rows if len(longest) > 1 else rows * 0]
        batches = _lane_batches(trips, placement)
    return placement._replace(lane_batches=min(batches, num_sets))


def _over_processes(layout: Layout, num_lanes: int, num_devices: int) -> Layout:
    """Use every device of every process, because all processes take part in every program.

    By default lanes, which do not communicate, take as many devices as divide the devices evenly,
    and the slots of each tick the others.

    Args:
      layout: The caller's layout.
      num_lanes: Lanes.
      num_devices: Devices of all processes.

    Raises:
      ConfigError: If the caller's layout leaves devices idle.
    """
    shares = [num for num in range(1, num_devices + 1) if num_devices % num == 0]
    lane_devices = layout.lane_devices
    if lane_devices is None and layout.client_devices is not None:
        lane_devices = num_devices // layout.client_devices
    lane_devices = lane_devices or max(num for num in shares if num <= num_lanes)
    client_devices = layout.client_devices or num_devices // lane_devices
    if lane_devices * client_devices != num_devices:
        allowed = f"{num_devices}, all devices of the {jax.process_count()} processes"
        raise ConfigError(DEVICES, lane_devices * client_devices, allowed)
    return layout._replace(lane_devices=lane_devices, client_devices=client_devices)


def _lane_batches(trips: np.ndarray, placement: Placement) -> int:
    """Choose how many batches to sort lanes into.

    It is the least power of two with which at most `MOST_PADDED` times the needed trips are run.

    Args:
      trips: `i32[L, T]`, steps of the longest slot of each tick.
      placement: The placement so far.
    """
    work, batches = trips.sum(axis=1, dtype=np.int64), 1
    while batches * placement.lane_devices < len(trips) / placement.family_size:
        dealt = placement._replace(lane_batches=batches).deal(work)
        places = dealt.reshape(placement.lane_devices * batches, -1)
        run = sum(trips[lanes].max(axis=0).sum(dtype=np.int64) * len(lanes) for lanes in places)
        if run <= MOST_PADDED * work[places].sum():
            break
        batches *= 2
    return batches
