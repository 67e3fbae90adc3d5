"""Gate results made by hand: what passes, what fails and why, what could not be judged, and names that attack."""

from dataclasses import replace
from itertools import count

from memwall.gate.diff import Cause
from memwall.gate.result import Baseline, Check, GateResult, Problem

REF = Baseline("ref", "origin/main", "1a2b3c4d5e6f708192a3b4c5d6e7f8091a2b3c4d", "0.6.0")
VERSION = "0.6.0"

CAST = Cause("appeared", "_to_copy", "encoder.layer.*.attention", "forward", "models/bert.py:42", 12, 12, 0, 12_582_912,
             18.5e-6, "casts bf16 to fp32 before softmax")  # fmt: skip
GREW = Cause("grew", "bmm", "encoder.layer.*.attention", "forward", "models/bert.py:44", 12, 0, 0, 6_291_456, 7.25e-6,
             "reads fp32, was bf16")  # fmt: skip
GONE = Cause("vanished", "addmm", "pooler", "forward", "models/bert.py:90", 1, -1, -1_179_648, -1_183_744, -3.1e-6, "")

CHECK = Check(workload="bert", target="models/bert.py", gpu="h100-sxm", policy="eager", module="",
              quantity="dram_bytes", limit="+0.5%", value=1_220_400_000, baseline=1_200_000_000, allowed=1_206_000_000,
              verdict="fail", message="", causes=(CAST, GREW, GONE))  # fmt: skip
TIME = replace(CHECK, quantity="time_s", limit="3.2 ms", value=3.2004e-3, baseline=3.1e-3, allowed=3.2e-3)
KERNELS = replace(CHECK, quantity="kernels", limit="120", value=118, baseline=106, allowed=120, verdict="pass")
KERNELS = replace(KERNELS, causes=())
MFU = replace(KERNELS, quantity="mfu", limit="40%", value=0.4612, baseline=0.4612, allowed=0.4)
PEAK = replace(KERNELS, quantity="peak_memory", limit="70 GB", value=4.2e9, baseline=None, allowed=70e9)
MODULE = replace(CHECK, module="encoder.*", quantity="flops", limit="+0%", value=2_000_000_001, baseline=2_000_000_000,
                 allowed=2_000_000_000, causes=())  # fmt: skip
BREAKS = replace(KERNELS, workload="gpt", target="gpt.py:Net", gpu="", policy="", quantity="graph_breaks", limit="0",
                 value=0.0, baseline=0.0, allowed=0.0)  # fmt: skip
UNSURE = replace(BREAKS, gpu="", policy="eager", quantity="measured_s", limit="+5%", value=1.03e-3, baseline=1e-3,
                 allowed=1.05e-3, verdict="inconclusive",
                 message="another process used 31 % of the CPU; run it on a quiet machine", measured=True)  # fmt: skip

PASS = GateResult((KERNELS, MFU, PEAK, BREAKS), baseline=REF, memwall_version=VERSION)
FAIL = GateResult((KERNELS, CHECK, TIME, MODULE, MFU, PEAK, BREAKS, UNSURE), baseline=REF, memwall_version=VERSION)
INCONCLUSIVE = GateResult((BREAKS, UNSURE),
                          (Problem("gpt", "gpt.py:Net", "inconclusive", "no baseline for the policy inductor"),),
                          Baseline("file", "gate/baseline.json", "", "0.5.1"), VERSION)  # fmt: skip
EMPTY = GateResult((), memwall_version=VERSION)
BROKEN = GateResult(
    (KERNELS,), (Problem("", "nets/*.py", "fail", "no workload found; name a model file"),), memwall_version=VERSION
)

#: Names that end a tag, a table, a string, a line, a command, an XML section, a path; that mention and that are empty.
HOSTILE = (
    'a"b\'c', "<script>alert(1)</script>", "line\nbreak\r\nmore", "::error file=x.py::forged", "##[error]forged",
    "::set-output name=a::b", "50%0Aoff%25", "]]>", "\x00\x1b[31mred\x1b[0m\x07\ufffe\ud800", "a|b`c`*d*_e_[f](g)~~h~~",
    "漢字 émoji 🔥 \u202egnp.exe", "@everyone #1 https://evil.example", "</details></summary><!-- x -->", "a,b=c;d:e",
    "../../etc/passwd:1", "x" * 5000, "", " ", "-->", "\\", "| --- |", "&lt;b&gt; &#64;",
)  # fmt: skip


def hostile() -> GateResult:
    """Every hostile name in every place that takes a name."""
    checks, problems = [], []
    for text in HOSTILE:
        cause = Cause(text, text, text, text, f"{text}:7", 2, 3, 4, 5, 6e-6, text)
        both = replace(CHECK, workload=text, target=text, gpu=text, policy=text, module=text, limit=text,
                       message=text, causes=(cause, CAST))  # fmt: skip
        checks += [both, replace(both, quantity=text or "?", verdict="inconclusive"), replace(both, verdict="pass")]
        problems.append(Problem(text, text, "fail", text))
    return GateResult(
        tuple(checks), tuple(problems), Baseline("ref", HOSTILE[3], HOSTILE[1], HOSTILE[4], HOSTILE), VERSION
    )


def nine_causes(module: str) -> tuple[Cause, ...]:
    """More than are shown, each 12 kernels, 12,582,912 bytes, 18.5 us."""
    return tuple(replace(CAST, op=f"op_{i}", module=module, source=f"models/net.py:{i + 1}") for i in range(9))


def many(failing: int = 500, passing: int = 500) -> GateResult:
    """Hundreds of checks, each with more causes than are shown; the later, the worse."""
    number = count(1)
    bad = tuple(
        replace(CHECK, workload=f"net_{i // 50}", module=f"block.{i}", value=1_206_000_000 + 1000 * next(number),
                causes=nine_causes(f"block.{i}"))
        for i in range(failing)
    )  # fmt: skip
    good = tuple(replace(KERNELS, workload=f"net_{i // 50}", module=f"block.{i}") for i in range(passing))
    return GateResult((*bad, *good), baseline=REF, memwall_version=VERSION)
