"""What a page shows at a glance, by hand: a step of 10 ms, its levers and the memory of its GPU."""

import re

import pytest

from memwall.analysis.levers import Lever
from memwall.report.html import blocks_html
from memwall.report.pages.glance import MemoryFact, first_fact, glance, limit_fact, memory_fact

FUSED = Lever("fusion by memwall", "--policy memwall", "", 9e-3, 1e-3)
LATENCY = Lever("half the latency", "--what-if latency_s/=2", "latency", 8e-3, 2e-3)
HOST = Lever("twice the host's speed", "--what-if dispatch_s/=2", "host", 6e-3, 4e-3)
IDEAL = Lever("perfect fusion", "--policy ideal", "", 5e-3, 5e-3)
SHARES = {"compute": 0.6, "latency": 0.4}


@pytest.mark.parametrize(("found", "says"), [
    ((FUSED, LATENCY), "60.0 % of the time; of the hardware half the latency would save most, 20.0 %"),
    ((HOST, LATENCY), "60.0 % of the time; of the hardware twice the host's speed would save most, 40.0 %"),
    ((FUSED,), "60.0 % of the time"),
])  # fmt: skip
def test_a_step_is_limited_by_the_wall_of_most_of_its_time_beside_the_change_that_saves_most(found, says):
    assert limit_fact(found, SHARES, 10e-3) == ("compute", says)


@pytest.mark.parametrize(("found", "says"), [
    ((LATENCY, FUSED), ("fusion by memwall", "saves 10.0 %: --policy memwall")),
    ((IDEAL,), ("perfect fusion", "saves 50.0 %, which no compiler reaches: --policy ideal")),
    ((Lever("twice the FLOP/s", "--what-if 'peak_flop_per_s*=2'", "compute", 9.95e-3, 0.05e-3),),
     ("nothing known", "no change that memwall knows saves 1 %")),
    ((), ("profile it again", "levers are not known of this record")),
])  # fmt: skip
def test_what_can_be_done_in_software_is_done_first(found, says):
    assert first_fact(found) == says


def test_a_step_that_does_not_fit_is_made_to_fit_first():
    (_, *limit), (_, *first), (_, *held) = glance(("latency", ""), ("fuse", ""), memory_fact(17e9, 16e9)).facts
    assert limit == ["latency", ""] and held == ["DOES NOT FIT", "17.00 GB of 16.00 GB"]
    assert first == ["make it fit", "a smaller batch, or a GPU of more memory"]


def test_a_name_of_one_of_several_cannot_act_on_the_page():
    shown = blocks_html([glance(("a", "b"), ("c", "--policy d"), MemoryFact(True, ""), of="<b>&")])
    assert re.findall("<dt>(.*?)</dt>", shown)[2] == "&lt;b&gt;&amp;: memory"
    assert "<code>--policy</code> d" in shown
