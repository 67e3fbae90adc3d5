"""What an hour of a GPU and its power cost, and what tokens do that come at a rate."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from memwall.core.errors import UsageError
from memwall.hardware.lookup import Gpu, load_gpus


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


#: joules of a kilowatt-hour
KWH_J = 3.6e6

#: number of :class:`CostRates` -> whether it can be one, and what is wanted
_RANGES: Mapping[str, tuple[Callable[[float], bool], str]] = {
    "kwh": (lambda usd: 0 < usd < math.inf, "USD above 0"),
    "grams_per_kwh": (lambda grams: 0 < grams < math.inf, "grams above 0"),
    "pue": (lambda ratio: 1 <= ratio < math.inf, "1 or more"),
    "busy": (lambda share: 0 < share <= 1, "a share above 0 and up to 1"),
    "spot": (lambda share: 0 < share <= 1, "a share of the price above 0 and up to 1"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CostRates:
    """What a GPU's hour costs, and a kilowatt-hour in USD (``kwh``) and in grams of CO2; None: not billed. ``pue``:
    joules that the building takes for each of the GPUs. GPUs are loaded for the share ``busy`` of the hours for which
    they are paid; at ``spot``, a share of the price, they are paid while loaded.

    Raises:
        UsageError: a number out of its range, or one that changes no bill.
    """

    usd_per_gpu_hour: float | None = None
    kwh: float | None = None
    grams_per_kwh: float | None = None
    pue: float = 1.0
    busy: float = 1.0
    spot: float | None = None

    def __post_init__(self) -> None:
        for name, (is_possible, wanted) in _RANGES.items():
            value = getattr(self, name)
            if value is not None and not is_possible(value):
                raise UsageError(f"--{name.replace('_', '-')} {value:g}: want {wanted}")
        if self.spot is not None and self.usd_per_gpu_hour is None:
            raise UsageError("--spot has no effect without --price, of which it is a share")
        if self.pue != 1 and self.kwh is None and self.grams_per_kwh is None:
            raise UsageError("--pue has no effect without --kwh or --grams-per-kwh")

    @property
    def is_priced(self) -> bool:
        """Whether tokens cost something."""
        return self.usd_per_gpu_hour is not None or self.kwh is not None

    @property
    def idle(self) -> float:
        """Hours without load for each with it."""
        return 1 / self.busy - 1


NO_RATES = CostRates()


def rates_of(gpu: Gpu, usd_per_gpu_hour: float | None, said: Mapping[str, Any]) -> CostRates:
    """The rates of a GPU, with what is ``said`` of the others. Raises ``UsageError``: as :class:`CostRates`, or power
    is billed and the power of the GPU is not known."""
    rates = CostRates(usd_per_gpu_hour=usd_per_gpu_hour, **said)
    if (rates.kwh is not None or rates.grams_per_kwh is not None) and not gpu.tdp_w:
        raise UsageError(f"--kwh and --grams-per-kwh bill power, and the power limit of {gpu.name} is not known")
    return rates


def check_billed(prices: Mapping[str, float], said: Mapping[str, Any]) -> None:
    """Raises ``UsageError``: as :class:`CostRates` of any of the GPUs, with what is ``said``; None: it is not said."""
    known = {name: said[name] for name in _RANGES if said[name] is not None}
    CostRates(usd_per_gpu_hour=next(iter(prices.values()), None), **known)


@dataclass(frozen=True, slots=True, kw_only=True)
class Billed:
    """GPUs that make tokens, and their bill: watts of one of them under the load and while it waits, None where they
    are not known."""

    gpus: float = 1
    rates: CostRates = NO_RATES
    watts_per_gpu: Any = None
    idle_watts: float | None = None

    def joules_of_token(self, tokens_per_s: Any) -> Any:
        """Joules of the GPUs for each token, also of their idle hours; None without their power."""
        return None if self.watts_per_gpu is None else self.gpus * self._watts(self.rates.idle) / tokens_per_s

    def usd_of_million(self, tokens_per_s: Any) -> Any:
        """USD of a million tokens if they pay for everything, also for idle hours; None without prices."""
        price = self.rates.usd_per_gpu_hour
        return self._usd(None if price is None else price / self.rates.busy, self.rates.idle, tokens_per_s)

    def spot_usd_of_million(self, tokens_per_s: Any) -> Any:
        """The same on GPUs that are given back when they are idle; None without such a price."""
        price, spot = self.rates.usd_per_gpu_hour, self.rates.spot
        return None if price is None or spot is None else self._usd(price * spot, 0.0, tokens_per_s)

    def grams_of_million(self, tokens_per_s: Any) -> Any:
        """Grams of CO2 of a million tokens; None without the grams of a kilowatt-hour, or without power."""
        joules, grams = self.joules_of_token(tokens_per_s), self.rates.grams_per_kwh
        return None if joules is None or grams is None else 1e6 * joules / KWH_J * self.rates.pue * grams

    def _watts(self, idle_hours: float) -> Any:
        return self.watts_per_gpu + idle_hours * (self.idle_watts or 0.0)

    def _usd(self, price: float | None, idle_hours: float, tokens_per_s: Any) -> Any:
        """With the price of an hour under load, and so many idle hours for each."""
        if not self.rates.is_priced:
            return None
        usd_per_hour: Any = price or 0.0
        if self.rates.kwh is not None and self.watts_per_gpu is not None:
            usd_per_hour = usd_per_hour + self.rates.kwh * self.rates.pue * self._watts(idle_hours) / 1000
        return self.gpus * usd_per_hour / 3600 / tokens_per_s * 1e6
