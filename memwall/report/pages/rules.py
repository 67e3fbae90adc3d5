"""The counting rules, as ``memwall profile --rules`` prints them."""

from __future__ import annotations

from dataclasses import dataclass

from memwall.report.document import Document, Facts, Section, Sentence
from memwall.report.kinds import Report

_SECTIONS: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    (
        "FLOPs",
        (
            ("multiply-add", "one fused multiply-add is 2 FLOP"),
            ("contraction", "2 m n k, times the batch"),
            ("convolution", "2 x output elements x (input channels / groups) x kernel size; transposed on its input"),
            ("attention", "both products, backward twice that; causal as what a causal kernel must do, the dense "
             "figure next to it"),
            ("element-wise", "one FLOP per element and arithmetic step; a transcendental counts as its formula says"),
            ("peaks", "dense, per engine (tensor or vector) and dtype; fp32 matmul runs on vector unless TF32 is on"),
        ),
    ),
    (
        "DRAM bytes",
        (
            ("compulsory", "each distinct byte of each input read once, each output byte written once"),
            ("views", "cost nothing; a broadcast (stride 0) axis counts once; a slice touches the slice, not its base"),
            ("in-place", "reads and writes its target; so does a gradient accumulated into an existing .grad"),
            ("lookups", "embedding, gather, index touch the rows they fetch: min(rows fetched, table)"),
            ("bool", "1 byte"),
            ("extra passes", "eager normalisation, softmax, loss, dropout pay their second passes in time only"),
        ),
    ),
    (
        "Seconds",
        (
            ("bound", "speed of light: datasheet peaks, compulsory bytes, no overhead; at L2 bandwidth where all fits; "
             "a unit-stride convolution of windows from 3 up, on vector engines, at a quarter of its FLOPs (Winograd)"),
            ("time", "the prediction: max(compute, memory) + overhead, at the ceilings that real kernels reach"),
            ("compute", "FLOPs / (peak x achievable fraction), summed over the pipes that a kernel uses"),
            ("memory", "bytes / (bandwidth x achievable fraction); what is still in L2 at L2 speed"),
            ("overhead", "the launch latency of the GPU, and the wait until the host has issued the op"),
            ("limited by", "the largest of the three: compute, bandwidth or overhead"),
        ),
    ),
    (
        "Words",
        (
            ("intensity", "arithmetic intensity: FLOP per compulsory DRAM byte"),
            ("ridge point", "the intensity above which a GPU is limited by compute: peak / bandwidth"),
            ("MFU", "seconds of the matrix FLOPs (contraction, convolution, attention) at peak, over the modeled time"),
            ("MBU", "compulsory DRAM bytes over what the bandwidth moves in the modeled time"),
            ("times fewer", "FLOP/s that the matrix classes attain together, over those that a class attains"),
            ("coverage", "share of ops that a formula models; others are charged their bytes and listed"),
            ("units", "decimal: TB is 10^12 bytes, TFLOP 10^12"),
        ),
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RulesReport(Report):
    """All rules."""

    noun = "the list of rules"
    kinds = ("text",)

    def document(self, kind: str) -> Document:
        """A section for each kind of figure."""
        opening = Section("", (Sentence("What memwall counts, and how it turns counts into seconds."),))
        return Document("Counting rules", (opening, *(Section(h, (Facts(rules),)) for h, rules in _SECTIONS)))
