"""Workload → Graph: run one step on tensors without data and write down what a CUDA device would run."""

from memwall.frontend.torch.run import Traced, TraceOptions, trace

__all__ = ["TraceOptions", "Traced", "trace"]
