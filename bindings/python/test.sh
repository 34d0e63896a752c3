#!/usr/bin/env bash
# Builds and installs the Python package as its README describes, in a virtual environment, and runs
# its tests, its docstrings, the type checks, the examples and the Python blocks of the manual.
#
#   bindings/python/test.sh
#
# The virtual environment is kept in the user's cache, under a hash of its requirements. With
# LONGSHORE_TORCH=1 it includes torch (5 GB); without it, the torch tests are skipped. Everything is
# built in CARGO_TARGET_DIR if that is set. A second run waits for the first.
set -uo pipefail

package=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$package/../.." || exit
# Cargo runs in several folders, so the path must be absolute.
target=$(realpath --canonicalize-missing "${CARGO_TARGET_DIR:-target}")
export CARGO_TARGET_DIR=$target
failed=0

# Runs the command $2… as the test $1, for commands that print no test result themselves.
try() {
    local name=$1 status=0
    shift
    "$@" || status=1
    if [[ $status -eq 0 ]]; then
        echo "test result: ok. 1 passed; 0 failed; 0 ignored ($name)"
    else
        echo "test result: FAILED. 0 passed; 1 failed; 0 ignored ($name)"
        failed=1
    fi
}

# --- Installation -----------------------------------------------------------------------------

requirements=("$package/tests/requirements.txt")
[[ ${LONGSHORE_TORCH:-} != 1 ]] || requirements+=("$package/tests/requirements-torch.txt")
hash=$({ python3 --version && cat "${requirements[@]}"; } | sha256sum | cut -c 1-16)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/longshore
venv=$cache/python-tests-$hash
# Hold the lock until the end: another run would replace the package that this one tests.
mkdir -p "$cache" && exec {lock}>"$venv.lock" && flock "$lock" || exit
if [[ ! -e $venv/complete ]]; then
    rm -rf "$venv"
    python3 -m venv "$venv" || exit
    "$venv/bin/pip" install --quiet --disable-pip-version-check "${requirements[@]/#/--requirement=}" || exit
    touch "$venv/complete"
fi

# The source of safetensors, whose tests run with longshore in its place.
peers=$cache/python-peers-$(sha256sum "$package/tests/requirements-peers.txt" | cut -c 1-16)
if [[ ! -e $peers/complete ]]; then
    rm -rf "$peers"
    mkdir -p "$peers/source"
    "$venv/bin/pip" download --quiet --disable-pip-version-check --no-deps --no-binary safetensors \
        --require-hashes --requirement "$package/tests/requirements-peers.txt" --dest "$peers" || exit
    tar --extract --gzip --file "$peers"/safetensors-*.tar.gz --directory "$peers/source" \
        --strip-components 1 || exit
    touch "$peers/complete"
fi
export LONGSHORE_SAFETENSORS_SOURCE=$peers/source
python=$venv/bin/python

# The default is the release profile, which takes minutes longer.
# shellcheck disable=SC2317 # Called by `try`.
install() {
    MATURIN_PEP517_ARGS='--profile dev --locked' PYO3_PYTHON=$python "$python" -m pip install --quiet \
        --disable-pip-version-check --force-reinstall --no-deps "$package"
}
try "pip install" install
[[ $failed -eq 0 ]] || exit 1
cargo build --quiet --package longshore-cli || exit
export LONGSHORE_COMMAND=$target/debug/longshore

# --- Tests ------------------------------------------------------------------------------------

# Import the installed package: the one in the source tree lacks the extension module.
cd "$package/tests" || exit
"$python" -m pytest --quiet --config-file "$package/pyproject.toml" --rootdir "$package" \
    "$package/tests" || failed=1
"$python" -m pytest --quiet --config-file "$package/pyproject.toml" --rootdir "$package" \
    --doctest-modules --doctest-ignore-import-errors --pyargs longshore || failed=1

# shellcheck disable=SC2317 # Called by `try`.
types() { "$python" -m mypy --config-file "$package/pyproject.toml" "$@"; }
try "types of the package" types --package longshore
try "types of the tests and examples" types "$package"/*.py "$package"/tests/*.py \
    "$package"/engines/*.py "$package"/../../examples/python/*.py
try "types of the module in Rust" "$python" -m mypy.stubtest longshore._core \
    --mypy-config-file "$package/pyproject.toml" --allowlist "$package/tests/stubtest.txt" \
    --ignore-unused-allowlist

cd "$package/../.." || exit
scripts/manual.sh python "$python" || failed=1
exit "$failed"
