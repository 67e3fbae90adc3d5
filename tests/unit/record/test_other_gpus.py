"""A record made for one GPU and simulated on another equals a profile made for that one."""

import json
import random

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import memwall
from memwall.core.errors import UsageError
from memwall.hardware.chips import CHIPS, chip_of
from memwall.ops.sdpa import AttentionCall
from memwall.pipeline import resimulate
from tests.unit.places import REFERENCE

GPUS = ("v100-sxm2-16gb", "t4", "p100-sxm2-16gb", "mi300x")
HEAVY = {"llama3_405b", "llama3_70b"}
#: attention that GPUs run by other kernels, and convolutions, on some GPUs; the others, and all GPUs, with --whole
ALWAYS = {
    ("bert_layer", "inference"): GPUS[1:],
    ("bert_layer", "training"): GPUS[:1],
    ("resnet50", "inference"): GPUS[:1],
}


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        (name, mode) if (name, mode) in ALWAYS else pytest.param(name, mode, marks=pytest.mark.whole)
        for name in REFERENCE for mode in ("inference", "training") if name not in HEAVY
    ],
)  # fmt: skip
def test_a_reference_workloads_record_holds_for_every_gpu(name, mode, tmp_path, request):
    target = str(REFERENCE[name])
    memwall.profile(target, gpu="h100-sxm", mode=mode).save(tmp_path / "h100.json")
    saved = memwall.Profile.load(tmp_path / "h100.json")
    for gpu in GPUS if request.config.getoption("--whole") else ALWAYS[name, mode]:
        again, direct = (
            p.simulations[0] for p in (resimulate(saved, gpu), memwall.profile(target, gpu=gpu, mode=mode))
        )
        assert again.totals == direct.totals, gpu
        assert again.memory == direct.memory
        assert tuple(again.kernels) == tuple(direct.kernels)


class Net(nn.Module):
    """Attention with ``heads`` query and key heads of a size, as given."""

    def __init__(self, heads=4, key_heads=4, size=64, **options):
        super().__init__()
        self.shape, self.options = (heads, key_heads, size), options
        self.q, self.kv = nn.Linear(64, heads * size), nn.Linear(64, 2 * key_heads * size)

    def forward(self, x, mask=None):
        heads, key_heads, size = self.shape
        batch, length, _ = x.shape
        q = self.q(x).view(batch, length, heads, size).transpose(1, 2)
        k, v = (t.view(batch, length, key_heads, size).transpose(1, 2) for t in self.kv(x).chunk(2, -1))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, **self.options)


X = torch.empty(2, 96, 64, device="meta")
MASK = torch.empty(2, 1, 96, 96, device="meta", dtype=torch.bool)


@pytest.mark.parametrize(("net", "inputs", "dtype", "expected"), [
    # sdp_utils.cpp: flash from sm_80 on in half precision; before, memory-efficient, which has bf16 only from sm_80
    (Net(), (X,), "bfloat16", ("flash", "math", "flash", "math")),
    (Net(), (X,), "float16", ("flash", "efficient", "flash", "math")),
    (Net(), (X,), "float32", ("efficient", "efficient", "efficient", "math")),
    (Net(), (X, MASK), "bfloat16", ("efficient", "math", "efficient", "math")),  # flash takes no mask
    (Net(4, 2, enable_gqa=True), (X,), "float16", ("flash", "math", "flash", "math")),
    (Net(size=100), (X,), "float16", ("flash", "math", "flash", "math")),  # efficient: sizes in steps of 8
    (Net(size=512), (X,), "float16", ("efficient", "efficient", "flash", "math")),  # AOTriton: 512, flash: 256
])  # fmt: skip
def test_each_gpu_takes_the_backend_of_torchs_rules(net, inputs, dtype, expected):
    gpus = ("a100-sxm-80gb", "v100-sxm2-16gb", "mi300x", "mi100")
    made = memwall.profile(net, inputs, gpu=gpus, dtype=dtype)
    assert tuple(made.graphs[s.graph].backends[0] for s in made.simulations) == expected


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_strides_of_an_axis_of_one_are_saved(dtype):
    """One query is contiguous in more than one way, and its values are told apart by their strides."""

    class Decode(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k = nn.Linear(64, 64), nn.Linear(64, 64)

        def forward(self, x):
            q, k = (layer(t).unflatten(-1, (4, -1)).transpose(1, 2) for layer, t in ((self.q, x[:, :1]), (self.k, x)))
            return F.scaled_dot_product_attention(q, k, k).transpose(1, 2).flatten(2)

    made = memwall.profile(Decode(), (X,), gpu="h100-sxm", dtype=dtype)
    read = memwall.Profile.from_dict(json.loads(made.to_json()))
    assert any(v.spec.is_contiguous and v.spec.strides != (64, 16, 16, 1) for v in read.graph.values)
    assert (read.graph, read.attention) == (made.graph, made.attention)


def test_heads_of_200_train_in_flash_attention_where_shared_memory_is_large():
    made = memwall.profile(Net(size=200), (X,), gpu=("a100-sxm-80gb", "l4"), dtype="float16", mode="training")
    assert [made.graphs[s.graph].backends for s in made.simulations] == [("flash",), ("efficient",)]


def test_a_call_that_no_backend_takes_is_refused_where_it_is_simulated():
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
        made = memwall.profile(Net(), (X,), gpu="h100-sxm", dtype="float16")
    with pytest.raises(UsageError, match=r"allows only flash .* volta has no such kernel"):
        resimulate(made, "v100-sxm2-16gb")


def test_backward_on_the_math_path_keeps_the_probabilities():
    made = memwall.profile(Net(), (X,), gpu=("a100-sxm-80gb", "v100-sxm2-16gb"), dtype="bfloat16", mode="training")
    flash, math = (s.totals.peak_memory_bytes for s in made.simulations)
    assert math - flash >= 2 * 4 * 96 * 96 * 4  # batch x heads x queries x keys in fp32


def test_checkpointed_attention_is_paired_with_its_second_forward():
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = Net()

        def forward(self, x):
            return torch.utils.checkpoint.checkpoint(self.net, x, use_reentrant=False)

    made = memwall.profile(Checkpointed(), (X,), gpu="a100-sxm-80gb", dtype="bfloat16", mode="training")
    names = [op.name for op in made.graph.ops]
    assert names.count("aten._scaled_dot_product_flash_attention") == 2
    assert names.count("aten._scaled_dot_product_flash_attention_backward") == 1


def test_an_older_record_keeps_its_kernel_and_says_so(tmp_path):
    made = memwall.profile(Net(), (X,), gpu="h100-sxm", dtype="bfloat16")
    record = json.loads(made.to_json())
    del record["attention"]
    for graph in (record["graph"], *record.get("graphs", ())):
        del graph["backends"]
    (tmp_path / "old.json").write_text(json.dumps(record), encoding="utf-8")
    old = memwall.Profile.load(tmp_path / "old.json")
    assert [k.name for k in resimulate(old, "v100-sxm2-16gb").simulations[0].kernels] == [
        k.name for k in made.simulations[0].kernels
    ]
    assert "has no cudnn attention" in old.doubts(memwall.load_gpu("v100-sxm2-16gb"))[0]
    assert not old.doubts(memwall.load_gpu("a100-sxm-80gb"))
    assert not made.doubts(memwall.load_gpu("v100-sxm2-16gb"))


@pytest.mark.parametrize("key", ["start", "inputs", "arguments"])
def test_a_damaged_attention_op_is_refused(tmp_path, key):
    record = json.loads(memwall.profile(Net(), (X,), gpu="h100-sxm", dtype="bfloat16").to_json())
    record["attention"]["ops"][0][key] = {"start": 99, "inputs": [0], "arguments": []}[key]
    with pytest.raises(UsageError):
        memwall.Profile.from_dict(record)


def test_every_chip_takes_one_of_the_forms_of_a_call():
    made = memwall.profile(Net(), (X,), gpu="h100-sxm", dtype="float16")
    kind = made.attention.kinds[0]
    call = AttentionCall.of(made.attention.traced, made.attention.traced.ops[kind.op])
    assert {call.backend(made.attention.on(chip)) for chip in CHIPS.values()} == set(kind.forms)
    assert call.backend(made.attention.on(chip_of(memwall.load_gpu("b200-sxm")))) == "cudnn"


@pytest.mark.parametrize(("asked", "says"), [
    ({}, "has no 'gpu'"),
    ({"gpu": 1, "asked": []}, "gpu is not text"),
    ({"gpu": "t4", "asked": 3}, "asked is not a list"),
    ("t4", "is not an object"),
])  # fmt: skip
def test_a_damaged_note_of_the_gpu_that_answered_is_the_users_error(asked, says):
    record = memwall.profile(nn.Linear(2, 2), (torch.randn(1, 2),)).to_dict()
    with pytest.raises(UsageError, match=f"capture is damaged: asked_gpu.*{says}"):
        memwall.Profile.from_dict({**record, "capture": {"asked_gpu": asked}})


class Restless(nn.Module):
    """Attention whose work depends on random numbers and on how often it was called."""

    def __init__(self):
        super().__init__()
        self.attend, self.calls = Net(), 0
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        self.seen += 1
        for _ in range(self.calls + random.randrange(1, 9)):
            x = x + 1
        return self.attend(x).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_random_numbers_and_state_are_the_same_on_every_gpu(mode):
    gpus = (*GPUS[:2], "h100-sxm")

    def profile(gpu):
        random.seed(7)
        module = nn.Sequential(*[nn.Sequential(Restless(), nn.Linear(256, 64)) for _ in range(2)])
        made = memwall.profile(module, (torch.zeros(2, 96, 64),), gpu=gpu, mode=mode)
        assert [(block[0].calls, block[0].seen.item()) for block in module] == [(0, 0)] * 2
        return made

    several, one = profile(list(gpus)), profile("h100-sxm")
    for gpu, simulated in zip(gpus, several.simulations, strict=True):
        direct = profile(gpu).simulations[0]
        assert simulated.totals == direct.totals == resimulate(one, gpu).simulations[0].totals, gpu


class _Attends(torch.nn.Module):
    def forward(self, q, k, v):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v)


@pytest.mark.defect("12")
@pytest.mark.parametrize(("attention", "gpu"), [("flash", "p100-pcie-16gb"), ("flash", "v100-sxm2-16gb"),
                                                ("efficient", "mi100")])  # fmt: skip
def test_an_attention_kernel_that_torch_has_not_for_a_gpu_is_refused(attention, gpu):
    """A preferred attention kernel was modeled on GPUs for which torch has none."""
    tensors = tuple(torch.zeros(1, 2, 64, 64, dtype=torch.float16) for _ in range(3))
    with pytest.raises(UsageError, match=f"torch has no such kernel for {gpu}.*or auto"):
        memwall.profile(_Attends(), tensors, attention=attention, gpu=gpu)


@pytest.mark.defect("12")
def test_calls_that_a_preferred_kernel_does_not_take_are_said():
    """A preferred kernel stood for what V100 would run of a call, whatever the GPU, and other kernels took calls that
    it does not take without a word."""
    half = tuple(torch.zeros(1, 2, 64, 64, dtype=torch.bfloat16) for _ in range(3))
    made = memwall.profile(_Attends(), half, attention="efficient", gpu="h100")
    assert "aten._scaled_dot_product_efficient_attention" in {op.name for op in made.graph.ops}
    assert not made.notes
    single = tuple(tensor.float() for tensor in half)  # flash takes half precision alone
    made = memwall.profile(_Attends(), single, attention="flash", gpu="h100")
    assert any("torch's flash kernel does not take" in note for note in made.notes)
