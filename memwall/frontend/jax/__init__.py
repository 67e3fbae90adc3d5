"""A function of JAX → Graph, without arrays: its jaxpr, primitive by primitive.

``targets`` says what of a file or of Python is a JAX program, and makes a function of arrays of modules of flax, haiku
and equinox; ``program`` traces it, in training with its gradients and an optimizer of optax; ``jaxprs`` writes the
primitives into a graph, whose arrays ``avals`` describes; ``views`` says which of them only rearrange. This door and
``views`` import no JAX.
"""
