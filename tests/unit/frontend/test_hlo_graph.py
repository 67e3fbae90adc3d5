"""HLO as a graph with kernels: counted by a second reader, bytes and FLOPs by hand."""

import re
from pathlib import Path

import pytest

from memwall.core.errors import UsageError
from memwall.frontend.hlo import parse
from memwall.frontend.hlo.convolutions import Window
from memwall.frontend.hlo.graph import HloWalk, graph_of
from memwall.frontend.hlo.groups import replica_groups
from memwall.frontend.hlo.module import HloArray, HloInstruction
from memwall.frontend.hlo.names import is_again, module_of, phase_of
from memwall.frontend.hlo.sheet import COPIES, HloArgument
from memwall.frontend.program import TraceOptions
from memwall.frontend.targets import named
from memwall.ops import graph_costs
from tests.unit.places import ROOT

DATA = ROOT / "tests" / "data" / "hlo"
DUMPS = sorted(DATA.glob("*.hlo"))


def read(name: str):
    return graph_of(parse((DATA / f"{name}.hlo").read_text(encoding="utf-8"), name))


def written(text: str, **said):
    """The graph of an entry's instructions, after whole computations."""
    *others, entry = text.strip().split("ENTRY:")
    body = "\n".join(f"  {line.strip()}" for line in entry.strip().splitlines())
    return graph_of(
        parse(f"HloModule f, is_scheduled=true\n\n{''.join(others)}\nENTRY %main () -> f32[] {{\n{body}\n}}\n"), **said
    )


FREE = ("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "all-reduce-done", "copy-done",
        "slice-done", "after-all")  # fmt: skip


def launches(text: str) -> int:
    """What launches a kernel in a scheduled text without branches: a loop's body as often as it runs."""
    bodies = {}
    for part in re.split(r"\n\n", text):
        head = re.match(r"(?:ENTRY )?%(\S+) .*\{$", part.partition("\n")[0])
        if head:
            bodies["ENTRY" if part.startswith("ENTRY") else head[1]] = part

    def count(name: str) -> int:
        ops = re.findall(r"^ +(?:ROOT )?%\S+ = (?:\(.*?\)|\S+) ([a-z][a-z\-]*)\(", bodies[name], re.M)
        loops = re.findall(r"body=%([\w.]+).*?known_trip_count\":\{\"n\":\"(\d+)", bodies[name])
        return sum(op not in FREE for op in ops) + sum(int(times) * count(body) for body, times in loops)

    return count("ENTRY")


@pytest.mark.parametrize("path", DUMPS, ids=lambda path: path.stem)
def test_what_a_second_reader_counts_is_launched(path: Path):
    text = path.read_text(encoding="utf-8")
    if "custom-call" in text and "AllocateBuffer" in text:
        pytest.skip("some of its custom calls launch nothing")
    assert len(graph_of(parse(text)).kernels) == launches(text)


@pytest.mark.parametrize("path", DUMPS, ids=lambda path: path.stem)
def test_every_op_is_modeled_and_of_one_kernel(path: Path):
    found = graph_of(parse(path.read_text(encoding="utf-8")))
    assert all(cost.modeled for cost in graph_costs(found.graph))
    assert [i for kernel in found.kernels for i in kernel.op_ids] == [op.id for op in found.graph.ops]


def products(found) -> int:
    pairs = zip(found.graph.ops, graph_costs(found.graph), strict=True)
    return sum(cost.total_flops for op, cost in pairs if op.op_class == "contraction")


@pytest.mark.parametrize("gpu", ["h100-sxm", "a100-80gb-sxm", "v100-sxm2-16gb", "tpu-v5e"])
def test_products_are_the_same_on_every_device(gpu):
    """Two products of 1024 x 512 x 2048, as Triton's fusions, cuBLAS's calls and a TPU's convolutions."""
    assert products(read(f"mlp_{gpu}")) == 2 * 2 * 1024 * 512 * 2048


def test_a_loop_is_written_out():
    """Seven steps of a product of 128 x 256 x 256."""
    found = read("loop_h100-sxm")
    assert products(found) == 7 * 2 * 128 * 256 * 256
    assert not found.notes


def test_a_list_of_kernels_has_those_of_a_loop_once():
    module = parse((DATA / "loop_h100-sxm.hlo").read_text(encoding="utf-8"), "loop")
    found = graph_of(module, each_once=True)
    assert products(found) == 2 * 128 * 256 * 256
    names = [kernel.name for kernel in found.kernels]
    assert len(names) == len({*names}) and "loop_compare_fusion" in names


def test_a_buffer_that_a_loop_fills_is_written_part_by_part():
    """Each step writes the next of seven sums."""
    found = read("loop_h100-sxm")
    parts = [found.graph.values[op.outputs[0]] for op in found.graph.ops if op.name == "lax.dynamic_update_slice"]
    assert [part.offset for part in parts] == list(range(7))
    assert {part.spec.numel for part in parts} == {1}
    assert len({part.storage for part in parts}) == 1


def test_a_device_multiplies_its_part_and_sums_with_its_row():
    found = read("sharded_h100-sxm")
    assert products(found) == 2 * 2 * (1024 // 2) * 512 * (2048 // 2)
    summed = next(op for op in found.graph.ops if "all_reduce" in op.name)
    assert (summed.attributes["ranks"], summed.attributes["group"]) == (2, "0-1")
    assert found.graph.specs(summed.inputs)[0].nbytes == 512 * 512 * 2


def test_arrays_in_vmem_are_known():
    found = read("mlp_tpu-v5e")
    assert {array.space for array in found.layouts.values()} == {0, 1}
    assert found.layouts[found.graph.inputs[0]].tiles == ((8, 128), (2, 1))
    assert [kernel.cycles for kernel in found.kernels if kernel.kind == "output"] == [32540, 20274]


def test_arguments_have_the_roles_that_the_caller_says():
    module = parse((DATA / "mlp_h100-sxm.hlo").read_text(encoding="utf-8"))
    found = graph_of(module, [HloArgument("parameter", "w1"), HloArgument("parameter", "w2")])
    assert (len(found.graph.parameters), len(found.graph.inputs)) == (2, 1)
    assert [storage.name for storage in found.graph.storages[:2]] == ["w1", "w2"]


def test_arguments_are_told_apart_by_their_bytes():
    """w1 and w2 are of 2 MiB each, x of 1 MiB: what is said of x comes first here, and last in the program."""
    module = parse((DATA / "mlp_h100-sxm.hlo").read_text(encoding="utf-8"))
    known = [HloArgument("input", "x", 2**20), *(HloArgument("parameter", name, 2**21) for name in ("w1", "w2"))]
    found = graph_of(module, known)
    assert [(storage.name, storage.role) for storage in found.graph.storages[:3]] == [
        ("w1", "parameter"), ("w2", "parameter"), ("x", "input"),
    ]  # fmt: skip


def test_a_fusion_reads_of_a_slice_the_part_alone():
    found = written(
        """%part (p: f32[64,128]) -> f32[8,128] {
  %p = f32[64,128]{1,0} parameter(0)
  %s = f32[8,128]{1,0} slice(%p), slice={[16:24], [0:128]}
  ROOT %n = f32[8,128]{1,0} negate(%s)
}
ENTRY:
%x = f32[64,128]{1,0} parameter(0)
ROOT %f = f32[8,128]{1,0} fusion(%x), kind=kLoop, calls=%part"""
    )
    (op,) = found.graph.ops
    value = found.graph.values[op.inputs[0]]
    assert (value.spec.nbytes, value.offset) == (8 * 128 * 4, 16 * 128)


def test_a_copy_to_another_layout_has_its_strides():
    found = written("ENTRY:\n%x = f32[8,16]{1,0} parameter(0)\nROOT %c = f32[8,16]{0,1} copy(%x)")
    assert found.graph.specs(found.graph.outputs)[0].strides == (1, 8)


def test_a_bitcast_launches_nothing_and_keeps_the_bytes():
    found = written(
        "ENTRY:\n%x = f32[8,16]{1,0} parameter(0)\n%b = f32[16,8]{0,1} bitcast(%x)\nROOT %n = f32[16,8]{0,1} negate(%b)"
    )
    assert len(found.kernels) == 1
    assert found.graph.specs(found.graph.ops[0].inputs)[0].strides == (1, 16)


ADD = """%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %s = f32[] add(%a, %b)
}
"""


def test_a_scatter_into_its_operand_moves_the_updates_alone():
    """Four rows of 128 floats are read, added to and written; indices are four integers."""
    found = written(
        f"""{ADD}%put (o: f32[64,128], i: s32[4,1], u: f32[4,128]) -> f32[64,128] {{
  %o = f32[64,128]{{1,0}} parameter(0)
  %i = s32[4,1]{{1,0}} parameter(1)
  %u = f32[4,128]{{1,0}} parameter(2)
  ROOT %s = f32[64,128]{{1,0}} scatter(%o, %i, %u), update_window_dims={{1}}, to_apply=%add
}}
ENTRY:
%x = f32[64,128]{{1,0}} parameter(0)
%j = s32[4,1]{{1,0}} parameter(1)
%v = f32[4,128]{{1,0}} parameter(2)
%c = f32[64,128]{{1,0}} copy(%x)
ROOT %f = f32[64,128]{{1,0}} fusion(%c, %j, %v), kind=kInput, calls=%put"""
    )
    _, put = graph_costs(found.graph)
    assert found.graph.ops[1].name == "lax.scatter_add"
    assert (put.read_bytes, put.write_bytes, put.total_flops) == (2 * 4 * 128 * 4 + 4 * 4, 4 * 128 * 4, 4 * 128)


def loop(condition: str) -> str:
    return f"""%body (s: (s32[], f32[8])) -> (s32[], f32[8]) {{
  %s = (s32[], f32[8]{{0}}) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %one = s32[] constant(1)
  %j = s32[] add(%i, %one)
  %x = f32[8]{{0}} get-tuple-element(%s), index=1
  %y = f32[8]{{0}} negate(%x)
  ROOT %t = (s32[], f32[8]{{0}}) tuple(%j, %y)
}}
%goes (s: (s32[], f32[8])) -> pred[] {{
  %s = (s32[], f32[8]{{0}}) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %x = f32[8]{{0}} get-tuple-element(%s), index=1
  {condition}
}}
ENTRY:
%zero = s32[] constant(0)
%p = f32[8]{{0}} parameter(0)
%init = (s32[], f32[8]{{0}}) tuple(%zero, %p)
ROOT %w = (s32[], f32[8]{{0}}) while(%init), condition=%goes, body=%body"""


def test_a_loop_without_a_length_runs_as_long_as_its_counter_says():
    found = written(loop("%n = s32[] constant(5)\n  ROOT %lt = pred[] compare(%i, %n), direction=LT"))
    assert sum(op.name == "lax.neg" for op in found.graph.ops) == 5
    assert not found.notes


def test_a_loop_whose_length_data_decide_runs_once_and_says_so():
    data = "%a = f32[1]{0} slice(%x), slice={[0:1]}\n  %b = f32[] bitcast(%a)\n  %n = f32[] constant(5)\n"
    found = written(loop(f"{data}  ROOT %lt = pred[] compare(%b, %n), direction=LT"))
    assert sum(op.name == "lax.neg" for op in found.graph.ops) == 1
    assert found.notes == ("A loop whose length the program does not say runs once: w.",)


def test_a_loop_of_too_many_ops_is_refused():
    endless = loop("%n = s32[] constant(1000000)\n  ROOT %lt = pred[] compare(%i, %n), direction=LT")
    with pytest.raises(UsageError, match="more than 100 ops"):
        written(endless, max_ops=100)


@pytest.mark.parametrize("said", ["", ', backend_config={"known_trip_count":{"n":"99999999999"}}'])
def test_a_loop_that_does_nothing_ends_too(said):
    """An endless loop of a number that no op changes."""
    text = """%again (s: (s32[])) -> pred[] {
      %s = (s32[]) parameter(0)
      ROOT %t = pred[] constant(true)
    }
    %body (s: (s32[])) -> (s32[]) {
      ROOT %s = (s32[]) parameter(0)
    }
    ENTRY:
    %zero = s32[] constant(0)
    %init = (s32[]) tuple(%zero)
    ROOT %w = (s32[]) while(%init), condition=%again, body=%body"""
    with pytest.raises(UsageError, match="more than 100 ops"):
        written("\n".join(line.strip() for line in text.splitlines()) + said, max_ops=100)


#: 40 computations, each of which calls the one before it twice, down to one that does nothing
DOUBLING = "%c0 (a: f32[8]) -> f32[8] {\nROOT %a = f32[8]{0} parameter(0)\n}\n" + "".join(
    f"%c{n} (a: f32[8]) -> f32[8] {{\n%a = f32[8]{{0}} parameter(0)\n%b = f32[8]{{0}} call(%a), to_apply=%c{n - 1}\n"
    f"ROOT %d = f32[8]{{0}} call(%b), to_apply=%c{n - 1}\n}}\n"
    for n in range(1, 40)
)


def test_calls_that_do_nothing_end():
    """2 to the power of 39 of them."""
    entry = "%x = f32[8]{0} parameter(0)\nROOT %y = f32[8]{0} call(%x), to_apply=%c39"
    with pytest.raises(UsageError, match="more than 100 ops"):
        written(f"{DOUBLING}ENTRY:\n{entry}", max_ops=100)


def test_the_work_of_a_computation_is_counted_once_however_often_it_is_called():
    """Two calls of eight elements each, and what they call: w(n) = 2 (8 + w(n - 1)) = 16 (2^n - 1)."""
    entry = "ENTRY %main (a: f32[8]) -> f32[8] {\nROOT %a = f32[8]{0} parameter(0)\n}\n"
    assert HloWalk(parse(f"HloModule f\n\n{DOUBLING}{entry}"), 100).work_of("c39") == 16 * (2**39 - 1)


CONDITIONAL = """%small (a: f32[8]) -> f32[8] {
  %a = f32[8]{0} parameter(0)
  ROOT %n = f32[8]{0} negate(%a)
}
%large (a: f32[8]) -> f32[8] {
  %a = f32[8]{0} parameter(0)
  %n = f32[8]{0} exponential(%a)
  ROOT %m = f32[8]{0} exponential(%n)
}
ENTRY:
%which = pred[] parameter(0)
%x = f32[8]{0} parameter(1)
ROOT %c = f32[8]{0} conditional(%which, %x, %x), true_computation=%small, false_computation=%large"""


def test_a_conditional_takes_the_branch_with_most_work():
    found = written(CONDITIONAL)
    assert [op.name for op in found.graph.ops] == ["lax.exp", "lax.exp"]
    assert "large" in found.notes[0]


def test_a_product_is_more_work_than_a_sum_of_as_many_bytes():
    text = CONDITIONAL.replace("f32[8]{0}", "f32[8,8]{1,0}").replace("f32[8]", "f32[8,8]")
    product = "dot(%a, %a), lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    found = written(text.replace("negate(%a)", product))
    assert [op.name for op in found.graph.ops] == ["lax.dot_general"]


def test_a_list_of_kernels_has_those_of_every_branch():
    assert [op.name for op in written(CONDITIONAL, each_once=True).graph.ops] == ["lax.neg", "lax.exp", "lax.exp"]


def test_a_copy_that_is_awaited_later_runs_beside_what_is_in_between():
    found = written(
        """ENTRY:
%x = f32[64]{0} parameter(0)
%y = f32[64]{0} parameter(1)
%s = (f32[64]{0}, f32[64]{0}, u32[]) copy-start(%x)
%n = f32[64]{0} negate(%y)
%d = f32[64]{0} copy-done(%s)
ROOT %a = f32[64]{0} add(%n, %d)"""
    )
    copied, between, after = found.graph.ops
    assert (copied.stream, between.stream, after.stream) == (COPIES, 0, 0)
    assert (between.waits, after.waits) == ((), (copied.id,))


def test_what_is_started_and_never_awaited_is_refused():
    with pytest.raises(UsageError, match="nothing waits for s"):
        written("ENTRY:\n%x = f32[64]{0} parameter(0)\n%s = (f32[64]{0}, f32[64]{0}, u32[]) copy-start(%x)")


def window(text: str, labels: str, *shapes: tuple[int, ...]) -> Window:
    one = HloInstruction("c", "convolution", (), (), f"window={{{text}}}, dim_labels={labels}")
    return Window.of(one, [HloArray("float32", shape, tuple(reversed(range(len(shape))))) for shape in shapes])


@pytest.mark.parametrize(
    ("text", "labels", "shapes", "numbers"),
    [
        # a matrix product
        ("", "bf_io->bf", ((64, 32), (32, 16), (64, 16)), [[[1], [0]], [[], []]]),
        # a batch of 2 x 8 products, of each axis of which a result meets one element
        ("size=2x8 stride=1x7 lhs_dilate=2x8", "01bf_01oi->01bf",
         ((2, 8, 256, 64), (2, 8, 256, 64), (2, 8, 256, 256)), [[[3], [3]], [[0, 1], [0, 1]]]),
        ("size=2x8 stride=2x8 pad=1_1x7_7 lhs_dilate=1x7 rhs_reversal=1x1", "01bf_01io->01bf",
         ((2, 8, 256, 256), (2, 8, 256, 64), (2, 8, 256, 64)), [[[3], [2]], [[0, 1], [0, 1]]]),
        # a result with axes of the right operand's: 3 x 8 of them
        ("size=1x3x8 pad=0_0x2_2x7_7 rhs_reversal=0x1x1", "0bf12_12oi0->0b12f",
         ((2, 256, 512, 1, 1), (3, 8, 64, 512, 1), (2, 256, 3, 8, 64)), [[[2], [3]], [[], []]]),
    ],
)  # fmt: skip
def test_a_dot_that_a_tpu_writes_as_a_convolution_is_a_dot(text, labels, shapes, numbers):
    assert window(text, labels, *shapes).as_dot()["dimension_numbers"] == numbers


def test_a_batch_of_many_products_is_a_dot():
    """100,000 products: of 10^10 pairs of places those on the diagonal meet."""
    made = window("size=100000 stride=99999 lhs_dilate=100000", "0bf_0oi->0bf", *((100_000, 8, 8),) * 3)
    assert made.as_dot()["dimension_numbers"] == [[[2], [2]], [[0], [0]]]


def test_a_real_window_is_no_dot():
    made = window("size=3x3 pad=1_1x1_1", "b01f_01io->b01f", (8, 56, 56, 64), (3, 3, 64, 128), (8, 56, 56, 128))
    assert made.as_dot() is None
    assert made.axes[0].met[0] == 3 * 56 - 2  # at both ends one of three is padding


def test_a_dot_may_take_a_part_of_its_operand_by_padding():
    """Of 36 heads of queries, keys and values those of the keys: 12 to 24 meet 12 of the other operand."""
    made = window("size=8x12 stride=7x11 pad=0_0x-144_-144 lhs_dilate=8x12", "0b1f_0o1i->01bf",
                  (8, 1024, 36, 64), (8, 1024, 12, 64), (8, 12, 1024, 1024))  # fmt: skip
    assert made.as_dot()["dimension_numbers"] == [[[3], [3]], [[0, 2], [0, 2]]]
    assert made.part(HloArray("float32", (8, 1024, 36, 64), (3, 2, 1, 0))) == [(0, 8), (0, 1024), (12, 24), (0, 64)]


@pytest.mark.parametrize(
    ("said", "group"),
    [
        ("replica_groups={{0,1},{2,3}}", [0, 1]),
        ("replica_groups=[2,2]<=[4]", [0, 1]),
        ("replica_groups=[2,2]<=[2,2]T(1,0)", [0, 2]),
        ("replica_groups={}", [0, 1, 2, 3]),
        ("source_target_pairs={{0,1},{1,0}}", [0, 1]),
    ],
)
def test_the_devices_of_a_message(said, group):
    assert replica_groups(HloInstruction("r", "all-reduce", (), (), said), 4) == group


def test_devices_that_no_program_has_are_refused():
    with pytest.raises(UsageError, match=r"line 9 of the HLO: r has groups of 9,999,999,999,999 devices"):
        written(
            "%s (a: f32[]) -> f32[] {\n  ROOT %a = f32[] parameter(0)\n}\nENTRY:\n%x = f32[64]{0} parameter(0)\n"
            "ROOT %r = f32[64]{0} all-reduce(%x), to_apply=%s, replica_groups=[1,9999999999999]<=[9999999999999]"
        )


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("jit(step)/jit(main)/transpose(jvp(GPT))/layers_0/attn/dot_general", "GPT.layers_0.attn"),
        ("jit(f)/call_exported/jit(gpt)/while/body/closed_call/dot_general", ""),
        ("jit(f)/jvp(Net/block)/rematted_computation/Dense_0/add;jit(f)/x/mul", "Net.block.Dense_0"),
    ],
)
def test_a_name_says_the_module(name, module):
    assert module_of(name) == module


def test_a_name_says_the_phase_and_what_is_computed_again():
    name = "jit(f)/transpose(jvp(Net))/rematted_computation/mul"
    assert (phase_of(name), is_again(name)) == ("backward", True)
    assert (phase_of("jit(f)/jvp(Net)/mul"), is_again("jit(f)/jvp(Net)/mul")) == ("forward", False)


def test_what_cannot_be_of_xla_is_refused_by_its_line():
    with pytest.raises(UsageError, match=r"^f, line 6: slice s is not as XLA writes it \('slice'\)$"):
        written("ENTRY:\n%x = f32[64]{0} parameter(0)\nROOT %s = f32[8]{0} slice(%x)")


def test_a_file_of_hlo_is_a_target():
    program = named(str(DATA / "sharded_h100-sxm.hlo"))
    traced = program.traced(TraceOptions())
    assert traced.workload.name == "sharded_h100-sxm"
    assert traced.facts.notes[0].startswith("The file is an optimized program")
    assert program.exported(TraceOptions(), "cuda").startswith("HloModule")


def test_before_optimization_rearrangements_are_views_and_policy_xla_refuses(tmp_path):
    path = tmp_path / "module_0001.jit_f.before_optimizations.txt"
    path.write_text(
        "HloModule jit_f\n\nENTRY main.4 {\n  Arg_0.1 = f32[8,16]{1,0} parameter(0)\n"
        "  transpose.2 = f32[16,8]{0,1} transpose(Arg_0.1), dimensions={1,0}\n"
        "  ROOT negate.3 = f32[16,8]{0,1} negate(transpose.2)\n}\n",
        encoding="utf-8",
    )
    program = named(str(path))
    view, negated = program.traced(TraceOptions()).graph.ops
    assert (view.name, view.is_view, negated.name) == ("lax.transpose", True, "lax.neg")
    with pytest.raises(UsageError, match="is HLO before optimization: policy xla"):
        program.exported(TraceOptions(), "cuda")


def test_a_text_that_is_no_hlo_is_no_target(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("some notes\n", encoding="utf-8")
    with pytest.raises(UsageError, match=r"notes\.txt, line 1: this is no HLO"):
        named(str(path)).traced(TraceOptions())


def test_cudnns_attention_counts_what_a_causal_mask_leaves():
    """8 heads of 64, 256 queries and keys: each query sees the keys up to its own, 256 x 257 / 2 pairs."""
    config = (
        '{"cudnn_fmha_backend_config":{"mask_type":"CAUSAL","bmm1_dot_dimension_numbers":'
        '{"lhs_batch_dimensions":["0","2"]}}}'
    )
    found = written(
        "ENTRY:\n%q = bf16[2,256,8,64]{3,2,1,0} parameter(0)\n%k = bf16[2,256,8,64]{3,2,1,0} parameter(1)\n"
        "%a = (bf16[2,8,256,64]{3,1,2,0}, u8[0]{0}) custom-call(%q, %k, %k), "
        f'custom_call_target="__cudnn$fmhaSoftmax", backend_config={config}\n'
        "ROOT %o = bf16[2,8,256,64]{3,1,2,0} get-tuple-element(%a), index=0"
    )
    (cost,) = graph_costs(found.graph)
    assert cost.total_flops == 2 * 2 * 64 * 2 * 8 * 256 * 257 // 2
    assert [kernel.kind for kernel in found.kernels] == ["__cudnn$fmhaSoftmax"]


@pytest.mark.parametrize(
    ("target", "shapes"),
    [
        ("__cudnn$convForward", ("8,28,28,64", "128,3,3,64", "8,28,28,128")),
        ("__cudnn$convBackwardInput", ("8,28,28,128", "128,3,3,64", "8,28,28,64")),
        ("__cudnn$convBackwardFilter", ("8,28,28,64", "8,28,28,128", "128,3,3,64")),
    ],
)
def test_cudnns_convolutions_and_their_gradients_are_as_many_flops(target, shapes):
    """8 images of 28 x 28, 64 channels to 128, windows of 3 x 3, padding counted as data."""
    first, second, result = (f"f32[{shape}]{{3,2,1,0}}" for shape in shapes)
    found = written(
        f"ENTRY:\n%a = {first} parameter(0)\n%b = {second} parameter(1)\n"
        f"ROOT %c = ({result}, u8[0]{{0}}) custom-call(%a, %b), window={{size=3x3 pad=1_1x1_1}}, "
        f'dim_labels=b01f_o01i->b01f, custom_call_target="{target}"'
    )
    (cost,) = graph_costs(found.graph)
    assert cost.total_flops == 2 * 8 * 28 * 28 * 64 * 128 * 9


def library(operands: str, result: str, said: str):
    """The cost of one call of a library, and its graph."""
    shapes = operands.split()
    given = "\n".join(f"%p{n} = {shape} parameter({n})" for n, shape in enumerate(shapes))
    names = ", ".join(f"%p{n}" for n in range(len(shapes)))
    found = written(f"ENTRY:\n{given}\nROOT %c = {result} custom-call({names}), {said}")
    return graph_costs(found.graph), found.graph


PRODUCT = '"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"]}'


def test_a_product_that_keeps_its_sum_before_the_activation_writes_both():
    """[512, 1024] x [1024, 256]; the sum is kept beside what GELU makes of it, the scratch memory is not written."""
    _, graph = library(
        "f32[512,1024]{1,0} f32[1024,256]{1,0}",
        "(f32[512,256]{1,0}, f32[512,256]{1,0}, s8[4194304]{0})",
        'custom_call_target="__cublas$lt$matmul", '
        f'backend_config={{"gemm_backend_config":{{{PRODUCT},"epilogue":"GELU_AUX"}}}}',
    )
    product, kept, active = graph.ops
    assert [op.name for op in graph.ops] == ["lax.dot_general", "lax.copy", "lax.erf"]
    assert kept.inputs == active.inputs == product.outputs
    assert {*graph.outputs} > {*kept.outputs, *active.outputs}


def test_factors_of_a_product_in_eight_bits_are_not_added_to_it():
    costs, _ = library(
        "f8e4m3fn[512,1024]{1,0} f8e4m3fn[1024,256]{0,1} f32[] f32[]",
        "(bf16[512,256]{1,0}, s8[4194304]{0})",
        f'custom_call_target="__cublas$lt$matmul$f8", backend_config={{"gemm_backend_config":{{{PRODUCT}}}}}',
    )
    assert sum(cost.total_flops for cost in costs) == 2 * 512 * 1024 * 256


@pytest.mark.parametrize("target", ["cusolver_potrf_ffi", "lapack_spotrf_ffi", "__cusolver$cholesky"])
def test_a_factorization_counts_as_one(target):
    """n^3 / 3 of a matrix of 256."""
    ((cost,), _) = library("f32[256,256]{0,1}", "(f32[256,256]{0,1}, s32[])", f'custom_call_target="{target}"')
    assert cost.total_flops == 256**3 // 3


def test_a_real_transform_is_half_of_a_complex_one():
    """5/2 n log2 n of each of 256 rows of 4096, both ways."""
    for operand, result, kind in (
        ("f32[256,4096]", "c64[256,2049]", "RFFT"),
        ("c64[256,2049]", "f32[256,4096]", "IRFFT"),
    ):
        found = written(
            f"ENTRY:\n%x = {operand}{{1,0}} parameter(0)\n"
            f"ROOT %f = {result}{{1,0}} fft(%x), fft_type={kind}, fft_length={{4096}}"
        )
        assert sum(cost.total_flops for cost in graph_costs(found.graph)) == 256 * 5 * 4096 * 12 // 2


def test_the_place_of_an_extreme_is_found_by_comparisons():
    """Elements and their places, as XLA reduces them: no FLOPs, and of two parts' extremes both are read."""
    region = """%r (a: f32[], i: s32[], b: f32[], j: s32[]) -> (f32[], s32[]) {
      %a = f32[] parameter(0)
      %i = s32[] parameter(1)
      %b = f32[] parameter(2)
      %j = s32[] parameter(3)
      %lt = pred[] compare(%i, %j), direction=LT
      %gt = pred[] compare(%a, %b), direction=GT
      %x = f32[] select(%gt, %a, %b)
      %y = s32[] select(%gt, %i, %j)
      ROOT %t = (f32[], s32[]) tuple(%x, %y)
    }
    ENTRY:
    %x = f32[8,4]{1,0} parameter(0)
    %n = s32[8,4]{1,0} parameter(1)
    %z = f32[] constant(-inf)
    %o = s32[] constant(0)
    ROOT %m = (f32[8]{0}, s32[8]{0}) reduce(%x, %n, %z, %o), dimensions={1}, to_apply=%r"""
    found = written("\n".join(line.strip() for line in region.splitlines()))
    (cost,) = graph_costs(found.graph)
    assert found.graph.ops[0].name == "lax.argmax" and cost.total_flops == 0
    assert (cost.read_bytes, cost.write_bytes) == (2 * 8 * 4 * 4, 2 * 8 * 4)


@pytest.mark.parametrize(("scheduled", "adds"), [("false", 64 * 16), ("true", 64 * 16 * 16)])
def test_a_window_over_all_before_a_place_is_a_scan_before_optimization(scheduled, adds):
    """64 rows of 16 running sums: a compiled program goes over each window."""
    text = (
        f"HloModule f, is_scheduled={scheduled}\n\n%s (a: f32[], b: f32[]) -> f32[] {{\n  %a = f32[] parameter(0)\n"
        "  %b = f32[] parameter(1)\n  ROOT %c = f32[] add(%a, %b)\n}\n\n"
        "ENTRY %main (x: f32[64,16]) -> f32[64,16] {\n  %x = f32[64,16]{1,0} parameter(0)\n"
        "  %z = f32[] constant(0)\n"
        "  ROOT %w = f32[64,16]{1,0} reduce-window(%x, %z), window={size=1x16 pad=0_0x15_0}, to_apply=%s\n}\n"
    )
    assert sum(cost.total_flops for cost in graph_costs(graph_of(parse(text)).graph)) == adds
