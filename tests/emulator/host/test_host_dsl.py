"""PTX is kept without environment variables, in any order of imports, and leaves no trace elsewhere."""

import glob
import subprocess
import sys
import tempfile
import textwrap

import pytest

from mxfp8fa.emulator.host import HostError, install, ptx_of

torch = pytest.importorskip("torch")
cute = pytest.importorskip("cutlass.cute")
runtime = pytest.importorskip("cutlass.cute.runtime")


def compile_fill(programs, **options):
    return cute.compile(programs.preferred_cluster, runtime.from_dlpack(torch.zeros(512)), **options)


def test_the_text_is_kept_and_no_file(programs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = set(glob.glob(f"{tempfile.gettempdir()}/mxfp8fa-ptx-*"))
    compiled = compile_fill(programs)
    assert ".visible .entry" in ptx_of(compiled) and ".target sm_1" in compiled.__ptx__
    assert not list(tmp_path.iterdir()) and set(glob.glob(f"{tempfile.gettempdir()}/mxfp8fa-ptx-*")) == before


def test_the_settings_of_the_dsl_stay_as_they_were(programs):
    from cutlass.base_dsl.compiler import KeepPTX
    from cutlass.cutlass_dsl import CuTeDSL

    dsl = CuTeDSL._get_dsl()
    before = (dsl.envar.keep_ptx, dsl.envar.disable_file_caching, dsl.envar.no_cache)
    compile_fill(programs)
    assert (dsl.envar.keep_ptx, dsl.envar.disable_file_caching, dsl.envar.no_cache) == before
    assert not cute.compile._compile_options.options[KeepPTX].value


def test_a_user_s_own_request_is_honoured(programs, tmp_path):
    compiled = compile_fill(programs, options=f"--keep-ptx --dump-dir={tmp_path}")
    (written,) = tmp_path.glob("*.ptx")
    assert written.read_text().rstrip("\0") == ptx_of(compiled).rstrip("\0")


def test_other_options_compose(programs):
    assert ".loc" in ptx_of(compile_fill(programs, options="--generate-line-info"))


def test_installing_again_changes_nothing():
    from cutlass.base_dsl.dsl import BaseDSL

    before = BaseDSL.compile_and_cache
    install()
    assert BaseDSL.compile_and_cache is before


def test_a_function_without_ptx_is_named():
    class Compiled:
        function_name = "my_function"
        __ptx__ = None

    with pytest.raises(HostError, match="my_function was compiled without keeping its PTX"):
        ptx_of(Compiled())


def test_importing_the_emulator_before_the_dsl(tmp_path):
    """The other order is what every test here does."""
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent("""
        import sys
        import numpy
        import mxfp8fa.emulator
        import cutlass.cute as cute
        from cutlass.cute.runtime import from_dlpack

        @cute.kernel
        def kernel(a: cute.Tensor):
            a[0] = 1.0

        @cute.jit
        def function(a: cute.Tensor):
            kernel(a).launch(grid=(1, 1, 1), block=(1, 1, 1))

        tensor = from_dlpack(numpy.zeros(4, numpy.float32)[1:])
        print(".entry" in cute.compile(function, tensor).__ptx__)
        print(mxfp8fa.emulator.host.memory_ranges((tensor,))[0].size_bytes)
        print([type(f).__name__ for f in sys.meta_path if "AfterImport" in type(f).__name__])
        """)
    )
    result = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=120, check=False)
    assert result.stdout.split("\n")[:3] == ["True", "16", "[]"], result.stderr


def test_the_package_needs_numpy_only():
    code = (
        "import sys\n"
        "for name in ('torch', 'cutlass', 'llvmlite', 'cuda', 'tvm_ffi'): sys.modules[name] = None\n"
        "import mxfp8fa.emulator.host as host, numpy\n"
        "print(host.memory_ranges((numpy.zeros(4),))[0].size_bytes, type(host.as_cuda(numpy.zeros(2))).__name__)\n"
        "with host.cuda_shims(): pass\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert result.stdout == "32 CudaArray\n", result.stderr
