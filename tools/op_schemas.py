"""Print memwall/traces/schemas.txt: the schemas of all ops that have a cost formula, as this torch states them.

    python tools/op_schemas.py > memwall/traces/schemas.txt

Left out are ``out=`` overloads, which take what the functional ones take and the result's tensors last, and overloads
for scalars and named dimensions. Ops of older versions of torch and of other libraries are in
memwall/ops/library_schemas.txt.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path[:0] = [str(Path(__file__).parent.parent)]

from memwall.ops.registry import find_row  # noqa: E402


def wanted(schema: torch.FunctionSchema) -> bool:
    """Whether a trace can hold a call of it on a GPU."""
    text = str(schema)
    takes_tensor = "Tensor" in text.partition("->")[0]
    makes_tensor = "Tensor" in text.partition("->")[2]
    return (takes_tensor or makes_tensor) and "Dimname" not in text and not any(a.is_out for a in schema.arguments)


def _full_name(schema: torch.FunctionSchema) -> str:
    return f"{schema.name.replace('::', '.')}.{schema.overload_name or 'default'}"


def main() -> None:
    """Write them to standard output, sorted."""
    lines = {
        str(schema).removeprefix("aten::")
        for schema in torch._C._jit_get_all_schemas()
        if schema.name.startswith("aten::") and (row := find_row(_full_name(schema))) and row.cost and wanted(schema)
    }
    sys.stdout.write("\n".join(sorted(lines)) + "\n")


if __name__ == "__main__":
    main()
