"""JAX functions as targets: their jaxprs in a graph, against counts by hand and against XLA's own."""

import math
from collections import Counter
from textwrap import dedent

import pytest

import memwall
from memwall.analysis.verdict import verdict
from memwall.core.errors import UsageError
from memwall.frontend.program import TraceOptions

jax = pytest.importorskip("jax", reason="needs jax: traces its programs")
jnp = pytest.importorskip("jax.numpy")
lax = jax.lax
from memwall.frontend.jax.targets import program_of  # noqa: E402  (imports jax)


def shape(*sizes, dtype="float32"):
    return jax.ShapeDtypeStruct(sizes, dtype)


def traced(function, *arguments, **options):
    return memwall.profile(function, arguments, gpu="h100-sxm", policy=("eager", "memwall", "ideal"), **options)


def names(profile):
    return Counter(op.name.removeprefix("lax.") for op in profile.graph.ops)


def cost_of(profile, name):
    return next(c for op, c in zip(profile.graph.ops, profile.costs[0], strict=True) if op.name == f"lax.{name}")


def test_a_product_and_what_follows_it_have_the_flops_and_bytes_of_hand_counts():
    made = traced(lambda w, x: jnp.tanh(x @ w + 1), shape(32, 64), shape(8, 32))
    assert names(made) == {"dot_general": 1, "add": 1, "tanh": 1}
    product, add = cost_of(made, "dot_general"), cost_of(made, "add")
    assert product.total_flops == 2 * 8 * 32 * 64
    assert (product.read_bytes, product.write_bytes) == (4 * (32 * 64 + 8 * 32), 4 * 8 * 64)
    assert (add.total_flops, add.read_bytes, add.write_bytes) == (8 * 64, 4 * 8 * 64, 4 * 8 * 64)


@pytest.mark.parametrize(
    ("dimension_numbers", "left", "right", "flops"),
    [
        ((([2], [0]), ([], [])), (4, 8, 16), (16, 32), 2 * 4 * 8 * 16 * 32),
        ((([3], [3]), ([0, 2], [0, 2])), (2, 5, 3, 7), (2, 6, 3, 7), 2 * 2 * 3 * 5 * 6 * 7),
        ((([0, 1], [0, 1]), ([], [])), (4, 8, 16), (4, 8, 32), 2 * 4 * 8 * 16 * 32),
    ],
)
def test_products_over_any_axes_count_what_xla_counts(dimension_numbers, left, right, flops):
    def function(a, b):
        return lax.dot_general(a, b, dimension_numbers)

    made = traced(function, shape(*left), shape(*right))
    assert cost_of(made, "dot_general").total_flops == flops
    assert jax.jit(function).lower(shape(*left), shape(*right)).cost_analysis()["flops"] == flops


def _convolution(images, weights, **how):
    numbers = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(images, weights, dimension_numbers=numbers, **how)


@pytest.mark.parametrize(
    ("images", "weights", "how"),
    [
        ((2, 9, 9, 4), (3, 3, 4, 8), {"window_strides": (1, 1), "padding": "VALID"}),
        ((2, 9, 9, 4), (3, 3, 4, 8), {"window_strides": (2, 2), "padding": "VALID"}),
        ((2, 8, 8, 4), (1, 1, 4, 8), {"window_strides": (1, 1), "padding": "SAME"}),
        ((2, 9, 9, 4), (3, 3, 2, 8), {"window_strides": (1, 1), "padding": "VALID", "feature_group_count": 2}),
        ((2, 9, 9, 4), (3, 3, 1, 4), {"window_strides": (1, 1), "padding": "VALID", "feature_group_count": 4}),
    ],
)
def test_convolutions_without_padding_count_what_xla_counts(images, weights, how):
    def function(x, w):
        return _convolution(x, w, **how)

    arguments = shape(*images), shape(*weights)
    flops = cost_of(traced(function, *arguments), "conv_general_dilated").total_flops
    assert flops == jax.jit(function).lower(*arguments).cost_analysis()["flops"]


def test_the_gradients_of_a_strided_convolution_cost_as_much_as_its_forward_pass():
    def function(w, x):
        return _convolution(x, w["kernel"], window_strides=(2, 2), padding=((1, 1), (1, 1))).sum()

    weights, images = {"kernel": shape(3, 3, 4, 8)}, shape(2, 8, 8, 4)
    made = memwall.profile(jax.grad(function, (0, 1)), (weights, images), gpu="h100-sxm")
    found = [c.total_flops for o, c in zip(made.graph.ops, made.costs[0], strict=True) if "conv" in o.name]
    forward = 2 * (2 * 4 * 4 * 8) * 9 * 4
    assert found == [forward, forward, forward]


def test_views_are_copied_by_the_primitives_alone():
    made = traced(lambda x: jnp.exp(x.T.reshape(4, 2, 8)[1:3]), shape(8, 8))
    eager, fused, ideal = made.simulations
    assert names(made) == {"transpose": 1, "reshape": 1, "slice": 1, "exp": 1}
    assert [s.totals.kernels for s in (eager, fused, ideal)] == [4, 1, 1]
    assert eager.totals.dram_bytes == 4 * (2 * 64 + 2 * 64 + 2 * 32 + 2 * 32)
    assert fused.totals.dram_bytes == ideal.totals.dram_bytes == 4 * 2 * 32


def test_a_reshape_that_strides_cannot_say_is_a_copy():
    made = traced(lambda x: jnp.exp(x.T.reshape(-1)), shape(4, 8))
    (copy,) = [op for op in made.graph.ops if op.name == "lax.reshape"]
    assert copy.outputs and cost_of(made, "reshape").bytes == 2 * 4 * 32


def test_a_scan_runs_its_body_for_each_item():
    def function(weights, x):
        return lax.scan(lambda x, w: (x @ w, x.sum()), x, weights)

    made = traced(function, shape(5, 16, 16), shape(4, 16))
    assert names(made)["dot_general"] == 5
    assert made.model_flops == 5 * 2 * 4 * 16 * 16
    assert {op.module for op in made.graph.ops if "dot" in op.name} == {f"scan.{i}" for i in range(5)}
    sums = made.graph.values[made.graph.outputs[1]]
    assert sums.spec.shape == (5,)
    assert [made.graph.values[op.outputs[0]].offset for op in made.graph.ops if "update" in op.name] == [0, 1, 2, 3, 4]


def test_a_while_loop_runs_as_often_as_is_assumed():
    def function(n, x):
        return lax.fori_loop(0, n, lambda i, x: x @ x, x)

    once, more = (
        memwall.profile(function, (shape(dtype="int32"), shape(8, 8)), assume=assume) for assume in ((), ("trips=7",))
    )
    assert (once.model_flops, more.model_flops) == (2 * 8**3, 7 * 2 * 8**3)
    assert once.notes == ("assumed: a while loop of unknown length runs 1 time (--assume trips=N)",)
    with pytest.raises(UsageError, match="only trips=N"):
        memwall.profile(function, (shape(dtype="int32"), shape(8, 8)), assume="experts=balanced")


def test_of_a_branch_the_one_with_most_work_runs():
    made = traced(lambda x: lax.cond(x.sum() > 0, lambda x: x, lambda x: x @ x @ x, x), shape(8, 8))
    assert made.model_flops == 2 * 2 * 8**3
    assert "assumed: of a cond with 2 branches the one with most work runs" in made.notes


def test_phases_scopes_lines_and_what_is_computed_again():
    def block(w, x):
        with jax.named_scope("mlp"):
            return jnp.tanh(x @ w)

    def loss(params, x):
        return jax.checkpoint(block)(params["w"], x).sum()

    made = memwall.profile(loss, ({"w": shape(16, 16)}, shape(4, 16)), mode="training", optimizer="sgd")
    products = [op for op in made.graph.ops if op.name == "lax.dot_general"]
    assert [(op.phase, op.module, op.again) for op in products] == [
        ("forward", "mlp", False), ("backward", "mlp", True), ("backward", "mlp", False),
    ]  # fmt: skip
    assert all(op.source.startswith("tests/unit/frontend/test_jax.py:") for op in products)
    assert made.model_flops == 3 * 2 * 4 * 16 * 16
    assert made.flops_again == 2 * 4 * 16 * 16
    assert made.graph.one_program


@pytest.mark.parametrize(("policy", "said"), [("eager", True), ("memwall", False)])
def test_the_verdict_says_that_eager_is_without_jit(policy, said):
    made = memwall.profile(jnp.exp, (shape(64, 64),), policy=policy)
    assert ("--policy xla is what jax.jit runs" in verdict(made, made.simulations[0]).text) == said


def test_new_weights_and_states_take_the_memory_of_the_old():
    def loss(params, x):
        return jnp.square(x @ params["w"]).sum()

    made = memwall.profile(loss, ({"w": shape(256, 256)}, shape(1, 256)), mode="training", optimizer="adam")
    memory = made.simulations[0].memory
    nbytes = 4 * 256 * 256
    assert (memory.parameters, memory.gradients) == (nbytes, nbytes)
    assert memory.optimizer_state == 2 * nbytes + 4  # and the count of steps
    assert {op.phase for op in made.graph.ops} == {"forward", "backward", "optimizer"}


def test_float32_products_run_in_tf32_unless_the_precision_is_the_highest():
    pipes = []
    for precision in (None, "highest"):
        made = traced(lambda a, b, p=precision: jnp.dot(a, b, precision=p), shape(8, 8), shape(8, 8))
        pipes += [str(pipe) for pipe in cost_of(made, "dot_general").flops]
    assert pipes == ["tensor.tf32", "tensor.float32"]


def test_gathers_read_what_they_fetch_and_sums_over_segments_add_it():
    def function(table, ids):
        return jax.ops.segment_sum(table[ids], ids, 4)

    made = traced(function, shape(1000, 8), shape(16, dtype="int32"))
    gathered, added = cost_of(made, "gather"), cost_of(made, "scatter_add")
    assert gathered.write_bytes == 16 * 8 * 4
    assert gathered.read_bytes == 16 * 8 * 4 + 16 * 4
    assert added.total_flops == 16 * 8


def test_random_bits_cost_integer_instructions_and_no_flop():
    made = traced(lambda x: x * jax.random.bernoulli(jax.random.key(0), 0.5, x.shape), shape(64, 64))
    bits = cost_of(made, "random_bits")
    assert (bits.total_flops, bits.write_bytes) == (0, 4 * 64 * 64)
    # a word of Threefry-2x32: 20 rounds of 5 and 5 injections of 3 instructions for two words
    assert sum(launch.instructions for launch in bits.launches) == math.floor(57.5 * 64 * 64)


def test_a_pallas_kernel_costs_what_its_estimate_says():
    pl = pytest.importorskip("jax.experimental.pallas")

    def kernel(x, o):
        o[...] = x[...] * 2

    def function(x):
        estimate = pl.CostEstimate(flops=1000, transcendentals=0, bytes_accessed=2048)
        return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), cost_estimate=estimate)(x)

    cost = cost_of(traced(function, shape(16, 16)), "pallas_call")
    assert (cost.total_flops, cost.bytes) == (1000, 2048)


def test_decomposed_attention_keeps_its_scores_on_chip_under_ideal():
    def attention(q, k, v):
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k)
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1), v)

    q = shape(1, 128, 2, 16)
    ideal = traced(attention, q, q, q).simulations[2]
    assert ideal.totals.dram_bytes == 4 * 4 * 128 * 2 * 16


# -- targets -----------------------------------------------------------------------------------------------------------


def _file(tmp_path, text):
    path = tmp_path / "model.py"
    path.write_text("import jax\nimport jax.numpy as jnp\n" + dedent(text))
    return path


INPUTS = """
    def inputs(batch=2):
        return (jax.ShapeDtypeStruct((batch, 8), jnp.float32),)
"""
MODELS = {
    "linen": ("flax.linen", "import flax.linen as nn\ndef model():\n    return nn.Dense(4)\n"),
    "nnx": ("flax.nnx", "from flax import nnx\ndef model():\n    return nnx.Linear(8, 4, rngs=nnx.Rngs(0))\n"),
    "haiku": ("haiku", "import haiku as hk\ndef model():\n    return hk.transform(lambda x: hk.Linear(4)(x))\n"),
    "equinox": ("equinox", "import equinox as eqx\ndef model():\n    key = jax.random.key(0)\n"
                           "    return eqx.filter_vmap(eqx.nn.Linear(8, 4, key=key))\n"),
    "plain": ("jax", "def model():\n    return jax.jit(lambda x: x @ jnp.ones((8, 4)) + jnp.ones(4))\n"),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_modules_of_every_library_are_functions_of_their_weights(tmp_path, name):
    package, text = MODELS[name]
    pytest.importorskip(package)
    made = memwall.profile(_file(tmp_path, text + dedent(INPUTS)), gpu="h100-sxm", batch=16)
    assert made.model_flops == 2 * 16 * 8 * 4
    if name not in ("plain", "equinox"):
        assert made.workload.parameters == 8 * 4 + 4


def test_running_means_have_no_gradient(tmp_path):
    pytest.importorskip("flax.linen")
    text = "import flax.linen as nn\ndef model():\n    return nn.BatchNorm(use_running_average=True)\n"
    made = memwall.profile(_file(tmp_path, text + dedent(INPUTS)), gpu="h100-sxm", mode="training", optimizer="sgd")
    roles = Counter(storage.role for storage in made.graph.storages if storage.nbytes)
    assert (roles["parameter"], roles["buffer"], roles["gradient"]) == (2, 2, 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def model():\n    return lambda x: __import__('numpy').tanh(x)\n", "tracing .*TracerArrayConversionError"),
        ("def model():\n    return lambda x: x @ jnp.ones((9, 4))\n", "tracing .*dot_general requires contracting"),
        ("def model():\n    return 3\n", "of type int, not a function of arrays or a module"),
        ("def model():\n    return lambda x: str(x)\n", "tracing .*TypeError"),
        ("def model():\n    raise ValueError('no')\n", r"calling model\(\) of .*ValueError: no"),
    ],
)
def test_what_is_no_jax_function_is_refused_in_one_line(tmp_path, text, message):
    with pytest.raises(UsageError, match=message) as raised:
        memwall.profile(_file(tmp_path, text + dedent(INPUTS)), gpu="h100-sxm")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("jax.ShapeDtypeStruct((4, -3), jnp.float32)", r"has the shape \(4, -3\); sizes are whole and not negative"),
        ("jax.ShapeDtypeStruct((4, float('nan')), jnp.float32)", r"has the shape \(4, nan\)"),
        ("None", r"inputs\(\) of .* returned None"),
    ],
)
def test_what_is_no_input_is_refused_in_one_line(tmp_path, given, message):
    text = f"def model():\n    return lambda x: x + 1\ndef inputs():\n    return {given}\n"
    with pytest.raises(UsageError, match=message):
        memwall.profile(_file(tmp_path, text), gpu="h100-sxm")


def test_a_whole_training_step_has_no_training_of_its_own():
    step = lambda weights, x: ({"w": weights["w"] - x.mean()}, x.sum())  # noqa: E731
    with pytest.raises(UsageError, match=r"returns new weights.*without --mode training"):
        memwall.profile(step, ({"w": shape(8)}, shape(4)), gpu="h100-sxm", mode="training")


def test_a_file_without_inputs_is_told_how_to_make_them(tmp_path):
    with pytest.raises(UsageError, match=r"ShapeDtypeStruct.*or give --input"):
        memwall.profile(_file(tmp_path, "def model():\n    return jnp.tanh\n"), gpu="h100-sxm")


def test_inputs_can_be_given_by_their_shapes(tmp_path):
    path = _file(tmp_path, "def model():\n    return lambda x, y: x @ y\n")
    made = memwall.profile(path, gpu="h100-sxm", input_specs=["bf16[4,8]", "bf16[8,2]"])
    assert made.model_flops == 2 * 4 * 8 * 2
    assert made.workload.dtype == "bfloat16"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "decode"}, "mode decode is of PyTorch modules"),
        ({"mode": "training"}, "takes the gradient by the first argument"),
        ({"autocast": "bf16"}, "no use for --autocast"),
        ({"attention": "math"}, "no use for --attention"),
        ({"policy": "inductor"}, "policy inductor is of PyTorch modules"),
        ({"dtype": "int8"}, "no floating dtype named 'int8'"),
    ],
)
def test_options_that_are_pytorchs_alone_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        memwall.profile(jnp.tanh, (shape(8),), gpu="h100-sxm", **options)


def test_weights_are_cast_where_a_dtype_is_asked_for():
    made = memwall.profile(lambda w, x: x @ w["w"], ({"w": shape(8, 8)}, shape(2, 8)), dtype="bf16")
    assert made.workload.dtype == "bfloat16"


def test_a_record_holds_the_same_profile(tmp_path):
    made = traced(lambda x: jnp.exp(x.T).sum(), shape(8, 8))
    made.save(tmp_path / "made.json")
    again = memwall.Profile.load(tmp_path / "made.json")
    assert again.to_json() == made.to_json()
    assert again.environment == {"jax": jax.__version__}


def test_messages_of_a_shard_map_are_those_of_its_first_device():
    from jax.sharding import AbstractMesh, PartitionSpec

    mesh = AbstractMesh((4, 2), ("data", "model"))

    @jax.shard_map(mesh=mesh, in_specs=PartitionSpec("data", "model"), out_specs=PartitionSpec("data", None))
    def function(x):
        return lax.psum(x @ x.T, "model") + 0 * lax.psum(x.sum(), ("data", "model"))

    made = memwall.profile(function, (shape(64, 32),), gpu="h100-sxm", cluster="dgx-h100")
    messages = [op for op in made.graph.ops if op.op_class == "communication"]
    assert [(op.name, op.attributes["ranks"], op.attributes["group"]) for op in messages] == [
        ("lax.all_reduce", 2, "0-1"), ("lax.all_reduce", 8, "0-7"),
    ]  # fmt: skip
    assert made.model_flops == 2 * 16 * 16 * 16
    assert cost_of(made, "all_reduce").link_bytes == 16 * 16 * 4  # half of it to the other one, both ways


def _meshed(way):
    """A product over eight devices, its mesh named by an argument, inside, or by a shard_map."""
    from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

    mesh = AbstractMesh((8,), ("x",), axis_types=(AxisType.Auto,))
    rows = NamedSharding(mesh, PartitionSpec("x", None))
    laid = jax.ShapeDtypeStruct((64, 32), "float32", sharding=rows)
    whole = jax.shard_map(lambda x: x * 2, mesh=mesh, in_specs=rows.spec, out_specs=rows.spec)
    ways = {
        "argument": (lambda x: x * 2, laid),
        "inside": (lambda x: lax.with_sharding_constraint(x * 2, rows), shape(64, 32)),
        "shard_map": (whole, shape(64, 32)),
        "jitted": (jax.jit(lambda x: whole(x)), shape(64, 32)),
    }
    return ways[way]


@pytest.mark.parametrize("way", ["argument", "inside", "shard_map", "jitted"])
def test_a_program_is_exported_for_all_devices_of_the_mesh_that_it_names(way):
    function, argument = _meshed(way)
    program = program_of(function, (argument,), name="f", target="", loss=None, optimizer=None)
    exported = jax.export.deserialize(bytearray(program.exported(TraceOptions(), "tpu")()))
    assert exported.nr_devices == 8
    (laid,) = exported.in_shardings_jax(None)
    assert laid.shard_shape((64, 32)) == ((64, 32) if way == "inside" else (8, 32))


def test_a_program_of_many_devices_that_is_traced_whole_says_so():
    function, argument = _meshed("argument")
    made = memwall.profile(function, (argument,), gpu="h100-sxm")
    assert made.traced.notes == ("the program is for 8 devices: arrays that a compiler would divide are whole here",)


def test_a_program_of_many_devices_needs_to_be_told_how_many(tmp_path):
    text = 'def model():\n    jax.make_mesh((4, 4), ("a", "b"))\n    return jnp.tanh\n'
    with pytest.raises(UsageError, match=r"product of mesh_shape.*--world N"):
        memwall.profile(_file(tmp_path, text + dedent(INPUTS)), gpu="h100-sxm")
