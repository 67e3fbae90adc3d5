"""The programs of many GPUs under profiles/: what a rank sends, by hand from published dimensions."""

from __future__ import annotations

import sys
from collections import Counter
from importlib.util import module_from_spec, spec_from_file_location

import pytest
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel, parallelize_module

import memwall
from memwall.analysis.communication import exposed_s, sent_bytes
from memwall.core.errors import UsageError
from tests.unit.places import ROOT

#: parameters of a block of Llama 3: query and out, key and value, the three of the MLP, two norms; of what is around
BLOCK_8B = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 2 * 4096
AROUND_8B = 2 * 128256 * 4096 + 4096
#: of the 70B an eighth of the products' weights, and whole norms
BLOCK_70B = (2 * 8192 * 8192 + 2 * 8192 * 1024 + 3 * 8192 * 28672) // 8 + 2 * 8192
AROUND_70B = 2 * 128256 * 8192 // 8 + 8192
#: its residual stream: four sequences of 4,096 tokens in bfloat16
STREAM_70B = 4 * 4096 * 8192 * 2
#: keys and values of 131,072 tokens, 32 heads of 128 after they are repeated, in bfloat16
KEYS_AND_VALUES = 2 * 131072 * 32 * 128 * 2
#: two rows for each of 4,096 tokens, and a matrix of an expert, in bfloat16
ROWS, EXPERT = 2 * 4096 * 4096 * 2, 4096 * 14336 * 2
#: a micro-batch of 2,048 tokens
HIDDEN = 2048 * 2560 * 2


def profiled(name: str, cluster: str, world: int, mode: str = "training", **options) -> memwall.Profile:
    return memwall.profile(f"profiles/{name}", mode=mode, cluster=cluster, world=world, **options)


def sent(made: memwall.Profile) -> Counter:
    """Collective, ranks and bytes of its message → how often."""
    launches = ((op, cost.launches[-1]) for op, cost in zip(made.graph.ops, made.costs[0], strict=True))
    return Counter((last.op, last.group, last.nbytes) for op, last in launches if op.op_class == "communication")


def test_ddp_sums_each_gradient_once_and_sends_the_buffers_of_batch_norm():
    found = sent(profiled("resnet50_ddp/model.py", "dgx-a100-80gb", 64))
    sums = [nbytes for op, _, nbytes in found.elements() if op == "all_reduce"]
    assert sum(sums) == 4 * 25_557_032 and max(sums) < 2 * 25 * 2**20
    # running means and variances, and how many batches each of the 53 has seen
    assert found["broadcast", "0-63", 4 * 53_120] == found["broadcast", "0-63", 8 * 53] == 1


def test_fsdp_gathers_each_block_twice_in_bfloat16_and_sums_in_float32():
    found = sent(profiled("llama3_8b_fsdp/model.py:eight_blocks", "dgx-h100", 64))
    assert found == {
        ("all_gather", "0-63", 2 * BLOCK_8B): 16, ("reduce_scatter", "0-63", 4 * BLOCK_8B): 8,
        ("all_gather", "0-63", 2 * AROUND_8B): 1, ("reduce_scatter", "0-63", 4 * AROUND_8B): 1,
    }  # fmt: skip


def test_tensor_and_sequence_parallel_blocks_inside_a_node_are_sharded_over_nodes():
    """Of each block the stream is gathered before attention and the MLP: forward, computed again, backward. The sum
    after the MLP is not computed again, as nothing needs it."""
    found = sent(profiled("llama3_70b_fsdp_tp/model.py:eight_blocks", "dgx-h100", 256))
    assert found["all_gather", "0-248:8", 2 * BLOCK_70B] == 16 and found["all_gather", "0-248:8", 2 * AROUND_70B] == 1
    assert found["reduce_scatter", "0-248:8", 4 * BLOCK_70B] == 8
    assert found["all_gather", "0-7", STREAM_70B] == 8 * 6 + 2
    assert found["reduce_scatter", "0-7", STREAM_70B] == 8 * 5 + 2


def test_experts_get_their_rows_and_send_them_back_forward_and_backward():
    found = sent(profiled("moe_ep/model.py", "dgx-h100", 16))
    assert found["all_to_all", "0-7", ROWS] == 8 * 4
    assert found["all_reduce", "0,8", EXPERT] == 8 * 3


def test_keys_and_values_are_gathered_and_their_gradients_go_around():
    """Forward, computed again, backward; gradients in float32, an eighth at a time."""
    found = sent(profiled("llama3_8b_cp/model.py:eight_blocks", "dgx-h100", 16))
    assert found["all_gather", "0-7", KEYS_AND_VALUES] == 8 * 3
    assert found["all_to_all", "0-7", 2 * KEYS_AND_VALUES // 8] == 8 * 8


@pytest.mark.parametrize(("rank", "groups"), [(0, ["0-1"]), (3, ["2-3", "3-4"]), (7, ["6-7"])])
def test_a_stage_hands_on_each_micro_batch_and_its_gradient(rank, groups):
    found = sent(profiled("gpt_pipeline/model.py", "dgx-a100-80gb", 8, rank=rank))
    assert found == {("send_recv", group, HIDDEN): 2 * 16 for group in groups}


def test_what_a_gate_limits_is_what_is_sent_and_what_nothing_hides():
    made = profiled("resnet50_ddp/model.py", "dgx-a100-80gb", 64)
    (schedule,) = made.simulations
    # a ring sends twice 63/64 of each sum; a broadcast its whole message
    assert sent_bytes(made, schedule) == pytest.approx(2 * 63 / 64 * 4 * 25_557_032 + 4 * 53_120 + 8 * 53)
    sums = [kernel for kernel in schedule.kernels if kernel.op_class == "communication"]
    assert exposed_s(made, schedule) == pytest.approx(sum(k.time_s - k.wait_s for k in sums))
    alone = memwall.profile("profiles/resnet50/model.py", batch=1)
    assert sent_bytes(alone, alone.simulations[0]) == exposed_s(alone, alone.simulations[0]) == 0


def test_a_program_of_torchrun_without_a_world_says_how_it_is_started():
    with pytest.raises(UsageError, match=r"KeyError: 'LOCAL_RANK'.*with --cluster NAME --world N"):
        memwall.profile("profiles/resnet50_ddp/model.py")


def test_a_layout_and_the_program_that_shards_the_same_model_do_the_same(monkeypatch):
    """A Llama of two blocks over two GPUs: Megatron's cut, by PyTorch's own styles and by ``tp=2``."""
    spec = spec_from_file_location("llama_of_a_layout", ROOT / "profiles/llama3_8b/model.py")
    llama = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, llama)
    spec.loader.exec_module(llama)
    config, inputs = llama.Config(width=256, layers=2, heads=8, kv_heads=4, ffn=512), llama.inputs(2, 128)
    whole = Replicate()
    plan = {
        "attention": PrepareModuleInput(
            input_layouts=(whole, None, None), desired_input_layouts=(whole, None, None)
        ),
        "mlp": PrepareModuleInput(input_layouts=(whole,), desired_input_layouts=(whole,)),
        **{f"attention.{name}": ColwiseParallel() for name in ("query", "key", "value")},
        "attention.out": RowwiseParallel(), "mlp.gate": ColwiseParallel(), "mlp.up": ColwiseParallel(),
        "mlp.down": RowwiseParallel(),
    }  # fmt: skip

    def program():
        mesh, net = init_device_mesh("cuda", (2,)), llama.Llama(config)
        for block in net.blocks:
            parallelize_module(block, mesh, plan)
        return net

    workload = memwall.Workload(program, inputs, loss=llama.loss)
    options = {"mode": "training", "optimizer": None, "gpu": "h100", "cluster": "dgx-h100", "world": 2}
    traced = memwall.profile(workload, **options)
    laid_out = memwall.parallel(llama.Llama(config), inputs, layout="tp=2", cluster="dgx-h100", loss=llama.loss)
    done, same = (of_blocks(made) for made in (traced, laid_out.profile))
    assert done == same
    # two sums forward and two backward of each block, of 2 x 128 rows of 256 in float32
    assert done["forward", "all_reduce", 2 * 128 * 256 * 4] == done["backward", "all_reduce", 2 * 128 * 256 * 4] == 4


def of_blocks(made: memwall.Profile) -> Counter:
    """Phase, kind, FLOPs and bytes of each product, attention and message of the blocks → how often."""
    found: Counter = Counter()
    for op, cost in zip(made.graph.ops, made.costs[0], strict=True):
        if op.module.startswith("blocks.") and op.op_class == "communication":
            found[op.phase, cost.launches[-1].op, cost.launches[-1].nbytes] += 1
        elif op.module.startswith("blocks.") and op.op_class in ("contraction", "attention"):
            found[op.phase, op.op_class, cost.total_flops, cost.read_bytes, cost.write_bytes] += 1
    return found
