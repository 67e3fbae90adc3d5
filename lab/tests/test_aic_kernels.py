"""Rows of linear attention, sparse attention, casts and block-scaled products: what each is taken for, by hand."""

import pytest

from memwall.bench.accuracy import read_measured
from memwall.bench.accuracy.samples import Sample
from memwall_lab.tables.aic_modules import _MODELS, _kernels

DELTA = (
    "system,framework,version,kernel_source,batch_size,seq_len,num_k_heads,head_k_dim,num_v_heads,head_v_dim,latency\n"
)
MAMBA = "system,kernel_source,batch_size,seq_len,nheads,head_dim,d_state,n_groups,chunk_size,latency\n"
SPARSE = "system,op_name,kernel_source,num_heads,batch_size,isl,step,compress_ratio,score_mode,latency\n"
CASTS = "system,framework,op_name,kernel_source,m,k,quant_dtype,latency\n"
DEEPGEMM = "commit,kind,gpu,groups,m_per_group,n,k,tflops,gbps,us\n"


@pytest.fixture
def sample(tmp_path):
    """``sample(header and row)``: the sample of a table of one row."""

    def read(text):
        path = tmp_path / "t.csv"
        path.write_text(text, encoding="utf-8")
        (found,) = read_measured(path).of(Sample)
        return found

    return read


def test_engines_convolve_other_channels(sample):
    """2 x 16 heads of queries and keys and 32 of values, 128 numbers each; TensorRT-LLM the channels of keys alone."""
    rest = "causal_conv1d_fn,4,1000,16,128,32,128,0.5\n"
    packed, keys = (sample(f"{DELTA}h200_sxm,{name},{rest}") for name in ("vLLM,0.25.0", "TRTLLM,1.3.0rc20"))
    assert (packed.gpu.name, packed.measured_s) == ("h200", pytest.approx(0.5e-3))
    assert packed.cost.read_bytes == 2 * 4 * 1000 * 8192 + 2 * 4 * 8192
    assert keys.cost.read_bytes == 2 * 4 * 1000 * 2048 + 2 * 4 * 2048
    assert keys.cost.launches[0].blocks == 4 * 2048


def test_states_of_decodes(sample):
    """2 sequences of 32 states of 128 x 128: float32 both ways, or from bfloat16 to float32 (TensorRT-LLM)."""
    rest = ",2,1,16,128,32,128,0.01\n"
    state = 2 * 32 * 128 * 128
    results = 2 * 2 * 32 * 128
    in_place = sample(f"{DELTA}b200_sxm,SGLang,0.5.14,fused_recurrent_gated_delta_rule_packed_decode{rest}")
    copied = sample(f"{DELTA}b200_sxm,TRTLLM,1.3.0rc20,fused_recurrent_gated_delta_rule{rest}")
    assert in_place.cost.write_bytes == copied.cost.write_bytes == 4 * state + results
    assert in_place.cost.read_bytes - copied.cost.read_bytes == 2 * state


def test_a_convolution_of_mamba_2(sample):
    """64 heads of 64 numbers and 2 x 8 groups of 128: 6144 channels."""
    row = sample(f"{MAMBA}h100_sxm,causal_conv1d_fn,2,512,64,64,128,8,128,0.1\n")
    assert row.cost.launches[0].blocks == 2 * 6144


def test_a_paged_index_shares_one_cache(sample):
    """Eight tokens after 4092, whatever their sequences: 1023 keys of four tokens for three, then 1024, then 1025."""
    row = sample(f"{SPARSE}h200_sxm,dsv4_paged_mqa_logits_module,deep_gemm,64,2,4,4092,4,,0.01\n")
    assert row.cost.write_bytes == 4 * (3 * 1023 + 4 * 1024 + 1025)


def test_a_difference_of_two_casts_bounds_nothing(sample):
    row = sample(f"{CASTS}h200_sxm,TRTLLM,compute_scale,torch_ops,1024,4096,fp8,0.01\n")
    assert row.drawn
    assert row.cost.read_bytes == 2 * 1024 * 4096


def test_grouped_products_of_fp8_blocks(sample):
    """Four products of 256 x 4096 x 7168: activations with a scale for 128 numbers, weights with one for 128 x 128."""
    row = sample(f"{DEEPGEMM}abc,masked,h800-sxm,4,256,4096,7168,932,2064,64.517\n")
    one = 256 * 7168 + 4 * 256 * 56 + 4096 * 7168 + 4 * 32 * 56
    assert row.cost.read_bytes == 4 * one
    assert row.cost.total_flops == 4 * 2 * 256 * 4096 * 7168
    assert row.measured_s == pytest.approx(64.517e-6)


def test_a_module_of_glm_5_has_its_products():
    """A decode of two sequences with 1000 tokens on 8 heads of GLM-5: rows of 6144 to 2048 + 576; of 2048 to 8 heads of
    256 and 32 heads of the index of 128; of 6144 to a key of 128 and 32 weights; of 8 heads of 256 back to 6144. For
    each head 192 x 512 before attention and 512 x 256 behind it; 1000 latents of 576 + 512."""
    kernels = list(
        _kernels(_MODELS["GlmMoeDsaForCausalLM"], (2, 8, 1, 1000), ("", "vllm", "bfloat16"), indexed=True, dense=False)
    )
    matmuls = 6144 * (2048 + 576) + 2048 * (8 * 256 + 32 * 128) + 6144 * (128 + 32) + 8 * 256 * 6144
    heads = 8 * (192 * 512 + 512 * 256 + 1000 * (576 + 512))
    index = 32 * 128 * 1000
    assert sum(cost.total_flops for cost in kernels) == 2 * 2 * (matmuls + heads + index)
