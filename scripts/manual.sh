#!/usr/bin/env bash
# Runs the manual's blocks that `cargo test` does not run: those of each page in one language are one
# program, run in a folder of its own, where model.safetensors is, with `longshore` in PATH.
#
#   scripts/manual.sh [--debug] python PYTHON    with a Python that has longshore and numpy
#   scripts/manual.sh [--debug] c [CC]           with the C library where pkg-config finds it
#
# The command is built with optimisation, as scripts/load-a-model.sh builds it, unless --debug.
set -uo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
profile=release
if [[ ${1:-} == --debug ]]; then
    profile=debug
    shift
fi
case "$#:${1:-}" in
2:python) python=$2 ;;
1:c | 2:c) compiler=${2:-cc} ;;
*)
    sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2
    exit 2
    ;;
esac
language=$1

work=$(mktemp -d) || exit
trap 'rm -rf "$work"' EXIT
cargo build --quiet --profile "${profile/debug/dev}" --package longshore-cli || exit
PATH=$(realpath "${CARGO_TARGET_DIR:-target}")/$profile:$PATH

# One that waits for something in vain must not hang the tests.
bounded=(timeout --kill-after=10 300)

run_python() { (cd "$2" && "${bounded[@]}" "$python" -W error "$1.py"); }

run_c() {
    local flags
    read -ra flags < <(pkg-config --cflags --libs longshore)
    "$compiler" -std=c11 -D_GNU_SOURCE -Wall -Wextra -Werror "$1.c" -o "$1" "${flags[@]}" &&
        (cd "$2" && LD_LIBRARY_PATH=$(pkg-config --variable=libdir longshore) "${bounded[@]}" "$1")
}

passed=0 failed=0
for page in docs/*.md; do
    program=$work/$(basename "$page" .md)
    case $language in python) source=$program.py ;; c) source=$program.c ;; esac
    cargo --quiet xtask blocks "$page" "$language" >"$source" || exit
    [[ -s $source ]] || continue
    folder=$program.folder
    mkdir "$folder" && longshore make-model --size 4MiB "$folder/model.safetensors" >/dev/null || exit
    if "run_$language" "$program" "$folder" >"$work/log" 2>&1; then
        echo "test $page, $language ... ok"
        passed=$((passed + 1))
    else
        echo "test $page, $language ... FAILED"
        cat "$work/log"
        failed=$((failed + 1))
    fi
done
verdict=ok
[[ $failed -eq 0 && $passed -gt 0 ]] || verdict=FAILED
echo "test result: $verdict. $passed passed; $failed failed; 0 ignored"
[[ $verdict == ok ]]
