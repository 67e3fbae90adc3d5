"""Factorizations and solvers next to the counts of LAPACK Working Note 41, by hand for small matrices."""

import pytest

from memwall.core.graph import Pipe
from tests.unit.cost_calls import TENSOR_FP32, cost, spec


def f32(*shape):
    return spec(*shape, dtype="float32")


def _flops(found):
    assert found.modeled
    return found.total_flops


def test_cholesky_is_a_third_of_a_cube():
    found = cost("aten.linalg_cholesky_ex.default", [("self", f32(2, 12, 12))], [f32(2, 12, 12), f32(2)])
    assert found.flops == {TENSOR_FP32: 2 * 576}  # 12^3 / 3 each
    assert (found.read_bytes, found.write_bytes) == (2 * 144 * 4, 2 * 144 * 4 + 8)


def test_lu_and_what_is_solved_with_it():
    lu = cost("aten.linalg_lu_factor_ex.default", [("A", f32(12, 12))], [f32(12, 12), f32(12), f32()])
    assert _flops(lu) == 1_152  # 2/3 * 12^3
    wide = cost("aten.linalg_lu_factor_ex.default", [("A", f32(6, 12))], [f32(6, 12), f32(6), f32()])
    # the leading terms of its columns: 2mnk - (m + n)k^2 + 2k^3/3 with k = 6
    assert _flops(wide) == 2 * 6 * 12 * 6 - 18 * 36 + 144
    solved = cost("aten._linalg_solve_ex.default", [("A", f32(12, 12)), ("B", f32(12, 5))],
                  [f32(12, 5), f32(12, 12), f32(12), f32()])  # fmt: skip
    assert _flops(solved) == 1_152 + 2 * 144 * 5
    inverse = cost("aten.linalg_inv_ex.default", [("A", f32(12, 12))], [f32(12, 12), f32()])
    assert _flops(inverse) == 2 * 1_728
    determinant = cost("aten._linalg_det.default", [("A", f32(3, 12, 12))], [f32(3), f32(3, 12, 12), f32(3, 12)])
    assert _flops(determinant) == 3 * 1_152


def test_a_triangle_takes_half_of_the_multiply_adds_and_half_of_the_bytes():
    found = cost("aten.linalg_solve_triangular.default", [("self", f32(8, 64, 64)), ("B", f32(8, 64, 16))],
                 f32(8, 64, 16), upper=False)  # fmt: skip
    assert _flops(found) == 8 * 64 * 64 * 16  # n^2 for each of 16 right-hand sides
    assert found.read_bytes == 8 * (64 * 65 // 2 + 64 * 16) * 4
    both = cost("aten._cholesky_solve_helper.default", [("self", f32(64, 16)), ("A", f32(64, 64))], f32(64, 16))
    assert _flops(both) == 2 * 64 * 64 * 16


def test_qr_with_and_without_its_vectors():
    a = [("A", f32(20, 10))]
    lone = cost("aten.linalg_qr.default", a, [f32(0), f32(10, 10)], mode="r")
    assert _flops(lone) == 3_333  # 2 * 20 * 100 - 2/3 * 1000
    reduced = cost("aten.linalg_qr.default", a, [f32(20, 10), f32(10, 10)], mode="reduced")
    assert (
        _flops(reduced) == 2 * 3_333 + 1
    )  # orgqr of all columns is as much: 4*20*10*10 - 2*30*100 + 4/3*1000 = 3,333.3


def test_eigenvalues_and_singular_values():
    values = cost("aten._linalg_eigh.default", [("A", f32(9, 9))], [f32(9), f32(0)], compute_v=False)
    vectors = cost("aten._linalg_eigh.default", [("A", f32(9, 9))], [f32(9), f32(9, 9)], compute_v=True)
    assert (_flops(values), _flops(vectors)) == (972, 6_561)  # 4/3 n^3, 9 n^3
    thin = cost("aten._linalg_svd.default", [("A", f32(10, 10))], [f32(10, 10), f32(10), f32(10, 10)], compute_uv=True)
    assert _flops(thin) == 22_000  # 14 mn^2 + 8 n^3
    tall = cost(
        "aten._linalg_svd.default", [("A", f32(100, 10))], [f32(100, 10), f32(10), f32(10, 10)], compute_uv=True
    )
    assert _flops(tall) == 80_000  # after a QR: 6 mn^2 + 20 n^3
    assert _flops(cost("aten._linalg_svd.default", [("A", f32(10, 10))], [f32(0), f32(10), f32(0)],
                       compute_uv=False)) == 2_667  # fmt: skip


def test_complex_and_double_matrices():
    whole = spec(12, 12, dtype="complex64")
    found = cost("aten.linalg_cholesky_ex.default", [("self", whole)], [whole])
    assert found.total_flops == 4 * 576
    double = spec(12, 12, dtype="float64")
    assert cost("aten.linalg_cholesky_ex.default", [("self", double)], [double]).flops == {
        Pipe("tensor", "float64"): 576
    }


def test_columns_wait_for_each_other():
    """Two matrices at once take as long as one; twice the rows twice as long and more."""
    from memwall.hardware.lookup import load_gpu
    from memwall.perfmodel.roofline import predict_cost

    def time_s(*shape):
        found = cost("aten.linalg_cholesky_ex.default", [("self", f32(*shape))], [f32(*shape)])
        return predict_cost(found, load_gpu("a100-80gb-sxm")).time_s

    assert time_s(2, 128, 128) == pytest.approx(time_s(1, 128, 128), rel=0.01)
    assert time_s(1, 256, 256) > 1.8 * time_s(1, 128, 128)


def test_bilinear_is_two_products():
    found = cost("aten._trilinear.default", [("i1", f32(4, 8)), ("i2", f32(5, 8, 6)), ("i3", f32(4, 6))], f32(4, 5),
                 expand1=(1, 3), expand2=(0,), expand3=(1, 2), sumdim=(2, 3), unroll_dim=1)  # fmt: skip
    assert _flops(found) == 2 * 4 * 8 * 30 + 2 * 4 * 5 * 6  # x1 with all 5 x 6 columns, then x2


def test_distances_of_pairs():
    pairs = [("x1", f32(10, 5)), ("x2", f32(12, 5))]
    assert _flops(cost("aten._cdist_forward.default", pairs, f32(10, 12), p=2.0)) == 3 * 120 * 5
    assert _flops(cost("aten._cdist_forward.default", pairs, f32(10, 12), p=1.0)) == 2 * 120 * 5
    # 22 rows of 5 squared and summed, a product of depth 7, 120 roots
    assert _flops(cost("aten._euclidean_dist.default", pairs, f32(10, 12))) == 2 * 22 * 5 + 2 * 120 * 7 + 120
    assert _flops(cost("aten._pdist_forward.default", [("self", f32(10, 5))], f32(45), p=2.0)) == 3 * 45 * 5
