"""What GPUs draw, against what was measured beside their times."""

import importlib.util
import statistics

import pytest

from tests.unit.places import ROOT, truth


@pytest.fixture(scope="module")
def fit():
    pytest.importorskip("scipy")
    spec = importlib.util.spec_from_file_location("fit_power", ROOT / "lab" / "fits" / "fit_power.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    return tool


def test_measured_powers_that_nothing_was_fitted_to(fit):
    """Of kernels of 0.1 ms and more, in the half that constants may not see: 10 % in the median."""
    path = truth("aic_gated_delta.csv")
    if path is None:
        pytest.skip("tables with the power of a GPU are not here")
    rows = [row for row in fit.rows_of(path.parent) if row.is_steady and not row.in_fit_half]
    errors = [abs(row.modeled(fit.IDLE, fit.COMPUTE, fit.MEMORY) / row.drawn - 1) for row in rows]
    assert len(errors) > 40
    assert statistics.median(errors) < 0.12


def test_shares_that_were_planted_are_found_again(fit):
    """Rows that draw 0.2 idle, and 0.5 and 0.4 of arithmetic and traffic; a wait is one of twenty."""
    shares = [(i / 20, j / 20) for i in range(4, 12) for j in range(4, 12)]
    rows = [fit.PowerRow("made up", True, 1e-3, 0.2 + 0.5 * c + 0.4 * m, c, m) for c, m in shares]
    rows += [fit.PowerRow("made up", True, 1e-6, 0.2, 0.0, 0.0)] * 8
    assert fit.fitted(rows) == pytest.approx((0.2, 0.5, 0.4), rel=1e-3)
