"""Functions that remember tensors, wherever they are and whatever holds the tensors: each trace sees their first call,
and nothing of it stays in them."""

import importlib
import sys

import pytest
import torch

import memwall

_SOURCE = """
import {imports}, torch, types
from torch import nn

@{maker}
def table(n):
    return {made}

class Model(nn.Module):
    def forward(self, x):
        return x * table(8){read}
"""
_COS = 'torch.arange(n, device="cuda").float().cos()'
_KINDS = {
    "tensor": ("functools", "functools.lru_cache", _COS, ""),
    "dict": ("functools", "functools.cache", f'{{"n": n, "cos": {_COS}}}', '["cos"]'),
    "object": ("functools", "functools.cache", f"types.SimpleNamespace(n=[n], cos={_COS})", ".cos"),
    "last of a list": ("functools", "functools.lru_cache", f"[n, {_COS}]", "[1]"),
    "alias": ("functools as ft", "ft.lru_cache(maxsize=None)", _COS, ""),
}


@pytest.mark.parametrize("reload", [False, True])
@pytest.mark.parametrize("kind", _KINDS)
def test_each_trace_sees_the_first_call_of_functions_with_a_cache(kind, reload, tmp_path, monkeypatch):
    name = f"cached_{list(_KINDS).index(kind)}_{reload:d}"
    imports, maker, made, read = _KINDS[kind]
    (tmp_path / f"{name}.py").write_text(_SOURCE.format(imports=imports, maker=maker, made=made, read=read))
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module(name)
    for _ in range(3):
        found = memwall.profile(module.Model(), (torch.zeros(4, 8),), gpu="a100")
        assert [op.name for op in found.graph.ops] == ["aten.arange", "aten._to_copy", "aten.cos", "aten.mul.Tensor"]
        assert not module.table.cache_info().currsize
        if reload:
            importlib.reload(module)
    del sys.modules[name]


@pytest.mark.parametrize("owner", ["module", "class"])
def test_what_the_callers_own_run_left_stays(owner, tmp_path, monkeypatch):
    """The trace sees the first call, in a module and in those that import from it, and the caller's tensor is kept."""
    name = f"kept_{owner}"
    (tmp_path / f"{name}.py").write_text(
        "import functools, torch\nfrom torch import nn\n"
        "@functools.lru_cache\ndef table(n):\n    return torch.arange(n).float().cos()\n"
        "class Model(nn.Module):\n"
        "    @functools.lru_cache\n    def own(self, n):\n        return torch.arange(n).float().cos()\n"
        f"    def forward(self, x):\n        return x * {'self.own(8)' if owner == 'class' else 'table(8)'}\n"
    )
    (tmp_path / f"{name}_user.py").write_text(f"from {name} import table as other, Model\n")
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module(name)
    user = importlib.import_module(f"{name}_user")
    model = module.Model()
    model(torch.zeros(4, 8))
    function = module.Model.own if owner == "class" else module.table
    before = function.cache_info()
    kept = module.table(8) if owner == "module" else model.own(8)
    for _ in range(2):
        found = memwall.profile(model, (torch.zeros(4, 8),), gpu="a100")
        assert [op.name for op in found.graph.ops] == ["aten.arange", "aten._to_copy", "aten.cos", "aten.mul.Tensor"]
    assert (module.Model.own if owner == "class" else module.table) is function and user.other is module.table
    assert function.cache_info().currsize == before.currsize
    assert (module.table(8) if owner == "module" else model.own(8)) is kept
