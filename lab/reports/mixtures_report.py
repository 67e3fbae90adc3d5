"""Decode steps of eight mixtures of experts: the weights of experts that a step reads, by hand, eager and on a server.

    python lab/reports/mixtures_report.py FOLDER

It writes ``reports/mixtures.md``. FOLDER holds a folder with each model's ``config.json``, named as on the hub with
``--`` for the slash.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import memwall
from memwall.core.files import uncollected

GPU, CONTEXT, BATCHES = "b300", 1024, (1, 8, 64)
POLICIES = ("eager", "memwall", "ideal", "server")


@dataclass(frozen=True)
class Mixture:
    """A model: its folder, and by its configuration layers with experts, experts of each, experts of a token, and the
    numbers of an expert."""

    folder: str
    layers: int
    experts: int
    chosen: int
    numbers: int

    def expected_bytes(self, tokens: int) -> float:
        """Bytes of the weights that a step of so many tokens is expected to read, in 16 bits."""
        active = self.experts * (1 - (1 - self.chosen / self.experts) ** tokens)
        return 2 * self.layers * active * self.numbers


MIXTURES = (
    Mixture("Qwen--Qwen3-30B-A3B", 48, 128, 8, 3 * 2048 * 768),
    Mixture("meta-llama--Llama-4-Scout-17B-16E-Instruct", 48, 16, 1, 3 * 5120 * 8192),
    Mixture("zai-org--GLM-5", 78 - 3, 256, 8, 3 * 6144 * 2048),
    Mixture("XiaomiMiMo--MiMo-V2-Flash", 48 - 1, 256, 8, 3 * 4096 * 2048),
    Mixture("mistralai--Mixtral-8x7B-v0.1", 32, 8, 2, 3 * 4096 * 14336),
    Mixture("openai--gpt-oss-20b", 24, 32, 4, 3 * 2880 * 2880 + 3 * 2880),  # with biases
    Mixture("google--gemma-4-26B-A4B", 30, 128, 8, 3 * 2816 * 704),
    Mixture("deepseek-ai--DeepSeek-V3", 61 - 3, 256, 8, 3 * 7168 * 2048),
)


@dataclass(frozen=True)
class Row:
    """A decode step: bytes of experts by hand, as the model's code runs it, at least of any run, and on a server; and
    the bounds and the served time, seconds."""

    name: str
    batch: int
    by_hand: float
    eager: int
    least: int
    server: int
    bounds_s: dict[str, float]
    server_s: float


def row(mixture: Mixture, target: str, batch: int) -> Row:
    """One step, traced and simulated."""
    made = memwall.profile(
        target, mode="decode", batch=batch, context=CONTEXT, gpu=GPU, policy=POLICIES, cuda_graph=True
    )
    graph, eager, least = made.graph, 0, 0
    for op, cost in zip(graph.ops, made.costs[0], strict=True):
        values = [graph.values[i] for i in op.inputs]
        is_expert = [".experts." in graph.storages[value.storage].name for value in values]
        if any(is_expert):
            others = sum(v.spec.nbytes for v, is_own in zip(values, is_expert, strict=True) if not is_own)
            eager += cost.read_bytes - others
            least += cost.least_read_bytes - others
    schedules = dict(zip(POLICIES, made.simulations, strict=True))
    plan = made.schedule(made.gpus[0], "server").plan
    works = [work for group in plan.groups for work in group.cost.launches if hasattr(work, "expert_bytes")]
    bounds = {name: schedule.totals.bound_s for name, schedule in schedules.items()}
    bounds |= {f"step, {name}": made.step_bound_s(schedule) or 0.0 for name, schedule in schedules.items()}
    return Row(
        mixture.folder.partition("--")[2], batch, mixture.expected_bytes(batch), eager, least,
        round(sum(work.active * work.expert_bytes for work in works)), bounds, schedules["server"].totals.time_s,
    )  # fmt: skip


READING = """# Decode steps of eight mixtures

Bytes of the experts' weights that one decode step reads, with {context:,} tokens in each cache, in 16 bits, on {gpu}. By hand: of
E experts, of which each of T tokens chooses k, E (1 - (1 - k/E)^T) are expected to be chosen in each layer. Eager: what the
ops of transformers' code read (`--policy eager`); server: what the fused layer of an engine reads (`--policy server`). Both
take a whole number of experts. The bounds are of the fewest experts that a run may choose, k of them; the largest is that of the
policies eager, memwall and ideal, of the kernels' sum and of the step; served is the time of the server's kernels in a CUDA graph.

{table}

{said}
"""

HEADS = ("model", "batch", "by hand, GB", "eager, GB", "server, GB", "eager / server", "fewest, GB",
         "largest bound, ms", "served, ms")  # fmt: skip
#: what code reads every expert -> why
WHOLE = """Llama-4-Scout's code in transformers multiplies every token by every expert, those not chosen by zeros: eager reads all of
them in any run, and its bounds are of that program, not of an engine that reads the chosen ones."""


def table(rows: list[Row]) -> str:
    """The rows as Markdown."""
    lines = [HEADS, tuple("---" for _ in HEADS)]
    for row in rows:
        largest_s = max(bound_s for name, bound_s in row.bounds_s.items() if "server" not in name)
        weights = [f"{nbytes / 1e9:,.2f}" for nbytes in (row.by_hand, row.eager, row.server)]
        lines.append((row.name, str(row.batch), *weights, f"{row.eager / row.server:.3f}", f"{row.least / 1e9:,.2f}",
                      f"{1e3 * largest_s:,.2f}", f"{1e3 * row.server_s:,.2f}"))  # fmt: skip
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def said(rows: list[Row]) -> str:
    """What the rows say: how far eager and the server are apart, and bounds above what is served."""
    apart = [row for row in rows if abs(row.eager / row.server - 1) > 0.05]
    above = [row for row in rows
             if max(b for name, b in row.bounds_s.items() if "server" not in name) > row.server_s]  # fmt: skip
    names = lambda some: ", ".join(f"{row.name} at {row.batch}" for row in some) or "none"  # noqa: E731
    return (
        f"Eager and server more than 5 % apart: {names(apart)}.\n\nA bound above what is served: {names(above)}."
        + (f"\n\n{WHOLE}" if apart else "")
    )  # fmt: skip


def main() -> None:
    folder, rows = Path(sys.argv[1]), []
    for mixture in MIXTURES:
        for batch in BATCHES:
            with uncollected():
                rows.append(row(mixture, f"hf:{folder / mixture.folder}", batch))
            print(rows[-1], file=sys.stderr, flush=True)
    page = READING.format(context=CONTEXT, gpu=GPU, table=table(rows), said=said(rows))
    (Path(__file__).parent / "mixtures.md").write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
