"""What a jaxpr becomes: keys, numbers, branches, solvers and devices, against counts by hand."""

from textwrap import dedent

import numpy as np
import pytest

import memwall

jax = pytest.importorskip("jax", reason="needs jax: traces its programs")
jnp = pytest.importorskip("jax.numpy")
lax = jax.lax


def shape(*sizes, dtype="float32"):
    return jax.ShapeDtypeStruct(sizes, dtype)


def traced(function, *arguments, **options):
    return memwall.profile(function, arguments, gpu="h100-sxm", **options)


def costs_of(profile, name):
    pairs = zip(profile.graph.ops, profile.costs[0], strict=True)
    return [cost for op, cost in pairs if op.name == f"lax.{name}"]


def outputs_of(profile):
    return [(spec.shape, spec.dtype) for spec in profile.graph.specs(profile.graph.outputs)]


@pytest.mark.parametrize(
    "pick",
    [
        lambda keys: keys[1],
        lambda keys: keys.reshape(1, 3)[0, 1],
        lambda keys: lax.dynamic_index_in_dim(keys, jnp.int32(1), keepdims=False),
        lambda keys: keys[None].T[1, 0],
    ],
)
def test_a_key_keeps_its_words_however_an_array_of_keys_is_seen(pick):
    made = traced(lambda x: x + jax.random.normal(pick(jax.random.split(jax.random.key(0), 3)), (4,)), shape(4))
    assert [cost.read_bytes for cost in costs_of(made, "random_bits")] == [2 * 4]  # the two words of a Threefry key


def test_numbers_and_flags_are_a_part_of_the_program():
    made = traced(lambda x, factor, doubles: x * factor if doubles else x, shape(8, dtype="bfloat16"), 2.0, True)
    assert outputs_of(made) == [((8,), "bfloat16")]
    assert [op.name for op in made.graph.ops] == ["lax.mul"]


def test_static_arguments_of_a_jitted_function_are_given_as_they_are():
    function = jax.jit(lambda x, axis, how: getattr(jnp, how)(x, axis), static_argnums=(1, 2))
    assert outputs_of(traced(function, shape(4, 8), 1, "sum")) == [((4,), "float32")]


def test_numpy_arrays_are_read_in_the_precision_of_jax():
    made = traced(lambda x: x + 1, np.ones((4, 8)))
    assert [cost.read_bytes for cost in costs_of(made, "add")] == [4 * 4 * 8]


def test_tables_that_a_function_closes_over_are_parameters_where_they_are_of_floats():
    table, mask = np.ones((4, 4)), np.ones((4, 4), bool)
    assert traced(lambda x: jnp.where(mask, x, table), shape(4, 4)).workload.parameters == 16


@pytest.mark.parametrize("transform", [jnp.fft.rfft, lambda x: jnp.fft.irfft(jnp.fft.rfft(x))])
def test_a_real_transform_of_n_points_costs_half_of_a_complex_one(transform):
    made = traced(transform, shape(4, 64))
    assert {cost.total_flops for cost in costs_of(made, "fft")} == {4 * 2.5 * 64 * 6}


def test_an_algorithm_in_float32_is_no_tf32():
    made = traced(lambda a, b: jnp.dot(a, b, precision="F32_F32_F32"), shape(8, 8), shape(8, 8))
    assert [str(pipe) for pipe in costs_of(made, "dot_general")[0].flops] == ["tensor.float32"]


def test_a_product_of_two_dtypes_runs_in_the_wider_one():
    def function(a, b):
        return lax.dot_general(a, b, (((1,), (0,)), ((), ())), preferred_element_type=jnp.float32)

    made = traced(function, shape(8, 8, dtype="bfloat16"), shape(8, 8))
    assert [str(pipe) for pipe in costs_of(made, "dot_general")[0].flops] == ["tensor.tf32"]


@pytest.mark.parametrize(("precision", "pipe"), [(None, "tensor.tf32"), ("highest", "tensor.float32")])
def test_products_of_groups_run_as_their_precision_says(precision, pipe):
    def function(x, weights, sizes):
        return lax.ragged_dot(x, weights, sizes, precision=precision)

    made = traced(function, shape(16, 8), shape(4, 8, 6), shape(4, dtype="int32"))
    assert [str(each) for each in costs_of(made, "ragged_dot_general")[0].flops] == [pipe]


def test_a_convolution_is_more_work_than_elements_around_it():
    def convolved(x):
        return lax.conv(x, jnp.ones((8, 8, 3, 3)), (1, 1), "VALID")

    def waves(x):
        return jnp.sin(jnp.sin(jnp.sin(x)))[:, :, 1:-1, 1:-1]

    made = traced(lambda x: lax.cond(x.sum() > 0, waves, convolved, x), shape(1, 8, 16, 16))
    assert made.model_flops == 2 * 8 * 14 * 14 * 8 * 9


def test_a_branch_that_is_known_runs_alone():
    made = traced(lambda x: lax.cond(True, lambda x: x + 1, lambda x: x @ x, x), shape(8, 8))
    assert [op.name for op in made.graph.ops] == ["lax.add"]
    assert not made.notes


@pytest.mark.parametrize(
    ("test", "trips"),
    [
        (lambda carry: carry[0] < 7, 4),  # 0, 2, 4, 6
        (lambda carry: carry[0] < 0, 0),
        (lambda carry: carry[1].sum() < 7, 1),
    ],
)
def test_a_while_that_counts_runs_as_often_as_it_counts(test, trips):
    def function(x):
        return lax.while_loop(test, lambda carry: (carry[0] + 2, carry[1] @ carry[1]), (0, x))[1]

    made = traced(function, shape(8, 8))
    assert made.model_flops == trips * 2 * 8**3
    assert bool(made.notes) == (trips == 1)  # that one is assumed


def test_a_scan_that_returns_a_number_for_each_item_writes_it():
    made = traced(lambda xs: lax.scan(lambda c, x: (c + x, 1.0), jnp.zeros(8), xs), shape(5, 8))
    assert made.coverage.unmodeled == ()
    assert outputs_of(made) == [((8,), "float32"), ((5,), "float32")]


def test_a_number_that_is_scattered_writes_one_element():
    made = traced(lambda x: x.at[3, 2].set(1.0), shape(8, 8))
    (cost,) = costs_of(made, "scatter")
    assert [launch.write_bytes for launch in cost.launches] == [4 * 64, 4]  # a copy, then the element


@pytest.mark.parametrize(
    ("function", "read", "write"),
    [
        (lambda x: jnp.stack((x, jnp.sin(x)), 1), 2 * 4 * 64, 2 * 4 * 64),
        (lambda x: jnp.tile(x, (2, 3)), 4 * 64, 6 * 4 * 64),
        (lambda x: jnp.bitwise_xor.reduce(x.astype(jnp.int32), axis=0), 4 * 64, 4 * 8),
    ],
)
def test_what_joins_repeats_and_folds_moves_its_operand_and_result(function, read, write):
    cost = traced(function, shape(8, 8)).costs[0][-1]
    assert (cost.read_bytes, cost.write_bytes) == (read, write)


def test_a_linear_solve_runs_its_factors():
    made = traced(jnp.linalg.solve, shape(8, 8), shape(8, 2))
    assert made.coverage.unmodeled == ()
    assert [cost.total_flops for cost in costs_of(made, "triangular_solve")] == [8 * 8 * 2] * 2


def test_functions_with_rules_of_their_own_are_entered():
    @jax.custom_batching.custom_vmap
    def wave(x):
        return jnp.sin(x)

    @wave.def_vmap
    def waves(size, batched, x):
        return jnp.sin(x), True

    made = traced(lambda x: lax.composite(wave, "example.wave")(x), shape(8))
    assert [op.name for op in made.graph.ops] == ["lax.sin"]


def test_a_pallas_kernel_runs_on_the_engine_of_its_largest_operand():
    pl = pytest.importorskip("jax.experimental.pallas")

    def function(places, x):
        estimate = pl.CostEstimate(flops=1000, transcendentals=0, bytes_accessed=2048)
        return pl.pallas_call(lambda places, x, out: None, out_shape=x, cost_estimate=estimate)(places, x)

    made = traced(function, shape(16, dtype="int32"), shape(16, 16, dtype="bfloat16"))
    assert [str(pipe) for pipe in costs_of(made, "pallas_call")[0].flops] == ["tensor.bfloat16"]


def test_a_result_takes_the_memory_of_the_argument_that_is_donated():
    def step(weights, x):
        return x @ weights, weights + x.T @ x

    kept, donated = (
        traced(jax.jit(step, donate_argnums=places), shape(256, 256), shape(8, 256)).simulations[0].memory
        for places in ((), (0,))
    )
    assert kept.total - donated.total == 4 * 256 * 256


# -- many devices ------------------------------------------------------------------------------------------------------


def _mapped(function, sizes, inside, outside):
    from jax.sharding import AbstractMesh, PartitionSpec

    mesh = AbstractMesh(tuple(sizes.values()), tuple(sizes))
    specs = PartitionSpec(*inside), PartitionSpec(*outside)
    return jax.shard_map(function, mesh=mesh, in_specs=specs[0], out_specs=specs[1], check_vma=False)


def test_what_follows_a_shard_map_has_whole_arrays():
    mapped = _mapped(lambda x: x * 2, {"data": 4}, ("data",), ("data",))
    made = traced(lambda x: jnp.sin(mapped(x)), shape(64, 8))
    doubled, wave = (made.graph.specs(op.outputs)[0].shape for op in made.graph.ops)
    assert (doubled, wave) == ((16, 8), (64, 8))


def test_a_message_to_oneself_has_the_shape_of_its_result():
    mapped = _mapped(lambda x: lax.all_gather(x, "data").transpose(2, 1, 0), {"data": 1}, ("data",), ())
    assert outputs_of(traced(mapped, shape(64, 8))) == [((8, 64, 1), "float32")]


@pytest.mark.parametrize(("devices", "notes"), [(1, 0), (4, 1)])
def test_a_shard_map_over_several_devices_is_noted(devices, notes):
    made = traced(_mapped(lambda x: x * 2, {"data": devices}, ("data",), ("data",)), shape(64, 8))
    assert len(made.notes) == notes


# -- modules -----------------------------------------------------------------------------------------------------------


def _profiled(tmp_path, text, **options):
    path = tmp_path / "model.py"
    path.write_text("import jax\nimport jax.numpy as jnp\n" + dedent(text))
    return memwall.profile(path, gpu="h100-sxm", **options)


def test_a_scope_keeps_its_points_and_a_class_loses_its_package():
    def function(x):
        with jax.named_scope("layers.0"), jax.named_scope("equinox.nn._mlp.MLP"):
            return jnp.sin(x)

    assert [op.module for op in traced(function, shape(8)).graph.ops] == ["layers.0.MLP"]


def test_layers_of_nnx_have_the_line_that_calls_them(tmp_path):
    pytest.importorskip("flax.nnx")
    made = _profiled(tmp_path, """
        from flax import nnx

        class Net(nnx.Module):
            def __init__(self, rngs):
                self.layer = nnx.Linear(8, 4, use_bias=False, rngs=rngs)

            def __call__(self, x):
                return self.layer(x)

        def model():
            return Net(nnx.Rngs(0))

        def inputs():
            return (jax.ShapeDtypeStruct((2, 8), jnp.float32),)
    """)  # fmt: skip
    (product,) = [op for op in made.graph.ops if op.name == "lax.dot_general"]
    assert product.module == "layer"
    assert product.source.endswith("model.py:11")


STATEFUL = {
    "linen": ("flax.linen", """
        import flax.linen as nn

        class Net(nn.Module):
            @nn.compact
            def __call__(self, x, train=False):
                x = nn.BatchNorm(use_running_average=not train)(x)
                return nn.Dropout(0.5, deterministic=not train)(x)

        def model():
            return Net()

        def inputs():
            return {"x": jax.ShapeDtypeStruct((2, 8), jnp.float32), "train": True}
    """),
    "haiku": ("haiku", """
        import haiku as hk

        def net(x, train):
            x = hk.BatchNorm(True, True, 0.9)(x, is_training=train)
            return hk.dropout(hk.next_rng_key(), 0.5, x)

        def model():
            return hk.transform_with_state(net)

        def inputs():
            return jax.ShapeDtypeStruct((2, 8), jnp.float32), True
    """),
}  # fmt: skip


@pytest.mark.parametrize("name", STATEFUL)
def test_modules_with_state_draw_random_numbers_and_train(tmp_path, name):
    package, text = STATEFUL[name]
    pytest.importorskip(package)
    made = _profiled(tmp_path, text, mode="training", optimizer="sgd")
    assert made.workload.parameters == 2 * 8  # scale and offset; running means are none
    assert len(costs_of(made, "random_bits")) == 1
