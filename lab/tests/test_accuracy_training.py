"""Tables of training steps: what a row is taken for, by hand, and the errors of the real ones."""

import hashlib
from dataclasses import replace

import pytest

from memwall.bench.accuracy import read_measured, score_files
from memwall.training.layout import Parallelism
from memwall_lab.sizes import Latents, Sizes
from memwall_lab.training import TrainingSample, _profile
from tests.unit.places import is_whole, part_of, truth

VTRAIN = "set,n_gpus,global_batch,micro_batch,d_model,n_heads,n_layers,seq_len,tp,dp,pp,iter_ms\n"
MEGATRON = "table,model,gpu,heads,d_model,n_layers,tp,pp,dp,global_batch,seq_len,vocab,flop_kind,iter_ms_derived\n"
MPT = (
    "seq_len,gpu,n_gpus,micro_batch,grad_accum,precision,mp_mode,sharding,act_ckpt,step_time_s,d_model,n_heads,"
    "n_layers\n"
)
KORTHIKANTI = (
    "quantity,model,mode,hidden,feedforward,seq_size,attn_heads,num_blocks,tp,pp,dp,interleave,batch,microbatch,"
    "recompute,seq_par,measured\n"
)


@pytest.fixture
def steps(tmp_path):
    """``steps(header and rows)``: the samples of a table."""

    def read(text):
        path = tmp_path / "t.csv"
        path.write_text("# made up\n" + text, encoding="utf-8")
        return read_measured(path).of(TrainingSample)

    return read


def test_vtrain(steps):
    (row,) = steps(VTRAIN + "multi-node,64,128,2,1024,16,24,2048,4,8,2,90.5\n")
    assert row.layout == Parallelism(tp=4, pp=2, dp=8, microbatches=8, recompute="full")
    assert (row.sizes.width, row.sizes.layers, row.sizes.seq, row.microbatch) == (1024, 24, 2048, 2)
    assert (row.measured_s, row.overlap, row.cluster.name) == (0.0905, False, "dgx-a100-80gb, 1 rail")


def test_megatron(steps):
    rows = steps(
        MEGATRON
        + "A100 2021 weak scaling,39B,A100-80GB-SXM (Selene),,8192,48,8,2,32,1536,2048,51200,hardware,14453.5\n"
        + "H100 2024 weak scaling (MCore r0.8),16B,H100-80GB-SXM (Eos),48,6144,32,4,1,48,192,4096,131072,model,849.8\n"
    )
    assert [str(row.layout) for row in rows] == [
        "tp=8,pp=2,dp=32,microbatches=48,recompute=full", "tp=4,sp,dp=48,fsdp=optimizer,microbatches=4,async",
    ]  # fmt: skip
    assert (rows[0].sizes.heads, rows[0].sizes.fused, rows[1].sizes.fused) == (64, False, True)


def test_another_word_for_a_layout_does_not_move_a_row_to_the_other_half(steps):
    """Constants were fitted to a half of the rows when ``fsdp=optimizer`` was written ``fsdp=grad``."""
    text = "H100 2024 weak scaling (MCore r0.8),16B,H100-80GB-SXM (Eos),48,6144,32,4,1,{},{},4096,131072,model,849.8\n"
    rows = steps(MEGATRON + "".join(text.format(4 * replicas, 16 * replicas) for replicas in range(1, 13)))
    before = [row.shape.replace("fsdp=optimizer", "fsdp=grad") for row in rows]
    digests = [hashlib.sha256(shape.encode()).digest() for shape in before]
    assert [row.in_fit_half for row in rows] == [digest[-1] % 2 == 0 for digest in digests]
    assert all("fsdp=optimizer" in row.shape for row in rows)


def test_llm_foundry(steps):
    (row,) = steps(MPT + "2048,h100_80gb,512,8,2,amp_bf16,DEFAULT,FULL_SHARD,True,16.26847,8192,64,80\n")
    assert row.layout == Parallelism(dp=512, fsdp="full", microbatches=2, recompute="full")
    assert (row.state, row.sizes.bias, row.cluster.name) == ("mixed", False, "dgx-h100")
    assert (row.overlap, row.hand_fused, row.attention) == (False, False, 2.0)


def test_korthikanti(steps):
    (row,) = steps(
        KORTHIKANTI
        + "iteration_time_s,gpt3-175B,seqsel,12288,49152,2048,96,96,8,8,1,3,64,1,attn_only,rs_ag,13.75\n"
        + "activations_gib,gpt3-175B,none,12288,49152,2048,96,96,8,8,1,3,64,1,none,ar,66.8\n"
    )
    wanted = "tp=8,sp,pp=8,microbatches=64,schedule=interleaved:3,recompute=selective"
    assert (str(row.layout), row.measured_s) == (wanted, 13.75)


def test_a_layout_that_does_not_fit_is_counted(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(VTRAIN + "a,8,8,1,1024,16,4,1024,1,1,8,9\na,1,8,1,1024,16,4,1024,1,1,1,9\n", encoding="utf-8")
    found = read_measured(path)
    assert (len(found.of(TrainingSample)), dict(found.skipped)) == (
        1,
        {"8 stages of layers, and the model has 4 equal layers": 1},
    )


@pytest.mark.skipif(truth("calculon_validation.csv") is None, reason="the measured tables are not here")
def test_steps_of_korthikanti(tmp_path, request):
    """Nothing is fitted to these eight steps of up to 512 GPUs. All with --whole, else each third one, which may miss
    that another is off."""
    whole = is_whole(request)
    path = part_of(truth("calculon_validation.csv"), 1 if whole else 3, tmp_path)
    errors = [abs(row.error) for row in score_files([path]).rows]
    assert len(errors) == (8 if whole else 3)
    assert sum(errors) / len(errors) < 0.03
    assert max(errors) < 0.07


BRIDGE = (
    "release,task,model,system,n_gpus,precision,gbs,mbs,seq_len,fsdp,tp,pp,cp,vp,ep,tok_s_gpu,step_time_s\n"
    "26.06,pretrain,LLAMA3.1_405B,DGX-H100,1024.0,FP8,1536.0,1.0,8192.0,,8.0,8.0,2.0,8.0,,326.0,37.6933\n"
    "26.04,pretrain,LLAMA3_70B,DGX-GB200,64.0,FP8-CS,256.0,2.0,8192.0,64.0,1.0,1.0,1.0,,,4312.0,7.599\n"
    "26.04,pretrain,LLAMA3_70B,DGX-GB200,64.0,NVFP4,256.0,1.0,8192.0,0.0,2.0,4.0,1.0,5.0,,4864.0,6.7368\n"
)


def test_recipes_of_nvidia(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(BRIDGE, encoding="utf-8")
    found = read_measured(path)
    assert not found.skipped
    large, sharded, narrow = found.of(TrainingSample)
    assert (narrow.sizes.products, str(narrow.layout)) == ("fp4", "tp=2,sp,pp=4,dp=8,fsdp=optimizer,microbatches=32,"
                                                           "schedule=interleaved:5,async")  # fmt: skip
    wanted = "tp=8,sp,pp=8,dp=8,fsdp=optimizer,cp=2,microbatches=192,schedule=interleaved:8,async"
    assert (str(large.layout), large.cluster.name, large.sizes.products) == (wanted, "dgx-h100", "fp8")
    assert (str(sharded.layout), sharded.cluster.name) == ("dp=64,fsdp=full,microbatches=2", "gb200-nvl72")
    whole, again = sharded._step(sharded.layout), sharded.step()
    assert again.hardware_flops > whole.hardware_flops  # 454 GB do not fit in 199
    assert whole.hardware_flops > whole.model_flops == again.model_flops  # attention's backward computes scores again


def test_products_of_a_layer_in_fp8_have_the_flops_of_16_bits():
    """Three products of each layer; casts and transposes are kernels of their own."""
    sizes = Sizes(1024, 3, 8, 512, 256, ffn=4096, gated=True, rotary=True, bias=False, tied=False, fused=True)
    plain, cast = (
        _profile(replace(sizes, products=each), 1, Parallelism(tp=2, sp=True), "bfloat16", True) for each in ("", "fp8")
    )
    assert cast.model_flops == plain.model_flops
    assert sum("scaled_mm" in op.name for op in cast.graph.ops) == 3 * 5 * 3


def test_products_in_four_bits():
    """TransformerEngine's NVFP4: each of three products reads both operands at 4 bits and a scale of a byte for 16
    numbers; each operand made in the step is read for its largest number first, then cast, and transposed, as bytes."""
    sizes = Sizes(1024, 3, 8, 512, 256, ffn=4096, gated=True, rotary=True, bias=False, tied=False, fused=True)
    plain, narrow = (
        _profile(replace(sizes, products=each), 1, Parallelism(), "bfloat16", True) for each in ("", "fp4")
    )
    assert narrow.model_flops == plain.model_flops
    pairs = zip(narrow.graph.ops, narrow.costs[0], strict=True)
    products = [cost for op, cost in pairs if "scaled_mm" in op.name]
    assert len(products) == 3 * 5 * 3 and {str(pipe) for cost in products for pipe in cost.flops} == {"tensor.fp4"}
    m, n, k = 256, 3 * 1024, 1024  # the first layer's queries, keys and values
    assert products[0].read_bytes == (m + n) * k * (8 + 1) // 16 and products[0].write_bytes == 2 * m * n


def test_adapters_train_alone():
    """Forward of a layer's products and their gradients of inputs, four FLOPs for each number and token, and none for
    gradients of frozen weights; six for the adapters, of rank 16 next to the [h, 3h] of queries, keys and values. The
    first layer's input, which no trained weight is behind, gets no gradient: h · 3h of its products are done once."""
    sizes = Sizes(1024, 3, 8, 512, 256, ffn=4096, gated=True, rotary=True, bias=False, tied=False, fused=True)
    plain, adapted = (_profile(replace(sizes, adapters=each), 1, Parallelism(), "bfloat16", True) for each in (0, 16))
    h, tokens, adapters = 1024, 256, 16 * (1024 + 3 * 1024)
    layers = 3 * (4 * h * h + 3 * h * 4096) + 512 * h
    saved = 2 * tokens * (layers + 3 * h * h)
    added = 2 * tokens * (3 * 3 * adapters - 16 * h)
    assert adapted.model_flops == plain.model_flops - saved + added
    trained = {storage.name for storage in adapted.graph.storages if storage.role == "gradient"}
    assert trained == {f"blocks.{i}.attention.qkv_adapter.{part}.weight" for i in range(3) for part in ("down", "up")}


def test_latent_attention_shared_experts_and_a_second_token():
    """As DeepSeek-V3: numbers of each layer that a token meets, six FLOPs each; attention's two products of the causal
    half three times; a further layer behind a product [2h, h], and the head for its tokens too."""
    h, heads, seq, vocab = 256, 4, 64, 512
    queries, keys, plain, rotated, value = 96, 64, 32, 16, 48
    sizes = Sizes(h, 3, heads, vocab, seq, ffn=128, gated=True, rotary=True, bias=False, tied=False, fused=True,
                  dropout=0.0, experts=8, top_k=2, shared=64, dense=1, dense_ffn=512, predicts_two=True,
                  latents=Latents(queries, keys, plain, rotated, value))  # fmt: skip
    up = queries * heads * (plain + rotated) + keys * heads * (plain + value)
    attention = h * queries + h * (keys + rotated) + up + heads * value * h
    routed = h * 8 + 2 * 3 * h * 128 + 3 * h * 64
    numbers = 4 * attention + 3 * h * 512 + 3 * routed + 2 * h * h + 2 * h * vocab
    pairs = 4 * heads * seq * (seq + 1) // 2 * (plain + rotated + value)
    for layout in (Parallelism(), Parallelism(ep=4)):
        assert _profile(sizes, 1, layout, "bfloat16", True).model_flops == 6 * (seq * numbers + pairs)


@pytest.mark.skipif(truth("megatron_training.csv") is None, reason="the measured tables are not here")
def test_steps_of_nvidia(tmp_path, request):
    """6 FLOPs per parameter and token at 40 % of the peak are off by 15 %; with MXFP8 and NVFP4 the goal of 7 % is
    missed. All 126 steps with --whole, else each eighteenth, of so few of which the mean says less."""
    whole = is_whole(request)
    rows = score_files([part_of(truth("megatron_training.csv"), 1 if whole else 18, tmp_path)]).rows
    dense, experts = ([abs(row.error) for row in rows if row.op_class == kind] for kind in ("dense", "experts"))
    assert (len(dense), len(experts)) == ((71, 55) if whole else (5, 3))
    assert sum(dense) / len(dense) < (0.08 if whole else 0.12)
    assert sum(experts) / len(experts) < (0.2 if whole else 0.3)


@pytest.mark.parametrize("loops", [False, True])
@pytest.mark.parametrize("products", ["", "fp8"])
def test_experts_multiply_what_tokens_choose(products, loops):
    """Six FLOPs a step for each token, each of its two experts, and each number of their three matrices; the same on a
    rank that shares the experts and has tokens of its own."""
    width, inner, seq = 256, 128, 64
    sizes = Sizes(width, 3, 4, 512, seq, ffn=inner, gated=True, rotary=True, bias=False, tied=False, fused=True,
                  experts=8, top_k=2, products=products, loops=loops, clamps=loops)  # fmt: skip
    for layout in (Parallelism(), Parallelism(ep=4)):
        profile = _profile(sizes, 2, layout, "bfloat16", True)
        costs = zip(profile.graph.ops, profile.costs[0], strict=True)
        grouped = sum(cost.total_flops for op, cost in costs if "grouped_mm" in op.name or "mm.out" in op.name)
        assert grouped == 3 * 6 * (2 * seq) * 2 * 3 * width * inner
