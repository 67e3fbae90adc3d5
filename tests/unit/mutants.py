"""Faults planted into generated kernels: each is a change of the source of an odd case, and what the checker says."""

import re
from dataclasses import dataclass

ONE_OFF = "differs from run to run"
OUTSIDE = "written out of bounds"
OFF = "elements are off"


@dataclass(frozen=True)
class Mutant:
    """``changes`` are patterns and what stands in their place; ``said`` is in the checker's message."""

    case: str
    changes: tuple[tuple[str, str], ...]
    said: str

    def apply(self, source: str) -> str:
        """The source with the fault.

        Raises:
            ValueError: a pattern is not in it: the generator writes other text now.
        """
        for pattern, replacement in self.changes:
            source, count = re.subn(pattern, replacement, source)
            if not count:
                raise ValueError(f"{pattern} is not in the kernel of {self.case}")
        return source


#: a sum that every stripe adds to one row of memory, by a load and a store, in place of a row each
_RACE = (
    (r"tl\.store\((scratch\d+) \+ tl\.program_id\(1\) \* 17 \+ x, (\w+), x_mask\)",
     r"tl.store(\1 + x, tl.load(\1 + x, x_mask, other=0) + \2, x_mask)"),
    (r"(scratch0 = empty.*)", r"\1\n    scratch0.zero_()"),
    (r"r_mask = r < STRIPES", "r_mask = r < 1"),
)  # fmt: skip
#: one stripe that clears the row for all, without waiting
_NO_BARRIER = (
    (r"tl\.store\((scratch\d+) \+ tl\.program_id\(1\) \* 17 \+ x, (\w+), x_mask\)",
     r"tl.store(\1 + x, tl.where(tl.program_id(1) == 0, 0.0, tl.load(\1 + x, x_mask, other=0)) + \2, x_mask)"),
    (r"r_mask = r < STRIPES", "r_mask = r < 1"),
)  # fmt: skip

MUTANTS: dict[str, Mutant] = {
    "mask one too short": Mutant("pointwise-1031", ((r"x < 1031\b", "x < 1030"),), ONE_OFF),
    "mask one too long": Mutant("pointwise-1031", ((r"x < 1031\b", "x < 1032"),), OUTSIDE),
    "row mask one too short": Mutant("row-sum-37x101", ((r"r < 101\b", "r < 100"),), OFF),
    "row mask one too long": Mutant("row-sum-37x101", ((r"r < 101\b", "r < 102"),), ONE_OFF),
    "masked elements count as one": Mutant(
        "softmax-37x101", ((r"tl\.sum\(tl\.where\((.*), 0\), axis=1\)", r"tl.sum(tl.where(\1, 1.0), axis=1)"),), OFF
    ),
    "last store dropped": Mutant("pointwise-1031", ((r"\n    tl\.store\(out0.*", "\n    pass"),), ONE_OFF),
    "last block not launched": Mutant("pointwise-1031", ((r"triton\.cdiv\(1031, XBLOCK\)", r"\g<0> - 1"),), ONE_OFF),
    "neighbour read": Mutant("pointwise-1031", ((r"tl\.load\(in0 \+ x,", "tl.load(in0 + x + 1,"),), ONE_OFF),
    "neighbour read in bounds": Mutant(
        "pointwise-1031", ((r"tl\.load\(in0 \+ x,", "tl.load(in0 + x // 2 * 2,"),), OFF
    ),
    "neighbouring row read": Mutant("softmax-37x101", ((r"in0 \+ r \+ 101 \* x\b", "in0 + r + 101 * (x // 2)"),), OFF),
    "sum in 16 bits": Mutant(
        "column-sum-1031x17", ((r"(\w+) = (\w+) \+ (tl\.where\(x_mask & r_mask.*)",
                                r"\1 = (\2 + \3).to(tl.bfloat16).to(tl.float32)"),), OFF,
    ),
    "race of stripes": Mutant("column-sum-1031x17", _RACE, ONE_OFF),
    "missing barrier": Mutant("column-sum-1031x17", _NO_BARRIER, ONE_OFF),
    "stripe left out": Mutant("column-sum-1031x17", ((r"r_mask = r < STRIPES", "r_mask = r < STRIPES - 1"),), OFF),
    "input overwritten": Mutant(
        "pointwise-1031", ((r"(    tl\.store\(out0 \+ x, (\w+), x_mask\))", r"\1\n    tl.store(in0 + x, \2, x_mask)"),),
        "overwritten",
    ),
    "dropout keeps too much": Mutant("dropout", ((r">= 0\.3", ">= 0.2"),), "other numbers"),
    "dropout forgets its scale": Mutant("dropout", ((r" \* 1\.428\d*", ""),), OFF),
    "infinity lost": Mutant(
        "functions-float32-odd", ((r"tl\.load\(in0 \+ x, x_mask, other=0\)",
                                   r"tl.clamp(\g<0>, -1e30, 1e30)"),), "NaN or infinity",
    ),
    "wrong row of a table": Mutant("embedding", ((r"\b31 \* ", "31 * 0 * "),), OFF),
}  # fmt: skip
