#!/usr/bin/env bash
# What a GPU has to show, in nine minutes: losses beside the CPU's, trainings and evaluations on it, and what the
# papers' sizes cost.
#
#     bash tests/on_gpu.sh                          # results in $OUT, or in ./on_gpu
#     PARTS="losses benchmark" bash tests/on_gpu.sh
#     DEVICE=cpu SCALE=0.001 MINUTES=3 bash tests/on_gpu.sh         # to try this script without a GPU
#
# It needs a python3 of at least 3.11 with torch, torchvision, numpy, scipy and, for the tests, safetensors, pytest and
# pytest-xdist. It installs other packages that are missing where it can: from wheels in ./.whl, else from the package
# index. Without either it goes on with what is there. No part stops another one.

set -u
cd "$(dirname "$0")/.." || exit 1
PYTHON=${PYTHON:-python3}
DEVICE=${DEVICE:-cuda}
MINUTES=${MINUTES:-9}
SCALE=${SCALE:-1}
PARTS=${PARTS:-losses tests benchmark}
TESTS=${TESTS:-tests/test_methods.py tests/test_train.py tests/test_cli_evaluate.py}
END=$(awk "BEGIN {printf \"%d\", $(date +%s) + 60 * $MINUTES}")
export PYTHONUNBUFFERED=1 OMP_NUM_THREADS=${OMP_NUM_THREADS:-4}

left() {                              # seconds
    echo $((END - $(date +%s)))
}

# ---- the machine

card=$("$PYTHON" -c "import torch; print(torch.cuda.get_device_name() if '$DEVICE' == 'cuda' else 'CPU')" 2>/dev/null)
if [ -z "$card" ]; then
    echo "on_gpu.sh: $PYTHON has no torch that sees a GPU; name another one with PYTHON, or try DEVICE=cpu"
    exit 1
fi
RESULTS=${OUT:-on_gpu}/$(echo "$card" | tr -c 'A-Za-z0-9._\n-' '_')
mkdir -p "$RESULTS" || exit 1
RESULTS=$(cd "$RESULTS" && pwd)
SITE=$(mktemp -d)
trap 'rm -rf "$SITE"' EXIT

missing=$("$PYTHON" - <<'END_OF_PYTHON'
import importlib.util
packages = {"nltk": "nltk", "pycocotools": "pycocotools", "tensorboard_logger": "tensorboard-logger", "yaml": "pyyaml",
            "tqdm": "tqdm"}
print(" ".join(package for module, package in packages.items() if importlib.util.find_spec(module) is None))
END_OF_PYTHON
)
if [ -n "$missing" ]; then
    where="--retries 0 --timeout 5"
    [ -d .whl ] && where="--no-index --find-links .whl"
    # protobuf: the newest that tensorboard-logger reads
    case " $missing " in *" tensorboard-logger "*) missing="$missing protobuf==3.20.3";; esac
    echo "installing $missing"
    for package in $missing; do
        # shellcheck disable=SC2086
        if ! timeout 30 "$PYTHON" -m pip install -q --no-deps --target "$SITE" $where "$package"; then
            echo "on_gpu.sh: $package cannot be installed; what needs it fails"
            [ -d .whl ] || break          # the package index cannot be reached
        fi
    done
    export PYTHONPATH="$SITE${PYTHONPATH:+:$PYTHONPATH}"
fi
if ! "$PYTHON" -c "import tensorboard_logger" 2>/dev/null; then
    echo "on_gpu.sh: tensorboard_logger cannot be imported; trainings go on without it"
    rm -rf "$SITE/tensorboard_logger" "$SITE/google"
fi
{
    echo "card: $card"
    echo "commit: $(git rev-parse HEAD 2>/dev/null || echo unknown)"
    "$PYTHON" -c "import platform, torch, numpy, os; print('python', platform.python_version(), 'torch', \
torch.__version__, 'numpy', numpy.__version__, 'cores', os.cpu_count())"
    nvidia-smi 2>/dev/null
} > "$RESULTS/machine.txt"
head -3 "$RESULTS/machine.txt"

# ---- the parts

run_part() {                          # run_part NAME SECONDS COMMAND ...: its output goes to NAME.txt
    local name=$1 seconds=$2 status
    shift 2
    [ "$seconds" -gt "$(left)" ] && seconds=$(left)
    if [ "$seconds" -lt 10 ]; then
        echo "$name: no time is left"
        return
    fi
    local begin
    begin=$(date +%s)
    # pytest names failures after SIGINT, but not after SIGTERM
    timeout --signal=INT --kill-after=10 "$seconds" "$@" > "$RESULTS/$name.txt" 2>&1
    status=$?
    echo "$name: status $status after $(($(date +%s) - begin)) s; its last lines:"
    tail -n 5 "$RESULTS/$name.txt"
}

for part in $PARTS; do
    case $part in
        losses)
            run_part losses 150 "$PYTHON" tests/losses_on_device.py "$DEVICE" "$RESULTS/losses.csv" ;;
        tests)
            # shellcheck disable=SC2086
            run_part tests 120 env TEST_DEVICE="$DEVICE" "$PYTHON" -m pytest -v -n 8 --dist worksteal -p no:cacheprovider \
                $TESTS ;;
        suite)
            run_part suite 300 "$PYTHON" -m pytest -q -n 8 --dist worksteal -p no:cacheprovider ;;
        benchmark)
            minutes=$(awk "BEGIN {print ($(left) - 15) / 60}")
            run_part benchmark "$(left)" env -u OMP_NUM_THREADS "$PYTHON" benchmark.py --device "$DEVICE" --scale "$SCALE" \
                --minutes "$minutes" --output "$RESULTS/benchmark.json" ;;
        *)
            echo "on_gpu.sh: there is no part $part; the parts are losses, tests, suite, benchmark" ;;
    esac
done
echo "results in $RESULTS"
