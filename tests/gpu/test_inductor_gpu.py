"""On a machine with a GPU: what memwall says that torch.compile would do there, against what it does."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

import memwall
from memwall.hardware.lookup import match_device
from tests.unit.inductor.test_inductor import Convolutions, Mlp, groups, squared

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU and a CUDA build of torch"),
]


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize(
    ("make", "shape"), [(Mlp, (8, 128, 64)), (Convolutions, (4, 3, 32, 32))], ids=["mlp", "convolutions"]
)
@pytest.mark.parametrize("faked", [False, True], ids=["real device", "fake device"])
def test_groups_equal_those_of_a_run_on_the_device(make, shape, training, faked, monkeypatch):
    import torch._inductor.config as config

    from memwall.inductor import lower

    gpu = match_device(torch.cuda.get_device_name())
    if gpu is None:
        pytest.skip(f"memwall has no spec of {torch.cuda.get_device_name()}")
    module = make().train(training).cuda()
    x = torch.randn(shape, device="cuda")
    seen: list[tuple[str, ...]] = []

    def record(nodes):
        seen.extend(groups(nodes))
        return nodes

    torch._dynamo.reset()
    settings = {"force_disable_caches": True, "compile_threads": 1}
    with config.patch(_post_fusion_custom_pass=record, **settings):
        with torch.set_grad_enabled(training):
            output = torch.compile(lambda x: squared(module(x)) if training else module(x))(x)
            if training:
                output.backward()
        real = Counter(seen)
        seen.clear()
        graph = memwall.profile(
            module, (x,), mode="training" if training else "inference", optimizer=None, gpu=gpu,
            loss=squared if training else None,
        ).graph  # fmt: skip
        if faked:
            monkeypatch.setattr("memwall.inductor.fake_gpu.match_device", lambda name: None)
        lower(graph, gpu)
    assert sum(real.values()) >= 5
    assert Counter(seen) == real
