"""What does not use JAX loads nothing of it, and what does not ask for policy xla compiles nothing."""

import subprocess
import sys

import pytest

TORCH = """
import sys, memwall, torch
memwall.profile(torch.nn.Linear(8, 8), (torch.randn(2, 8),), gpu="h100-sxm")
from memwall.cli import main
packages = ("jax", "jaxlib", "flax", "optax", "onnx", "libtpu")
loaded = sorted(name for name in sys.modules if name.partition(".")[0] in packages)
print(loaded)
"""
COMPILED = """
import memwall, jax
from jax._src import compiler
from unittest.mock import patch
with patch.object(compiler, "backend_compile_and_load", side_effect=AssertionError("compiled")):
    memwall.profile(lambda x: jax.numpy.tanh(x @ x).sum(), (jax.ShapeDtypeStruct((8, 8), "float32"),),
                    gpu="h100-sxm", policy=("eager", "memwall", "ideal"))
print("none")
"""


def _printed(text):
    ran = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    return ran.stdout.splitlines()[-1]


def test_pytorch_loads_nothing_of_jax():
    assert _printed(TORCH) == "[]"


def test_no_program_is_compiled_without_the_policy():
    pytest.importorskip("jax", reason="needs jax: traces its programs")
    assert _printed(COMPILED) == "none"
