"""``memwall search``: the optimum of all candidates, found without simulating all."""

import itertools

import pytest

from memwall.core.errors import UsageError
from memwall.hardware.lookup import load_gpu
from memwall.serving import read_model, serve, steps_of
from memwall.serving.candidates import objective, stop
from memwall.serving.search import _least_step_s, search
from tests.unit.configs import SHORT_LLAMA, target_of

pytest.importorskip("transformers", reason="transformers is not installed")
PRICES = {"h100-sxm": 2.5, "a100-80gb-sxm": 1.5}


@pytest.fixture
def llama(tmp_path, monkeypatch):
    monkeypatch.setenv("MEMWALL_CACHE", str(tmp_path / "cache"))
    return target_of(tmp_path / "llama", SHORT_LLAMA)


#: clients of equal requests, and bursts of sessions that begin alike and spread
CLIENTS = {"concurrency": 16, "prompt": 512, "generate": 64}
SESSIONS = {"rate": 400.0, "burst": 3.0, "turns": 2, "system_prompt": 256, "requests": 60, "route": "prefix"}
SESSIONS |= {"prompt": 512, "generate": 64, "lengths": "0.5-1.0"}


def every_candidate(target, load, gpus):
    """What each costs, its layout and its run; each simulated."""
    model = read_model(target)
    for (name, usd), tp, dp, pp in itertools.product(PRICES.items(), *[range(1, gpus + 1)] * 3):
        for engines in range(1, gpus // (tp * dp * pp) + 1):
            own = {key: value for key, value in load.items() if key != "route" or engines > 1}
            layout = {"tp": tp, "dp": dp, "pp": pp, "replicas": engines}
            try:
                (point,) = serve(model, gpu=name, **layout, **own, price={name: usd}).points
            except UsageError:
                continue
            cost = point.candidate.gpus * usd / 3600 * 1e6 / point.candidate.run.tokens_per_s
            yield (cost, name, tp, dp, pp, engines), point.candidate


@pytest.mark.parametrize("load", [CLIENTS, SESSIONS], ids=["clients", "sessions"])
def test_the_best_is_that_of_an_exhaustive_search(llama, load):
    """Without objectives, and with a time of a token below that of one engine that has all clients."""
    every = list(every_candidate(llama, load, 2))
    (lone_s,) = (run.run.tpot.mean for key, run in every if key[1:] == ("h100-sxm", 1, 1, 1, 1))
    for share in (None, 0.99, 0.9):
        slo = [] if share is None else [f"tpot<{share * lone_s:.9f}s", "ttft_p99<1s"]
        found = search(llama, gpu=list(PRICES), gpus=2, slo=slo, price=PRICES, **load)
        limits, best = [objective(text) for text in slo], found.best
        cost, *layout = min(key for key, run in every if stop(run, limits) is None)
        assert best.usd_per_million == pytest.approx(cost, rel=1e-12)
        assert [*(best.options[name] for name in ("gpu", "tp", "dp", "pp")), best.engines] == layout
        assert found.count == sum(found.pruned.values()) + len(found.simulated) or slo


def test_no_step_beats_its_bound(llama):
    model = read_model(llama)
    for name, tp, batch in itertools.product(("h100", "a100", "l40s"), (1, 2), (1, 7, 64, 100, 250)):
        steps = steps_of(model, load_gpu(name), tp)
        for context in (1, 700, 5000):
            assert _least_step_s(steps, batch) <= steps.step_s(batch, batch * context)


def test_the_number_of_engines_may_be_fixed(llama):
    found = search(llama, gpu="h100", gpus=3, replicas=3, **CLIENTS)
    assert {(each.engines, each.gpus) for each in found.simulated} == {(3, 3)}
    with pytest.raises(UsageError, match="--replicas 3 are more than --gpus or --concurrency; 2 is the most"):
        search(llama, gpus=2, replicas=3, **CLIENTS)


def test_an_objective_may_be_of_goodput(llama):
    found = search(llama, gpu="h100", gpus=1, slo=["tpot<1s", "goodput_share>0.5"], **CLIENTS)
    assert found.best.candidate.goodput_share == 1


def test_what_is_pruned_is_said(run, llama):
    load = ("--concurrency", "8", "--prompt", "512", "--generate", "64")
    words = ("search", llama, "--gpu", "h100", "--gpus", "2", *load)
    result = run(*words)
    assert result.code == 0, result.err
    assert "The cheapest: 1 engine of 1 h100-sxm." in result.out and "of which were simulated" in result.out
    none = run(*words, "--slo", "tpot<1us")
    assert none.code == 2 and "no run keeps TPOT < 1.00 us by its bound" in none.error
    assert "say how requests come" in run(*words[:6]).error
