"""Read optimised HLO text, and count what one trip of each of a replay program's loops launches.

HLO is the form in which XLA shows a compiled program: a list of *computations*, each a list of
*instructions*. An instruction may call other computations: a `while` its condition and its body, a
`fusion` what it computes in one kernel.

A replay program is a nest of loops: over evaluations, over the ticks between two evaluations, and
over the local steps of a tick. The loops are recognised by the scopes "tick" and "local_step" that
the engine gives to the bodies of the last two (`jax.named_scope`); XLA keeps scopes as the path of
each instruction, such as "jit(_advance)/while/body/tick/while/body/local_step/mul".
"""

import itertools
import math
import posixpath
import re
from collections import Counter
from collections.abc import Container, Iterator, Mapping
from typing import NamedTuple

Counts = Counter[str]
"""How often each of `COUNTED` occurs."""

LAUNCHES = ("fusions", "custom calls", "copies", "other kernels")
"""What is launched one by one. A launch may start more than one kernel of the device's."""
COUNTED = (*LAUNCHES, "collectives", "conditionals", "loop checks", "bytes", "operations")
"""What is counted. Bytes are those that launches read and write outside caches, at most. Operations
are multiplications and additions of matrix products and convolutions; sums and products that XLA
has put into other kernels, number by number, are not among them.

Only the device knows the trip count of an *open* loop, and before each trip a host that drives a
GPU waits for the device's answer whether there is one: a loop check.
"""

FREE = {
    "add-dependency",
    "after-all",
    "bitcast",
    "constant",
    "get-tuple-element",
    "opt-barrier",
    "parameter",
    "partition-id",
    "replica-id",
    "tuple",
}
"""Instructions that run nothing."""
SLICES = {"dynamic-slice", "gather", "slice"}
"""Instructions that read of their first operand no more than they return."""
UPDATES = {"dynamic-update-slice": 1, "scatter": 2}
"""Instructions that change their first operand in place, and the operand that they write to it."""
SIZES = {"pred": 8, "c64": 64, "c128": 128, "bf16": 16}
"""Bits of the types whose name does not end with them."""
CALLERS = {"async", "call", "conditional", "while"}
"""Instructions that only run computations; a `call` may be a GPU's command buffer."""
FREE_TARGETS = {
    "AllocateBuffer",
    "AssumeGatherIndicesInBound",
    "ConcatBitcast",
    "GatherScatterIndicesBitpacked",
}
"""Custom calls that run nothing: notes of the TPU's compiler."""
ARITHMETIC = {
    "add",
    "and",
    "compare",
    "convert",
    "divide",
    "maximum",
    "minimum",
    "multiply",
    "not",
    "or",
    "select",
    "shift-left",
    "shift-right-logical",
    "subtract",
    "xor",
}
"""Counts nothing outside a kernel if the result is a single number.

Only a TPU's program has it, for loop counters and positions; on a GPU these are kernels.
"""
COLLECTIVES = {
    "all-gather",
    "all-reduce",
    "all-to-all",
    "collective-broadcast",
    "collective-permute",
    "ragged-all-to-all",
    "reduce-scatter",
}
KINDS = {"fusion": "fusions", "custom-call": "custom calls", "copy": "copies"}
KINDS |= dict.fromkeys(COLLECTIVES, "collectives")

_COMPUTATION = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"\s+(?:ROOT )?%?([\w.\-]+) = (.*?) ([a-z][\w\-]*)\(([^)]*)\)")
_CALLED = re.compile(
    r"\b(body|condition|calls|to_apply|true_computation|false_computation|branch_computations)="
    r"(?:\{([^}]*)\}|%?([\w.\-]+))"
)
_ARRAY = re.compile(r"([a-z]\w*)\[([\d,]*)\]")
_ONE_NUMBER = re.compile(r"\w+\[[1,]*\]")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_PATH = re.compile(r'op_name="([^"]*)"')
_TARGET = re.compile(r'custom_call_target="([^"]*)"')
_CONTRACTED = re.compile(r'"?lhs_contracting_dim(?:ension)?s"?[=:]([\[{][^\]}]*[\]}])')
_LABELS = re.compile(r"dim_labels=\w+_(\w+)->\w+")
_WINDOW = re.compile(r"window=\{size=([\dx]+)")


class Instruction(NamedTuple):
    """One instruction.

    Attributes:
      name: Its name, unique in the program.
      opcode: What it does, such as "fusion"; without the ending "-start" of what runs in the
        background.
      shape: Of its result, as HLO writes it.
      operands: Names of its operands.
      calls: Computations that it calls, by role.
      path: Where in the source it comes from: scopes and a primitive, separated by "/"; "" if XLA
        does not say.
      text: The whole line.
    """

    name: str
    opcode: str
    shape: str
    operands: list[str]
    calls: dict[str, list[str]]
    path: str
    text: str

    @property
    def called(self) -> list[str]:
        """All computations that it calls."""
        return [name for names in self.calls.values() for name in names]

    @property
    def kind(self) -> str | None:
        """Which of `LAUNCHES`, or "collectives", it counts as; None if it launches nothing."""
        if self.opcode in FREE or self.opcode.endswith(("-done", "-update")):
            return None
        if self.opcode in CALLERS:
            return None
        if self.opcode in ARITHMETIC and _ONE_NUMBER.match(self.shape):
            return None
        target = _TARGET.search(self.text)
        if target and target[1] in FREE_TARGETS:
            return None
        return KINDS.get(self.opcode, "other kernels")


class Program(NamedTuple):
    """A compiled program.

    Attributes:
      computations: The instructions of each computation.
      entry: The computation that is called from outside.
    """

    computations: dict[str, list[Instruction]]
    entry: str


class Step(NamedTuple):
    """The loop over local steps, or one of several.

    Attributes:
      trips: How often it runs per tick; None if only the device knows.
      loop: Name of its `while` instruction.
      counts: One trip.
    """

    trips: int | None
    loop: str
    counts: Counts


class Anatomy(NamedTuple):
    """What a replay program runs, without what is counted in a loop further inside.

    Attributes:
      steps: The loops over local steps. None is left where XLA has dissolved a loop of one trip;
        its launches are then those of the tick.
      tick: One tick, apart from the steps.
      evaluation: One evaluation, apart from the ticks.
      once: The rest, which runs once.
      tick_loop: Name of the loop over ticks, a `while` instruction.
    """

    steps: list[Step]
    tick: Counts
    evaluation: Counts
    once: Counts
    tick_loop: str


def parse(text: str) -> Program:
    """Parse the text of an optimised program (`jax.stages.Compiled.as_text`).

    Raises:
      ValueError: If it has no entry computation.
    """
    computations: dict[str, list[Instruction]] = {}
    entry = ""
    here: list[Instruction] = []
    for line in text.splitlines():
        if found := _COMPUTATION.match(line):
            here = computations.setdefault(found[2], [])
            entry = found[2] if found[1] else entry
        elif found := _INSTRUCTION.match(line):
            calls = {
                role: [name.strip().lstrip("%") for name in (several or one).split(",")]
                for role, several, one in _CALLED.findall(line)
            }
            path = _PATH.search(line)
            operands = re.findall(r"%([\w.\-]+)", found[4])
            opcode = found[3].removesuffix("-start")
            instruction = Instruction(
                found[1], opcode, found[2], operands, calls, path[1] if path else "", line.strip()
            )
            here.append(instruction)
    if not entry:
        raise ValueError("The text is not an HLO program: it has no line that begins with ENTRY.")
    return Program(computations, entry)


def launches(counts: Mapping[str, int]) -> int:
    """Add up what is launched."""
    return sum(counts[kind] for kind in LAUNCHES)


def syncs(counts: Mapping[str, int]) -> int:
    """Count how often a host that drives a GPU waits for it."""
    return counts["conditionals"] + counts["loop checks"]


def trips_of(program: Program, loop: Instruction) -> int | None:
    """Find a loop's trip count; None if only the device knows.

    A GPU's program states it. In a TPU's program it is the constant that the loop's counter is
    compared with: JAX's counted loops count from 0 in ones.
    """
    if stated := _TRIPS.search(loop.text):
        return int(stated[1])
    condition = program.computations[loop.calls["condition"][0]]
    root = condition[-1]
    values = {each.name: each for each in condition}
    if root.opcode == "compare" and "direction=LT" in root.text:
        bound = values.get(root.operands[-1])
        if bound is not None and bound.opcode == "constant":
            return int(bound.text.split("constant(")[1].split(")")[0])
    return None


def anatomy(program: Program) -> Anatomy:
    """Find a replay program's loops, and count what they run.

    Raises:
      ValueError: If it has no loop over ticks, for example because there is one tick between
        evaluations, or several.
    """
    ticks = innermost_loops(program, "tick")
    if len(ticks) != 1:
        raise ValueError(f"The program has {len(ticks)} loops around the scope 'tick', not one.")
    inside = list(_loops_inside(program, ticks[0]))
    step_loops = [loop for loop in innermost_loops(program, "local_step") if loop in inside]
    outer = [loop for loop in loops(program) if ticks[0] in list(_loops_inside(program, loop))]
    around = min(outer, key=lambda loop: len(list(_loops_inside(program, loop))), default=None)
    whole = ticks[0] if around is None else around
    return Anatomy(
        [
            Step(trips_of(program, loop), loop.name, count_trip(program, loop))
            for loop in step_loops
        ],
        count_trip(program, ticks[0], {loop.name for loop in step_loops}),
        Counter() if around is None else count_trip(program, around, {ticks[0].name}),
        _count(program, program.entry, {whole.name}),
        ticks[0].name,
    )


def innermost_loops(program: Program, scope: str) -> list[Instruction]:
    """Find the loops that run a scope from outside it, and contain no other loop that does."""
    found = [loop for loop in loops(program) if _runs_from_outside(program, loop, scope)]
    return [
        loop for loop in found if not any(inner in found for inner in _loops_inside(program, loop))
    ]


def count_trip(program: Program, loop: Instruction, without: Container[str] = ()) -> Counts:
    """Count one trip of a loop, and of an open loop the check before it.

    Loops inside it count as often as they run. Of an open loop inside it, one trip counts and the
    check after the last one.

    Args:
      program: The program.
      loop: A `while` instruction.
      without: Names of loops inside it whose trips are left out.
    """
    return _count(program, loop.calls["body"][0], without) + _count_check(program, loop)


def _count_check(program: Program, loop: Instruction) -> Counts:
    """Count one check of a loop: nothing if its trip count is known."""
    if trips_of(program, loop) is not None:
        return Counter()
    return _count(program, loop.calls["condition"][0], ()) + Counter({"loop checks": 1})


def _count(program: Program, computation: str, without: Container[str]) -> Counts:
    """Count one run of a computation. Of a conditional, the branch that launches most counts."""
    counts: Counts = Counter()
    for each in program.computations[computation]:
        if each.kind is not None:
            counts[each.kind] += 1
            counts["bytes"] += count_bytes(program, computation, each)
            counts["operations"] += count_operations(program, computation, each)
        elif each.opcode == "while":
            counts += _count_check(program, each)
            if each.name not in without:
                trip = count_trip(program, each, without)
                trips = trips_of(program, each)
                times = 1 if trips is None else trips
                counts += Counter({kind: times * number for kind, number in trip.items()})
        elif each.opcode == "conditional":
            branches = [_count(program, name, without) for name in each.called]
            largest = max(branches, key=launches)
            counts += largest
            counts["conditionals"] += 1
        elif each.opcode in CALLERS:
            for name in each.called:
                counts += _count(program, name, without)
    return counts


def size_of(shape: str) -> int:
    """Count the bytes of an array, or of a tuple of arrays, from its shape as HLO writes it."""
    bits = 0
    for kind, dims in _ARRAY.findall(shape):
        numbers = [int(dim) for dim in dims.split(",") if dim]
        width = SIZES.get(kind) or int((re.findall(r"\d+", kind) or [0])[0])
        bits += width * math.prod(numbers)
    return bits // 8


def count_bytes(program: Program, computation: str, launch: Instruction) -> int:
    """Count the bytes that a launch reads and writes, each array once.

    Of an array that is only sliced or looked up in, as much as that returns counts, and of one that
    is changed in place, what is written to it.
    """
    if launch.opcode != "fusion":
        around = {each.name: each for each in program.computations[computation]}
        read = sum(size_of(around[name].shape) for name in launch.operands if name in around)
        return read + size_of(launch.shape)
    (inside,) = launch.calls["calls"]
    body = program.computations[inside]
    of = {each.name: each for each in body}

    def read(name: str) -> int:
        whole, total = size_of(of[name].shape), 0
        for user in body:
            if name not in user.operands:
                continue
            is_first = user.operands[0] == name and name not in user.operands[1:]
            if user.opcode == "bitcast":
                total += read(user.name)
            elif is_first and user.opcode in SLICES:
                total += size_of(user.shape)
            elif not (is_first and user.opcode in UPDATES):
                return whole
        return min(whole, total)

    def written(name: str) -> int:
        each = of[name]
        if each.opcode in {"tuple", "bitcast"}:
            return sum(written(operand) for operand in each.operands)
        if each.opcode in UPDATES:
            return size_of(of[each.operands[UPDATES[each.opcode]]].shape)
        return 0 if each.opcode == "parameter" else size_of(each.shape)

    parameters = [each.name for each in body if each.opcode == "parameter"]
    return sum(map(read, parameters)) + written(body[-1].name)


def count_operations(program: Program, computation: str, launch: Instruction) -> int:
    """Count the multiplications and additions of the matrix products that a launch computes.

    A convolution is counted as the product of its patches with its kernel, zeros included.
    """
    shapes = {each.name: each.shape for each in program.computations[computation]}
    target = _TARGET.search(launch.text)
    total = 0
    if contracted := _CONTRACTED.search(launch.text):
        lengths, axes = _lengths(shapes[launch.operands[0]]), re.findall(r"\d+", contracted[1])
        total = math.prod(_lengths(launch.shape)) * math.prod(lengths[int(axis)] for axis in axes)
    elif launch.opcode == "convolution" or (target and "$conv" in target[1]):
        first, second = (shapes[name] for name in launch.operands[:2])
        kernel, outputs = {
            "__cudnn$convBackwardFilter": (launch.shape, second),
            "__cudnn$convBackwardInput": (second, first),
        }.get(target[1] if target else "", (second, launch.shape))
        labels, window = _LABELS.search(launch.text), _WINDOW.search(launch.text)
        if labels is None:
            raise ValueError(f"A convolution has no dim_labels: {launch.text}")
        sizes = (int(size) for size in window[1].split("x")) if window else ()
        channels = _lengths(kernel)[labels[1].index("i")]
        total = math.prod(_lengths(outputs)) * math.prod(sizes) * channels
    total *= 2
    for name in launch.called:
        for each in program.computations[name]:
            total += count_operations(program, name, each)
    return total


def _lengths(shape: str) -> list[int]:
    """List the lengths of an array's axes, or of those of the first array of a tuple."""
    found = _ARRAY.search(shape)
    return [int(length) for length in found[2].split(",") if length] if found else []


class Launch(NamedTuple):
    """One line of a listing.

    Attributes:
      depth: Number of loops and branches around it, from the start of the listing.
      instruction: What is launched, or a loop or conditional, whose insides follow.
      primitives: The primitives of JAX that it computes, as far as XLA says.
    """

    depth: int
    instruction: Instruction
    primitives: list[str]


def list_trip(
    program: Program, loop: Instruction, without: Container[str] = (), depth: int = 0
) -> Iterator[Launch]:
    """List what one trip of a loop launches, in order: all that `count_trip` counts.

    Args:
      program: The program.
      loop: A `while` instruction.
      without: Names of loops that are listed without their insides.
      depth: Depth of the first line.
    """
    for name in loop.calls["body"]:
        yield from _list(program, name, without, depth)
    yield from _list_check(program, loop, depth)


def _list_check(program: Program, loop: Instruction, depth: int) -> Iterator[Launch]:
    if trips_of(program, loop) is None:
        for name in loop.calls["condition"]:
            yield from _list(program, name, (), depth)


def _list(
    program: Program, computation: str, without: Container[str], depth: int
) -> Iterator[Launch]:
    for each in program.computations[computation]:
        if each.kind is not None:
            paths = [inner.path for inner in _reached(program, each)] or [each.path]
            names = dict.fromkeys(path.rpartition("/")[2] for path in paths)
            # The rest are functions, scopes and transformations.
            primitives = [name for name in names if re.fullmatch(r"[a-z]\w*", name)]
            yield Launch(depth, each, [name for name in primitives if name != "closed_call"])
        elif each.opcode in CALLERS:
            yield Launch(depth, each, [])
            if each.opcode == "while":
                if each.name not in without:
                    yield from list_trip(program, each, without, depth + 1)
                yield from _list_check(program, each, depth)
                continue
            for name in each.called:
                yield from _list(program, name, without, depth + 1)


def _runs_from_outside(program: Program, loop: Instruction, scope: str) -> bool:
    """Check whether a loop is outside a scope and something in its body is inside."""
    path = loop.path or _path_of_body(program, loop)
    # Computations that several kernels share, such as a sum's addition, carry one kernel's path.
    inside = (each.path for each in _reached(program, loop) if each.path.startswith(path))
    return not has_scope(path, scope) and any(has_scope(each, scope) for each in inside)


def _path_of_body(program: Program, loop: Instruction) -> str:
    """Find the path of a loop for which XLA states none: what the paths in its body begin with."""
    (body,) = loop.calls["body"]
    paths = [each.path for each in program.computations[body] if each.path]
    return posixpath.commonpath(paths).rpartition("/body")[0] if paths else ""


def has_scope(path: str, scope: str) -> bool:
    """Check whether a path has a scope, bare or in a transformation such as "vmap(tick)"."""
    return re.search(rf"(^|[/(]){scope}($|[/)])", path) is not None


def loops(program: Program) -> list[Instruction]:
    """List all loops."""
    instructions = itertools.chain.from_iterable(program.computations.values())
    return [each for each in instructions if each.opcode == "while"]


def _loops_inside(program: Program, loop: Instruction) -> Iterator[Instruction]:
    """List the loops in a loop's body, at any depth."""
    return (each for each in _reached(program, loop) if each.opcode == "while")


def _reached(program: Program, instruction: Instruction) -> Iterator[Instruction]:
    """List the instructions of all computations that an instruction calls, at any depth."""
    names = instruction.calls["body"] if instruction.opcode == "while" else instruction.called
    for name in names:
        for each in program.computations[name]:
            yield each
            yield from _reached(program, each)
