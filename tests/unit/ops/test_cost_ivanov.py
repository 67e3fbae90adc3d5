"""Every row of the operator table of a BERT-large layer (Ivanov et al., recomputed from shapes): FLOPs, and words
where the unfused op of the table moves the same tensors as eager PyTorch does."""

import csv

import pytest

from tests.unit.cost_calls import cost, spec
from tests.unit.places import truth

NAME = "truth/ivanov_ops_recomputed.csv"
TABLE = truth("ivanov_ops_recomputed.csv")

# batch 8, seq 512, 16 heads of 64, width 1024, ffn 4096
TOKENS, WIDTH, FFN, HEADS, SEQ, HEAD = 4096, 1024, 4096, 128, 512, 64


def half(*shape):
    return spec(*shape, dtype="float16")


def mm(m, n, k):
    return [cost("aten.mm", [("self", half(m, k)), ("mat2", half(k, n))], half(m, n))]


def bmm(m, n, k):
    return [cost("aten.bmm", [("self", half(HEADS, m, k)), ("mat2", half(HEADS, k, n))], half(HEADS, m, n))]


def bias(width):
    return [cost("aten.add.Tensor", [("self", half(TOKENS, width)), ("other", half(width))], half(TOKENS, width))]


def bias_gradient(width):
    return [cost("aten.sum.dim_IntList", [("self", half(TOKENS, width))], half(width), dim=(0,))]


def residual():
    data = half(TOKENS, WIDTH)
    return [cost("aten.add.Tensor", [("self", data), ("other", data)], data)]


def dropout(*shape):
    return [cost("aten.native_dropout", [("input", half(*shape))], [half(*shape), spec(*shape, dtype="bool")])]


def dropout_gradient(*shape):
    inputs = [("grad_output", half(*shape)), ("mask", spec(*shape, dtype="bool"))]
    return [cost("aten.native_dropout_backward", inputs, half(*shape))]


def layer_norm():
    data = half(TOKENS, WIDTH)
    return [cost("aten.native_layer_norm", [("input", data), ("weight", half(WIDTH)), ("bias", half(WIDTH))], [data])]


def layer_norm_gradient(*mask):
    data = half(TOKENS, WIDTH)
    inputs = [("grad_out", data), ("input", data), ("weight", half(WIDTH))]
    return [cost("aten.native_layer_norm_backward", inputs, [data], output_mask=mask)]


def softmax():
    scores = half(HEADS, SEQ, SEQ)
    return [cost("aten._softmax", [("self", scores)], scores, dim=-1), *dropout(HEADS, SEQ, SEQ)]


def softmax_gradient():
    scores = half(HEADS, SEQ, SEQ)
    inputs = [("grad_output", scores), ("output", scores)]
    return [cost("aten._softmax_backward_data", inputs, scores, dim=-1), *dropout_gradient(HEADS, SEQ, SEQ)]


def relu():
    return [cost("aten.relu", [("self", half(TOKENS, FFN))], half(TOKENS, FFN))]


def relu_gradient():
    data = half(TOKENS, FFN)
    return [cost("aten.threshold_backward", [("grad_output", data), ("self", data)], data, threshold=0)]


# operator -> its calls, and whether the words moved are the table's (a mask is a byte here, a word there)
CALLS = {
    "Q,K,V": (lambda: mm(TOKENS, 3 * WIDTH, WIDTH), True),
    "Input bias": (lambda: bias(3 * WIDTH), True),
    "QK^T": (lambda: bmm(SEQ, SEQ, HEAD), True),
    "Scaled softmax (+dropout)": (softmax, False),
    "Gamma": (lambda: bmm(SEQ, HEAD, SEQ), True),
    "Out": (lambda: mm(TOKENS, WIDTH, WIDTH), True),
    "Output bias": (lambda: bias(WIDTH), True),
    "Dropout 1": (lambda: dropout(TOKENS, WIDTH), False),
    "Residual 1": (residual, True),
    "LayerNorm 1": (layer_norm, True),
    "Linear 1": (lambda: mm(TOKENS, FFN, WIDTH), True),
    "Bias 1": (lambda: bias(FFN), True),
    "ReLU": (relu, True),
    "Dropout 2": (lambda: dropout(TOKENS, FFN), False),
    "Linear 2": (lambda: mm(TOKENS, WIDTH, FFN), True),
    "Bias 2": (lambda: bias(WIDTH), True),
    "Dropout 3": (lambda: dropout(TOKENS, WIDTH), False),
    "Residual 2": (residual, True),
    "LayerNorm 2": (layer_norm, True),
    "LayerNorm 2 dW": (lambda: layer_norm_gradient(False, True, True), False),
    "LayerNorm 2 dX": (lambda: layer_norm_gradient(True, False, False), True),
    "Dropout 3 dX": (lambda: dropout_gradient(TOKENS, WIDTH), False),
    "Linear 2 dX": (lambda: mm(TOKENS, FFN, WIDTH), True),
    "Linear 2 dW": (lambda: mm(WIDTH, FFN, TOKENS), True),
    "Bias 2 dW": (lambda: bias_gradient(WIDTH), True),
    "Dropout 2 dX": (lambda: dropout_gradient(TOKENS, FFN), False),
    "ReLU dX": (relu_gradient, True),
    "Bias 1 dW": (lambda: bias_gradient(FFN), True),
    "Linear 1 dX": (lambda: mm(TOKENS, WIDTH, FFN), True),
    "Linear 1 dW": (lambda: mm(FFN, WIDTH, TOKENS), True),
    "Residual 2 bwd": (residual, True),
    "LayerNorm 1 dW": (lambda: layer_norm_gradient(False, True, True), False),
    "LayerNorm 1 dX": (lambda: layer_norm_gradient(True, False, False), True),
    "Dropout 1 dX": (lambda: dropout_gradient(TOKENS, WIDTH), False),
    "Output bias dW": (lambda: bias_gradient(WIDTH), True),
    "Out dX": (lambda: mm(TOKENS, WIDTH, WIDTH), True),
    "Out dW": (lambda: mm(WIDTH, WIDTH, TOKENS), True),
    "Gamma dX1": (lambda: bmm(SEQ, SEQ, HEAD), True),
    "Gamma dX2": (lambda: bmm(SEQ, HEAD, SEQ), True),
    "Scaled softmax dX": (softmax_gradient, False),
    "QKT dX1": (lambda: bmm(SEQ, HEAD, SEQ), True),
    "QKT dX2": (lambda: bmm(SEQ, HEAD, SEQ), True),
    "Q,K,V dX": (lambda: mm(TOKENS, WIDTH, 3 * WIDTH), True),
    "Q,K,V dW": (lambda: mm(3 * WIDTH, WIDTH, TOKENS), True),
    "Input bias dW": (lambda: bias_gradient(3 * WIDTH), True),
    "Residual 1 bwd": (residual, True),
}


@pytest.fixture(scope="module")
def rows():
    if TABLE is None:
        pytest.skip(f"{NAME} is not here; set MEMWALL_SHARED to the folder that has it")
    with TABLE.open() as file:
        return {row["operator"]: row for row in csv.DictReader(line for line in file if not line.startswith("#"))}


def test_the_table_and_the_calls_name_the_same_operators(rows):
    assert set(rows) == set(CALLS)


@pytest.mark.parametrize("operator", CALLS)
def test_flops(operator, rows):
    make, _ = CALLS[operator]
    assert sum(each.total_flops for each in make()) == int(rows[operator]["flop"])


@pytest.mark.parametrize("operator", [name for name, (_, same) in CALLS.items() if same])
def test_words(operator, rows):
    (result,) = CALLS[operator][0]()
    assert result.read_bytes == 2 * int(rows[operator]["in_words"])
    assert result.write_bytes == 2 * int(rows[operator]["out_words"])
