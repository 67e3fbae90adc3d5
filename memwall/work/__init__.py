"""The work of a launch, by family, and the constants that a GPU may state for each family."""

from collections.abc import Mapping

from memwall.work.attention import Attention, AttentionConstants
from memwall.work.base import Constants, Work, names_of
from memwall.work.convolution import Convolution, ConvolutionConstants
from memwall.work.gemm import Gemm, GemmConstants
from memwall.work.gemm_vector import VectorGemm, VectorGemmConstants
from memwall.work.launch import LaunchConstants
from memwall.work.plain import Plain, PlainConstants
from memwall.work.rows import Rows, RowsConstants
from memwall.work.stream import Stream, StreamConstants

__all__ = [
    "CONSTANTS", "Attention", "AttentionConstants", "Constants", "Convolution", "ConvolutionConstants", "Gemm",
    "GemmConstants", "LaunchConstants", "Plain", "PlainConstants", "Rows", "RowsConstants", "Stream", "StreamConstants",
    "VectorGemm", "VectorGemmConstants", "Work", "names_of",
]  # fmt: skip

#: family -> its constants
CONSTANTS: Mapping[str, type[Constants]] = {
    kind.FAMILY: kind
    for kind in (
        GemmConstants, VectorGemmConstants, ConvolutionConstants, AttentionConstants, RowsConstants, StreamConstants,
        LaunchConstants, PlainConstants,
    )
}  # fmt: skip
