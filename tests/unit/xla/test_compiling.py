"""Programs compiled for devices that are not here. They need JAX and the wheels of its compilers, and say so."""

import importlib.util
import os
import subprocess
import sys
import tempfile

import pytest

from memwall.core.errors import MissingError, UsageError
from memwall.hardware.lookup import load_gpu
from memwall.xla import compiling
from memwall.xla.compiled import compiled
from memwall.xla.compiling import compile_program
from memwall.xla.target import XlaTarget, target_of


def has(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


needs_cuda = pytest.mark.skipif(
    not (has("jax") and has("flatbuffers") and has("jax_plugins.xla_cuda12")),
    reason="needs JAX, flatbuffers and jax-cuda12-plugin: pip install 'memwall-roofline[xla-cuda]'",
)
needs_tpu = pytest.mark.skipif(
    not (has("jax") and has("flatbuffers") and has("libtpu")),
    reason="needs JAX, flatbuffers and libtpu: pip install 'memwall-roofline[xla-tpu]'",
)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MEMWALL_CACHE", str(tmp_path / "cache"))


#: JAX has threads, and a process of tests forks: another one exports
EXPORT = """
import sys
import jax, jax.numpy as jnp
from jax import export

def step(p, x, n):
    return p + x.sum(0), n + 1

shapes = [((1024,), jnp.float32), ((64, 1024), jnp.float32), ((), jnp.int32)]
arguments = [jax.ShapeDtypeStruct(*shape) for shape in shapes]
for platform in ("cuda", "tpu"):
    made = export.export(jax.jit(step, donate_argnums=0), platforms=[platform])(*arguments)
    open(f"{sys.argv[1]}/{platform}", "wb").write(made.serialize())
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """The bytes of ``p + x.sum(0), n + 1``, whose first argument is donated, for a platform."""
    folder = tmp_path_factory.mktemp("exported")
    subprocess.run([sys.executable, "-c", EXPORT, folder], env={**os.environ, "JAX_PLATFORMS": "cpu"}, check=True)
    return lambda platform: (folder / platform).read_bytes()


@needs_cuda
@pytest.mark.slow
class TestForAGpu:
    def test_buffers_are_those_of_the_assignment(self, program):
        made = compile_program(program("cuda"), target_of(load_gpu("a100-80gb-sxm")))
        assert made.argument_bytes == 4 * (1024 + 64 * 1024 + 1)
        assert made.alias_bytes == 4 * 1024  # the donated argument's memory is the first result's

    def test_a_result_is_kept(self, program, monkeypatch):
        artifact, target = program("cuda"), target_of(load_gpu("v100-sxm2-16gb"))
        made = compile_program(artifact, target)
        monkeypatch.setattr(compiling, "_compile", None)
        assert compile_program(artifact, target) == made

    def test_nothing_is_left_in_the_temporary_folder(self, program, tmp_path, monkeypatch):
        folder = tmp_path / "temporary"
        folder.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        compile_program(program("cuda"), target_of(load_gpu("p100-sxm2-16gb")))
        assert not [*folder.iterdir()]

    def test_a_program_of_another_platform_is_refused(self, program):
        with pytest.raises(UsageError, match="the program was exported for tpu, not for cuda"):
            compile_program(program("tpu"), target_of(load_gpu("h100-sxm")))

    def test_what_is_no_program_is_refused(self):
        with pytest.raises(UsageError, match=r"^not a program that jax\.export serialized[^\n]*$"):
            compile_program(b"junk", target_of(load_gpu("h100-sxm")))

    def test_a_target_that_xla_cannot_read_is_one_line(self, program):
        with pytest.raises(UsageError, match=r"^XLA does not compile it: [^\n]*GpuTargetConfigProto[^\n]*$"):
            compile_program(program("cuda"), XlaTarget("cuda", "nonsense { }"))

    def test_the_compiler_has_a_limit(self, program):
        with pytest.raises(UsageError, match="took longer than its limit of 0 s"):
            compile_program(program("cuda"), target_of(load_gpu("h100-sxm")), limit_s=0.01)


@needs_tpu
@pytest.mark.slow
def test_for_a_tpu_arrays_have_tiles(program):
    made = compile_program(program("tpu"), XlaTarget("tpu", "v5e"))
    assert "f32[64,1024]{1,0:T(8,128)" in made.text


def not_exported():
    raise AssertionError("a program is exported that nothing can compile")


@pytest.mark.parametrize(
    ("gpu", "lacks", "brought", "extra"),
    [
        ("h100-sxm", "jax", "jax", "xla-cuda"),
        ("h100-sxm", "jax_plugins", "XLA's compiler for cuda", "xla-cuda"),
        ("tpu-v5e", "libtpu", "XLA's compiler for tpu", "xla-tpu"),
        ("tpu-v5e", "flatbuffers", "flatbuffers", "xla-tpu"),
    ],
)
def test_what_is_not_installed_is_named_with_its_extra(monkeypatch, gpu, lacks, brought, extra):
    monkeypatch.setattr(compiling, "_has", lambda module: module.partition(".")[0] != lacks)
    with pytest.raises(MissingError, match=rf"needs {brought}, .* pip install '.*\[{extra}\]'"):
        compiled(lambda platform: not_exported, load_gpu(gpu))
