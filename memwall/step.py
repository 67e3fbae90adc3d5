"""The question of ``memwall profile``: one step of a model, how it is traced and how it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypedDict

from memwall.core.question import Option
from memwall.frontend.targets.sizes import MODES
from memwall.hardware.host import Host
from memwall.hardware.links import Cluster
from memwall.hardware.torch_versions import BACKENDS, FLASH, NEWEST, TORCH

#: backends of scaled dot-product attention, and what its flash backend can be switched to; ``auto`` takes what torch
#: would on each GPU
ATTENTION = ("auto", *BACKENDS, *FLASH)


class SampleInputs(TypedDict, total=False):
    """How long a sample is, and its dtypes: of every question that traces a step."""

    seq: Annotated[int | None, Option(None, "Handed to the file's inputs(seq=...).", least=1, metavar="N")]
    dtype: Annotated[
        str | None,
        Option(None, "Cast the model and its floating inputs: bf16, fp16, fp32.", metavar="DTYPE", completes="dtypes"),
    ]
    autocast: Annotated[
        str | None,
        Option(None, "Run forward under CUDA's autocast: bf16 or fp16.", metavar="DTYPE", completes="dtypes"),
    ]


class HostOption(TypedDict, total=False):
    """What issues kernels."""

    host: Annotated[
        str | Path | Host | None,
        Option(
            None,
            "The CPU that issues kernels: bare-metal, cloud-vm, or the path of a TOML file. [default: bare-metal]",
            metavar="NAME",
            completes="hosts",
        ),
    ]


class Step(SampleInputs, HostOption, total=False):
    """One step of a model, as keywords of :func:`memwall.profile`; what is not given has the default of its option.

    Attributes:
        mode: ``inference`` (``eval()``, forward), ``training`` (``train()``, forward, loss, backward, optimizer
            step), ``forward``: the module as it stands, gradients enabled, and what they need kept in memory; or, of a
            language model, ``prefill`` (a prompt that fills a cache) or ``decode`` (one more token with a cache).
        no_grad: without gradients; of ``forward`` alone.
        batch, seq: passed to the target's functions that take them; so are the following four.
        image: height and width in pixels, as in ``"1024x1024"``.
        images: images of a sample.
        video: frames of a video.
        seconds: length of a sound.
        prompt, context: of ``prefill`` the tokens of a prompt, of both modes the tokens that the cache holds before.
        dtype: cast parameters and floating inputs to this first.
        autocast: run forward under CUDA's autocast to this dtype.
        input_specs: strings such as ``f32[8,3,224,224]`` in place of the target's inputs.
        dims: symbolic sizes of an ONNX file: ``{"batch": 8}`` or strings such as ``batch=8``.
        optimizer: a name (``adamw``, ``adam``, ``sgd``; ``:fused``, ``:foreach`` or ``:loop`` appended), a function of
            the parameters, or None to stop after backward. A target's own ``optimizer`` wins over the default.
        attention: the SDPA backend; ``auto`` takes what torch would on each GPU.
        torch: the version of torch that runs, such as ``2.13``, with the CUDA and cuDNN that its wheel brings; it
            decides between kernels. The version that is installed traces all the same.
        cuda_graph: the step is captured once and replayed: no kernel waits for the CPU.
        assume: what holds where activations decide, such as ``nonzero=0.5``, ``experts=balanced``, ``rounded=4``,
            ``number=1``, ``condition=true``, or ``encoder.*:nonzero=0.1`` for some modules; of Triton kernels
            ``trips=8``, ``config=2``; or of the machine, ``kernels=installed``; ``notes`` state what was used.
        real: trace small real tensors, for models whose Python depends on data.
        max_ops: stop a runaway trace.
        replay: trace repeated blocks once; False traces every one.
        strict: refuse a model with ops that no formula models.
        host: what issues the kernels: a name (``bare-metal``, ``cloud-vm``), a spec or the path of one; None takes
            bare-metal, or what a GPU's file states.
        cluster: how the GPUs are joined that the program runs on: a name (``dgx-h100``), a spec or the path of one.
            None takes the one that memwall knows with the GPU where ``world`` is given.
        world: the program is one of so many that ``torchrun`` starts, and is traced as ``rank`` of them.
    """

    mode: Annotated[
        str,
        Option(
            "inference",
            "[default: inference] forward: the module as it stands, no eval(); prefill, decode: a step with a cache.",
            choices=MODES,
        ),
    ]
    no_grad: Annotated[bool, Option(False, "With --mode forward: no gradients will be taken.")]
    batch: Annotated[int | None, Option(None, "Handed to the file's inputs(batch=...).", least=1, metavar="N")]
    prompt: Annotated[int | None, Option(None, "Tokens of a prompt: prefill_inputs(prompt=...).", least=1, metavar="N")]
    context: Annotated[
        int | None,
        Option(None, "Tokens in the cache before the step: decode_inputs(context=...).", least=1, metavar="N"),
    ]
    image: Annotated[
        str | int | tuple[int, int] | None,
        Option(None, "Pixels of an image, such as 1024x1024: inputs(image=(1024, 1024)).", metavar="HxW"),
    ]
    images: Annotated[int | None, Option(None, "Images of a sample: inputs(images=...).", least=1, metavar="N")]
    video: Annotated[int | None, Option(None, "Frames of a video: inputs(video=...).", least=1, metavar="N")]
    seconds: Annotated[float | None, Option(None, "Length of a sound: inputs(seconds=...).", metavar="S")]
    input_specs: Annotated[
        Sequence[str],
        Option(
            (),
            "An input, such as 'f32[8,3,224,224]' or 'ids=i64[8,512]', in place of the file's. May be repeated.",
            flag="input",
            metavar="SPEC",
            several="again",
        ),
    ]
    dims: Annotated[
        Sequence[str] | Mapping[str, int],
        Option(
            (),
            "A symbolic size of an ONNX file, such as batch=8. May be repeated.",
            flag="dim",
            metavar="NAME=N",
            several="again",
        ),
    ]
    optimizer: Annotated[
        str | Callable[..., Any] | None,
        Option(
            "adamw", "adamw, adam, sgd or none, with :fused, :foreach or :loop, in place of the file's.", metavar="NAME"
        ),
    ]
    attention: Annotated[str, Option("auto", "[default: auto]", choices=ATTENTION)]
    torch: Annotated[
        str,
        Option(
            NEWEST,
            f"The version of torch whose kernels run, with its CUDA and cuDNN. [default: {NEWEST}]",
            choices=tuple(TORCH),
        ),
    ]
    cuda_graph: Annotated[bool, Option(False, "Replay the step as a CUDA graph: no kernel waits for the CPU.")]
    assume: Annotated[
        str | Sequence[str],
        Option(
            (),
            "What holds where activations decide: nonzero=0.5 experts=balanced rounded=4 number=1 boxes=0.5"
            " condition=true; kernels=torch.",
            metavar="[MODULES:]WHAT=VALUE...",
            several="words",
        ),
    ]
    real: Annotated[bool, Option(False, "Trace on real CPU tensors, for models that read their own data.")]
    max_ops: Annotated[int, Option(200_000, "Stop a runaway trace. [default: 200000]", least=1, metavar="N")]
    replay: Annotated[bool, Option(True, "Trace every block, also blocks that repeat.")]
    strict: Annotated[bool, Option(False, "Fail if any op has no formula.", internal=True)]
    cluster: Annotated[
        str | Path | Cluster | None,
        Option(
            None,
            "How the GPUs of a program are joined: see memwall clusters, or the path of a TOML file.",
            metavar="NAME",
            completes="clusters",
        ),
    ]
    world: Annotated[int | None, Option(None, "The program is one of N that torchrun starts.", least=1, metavar="N")]
    rank: Annotated[
        int, Option(0, "The rank that is traced. [default: 0; of a pipeline all that differ]", least=0, metavar="R")
    ]
