"""Which torch, nvcc and architectures the build chooses (cmake/target_environment.py)."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import ROOT

SCRIPT = ROOT / "cmake" / "target_environment.py"
SUPPORTED = ["80", "86", "89", "90", "100", "120"]


def load():
    spec = importlib.util.spec_from_file_location("target_environment", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


target_environment = load()


def make_torch(folder: Path, version: str = "2.11.0+cu130", cuda: str | None = "13.0"):
    package = folder / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "version.py").write_text(
        f"from typing import Optional\n__version__ = {version!r}\ncuda: Optional[str] = {cuda!r}\n"
    )
    return package


def make_nvcc(path: Path, version: str = "13.0"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {version}, V{version}.88'\n")
    path.chmod(0o755)
    return path


@pytest.fixture(autouse=True)
def no_system_toolkit(monkeypatch):
    """Only what a test makes is there, whatever this machine has in /usr/local/cuda."""
    monkeypatch.setattr(target_environment, "SYSTEM_TOOLKIT", Path("/nonexistent"))


class TestTorch:
    def test_reads_version_and_cuda(self, tmp_path):
        torch = target_environment.read_torch(make_torch(tmp_path))
        assert (torch.version, torch.cuda) == ("2.11.0+cu130", "13.0")
        assert torch.requirement == "torch==2.11.*"

    def test_reads_a_torch_without_cuda(self, tmp_path):
        torch = target_environment.read_torch(make_torch(tmp_path, "2.15.1+cpu", None))
        assert torch.cuda is None
        assert torch.requirement == "torch==2.15.*"

    def test_refuses_an_old_torch(self, tmp_path):
        package = make_torch(tmp_path, "2.9.1+cu128", "12.8")
        with pytest.raises(target_environment.BuildError, match=r"torch>=2\.11, but .* torch 2\.9"):
            target_environment.read_torch(package)

    def test_agrees_with_the_torch_that_is_imported(self):
        import torch

        found = target_environment.find_target_torch()
        assert found.directory == Path(torch.__file__).parent
        assert (found.version, found.cuda) == (torch.__version__, torch.version.cuda)

    def test_prefers_the_target_to_the_build_environment(self, tmp_path, monkeypatch):
        """As under pip's isolation: the build environment comes first in PYTHONPATH."""
        isolated = make_torch(tmp_path, "2.99.0", None).parent
        monkeypatch.setenv("PYTHONPATH", str(isolated))
        monkeypatch.syspath_prepend(isolated)
        assert target_environment.find_torch().version != "2.99.0"

    def test_takes_the_build_environments_where_the_target_has_none(self, tmp_path, monkeypatch):
        isolated = make_torch(tmp_path, "2.99.0", None).parent
        monkeypatch.syspath_prepend(isolated)
        monkeypatch.delitem(sys.modules, "torch", raising=False)
        monkeypatch.setattr(target_environment, "find_target_torch", lambda: None)
        assert target_environment.find_torch().version == "2.99.0"

    def test_says_what_to_do_where_there_is_no_torch(self, tmp_path):
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path], check=True)
        clean = {
            name: value
            for name, value in os.environ.items()
            if name not in ("PYTHONPATH", "PYTHONHOME")
        }
        result = subprocess.run(
            [tmp_path / "bin" / "python", SCRIPT], env=clean, capture_output=True, text=True
        )
        assert result.returncode == 1
        assert result.stderr.count("\n") == 1
        assert "install torch first" in result.stderr


class TestUvTarget:
    UV = "#!/bin/sh\necho $PWD $UV_PYTHON $*\n"

    @pytest.fixture
    def processes(self, tmp_path):
        """A /proc with one process, whose uv answers what it was run with."""
        uv, folder, process = tmp_path / "uv", tmp_path / "project", tmp_path / "proc" / "7"
        uv.write_text(self.UV)
        uv.chmod(0o755)
        folder.mkdir()
        process.mkdir(parents=True)
        (process / "exe").symlink_to(uv)
        (process / "cwd").symlink_to(folder)
        (process / "cmdline").write_bytes(b"uv\0pip\0install\0.\0")
        (process / "environ").write_bytes(b"UV_PYTHON=3.12\0PATH=/usr/bin:/bin\0")
        return process.parent

    def test_is_what_uv_finds_with_its_environment_and_folder(self, processes):
        found = target_environment.find_uv_target_python(7, processes)
        assert found == f"{processes.parent / 'project'} 3.12 python find"

    @pytest.mark.parametrize(
        ("arguments", "passed_on"),
        [
            (["--python", "3.10"], "3.10"),
            (["-p", "/venv/bin/python"], "/venv/bin/python"),
            (["--python=3.13"], "3.13"),
            (["--system"], "--system"),
        ],
    )
    def test_is_that_of_uvs_options(self, processes, arguments, passed_on):
        command = "\0".join(["uv", "pip", "install", *arguments, ".", ""])
        (processes / "7" / "cmdline").write_text(command)
        found = target_environment.find_uv_target_python(7, processes)
        assert found is not None
        assert found.endswith(f" python find {passed_on}")

    def test_is_none_of_another_program(self, processes):
        (processes / "7" / "exe").unlink()
        (processes / "7" / "exe").symlink_to(sys.executable)
        assert target_environment.find_uv_target_python(7, processes) is None

    def test_is_none_of_a_process_that_is_gone(self, processes):
        assert target_environment.find_uv_target_python(8, processes) is None


class TestLibraries:
    LDD = """\
/torch/lib/libtorch_cuda.so:
\tlinux-vdso.so.1 (0x00007ffc)
\tlibcudnn.so.9 => /site/torch/lib/../../nvidia/cudnn/lib/libcudnn.so.9 (0x00007f1)
\tlibcudart.so.13 => /site/torch/lib/../../nvidia/cu13/lib/libcudart.so.13 (0x00007f2)
\tlibcublasLt.so.13 => /site/torch/lib/../../nvidia/cu13/lib/libcublasLt.so.13 (0x00007f5)
\tlibcupti.so.13 => not found
\tlibcudnn_graph.so.9 => /elsewhere/libcudnn_graph.so.9 (0x00007f3)
\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f4)
"""

    def test_are_those_that_the_loader_resolves(self, tmp_path, monkeypatch):
        ldd = tmp_path / "bin" / "ldd"
        ldd.parent.mkdir()
        ldd.write_text(f"#!/bin/sh\necho $* > {tmp_path}/asked\ncat <<'END'\n{self.LDD}END\n")
        ldd.chmod(0o755)
        monkeypatch.setenv("PATH", str(ldd.parent), prepend=os.pathsep)
        torch = target_environment.read_torch(make_torch(tmp_path))
        assert target_environment.loaded_libraries(torch) == {
            "libcudnn": Path("/site/nvidia/cudnn/lib/libcudnn.so.9"),
            "libcudart": Path("/site/nvidia/cu13/lib/libcudart.so.13"),
            "libcublasLt": Path("/site/nvidia/cu13/lib/libcublasLt.so.13"),
        }
        assert str(torch.directory / "lib" / "libtorch_cuda.so") in (tmp_path / "asked").read_text()

    def test_have_the_nearest_headers_up_the_tree(self, tmp_path):
        library = tmp_path / "nvidia" / "cudnn" / "lib" / "libcudnn.so.9"
        near, far = tmp_path / "nvidia" / "cudnn" / "include", tmp_path / "include"
        for folder in (near, far):
            folder.mkdir(parents=True)
            (folder / "cudnn.h").touch()
        assert target_environment.include_directory(library, "cudnn.h") == near
        (near / "cudnn.h").unlink()
        assert target_environment.include_directory(library, "cudnn.h") == far
        (far / "cudnn.h").unlink()
        assert target_environment.include_directory(library, "cudnn.h") is None


class TestNvcc:
    @pytest.mark.parametrize("variable", ["CUDACXX", "CUDA_HOME", "CUDA_PATH", "PATH"])
    def test_is_found_through_the_environment(self, tmp_path, variable):
        nvcc = make_nvcc(tmp_path / "bin" / "nvcc")
        value = {"CUDACXX": nvcc, "PATH": nvcc.parent}.get(variable, tmp_path)
        assert target_environment.find_nvcc(13, {variable: str(value)}, []) == nvcc

    def test_of_another_major_version_is_passed_over(self, tmp_path):
        old = make_nvcc(tmp_path / "old" / "bin" / "nvcc", "12.8")
        new = make_nvcc(tmp_path / "new" / "bin" / "nvcc", "13.2")
        environ = {"CUDA_HOME": str(tmp_path / "old"), "PATH": str(new.parent)}
        assert target_environment.find_nvcc(13, environ, []) == new
        assert target_environment.find_nvcc(12, environ, []) == old

    def test_that_does_not_run_is_passed_over(self, tmp_path):
        nvcc = tmp_path / "bin" / "nvcc"
        nvcc.parent.mkdir()
        nvcc.write_text("#!/bin/sh\nexec /nonexistent/nvcc\n")
        nvcc.chmod(0o755)
        assert target_environment.find_nvcc(13, {"PATH": str(nvcc.parent)}, []) is None

    def test_from_pypi_comes_after_the_systems(self, tmp_path):
        packaged = make_nvcc(tmp_path / "nvidia" / "cu13" / "bin" / "nvcc")
        system = make_nvcc(tmp_path / "system" / "bin" / "nvcc")
        assert target_environment.find_nvcc(13, {}, [tmp_path]) == packaged
        environ = {"CUDA_HOME": str(tmp_path / "system")}
        assert target_environment.find_nvcc(13, environ, [tmp_path]) == system


class TestRequirements:
    FRONTEND = "nvidia-cudnn-frontend>=1.24,<1.27"
    NVCC = "cuda-toolkit[nvcc,crt,nvvm,cccl,cudart]"

    def requirements(self, torch, environ=None, cuda=None):
        return target_environment.build_requirements(torch, cuda=cuda, environ=environ or {})

    @pytest.fixture
    def torch(self, tmp_path):
        return target_environment.read_torch(make_torch(tmp_path))

    def test_of_an_empty_environment(self):
        assert self.requirements(None) == ["torch>=2.11", self.FRONTEND, self.NVCC]

    def test_of_an_environment_with_torch(self, torch):
        assert self.requirements(torch) == [self.FRONTEND, f"{self.NVCC}==13.0.*"]

    def test_have_no_nvcc_where_the_systems_fits(self, torch, tmp_path):
        make_nvcc(tmp_path / "bin" / "nvcc", "13.1")
        assert self.requirements(torch, {"CUDA_HOME": str(tmp_path)}) == [self.FRONTEND]

    def test_have_an_nvcc_where_the_systems_does_not_fit(self, torch, tmp_path):
        make_nvcc(tmp_path / "bin" / "nvcc", "12.8")
        assert f"{self.NVCC}==13.0.*" in self.requirements(torch, {"CUDA_HOME": str(tmp_path)})

    def test_of_a_torch_without_cuda(self, tmp_path):
        torch = target_environment.read_torch(make_torch(tmp_path, "2.11.0+cpu", None))
        assert self.requirements(torch) == []

    def test_without_cuda(self, torch):
        assert self.requirements(torch, cuda=False) == []
        assert self.requirements(None, cuda=False) == ["torch>=2.11"]


@pytest.mark.parametrize(
    ("config", "cmake_args", "expected"),
    [
        ({}, "", None),
        ({"cmake.define.CONVTIME_CUDA": "OFF"}, "", False),
        ({"cmake.define.CONVTIME_CUDA": ["ON"]}, "-DCONVTIME_CUDA=OFF", False),
        ({"cmake.define.CONVTIME_CUDA": ["ON"]}, "", True),
        ({"cmake.args": ["-DCONVTIME_TESTS=ON", "-DCONVTIME_CUDA:BOOL=off"]}, "", False),
        ({}, "-G Ninja -DCONVTIME_CUDA=0", False),
        ({"cmake.define.CONVTIME_TESTS": "OFF"}, "", None),
    ],
)
def test_cuda_setting(config, cmake_args, expected):
    environ = {"CMAKE_ARGS": cmake_args}
    assert target_environment.cuda_setting(config, environ) is expected


class TestArchitectures:
    @pytest.mark.parametrize(
        ("arch_list", "expected"),
        [
            ("9.0a", ["90a-real"]),
            ("8.0;9.0a", ["80-real", "90a-real"]),
            ("8.0 8.6+PTX", ["80-real", "86-real", "86-virtual"]),
            ("9.0a+PTX", ["90a-real", "90-virtual"]),
            ("10.0f, 12.0", ["100f-real", "120-real"]),
            (";8.0;;9.0a; ", ["80-real", "90a-real"]),
            (" ; ", ["89-real", "89-virtual"]),
        ],
    )
    def test_of_torch_cuda_arch_list(self, arch_list, expected):
        found = target_environment.cuda_architectures(arch_list, ["8.9"], SUPPORTED)
        assert found == expected

    @pytest.mark.parametrize(
        ("visible", "expected"),
        [
            (["9.0"], ["90-real", "90-virtual"]),
            (["9.0", "9.0"], ["90-real", "90-virtual"]),
            (["12.0", "8.6"], ["86-real", "120-real", "120-virtual"]),
        ],
    )
    def test_of_the_visible_gpus(self, visible, expected):
        assert target_environment.cuda_architectures("", visible, SUPPORTED) == expected

    def test_without_a_gpu_are_those_that_nvcc_knows(self):
        found = target_environment.cuda_architectures("", [], ["75", "80", "90", "100"])
        assert found == ["80-real", "90-real", "100-real", "100-virtual"]

    @pytest.mark.parametrize(("supported", "listed"), [([], "none"), (["50", "75"], "50, 75")])
    def test_are_asked_for_where_nothing_says_them(self, supported, listed):
        expected = f"but for {listed}: set TORCH_CUDA_ARCH_LIST"
        with pytest.raises(target_environment.BuildError, match=expected):
            target_environment.cuda_architectures("", [], supported)

    @pytest.mark.parametrize(
        ("arch_list", "visible", "got"),
        [
            ("7.0", [], r"7\.0 \(in TORCH_CUDA_ARCH_LIST\)"),
            ("9.0;6.1+PTX", ["9.0"], r"6\.1 \(in TORCH_CUDA_ARCH_LIST\)"),
            ("", ["7.0", "9.0"], r"7\.0 \(of a visible GPU\)"),
        ],
    )
    def test_refuse_those_that_no_kernel_compiles_for(self, arch_list, visible, got):
        with pytest.raises(target_environment.BuildError, match=f"7.5 or later, got {got}: set"):
            target_environment.cuda_architectures(arch_list, visible, SUPPORTED)
        turing = target_environment.cuda_architectures("7.5", [], SUPPORTED)
        assert turing == ["75-real"]

    @pytest.mark.parametrize("arch_list", ["Hopper", "90a", "8.0;;x", "9.0a+ptx"])
    def test_refuse_what_is_no_capability(self, arch_list):
        with pytest.raises(target_environment.BuildError, match="TORCH_CUDA_ARCH_LIST"):
            target_environment.cuda_architectures(arch_list, [], SUPPORTED)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc")
def test_maxima_compile_for_gpus_before_ampere(tmp_path):
    """These lack max.NaN, and a GPU of theirs may be the visible one that is built for."""
    source = tmp_path / "maxima.cu"
    source.write_text(
        """
        #include "kernels/relu_max_pool2d/pool_elements.cuh"
        template <typename T>
        __device__ void take(T* x) { *x = convtime::pool::max_nan(x[1], x[2]); }
        __global__ void all(float* f, double* d, __half* h, __nv_bfloat16* b) {
          take(f); take(d); take(h); take(b);
        }
        """
    )
    options = ["-std=c++20", "-arch=sm_75", "-cubin", f"-I{SCRIPT.parents[1] / 'csrc'}"]
    command = ["nvcc", *options, str(source), "-o", str(tmp_path / "maxima.cubin")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
