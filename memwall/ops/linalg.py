"""Factorizations of matrices and what is solved with them, as LAPACK counts them (LAPACK Working Note 41, appendix C),
eigenvalues and singular values as Golub and Van Loan do (Matrix Computations, 4th edition, 7.5, 8.3 and 8.6).

- FLOPs are leading terms, of a complex matrix four times as many. Iterations (eigenvalues, singular values) are
  as many as the books expect; of a matrix exponential the five products of its longest series, without squarings.
- A batch is as many matrices beside each other. cuSOLVER and MAGMA go column by column, or row by row of a triangle:
  each waits for the one before it (``round_trips``), which bounds small matrices.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from memwall.core.graph import TensorSpec
from memwall.ops.base import Call, Cost
from memwall.ops.contraction import product_flops, product_pipe
from memwall.ops.passes import of_scalars, pass_over, streamed
from memwall.ops.recorded import same, shaped
from memwall.ops.registry import Formula, formula

op = partial(formula, "other")

#: dependent memory round trips of a column: find the pivot, scale, hand it to the other blocks, update (LU of 512 x 512
#: takes 2.6 us a column by pytorch pull request 56887, four round trips at 1.7 GHz 1.6)
_COLUMN_TRIPS = 4
#: rows of a triangle that one block solves before the next product
_SOLVED_ROWS = 32


def _matrix(call: Call, *names: str) -> TensorSpec:
    """The matrix, by the first of its names that the op has."""
    return next((spec for name in names if (spec := call.arg(name)) is not None), call.inputs[0])


def _cost(call: Call, data: TensorSpec, flops: float, steps: int) -> Cost:
    """``flops`` of each matrix of the batch, in so many columns after each other."""
    count = math.prod(data.shape[:-2]) * round(flops) * product_flops(1, data.dtype) // 2
    work = {product_pipe(data.dtype, {}): count} if data.numel else {}
    return streamed(call.cost(work), data.numel, round_trips=_COLUMN_TRIPS * steps)


def lu_flops(m: int, n: int) -> float:
    """Multiplications and additions of LU with k = min(m, n): 2n^3/3 where the matrix is square."""
    k = min(m, n)
    return 2 * m * n * k - (m + n) * k**2 + 2 * k**3 / 3


def qr_flops(m: int, n: int) -> float:
    """Householder reflections of the smaller side: 2mn^2 - 2n^3/3 for m >= n."""
    k = min(m, n)
    return 2 * max(m, n) * k**2 - 2 * k**3 / 3


def _square(name: str, flops: Callable[[int, Call], float], blocks: int = 0) -> Formula:
    """So many FLOP of each n x n matrix, in n columns after each other, and so many times all blocks of rows."""

    def cost(call: Call) -> Cost:
        data = _matrix(call, name)
        n = data.shape[-1]
        return _cost(call, data, flops(n, call), n + blocks * _blocks(n))

    return cost


# Cholesky n^3/3, LDL the same with pivots
op("cholesky linalg_cholesky_ex linalg_ldl_factor_ex", results=same)(_square("self", lambda n, call: n**3 / 3))
# 2n^3/3: the inverse of the triangle, and its product with itself
op("cholesky_inverse", results=same)(_square("self", lambda n, call: 2 * n**3 / 3))
# 2n^3: LU, and the solution for the identity
op("linalg_inv_ex", results=shaped("A"))(_square("A", lambda n, call: 2 * n**3, 2))
# 4n^3/3 for the eigenvalues of a symmetric matrix, 9n^3 with their vectors
op("_linalg_eigh")(_square("A", lambda n, call: (9 if call.attributes.get("compute_v", True) else 4 / 3) * n**3))
# 10n^3 for the eigenvalues (Hessenberg form and QR steps), 25n^3 with vectors
op("linalg_eig")(_square("self", lambda n, call: 25 * n**3))
op("_linalg_eigvals")(_square("self", lambda n, call: 10 * n**3))


@op("linalg_lu_factor_ex linalg_lu _linalg_det _linalg_slogdet")
def lu(call: Call) -> Cost:
    """LU with partial pivots; a determinant is the product of its diagonal."""
    data = _matrix(call, "A")
    return _cost(call, data, lu_flops(*data.shape[-2:]), min(data.shape[-2:]))


def _blocks(n: int) -> int:
    return math.ceil(n / _SOLVED_ROWS)


def _sides(rhs: TensorSpec, n: int) -> int:
    """Right-hand sides of each system: a vector is one."""
    return max(rhs.numel // max(n * math.prod(rhs.shape[:-2]), 1), 1) if len(rhs.shape) > 1 else 1


@op("_linalg_solve_ex")
def solve(call: Call) -> Cost:
    """2n^3/3 for LU and 2n^2 for each right-hand side."""
    data, rhs = call.need("A"), call.need("B")
    n, result = data.shape[-1], call.outputs[0]
    batch = max(math.prod(data.shape[:-2]), 1)
    sides = result.numel / max(n * batch, 1) if rhs.numel else 0
    return _cost(call, data, lu_flops(n, n) + 2 * n**2 * sides, n + 2 * _blocks(n))


@op("linalg_solve_triangular", results=shaped("B"))
@op("triangular_solve", results=shaped("self"))
def solve_triangular(call: Call) -> Cost:
    """n^2 for each right-hand side (trsm), block of rows by block of rows."""
    triangle = call.need("A") if call.name.startswith("aten.triangular_solve") else call.need("self")
    return _substituted(call, triangle, 1)


@op("linalg_lu_solve linalg_ldl_solve", results=shaped("B"))
@op("_cholesky_solve_helper cholesky_solve", results=shaped("self"))
def solve_factored(call: Call) -> Cost:
    """2n^2 for each right-hand side: two triangles."""
    factor = next(spec for name in ("LU", "LD", "A", "input2") if (spec := call.arg(name)) is not None)
    return _substituted(call, factor, 2)


def _substituted(call: Call, triangle: TensorSpec, triangles: int) -> Cost:
    """Substitution in so many triangles; half of each matrix that is stored is read."""
    n, result = triangle.shape[-1], call.outputs[0]
    multiply_adds = result.numel * n  # over the batch, half of 2 n^2 for each of the sides
    work = {product_pipe(triangle.dtype, {}): triangles * multiply_adds * product_flops(1, triangle.dtype) // 2}
    unread = 0
    if triangles == 1:
        unread = triangle.nbytes * (n - 1) // (2 * n) if n else 0
    cost = call.cost(work, read_bytes=call.read_bytes - unread)
    return streamed(cost, result.numel, round_trips=_COLUMN_TRIPS * triangles * _blocks(n))


@op("lu_unpack")
def lu_unpack(call: Call) -> Cost:
    """The factors copied out of the matrix that held both."""
    return streamed(call.cost(), sum(output.numel for output in call.outputs))


@op("geqrf linalg_qr")
def qr(call: Call) -> Cost:
    """Householder QR, and unless ``mode`` is ``r`` its first min(m, n) columns of Q (orgqr), all m if ``complete``."""
    data, mode = _matrix(call, "A"), call.attributes.get("mode", "reduced")
    m, n = data.shape[-2:]
    k, flops = min(m, n), qr_flops(m, n)
    if "linalg_qr" in call.name and mode != "r":
        flops += _reflected(m, m if mode == "complete" else k, k)
    return _cost(call, data, flops, k)


def _reflected(m: int, n: int, k: int) -> float:
    """k reflections made into an m x n matrix (orgqr): 4mnk - 2(m + n)k^2 + 4k^3/3."""
    return 4 * m * n * k - 2 * (m + n) * k**2 + 4 * k**3 / 3


@op("linalg_householder_product", results=shaped("input"))
def householder_product(call: Call) -> Cost:
    """The matrix that so many reflections make (orgqr)."""
    data, count = call.need("input"), call.need("tau").shape[-1]
    m, n = data.shape[-2:]
    return _cost(call, data, _reflected(m, n, count), _blocks(count))


@op("ormqr", results=shaped("input3"))
def ormqr(call: Call) -> Cost:
    """k reflections applied to a matrix of m x n from the left: 4mnk - 2nk^2."""
    data, count = call.need("input3"), call.need("input2").shape[-1]
    m, n = data.shape[-2:] if call.attributes.get("left", True) else data.shape[:-3:-1]
    return _cost(call, data, 4 * m * n * count - 2 * n * count**2, _blocks(count))


@op("linalg_lstsq")
def least_squares(call: Call) -> Cost:
    """QR, the reflections applied to each right-hand side, and a triangle solved (the driver gels, CUDA's only one)."""
    data, rhs = call.need("self"), call.need("b")
    m, n = data.shape[-2:]
    k, sides = min(m, n), _sides(rhs, m)
    flops = qr_flops(m, n) + (4 * m * k - 2 * k**2 + k**2) * sides
    return _cost(call, data, flops, k + 2 * _blocks(k))


@op("_linalg_svd")
def singular_values(call: Call) -> Cost:
    """For m >= n the values 4mn^2 - 4n^3/3, with both sides' vectors 14mn^2 + 8n^3, or 6mn^2 + 20n^3 after a QR where
    the matrix is tall; with all m left vectors 4m^2n + 13n^3."""
    data, given = _matrix(call, "A"), call.attributes
    m, n = max(data.shape[-2:]), min(data.shape[-2:])
    if not given.get("compute_uv", True):
        flops = min(4 * m * n**2 - 4 * n**3 / 3, 2 * m * n**2 + 2 * n**3)
    elif given.get("full_matrices", False):
        flops = min(4 * m**2 * n + 8 * m * n**2 + 9 * n**3, 4 * m**2 * n + 22 * n**3)
    else:
        flops = min(14 * m * n**2 + 8 * n**3, 6 * m * n**2 + 20 * n**3)
    return _cost(call, data, flops, n)


@op("linalg_pinv")
def pseudoinverse(call: Call) -> Cost:
    """Singular values with vectors, or eigenvalues of a Hermitian matrix, and the product of what they are made of."""
    data = call.need("self")
    m, n = max(data.shape[-2:]), min(data.shape[-2:])
    factors = 9 * n**3 if call.attributes.get("hermitian") else min(14 * m * n**2 + 8 * n**3, 6 * m * n**2 + 20 * n**3)
    return _cost(call, data, factors + 2 * m * n**2, n)


@op("linalg_matrix_exp", results=same)
def matrix_exponential(call: Call) -> Cost:
    """Five products, of the series of degree 18 (Bader, Blanes and Casas 2019; LinearAlgebra.cpp, compute_T18).
    How often the result is squared depends on the norm of the matrix, which is not known: never."""
    data = call.need("self")
    n = data.shape[-1]
    cost = _cost(call, data, 5 * 2 * n**3, 0)
    again = (pass_over(2 * data.nbytes, data.nbytes, data.numel),) * 4
    return Cost(cost.flops, cost.read_bytes, cost.write_bytes, launches=(*cost.launches, *again))


# the error codes of a factorization, read back by the host
op("_linalg_check_errors")(of_scalars)
