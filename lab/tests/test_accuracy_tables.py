"""Tables of measured times, known by their columns: what a row is taken for, by hand, and in the real ones."""

import csv
import io
import tarfile
from collections import Counter
from dataclasses import replace

import pytest
import torch

import memwall
from memwall.bench.accuracy import read_measured, score, score_files
from memwall.bench.accuracy.samples import Sample, model_rows
from memwall.core.errors import UsageError
from memwall.core.graph import Pipe
from memwall.hardware.host import load_host
from memwall_lab.collectives import CollectiveSample
from memwall_lab.modules import ModuleSample, functional
from memwall_lab.tables.encoder import layer_costs
from tests.unit.places import is_whole, part_of, truth
from tests.unit.report_fixture import make_profile

NEUSIGHT = "op,gpu,b,m,k,n,h,latency_ms\n"
GEMM = "gpu,framework,dtype,m,n,k,latency_ms,tflops\n"
ATTENTION = "gpu,framework,phase,batch,isl,step,heads,kv_heads,head_dim,dtype,latency_ms\n"
VIDUR = "gpu,model,op,num_tokens,tp,n_head,n_kv_head,n_embd,n_ffn,vocab,gated_mlp,min_ms,median_ms\n"
OWN = "gpu,executor,class,dtype,modeled_s,measured_s,bound_s,status\n"
CONV = "gpu,precision,W,H,C,N,K,fw,fh,pad_w,pad_h,stride_w,stride_h,P,Q,fwd_ms,bwd_input_ms,bwd_weight_ms,fwd_algo\n"


@pytest.fixture
def sample(tmp_path):
    """``sample(header and rows)``: the samples of a table."""

    def read(text):
        path = tmp_path / "t.csv"
        path.write_text("# source: made up\n# ms\n" + text, encoding="utf-8")
        return read_measured(path).of(Sample)

    return read


def test_a_linear_layer(sample):
    (row,) = sample(NEUSIGHT + "linear,Tesla V100-PCIE-32GB,4,128,512,256,,0.5\n")
    assert (row.gpu.name, row.op_class, row.dtype, row.launch) == ("v100-pcie-32gb", "linear", "float32", "call")
    assert row.cost.flops == {Pipe("tensor", "float32"): 2 * 4 * 128 * 512 * 256}  # no TF32
    assert row.cost.bytes == 4 * (4 * 128 * 512 + 512 * 256 + 256 + 4 * 128 * 256)
    assert row.measured_s == pytest.approx(0.5e-3)


def test_vector_ops(sample):
    rows = sample(
        NEUSIGHT + "".join(f"{op},Tesla T4,64,,,,1000,0.1\n" for op in ("add", "mul", "relu", "gelu", "softmax", "ln"))
    )
    assert [row.op_class for row in rows] == ["elementwise"] * 4 + ["softmax", "layernorm"]
    tensor = 4 * 64 * 1000
    assert [row.cost.bytes for row in rows[:5]] == [3 * tensor] * 2 + [2 * tensor] * 3
    assert rows[5].cost.bytes == 2 * tensor + 4 * (2 * 1000 + 2 * 64)  # weight, bias, two moments a row
    assert all(row.resident_bytes == row.cost.read_bytes for row in rows)  # 768 kB in 4 MiB


def test_what_is_too_large_for_l2_is_cold(sample):
    (row,) = sample(NEUSIGHT + "relu,Tesla T4,4096,,,,4096,0.1\n")
    assert row.resident_bytes == 0


def test_columns_may_be_more_and_gpus_others(sample):
    rows = sample(
        "latency_ms,h,n,k,m,b,gpu,op,extra\n0.1,8,,,,8,NVIDIA H100 80GB HBM3,relu,x\n0.1,8,,,,8,NVIDIA L4,relu,x\n"
        "0.1,8,,,,8,NVIDIA A100 80GB PCIe,relu,x\n0.1,8,,,,8,AMD Instinct MI250,relu,x\n"
    )
    assert [row.gpu.name for row in rows] == ["h100-sxm", "l4", "a100-80gb-pcie", "mi250x"]
    assert rows[3].label == "AMD Instinct MI250"


def test_products_of_a_server(sample):
    bf16, fp8 = sample(GEMM + "H100-SXM-80GB,x,bfloat16,16,32,64,0.003,0\nH100-SXM-80GB,x,fp8,16,32,64,0.013,0\n")
    assert (bf16.launch, bf16.gpu.name, fp8.dtype) == ("graph", "h100-sxm", "fp8")
    assert bf16.cost.bytes == 2 * (16 * 64 + 64 * 32 + 16 * 32)
    assert fp8.cost.flops == {Pipe("tensor", "fp8"): 2 * 16 * 32 * 64}
    # activations in bfloat16, weights in fp8, the result in bfloat16; three launches before the product
    assert fp8.cost.bytes == 2 * 16 * 64 + 64 * 32 + 2 * 16 * 32
    assert fp8.cost.kernels == bf16.cost.kernels + 3


def test_attention_of_a_server(sample):
    decode, prefill = sample(
        ATTENTION + "H200-SXM-141GB,x,decode,2,1,1023,32,8,128,bfloat16,0.02\n"
        "H200-SXM-141GB,x,prefill,1,512,0,32,8,128,bfloat16,0.02\n"
    )
    assert decode.cost.total_flops == 4 * 2 * 32 * 1024 * 128  # the new token sees step + 1 keys
    assert decode.cost.read_bytes == 2 * (2 * 32 * 128 + 2 * 2 * 1024 * 8 * 128)
    assert prefill.cost.total_flops == 4 * 32 * (512 * 513 // 2) * 128  # causal, the diagonal included
    assert [row.op_class for row in (decode, prefill)] == ["decode", "prefill"]


def test_layers_of_an_llm(sample):
    shape = "{op},256,2,32,8,4096,14336,128256,True,0.1,0.2"
    ops = ("attn_pre_proj", "attn_post_proj", "mlp_up_proj", "mlp_down_proj")
    rows = sample(VIDUR + "".join(f"a100,llama,{shape.format(op=op)}\n" for op in ops))
    sizes = [(6144 // 2, 4096), (4096, 4096 // 2), (2 * 14336 // 2, 4096), (4096, 14336 // 2)]
    assert [row.cost.total_flops for row in rows] == [2 * 256 * n * k for n, k in sizes]
    assert {row.gpu.name for row in rows} == {"a100-80gb-sxm"}
    act, norm = sample(VIDUR + "".join(f"a40,llama,{shape.format(op=op)}\n" for op in ("mlp_act", "input_layernorm")))
    assert act.cost.bytes == 2 * 3 * 256 * 14336 // 2
    assert norm.cost.bytes == 2 * 2 * 256 * 4096
    assert act.measured_s == pytest.approx(0.2e-3)  # the median


def test_a_convolution_is_up_to_three_samples(sample):
    rows = sample(CONV + "T4,fp32,28,28,64,8,128,3,3,1,1,1,1,28,28,0.1,N/A*,0.3,X\n")
    assert [(row.op_class, row.measured_s) for row in rows] == [("conv forward", 1e-4), ("conv weight", 3e-4)]
    assert {row.cost.total_flops for row in rows} == {2 * 8 * 128 * 28 * 28 * 64 * 9}


def test_an_all_reduce_by_hand(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("network,num_workers,size,median_ms,devices_per_node\nh100_dgx,8,90000000,0.4,8\n")
    (row,) = score_files([path]).rows
    # 2 x 7 / 8 of 90 MB at 450 GB/s each way are 350 us
    assert row.r0_s == pytest.approx(350e-6) and row.r1_s == pytest.approx(350e-6 / 0.85 + 3e-6)
    assert (row.gpu, row.op_class, row.measured_s) == ("h100_dgx", "all_reduce", 0.4e-3)


COLLECTIVES = "gpu,lib,op,dtype,n_gpus,devices_per_node,bytes,time_us\n"


def test_collectives_by_hand(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(
        COLLECTIVES
        + "h200_sxm,NCCL 2.29,alltoall,half,8,,90000000,200\nhgx-b200,any,all_gather,half,8,4,90000000,200\n"
        "h100_sxm,vLLM_custom_eager,all_reduce(custom),bfloat16,2,,4096,20\nl40s,TRTLLM,all_reduce(custom),half,2,,64,5\n"
    )
    pairs, nodes, eager, trt = read_measured(path).of(CollectiveSample)
    assert (pairs.cluster.name, pairs.op, pairs.launch) == ("dgx-h200", "all_to_all", "graph")
    # 7 / 8 of 90 MB at 450 GB/s; between two half nodes over 4 adapters of 50 GB/s
    assert pairs.row().r0_s == pytest.approx(175e-6) and nodes.row().r0_s == pytest.approx(90e6 * 7 / 8 / 200e9)
    assert (eager.library, eager.launch, eager.row().op_class) == ("custom", "eager", "all_reduce custom")
    assert (trt.library, trt.launch) == ("trtllm", "graph")


def test_collectives_that_no_cluster_can_run_are_counted(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(
        COLLECTIVES + "voodoo,NCCL,all_gather,half,2,,8,9\nh100_sxm,NCCL,gossip,half,2,,8,9\n"
        "a100_pairwise_nvlink,NCCL,all_reduce,half,8,,8,9\nh100_sxm,NCCL,all_gather,half,2,,8,9\n"
    )
    assert set(read_measured(path).skipped) == {
        "there is no cluster of the GPU 'voodoo'", "op 'gossip' is not known",
        "a100-4-pairs joins 1 to 4 GPUs, not 8",
    }  # fmt: skip


def test_what_cannot_be_scored_is_counted(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(
        NEUSIGHT + "relu,Tesla T4,8,,,,8,1\nrelu,Voodoo 2,8,,,,8,1\nfft,Tesla T4,8,,,,8,1\nrelu,Voodoo 2,8,,,,9,1\n"
    )
    found = read_measured(path)
    assert len(found.of(Sample)) == 1
    assert found.skipped == {"there is no spec of the GPU 'Voodoo 2'": 2, "op 'fft' is not known": 1}


BAD = {
    NEUSIGHT + "relu,Tesla T4,8,,,,8,soon\n": "t.csv:2: latency_ms is 'soon', not a number",
    NEUSIGHT + "relu,Tesla T4,8,,,,8,nan\n": "t.csv:2: latency_ms is 'nan', not a time",
    NEUSIGHT + "relu,Tesla T4,8,,,,8,0\n": "t.csv:2: latency_ms is '0', not a time",
    NEUSIGHT + "relu,Tesla T4,8,,,,8,1\nrelu,Tesla T4,1.5,,,,8,1\n": "t.csv:3: b is '1.5', not a size",
    NEUSIGHT + "relu,Tesla T4,inf,,,,8,1\n": "t.csv:2: b is 'inf', not a size",
    NEUSIGHT + "relu,Voodoo 2,8,,,,8,1\n": "there is no spec of the GPU 'Voodoo 2'",
    "# only a comment\n": "is empty",
    "op,gpu,b,m,k,n,h\nrelu,T4,8,,,,8\n": "it lacks the column latency_ms of the nearest kind, neusight_ops",
    "": "is empty",
    "a,b\n1,2\n": "is not a table of measured times",
    OWN: "holds no measured kernel",
    OWN + "g,eager,c,d,1,,1,failed\n": "holds no measured kernel",
    OWN + "g,eager,c,d,1,soon,1,ok\n": "t.csv:2: measured_s is 'soon', not a number",
    OWN + "g,eager,c,d,1,1,1,ok\ng,eager,c,d,1,0,1,ok\n": "t.csv:3: measured_s is '0', not a time",
    OWN + "g,eager,c,d,-1,1,1,ok\n": "t.csv:2: modeled_s is '-1', not a time",
    OWN + "g,eager,c,d,nan,1,1,ok\n": "t.csv:2: modeled_s is 'nan', not a time",
    OWN + "g,eager,c,d,1,inf,1,ok\n": "t.csv:2: measured_s is 'inf', not a time",
    OWN + "g,eager,c\n": "t.csv:2: 3 cells where the header has 8",
    OWN + 'g,"eager,c\n': "is not CSV",
}


@pytest.mark.parametrize("text", BAD, ids=BAD.values())
def test_a_bad_table_is_named(tmp_path, text):
    path = tmp_path / "t.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError) as raised:
        read_measured(path)
    assert BAD[text] in str(raised.value)
    assert "\n" not in str(raised.value)


def test_lines_are_counted_with_the_comments(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("# one\n# two\n" + NEUSIGHT + "relu,Tesla T4,8,,,,8,soon\n", encoding="utf-8")
    with pytest.raises(UsageError, match=r"t\.csv:4: latency_ms"):
        read_measured(path)


#: file -> rows that it has, and what R0 and R1 score on some of its cells (percent, from the whole of which these are
#: half: baseline_roofline_scores.csv)
REAL = {
    "neusight_ops_train_subsample.csv": (16_000, {}),
    "neusight_ops_amd.csv": (5_793, {}),
    "neusight_conv_subsample.csv": (3_798, {}),
    "aiconfigurator_gemm.csv": (
        17_920,
        {
            ("A100-SXM4-80GB", "gemm", "bfloat16"): (54.2, 22.9),
            ("H100-SXM-80GB", "gemm", "bfloat16"): (46.5, 11.2),
            ("B200-SXM", "gemm", "fp8"): (80.2, 63.2),
        },
    ),
    "aiconfigurator_attention.csv": (12_404, {}),
    "vidur_mlp_ops.csv": (10_733, {("a40", "add", "float16"): (32.4, 68.9)}),
    "vidur_allreduce.csv": (2_744, {}),
    "deepbench_gemm.csv": (522, {("T4", "gemm", "fp32"): (52.0, 37.3)}),
    "deepbench_conv.csv": (732, {}),
}


@pytest.mark.parametrize("name", REAL)
def test_every_row_of_a_real_table_is_read(name):
    path = truth(name)
    if path is None:
        pytest.skip("the measured tables are not here")
    count, baselines = REAL[name]
    found = read_measured(path)
    assert len(found.of(Sample)) + len(found.of(CollectiveSample)) + len(found.rows) == count
    assert not found.skipped
    scored = [each for each in found.of(Sample) if (each.label, each.op_class, each.dtype) in baselines]
    cells = {(c.gpu, c.op_class, c.dtype): c for c in score(model_rows(scored))}
    for key, (r0, r1) in baselines.items():
        assert 100 * cells[key].r0_mape == pytest.approx(r0, rel=0.06)
        assert 100 * cells[key].r1_mape == pytest.approx(r1, rel=0.06)


CUDNN = ("gpu,backend,dtype,mask,batch,q_len,kv_len,q_heads,kv_heads,d_qk,d_v,window,deterministic,phase,time_ms\n"
         "GB200,cudnn,{}\n")  # fmt: skip


@pytest.mark.parametrize(
    ("row", "flops", "read", "kernel"),
    [
        # 4096 * 4097 / 2 pairs; queries, 8 of 64 heads of keys and of values
        ("bfloat16,top_left,1,4096,4096,64,8,128,128,,False,fwd,0.4", 4 * 128 * 64 * 4096 * 4097 // 2,
         2 * 128 * 4096 * (64 + 8 + 8), "cudnn"),
        # three products of 192 and two of 128 numbers; read besides: the result, its gradient, a float32 for each row,
        # and in the pass before the result, its gradient
        ("bfloat16,no_mask,2,4096,4096,128,128,192,128,,False,bwd,9.0", 2 * (3 * 192 + 2 * 128) * 2 * 128 * 4096**2,
         None, "cudnn_backward"),
        # a query sees 128 keys, itself among them: the first 127 fewer
        ("fp8,top_left,2,2048,2048,128,128,64,64,128.0,False,fwd,0.1", 4 * 64 * 2 * 128 * (2048 * 128 - 127 * 128 // 2),
         128 * 2 * 2048 * 3 * 64, "cudnn_fp8"),
    ],
    ids=["grouped", "gradients", "window"],
)  # fmt: skip
def test_attention_by_cudnn(sample, row, flops, read, kernel):
    (found,) = sample(CUDNN.format(row))
    launch = found.cost.launches[-1]
    assert (found.gpu.name, found.launch, launch.variant) == ("gb200", "kernel", kernel)
    assert sum(launch.pipe_flops.values()) == flops
    assert read in (None, found.cost.read_bytes)


def test_attention_by_cudnn_does_the_flops_that_its_table_counts():
    path = truth("cudnn_sdpa.csv")
    if path is None:
        pytest.skip("the measured tables are not here")
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    rows = [row for row in csv.DictReader(lines) if row["phase"] == "fwd" or row["deterministic"] == "False"]
    samples = read_measured(path).of(Sample)
    done = [sum(sample.cost.launches[-1].pipe_flops.values()) for sample in samples]
    assert done == [int(float(row["flop_exact"])) for row in rows]


def test_attention_of_encoders_names_its_kernel(sample):
    head = "system,framework,kernel_source,batch_size,isl,num_heads,head_dim,attn_dtype,latency\n"
    (found,) = sample(head + "l40s,VLLM,vllm_vit_flash_attn_fa2,2,1296,12,80,bfloat16,0.1\n")
    assert found.cost.launches[0].variant == "flash"
    assert found.cost.total_flops == 4 * 2 * 12 * 1296**2 * 80


def test_norms_by_torch(sample):
    head = "gpu,norm,backend,dtype,N,C,bias,phase,time_ms\n"
    (found,) = sample(head + "H200,rms_norm,pytorch,bfloat16,8192,4096,False,fwd,0.043\n")
    assert found.cost.bytes == 2 * 2 * 8192 * 4096 + 2 * 4096 + 4 * 8192  # and a weight, a float32 for each row


def test_an_encoder_layer_does_the_work_of_the_papers_table():
    """335,686,926,336 FLOP forward and backward (reports/bert_layer.md, its trace less the loss that it needs)."""
    costs = list(layer_costs(8, 512))
    assert sum(cost.total_flops for cost in costs) == 335_686_926_336
    assert len(costs) == 48
    assert all(cost.modeled and cost.launches for cost in costs)


MODULES = "gpu,way,module,mean_ms,std_ms,min_ms,max_ms,trials\n"


def _archive(path, files):
    with tarfile.open(path, "w:xz") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(f"records/{name}.json")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text))


def test_a_module_is_read_with_its_profile(tmp_path):
    table = tmp_path / "own_times.csv"
    table.write_text(MODULES + "NVIDIA T4 (Modal),eager,level1_1_X,2.0,0.1,1,3,100\n"
                     "NVIDIA T4 (Modal),compile_best,level1_1_X,2.0,0.1,1,3,100\n"
                     "NVIDIA T4 (Modal),eager,level1_2_Y,2.0,0.1,1,3,100\n", encoding="utf-8")  # fmt: skip
    with pytest.raises(UsageError, match=r"the profiles of the modules are not here: own_records\.tar\.xz"):
        read_measured(table)
    _archive(tmp_path / "own_records.tar.xz", {"level1_1_X": make_profile().to_json().encode()})
    found = read_measured(table)
    (module,) = found.of(ModuleSample)
    assert (module.gpu.name, module.op_class, module.module) == ("t4", "level 1 eager", "level1_1_X")
    assert not module.in_fit_half  # CRC-32 0x8037E52F is odd
    assert sum(found.skipped.values()) == 2
    (row,) = score_files([table]).rows
    assert row.measured_s == pytest.approx(2e-3)
    assert module.gpu.host == load_host("cloud-vm").scaled(1.08)
    assert not module.profile.graph.gradients  # timed under no_grad
    assert row.modeled_s == module.profile.schedule(module.gpu, launch="call").totals.time_s


def test_a_replay_of_compiled_code_copies_its_inputs_first(tmp_path):
    table = tmp_path / "own_times.csv"
    table.write_text(MODULES + "NVIDIA T4 (Modal),compile_cudagraphs,level1_1_X,2.0,0.1,1,3,100\n", encoding="utf-8")
    _archive(tmp_path / "own_records.tar.xz", {"level1_1_X": make_profile().to_json().encode()})
    (module,) = read_measured(table).of(ModuleSample)
    ran, was = module.ran().graph, module.profile.graph
    (given,) = was.inputs  # 2 MiB, read and written once more
    assert (ran.ops[0].name, ran.ops[0].outputs) == ("aten.copy_.default", (given,))
    assert [op.name for op in ran.ops[1:]] == [op.name for op in was.ops]
    assert sum(c.bytes for c in module.ran().costs[0]) == sum(c.bytes for c in module.profile.costs[0]) + 2 * 2**21
    assert module.schedule().launch == "replay"


def test_a_functional_graph_copies_what_updates_a_buffer():
    """A batch norm in training form: both statistics are cloned and copied back, the count copied back."""
    made = memwall.profile(torch.nn.BatchNorm2d(8), (torch.empty(4, 8, 16, 16, device="meta"),), mode="training")
    graph = made.graph
    forward = replace(graph, ops=tuple(op for op in graph.ops if op.phase == "forward"))
    copies = Counter(op.inputs for op in functional(forward).ops if op.name == "aten.copy_.default")
    of_buffers = {graph.storages[graph.values[i].storage].name: count for (i,), count in copies.items()}
    assert of_buffers == {"running_mean": 2, "running_var": 2, "num_batches_tracked": 1}
    assert [op.id for op in functional(forward).ops] == list(range(len(forward.ops) + 5))


def test_a_damaged_archive_is_refused(tmp_path):
    table = tmp_path / "other_times.csv"
    table.write_text(MODULES + "NVIDIA T4 (Modal),eager,level1_1_X,2.0,0.1,1,3,100\n", encoding="utf-8")
    (tmp_path / "other_records.tar.xz").write_bytes(b"no archive")
    with pytest.raises(UsageError, match=r"other_records\.tar\.xz is no archive of profiles"):
        read_measured(table)
    _archive(tmp_path / "other_records.tar.xz", {"level1_1_X": b"{"})
    with pytest.raises(UsageError, match="is no archive of profiles"):
        read_measured(table)


def test_no_module_is_faster_than_its_bound(request, tmp_path):
    path, records = truth("kernelbench_v0_times.csv"), truth("kernelbench_v0_records.tar.xz")
    if path is None or records is None:
        pytest.skip("the measured times of KernelBench are not here")
    (tmp_path / records.name).symlink_to(records)
    scored = score_files([part_of(path, 1 if is_whole(request) else 5, tmp_path)])
    # eager on four GPUs, of the T4 one less, and one set of graphs
    assert len(scored.rows) == 4 * 246 - 1 + 246 or (not is_whole(request) and len(scored.rows) > 200)
    assert not [row.shape for row in scored.rows if row.is_violation]
