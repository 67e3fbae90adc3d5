"""A program of many GPUs: the ranks whose steps differ, each traced.

The ranks of a pipeline differ in their stages. Each one's modules are built, which takes a moment, and ranks whose
modules are like another's (:mod:`memwall.frontend.torch.ranks.outlines`) are not traced. All ranks of a program without
a pipeline are taken to do what the traced one does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from memwall.core.progress import tell
from memwall.frontend.targets.seeds import seeded
from memwall.hardware.lookup import DEFAULT_GPU, Gpu, load_gpu
from memwall.pipeline import started
from memwall.record.profile import Profile
from memwall.subjects import workload_of


def profile_ranks(
    made: Profile, target: Any, options: Mapping[str, Any], trace: Callable[[int], Profile]
) -> dict[int, Profile]:
    """Each rank of the pipeline of a profiled one, with its profile, or the profile of an earlier rank that does the
    same; nothing of a program without a pipeline.

    Args:
        made: the profile of one rank.
        target, options: as of :func:`memwall.profile`, which made it.
        trace: the profile of another rank.

    Raises:
        UsageError: as :func:`memwall.profile`, of any of the ranks.
    """
    pipeline = made.traced.pipeline
    if pipeline is None or len(pipeline.ranks) < 2:
        return {}
    tell(f"tracing which of {len(pipeline.ranks)} ranks differ")
    like, job = ranks_alike(made, target, options), made.traced.job
    profiles = {job.rank: made} if job else {}
    return {rank: profiles[of] if of in profiles else profiles.setdefault(of, trace(of)) for rank, of in like.items()}


def ranks_alike(made: Profile, target: Any, options: Mapping[str, Any]) -> dict[int, int]:
    """Each rank of the pipeline of a profiled one, with the first that builds modules like its own; arguments and
    errors as of :func:`profile_ranks`."""
    from memwall.frontend.torch.ranks.outlines import alike, outline_of

    pipeline, job = made.traced.pipeline, made.traced.job
    if pipeline is None or job is None:
        return {}
    gpu: Gpu = made.gpus[0] if made.gpus else load_gpu(DEFAULT_GPU)
    outlines = {}
    for rank in pipeline.ranks:
        with seeded(), started(job.world, rank, gpu):
            workload = workload_of(target, options, gpu, options.get("inputs"), options.get("loss"))
            outlines[rank] = outline_of(workload, gpu)
    return alike(outlines)
