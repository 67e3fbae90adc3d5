"""The question of ``memwall fuse``, apart from the step, GPUs and policies: what is shown, written and tried."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from memwall.core.question import Option


@dataclass(frozen=True, kw_only=True)
class FuseOptions:
    """What is asked about fusion."""

    emit: Annotated[str | None, Option(help="Write the kernels, one file for each distinct group.", metavar="DIR")] = (
        None
    )
    top: Annotated[int | None, Option(help="List the N groups that save most. [default: 15]", least=1, metavar="N")] = (
        None
    )
    by: Annotated[
        str | None, Option(help="List what groups save, or modules. [default: group]", choices=("group", "module"))
    ] = None
    whole: Annotated[bool, Option(help="Print everything; without it, what fits in some 60 lines.", flag="all")] = False
    alternatives: Annotated[bool, Option(help="Price other forms of attention, optimizer, norms and loss.")] = False
    capture: Annotated[bool, Option(help="Do not run the model through TorchDynamo.")] = True
    second_batch: Annotated[
        int | None, Option(help="Capture again with this --batch: what recompiles.", least=1, metavar="N")
    ] = None
    second_seq: Annotated[int | None, Option(help="The same with this --seq.", least=1, metavar="N")] = None
