"""Results on meta that are made from those of an equal call, against torch's own shape functions."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from memwall.frontend.torch.dispatch.results import Results

aten = torch.ops.aten


def made(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def look(result: object) -> object:
    if isinstance(result, torch.Tensor):
        return tuple(result.shape), result.stride(), result.dtype, result.untyped_storage().nbytes()
    return tuple(map(look, result)) if isinstance(result, (list, tuple)) else result


IMAGE, FILTERS = made(2, 8, 6, 6), made(4, 8, 3, 3)
CALLS = {
    "add": (aten.add.Tensor, (made(4, 1), made(4, 3))),
    "add transposed": (aten.add.Tensor, (made(3, 4).t(), made(4, 3).half())),
    "add int and float": (aten.add.Tensor, (made(4, dtype=torch.int64), 1.5)),
    "add int and int": (aten.add.Tensor, (made(4, dtype=torch.int64), 1)),
    "add int and bool": (aten.add.Tensor, (made(4, dtype=torch.bool), True)),
    "div of ints": (aten.div.Tensor, (made(4, dtype=torch.int64), 2)),
    "expanded": (aten.mul.Tensor, (made(1, 3).expand(5, 3), 2.0)),
    "convolution": (aten.convolution.default, (IMAGE, FILTERS, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)),
    "channels last": (aten.native_batch_norm.default,
                      (IMAGE.to(memory_format=torch.channels_last), None, None, None, None, True, 0.1, 1e-5)),
    "some gradients": (aten.convolution_backward.default,
                       (made(2, 4, 6, 6), IMAGE, made(4, 8, 3, 3), None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1,
                        [False, True, False])),
    "flash attention": (aten._scaled_dot_product_flash_attention.default, (made(1, 2, 8, 16).half(),) * 3),
    "concatenation": (aten.cat.default, ([made(2, 3), made(2, 5)], 1)),
    "two results": (aten.var_mean.correction, (made(4, 5), [1])),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_an_equal_call_gets_what_torch_gives(name):
    function, args = CALLS[name]
    results = Results()
    expected = look(function(*args))
    first, second = results.of(function, args, {}), results.of(function, args, {})
    assert look(first) == expected
    assert look(second) == expected
    assert type(first) is type(second)


def test_all_calls_share_one_table():
    results = Results()
    for _ in range(2):
        for name, (function, args) in CALLS.items():
            assert look(results.of(function, args, {})) == look(function(*args)), name


def test_results_of_equal_calls_are_tensors_of_their_own():
    results, x = Results(), made(4)
    kept = [results.of(aten.relu.default, (x,), {}) for _ in range(3)]
    assert len({tensor.untyped_storage()._cdata for tensor in kept}) == 3


def test_what_is_no_new_tensor_is_run_each_time():
    calls = []

    def itself(x):
        calls.append("itself")
        return x

    def part(x):
        calls.append("part")
        return made(8)[2:4]

    results, x = Results(), made(4)
    for _ in range(2):
        assert results.of(itself, (x,), {}) is x
        assert results.of(part, (x,), {}).storage_offset() == 2
    assert calls == ["itself", "part"] * 2


def test_keywords_are_told_from_positions_and_the_default_dtype_counts():
    results, x = Results(), made(4, dtype=torch.int64)
    total = results.of(aten.sum.default, (x,), {})
    half = results.of(aten.sum.default, (x,), {"dtype": torch.float16})
    assert (total.dtype, half.dtype) == (torch.int64, torch.float16)
    before = torch.get_default_dtype()
    try:
        dtypes = []
        for default in (torch.float32, torch.float64):
            torch.set_default_dtype(default)
            dtypes.append(results.of(aten.div.Tensor, (x, 2), {}).dtype)
    finally:
        torch.set_default_dtype(before)
    assert dtypes == [torch.float32, torch.float64]


def test_tensors_with_data_are_none_of_it():
    results = Results()
    values = [results.of(aten.add.Tensor, (torch.tensor([float(i)]), 1.0), {}).item() for i in range(2)]
    assert values == [1.0, 2.0]


def test_another_mode_sees_every_call():
    results, seen = Results(), []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    with Watch():
        for _ in range(3):
            results.of(aten.relu.default, (made(4),), {})
    assert seen.count(aten.relu.default) == 3
