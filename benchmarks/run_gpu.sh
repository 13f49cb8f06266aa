#!/usr/bin/env bash
# Builds convtime, runs the GPU tests, then the benchmarks, on a machine with an NVIDIA GPU.
#
#   benchmarks/run_gpu.sh [--install] [--tests] [--benchmarks] [--target DIR] [--commit HASH]
#                         [-- OPTIONS OF THE BENCHMARKS, e.g. --shard 1/4]
#
# Without --install, --tests and --benchmarks it does all three; GPU time that comes in pieces can
# take them one by one, with the same --target. Benchmarks go on where they were stopped; one that
# exits with 3, since a case left the GPU unusable for its process, is run again, up to 20 times.
# Needs in the environment: torch, and what builds convtime (no build isolation, nothing is
# downloaded); for the tests also pytest and GoogleTest, which GTest_DIR may say the place of.
# Results are written to $OUT, or to benchmarks/results.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

install=0 tests=0 benchmarks=0 target='' options=()
while (($#)); do
    case $1 in
        --install) install=1 ;;
        --tests) tests=1 ;;
        --benchmarks) benchmarks=1 ;;
        --target) target=${2:?--target needs a directory}; shift ;;
        --commit) options+=(--commit "${2:?--commit needs a hash}"); shift ;;
        --) shift; options+=("$@"); break ;;
        *) echo "run_gpu.sh: error: unknown option $1" >&2; exit 2 ;;
    esac
    shift
done
if ((!install && !tests && !benchmarks)); then
    install=1 tests=1 benchmarks=1
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
    export CC=/usr/bin/gcc CXX=/usr/bin/g++ CUDAHOSTCXX=${CUDAHOSTCXX:-/usr/bin/g++}
fi
if ((install)); then
    python3 -m pip install --no-build-isolation --no-deps --upgrade --target "$target" .
fi
# From here on outside of the repository, so that what is tested is what was installed.
repository=$PWD
cd "$scratch"
python3 -m convtime config

failed=()
if ((tests)); then
    FAIL_WITHOUT_CUDA=1 python3 -m pytest -c "$repository/pyproject.toml" --rootdir "$repository" \
        -p no:cacheprovider -q "$repository/tests" || failed+=(tests)
    { cmake -S "$repository" -B "$scratch/cpp" -G Ninja -DCONVTIME_TESTS=ON &&
        cmake --build "$scratch/cpp" &&
        FAIL_WITHOUT_CUDA=1 ctest --test-dir "$scratch/cpp" --output-on-failure --timeout 60
    } || failed+=("C++ tests")
fi
if ((benchmarks)); then
    # Every script that goals.json has an entry for.
    for script in "$repository"/benchmarks/*.py; do
        name=$(basename "$script" .py)
        grep -q "^  *\"$name\":" "$repository/benchmarks/goals.json" || continue
        echo "== $name"
        for ((round = 1; round <= 20; round++)); do
            status=0
            python3 "$script" --output "$out" "${options[@]+"${options[@]}"}" || status=$?
            ((status == 3)) || break
        done
        ((status == 0)) || failed+=("$name")
    done
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
