"""How long a whole cold command takes, next to importing what it cannot do without.

    python lab/benchmarks/cold_start.py [--runs N] [COMMAND ...]

Each run starts both processes in turn, one thread each, and takes the time until they have ended; what is printed for
each command are the medians, the median of the paired ratios, and the quarter and three-quarter points of those.
Bytecode is cached, as it is for anyone who has started memwall before. Standard output is Markdown.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]

#: Llama-3-8B and BERT-large, as transformers writes them.
LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "dtype": "bfloat16",
}  # fmt: skip
BERT = {"model_type": "bert", "architectures": ["BertForMaskedLM"], "num_hidden_layers": 24, "hidden_size": 1024,
        "num_attention_heads": 16, "intermediate_size": 4096}  # fmt: skip


class Pair(NamedTuple):
    """A command of memwall, the Python statement that it is compared with, and the most that the ratio should be."""

    arguments: tuple[str, ...]
    imports: str
    goal: float


PAIRS = {
    "bert_large": Pair(("profile", "profiles/bert_large/model.py", "--mode", "training"), "import torch", 1.8),
    "hf-llama": Pair(("profile", "hf:LLAMA"), "import torch, transformers; transformers.LlamaForCausalLM", 1.8),
    "hf-bert": Pair(("profile", "hf:BERT"), "import torch, transformers; transformers.BertForMaskedLM", 1.8),
}


def seconds(command: list[str], environment: dict[str, str]) -> float:
    """Wall time of a process from its start to its end."""
    start = time.perf_counter()
    subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True)
    return time.perf_counter() - start


def compared(pair: Pair, runs: int, folder: Path) -> list[tuple[float, float]]:
    """(the import, the command) in seconds, for each run after a first that fills the caches."""
    configs = {"hf:LLAMA": LLAMA, "hf:BERT": BERT}
    arguments = list(pair.arguments)
    for place, word in enumerate(arguments):
        if word in configs:
            path = folder / f"{word.removeprefix('hf:').lower()}.json"
            path.write_text(json.dumps(configs[word]), encoding="utf-8")
            arguments[place] = f"hf:{path}"
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    environment |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    sides = [sys.executable, "-c", pair.imports], [sys.executable, "-m", "memwall", *arguments]
    times = [(seconds(sides[0], environment), seconds(sides[1], environment)) for _ in range(runs + 1)]
    return times[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commands", nargs="*", metavar="COMMAND", help=f"of {', '.join(PAIRS)}")
    parser.add_argument("--runs", type=int, default=9)
    options = parser.parse_args()
    print("| command | compared with | import (s) | command (s) | ratio | quartiles | goal |\n" + "|---" * 7 + "|")
    for name in options.commands or PAIRS:
        pair = PAIRS[name]
        with tempfile.TemporaryDirectory() as folder:
            times = compared(pair, options.runs, Path(folder))
        ratios = [command / imported for imported, command in times]
        low, middle, high = statistics.quantiles(ratios, n=4)
        imported, command = (statistics.median(side) for side in zip(*times, strict=True))
        print(f"| `memwall {' '.join(pair.arguments)}` | `{pair.imports}` | {imported:.2f} | {command:.2f} "
              f"| {middle:.2f} | {low:.2f}-{high:.2f} | {pair.goal} |", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
