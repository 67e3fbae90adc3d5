"""StableHLO as graphs: calls, loops, reductions and places by hand; and what a wrong file is told."""

import sys

import pytest

import memwall
from memwall.core.errors import MissingError, UsageError

jax = pytest.importorskip("jax", reason="needs JAX")

MODULE = "module @m {{ {functions} func.func public @main({arguments}) -> ({results}) {{ {body} }} }}"


def made(tmp_path, arguments, results, body, functions="", name="model.mlir"):
    path = tmp_path / name
    path.write_text(MODULE.format(arguments=arguments, results=results, body=body, functions=functions))
    return memwall.profile(str(path), gpu="h100-sxm")


def names(profile):
    return [op.name for op in profile.graph.ops]


def flops(profile):
    return sum(cost.total_flops for cost in profile.costs[0])


X, Y = "%x: tensor<8x16xf32>", "tensor<8x16xf32>"


def test_a_product_is_a_dot_general_with_its_axes(tmp_path):
    body = """%0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT]
              : (tensor<8x16xf32>, tensor<16x32xf32>) -> tensor<8x32xf32> return %0 : tensor<8x32xf32>"""
    found = made(tmp_path, f"{X}, %w: tensor<16x32xf32>", "tensor<8x32xf32>", body)
    (op,) = found.graph.ops
    assert op.name == "lax.dot_general" and op.attributes["dimension_numbers"] == [[[1], [0]], [[], []]]
    assert flops(found) == 2 * 8 * 16 * 32


def test_a_splat_constant_is_a_number_and_no_array(tmp_path):
    body = f"%c = stablehlo.constant dense<2.0> : {Y} %0 = stablehlo.multiply %x, %c : {Y} return %0 : {Y}"
    found = made(tmp_path, X, Y, body)
    assert names(found) == ["lax.mul"] and found.costs[0][0].read_bytes == 4 * 8 * 16


def test_other_constants_are_weights(tmp_path):
    body = """%c = stablehlo.constant dense<[1.0, 2.0]> : tensor<2xf32> %0 = stablehlo.add %x, %c : tensor<2xf32>
              return %0 : tensor<2xf32>"""
    assert made(tmp_path, "%x: tensor<2xf32>", "tensor<2xf32>", body).workload.parameters == 2


def test_what_rearranges_is_a_view(tmp_path):
    body = """%0 = stablehlo.transpose %x, dims = [1, 0] : (tensor<8x16xf32>) -> tensor<16x8xf32>
              %1 = stablehlo.exponential %0 : tensor<16x8xf32> return %1 : tensor<16x8xf32>"""
    found = made(tmp_path, X, "tensor<16x8xf32>", body)
    view, op = found.graph.ops
    assert view.name == "lax.transpose" and view.is_view
    assert found.graph.values[op.inputs[0]].spec.strides == (1, 16)


def test_a_reduction_is_named_by_its_body(tmp_path):
    body = """%c = stablehlo.constant dense<0.0> : tensor<f32>
              %0 = stablehlo.reduce(%x init: %c) applies stablehlo.add across dimensions = [1]
                : (tensor<8x16xf32>, tensor<f32>) -> tensor<8xf32>
              %1 = stablehlo.reduce(%0 init: %c) applies stablehlo.maximum across dimensions = [0]
                : (tensor<8xf32>, tensor<f32>) -> tensor<f32> return %1 : tensor<f32>"""
    assert names(made(tmp_path, X, "tensor<f32>", body)) == ["lax.reduce_sum", "lax.reduce_max"]


LOOP = """
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %1:2 = stablehlo.while(%i = %zero, %h = %x) : tensor<i32>, tensor<8x16xf32>
    cond {{
      %n = stablehlo.constant dense<{trips}> : tensor<i32>
      %t = stablehlo.compare LT, %i, {limit}, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %t : tensor<i1>
    }} do {{
      %one = stablehlo.constant dense<1> : tensor<i32>
      %j = stablehlo.add %i, %one : tensor<i32>
      %g = stablehlo.tanh %h : tensor<8x16xf32>
      stablehlo.return %j, %g : tensor<i32>, tensor<8x16xf32>
    }}
  return %1#1 : tensor<8x16xf32>"""


def test_a_loop_with_a_counter_is_written_out(tmp_path):
    found = made(tmp_path, X, Y, LOOP.format(trips=5, limit="%n"))
    assert names(found) == ["lax.tanh"] * 5 and [op.module for op in found.graph.ops] == ["0", "1", "2", "3", "4"]


def test_a_loop_to_a_number_of_the_data_is_written_once_and_said(tmp_path):
    found = made(tmp_path, f"{X}, %m: tensor<i32>", Y, LOOP.format(trips=5, limit="%m"))
    assert names(found).count("lax.tanh") == 1
    assert "a while loop whose trips depend on data is counted once" in found.traced.notes


def test_a_call_is_entered(tmp_path):
    function = f"func.func private @twice(%a: {Y}) -> {Y} {{ %0 = stablehlo.add %a, %a : {Y} return %0 : {Y} }}"
    body = f"%0 = call @twice(%x) : ({Y}) -> {Y} %1 = call @twice(%0) : ({Y}) -> {Y} return %1 : {Y}"
    assert names(made(tmp_path, X, Y, body, function)) == ["lax.add", "lax.add"]


def test_a_custom_call_is_kept_under_its_name(tmp_path):
    body = f"%0 = stablehlo.custom_call @my.kernel(%x) : ({Y}) -> {Y} return %0 : {Y}"
    found = made(tmp_path, X, Y, body)
    assert found.coverage.unmodeled == ("custom_call.my_kernel",)
    assert found.costs[0][0].bytes == 2 * 4 * 8 * 16


def test_a_routine_of_a_library_is_its_primitive(tmp_path):
    """Cholesky of 16 x 16: 16^3 / 3 = 1365 FLOP, in whatever library."""
    kind = "tensor<16x16xf32>"
    for target in ("cusolver_potrf_ffi", "lapack_spotrf_ffi"):
        body = f"""%0:2 = stablehlo.custom_call @{target}(%x) : ({kind}) -> ({kind}, tensor<i32>)
                   return %0#0 : {kind}"""
        found = made(tmp_path, f"%x: {kind}", kind, body)
        assert names(found) == ["lax.cholesky"] and flops(found) == 1365


def scanned(params, x):
    def layer(h, w):
        with jax.named_scope("layer"):
            return jax.numpy.tanh(h @ w), h.sum()

    return jax.lax.scan(layer, x, params["w"])


def exported(tmp_path, function, *arguments):
    path = tmp_path / "model.jax"
    path.write_bytes(jax.export.export(jax.jit(function), platforms=["cuda"])(*arguments).serialize())
    return memwall.profile(str(path), gpu="h100-sxm")


def array(*shape):
    return jax.ShapeDtypeStruct(shape, jax.numpy.float32)


def test_a_scan_reads_each_slice_of_its_weights_and_writes_its_results_in_place(tmp_path):
    """Three layers [4, 8] x [8, 8]; the sums are parts of one array."""
    found = exported(tmp_path, scanned, {"w": array(3, 8, 8)}, array(4, 8))
    graph = found.graph
    dots = [op for op in graph.ops if op.name == "lax.dot_general"]
    assert [graph.values[op.inputs[1]].offset for op in dots] == [0, 64, 128]
    assert [op.module for op in dots] == ["0.layer", "1.layer", "2.layer"]
    puts = [op for op in graph.ops if op.name == "lax.dynamic_update_slice"]
    assert [graph.values[op.outputs[0]].offset for op in puts] == [0, 1, 2]
    assert found.workload.parameters == 3 * 8 * 8 and "test_stablehlo.py:" in dots[0].source


def test_an_artifact_for_several_platforms_is_that_of_the_first(tmp_path):
    made = jax.export.export(jax.jit(jax.numpy.tanh), platforms=["cuda", "cpu"])(array(4, 8))
    (tmp_path / "model.jax").write_bytes(made.serialize())
    found = memwall.profile(str(tmp_path / "model.jax"), gpu="h100-sxm")
    assert [spec.shape for spec in found.graph.specs(found.graph.inputs)] == [(4, 8)] and names(found) == ["lax.tanh"]


def test_gradients_are_of_the_backward_phase(tmp_path):
    def loss(params, x):
        return (jax.numpy.tanh(x @ params["w"]) ** 2).sum()

    found = exported(tmp_path, jax.grad(loss), {"w": array(8, 8)}, array(4, 8))
    phases = {op.phase for op in found.graph.ops if op.name == "lax.dot_general"}
    assert phases == {"forward", "backward"} and found.workload.mode == "training"


def test_bytecode_is_the_text(tmp_path):
    arguments = ({"w": array(3, 8, 8)}, array(4, 8))
    found = jax.export.export(jax.jit(scanned), platforms=["cuda"])(*arguments)
    (tmp_path / "a.mlirbc").write_bytes(found.mlir_module_serialized)
    (tmp_path / "b.mlir").write_text(found.mlir_module())
    first, second = (memwall.profile(str(tmp_path / name), gpu="h100-sxm") for name in ("a.mlirbc", "b.mlir"))
    assert names(first) == names(second) and flops(first) == flops(second)


@pytest.mark.parametrize(
    ("contents", "said"),
    [
        (b"module @m { func.func", "is no module of StableHLO, or is cut short"),
        (b"ML\xefR\x00cut", "is no module of StableHLO, or is cut short"),
        (b"func.func @main() { func.call @main() : () -> () return }", "the function main calls itself"),
        (b"func.func @main(%c: i1) { cf.cond_br %c, ^a, ^a\n ^a:\n return }", "jumps between blocks"),
        (b"\x00\x01\x02\xff", "is neither StableHLO"),
        (b"HloModule m\n", "is text of HLO, not of StableHLO"),
        (b"module { func.func public @main(%x: tensor<?xf32>) -> tensor<?xf32> { return %x : tensor<?xf32> } }",
         "has sizes that depend on its inputs"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_one_line(tmp_path, contents, said):
    path = tmp_path / "m.mlir"
    path.write_bytes(contents)
    with pytest.raises(UsageError, match=said) as caught:
        memwall.profile(str(path), gpu="h100-sxm")
    assert "\n" not in str(caught.value)


def test_without_the_package_the_extra_is_named(tmp_path, monkeypatch):
    (tmp_path / "m.mlir").write_text("")
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(MissingError, match=r"pip install 'memwall-roofline\[jax\]'"):
        memwall.profile(str(tmp_path / "m.mlir"), gpu="h100-sxm")


def test_sizes_are_those_of_the_export(tmp_path):
    (tmp_path / "m.mlir").write_text("")
    with pytest.raises(UsageError, match="--dim gives the symbolic sizes of an ONNX file"):
        memwall.profile(str(tmp_path / "m.mlir"), dims={"batch": 2}, gpu="h100-sxm")


def test_text_becomes_what_xla_compiles(tmp_path):
    from memwall.frontend.program import TraceOptions
    from memwall.frontend.targets import named

    path = tmp_path / "model.mlir"
    body = f"%0 = stablehlo.add %x, %x : {Y} return %0 : {Y}"
    path.write_text(MODULE.format(arguments=X, results=Y, body=body, functions=""))
    found = jax.export.deserialize(bytearray(named(str(path)).exported(TraceOptions(), "cuda")()))
    assert [each.shape for each in found.in_avals] == [(8, 16)] and found.platforms == ("cuda",)
    assert "stablehlo.add" in found.mlir_module()


def test_an_operation_of_another_dialect_is_kept_under_its_name(tmp_path):
    body = f"%0 = math.tanh %x : {Y} return %0 : {Y}"
    assert made(tmp_path, X, Y, body).coverage.unmodeled == ("math.tanh",)


def test_policy_xla_names_the_function_that_it_wants(tmp_path):
    from memwall.frontend.stablehlo.reading import as_artifact

    path = tmp_path / "model.mlir"
    path.write_text(f"module {{ func.func public @forward({X}) -> {Y} {{ return %x : {Y} }} }}")
    with pytest.raises(UsageError, match="has no function main, which policy xla compiles; it has forward"):
        as_artifact(path, "cuda")


def test_complex_numbers_are_constants_too(tmp_path):
    kind = "tensor<4xcomplex<f32>>"
    body = f"%c = stablehlo.constant dense<(1.0, 0.0)> : {kind} %0 = stablehlo.add %x, %c : {kind} return %0 : {kind}"
    assert names(made(tmp_path, f"%x: {kind}", kind, body)) == ["lax.add"]


MANUAL = """
  sdy.mesh @mesh = <["x"=4]>
  func.func public @main(%w: tensor<64x32xf32>, %x: tensor<8x64xf32>) -> tensor<8x32xf32> {
    %0 = sdy.manual_computation(%w, %x) in_shardings=[<@mesh, [{"x"}, {}]>, <@mesh, [{}, {"x"}]>]
        out_shardings=[<@mesh, [{}, {}]>] manual_axes={"x"} (%a: tensor<16x32xf32>, %b: tensor<8x16xf32>) {
      %1 = stablehlo.dot_general %b, %a, contracting_dims = [1] x [0]
        : (tensor<8x16xf32>, tensor<16x32xf32>) -> tensor<8x32xf32>
      %2 = "stablehlo.all_reduce"(%1) <{replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>}> ({
        ^bb0(%l: tensor<f32>, %r: tensor<f32>):
          %3 = stablehlo.add %l, %r : tensor<f32>
          stablehlo.return %3 : tensor<f32>
      }) : (tensor<8x32xf32>) -> tensor<8x32xf32>
      sdy.return %2 : tensor<8x32xf32>
    } : (tensor<64x32xf32>, tensor<8x64xf32>) -> tensor<8x32xf32>
    return %0 : tensor<8x32xf32>
  }"""


def test_a_manual_computation_is_one_devices_part_and_its_messages(tmp_path):
    """A quarter of the sums, 2 x 8 x 32 x 16 FLOP, and an all-reduce of 8 x 32 floats among four."""
    path = tmp_path / "model.mlir"
    path.write_text(f"module @m attributes {{mhlo.num_partitions = 4 : i32}} {{ {MANUAL} }}")
    found = memwall.profile(str(path), gpu="h100-sxm")
    message = found.graph.ops[1]
    assert flops(found) == 2 * 8 * 32 * 16 and message.op_class == "communication"
    assert message.attributes["ranks"] == 4 and found.costs[0][1].link_bytes == 2 * 3 / 4 * 4 * 8 * 32
    assert any("the module is for 4 devices" in note for note in found.traced.notes)


def test_text_with_chlo_becomes_an_artifact_too(tmp_path):
    from memwall.frontend.stablehlo.reading import as_artifact

    path = tmp_path / "model.mlir"
    body = f"%0 = chlo.erf %x : {Y} -> {Y} return %0 : {Y}"
    path.write_text(MODULE.format(arguments=X, results=Y, body=body, functions=""))
    assert "chlo" not in jax.export.deserialize(bytearray(as_artifact(path, "cuda"))).mlir_module()


def test_symbolic_sizes_are_refused(tmp_path):
    sizes = jax.export.symbolic_shape("batch, 8")
    made = jax.export.export(jax.jit(jax.numpy.tanh), platforms=["cuda"])(array(*sizes))
    (tmp_path / "m.jax").write_bytes(made.serialize())
    with pytest.raises(UsageError, match="was exported with symbolic sizes; export it with sizes of the inputs"):
        memwall.profile(str(tmp_path / "m.jax"), gpu="h100-sxm")


def test_a_location_of_an_inlined_call_has_its_name():
    from memwall.frontend.stablehlo.places import Places

    text = 'loc(callsite("jit(f)/layer/tanh"("f"("model.py":3:4)) at "call"("model.py":9:2)))'
    assert Places().name(text) == "jit(f)/layer/tanh"
    assert Places()._read(text)[0] == ["layer"] and Places()._read(text)[2] == "model.py:3"


@pytest.mark.parametrize(
    ("arguments", "body", "said"),
    [
        (X, f"%0 = arith.addf %x, %x : {Y} return %0 : {Y}", "is not of StableHLO alone, which policy xla compiles"),
        (f"%t: !stablehlo.token, {X}", f"return %x : {Y}", "policy xla takes no arguments of !stablehlo.token"),
    ],
)
def test_what_policy_xla_does_not_compile_is_one_line(tmp_path, arguments, body, said):
    from memwall.frontend.stablehlo.reading import as_artifact

    path = tmp_path / "model.mlir"
    path.write_text(MODULE.format(arguments=arguments, results=Y, body=body, functions=""))
    with pytest.raises(UsageError, match=said) as caught:
        as_artifact(path, "cuda")
    assert "\n" not in str(caught.value)


def test_a_conditional_on_data_takes_the_branch_with_most_work(tmp_path):
    """A product of 16 x 16 matrices sums 16 numbers for each element that two sums make."""
    kind = "tensor<16x16xf32>"
    product = f"stablehlo.dot_general %x, %x, contracting_dims = [1] x [0] : ({kind}, {kind}) -> {kind}"
    body = (
        f'%r = "stablehlo.if"(%p) ({{ %0 = {product} stablehlo.return %0 : {kind} }},'
        f" {{ %1 = stablehlo.add %x, %x : {kind} %2 = stablehlo.add %1, %x : {kind} stablehlo.return %2 : {kind} }})"
        f" : (tensor<i1>) -> {kind} return %r : {kind}"
    )
    assert names(made(tmp_path, f"%p: tensor<i1>, %x: {kind}", kind, body)) == ["lax.dot_general"]
