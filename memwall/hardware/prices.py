"""What an hour of a GPU costs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from memwall.core.errors import UsageError
from memwall.hardware.lookup import load_gpus


def prices_of(price: Mapping[str, float]) -> dict[str, float]:
    """USD per hour by the names under which memwall knows the GPUs. Raises ``UsageError``: a price is not above 0."""
    named = {load_gpus([name])[0].name: each for name, each in price.items()}
    for name, each in named.items():
        if isinstance(each, bool) or not isinstance(each, (int, float)) or not 0 < each < math.inf:
            raise UsageError(f"a GPU costs more than nothing, in USD an hour: the price of {name} is {each!r}")
    return named


def prices_among(price: Mapping[str, float] | None, gpus: Iterable[str]) -> dict[str, float]:
    """As :func:`prices_of`. Raises ``UsageError``: a price has no effect, as its GPU is not one of ``gpus``."""
    named, names = prices_of(price or {}), list(gpus)
    for name in named:
        if name not in names:
            raise UsageError(f"a price of {name}, which is not among the GPUs: {', '.join(names)}")
    return named


def check_priced(prices: Mapping[str, float], gpus: Iterable[str]) -> None:
    """Raises ``UsageError``: some of the GPUs have a price, and others none."""
    if prices and (unpriced := [name for name in gpus if name not in prices]):
        raise UsageError(f"no price of {', '.join(unpriced)}: costs compare where all GPUs have one, or none")
