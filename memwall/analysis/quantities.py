"""Every quantity that memwall shows, sorts by, limits or follows: one row each.

A row says what the quantity is called, its unit, which way is better, how it is read from a kernel (or some kernels
together) and from a whole workload, and where it appears: as a column of a table, as a key of ``--sort``, as a limit of
a gate (and so in a history), as an objective of a server, as a column of a sweep or a
comparison. A new row appears there by itself.

A whole-workload figure is read from a schedule or a profile; a quantity that adds up over kernels can be limited per
module too. A kernel belongs to a module pattern if all its ops' common module, or a parent of it, matches.

Nothing slow is imported here: the command line's options read this table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from memwall.analysis.whole_profile import (
    cost,
    coverage,
    energy,
    graph_breaks,
    limited_by,
    materialized_bytes,
    nchw_bytes,
    of_every_rank,
    of_messages,
    power,
    rate,
    wall_share,
    world,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """One figure. ``unit`` is one of ``s``, ``B``, ``FLOP``, ``FLOP/s``, ``FLOP/B``, ``count``, ``fraction``,
    ``per s``, ``USD``, ``J``, ``W``, ``g``, ``ratio``, ``interval`` (two times), ``word`` and ``flag``;
    ``lower`` is better, or higher.
    """

    name: str
    title: str
    unit: str
    lower: bool = True
    #: what a gate's limit on it depends on: ``schedule`` (GPU and policy), ``profile`` (neither), ``server`` (GPU and
    #: load) or ``machine`` (timed by :mod:`memwall.gate.run` only); empty if it cannot be limited
    per: str = ""
    #: kind of result -> how the figure is read from one: ``profile`` from a profile and one of its schedules (USD also
    #: from the price of an hour of a GPU), ``serve`` from a :class:`memwall.serving.candidates.ServerCandidate`,
    #: ``decode`` from a :class:`memwall.serving.candidates.Decoding`, ``training`` from a
    #: :class:`memwall.training.kinds.Trained`
    readers: Mapping[str, Callable[..., Any]] = field(default_factory=dict, hash=False)
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
    #: digits behind the point of a count
    digits: int = 0
    #: whether it is unknown for kernels that no formula models
    needs_formula: bool = False
    #: of a program of many GPUs, whether it is that of the rank with the most
    every_rank: bool = False

    @property
    def spoken(self) -> str:
        """What a sentence calls it: ``TTFT p99``, ``tokens for each user``."""
        return self.heading if self.unit == "s" and self.heading[:2].isupper() else self.title

    def of(self, row: Any) -> Any:
        """The figure of a kernel, or of a row of kernels."""
        return getattr(row, self.attribute)

    def read(self, kind: str, *made: Any) -> Any:
        """The figure of a result of a kind; None where that has none."""
        reader = self.readers.get(kind)
        return None if reader is None else reader(*made)

    def appears(self, table: str) -> str:
        """``kernel`` or ``kernel?`` in the table ``kernel``; empty where it has no column."""
        return next((word for word in self.tables.split() if word.rstrip("?") == table), "")


#: a function of a result, or the name of an attribute
_Reader = str | Callable[..., Any]


def _spread(name: str, place: str) -> Callable[[Any], float | None]:
    def serve(candidate: Any) -> float | None:
        spread = getattr(candidate.run, name, None)
        return getattr(spread, place) if spread else None

    return serve


def _end(name: str, end: str) -> Callable[[Any], float | None]:
    return lambda candidate: candidate.end_s(name, end)


def _of_tokens(name: str, rate: str = "tokens_per_s") -> Callable[[Any], float | None]:
    """A figure of the bill of a server, by the rate of its tokens."""
    return lambda candidate: getattr(candidate, name)(getattr(candidate.run, rate))


def _of_step(name: str) -> Callable[[Any], float | None]:
    return lambda step: getattr(step, name)(step.tokens_per_s)


def _cost_end(end: str) -> Callable[[Any], float | None]:
    return lambda candidate: candidate.usd_end(end)


#: kinds of answers
KINDS = ("profile", "serve", "decode", "training")


def _row(name: str, title: str, unit: str, **more: Any) -> Quantity:
    """A quantity with its readers, by kind of answer; a text is an attribute: of a schedule's totals, of what a server
    has run, of a decode step or of a training step."""
    given = {kind: more.pop(kind) for kind in KINDS if kind in more}
    readers = {kind: _named_reader(kind, read) for kind, read in given.items()}
    return Quantity(name=name, title=title, unit=unit, readers=readers, **more)


def _named_reader(kind: str, read: _Reader) -> Callable[..., Any]:
    if not isinstance(read, str):
        return read
    if kind == "profile":
        return lambda profile, schedule: getattr(schedule.totals, read)
    if kind == "serve":
        return lambda candidate: getattr(candidate.run, read, None)
    return attrgetter(read)


#: times of requests, each as a mean and as percentiles
_TIMES = {"ttft": "time to first token", "tpot": "time per output token", "e2e": "end-to-end time of a request"}
_PLACES = {"": ("mean", "mean"), "_p50": ("p50", "median"), "_p90": ("p90", "90th percentile of the"),
           "_p99": ("p99", "99th percentile of the")}  # fmt: skip


def _server(name: str, title: str, unit: str, **more: Any) -> Quantity:
    return _row(name, title, unit, per="server", **more)


#: of a server
_SERVED = (
    *(_server(f"{name}{suffix}_s", f"{which} {title}", "s", serve=_spread(name, place),
              heading=f"{name.upper()} {place}".removesuffix(" mean"), like=f"{name}_s" * bool(suffix))
      for name, title in _TIMES.items() for suffix, (place, which) in _PLACES.items()),
    *(_server(f"{name}_{end}_s", f"{end} end of the 80 % interval of the mean {_TIMES[name]}", "s", like=f"{name}_s",
              serve=_end(name, end)) for name in ("ttft", "tpot") for end in ("low", "high")),
    _server("tokens_per_s", "tokens", "per s", lower=False, heading="tokens",
            serve="tokens_per_s", profile=rate("tokens_per_s"), decode="tokens_per_s", training="tokens_per_s"),
    _server("tokens_per_s_per_user", "tokens for each user", "per s", lower=False, unit_text="tokens/s",
            heading="per user", serve="tokens_per_s_per_user", decode=lambda step: 1 / step.time_s),
    _server("tokens_per_s_per_gpu", "tokens on each GPU", "per s", lower=False, unit_text="tokens/s",
            heading="per GPU", serve=lambda candidate: candidate.run.tokens_per_s / candidate.gpus,
            decode=lambda step: step.tokens_per_s / step.gpus, training="tokens_per_s_per_gpu"),
    _server("requests_per_s", "requests", "per s", lower=False, serve="requests_per_s"),
    _server("goodput_share", "share of the requests that keep every limit of --slo", "fraction", lower=False,
            heading="good", serve=attrgetter("goodput_share")),
    _server("goodput_per_s", "requests that keep every limit of --slo", "per s", lower=False, heading="goodput",
            serve=attrgetter("goodput_per_s")),
    _server("goodput_tokens_per_s", "tokens of requests that keep every limit of --slo", "per s", lower=False,
            serve=attrgetter("goodput_tokens_per_s")),
    _server("cached_share", "share of the prompts' tokens that was in the cache", "fraction", lower=False,
            heading="cached", serve="cached_share"),
    _server("mean_gpus", "GPUs that are on in the mean, where replicas start and stop", "count", heading="GPUs on",
            digits=1, serve=lambda candidate: candidate.gpus if getattr(candidate.run, "engines_on", None) else None),
    # a gate's workload has a setting of this name
    _row("batch", "mean decoding sequences", "count", lower=False, heading="batch", digits=1, serve="batch"),
    _server("cache_use", "share of the KV cache that is taken", "fraction", serve="cache_use"),
    _server("preemptions", "sequences preempted", "count", serve="preemptions"),
    _server("kv_bytes_per_token", "KV cache of one more token on a GPU", "B", serve=attrgetter("kv_bytes_per_token")),
    _server("usd_per_million_tokens", "all cost, by million tokens", "USD",
            heading="1 M tokens", profile=cost("tokens_per_s"),
            serve=_of_tokens("usd_of_million"), decode=_of_step("usd_of_million"), training="usd_per_million"),
    *(_server(f"usd_per_million_tokens_{end}", f"{end} end of the 80 % interval of the cost, by that of TPOT", "USD",
              heading=which, unit_text="USD", serve=_cost_end(end), decode=_cost_end(end))
      for end, which in (("low", "10th"), ("high", "90th"))),
    _server("usd_per_million_tokens_spot", "cost on GPUs that are given back when idle, by million tokens", "USD",
            heading="spot", serve=_of_tokens("spot_usd_of_million"), decode=_of_step("spot_usd_of_million")),
    _server("usd_per_million_prompt_tokens", "all cost, by million tokens of prompts", "USD", heading="1 M in",
            serve=_of_tokens("usd_of_million", "prompt_tokens_per_s")),
    _server("watts_per_gpu", "mean power of a GPU", "W", heading="power",
            profile=power, serve=attrgetter("watts_per_gpu"), decode="watts_per_gpu"),
    _server("energy_per_token_j", "energy of the GPUs for a generated token", "J", heading="energy",
            unit_text="J/token", serve=_of_tokens("joules_of_token"), decode=_of_step("joules_of_token")),
    _server("grams_per_million_tokens", "CO2 of a million tokens", "g", heading="CO2", unit_text="g/1 M",
            serve=_of_tokens("grams_of_million"), decode=_of_step("grams_of_million")),
)  # fmt: skip


_ROWS = (
    # what a gate limits, in the order in which a history lists them
    _row("kernels", "kernels launched", "count", per="schedule", attribute="launches", adds=True,
         tables="module? class? share?", heading="kernels", place=10, profile="kernels"),
    _row("dram_bytes", "DRAM bytes", "B", per="schedule", attribute="bytes", adds=True, sort="bytes",
         tables="module class? share? kernel?", heading="bytes", place=30, profile="dram_bytes"),
    _row("flops", "FLOPs", "FLOP", per="schedule", attribute="flops", adds=True, sort="flops",
         tables="module class? share? kernel? csv", heading="FLOPs", place=20, needs_formula=True,
         profile="flops"),
    _row("bound_s", "speed of light", "s", per="schedule", attribute="bound_s", adds=True, sort="bound",
         tables="share kernel? csv", heading="bound", place=50, like="time_s", profile="bound_s"),
    _row("time_s", "modeled time", "s", per="schedule", attribute="time_s", adds=True, sort="time",
         tables="module class share kernel csv", heading="time", place=60,
         profile="time_s", decode="time_s", training="time_s"),
    _row("peak_memory", "peak memory", "B", per="schedule", heading="peak memory",
         every_rank=True, profile=of_every_rank("peak_memory", _named_reader("profile", "peak_memory_bytes")),
         decode="memory_bytes", training="peak_bytes"),
    _row("materialized_bytes", "materialized intermediates", "B", per="schedule",
         profile=materialized_bytes),
    _row("communication_bytes", "bytes sent to other GPUs", "B", per="schedule", every_rank=True,
         profile=of_every_rank("communication_bytes", of_messages("sent_bytes"))),
    _row("exposed_communication_s", "exposed communication", "s", per="schedule", every_rank=True,
         heading="exposed", profile=of_every_rank("exposed_communication_s", of_messages("exposed_s")),
         training="link_s"),
    _row("mfu", "MFU", "fraction", lower=False, per="schedule", heading="MFU",
         profile="mfu", training="mfu"),
    _row("hfu", "HFU", "fraction", lower=False, per="schedule", heading="HFU", profile="hfu",
         training="hfu"),
    _row("mbu", "MBU", "fraction", lower=False, per="schedule", heading="MBU",
         profile=lambda profile, schedule: schedule.mbu),
    _row("compute_share", "share of the time under the compute wall", "fraction", heading="compute", lower=False,
         per="schedule", profile=wall_share("compute")),
    _row("bandwidth_share", "share of the time under the bandwidth wall", "fraction", heading="bandwidth",
         per="schedule", profile=wall_share("bandwidth")),
    _row("latency_share", "share of the time under the latency wall", "fraction", heading="latency", per="schedule",
         profile=wall_share("latency")),
    _row("overhead_share", "share of the time under the overhead wall", "fraction", heading="overhead", per="schedule",
         profile=wall_share("overhead")),
    _row("link_share", "share of the time under the link wall", "fraction", heading="link",
         profile=wall_share("link")),
    _row("graph_breaks", "graph breaks", "count", per="profile", profile=graph_breaks),
    _row("nchw_bytes", "bytes of convolutions in NCHW", "B", per="profile", profile=nchw_bytes),
    _row("measured_s", "measured time", "s", per="machine"),
    _row("coverage", "ops with a formula", "fraction", lower=False, per="profile", profile=coverage),
    # of a sweep
    _row("samples_per_s", "samples", "per s", lower=False, heading="samples",
         profile=rate("samples_per_s"), training="samples_per_s"),
    _row("fits", "whether the memory holds it", "flag", lower=False, heading="fits",
         profile=lambda profile, schedule: schedule.fits, serve=lambda candidate: True, decode="fits", training="fits"),
    _row("gpus", "GPUs", "count", heading="GPUs", profile=world, serve=attrgetter("gpus"), decode="gpus",
         training="gpus"),
    _row("reserved_bytes", "assumed for the context and the allocator", "B", heading="assumed",
         profile=lambda profile, schedule: schedule.reserved_bytes),
    _row("gpu_bytes", "memory of a GPU", "B", lower=False, heading="GPU memory",
         profile=lambda profile, schedule: schedule.gpu.dram_bytes),
    _row("energy_j", "energy of a step on all GPUs", "J", per="schedule", heading="energy",
         unit_text="J/step", profile=energy, training="energy_j"),
    _row("usd_per_step", "cost of a step on all GPUs", "USD", heading="per step", profile=cost(""),
         training="usd_per_step"),
    _row("usd_per_million_samples", "cost of a million samples", "USD", heading="1 M samples",
         profile=cost("samples_per_s")),
    _row("bubble_s", "seconds that the slowest rank waits for others", "s", heading="bubble",
         training="bubble_s"),
    _row("largest_batch", "sequences that the memory holds", "count", lower=False, heading="largest",
         serve=attrgetter("largest_batch"), decode="largest_batch"),
    _row("weights_bytes", "weights on a GPU", "B", heading="weights", decode="weights_bytes"),
    _row("kv_bytes", "cache of a sequence on a GPU", "B", heading="a cache", decode="kv_bytes"),
    # of totals next to others
    _row("speedup", "times as fast", "ratio", lower=False, heading="speed-up"),
    _row("saved_s", "seconds less than eager", "s", lower=False, heading="saved"),
    _row("saved_bytes", "DRAM bytes less than eager", "B", lower=False, heading="saved"),
    _row("time_score", "time saved over what ideal saves", "fraction", lower=False, heading="of ideal"),
    _row("byte_score", "DRAM bytes saved over what ideal saves", "fraction", lower=False, heading="of ideal"),
    # further quantities of kernels
    _row("count", "equal kernels", "count", attribute="count", sort="count", place=90),
    _row("flop_share", "share of the FLOPs", "fraction", attribute="flop_share", tables="module? class share",
         heading="FLOPs", place=21),
    _row("byte_share", "share of the DRAM bytes", "fraction", attribute="byte_share", tables="module? class share",
         heading="bytes", place=31),
    _row("time_share", "share of the time", "fraction", attribute="time_share", tables="module class share kernel",
         heading="time", place=65),
    _row("memory_bytes", "memory at the peak", "B", attribute="memory_bytes", tables="module", heading="memory",
         place=34),
    _row("memory_share", "share of the memory at the peak", "fraction", attribute="memory_share", tables="module?",
         heading="memory", place=35),
    _row("read_bytes", "DRAM bytes read", "B", attribute="read_bytes", tables="csv", place=32),
    _row("write_bytes", "DRAM bytes written", "B", attribute="write_bytes", tables="csv", place=33),
    _row("arithmetic_intensity", "FLOP per DRAM byte", "FLOP/B", lower=False, attribute="arithmetic_intensity",
         sort="intensity", tables="share? kernel? csv", heading="intensity", place=40, needs_formula=True),
    _row("compute_s", "time of the arithmetic", "s", attribute="compute_s", tables="csv", place=61),
    _row("memory_s", "time of the traffic", "s", attribute="memory_s", tables="csv", place=62),
    _row("latency_s", "time of instructions, dependent steps and waits for loads", "s", attribute="latency_s",
         tables="csv", place=62),
    _row("overhead_s", "launches and waits for the CPU", "s", attribute="overhead_s", tables="csv", place=63),
    _row("interval_s", "80 % interval of the time", "interval", attribute="interval_s", tables="kernel?",
         heading="80 % range", place=64, like="time_s"),
    *(_row(f"{name}_interval_s", f"80 % interval of the mean {_TIMES[name]}", "interval", heading="80 % range",
           like=f"{name}_s") for name in ("ttft", "tpot")),
    _row("attained_flop_per_s", "FLOPs over modeled time", "FLOP/s", lower=False, attribute="attained_flop_per_s",
         tables="class", heading="modeled", place=70),
    _row("times_fewer", "times fewer FLOP/s than the matrix classes", "ratio", attribute="times_fewer", tables="class",
         heading="times fewer", unit_text="FLOP/s", place=71),
    _row("limited_by", "the wall", "word", attribute="limited_by", tables="module class share kernel csv",
         heading="limited by", place=80, profile=limited_by,
         serve=attrgetter("wall"), decode="limited_by", training="wall"),
    _row("low_s", "low end of the 80 % interval", "s", attribute="low_s", tables="csv", place=81, profile="low_s",
         decode="low_s", training="low_s"),
    _row("high_s", "high end of the 80 % interval", "s", attribute="high_s", tables="csv", place=82, profile="high_s",
         decode="high_s", training="high_s"),
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


#: kind of answer -> title of a table -> its columns, in order; with ``?`` a column may go where the page is narrow
ANSWERS: Mapping[str, Mapping[str, str]] = {
    "profile": {
        "": "time_s interval_s bound_s? samples_per_s tokens_per_s mfu mbu? limited_by",
        "Walls and memory": "compute_share bandwidth_share latency_share overhead_share link_share peak_memory"
                            " reserved_bytes gpu_bytes fits",
        "Energy and cost": "energy_j usd_per_step usd_per_million_samples usd_per_million_tokens",
    },
    "decode": {
        "": "time_s interval_s tokens_per_s_per_user tokens_per_s_per_gpu peak_memory largest_batch fits"
            " usd_per_million_tokens energy_per_token_j? limited_by",
    },
    "serve": {
        "": "limited_by ttft_s ttft_interval_s? tpot_s tpot_interval_s? tokens_per_s_per_user tokens_per_s_per_gpu"
            " batch largest_batch mean_gpus goodput_share goodput_per_s? cached_share? usd_per_million_tokens"
            " ttft_p99_s? tpot_p99_s?",
        "Power and cost": "watts_per_gpu energy_per_token_j usd_per_million_tokens usd_per_million_tokens_low"
                          " usd_per_million_tokens_high usd_per_million_tokens_spot usd_per_million_prompt_tokens"
                          " grams_per_million_tokens",
    },
    "training": {
        "": "time_s interval_s tokens_per_s_per_gpu mfu gpus peak_memory fits usd_per_million_tokens energy_j?"
            " limited_by",
    },
}  # fmt: skip


def quantity_of(attribute: str) -> Quantity | None:
    """The quantity that an attribute of a row holds, by its name, another name of it, or a kernel's name for it."""
    known = QUANTITIES.get(ALIASES.get(attribute, attribute))
    return known or next((row for row in _ROWS if row.attribute == attribute), None)


def answered(kind: str) -> list[Quantity]:
    """The quantities of a kind of answer."""
    return [row for row in _ROWS if kind in row.readers]


def answer_of(profile: Any, schedule: Any, usd_per_gpu_hour: float | None = None) -> dict[str, Any]:
    """Every quantity of a step, by name; None where it is not known."""
    return {
        row.name: row.read("profile", profile, schedule, *[usd_per_gpu_hour] * (row.unit == "USD"))
        for row in answered("profile")
    }


def columns_of(table: str) -> list[Quantity]:
    """The quantities that a table has columns of, from the left."""
    return [row for row in _BY_PLACE if row.appears(table)]
