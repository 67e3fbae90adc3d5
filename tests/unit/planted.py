"""A model whose ops end in the ways in which a kernel can end: each stands alone among good ones."""

import os
import signal
import time

import torch


def _hang(x):
    while True:
        time.sleep(0.1)


def _crash(x):
    os.kill(os.getpid(), signal.SIGSEGV)
    return x.clone()


def _too_large(x):
    return torch.empty(1 << 50, dtype=torch.float32)


def _raises(x):
    raise ValueError("planted\nsecond line")


def _wrong(x):
    return x + (0.5 if x.dtype is torch.float32 else 0.0)


PLANTED = {"hang": _hang, "crash": _crash, "too_large": _too_large, "raises": _raises, "wrong": _wrong}

_library = torch.library.Library("planted", "FRAGMENT")
for _name, _function in PLANTED.items():
    if not hasattr(torch.ops.planted, _name):
        _library.define(f"{_name}(Tensor x) -> Tensor")
        _library.impl(_name, _function, "CPU")
        _library.impl(_name, torch.empty_like, "Meta")


class Planted(torch.nn.Module):
    """Good ops before, between and behind those that are named."""

    def __init__(self, names):
        super().__init__()
        self.names = names

    def forward(self, x):
        x = torch.exp(x)
        for name in self.names:
            x = torch.tanh(getattr(torch.ops.planted, name)(x))
        return torch.sigmoid(x)


def model():
    return Planted(os.environ.get("PLANTED", ",".join(PLANTED)).split(","))


def inputs():
    return (torch.ones(64, 1000),)
