"""What a command's TARGET is, the GPUs that it is put on, and how to profile it: a model's file, or a saved profile."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from memwall.cli import options
from memwall.cli.output import Messages
from memwall.core.errors import UsageError
from memwall.frontend.targets.sizes import split_sizes
from memwall.hardware.lookup import DEFAULT_GPU, Gpu, load_gpu, load_gpus, match_device
from memwall.wings import part

if TYPE_CHECKING:
    from memwall.frontend.targets import Workload
    from memwall.record.profile import Profile


def is_record(target: str) -> bool:
    """Whether a target is a saved record: a file that ends in .json or .json.gz. Raises ``UsageError``: it is a
    profiler's trace."""
    from memwall.frontend.targets.target import is_saved

    part("traces.refuse_trace")(target)
    return is_saved(target)


# -- GPUs --------------------------------------------------------------------------------------------------------------


def chosen_gpus(names: Sequence[str | Gpu], say: Callable[[str], None]) -> list[Gpu]:
    """The GPUs of ``--gpu``, each once; without any, this machine's, else the default, saying which. Raises
    ``UsageError``: a name or a file is wrong."""
    if names:
        return load_gpus(names)
    gpu, assumed = _default_gpu()
    if not assumed:
        say(f"on this machine's {gpu.full_name}; --gpu NAME for others")
    return [gpu]


def assumption(target: str, names: Sequence[str | Gpu]) -> str:
    """What a page says of a GPU that nobody named and that this machine does not have; else nothing."""
    return "" if names or is_record(target) else _default_gpu()[1]


def _default_gpu() -> tuple[Gpu, str]:
    """This machine's GPU; or the one that is assumed, and why."""
    device = this_machine()
    gpu = match_device(device) if device else None
    if gpu is not None:
        return gpu, ""
    why = f"this machine's {device} is not among memwall gpus" if device else "this machine has no GPU that it can see"
    return load_gpu(DEFAULT_GPU), f"{DEFAULT_GPU} is assumed: {why}; --gpu NAME for another"


def this_machine() -> str | None:
    """What the driver calls the first NVIDIA GPU of this machine; None without one. Imports no torch."""
    with contextlib.suppress(Exception):  # no driver, no library, no permission: all mean no GPU that we can see
        import pynvml

        pynvml.nvmlInit()
        try:
            name = pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(0))
        finally:
            pynvml.nvmlShutdown()
        return name.decode() if isinstance(name, bytes) else str(name)
    return None


# -- profiles ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ModelTarget:
    """A target that is a model, the options that say how to trace it, and the GPUs to simulate it on."""

    target: str
    given: dict[str, Any]
    gpus: Sequence[Gpu]
    messages: Messages

    def workload(self, **changes: Any) -> Workload:
        """The workload that the target names, with other sizes where ``changes`` has them."""
        from memwall.frontend.targets import resolve

        sizes, others = split_sizes({**self.given, **changes})
        mode = others["mode"] or "inference"
        return resolve(self.target, **sizes, input_specs=others["input_specs"], mode=mode, gpu=self.gpus[0])

    def profile(self, workload: Workload, **changes: Any) -> Profile:
        """The workload traced, with other options where ``changes`` has them."""
        from memwall.pipeline import profile

        _, given = split_sizes(self.given)
        given.pop("input_specs", None)
        with running(workload.target, self.messages):
            gpus = changes.pop("gpu", self.gpus)
            keywords = options.profile_options({**given, **changes})
            return profile(workload, gpu=gpus, **keywords)

    def retrace(self, **changes: Any) -> Profile:
        """The model with another ``attention``, on some of its GPUs, or another ``optimizer``."""
        workload = self.workload()
        if "optimizer" in changes:
            workload = replace(workload, optimizer=changes.pop("optimizer"))
        return self.profile(workload, **changes)

    def with_capture(self, profile: Profile, workload: Workload, sizes: dict[str, int]) -> Profile:
        """The profile with what TorchDynamo makes of the model, and of another call with inputs of other ``sizes``
        where any are given."""
        from memwall.pipeline import with_capture

        with running(self.target, self.messages):
            others = [self.workload(**sizes).inputs] if sizes else []
            return with_capture(profile, workload, self.given, others)


def make_profile(
    target: str, names: Sequence[str | Gpu], workload: dict[str, Any], messages: Messages, *, beside: bool = False
) -> Profile:
    """The profile of a target on the GPUs named, traced or simulated again from a saved record; ``beside`` others:
    without the policies that are of other programs. Raises ``UsageError``: an option that does not go with a saved
    record, or as :func:`memwall.profile`."""
    keywords = options.profile_options(workload, "" if (saved := is_record(target)) else "inference")
    if saved:
        return _again(target, names, keywords, messages)
    gpus = None if keywords.get("cluster") and not names else chosen_gpus(names, messages.say)
    with running(target, messages):
        from memwall.pipeline import profile, profile_beside

        if beside:
            policies = keywords.pop("policy", None) or ["eager"]
            return profile_beside(target, gpus, policies, keywords)
        return profile(target, gpu=gpus, **keywords)


def _again(target: str, names: Sequence[str | Gpu], keywords: dict[str, Any], messages: Messages) -> Profile:
    """A saved profile on the GPUs given, else as it was saved. Needs neither torch nor the model."""
    from memwall.pipeline import of_another_gpu, resimulate
    from memwall.record.profile import Profile

    policies = keywords.pop("policy", None)
    strict, cuda_graph = keywords.pop("strict", False), keywords.pop("cuda_graph", False)
    host, cluster = keywords.pop("host", None), keywords.pop("cluster", None)
    options.refuse(keywords, f"{target} is already traced; profile the model again")
    saved = Profile.load(target)
    if strict and saved.coverage.unmodeled:
        raise UsageError(f"--strict: no formula models {', '.join(saved.coverage.unmodeled)}")
    if not names and not policies and not cuda_graph and host is None and cluster is None:
        return saved
    gpus, policies = load_gpus(names) or saved.gpus, policies or saved.policies or ["eager"]
    if doubt := of_another_gpu(saved, gpus):
        messages.warn(doubt)
    messages.progress(f"simulating {saved.workload.name} on {', '.join(gpu.name for gpu in gpus)}")
    with running(target, messages):  # a compiler may have something to say
        made = resimulate(saved, gpus, policies, cuda_graph=cuda_graph, host=host, cluster=cluster)
    warn_of_doubts(made, gpus, messages)
    return made


def warn_of_doubts(profile: Profile, gpus: Sequence[Gpu], messages: Messages) -> None:
    """A line for what of a saved trace may not hold on each GPU."""
    for gpu in gpus:
        for doubt in profile.doubts(gpu):
            messages.warn(doubt)


@contextlib.contextmanager
def running(target: str, messages: Messages) -> Iterator[None]:
    """The user's model, or a compiler, at work: what it prints goes to standard error, also what a library or a child
    process writes to file descriptor 1, so that standard output has the result alone; its progress is cleared after it.
    Raises ``MemwallError``: it left by ``sys.exit``, which is no result, whatever its code."""
    try:
        with contextlib.redirect_stdout(sys.stderr), _descriptor_to_stderr():
            yield
    except (SystemExit, GeneratorExit) as error:
        from memwall.frontend.targets.blame import blame

        raise blame(error, f"running {target}") from error
    finally:
        messages.clear()


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
    for place in (path.parent, path, path.parent / ".gitignore"):
        if place.is_symlink():  # of somebody's clone, perhaps, and into any folder of this machine
            messages.warn(f"the record is not kept for memwall compare: {place} is a link; remove it")
            return
    try:
        if not path.parent.is_dir():
            path.parent.mkdir()
            (path.parent / ".gitignore").write_text("*\n", encoding="utf-8")
        messages.progress(f"writing {path}")
        profile.save(path)
    except (OSError, UsageError) as error:
        reason = getattr(error, "strerror", None) or str(error).removesuffix("; nothing was written")
        messages.warn(f"the record is not kept for memwall compare: {reason}")
    else:
        messages.say(f"record kept in {path}; memwall compare --gpu a100 h100 uses it")
