"""Every quantity that memwall shows, sorts by, limits or follows: one row each.

A row says what the quantity is called, its unit, which way is better, how it is read from a kernel (or some kernels
together) and from a whole workload, and where it appears: as a column of a table, as a key of ``--sort``, as a limit of
a gate (and so in a history), as an objective of a server, as a column of a sweep. A new row appears there by itself.

A whole-workload figure is read from a schedule or a profile; a quantity that adds up over kernels can be limited per
module too. A kernel belongs to a module pattern if all its ops' common module, or a parent of it, matches.

Nothing slow is imported here: the command line's options read this table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memwall.core.graph import Graph, Op, TensorSpec
    from memwall.record.profile import Profile
    from memwall.simulate.schedule import Schedule


_Read = Callable[["Profile", "Schedule"], "float | None"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """One figure. ``unit`` is one of ``s``, ``B``, ``FLOP``, ``FLOP/s``, ``FLOP/B``, ``count``, ``fraction``,
    ``per s``, ``USD``, ``J``, ``ratio``, ``interval`` (two times), ``word`` and ``flag``; ``lower`` is better, or
    higher.
    """

    name: str
    title: str
    unit: str
    lower: bool = True
    #: what a gate's limit on it depends on: ``schedule`` (GPU and policy), ``profile`` (neither), ``server`` (GPU and
    #: load) or ``machine`` (timed by :mod:`memwall.gate.run` only); empty if it cannot be limited
    per: str = ""
    #: how a whole-workload figure is read
    read: Callable[[Profile, Schedule], float | None] = lambda profile, schedule: None
    #: how it is read from a :class:`memwall.analysis.serving.Candidate`, whose objectives can limit it
    serve: Callable[[Any], float | None] | None = None
    #: how it is read from a :class:`memwall.analysis.serving.Decoding`
    decode: Callable[[Any], Any] | None = None
    #: how it is read from a :class:`memwall.sweeping.trainings.Trained`
    train: Callable[[Any], Any] | None = None
    #: kinds of sweeps that have it as a column: ``profile``, ``decode``, ``serve``, ``training``; with ``+`` the page
    #: shows it too
    sweep: str = ""
    #: the attribute of a kernel, and of rows of kernels
    attribute: str = ""
    #: whether it adds up over kernels, so that a limit can be on a module
    adds: bool = False
    #: key of ``--sort``
    sort: str = ""
    #: tables that have it as a column: ``class``, ``share`` (phases), ``module``, ``kernel``, and ``csv`` (of kernels);
    #: with ``?`` the column may go where the page is narrow
    tables: str = ""
    heading: str = ""
    #: the text under the heading, if it is not the unit's own
    unit_text: str = ""
    #: order of the columns, from the left
    place: int = 0
    #: the quantity whose scale a column of seconds takes
    like: str = ""
    #: whether it is unknown for kernels that no formula models
    needs_formula: bool = False
    #: of a program of many GPUs, whether it is that of the rank with the most
    every_rank: bool = False

    def of(self, row: Any) -> Any:
        """The figure of a kernel, or of a row of kernels."""
        return getattr(row, self.attribute)

    def appears(self, table: str) -> str:
        """``kernel`` or ``kernel?`` in the table ``kernel``; empty where it has no column."""
        return next((word for word in self.tables.split() if word.rstrip("?") == table), "")

    def swept(self, kind: str) -> str:
        """``decode`` or ``decode+`` in sweeps of the kind ``decode``; empty where it has no column."""
        return next((word for word in self.sweep.split() if word.rstrip("+") == kind), "")


def _total(name: str) -> Callable[[Profile, Schedule], float | None]:
    return lambda profile, schedule: getattr(schedule.totals, name)


def _wall(name: str) -> Callable[[Profile, Schedule], float | None]:
    def read(profile: Profile, schedule: Schedule) -> float:
        from memwall.record.kernels import wall_shares

        return wall_shares(schedule)[name]

    return read


def _communication(name: str) -> Callable[[Profile, Schedule], float | None]:
    def read(profile: Profile, schedule: Schedule) -> float:
        from memwall.analysis import communication

        found: float = getattr(communication, name)(profile, schedule)
        return found

    return read


def _of_every_rank(name: str, read: _Read) -> _Read:
    """The figure of the traced rank, or of another one of its program where that is larger."""

    def most(profile: Profile, schedule: Schedule) -> float | None:
        from memwall.record.job import figures_of

        own, others = read(profile, schedule), (getattr(row, name) for row in figures_of(profile, schedule))
        return None if own is None else max(own, *others, own)

    return most


def graph_breaks(profile: Profile, schedule: Schedule | None = None) -> float | None:
    """TorchDynamo's graph breaks in the step, each line as often as it is reached; None without a capture."""
    from memwall.frontend.dynamo.capture import capture_of

    capture = capture_of(profile.capture)
    return None if capture is None or capture.failure else float(sum(b.count for b in capture.breaks))


def coverage(profile: Profile, schedule: Schedule | None = None) -> float:
    """Fraction of ops that a formula models, in the worst graph: GPUs may run different attention kernels."""
    return min(sum(cost.modeled for cost in costs) / len(costs) if costs else 1.0 for costs in profile.costs)


def nchw_bytes(profile: Profile, schedule: Schedule | None = None) -> float:
    """Bytes that convolutions read or write in NCHW."""
    return float(sum(spec.nbytes for op in profile.graph.ops for spec in nchw_tensors(profile.graph, op) or ()))


def nchw_tensors(graph: Graph, op: Op) -> list[TensorSpec] | None:
    """What a convolution reads or writes in NCHW, gradients and weights too; None of any other op."""
    from memwall.core.graph import is_channels_last

    if op.op_class != "convolution":
        return None
    data = [spec for spec in graph.specs((*op.inputs, *op.outputs)) if len(spec.shape) in (4, 5)]
    either = [spec for spec in data if min(spec.shape[1], max(spec.shape[2:])) > 1]  # else NHWC is NCHW
    return [s for s in either if not is_channels_last(s.shape, s.strides)] if data else None


def unmodeled(profile: Profile) -> tuple[str, ...]:
    """Names of the ops that no formula models, in any of the graphs."""
    return tuple(sorted({
        op.name for graph, costs in zip(profile.graphs, profile.costs, strict=True)
        for op, cost in zip(graph.ops, costs, strict=True) if not cost.modeled
    }))  # fmt: skip


def materialized_bytes(profile: Profile, schedule: Schedule) -> int:
    """Bytes of intermediates that kernels write to memory: activations and gradients, each storage once."""
    graph, plan = profile.graphs[schedule.graph], schedule.plan
    kept = {graph.values[i].storage for i in graph.outputs}
    if plan is not None:
        written = {graph.values[i].storage for group in plan.groups for i in group.writes}
    else:
        written = _written_apart(graph, schedule)
    return sum(graph.storages[i].nbytes for i in written if graph.storages[i].role == "activation" and i not in kept)


def _written_apart(graph: Graph, schedule: Schedule) -> set[int]:
    """Storages that one kernel writes and another touches: known also for a saved schedule, which has no plan."""
    kernel_of = {op: kernel.id for kernel in schedule.kernels for op in kernel.op_ids}
    touchers: dict[int, set[int]] = {}
    for op in graph.ops:
        for i in (*op.inputs, *op.outputs):
            touchers.setdefault(graph.values[i].storage, set()).add(kernel_of.get(op.id, -1))
    written = {graph.values[i].storage for op in graph.ops for i in op.outputs}
    return {storage for storage in written if len(touchers[storage]) > 1}


def _rate(name: str) -> Callable[[Profile, Schedule], float | None]:
    def read(profile: Profile, schedule: Schedule) -> float | None:
        from memwall.record.kernels import rates

        found: float | None = getattr(rates(profile, schedule), name)
        return found

    return read


def _limited_by(profile: Profile, schedule: Schedule) -> Any:
    from memwall.record.kernels import wall_shares

    shares = wall_shares(schedule)
    return max(shares, key=shares.__getitem__)


def _spread(name: str, place: str) -> Callable[[Any], float | None]:
    def serve(candidate: Any) -> float | None:
        spread = getattr(candidate.run, name, None)
        return getattr(spread, place) if spread else None

    return serve


def _attribute(name: str) -> Callable[[Any], Any]:
    return lambda made: getattr(made, name)


def _served(name: str) -> Callable[[Any], float | None]:
    return lambda candidate: getattr(candidate.run, name, None)


#: times of requests, each as a mean and as percentiles
_TIMES = {"ttft": "time to first token", "tpot": "time per output token", "e2e": "end-to-end time of a request"}
_PLACES = {"": ("mean", "mean"), "_p50": ("p50", "median"), "_p90": ("p90", "90th percentile of the"),
           "_p99": ("p99", "99th percentile of the")}  # fmt: skip


def _server(
    name: str, title: str, unit: str, serve: Callable[[Any], float | None], *, lower: bool = True,
    sweep: str = "serve", **more: Any,
) -> Quantity:  # fmt: skip
    return Quantity(name=name, title=title, unit=unit, lower=lower, per="server", serve=serve, sweep=sweep, **more)


#: those that the table of a sweep shows
_SHOWN = ("ttft", "ttft_p99", "tpot")

#: of a server
_SERVED = (
    *(_server(f"{name}{suffix}_s", f"{which} {title}", "s", _spread(name, place),
              sweep="serve" + "+" * (f"{name}{suffix}" in _SHOWN),
              heading=f"{name.upper()} {place}".removesuffix(" mean"))
      for name, title in _TIMES.items() for suffix, (place, which) in _PLACES.items()),
    _server("tokens_per_s", "tokens", "per s", _served("tokens_per_s"), lower=False,
            read=_rate("tokens_per_s"), decode=_attribute("tokens_per_s"),
            train=_attribute("tokens_per_s"), sweep="profile decode serve training", heading="tokens"),
    _server("tokens_per_s_per_user", "tokens for each user", "per s", _served("tokens_per_s_per_user"),
            lower=False, decode=lambda step: 1 / step.time_s, sweep="decode+ serve+", heading="a user"),
    _server("tokens_per_s_per_gpu", "tokens on each GPU", "per s",
            lambda candidate: candidate.run.tokens_per_s / candidate.gpus, lower=False,
            decode=lambda step: step.tokens_per_s / step.gpus, train=_attribute("tokens_per_s_per_gpu"),
            sweep="decode+ serve+ training+", heading="a GPU"),
    _server("requests_per_s", "requests", "per s", _served("requests_per_s"), lower=False),
    # a gate's workload has a setting of this name
    Quantity(name="batch", title="mean decoding sequences", unit="count", lower=False, serve=_served("batch"),
             sweep="serve+"),
    _server("cache_use", "share of the KV cache that is taken", "fraction", _served("cache_use")),
    _server("preemptions", "sequences preempted", "count", _served("preemptions")),
    _server("kv_bytes_per_token", "KV cache of one more token on a GPU", "B",
            lambda candidate: candidate.kv_bytes_per_token),
    _server("usd_per_million_tokens", "all cost, by million tokens", "USD",
            lambda candidate: candidate.usd_per_million(candidate.run.tokens_per_s),
            decode=_attribute("usd_per_million"), train=_attribute("usd_per_million"),
            sweep="decode+ serve+ training+", heading="1 M tokens"),
    _server("usd_per_million_prompt_tokens", "all cost, by million tokens of prompts", "USD",
            lambda candidate: candidate.usd_per_million(candidate.run.prompt_tokens_per_s)),
    _server("energy_per_token_j", "energy of a generated token", "J", lambda candidate: candidate.energy_per_token_j,
            decode=_attribute("energy_per_token_j"), sweep="decode serve", heading="energy"),
)  # fmt: skip


_ROWS = (
    # what a gate limits, in the order in which a history lists them
    Quantity(name="kernels", title="kernels launched", unit="count", per="schedule", read=_total("kernels"),
             attribute="launches", adds=True, tables="module? class? share?", heading="kernels", place=10,
             sweep="profile"),
    Quantity(name="dram_bytes", title="DRAM bytes", unit="B", per="schedule", read=_total("dram_bytes"),
             attribute="bytes", adds=True, sort="bytes", tables="module class? share? kernel?", heading="bytes",
             place=30, sweep="profile"),
    Quantity(name="flops", title="FLOPs", unit="FLOP", per="schedule", read=_total("flops"), attribute="flops",
             adds=True, sort="flops", tables="module class? share? kernel? csv", heading="FLOPs", place=20,
             needs_formula=True, sweep="profile"),
    Quantity(name="bound_s", title="speed of light", unit="s", per="schedule", read=_total("bound_s"),
             attribute="bound_s", adds=True, sort="bound", tables="share kernel? csv", heading="bound", place=50,
             like="time_s", sweep="profile"),
    Quantity(name="time_s", title="modeled time", unit="s", per="schedule", read=_total("time_s"),
             attribute="time_s", adds=True, sort="time", tables="module class share kernel csv", heading="time",
             place=60, sweep="profile+ decode+ training+", decode=_attribute("time_s"), train=_attribute("time_s")),
    Quantity(name="peak_memory", title="peak memory", unit="B", per="schedule", every_rank=True,
             read=_of_every_rank("peak_memory", _total("peak_memory_bytes")), heading="peak",
             sweep="profile+ decode+ training+", decode=_attribute("memory_bytes"), train=_attribute("peak_bytes")),
    Quantity(name="materialized_bytes", title="materialized intermediates", unit="B", per="schedule",
             read=materialized_bytes, sweep="profile"),
    Quantity(name="communication_bytes", title="bytes sent to other GPUs", unit="B", per="schedule", every_rank=True,
             read=_of_every_rank("communication_bytes", _communication("sent_bytes"))),
    Quantity(name="exposed_communication_s", title="exposed communication", unit="s", per="schedule", every_rank=True,
             read=_of_every_rank("exposed_communication_s", _communication("exposed_s")), train=_attribute("link_s"),
             sweep="training", heading="exposed"),
    Quantity(name="mfu", title="MFU", unit="fraction", lower=False, per="schedule", read=_total("mfu"), heading="MFU",
             train=_attribute("mfu"), sweep="profile+ training+"),
    Quantity(name="hfu", title="HFU", unit="fraction", lower=False, per="schedule", read=_total("hfu"), heading="HFU",
             train=_attribute("hfu"), sweep="profile training"),
    Quantity(name="mbu", title="MBU", unit="fraction", lower=False, per="schedule",
             read=lambda profile, schedule: schedule.mbu, heading="MBU", sweep="profile"),
    Quantity(name="compute_share", title="share of the time under the compute wall", unit="fraction", lower=False,
             per="schedule", read=_wall("compute"), sweep="profile"),
    Quantity(name="bandwidth_share", title="share of the time under the bandwidth wall", unit="fraction",
             per="schedule", read=_wall("bandwidth"), sweep="profile"),
    Quantity(name="latency_share", title="share of the time under the latency wall", unit="fraction",
             per="schedule", read=_wall("latency"), sweep="profile"),
    Quantity(name="overhead_share", title="share of the time under the overhead wall", unit="fraction",
             per="schedule", read=_wall("overhead"), sweep="profile"),
    Quantity(name="graph_breaks", title="graph breaks", unit="count", per="profile", read=graph_breaks),
    Quantity(name="nchw_bytes", title="bytes of convolutions in NCHW", unit="B", per="profile", read=nchw_bytes,
             sweep="profile"),
    Quantity(name="measured_s", title="measured time", unit="s", per="machine"),
    Quantity(name="coverage", title="ops with a formula", unit="fraction", lower=False, per="profile", read=coverage,
             sweep="profile"),
    # of a sweep
    Quantity(name="samples_per_s", title="samples", unit="per s", lower=False, read=_rate("samples_per_s"),
             train=_attribute("samples_per_s"), sweep="profile+ training", heading="samples"),
    Quantity(name="fits", title="whether the memory holds it", unit="flag", lower=False, heading="fits",
             read=lambda profile, schedule: schedule.fits, serve=lambda candidate: True, decode=_attribute("fits"),
             train=_attribute("fits"), sweep="profile+ decode+ serve training+"),
    Quantity(name="gpus", title="GPUs", unit="count", train=_attribute("gpus"), sweep="training+", heading="GPUs"),
    Quantity(name="bubble_s", title="seconds that the slowest rank waits for others", unit="s",
             train=_attribute("bubble_s"), sweep="training", heading="bubble"),
    Quantity(name="largest_batch", title="sequences that the memory holds", unit="count", lower=False,
             decode=_attribute("largest_batch"), sweep="decode+", heading="largest"),
    Quantity(name="weights_bytes", title="weights on a GPU", unit="B", decode=_attribute("weights_bytes"),
             sweep="decode", heading="weights"),
    Quantity(name="kv_bytes", title="cache of a sequence on a GPU", unit="B", decode=_attribute("kv_bytes"),
             sweep="decode", heading="a cache"),
    # of totals next to others
    Quantity(name="speedup", title="times as fast", unit="ratio", lower=False, heading="speed-up"),
    Quantity(name="saved_s", title="seconds less than eager", unit="s", lower=False, heading="saved"),
    Quantity(name="saved_bytes", title="DRAM bytes less than eager", unit="B", lower=False, heading="saved"),
    Quantity(name="time_score", title="time saved over what ideal saves", unit="fraction", lower=False,
             heading="of ideal"),
    Quantity(name="byte_score", title="DRAM bytes saved over what ideal saves", unit="fraction", lower=False,
             heading="of ideal"),
    # further quantities of kernels
    Quantity(name="count", title="equal kernels", unit="count", attribute="count", sort="count", place=90),
    Quantity(name="flop_share", title="share of the FLOPs", unit="fraction", attribute="flop_share",
             tables="module? class share", heading="FLOPs", place=21),
    Quantity(name="byte_share", title="share of the DRAM bytes", unit="fraction", attribute="byte_share",
             tables="module? class share", heading="bytes", place=31),
    Quantity(name="time_share", title="share of the time", unit="fraction", attribute="time_share",
             tables="module class share kernel", heading="time", place=65),
    Quantity(name="memory_bytes", title="memory at the peak", unit="B", attribute="memory_bytes", tables="module",
             heading="memory", place=34),
    Quantity(name="memory_share", title="share of the memory at the peak", unit="fraction", attribute="memory_share",
             tables="module?", heading="memory", place=35),
    Quantity(name="read_bytes", title="DRAM bytes read", unit="B", attribute="read_bytes", tables="csv", place=32),
    Quantity(name="write_bytes", title="DRAM bytes written", unit="B", attribute="write_bytes", tables="csv", place=33),
    Quantity(name="arithmetic_intensity", title="FLOP per DRAM byte", unit="FLOP/B", lower=False,
             attribute="arithmetic_intensity", sort="intensity", tables="share? kernel? csv", heading="intensity",
             place=40, needs_formula=True),
    Quantity(name="compute_s", title="time of the arithmetic", unit="s", attribute="compute_s", tables="csv", place=61),
    Quantity(name="memory_s", title="time of the traffic", unit="s", attribute="memory_s", tables="csv", place=62),
    Quantity(name="latency_s", title="time of instructions, dependent steps and waits for loads", unit="s",
             attribute="latency_s", tables="csv", place=62),
    Quantity(name="overhead_s", title="launches and waits for the CPU", unit="s", attribute="overhead_s", tables="csv",
             place=63),
    Quantity(name="interval_s", title="80 % interval of the time", unit="interval", attribute="interval_s",
             tables="kernel?", heading="80 % range", place=64, like="time_s"),
    Quantity(name="attained_flop_per_s", title="FLOPs over modeled time", unit="FLOP/s", lower=False,
             attribute="attained_flop_per_s", tables="class", heading="modeled", place=70),
    Quantity(name="times_fewer", title="times fewer FLOP/s than the matrix classes", unit="ratio",
             attribute="times_fewer", tables="class", heading="times fewer", unit_text="FLOP/s", place=71),
    Quantity(name="limited_by", title="the wall", unit="word", attribute="limited_by",
             tables="module class share kernel csv", heading="limited by", place=80, read=_limited_by,
             serve=_attribute("wall"), decode=_attribute("limited_by"), train=_attribute("wall"),
             sweep="profile+ decode+ serve+ training+"),
    Quantity(name="low_s", title="low end of the 80 % interval", unit="s", attribute="low_s", tables="csv", place=81),
    Quantity(name="high_s", title="high end of the 80 % interval", unit="s", attribute="high_s", tables="csv",
             place=82),
    *_SERVED,
)  # fmt: skip


def _named(rows: Iterable[Quantity], key: Callable[[Quantity], str]) -> dict[str, Quantity]:
    """The rows that have a key, by it. Raises ValueError: two rows have the same key."""
    named: dict[str, Quantity] = {}
    for row in rows:
        if key(row) and named.setdefault(key(row), row) is not row:
            raise ValueError(f"two quantities are called {key(row)}")
    return named


_BY_PLACE = sorted(_ROWS, key=lambda row: row.place)

#: name -> quantity
QUANTITIES = _named(_ROWS, lambda row: row.name)

#: name -> quantity that a gate can limit
LIMITS = _named((row for row in _ROWS if row.per), lambda row: row.name)

#: name -> quantity of a server
SERVED = _named(_SERVED, lambda row: row.name)

#: key of ``--sort`` -> quantity, the default first
SORT_KEYS = _named((QUANTITIES["time_s"], *_BY_PLACE), lambda row: row.sort)

#: other names of a quantity of a server: without its unit, and
SERVED_ALIASES = {
    **{name.removesuffix("_s"): name for name, row in SERVED.items() if row.unit == "s"},
    "cost_per_mtok": "usd_per_million_tokens", "cost_per_prompt_mtok": "usd_per_million_prompt_tokens",
    "energy_per_token": "energy_per_token_j",
}  # fmt: skip

#: other names of a limit
ALIASES = {
    "peak_memory_bytes": "peak_memory", "memory": "peak_memory", "launches": "kernels", "time": "time_s",
    **SERVED_ALIASES,
}  # fmt: skip


def quantity_of(attribute: str) -> Quantity | None:
    """The quantity that an attribute of a row holds, by its name, another name of it, or a kernel's name for it."""
    known = QUANTITIES.get(ALIASES.get(attribute, attribute))
    return known or next((row for row in _ROWS if row.attribute == attribute), None)


def swept(kind: str) -> list[Quantity]:
    """The quantities that sweeps of a kind have columns of."""
    return [row for row in _ROWS if row.swept(kind)]


def columns_of(table: str) -> list[Quantity]:
    """The quantities that a table has columns of, from the left."""
    return [row for row in _BY_PLACE if row.appears(table)]
