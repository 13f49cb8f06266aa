"""How long README's first command takes in an empty environment, and where the time goes."""

import itertools
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import results

ROOT = Path(__file__).resolve().parents[2]
# What a workplace may set and README does not name. A mirror of PyPI is not convtime's matter.
_SET_ELSEWHERE = re.compile(
    r"CC|CXX|CFLAGS|CXXFLAGS|CMAKE_.*|CCACHE_.*|TORCH_.*|CUDA.*|CONVTIME_.*|UV_.*|PYTHON.*"
    r"|PIP_(CONSTRAINT|NO_.*)|.*_NUM_THREADS"
)
# The phases of `pip install . && convtime conv`, by the line that begins each.
_PHASES = {
    "build_dependencies_s": r"Processing /",
    "resolve_and_download_s": r"\s+Preparing metadata \(pyproject\.toml\): finished|Collecting ",
    "compile_s": r"\s+Building wheel for convtime .*: started",
    "install_s": r"Installing collected packages: ",
    "main_job_s": r"Successfully installed ",
}

Line = tuple[float, str]


def readme_command(number: int) -> str:
    blocks = re.findall(r"^```bash\n(.*?)^```$", (ROOT / "README.md").read_text(), re.M | re.S)
    command: str = blocks[number - 1]
    return command


def install(environment: Path, caches: Path | None) -> results.Row:
    """Runs README's first command in a new environment, which is kept, and shows its output."""
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    variables = user_variables(environment)
    if caches is not None:
        variables["XDG_CACHE_HOME"] = str(caches)
    lines = run(["bash", "-euo", "pipefail", "-c", readme_command(1)], variables)
    (package,) = environment.glob("lib/python3*/site-packages/convtime")
    return phases(lines) | {
        "library_mb": sum(path.stat().st_size for path in package.rglob("*.so")) / 1e6
    }


def user_variables(environment: Path) -> dict[str, str]:
    """The variables of a user who has activated the environment, and set nothing else."""
    variables = {
        name: value for name, value in os.environ.items() if not _SET_ELSEWHERE.fullmatch(name)
    }
    variables["PATH"] = f"{environment / 'bin'}{os.pathsep}{variables['PATH']}"
    return variables | {"VIRTUAL_ENV": str(environment)}


def run(command: Sequence[str], variables: dict[str, str]) -> list[Line]:
    """The lines of a command, with the seconds after which they came; RuntimeError if it fails."""
    lines: list[Line] = []
    begin = time.perf_counter()
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=variables,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert process.stdout is not None
    for text in process.stdout:
        lines.append((time.perf_counter() - begin, text.rstrip("\n")))
        print(f"{lines[-1][0]:7.1f} {lines[-1][1]}", flush=True)
    lines.append((time.perf_counter() - begin, ""))
    if process.wait() != 0:
        raise RuntimeError(f"{' '.join(command)} failed with {process.returncode}")
    return lines


def phases(lines: Sequence[Line]) -> results.Row:
    """The seconds of each phase, of all, and until the main job's first row."""
    begins: dict[str, float] = {}
    waiting = [*_PHASES]
    for seconds, text in lines:
        # A phase that pip skips must not hide those after it.
        for name in waiting:
            if re.match(_PHASES[name], text):
                begins[name] = seconds
                waiting = waiting[waiting.index(name) + 1 :]
                break
    pairs = itertools.pairwise([*begins.values(), lines[-1][0]])
    row: results.Row = {name: end - begin for name, (begin, end) in zip(begins, pairs, strict=True)}
    job = begins["main_job_s"]
    # The first row of the table is that of ResNet-50's first layer.
    rows = [seconds - job for seconds, text in lines if seconds > job and text.startswith("conv1 ")]
    return row | {"first_row_s": rows[0] if rows else None, "first_command_s": lines[-1][0]}
