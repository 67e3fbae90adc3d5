"""Profilers' names over six years: event categories, argument names, kernels that communicate, frames.

Spellings are compared without case and punctuation: ``cpu_op`` and ``Operator`` are in the tables, ``"External id"``
and ``"external id"`` are one entry. The names are from Kineto's ``ActivityType`` and the traces under test.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

OP, ANNOTATION, MODULE, FRAME, PYTHON, RUNTIME, OVERHEAD, KERNEL, MEMCPY, MEMSET = range(10)

#: category of an event with a duration -> what it is; others are skipped
_KINDS: Mapping[str, int] = {
    "cpuop": OP, "operator": OP, "cpufunctions": OP,
    "userannotation": ANNOTATION,
    "pythonfunction": PYTHON,
    "cudaruntime": RUNTIME, "cudadriver": RUNTIME, "runtime": RUNTIME, "driver": RUNTIME,
    "hipruntime": RUNTIME, "hipdriver": RUNTIME, "xpuruntime": RUNTIME, "xpudriver": RUNTIME,
    "privateuse1runtime": RUNTIME, "privateuse1driver": RUNTIME,
    "overhead": OVERHEAD,
    "kernel": KERNEL, "concurrentkernel": KERNEL, "gpukernel": KERNEL, "cudafunctions": KERNEL,
    "gpumemcpy": MEMCPY, "memcpy": MEMCPY,
    "gpumemset": MEMSET, "memset": MEMSET,
}  # fmt: skip

#: categories of the arrows from a launch to its kernel
_FLOWS = ("ac2g", "async", "asynccpu2gpu", "asynccputogpu", "asyncgpu", "cputocuda", "cputohip")

#: argument -> its name in this package
_ARGUMENTS: Mapping[str, str] = {
    "correlation": "correlation", "correlationid": "correlation",
    "externalid": "external", "externalcorrelationid": "external",
    "sequencenumber": "sequence", "fwdthreadid": "forward_thread",
    "inputdims": "dims", "inputshapes": "dims",
    "inputtype": "types", "inputtypes": "types",
    "inputstrides": "strides", "concreteinputs": "concrete", "callstack": "stack",
    "device": "device", "deviceid": "device", "stream": "stream", "streamid": "stream",
    "grid": "grid", "block": "block", "bytes": "bytes",
    "kernelfile": "kernel_file", "kernelhash": "kernel_hash", "kernelbackend": "kernel_backend",
    "kernelname": "kernel_name", "kernelkwargs": "kernel_kwargs", "numwarps": "num_warps",
    "numstages": "num_stages", "graphid": "graph id", "graphnodeid": "graph node id",
    "collectivename": "Collective name", "inmsgnelems": "In msg nelems", "outmsgnelems": "Out msg nelems",
    "insplitsize": "In split size", "outsplitsize": "Out split size", "groupsize": "Group size",
    "dtype": "dtype", "processgroupname": "Process Group Name", "rank": "Rank",
    # of XLA's profiler, as traces/xla/lanes.py hands them on
    "hloop": "hlo_op", "hlomodule": "hlo_module", "programid": "program_id", "opname": "op_name", "tfop": "tf_op",
    "hlocategory": "hlo_category", "longname": "long_name", "xlaflops": "flops", "modelflops": "model_flops",
    "bytesaccessed": "bytes_accessed", "xlasource": "source", "asynchronous": "asynchronous",
}  # fmt: skip

#: arguments that are passed through, of Triton kernels, graphs and collectives: all that have no field of their own
ATTRIBUTES = frozenset(_ARGUMENTS.values()).difference(
    ("correlation", "external", "sequence", "forward_thread", "dims", "types", "strides", "concrete", "stack", "device",
     "block", "bytes", "source")
)  # fmt: skip

#: kernels that move data between GPUs, by the name of their library (NCCL, RCCL, MSCCL, NVSHMEM, MORI, Transformer
#: Engine's userbuffers), by what sends tokens to experts (DeepEP, in whatever namespace; TensorRT-LLM), and by what
#: vLLM, SGLang, AITER and torch's symmetric memory reduce with
_COMMUNICATION = re.compile(
    r"nccl(Kernel|DevKernel|_dev|Symk)|\brcclGeneric|mscclKernel|\bmscclpp\b|nvshmem|userbuffers_"
    r"|deep_ep::|hybrid_ep::|\b(inter|intra)node(_ll)?::|\bmoeA2A|\bEp(Dispatch|Combine)(Inter|Intra)Node"
    r"|cross_device_(reduce|store)|multimem_(all|one|two)|quickreduce|symm_mem",
    re.IGNORECASE,
)
#: kernels named after a collective, alone or fused with what follows it; not after a product, nor a part of one GPU
_COLLECTIVE = re.compile(r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all", re.IGNORECASE)
_WITHIN_A_GPU = re.compile(r"^triton_(poi|red|per|tem)_|gemm|matmul|warp_?all|block_?all", re.IGNORECASE)
#: where a kernel's own name ends
_TEMPLATE = re.compile(r"[<(]")

#: kind of a runtime call that fills a gap, by name, the first match
_WAITS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("sync", re.compile(r"Synchronize|EventQuery|StreamQuery|hipMemcpyWithStream|(cuda|hip)Memcpy(2D|3D)?$")),
    ("allocation", re.compile(r"Malloc|Free|HostAlloc|HostRegister|MemCreate|MemMap|MemRelease|MemUnmap")),
    ("first launch", re.compile(r"Module(Load|GetFunction)|LibraryLoad|FuncGetAttributes|Lazy|Module Loading")),
    ("graph build", re.compile(r"GraphInstantiate|StreamEndCapture|GraphExecUpdate")),
)

_PUNCTUATION = re.compile(r"[^a-z0-9]+")

#: most spellings cached: a hostile file has no end of them
_MOST_SPELLINGS = 4096


class Spellings(dict[str, str]):
    """Any spelling of an argument -> its name in this package, "" for one that is not used."""

    def __missing__(self, key: str) -> str:
        value = _ARGUMENTS.get(_squeezed(key), "")
        if len(self) < _MOST_SPELLINGS:
            self[key] = value
        return value


@lru_cache(maxsize=1 << 12)
def kind_of(category: str) -> int | None:
    """The kind of an event of this category; torch before Kineto wrote "CPU functions" as its process instead."""
    return _KINDS.get(_squeezed(category[:64]))


@lru_cache(maxsize=256)
def is_launch_flow(category: str) -> bool:
    """Whether an arrow of this category goes from a launch to a kernel (others join forward and backward)."""
    return _squeezed(category[:64]) in _FLOWS


def is_op_name(name: str) -> bool:
    """Whether an event among the ops is named as ops are: ``aten::add``, the class of an autograd.Function, a Triton
    kernel. Others are ranges that torch or, before 2021, a program marked: ``Torch-Compiled Region: 0/0``."""
    return " " not in name and ("::" in name or name.isidentifier())


@lru_cache(maxsize=1 << 16)
def is_communication(kernel: str) -> bool:
    """Whether a kernel of this name exchanges data with other GPUs."""
    own = _TEMPLATE.split(kernel, 1)[0]
    named = _COLLECTIVE.search(own) is not None and _WITHIN_A_GPU.search(own) is None
    return named or _COMMUNICATION.search(kernel) is not None


def wait_of(call: str) -> str:
    """What a runtime call makes the CPU wait for: "sync", "allocation", ...; "" if it only queues."""
    return next((what for what, pattern in _WAITS if pattern.search(call)), "")


def _squeezed(text: str) -> str:
    return _PUNCTUATION.sub("", text.lower())


# ---- Python frames: the user's is the innermost that lies neither in torch nor in Python's own library

#: "transformers/models/bert/modeling_bert.py(250): transpose_for_scores"
_FRAME = re.compile(r"^(?P<file>[^()<>]+\.pyx?)\((?P<line>\d+)\): (?P<function>.+)$")

#: an installation's prefix of a package: dropped, so that a source names no machine
_PREFIX = re.compile(r"^.*/(?:site-packages|dist-packages|python3\.\d+)/")

#: packages whose frames are between a user's line and the op
_LIBRARIES = frozenset(
    (
        "torch", "functorch", "torchgen", "triton", "abc", "ast", "asyncio", "collections", "concurrent", "contextlib",
        "copy", "dataclasses", "enum", "functools", "importlib", "inspect", "logging", "multiprocessing", "queue", "re",
        "runpy", "selectors", "threading", "traceback", "typing", "typing_extensions", "warnings", "weakref",
    )
)  # fmt: skip


@lru_cache(maxsize=1 << 16)
def user_frame(name: str) -> str:
    """``"file(line): function"`` of a recorded Python frame, "" if it is a library's or not a frame."""
    found = _FRAME.match(name)
    if found is None:
        return ""
    file = _PREFIX.sub("", found["file"])
    package = file.partition("/")[0].removesuffix(".py")
    return "" if package in _LIBRARIES else f"{file}({found['line']}): {found['function']}"


@lru_cache(maxsize=1 << 12)
def user_frame_of_stack(stack: str) -> str:
    """The same of a ``Call stack`` argument: frames joined by ``;``, innermost first."""
    return next((frame for frame in map(user_frame, stack.split(";")) if frame), "")
