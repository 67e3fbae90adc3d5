"""The wings: whole stories above the analyzer, each a folder that imports the analyzer and no other wing.

A wing has its question, model, page, figures and command. What the analyzer, a command line or another wing asks of a
wing is a row here, by name, and is imported when it is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Wing:
    """What a wing brings; modules are in its folder, ``""`` is its front door."""

    about: str
    #: command → its module, whose ``command`` it is
    commands: Mapping[str, str] = field(default_factory=dict)
    #: policy → module and name of its planner
    policies: Mapping[str, str] = field(default_factory=dict)
    #: kind of points of a sweep → module and name
    points: Mapping[str, str] = field(default_factory=dict)
    #: class of a result → module and name of the page that shows it
    pages: Mapping[str, str] = field(default_factory=dict)
    #: record that it writes → module and name of the dataclass that is saved, and what it is
    records: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    #: settings that it takes, by the function whose keywords they are → module and name of the question
    questions: Mapping[str, str] = field(default_factory=dict)
    #: what others ask of it → module
    parts: Mapping[str, str] = field(default_factory=dict)


def _each(module: str, names: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), module)


WINGS: Mapping[str, Wing] = {
    "codegen": Wing(
        about="groups of ops as Triton kernels",
        records={"emit": ("emit.EmitIndex", "generated kernels in a folder: index.json of memwall fuse --emit")},
        parts={
            **_each("", "covers generate"), **_each("kernel", "Kernel"), **_each("planned", "Toolchain compiled_plan"),
            **_each("page", "compiled_section"), **_each("compiling", "triton_version"),
            **_each("occupancy", "find_target architecture_of"), **_each("user_kernels", "built_kernel CompiledKernel"),
            **_each("emit", "EMITTED INDEX check_folder kernel_files write_folder"),
        },
    ),
    "inductor": Wing(
        about="what TorchDynamo captures and Inductor would compile it to",
        policies={"inductor": "compiled.inductor_plan", "max-autotune": "autotuned.autotuned_plan"},
        parts={**_each("compiled", "kernels_of plan_of"), **_each("dynamo.run", "capture")},
    ),
    "xla": Wing(
        about="what XLA would compile a JAX program to, for a device that is not there",
        policies={"xla": "compiled.xla_plan"},
        parts={**_each("compiled", "compiled plan_of planned")},
    ),
    "bounding": Wing(
        about="the speed of light of a kernel, and how good a measured time is",
        commands={"bound": "command"},
        pages={"KernelBounds": "page.BoundReport"},
        questions={"bound": "question.BoundOptions"},
        records={"bound": ("answer.KernelBounds", "the speed of light of a kernel, and what reaches it")},
        parts={**_each("run", "bound"), **_each("question", "BoundOptions BoundStep")},
    ),
    "fusing": Wing(
        about="what fusion would win, what it misses and why, and the code of it",
        records={
            "fusion": ("run.SavedFusion", "what fusion wins: policies, groups, refusals, missed fusions, capture")
        },
        commands={"fuse": "command"},
        pages={"SavedFusion": "record_page.FusionRecordReport", "FusedProfile": "page.FusedReport"},
    ),
    "traces": Wing(
        about="what a profiler of PyTorch or XLA recorded, next to the model",
        records={
            "trace": ("analysis.SavedTrace", "a profiler's trace compared with a GPU"),
            "trace_comparison": (
                "comparison.TraceComparison",
                "traces compared with each other, or with the model",
            ),
        },
        parts={
            **_each("command", "analyse_file is_trace refuse_trace"), **_each("schemas", "schemas_of"),
            **_each("page", "TraceReport"), **_each("comparison", "compare_traces compare_with_model"),
            **_each("comparison_page", "TraceComparisonReport"),
        },
    ),
    "bench": Wing(
        about="kernels, models and this machine timed, and the model scored against it",
        records={
            "accuracy": (
                "accuracy.page.SavedCell",
                "how far the model is from measured kernels: what memwall accuracy --json prints",
            ),
            "drift": ("drift.finding.Drift", "which kernels of recorded runs drifted, since when and what changed"),
        },
        commands={"measure": "measure_command", "drift": "drift_command", "calibrate": "calibrate_command",
                  "accuracy": "accuracy_command"},
        pages={"Scored": "accuracy.page.AccuracyReport"},
        parts={**_each("ab", "Rules Side run_ab"), **_each("device", "RUN_OPTIONS"),
               **_each("drift.runs", "read_runs workload_key")},
    ),
    "gate": Wing(
        about="limits on figures of workloads, for CI",
        records={"history": ("history.HistoryRow", "one workload's figures at one commit: a line of a history")},
        commands={"gate": "command"},
        pages={"GateResult": "page.GateReport"},
        parts={**_each("history", "read"), **_each("history_page", "HistoryReport")},
    ),
    "serving": Wing(
        about="a server of a language model under load",
        commands={"serve": "command"},
        policies={"server": "steps.plan.server_plan"},
        points={"decode": "kinds.DECODE", "serve": "kinds.SERVE"},
        pages={"SavedServing": "page.ServingReport", "Serving": "page.serving_page",
               "Found": "search_page.engines_page"},
        questions={"serve": "question.ServeOptions"},
        records={
            "serving": (
                "saved.SavedServing",
                "what servers of a model do under load, their memory and their kernels",
            )
        },
        parts={**_each("", "read_model serve"), **_each("question", "SearchOptions ServeOptions ServerOptions"),
               **_each("command", "ServeCommand check_requests launched"), **_each("calibration", "calibrate_engine"),
               **_each("calibration.page", "CalibrationReport"),
               **_each("search", "search"), **_each("search_page", "engines_page"),
               **_each("launch.command", "starts_engine")},
    ),
    "training": Wing(
        about="a training step under a layout of many GPUs",
        points={"training": "kinds.TRAINING"},
        pages={"Training": "page.TrainingReport", "Layouts": "search_page.layouts_page"},
        questions={"parallel": "question.Job", "layout": "layout.Parallelism"},
        parts={**_each("command", "profile_parallel"), **_each("search", "search_layouts"),
               **_each("search_page", "layouts_page"), **_each("question", "LayoutSearch StateOptions")},
    ),
    "mcp_server": Wing(  # "mcp" is the package that it speaks with
        about="the commands as tools of a program with a language model",
        commands={"mcp": "command"},
    ),
    "sweeping": Wing(  # "sweep" is the public function memwall.sweep
        about="one question at a few points or at thousands",
        records={"comparison": ("comparison.Comparison", "one workload on several GPUs, or several profiles")},
        pages={"Comparison": "comparison_page.ComparisonReport"},
        commands={"sweep": "command", "search": "search_command", "compare": "compare_command"},
        parts=_each("compare", "compare_profiles"),
    ),
    "browsing": Wing(about="the records of a folder as pages of a browser", commands={"open": "command"}),
}  # fmt: skip


def part(name: str) -> Any:
    """What a wing offers, such as ``serving.serve``; imported on first use. Raises KeyError: no wing offers it."""
    wing, _, asked = name.partition(".")
    return _of(wing, f"{WINGS[wing].parts[asked]}.{asked}")


def _of(wing: str, place: str) -> Any:
    module, _, name = place.rpartition(".")
    return getattr(import_module(f"memwall.{wing}.{module}".rstrip(".")), name)


def command_module(name: str) -> str:
    """The module of a command: in its wing, else in the analyzer."""
    return next(
        (f"memwall.{wing}.{row.commands[name]}" for wing, row in WINGS.items() if name in row.commands),
        f"memwall.cli.{name}",
    )


def planner(policy: str) -> Any:
    """The planner of a policy that a wing brings."""
    return next(_of(wing, row.policies[policy]) for wing, row in WINGS.items() if policy in row.policies)


def page_of(result: str) -> Any:
    """The page of a class of results; None where no wing has one."""
    found = (_of(wing, row.pages[result]) for wing, row in WINGS.items() if result in row.pages)
    return next(found, None)


def records_of_wings() -> dict[str, tuple[str, str]]:
    """The records that wings write, each with module and name of the dataclass that is saved, and what it is."""
    return {
        name: (f"{wing}.{place}", what) for wing, row in WINGS.items() for name, (place, what) in row.records.items()
    }


def questions_of_wings() -> dict[str, Any]:
    """The questions of wings, by the function whose keywords their options are."""
    return {name: _of(wing, place) for wing, row in WINGS.items() for name, place in row.questions.items()}


def kinds_of_points() -> list[Any]:
    """The kinds of points that wings bring to sweeps, in order."""
    return [_of(wing, place) for wing, row in WINGS.items() for place in row.points.values()]
