#!/usr/bin/env bash
# Runs those code blocks of the manual that `cargo test` does not run. All blocks of a page in one
# language are one program. It runs in its own folder, with model.safetensors there and `longshore` in
# PATH.
#
#   scripts/manual.sh [--debug] python PYTHON    with a Python that has longshore and numpy
#   scripts/manual.sh [--debug] c [CC]           with the C library that pkg-config finds
#
# Without --debug, the command is built with optimisation, as in scripts/load-a-model.sh.
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

# A program that never ends must not block the tests.
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
