"""A target that is a model: traced, traced again in another form, and captured by TorchDynamo."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from memwall.cli import options
from memwall.cli.output import Messages
from memwall.cli.target import running

if TYPE_CHECKING:
    from memwall.frontend.workload import Workload
    from memwall.hardware.lookup import Gpu
    from memwall.record.profile import Profile


@dataclass(frozen=True)
class Model:
    """A target, the options that say how to trace it, and the GPUs to simulate it on."""

    target: str
    given: dict[str, Any]
    gpus: Sequence[Gpu]
    messages: Messages

    def workload(self, **sizes: int) -> Workload:
        """The workload that the target names, with another ``batch`` or ``seq`` where given."""
        from memwall.frontend.workload import resolve

        given = {**self.given, **sizes}
        inputs = {key: given[key] for key in ("batch", "seq", "input_specs")}
        return resolve(self.target, **inputs, mode=given["mode"] or "inference")

    def profile(self, workload: Workload, **changes: Any) -> Profile:
        """The workload traced, with other options where ``changes`` has them."""
        from memwall.pipeline import profile

        given = {key: value for key, value in self.given.items() if key not in ("batch", "seq", "input_specs")}
        with running(workload.target, self.messages):
            keywords = options.profile_options({**given, **changes})
            return profile(workload, gpu=self.gpus, progress=self.messages.progress, **keywords)

    def retrace(self, **changes: Any) -> Profile:
        """The model with another ``attention`` or ``optimizer``."""
        workload = self.workload()
        if "optimizer" in changes:
            workload = replace(workload, optimizer=changes.pop("optimizer"))
        return self.profile(workload, **changes)

    def with_capture(self, profile: Profile, workload: Workload, sizes: dict[str, int]) -> Profile:
        """The profile with what TorchDynamo makes of the model, and of another call with inputs of other ``sizes``
        where any are given."""
        from memwall.pipeline import with_capture

        with running(self.target, self.messages):
            self.messages.progress(f"tracing {workload.name} under TorchDynamo")
            others = [self.workload(**sizes).inputs] if sizes else []
            return with_capture(profile, workload, self.given, others)
