"""What does not go together: options of a step with each other, with a GPU, with a policy or with a kind of program."""

from __future__ import annotations

from collections.abc import Sequence

from memwall.core.errors import UsageError
from memwall.core.question import options_of
from memwall.frontend.program import Program
from memwall.frontend.targets.sizes import MODES
from memwall.fusion.policies import COMPILED, COMPILING, POLICIES, REWRITING
from memwall.hardware.chips import chip_of
from memwall.hardware.lookup import Gpu
from memwall.hardware.torch_versions import FLASH, TORCH, torch_version
from memwall.ops.sdpa import runs_on
from memwall.step import ATTENTION, Step


def applying_policies(policies: Sequence[str], is_program: bool, name: str, *, beside: bool = False) -> Sequence[str]:
    """The policies; of policies that are asked for ``beside`` other targets, the ones that a PyTorch module, or another
    program, can run under. Raises ``UsageError``: it cannot under one, or under none."""
    others = (*COMPILED, *REWRITING) if is_program else tuple(COMPILING)
    left = [policy for policy in policies if policy not in others]
    if left if beside else len(left) == len(policies):
        return left
    wrong = next(policy for policy in policies if policy in others)
    if is_program:
        able = ", ".join(policy for policy in POLICIES if policy not in others)
        raise UsageError(f"policy {wrong} is of PyTorch modules, and {name} is another program; take one of {able}")
    raise UsageError(
        f"policy {wrong} compiles a JAX program or StableHLO, and {name} is a PyTorch module; torchax makes a JAX"
        " function of one, where it knows the torch that is installed"
    )


def check_step(asked: Step, gpus: Sequence[Gpu]) -> None:
    """Check the options of a step. Raises ``UsageError``: a value is not among the choices of its option, or an option
    conflicts with another option or with a GPU."""
    _check("mode", asked["mode"], MODES)
    if asked["no_grad"] and asked["mode"] != "forward":
        raise UsageError("no_grad goes with mode 'forward': inference takes no gradients, and training needs them")
    if asked["mode"] != "training" and asked["optimizer"] not in (None, "adamw"):
        raise UsageError(f"optimizer goes with mode 'training'; mode {asked['mode']!r} has no step of an optimizer")
    _check("attention", asked["attention"], ATTENTION)
    _check("torch", asked["torch"], tuple(TORCH))
    for each in gpus:
        _check_attention(asked["attention"], each, asked["torch"])


#: options of a step that PyTorch alone knows
_OF_TORCH = ("autocast", "no_grad", "attention", "torch", "real", "replay")


def refuse_options_of_torch(program: Program, asked: Step) -> None:
    """Raises ``UsageError``: an option is given that only a PyTorch module has a use for."""
    for name in _OF_TORCH:
        said = options_of(Step)[name]
        if asked.get(name) != said.default:
            raise UsageError(
                f"{program.target or program.name} is {program.kind}, which has no use for --{said.spelled}"
            )


def _check_attention(attention: str, gpu: Gpu, torch: str) -> None:
    """Raises ``UsageError``: this version of torch has no such attention kernel, or none for the GPU."""
    runs = runs_on(chip_of(gpu))
    if attention in FLASH and torch_version(torch).number < FLASH[attention][1]:
        name, since, _ = FLASH[attention]
        raise UsageError(
            f"attention {attention!r}: torch can be switched to {name} since {since[0]}.{since[1]}, not {torch}"
        )
    if attention not in ("auto", *runs):
        needs = "; torch's flash attention needs 8.0" if attention == "flash" else ""
        raise UsageError(
            f"attention {attention!r}: torch has no such kernel for {gpu.name} (compute capability"
            f" {gpu.compute_capability or 'unknown'}{needs}); take {' or '.join(runs)}, or auto"
        )


def _check(option: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise UsageError(f"{option} is {value!r}; want one of {', '.join(choices)}")
