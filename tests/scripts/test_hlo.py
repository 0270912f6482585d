"""The counting of launches in compiled programs, on small hand-written ones."""

from collections import Counter

import pytest

from scripts.benchmarks import hlo

GPU = """\
HloModule jit__advance, is_scheduled=true, entry_computation_layout={(f32[8]{0})->f32[8]{0}}

%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %add.9 = f32[] add(%a, %b), metadata={op_name="tick/while/body/local_step/reduce_sum"}
}

%fused_mul (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  %two = f32[8]{0} constant({2, 2, 2, 2, 2, 2, 2, 2})
  %exp.1 = f32[8]{0} exponential(%p), metadata={op_name="f/while/body/while/body/tick/exp"}
  ROOT %mul.1 = f32[8]{0} multiply(%exp.1, %two), metadata={op_name="f/while/body/tick/mul"}
}

%shuffle_body (s: (s32[], u32[8])) -> (s32[], u32[8]) {
  %s = (s32[], u32[8]{0}) parameter(0)
  %x = u32[8]{0} get-tuple-element(%s), index=1
  %round = u32[8]{0} fusion(%x), kind=kLoop, calls=%fused_mul, metadata={op_name="PATH/tick/while/body/local_step/while/body/xor"}
  %count = s32[] fusion(), kind=kLoop, calls=%fused_mul
  ROOT %t = (s32[], u32[8]{0}) tuple(%count, %round)
}

%shuffle_cond (s: (s32[], u32[8])) -> pred[] {
  %s.1 = (s32[], u32[8]{0}) parameter(0)
  ROOT %below = pred[] fusion(%s.1), kind=kLoop, calls=%fused_mul
}

%step_body (s: (s32[], f32[8])) -> (s32[], f32[8]) {
  %s.2 = (s32[], f32[8]{0}) parameter(0)
  %gemm = f32[8]{0} custom-call(%s.2), custom_call_target="__cublas$gemm", metadata={op_name="PATH/tick/while/body/local_step/dot_general"}
  %while.1 = (s32[], u32[8]{0}, /*index=2*/f32[]) while(%s.2), condition=%shuffle_cond, body=%shuffle_body, metadata={op_name="PATH/tick/while/body/local_step/while"}, backend_config={"known_trip_count":{"n":"16"},"known_init_step":{"init":"0","step":"1"}}
  %copy.1 = f32[8]{0} copy(%gemm)
  %sort.1 = f32[8]{0} sort(%copy.1), dimensions={0}, to_apply=%sum
  ROOT %t.1 = (s32[], f32[8]{0}) tuple(%s.2, %sort.1)
}

%step_cond (s: (s32[], f32[8])) -> pred[] {
  %s.3 = (s32[], f32[8]{0}) parameter(0)
  ROOT %less = pred[] fusion(%s.3), kind=kLoop, calls=%fused_mul, metadata={op_name="PATH/tick/while/cond/lt"}
}

%small (p: f32[8]) -> f32[8] {
  %p.1 = f32[8]{0} parameter(0)
  ROOT %zeros = f32[8]{0} fusion(), kind=kLoop, calls=%fused_mul
}

%large (p: f32[8]) -> f32[8] {
  %p.2 = f32[8]{0} parameter(0)
  %draw = f32[8]{0} fusion(%p.2), kind=kLoop, calls=%fused_mul
  ROOT %scale = f32[8]{0} fusion(%draw), kind=kLoop, calls=%fused_mul
}

%command_buffer (p: f32[8]) -> f32[8] {
  %p.3 = f32[8]{0} parameter(0)
  %first = f32[8]{0} fusion(%p.3), kind=kLoop, calls=%fused_mul
  ROOT %second = f32[8]{0} copy(%first)
}

%tick_body (s: (s32[], f32[8])) -> (s32[], f32[8]) {
  %s.4 = (s32[], f32[8]{0}) parameter(0)
  %which = pred[] get-tuple-element(%s.4), index=0
  %one = f32[8]{0} fusion(%s.4), kind=kLoop, calls=%fused_mul, metadata={op_name="PATH/tick/mul"}
  %conditional.1 = f32[8]{0} conditional(%which, %one, %one), true_computation=%small, false_computation=%large
  %buffer = f32[8]{0} call(%conditional.1), to_apply=%command_buffer
  %background = (f32[8]{0}, f32[8]{0}, u32[]) copy-start(%buffer)
  %while.2 = (s32[], f32[8]{0}) while(%s.4), condition=%step_cond, body=%step_body, metadata={op_name="PATH/tick/while"}
  %arrived = f32[8]{0} copy-done(%background)
  %gathered = (f32[8]{0}, f32[16]{0}) all-gather-start(%arrived), replica_groups={{0,1}}, dimensions={0}
  %all = f32[16]{0} all-gather-done(%gathered)
  ROOT %t.2 = (s32[], f32[8]{0}) tuple(%s.4, %arrived)
}

%loop_cond (s: (s32[], f32[8])) -> pred[] {
  %s.5 = (s32[], f32[8]{0}) parameter(0)
  ROOT %more = pred[] fusion(%s.5), kind=kLoop, calls=%fused_mul
}

%pieces_body (s: (s32[], f32[8])) -> (s32[], f32[8]) {
  %s.6 = (s32[], f32[8]{0}) parameter(0)
  ROOT %loss = f32[] fusion(%s.6), kind=kInput, calls=%sum, metadata={op_name="f/while/body/evaluate/while/body/reduce_sum"}
}

%evaluation_body (s: (s32[], f32[8])) -> (s32[], f32[8]) {
  %s.7 = (s32[], f32[8]{0}) parameter(0)
  %while.3 = (s32[], f32[8]{0}) while(%s.7), condition=%loop_cond, body=%tick_body, metadata={op_name="f/while/body/while"}, backend_config={"known_trip_count":{"n":"4"}}
  %while.4 = (s32[], f32[8]{0}) while(%s.7), condition=%loop_cond, body=%pieces_body, metadata={op_name="f/while/body/evaluate/while"}, backend_config={"known_trip_count":{"n":"2"}}
  ROOT %finite = pred[] reduce(%s.7, %s.7), dimensions={0}, to_apply=%sum
}

ENTRY %main (x: f32[8]) -> f32[8] {
  %x.1 = f32[8]{0} parameter(0)
  %start = f32[8]{0} copy(%x.1)
  ROOT %while.5 = (s32[], f32[8]{0}) while(%start), condition=%loop_cond, body=%evaluation_body, metadata={op_name="f/while"}, backend_config={"known_trip_count":{"n":"3"}}
}
""".replace("PATH", "f/while/body/while/body")  # noqa: E501

TPU = """\
%body (s: (s32[], f32[8])) -> (s32[], f32[8]) {
  %s = (s32[]{:T(128)}, f32[8]{0:T(8,128)S(1)}) parameter(0)
  %note = s32[8]{0:T(128)} custom-call(%s), custom_call_target="AssumeGatherIndicesInBound"
  %next = s32[]{:T(128)} add(%note, %note)
  %place = s32[1,1]{1,0:T(1,128)} multiply(%next, %next)
  ROOT %f = f32[8]{0:T(8,128)S(1)} fusion(%note), kind=kLoop, calls=%g, metadata={op_name="f/while/body/tick/mul"}
}

%g (p: f32[8]) -> f32[8] {
  ROOT %p = f32[8]{0:T(8,128)} parameter(0)
}

%cond (s: (s32[], f32[8])) -> pred[] {
  %s.1 = (s32[]{:T(128)}, f32[8]{0:T(8,128)S(1)}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%s.1), index=0
  %bound = s32[]{:T(128)} constant(12), metadata={op_name="f"}
  ROOT %lt = pred[]{:T(512)} compare(%i, %bound), direction=LT
}

ENTRY %main (x: f32[8]) -> f32[8] {
  %x = f32[8]{0:T(8,128)} parameter(0)
  ROOT %while.1 = (s32[]{:T(128)}, f32[8]{0:T(8,128)}) while(%x), condition=%cond, body=%body, metadata={op_name="f/while"}
}
"""  # noqa: E501


def launched(counts: Counter[str]) -> Counter[str]:
    """Leave out the bytes that launches move."""
    return Counter({kind: number for kind, number in counts.items() if kind != "bytes"})


def test_launches_belong_to_the_innermost_of_three_nested_loops() -> None:
    found = hlo.anatomy(hlo.parse(GPU))
    (step,) = found.steps
    assert (step.trips, step.loop, found.tick_loop) == (None, "while.2", "while.3")
    # The shuffle's sixteen rounds of two kernels, and the kernel that checks the loop's condition.
    assert launched(step.counts) == Counter(
        {
            "custom calls": 1,
            "fusions": 16 * 2 + 1,
            "copies": 1,
            "other kernels": 1,
            "loop checks": 1,
        }
    )
    # One kernel before the larger branch, two in the branch, one in the command buffer, and the
    # last check of the loop over steps.
    assert launched(found.tick) == Counter(
        {"fusions": 5, "copies": 2, "conditionals": 1, "collectives": 1, "loop checks": 1}
    )
    assert launched(found.evaluation) == Counter({"fusions": 2, "other kernels": 1})
    assert launched(found.once) == Counter({"copies": 1})


def test_totals_of_launches_and_waits() -> None:
    found = hlo.anatomy(hlo.parse(GPU))
    assert hlo.launches(found.steps[0].counts) == 36
    assert hlo.launches(found.tick) == 7
    assert hlo.syncs(found.tick) == 2
    assert hlo.syncs(found.evaluation) == 0


def test_a_known_trip_count_makes_the_check_free() -> None:
    known = GPU.replace(
        'op_name="f/while/body/while/body/tick/while"}',
        'op_name="f/while/body/while/body/tick/while"}, '
        'backend_config={"known_trip_count":{"n":"20"}}',
    )
    found = hlo.anatomy(hlo.parse(known))
    assert found.steps[0].trips == 20
    assert hlo.launches(found.steps[0].counts) == 35
    assert hlo.launches(found.tick) == 6
    assert hlo.syncs(found.steps[0].counts) == 0
    assert hlo.syncs(found.tick) == 1


def test_two_loops_over_steps_are_told_apart() -> None:
    line = next(each for each in GPU.splitlines() if each.startswith("  %while.2 ="))
    found = hlo.anatomy(hlo.parse(GPU.replace(line, line + "\n" + line.replace(".2 =", ".9 ="))))
    assert [step.loop for step in found.steps] == ["while.2", "while.9"]
    assert found.tick["loop checks"] == 2


def test_steps_of_a_dissolved_loop_belong_to_the_tick() -> None:
    found = hlo.anatomy(hlo.parse(TPU.replace("tick/mul", "tick/local_step/mul")))
    assert found.steps == []
    assert launched(found.tick) == Counter({"fusions": 1})
    assert launched(found.evaluation) == launched(found.once) == Counter()


def test_single_numbers_of_a_tpu_are_not_launches_but_arrays_are() -> None:
    array = hlo.parse(TPU.replace("s32[1,1]{1,0:T(1,128)}", "s32[1,2]{1,0:T(1,128)}"))
    assert launched(hlo.anatomy(array).tick) == Counter({"fusions": 1, "other kernels": 1})


def test_a_tpus_trip_count_is_the_bound_of_its_counter() -> None:
    program = hlo.parse(TPU)
    (loop,) = hlo.loops(program)
    assert hlo.trips_of(program, loop) == 12
    for line, other in [("compare(%i, %bound)", "compare(%i, %i)"), ("=LT", "=NE")]:
        assert hlo.trips_of(hlo.parse(TPU.replace(line, other)), loop) is None


def test_a_loop_whose_path_is_lost_is_where_its_body_is() -> None:
    lost = GPU.replace(', metadata={op_name="f/while/body/while/body/tick/while"}', "")
    assert hlo.anatomy(hlo.parse(lost)) == hlo.anatomy(hlo.parse(GPU))
    # All of the shuffle's body is inside a local step, so that it is no loop over steps itself.
    lost = GPU.replace(
        ', metadata={op_name="f/while/body/while/body/tick/while/body/local_step/while"}', ""
    )
    assert hlo.anatomy(hlo.parse(lost)) == hlo.anatomy(hlo.parse(GPU))


def test_a_listing_shows_what_is_counted_and_what_it_computes() -> None:
    program = hlo.parse(GPU)
    loops = {loop.name: loop for loop in hlo.loops(program)}
    step = list(hlo.list_trip(program, loops["while.2"]))
    assert [(each.depth, each.instruction.name) for each in step] == [
        (0, "gemm"),
        (0, "while.1"),
        (1, "round"),
        (1, "count"),
        (0, "copy.1"),
        (0, "sort.1"),
        (0, "less"),
    ]
    assert step[2].primitives == ["exp", "mul"]
    tick = list(hlo.list_trip(program, loops["while.3"], {"while.2"}))
    # Both branches are listed, of which only the larger one counts.
    assert " ".join(each.instruction.name for each in tick) == (
        "one conditional.1 zeros draw scale buffer first second background while.2 less gathered"
    )


@pytest.mark.parametrize("path", ["f/tick/mul", "tick", "f/vmap(tick)/mul", "jvp(tick)"])
def test_scopes_are_whole_names(path: str) -> None:
    assert hlo.has_scope(path, "tick")
    assert not hlo.has_scope(path.replace("tick", "ticks"), "tick")


def test_programs_without_ticks_are_refused() -> None:
    with pytest.raises(ValueError, match="0 loops around the scope 'tick'"):
        hlo.anatomy(hlo.parse(TPU.replace("/tick/", "/")))
    with pytest.raises(ValueError, match="ENTRY"):
        hlo.parse("HloModule empty\n")


MOVES = """\
%fused (p: u8[100,8], q: s32[4], r: f32[8,4]) -> f32[8,4] {
  %p = u8[100,8]{1,0} parameter(0)
  %q = s32[4]{0} parameter(1)
  %r = f32[8,4]{1,0} parameter(2)
  %flat = u8[100,8]{1,0} bitcast(%p)
  %rows = u8[4,8]{1,0} gather(%flat, %q), slice_sizes={1,8}
  ROOT %dot = f32[8,4]{1,0} dot(%rows, %r)
}

%in_place (s: f32[50,8], u: f32[1,8], i: s32[]) -> f32[50,8] {
  %s = f32[50,8]{1,0} parameter(0)
  %u = f32[1,8]{1,0} parameter(1)
  %i = s32[] parameter(2)
  ROOT %dus = f32[50,8]{1,0} dynamic-update-slice(%s, %u, %i, %i)
}

ENTRY %main (a: u8[100,8], b: s32[4], c: f32[8,4], d: f32[50,8], e: f32[1,8], f: s32[]) -> f32[8,4] {
  %a = u8[100,8]{1,0} parameter(0)
  %b = s32[4]{0} parameter(1)
  %c = f32[8,4]{1,0} parameter(2)
  %d = f32[50,8]{1,0} parameter(3)
  %e = f32[1,8]{1,0} parameter(4)
  %f = s32[] parameter(5)
  %store = f32[50,8]{1,0} fusion(%d, %e, %f), kind=kLoop, calls=%in_place
  %gemm = f32[8,4]{1,0} custom-call(%c, %c), custom_call_target="__cublas$gemm"
  ROOT %all = f32[8,4]{1,0} fusion(%a, %b, %gemm), kind=kCustom, calls=%fused
}
"""  # noqa: E501


def test_bytes_are_those_that_launches_need_of_their_arrays() -> None:
    """Of a table the rows that are looked up, and of a store the row that is written."""
    program = hlo.parse(MOVES)
    launches = [each for each in program.computations["main"] if each.kind is not None]
    moved = [hlo.count_bytes(program, "main", each) for each in launches]
    model = 4 * 8 * 4
    assert moved == [2 * 4 * 8 + 4, 3 * model, 4 * 8 + 4 * 4 + 2 * model]
    assert hlo.size_of("(bf16[2,3]{1,0}, pred[5]{0}, s32[], c64[2])") == 12 + 5 + 4 + 16


PRODUCTS = """\
%sum (p: f32[], q: f32[]) -> f32[] {
  ROOT %p = f32[] parameter(0)
}

%fused (a: f32[4,32,8], b: f32[4,8,16]) -> f32[4,32,16] {
  %a = f32[4,32,8]{2,1,0} parameter(0)
  %b = f32[4,8,16]{2,1,0} parameter(1)
  ROOT %dot.1 = f32[4,32,16]{2,1,0} dot(%a, %b), lhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_batch_dims={0}, rhs_contracting_dims={1}
}

ENTRY %main (x: f32[4,32,8], w: f32[4,8,16], i: f32[2,9,9,12], k: f32[3,3,6,10]) -> f32[4] {
  %x = f32[4,32,8]{2,1,0} parameter(0)
  %w = f32[4,8,16]{2,1,0} parameter(1)
  %i = f32[2,9,9,12]{3,2,1,0} parameter(2)
  %k = f32[3,3,6,10]{3,2,1,0} parameter(3)
  %fusion.1 = f32[4,32,16]{2,1,0} fusion(%x, %w), kind=kCustom, calls=%fused
  %gemm.1 = (f32[4,32,16]{2,1,0}, s8[64]{0}) custom-call(%x, %w), custom_call_target="__cublas$gemm", backend_config={"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["2"],"rhs_contracting_dimensions":["1"]}}}
  %ahead = (f32[2,7,7,10]{3,2,1,0}, u8[0]{0}) custom-call(%i, %k), window={size=3x3}, dim_labels=b01f_01io->b01f, feature_group_count=2, custom_call_target="__cudnn$convForward"
  %y = f32[2,7,7,10]{3,2,1,0} get-tuple-element(%ahead), index=0
  %filter = (f32[3,3,6,10]{3,2,1,0}, u8[0]{0}) custom-call(%i, %y), window={size=3x3}, dim_labels=b01f_01io->b01f, feature_group_count=2, custom_call_target="__cudnn$convBackwardFilter"
  %input = (f32[2,9,9,12]{3,2,1,0}, u8[0]{0}) custom-call(%y, %k), window={size=3x3}, dim_labels=b01f_01io->b01f, feature_group_count=2, custom_call_target="__cudnn$convBackwardInput"
  %tpu = f32[2,7,7,10]{3,2,1,0} convolution(%i, %k), window={size=3x3}, dim_labels=b01f_01io->b01f, feature_group_count=2
  ROOT %sum.1 = f32[4]{0} reduce(%x, %w), dimensions={1,2}, to_apply=%sum
}
"""  # noqa: E501


@pytest.mark.parametrize("name", ["fusion.1", "gemm.1", "ahead", "filter", "input", "tpu", "sum.1"])
def test_operations_of_products(name: str) -> None:
    """2 m n k of a matrix product; of a convolution k is the window times a group's channels."""
    program = hlo.parse(PRODUCTS)
    (launch,) = (each for each in program.computations["main"] if each.name == name)
    product, convolution = 2 * 4 * 32 * 16 * 8, 2 * (2 * 7 * 7 * 10) * 9 * 6
    expected = {"fusion.1": product, "gemm.1": product, "sum.1": 0}.get(name, convolution)
    assert hlo.count_operations(program, "main", launch) == expected
