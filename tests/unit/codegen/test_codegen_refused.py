"""What the generator refuses: kernels whose programs would race, and arguments that its rules do not know."""

import pytest
import torch
from torch.nn import functional as F

from memwall.codegen import NotGenerated
from memwall.codegen.generate import generate_nests
from tests.unit.odd_cases import CASES, Case, mixed, of, traced_case

aten = torch.ops.aten
F32, I64 = torch.float32, torch.int64


def transposed_before(x):
    before = x.t() + 1
    x.mul_(2)
    return before


def first_column_taken_away(x):
    return x.sub_(x[:, :1])


def columns_turned(x):
    return x.copy_(torch.cat((x[:, 1:], x[:, :1]), 1))


def part_before(x):
    before = x[:, :3] + 1
    x.mul_(2)
    return before


def rows_before(x, rows):
    before = x[rows]
    x.mul_(2)
    return before


def softmax_before(x):
    before = torch.softmax(x, -1)
    x.add_(1)
    return before


ELSEWHERE = "written over that is also read at other places"
LATER = "a later launch reads what an earlier one has overwritten"

#: group of ops → why no kernel of it is right
RACES = {
    "transposed": (transposed_before, of((13, 13)), ELSEWHERE),
    "broadcast": (first_column_taken_away, of((13, 13)), ELSEWHERE),
    "concatenated": (columns_turned, of((13, 13)), ELSEWHERE),
    "sliced": (part_before, of((13, 13)), LATER),
    "gathered": (rows_before, mixed(((13, 13), F32), ((4,), I64)), LATER),
}


#: functions with arguments that a rule would have to take notice of
UNKNOWN = {
    "scatter-reduce": (
        lambda x, i, v: aten.scatter.reduce(x, 1, i, v, reduce="add"),
        mixed(((13, 5), F32), ((4, 3), I64), ((4, 3), F32)), "a scatter that reduces by add",
    ),
    "scale-that-is-no-ratio": (
        lambda x: F.interpolate(x, scale_factor=2.1), of((2, 3, 3, 3)), "a magnification that is no whole number",
    ),
    "rounded-quotients": (lambda x: x // 0.1, of((5, 7)), "floats divided and rounded down"),
    "whole-powers": (lambda x: 2**x, mixed(((5, 7), torch.int8)), "a power that is no small whole number"),
    "whole-maxima": (lambda x: x.amax(0), mixed(((5, 7), I64)), "the extremum of int64"),
}  # fmt: skip


@pytest.mark.parametrize("name", [*RACES, *UNKNOWN])
def test_kernels_that_would_race_and_arguments_that_no_rule_knows_are_refused(name):
    function, inputs, reason = (RACES | UNKNOWN)[name]
    graph, flow, (group,), gpu = traced_case(Case(function, inputs, ()))
    with pytest.raises(NotGenerated, match=reason):
        generate_nests(graph, flow, group, gpu)


def test_it_depends_on_the_launches():
    """In one launch a row's program reads all of it before it writes; of two, the second reads what the first wrote."""
    graph, flow, (group,), gpu = traced_case(Case(softmax_before, of((13, 13)), ()))
    kernel = generate_nests(graph, flow, group, gpu, split=False)
    assert [launch.function for launch in kernel.launches] == ["rows"]
    with pytest.raises(NotGenerated, match=LATER):
        generate_nests(graph, flow, group, gpu, split=True)


def test_a_row_waits_until_all_its_warps_have_read_what_one_of_them_overwrites():
    graph, flow, (group,), gpu = traced_case(CASES["in-place-scales"])
    lines = generate_nests(graph, flow, group, gpu).source.splitlines()
    (barrier,) = (n for n, line in enumerate(lines) if "tl.debug_barrier()" in line)
    scales = next(line for line in lines if "float32[37, 1]" in line).partition(",")[0].strip()
    assert [n > barrier for n, line in enumerate(lines) if f"tl.load({scales} + " in line] == [False]
    assert [n > barrier for n, line in enumerate(lines) if f"tl.store({scales} + " in line] == [True]


def test_places_along_a_row_are_computed_in_64_bits():
    """Rows of 8,192 numbers that lie 2^19 apart end 2^32 behind their start."""
    graph, flow, (group,), gpu = traced_case(Case(lambda x: torch.softmax(x, 0), _on_meta(8192, 1 << 19), ()))
    source = generate_nests(graph, flow, group, gpu, persistent=True).source
    assert "r = tl.arange(0, RBLOCK)[None, :].to(tl.int64)" in source


def test_a_sum_over_a_broadcast_tensor_counts_in_64_bits():
    graph, flow, (group,), gpu = traced_case(Case(lambda x: x.expand(1 << 16, 1 << 16).sum(), _on_meta(1 << 16), ()))
    source = generate_nests(graph, flow, group, gpu).source
    assert "tl.arange(0, RBLOCK)[None, :].to(tl.int64)" in source


def _on_meta(*shape):
    return lambda: (torch.empty(shape, device="meta"),)
