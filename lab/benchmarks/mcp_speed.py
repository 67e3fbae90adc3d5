"""How long `memwall mcp` takes to answer: the start until the tools are listed, the first call, and calls of a warm
server, one after another. Each call is repeated; the median and the range are printed.

    python lab/benchmarks/mcp_speed.py [TIMES]
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path

import anyio
from mcp import Client, StdioServerParameters

MODEL = """\
import torch

def model():
    return torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 1024))

def inputs(batch=8):
    return (torch.zeros(batch, 512, 1024),)
"""
#: tool -> what it is asked, the lightest first
CALLS = {
    "gpus": {"names": ["h100"]},
    "bound": {"target": "mm(bf16[4096,8192], bf16[8192,4096])", "gpu": ["h100"], "measured": "400us"},
    "profile": {"target": "model.py", "gpu": ["h100"]},
    "explain": {"target": "model.py", "gpu": ["h100"], "explain": ["gelu"]},
    "compare": {"targets": ["model.py"], "gpu": ["a100", "h100"]},
    "fuse": {"target": "model.py", "gpu": ["h100"], "policy": ["memwall"], "no_capture": True},
}


async def measure(folder: Path, times: int) -> None:
    server = StdioServerParameters(command=sys.executable, args=["-m", "memwall", "mcp", "--folder", str(folder)])
    began = time.perf_counter()
    async with Client(server) as client:
        await client.list_tools()
        print(f"tools listed after {time.perf_counter() - began:.2f} s")
        await client.call_tool("gpus", CALLS["gpus"])
        print(f"first answer after {time.perf_counter() - began:.2f} s")
        for name, given in CALLS.items():
            taken_s = []
            for _ in range(times + 1):  # the first may start a process
                start = time.perf_counter()
                made = await client.call_tool(name, given)
                taken_s.append(time.perf_counter() - start)
                if made.is_error:
                    sys.exit(f"{name}: {made.content}")
            first_s, *warm_s = taken_s
            median_s = statistics.median(warm_s)
            print(f"{name:8} first {first_s:6.2f} s, then {median_s:.3f} s ({min(warm_s):.3f} to {max(warm_s):.3f})")


def main() -> None:
    times = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "model.py").write_text(MODEL, encoding="utf-8")
        anyio.run(measure, Path(folder), times)


if __name__ == "__main__":
    main()
