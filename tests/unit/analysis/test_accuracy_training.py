"""Tables of training steps: what a row is taken for, by hand, and the errors of the real ones."""

from __future__ import annotations

import pytest

from memwall.analysis.accuracy import read_measured, score_files
from memwall.core.parallelism import Parallelism
from tests.unit.places import truth

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
        return read_measured(path).steps

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
        "tp=8,pp=2,dp=32,microbatches=48,recompute=full", "tp=4,sp,dp=48,fsdp=grad,microbatches=4",
    ]  # fmt: skip
    assert (rows[0].sizes.heads, rows[0].sizes.fused, rows[1].sizes.fused) == (64, False, True)


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
    assert (len(found.steps), dict(found.skipped)) == (1, {"8 stages of layers, and the model has 4 equal layers": 1})


@pytest.mark.skipif(truth("calculon_validation.csv") is None, reason="the measured tables are not here")
def test_steps_of_korthikanti():
    """Nothing is fitted to these eight steps of up to 512 GPUs."""
    errors = [abs(row.error) for row in score_files([truth("calculon_validation.csv")]).rows]
    assert len(errors) == 8
    assert sum(errors) / 8 < 0.03
    assert max(errors) < 0.07
