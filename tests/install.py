"""Installs convtime into fresh environments, in every way that the README promises.

The tests build the package and download torch, which takes minutes: they run only where this file
is named, `pytest tests/install.py`.
"""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import ROOT

OLDEST_TORCH = "2.11.0"

# What is asked of an installation: it imports, it times, it is built for the torch that is there.
CHECK = """
import importlib.metadata, json, pathlib, torch
import convtime
from convtime import _build_info
module = convtime.nn.Conv2d(3, 4, 3)
x = torch.randn(1, 3, 8, 8)
assert torch.equal(module(x), torch.nn.functional.conv2d(x, module.weight, module.bias))
assert convtime.time_op(torch.relu, x, budget=0.05).median > 0
maps = pathlib.Path("/proc/self/maps").read_text().splitlines()
print(json.dumps({
    "torch": torch.__version__,
    "site": str(pathlib.Path(torch.__file__).parents[1]),
    "requires": importlib.metadata.requires("convtime"),
    "mapped": sorted({line.split()[-1] for line in maps if ".so" in line}),
    "build": {k: v for k, v in vars(_build_info).items() if not k.startswith("_")},
}))
"""


@dataclasses.dataclass
class Environment:
    """A virtual environment under the test's own folder."""

    path: Path

    @property
    def python(self) -> str:
        return str(self.path / "bin" / "python")

    def run(self, *command: object, **variables: str) -> str:
        hidden = ("PYTHONPATH", "VIRTUAL_ENV", "FAIL_WITHOUT_CUDA")
        inherited = {name: value for name, value in os.environ.items() if name not in hidden}
        result = subprocess.run(
            [str(part) for part in command],
            cwd=self.path,
            env={**inherited, **variables},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert result.returncode == 0, result.stdout
        return result.stdout

    def pip_install(self, *arguments: object) -> None:
        self.run(self.python, "-m", "pip", "install", *arguments)

    def uv_install(self, *arguments: object) -> None:
        uv = self.path / "bin" / "uv"
        self.run(uv, "pip", "install", "--python", self.python, *arguments)

    def check(self, **variables: str) -> dict:
        return json.loads(self.run(self.python, "-c", CHECK, **variables).splitlines()[-1])


def make_environment(path: Path) -> Environment:
    subprocess.run([sys.executable, "-m", "venv", path], check=True)
    return Environment(path)


@pytest.fixture(scope="module")
def oldest_torch(tmp_path_factory) -> Environment:
    """An environment that has had torch for longer than convtime."""
    environment = make_environment(tmp_path_factory.mktemp("oldest_torch") / "venv")
    environment.pip_install("uv")
    # NumPy is torch's to use. uv unpacks the gigabytes of a torch on all cores.
    environment.uv_install(f"torch=={OLDEST_TORCH}", "numpy")
    return environment


@pytest.fixture(scope="module")
def installed_with_pip(oldest_torch) -> Environment:
    oldest_torch.pip_install(ROOT)
    return oldest_torch


@pytest.fixture
def decoy_libraries(tmp_path) -> dict[str, str]:
    """LD_LIBRARY_PATH with a libcudnn.so.9 that cannot be loaded: another cuDNN of the system."""
    (tmp_path / "libcudnn.so.9").write_text("no library")
    return {"LD_LIBRARY_PATH": str(tmp_path)}


def assert_built_for_the_torch_there(found: dict) -> None:
    major, minor = found["torch"].split(".")[:2]
    assert f"torch=={major}.{minor}.*" in found["requires"]
    assert found["build"]["torch_version"] == found["torch"]


@pytest.fixture(scope="module")
def newest_torch(tmp_path_factory) -> Environment:
    """What pip makes of an empty environment: CONVTIME_INSTALLED's, where it has done so."""
    if installed := os.environ.get("CONVTIME_INSTALLED"):
        return Environment(Path(installed))
    environment = make_environment(tmp_path_factory.mktemp("newest_torch") / "venv")
    environment.pip_install(ROOT)
    return environment


def test_empty_environment(newest_torch):
    assert_built_for_the_torch_there(newest_torch.check())


def test_upgrade_from_the_oldest_torch(newest_torch, oldest_torch, tmp_path):
    file = tmp_path / "upgrade.json"
    newest_torch.run(
        *(newest_torch.python, "-m", "convtime", "upgrade", "conv2d:n2c4h8w8k4r3s3p1"),
        *("--old", oldest_torch.python, "--new", newest_torch.python),
        *("--device", "cpu", "--budget", "0.05", "--json", file),
    )
    upgrade = json.loads(file.read_text())
    versions = [upgrade[side]["torch"] for side in ("before", "after")]
    assert versions[0].startswith(OLDEST_TORCH)
    assert versions[1] == newest_torch.check()["torch"] != versions[0]
    assert [each["change"]["ratio"] is not None for each in upgrade["layers"]] == [True, True]


def assert_the_torch_there_is_kept(environment: Environment, variables: dict[str, str]) -> None:
    found = environment.check(**variables)
    assert found["torch"].startswith(OLDEST_TORCH)
    assert_built_for_the_torch_there(found)
    cudnns = [library for library in found["mapped"] if Path(library).name == "libcudnn.so.9"]
    assert cudnns == [f"{found['site']}/nvidia/cudnn/lib/libcudnn.so.9"]


def test_pip_keeps_the_torch_there(installed_with_pip, decoy_libraries):
    assert_the_torch_there_is_kept(installed_with_pip, decoy_libraries)


def test_cpp_example(installed_with_pip, tmp_path, decoy_libraries):
    environment = installed_with_pip
    code = "import convtime; print(convtime.cmake_prefix_path)"
    prefix = environment.run(environment.python, "-c", code).splitlines()[-1]
    environment.pip_install("cmake", "ninja")
    cmake = environment.path / "bin" / "cmake"
    build = tmp_path / "build"
    example = ROOT / "examples" / "cpp"
    environment.run(cmake, "-S", example, "-B", build, f"-Dconvtime_ROOT={prefix}")
    environment.run(cmake, "--build", build)
    assert "median of" in environment.run(build / "time_relu", **decoy_libraries)


def test_uv_keeps_the_torch_there(oldest_torch, decoy_libraries):
    oldest_torch.uv_install("--reinstall-package", "convtime", ROOT)
    assert_the_torch_there_is_kept(oldest_torch, decoy_libraries)


def test_without_isolation_and_without_cuda(oldest_torch):
    oldest_torch.pip_install("scikit-build-core>=1.0,<2", "pybind11", "cmake", "ninja")
    oldest_torch.pip_install(
        "--no-build-isolation", "--config-settings=cmake.define.CONVTIME_CUDA=OFF", ROOT
    )
    found = oldest_torch.check()
    assert found["torch"].startswith(OLDEST_TORCH)
    assert_built_for_the_torch_there(found)
    assert not found["build"]["with_cuda"]


def test_compiler_that_links_libstdcxx_statically_is_refused(tmp_path):
    compiler, cmake = shutil.which("g++"), shutil.which("cmake")
    if not compiler or not cmake:
        pytest.skip("needs g++ and cmake")
    source, library = tmp_path / "a.cpp", tmp_path / "liba.so"
    source.write_text("#include <iostream>\nvoid f() { std::cout << 1; }\n")
    build = [compiler, "-shared", "-fPIC", source, "-o", library]
    check: list[str | Path] = [cmake, "-D", f"LIBRARY={library}", "-D", "READELF=readelf"]
    check += ["-P", ROOT / "cmake" / "check_libstdcxx.cmake"]

    subprocess.run(build, check=True)
    assert subprocess.run(check).returncode == 0
    subprocess.run([*build, "-static-libstdc++"], check=True)
    refused = subprocess.run(check, capture_output=True, text=True)
    assert refused.returncode == 1
    assert "does not need libstdc++.so.6" in " ".join(refused.stderr.split())
