"""What tokens cost, by hand: hours, kilowatt-hours, grams, idle hours and spot GPUs."""

import math
from dataclasses import replace

import pytest

from memwall.core.errors import UsageError
from memwall.hardware.lookup import load_gpu
from memwall.hardware.prices import NO_RATES, Billed, CostRates, rates_of


def billed(**rates):
    """Two GPUs of 500 W, idle 200 W."""
    return Billed(gpus=2, rates=CostRates(**rates), watts_per_gpu=500.0, idle_watts=200.0)


def test_hours_of_gpus_by_the_tokens_of_an_hour():
    """2 x 1.8 USD an hour, and 1,000 tokens a second are 3.6 million an hour."""
    assert billed(usd_per_gpu_hour=1.8).usd_of_million(1000) == pytest.approx(1.0)


def test_power_is_billed_with_the_building_s():
    """1 kW x 1.2 x 0.15 USD an hour for 3.6 million tokens."""
    assert billed(kwh=0.15, pue=1.2).usd_of_million(1000) == pytest.approx(0.05)


def test_idle_hours_are_paid_and_draw_idle_power():
    """Half of the hours are idle: 2 x 2 x 1.8 USD, and (1 + 0.4) kW x 0.15 USD, for 3.6 million tokens."""
    assert billed(usd_per_gpu_hour=1.8, kwh=0.15, busy=0.5).usd_of_million(1000) == pytest.approx(2 + 1.4 * 0.15 / 3.6)
    assert billed(busy=0.5).joules_of_token(1000) == pytest.approx(1.4)


def test_spot_gpus_are_paid_while_loaded():
    """2 x 0.25 x 1.8 USD and 1 kW x 0.15 USD an hour."""
    found = billed(usd_per_gpu_hour=1.8, kwh=0.15, busy=0.5, spot=0.25).spot_usd_of_million(1000)
    assert found == pytest.approx(0.25 + 0.15 / 3.6)


def test_grams_are_those_of_the_building_s_energy():
    """1 J a token is 1 / 3.6 kWh a million: 1.2 x 400 / 3.6 g."""
    assert billed(grams_per_kwh=400, pue=1.2).grams_of_million(1000) == pytest.approx(480 / 3.6)


def test_without_prices_there_is_no_cost():
    assert not NO_RATES.is_priced
    assert (
        billed().usd_of_million(1000) is billed().spot_usd_of_million(1000) is billed().grams_of_million(1000) is None
    )


def test_without_power_hours_alone_cost():
    found = Billed(gpus=2, rates=CostRates(usd_per_gpu_hour=1.8, kwh=0.15, grams_per_kwh=400))
    assert found.usd_of_million(1000) == pytest.approx(1.0)
    assert found.joules_of_token(1000) is found.grams_of_million(1000) is None


def test_power_of_a_gpu_whose_limit_is_not_known_is_not_billed():
    gpu = replace(load_gpu("h100-sxm"), tdp_w=0.0)
    with pytest.raises(UsageError, match="the power limit of h100-sxm is not known"):
        rates_of(gpu, 2.0, {"kwh": 0.1})
    assert rates_of(gpu, 2.0, {}).usd_per_gpu_hour == 2


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("kwh", -0.1, "--kwh -0.1: want USD above 0"),
        ("kwh", math.nan, "--kwh nan: want USD above 0"),
        ("grams_per_kwh", math.inf, "--grams-per-kwh inf: want grams above 0"),
        ("pue", 0.9, "--pue 0.9: want 1 or more"),
        ("busy", 0, "--busy 0: want a share above 0 and up to 1"),
        ("busy", 1.5, "--busy 1.5: want a share above 0 and up to 1"),
        ("spot", math.nan, "--spot nan: want a share of the price above 0 and up to 1"),
    ],
)
def test_rates_that_cannot_be_are_one_line(name, value, why):
    with pytest.raises(UsageError, match=f"^{why}$"):
        CostRates(**{name: value})


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"spot": 0.5, "kwh": 0.1}, "--spot has no effect without --price"),
        ({"pue": 2.0}, "--pue has no effect without --kwh"),
    ],
)
def test_rates_that_change_no_bill_are_refused(said, why):
    with pytest.raises(UsageError, match=why):
        CostRates(**said)
