"""A program → Graph.

In: what the user named on the command line or passed in Python. Out: a graph (:mod:`memwall.core.graph`): every op
that a device would run, in call order, with the tensors that it reads and writes.

``targets/`` finds the model, its inputs, loss and optimizer: start there; ``hf/`` builds models of transformers from
their configurations. ``torch/`` runs one step on tensors without data and records the calls; ``blocks/`` traces blocks
that repeat once. ``live`` records code as it runs. ``facts`` has what is known of a trace beside the graph. ``jax/``,
``onnx/``, ``stablehlo/`` and ``hlo/`` read a program that is no PyTorch module and write it with ``writing``; to the
rest of memwall such a one is a ``program``. This door, ``facts``, ``program``, ``writing`` and ``targets/`` import no
torch.
"""
