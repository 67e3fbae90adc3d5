"""What a command's TARGET is, and how to profile it: a model's file, or a saved profile."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memwall.cli import options
from memwall.cli.machine import chosen_gpus
from memwall.cli.output import Messages
from memwall.core.errors import UsageError

if TYPE_CHECKING:
    from memwall.hardware.lookup import Gpu
    from memwall.record.profile import Profile


def is_record(target: str) -> bool:
    """Whether a target is a saved record: a file that ends in .json or .json.gz.

    Raises:
        UsageError: it is a profiler's trace.
    """
    from memwall.cli.trace_input import refuse_trace

    refuse_trace(target)
    return target.lower().endswith((".json", ".json.gz")) and not target.startswith("hf:")


def make_profile(target: str, names: Sequence[str | Gpu], workload: dict[str, Any], messages: Messages) -> Profile:
    """The profile of a target on the GPUs named, traced or simulated again from a saved record.

    Raises:
        UsageError: an option that does not go with a saved record, or as :func:`memwall.profile`.
    """
    keywords = options.profile_options(workload)
    if is_record(target):
        return _again(target, names, keywords, messages)
    gpus = chosen_gpus(names, messages.say)
    with running(target, messages):
        from memwall.pipeline import profile

        return profile(target, gpu=gpus, progress=messages.progress, **keywords)


def _again(target: str, names: Sequence[str | Gpu], keywords: dict[str, Any], messages: Messages) -> Profile:
    """A saved profile on the GPUs given, else as it was saved. Needs neither torch nor the model."""
    from memwall.hardware.lookup import load_gpus
    from memwall.pipeline import resimulate
    from memwall.record.profile import Profile

    policies = keywords.pop("policy", None)
    strict, cuda_graph = keywords.pop("strict", False), keywords.pop("cuda_graph", False)
    options.refuse(keywords, f"{target} is already traced; profile the model again")
    saved = Profile.load(target)
    if strict and saved.coverage.unmodeled:
        raise UsageError(f"--strict: no formula models {', '.join(saved.coverage.unmodeled)}")
    if not names and not policies and not cuda_graph:
        return saved
    gpus: list[Gpu] = load_gpus(names) or list({s.gpu.name: s.gpu for s in saved.simulations}.values())
    policies = policies or list(dict.fromkeys(s.policy for s in saved.simulations)) or ["eager"]
    messages.progress(f"simulating {saved.workload.name} on {', '.join(gpu.name for gpu in gpus)}")
    with running(target, messages):  # a compiler may have something to say
        return resimulate(saved, gpus, policies, cuda_graph=cuda_graph)


@contextlib.contextmanager
def running(target: str, messages: Messages) -> Iterator[None]:
    """The user's model, or a compiler, at work: it prints to standard error, and its progress is cleared after it.

    Raises:
        MemwallError: it left by ``sys.exit``, which is no result, whatever its code.
    """
    try:
        with user_output_to_stderr():
            yield
    except (SystemExit, GeneratorExit) as error:
        from memwall.frontend.workload.blame import blame

        raise blame(error, f"running {target}") from error
    finally:
        messages.clear()


@contextlib.contextmanager
def user_output_to_stderr() -> Iterator[None]:
    """What the user's model prints goes to standard error: standard output carries the result alone.

    Also what a library or a child process writes to file descriptor 1 behind Python's back.
    """
    with contextlib.redirect_stdout(sys.stderr), _descriptor_to_stderr():
        yield


@contextlib.contextmanager
def _descriptor_to_stderr() -> Iterator[None]:
    try:
        kept = os.dup(1)
    except OSError:  # no standard output at all
        yield
        return
    try:
        with contextlib.suppress(OSError):  # no standard error
            os.dup2(2, 1)
        yield
    finally:
        if sys.__stdout__ is not None:
            with contextlib.suppress(OSError, ValueError):
                sys.__stdout__.flush()
        os.dup2(kept, 1)
        os.close(kept)


def remember(profile: Profile, messages: Messages) -> None:
    """Keep the record for ``memwall compare`` without a target; a folder that refuses it is no failure."""
    from memwall.record.profile import default_record_path

    path = default_record_path()
    try:
        _make_folder(path.parent)
        profile.save(path)
    except (OSError, UsageError) as error:
        reason = getattr(error, "strerror", None) or str(error).removesuffix("; nothing was written")
        messages.warn(f"the record is not kept for memwall compare: {reason}")
    else:
        messages.say(f"record kept in {path}; memwall compare --gpu a100 h100 uses it")


def _make_folder(folder: Path) -> None:
    """Make the folder and have git ignore what is in it."""
    if not folder.is_dir():
        folder.mkdir()
        (folder / ".gitignore").write_text("*\n", encoding="utf-8")
