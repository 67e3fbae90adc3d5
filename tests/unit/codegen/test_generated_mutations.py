"""A fault planted in a kernel is caught: wrong masks, races, outputs that nobody writes, sums in too few bits."""

import pytest

from tests.unit import interpreted
from tests.unit.mutants import MUTANTS

pytestmark = interpreted.needs_triton


@pytest.fixture(scope="module")
def faults(request, tmp_path_factory, forks):
    asked = [item.callspec.params["name"] for item in request.session.items if "faults" in item.fixturenames]
    return interpreted.by_name(forks, "planted", asked, tmp_path_factory.mktemp("mutants"))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", MUTANTS)
def test_the_fault_is_caught(name, faults):
    """The kernel without it is right: it is one of the cases of ``test_generated_kernels.py``."""
    (result,) = faults[name]
    assert result["status"] == "wrong", result
    assert MUTANTS[name].said in result["message"]
    assert result["error"] > 1.5  # by a margin, not by a hair
