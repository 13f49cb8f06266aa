#!/usr/bin/env bash
# Builds convtime, runs the GPU tests, then the benchmarks, on a machine with an NVIDIA GPU.
#
#   benchmarks/run_gpu.sh [--install] [--tests] [--test PATH[::NAME]]... [--ctest REGEX]
#                         [--benchmarks] [--benchmark NAME]... [--notebooks]
#                         [--target DIR] [--commit HASH]
#                         [-- OPTIONS OF THE BENCHMARKS, e.g. --shard 1/4]
#
# Without --install, --tests and --benchmarks it does all three; GPU time that comes in pieces can
# take them one by one, with the same --target. --test, --ctest and --benchmark run only what they
# name, of the Python tests, the C++ tests and the benchmarks. Benchmarks go on where they were
# stopped; one that exits with 3, since a case left the GPU unusable for its process, is run again,
# up to 20 times. --notebooks also executes the notebooks, which needs the extra "notebook".
# Needs in the environment: torch, and what builds convtime (no build isolation, nothing is
# downloaded); for the tests also pytest and GoogleTest, which GTest_DIR may say the place of.
# Results are written to $OUT, or to benchmarks/results.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

install=0 benchmarks=0 notebooks=0 target='' options=()
python_tests=() cpp_tests='' names=()
all_tests() { python_tests=(tests) cpp_tests=.; }
while (($#)); do
    case $1 in
        --install) install=1 ;;
        --tests) all_tests ;;
        --test) python_tests+=("${2:?--test needs a path}"); shift ;;
        --ctest) cpp_tests=${2:?--ctest needs a regular expression}; shift ;;
        --benchmarks) benchmarks=1 ;;
        --benchmark) benchmarks=1 names+=("${2:?--benchmark needs a name}"); shift ;;
        --notebooks) notebooks=1 ;;
        --target) target=${2:?--target needs a directory}; shift ;;
        --commit) options+=(--commit "${2:?--commit needs a hash}"); shift ;;
        --) shift; options+=("$@"); break ;;
        *) echo "run_gpu.sh: error: unknown option $1" >&2; exit 2 ;;
    esac
    shift
done
if ((!install && !benchmarks && !notebooks && !${#python_tests[@]})) && [[ -z $cpp_tests ]]; then
    install=1 benchmarks=1
    all_tests
fi
scripts=()
if ((benchmarks)); then
    # First of all, so that a wrong name is refused at once.
    listed=$(python3 benchmarks/results.py scripts "${names[@]+"${names[@]}"}")
    mapfile -t scripts <<<"$listed"
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
if [[ -z $target ]]; then
    if ((!install)); then
        echo "run_gpu.sh: error: without --install, --target must say where convtime is" >&2
        exit 2
    fi
    target=$scratch/target
fi
mkdir -p "$target"
target=$(realpath "$target")
out=$(realpath -m "${OUT:-benchmarks/results}")
export PYTHONPATH=$target${PYTHONPATH:+:$PYTHONPATH}

# An activated environment may name compilers that are not there; the system's are known to fit.
if [[ -z ${CC:-} && -z ${CXX:-} && -x /usr/bin/gcc && -x /usr/bin/g++ ]]; then
    export CC=/usr/bin/gcc CXX=/usr/bin/g++
fi
if ((install)); then
    python3 -m pip install --no-build-isolation --no-deps --upgrade --target "$target" .
fi
# From here on outside of the repository, so that what is tested is what was installed.
repository=$PWD
cd "$scratch"
python3 -m convtime doctor --config

failed=()
if ((${#python_tests[@]})); then
    ran=0
    for kind in "not timing" timing; do
        status=0
        FAIL_WITHOUT_CUDA=1 python3 -m pytest -c "$repository/pyproject.toml" --rootdir "$repository" \
            -p no:cacheprovider -q -m "$kind" "${python_tests[@]/#/$repository/}" || status=$?
        ((status == 5)) && continue # what is named has no tests of this kind
        ran=1
        ((status == 0)) || failed+=("tests ($kind)")
    done
    ((ran)) || failed+=("tests: there are none of that name")
fi
if [[ -n $cpp_tests ]]; then
    { cmake -S "$repository" -B "$scratch/cpp" -G Ninja -DCONVTIME_TESTS=ON &&
        cmake --build "$scratch/cpp" &&
        FAIL_WITHOUT_CUDA=1 ctest --test-dir "$scratch/cpp" --tests-regex "$cpp_tests" --no-tests=error \
            --output-on-failure --timeout 60
    } || failed+=("C++ tests")
    export CONVTIME_CPP_TESTS=$scratch/cpp/tests/cpp # integrity runs some of them
fi
for line in "${scripts[@]+"${scripts[@]}"}"; do
    name=${line%%$'\t'*} script=${line#*$'\t'}
    echo "== $name"
    for ((round = 1; round <= 20; round++)); do
        status=0
        PYTHONPATH=$PYTHONPATH:$repository/benchmarks python3 "$script" --output "$out" "${options[@]+"${options[@]}"}" || status=$?
        ((status == 3)) || break
    done
    ((status == 0)) || failed+=("$name")
done
if ((notebooks)); then
    echo "== notebooks"
    python3 "$repository/notebooks/execute.py" --out "$out" || failed+=(notebooks)
fi

echo "== results in $out"
PYTHONPATH=$PYTHONPATH:$repository/benchmarks python3 - "$out" <<'PYTHON'
import json, pathlib, results, sys

for path in sorted(pathlib.Path(sys.argv[1]).glob("*.json")):
    document = json.loads(path.read_text())
    print(f"{path.name}: {len(document['rows'])} rows\n{results.describe(document['summary'])}")
PYTHON
if ((${#failed[@]})); then
    echo "FAILED: ${failed[*]}" >&2
    exit 1
fi
