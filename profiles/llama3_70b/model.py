"""Llama 3 70B (Grattafiori et al. 2024, table 3), bf16: ../llama3_8b/model.py in a larger size."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import torch

spec = spec_from_file_location("llama3_8b_model", Path(__file__).parents[1] / "llama3_8b" / "model.py")
llama = sys.modules[spec.name] = module_from_spec(spec)
spec.loader.exec_module(llama)

inputs, loss, optimizer = llama.inputs, llama.loss, llama.optimizer


def model():
    config = llama.Config(width=8192, layers=80, heads=64, kv_heads=8, ffn=28672)
    return llama.Llama(config).to(torch.bfloat16)
