"""Which torch, libraries and headers the build chooses (cmake/target_environment.py)."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import ROOT

SCRIPT = ROOT / "cmake" / "target_environment.py"


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


@pytest.fixture(autouse=True)
def no_system_toolkit(monkeypatch):
    """Only what a test makes is there, whatever this machine has in /usr/local/cuda."""
    monkeypatch.setattr(target_environment, "SYSTEM_TOOLKIT", None)
    monkeypatch.delenv("CUDA_HOME", raising=False)


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


class TestHeaders:
    """Folders as torch's packages have them, with nothing but the named headers."""

    @pytest.fixture
    def libraries(self, tmp_path):
        def make(folder_of):
            libraries = {}
            for name, header in target_environment.HEADERS.items():
                folder = tmp_path / "nvidia" / folder_of(name)
                (folder / "include").mkdir(parents=True, exist_ok=True)
                (folder / "include" / header).touch()
                libraries[name] = folder / "lib" / f"{name}.so"
            return libraries

        return make

    @staticmethod
    def make(folder, header):
        (folder / header).parent.mkdir(parents=True, exist_ok=True)
        (folder / header).touch()
        return folder

    @pytest.fixture
    def triton(self, tmp_path):
        folder = tmp_path / "triton" / "backends" / "nvidia" / "include"
        return self.make(folder, "crt/host_defines.h")

    def test_of_cuda_13_are_in_one_folder_and_in_triton(self, libraries, triton, tmp_path):
        found = libraries(lambda name: "cu13")
        cuda = self.make(tmp_path / "nvidia" / "cu13" / "include", "nv/target")
        folders = target_environment.cuda_include_directories(found, [tmp_path])
        assert folders == [cuda, triton]

    def test_of_a_build_requirement_come_after_torchs(self, libraries, triton, tmp_path):
        found = libraries(lambda name: "cu13")
        other = self.make(tmp_path / "build" / "nvidia" / "cu13" / "include", "nv/target")
        folders = target_environment.cuda_include_directories(found, [tmp_path, tmp_path / "build"])
        assert folders == [tmp_path / "nvidia" / "cu13" / "include", triton, other]

    def test_of_cuda_12_have_a_folder_each(self, libraries, triton, tmp_path):
        found = libraries(lambda name: name)
        self.make(tmp_path / "nvidia" / "cuda_cccl" / "include", "nv/target")
        folders = target_environment.cuda_include_directories(found, [tmp_path])
        assert len(folders) == len(target_environment.HEADERS) + 2

    def test_of_the_systems_toolkit_come_last(self, libraries, triton, tmp_path, monkeypatch):
        found = libraries(lambda name: "cu13")
        toolkit = self.make(tmp_path / "toolkit" / "include", "nv/target")
        monkeypatch.setenv("CUDA_HOME", str(tmp_path / "toolkit"))
        assert target_environment.cuda_include_directories(found, [tmp_path])[-1] == toolkit

    @pytest.mark.parametrize("missing", ["libnvrtc", "libcusparse"])
    def test_that_are_missing_are_named(self, libraries, tmp_path, missing):
        found = libraries(lambda name: name)
        header = target_environment.HEADERS[missing]
        (tmp_path / "nvidia" / missing / "include" / header).unlink()
        with pytest.raises(target_environment.BuildError, match=f"^{header} was not found"):
            target_environment.cuda_include_directories(found, [tmp_path])
        del found[missing]
        with pytest.raises(target_environment.BuildError, match=f"^{header} was not found"):
            target_environment.cuda_include_directories(found, [tmp_path])

    def test_that_no_package_has_are_named(self, libraries, triton, tmp_path):
        found = libraries(lambda name: "cu13")
        expected = r"^nv/target was not found .*: pip install nvidia-cuda-cccl\.$"
        with pytest.raises(target_environment.BuildError, match=expected):
            target_environment.cuda_include_directories(found, [tmp_path])


class TestRequirements:
    FRONTEND = "nvidia-cudnn-frontend>=1.24,<1.27"

    def requirements(self, torch, cuda=None):
        return target_environment.build_requirements(torch, cuda=cuda)

    @pytest.fixture
    def torch(self, tmp_path):
        return target_environment.read_torch(make_torch(tmp_path))

    def test_of_an_empty_environment(self):
        assert self.requirements(None) == ["torch>=2.11", self.FRONTEND]

    def test_of_an_environment_with_torch(self, torch):
        """Whose packages lack headers that its other headers include, or not."""
        assert self.requirements(torch) == [self.FRONTEND, "nvidia-cuda-cccl==13.0.*"]
        header = torch.directory.parent / "nvidia" / "cu13" / "include" / "nv" / "target"
        header.parent.mkdir(parents=True)
        header.touch()
        assert self.requirements(torch) == [self.FRONTEND]

    def test_of_a_torch_with_cuda_12(self, tmp_path):
        torch = target_environment.read_torch(make_torch(tmp_path, "2.11.0+cu128", "12.8"))
        assert "nvidia-cuda-cccl-cu12==12.8.*" in self.requirements(torch)

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
