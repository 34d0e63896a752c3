#!/usr/bin/env bash
# Installs the C library and tests it as its users use it: the header, both libraries, the examples,
# and a program that calls each function, with gcc and clang, as C11 and C++17, under sanitizers and
# valgrind.
#
#   bindings/c/test.sh [--debug]
#
# Tests of missing programs (clang, g++, valgrind) are reported as skipped; in CI (CI=true) they fail.
# Everything is built in CARGO_TARGET_DIR if that is set.
set -uo pipefail

source=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$source/../.." || exit
target=${CARGO_TARGET_DIR:-$PWD/target}
work=$(mktemp -d) || exit
server=
trap '[[ -z $server ]] || kill "$server"; rm -rf "$work"' EXIT
prefix=$work/prefix
export LD_LIBRARY_PATH=$prefix/lib PKG_CONFIG_PATH=$prefix/lib/pkgconfig
# The tests must not ask the Hugging Face Hub.
export HF_HUB_OFFLINE=1

passed=0 failed=0

# Prints the seconds since the time $1, which is in microseconds, as scripts/steps.sh reads them.
took() {
    local us=$((${EPOCHREALTIME/[.,]/} - $1))
    printf '<%d.%03ds>' $((us / 1000000)) $((us / 1000 % 1000))
}

# Runs the command $2… as the test $1, and shows its output if it fails.
try() {
    local name=$1 began=${EPOCHREALTIME/[.,]/}
    shift
    if "$@" >"$work/log" 2>&1; then
        echo "test $name ... ok $(took "$began")"
        passed=$((passed + 1))
    else
        echo "test $name ... FAILED: $*"
        show_log
        failed=$((failed + 1))
    fi
}

# Shows the last output, without valgrind's warnings about system calls that it does not support.
show_log() { grep --invert-match '^--[0-9]*-- ' "$work/log"; }

has() { command -v "$1" >/dev/null; }

# Succeeds if the program $1 is installed; if not, reports the tests named $2 as skipped or failed.
need() {
    has "$1" && return
    if [[ ${CI:-} == true ]]; then
        echo "test $2 ... FAILED: $1 is not installed"
        failed=$((failed + 1))
    else
        echo "SKIPPED: $2: $1 is not installed"
    fi
    return 1
}

# --- Installation -----------------------------------------------------------------------------

header=$prefix/include/longshore.h
library=$prefix/lib/liblongshore.so

header_is_of_the_sources() {
    cargo run --quiet --locked --manifest-path bindings/c/header/Cargo.toml \
        --target-dir "$target/header" -- --check
}

header_tool_sees_what_is_missing() {
    cargo test --quiet --locked --manifest-path bindings/c/header/Cargo.toml \
        --target-dir "$target/header"
}

tool_is_formatted() { cargo fmt --manifest-path bindings/c/header/Cargo.toml --check; }

# Compiles the header alone, in each language that may include it.
header_stands_alone() {
    local compiler=$1 language=$2 standard=$3
    printf '#include <longshore.h>\n' >"$work/alone"
    "$compiler" -fsyntax-only -x "$language" "-std=$standard" -Wall -Wextra -Wpedantic -Werror \
        -I "$prefix/include" "$work/alone"
}

# Checks with clang that the documented parameters are those of the functions.
documentation_is_true() {
    printf '#include "longshore.h"\n' >"$work/alone"
    clang -fsyntax-only -x c -std=c11 -Wdocumentation -Wdocumentation-pedantic -Werror \
        -I "$prefix/include" "$work/alone"
}

declared_functions() { grep -oE '\blongshore_[a-z_]+\(' "$header" | tr -d '(' | sort -u; }
exported_symbols() { nm --dynamic --defined-only --format=posix "$library" | cut -d ' ' -f 1; }

nothing_else_is_exported() {
    diff <(declared_functions) <(exported_symbols | sort -u)
}

# Checks the soname, which changes with the ABI.
library_has_its_name() {
    local version soname
    version=$(pkg-config --modversion longshore) || return
    soname=$(readelf --dynamic "$library" | sed -n 's/.*SONAME.*\[\(.*\)\]/\1/p')
    [[ $soname == "liblongshore.so.${version%.*}" && $version == 0.* ]] || return
    [[ $(readlink "$library") == "$soname" ]] || return
    [[ $(readlink "$prefix/lib/$soname") == "liblongshore.so.$version" ]]
}

staged_install() {
    DESTDIR=$work/stage bindings/c/install.sh "${profile[@]}" /usr &&
        grep --quiet '^prefix=/usr$' "$work/stage/usr/lib/pkgconfig/longshore.pc" &&
        [[ -f $work/stage/usr/include/longshore.h && -L $work/stage/usr/lib/liblongshore.so ]]
}

# --- Programs ---------------------------------------------------------------------------------

warnings=(-Wall -Wextra -Wpedantic -Werror)

# Prints the linker flags for the shared or the static library.
linking() {
    case $1 in
    shared) pkg-config --libs longshore ;;
    static) printf '%s %s\n' "$prefix/lib/liblongshore.a" \
        "$(pkg-config --libs-only-other --libs-only-l --static longshore | sed 's/-llongshore//')" ;;
    esac
}

# Builds the test program $1 with the compiler $2, linked as $3 (shared or static); the rest are flags.
build() {
    local out=$1 compiler=$2 how=$3 libraries flags
    shift 3
    read -ra flags < <(pkg-config --cflags longshore)
    read -ra libraries < <(linking "$how")
    "$compiler" "$@" -D_GNU_SOURCE -g "${warnings[@]}" "${flags[@]}" \
        bindings/c/tests/*.c -o "$out" "${libraries[@]}" -lpthread
}

# Runs the test program and counts its tests.
program() {
    local name=$1 began=${EPOCHREALTIME/[.,]/}
    shift
    if "$@" >"$work/log" 2>&1 && grep --quiet '^test result: ok' "$work/log"; then
        passed=$((passed + $(grep --count '^test .* ok$' "$work/log")))
        echo "test $name ... ok, $(grep --count '^test .* ok$' "$work/log") tests $(took "$began")"
    else
        echo "test $name ... FAILED: $*"
        show_log
        failed=$((failed + 1))
    fi
}

examples() {
    local compiler=$1
    shift
    mkdir -p "$work/examples-$compiler"
    make --silent -C examples/c CC="$compiler" BUILD="$work/examples-$compiler" "$@"
}

# The compiler whose examples are run.
built_by=gcc

load_example() {
    local said
    said=$("$@" "$work/examples-$built_by/load" "$work/model.safetensors") || return
    echo "$said"
    grep --quiet --fixed-strings 'weight  F32 [64, 1024]  262144 bytes at' <<<"$said" &&
        grep --quiet 'another process mapped .* bytes: they are those of the file' <<<"$said"
}

# Runs the same reader on the file and on the memory that Longshore loaded.
gguf_example() {
    local reader=$work/examples-$built_by/gguf
    "$reader" "$work/model.gguf" >"$work/from-disk" &&
        "$@" "$reader" --longshore "$work/model.gguf" >"$work/from-memory" &&
        grep --quiet '"blk.0.attn_q.weight" Q8_0 \[32, 4\] 136 bytes' "$work/from-disk" &&
        diff "$work/from-disk" "$work/from-memory"
}

# Builds and runs a program in the README: the one with the number $1, whose output matches $2.
readme_example() {
    local flags out=$work/readme-$1
    # shellcheck disable=SC2016 # no command is in these backquotes
    awk -v number="$1" '/^```/ { inside = $0 == "```c"; at += inside; next }
        inside && at == number' bindings/c/README.md >"$out.c"
    read -ra flags < <(pkg-config --cflags --libs longshore)
    gcc -std=c11 "${warnings[@]}" "$out.c" "${flags[@]}" -o "$out" &&
        "$out" "$work/model.safetensors" | grep --quiet "$2" &&
        ! "$out" "$work/missing"
}

# Checks that the reader refuses a truncated and a missing file.
gguf_example_refuses() {
    head -c 700 "$work/model.gguf" >"$work/cut.gguf"
    local reader=$work/examples-$built_by/gguf
    ! "$reader" "$work/cut.gguf" && ! "$reader" "$work/missing"
}

load_example_refuses() {
    local said
    ! said=$("$work/examples-$built_by/load" "$work/missing" 2>&1) &&
        [[ $said == "error: cannot open $work/missing: No such file"* ]]
}

# Leaks are errors, too. valgrind does not support the system call cachestat; the library works
# without it.
memcheck=(valgrind --quiet --leak-check=full --error-exitcode=99 --child-silent-after-fork=yes
    "--suppressions=$source/tests/valgrind.supp")

# --- Running them -----------------------------------------------------------------------------

profile=("$@")
built_as=release
[[ ${1:-} != --debug ]] || built_as=dev
try install bindings/c/install.sh "${profile[@]}" "$prefix"
if [[ $failed -gt 0 ]]; then
    echo "test result: FAILED. 0 passed; 1 failed; 0 ignored"
    exit 1
fi
try staged_install staged_install
try header_is_of_the_sources_and_documented header_is_of_the_sources
try header_tool_sees_what_is_missing header_tool_sees_what_is_missing
try tool_is_formatted tool_is_formatted
try nothing_else_is_exported nothing_else_is_exported
try library_has_its_name library_has_its_name

for compilers in gcc:g++ clang:clang++; do
    c=${compilers%:*} cpp=${compilers#*:}
    need "$c" "programs built by $c" || continue
    for standard in c99 c11 c17; do
        try "header_is_${standard}_for_$c" header_stands_alone "$c" c "$standard"
    done
    for how in shared static; do
        try "build_${how}_by_$c" build "$work/$c-$how" "$c" "$how" -std=c11
        program "${how}_by_$c" "$work/$c-$how"
    done
    try "examples_by_$c" examples "$c"
    need "$cpp" "C++17 by $cpp" || continue
    for standard in c++11 c++17 c++20; do
        try "header_is_${standard}_for_$cpp" header_stands_alone "$cpp" c++ "$standard"
    done
    try "build_as_c++17_by_$cpp" build "$work/$cpp" "$cpp" shared -x c++ -std=c++17
    program "c++17_by_$cpp" "$work/$cpp"
done
if has clang; then try documentation_is_true documentation_is_true; fi

"$work/gcc-shared" --write-models "$work"
for built_by in gcc clang; do
    has "$built_by" || continue
    for example in load_example load_example_refuses gguf_example gguf_example_refuses; do
        try "${example}_by_$built_by" "$example"
    done
done
built_by=gcc
try readme_example_of_a_load readme_example 1 '^weight: F32 at 0x.*[048c]0$'
try readme_example_of_a_stream readme_example 2 '^weight: [1-9][0-9]*$'
program blocks_of_the_manual scripts/manual.sh "${profile[@]}" c gcc

# Starts a server and runs the test program $2… as the test $1.
served() {
    local name=$1
    shift
    mkdir -p "$work/served"
    rm -f "$work/served"/*
    "$longshore" serve --root "$work/served" --socket "$work/socket" >"$work/server.log" 2>&1 &
    server=$!
    for _ in {1..500}; do
        [[ ! -S $work/socket ]] || break
        sleep 0.02
    done
    program "$name" "$@" --serve "$work/served" "$work/socket"
    kill -TERM "$server"
    wait "$server"
    server=
}

try build_the_server cargo build --package longshore-cli --profile "$built_as" --locked \
    --target-dir "$target"
longshore=$target/${built_as/dev/debug}/longshore
served served_by_gcc "$work/gcc-shared"

# The examples are built again with the sanitizers, in the same folder.
sanitizers=(-fsanitize=address -fsanitize=undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
export ASAN_OPTIONS=detect_leaks=1:abort_on_error=0 UBSAN_OPTIONS=print_stacktrace=1
for how in shared static; do
    try "build_${how}_with_sanitizers" build "$work/sanitized-$how" gcc "$how" -std=c11 \
        "${sanitizers[@]}"
    program "sanitized_$how" "$work/sanitized-$how"
    served "served_sanitized_$how" "$work/sanitized-$how"
done

if need valgrind valgrind; then
    program memcheck_shared "${memcheck[@]}" "$work/gcc-shared"
    program memcheck_static "${memcheck[@]}" "$work/gcc-static"
    served memcheck_served "${memcheck[@]}" "$work/gcc-shared"
    try load_example_under_valgrind load_example "${memcheck[@]}"
    try gguf_example_under_valgrind gguf_example "${memcheck[@]}"
fi
try examples_with_sanitizers examples gcc --always-make CFLAGS="-g ${sanitizers[*]}"
try load_example_sanitized load_example
try gguf_example_sanitized gguf_example
try gguf_example_refuses_sanitized gguf_example_refuses

verdict=ok
[[ $failed -eq 0 ]] || verdict=FAILED
echo "test result: $verdict. $passed passed; $failed failed; 0 ignored"
[[ $failed -eq 0 ]]
