"""What is kept of the values in a storage on ``meta``."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Shadow(NamedTuple):
    """The bytes of a storage on ``meta``, which is kept so that its address stays its own; or, where it is ``uniform``,
    one element that all of them equal. ``assumed`` is what its values rest on, as ``("experts=balanced",)``."""

    raw: torch.UntypedStorage
    shadow: torch.UntypedStorage
    uniform: bool = False
    assumed: tuple[str, ...] = ()

    def is_one_of(self, tensor: torch.Tensor) -> bool:
        """Whether its single element is one of the tensor, which may see the bytes as another dtype."""
        return self.uniform and self.shadow.nbytes() == tensor.itemsize


def address_of(tensor: torch.Tensor) -> int:
    """What a tensor's storage is known by."""
    address: int = tensor.untyped_storage()._cdata
    return address
