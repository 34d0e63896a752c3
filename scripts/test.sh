#!/usr/bin/env bash
# Installs what is missing and runs every test, the cheap ones first.
#
#   scripts/test.sh            everything
#   scripts/test.sh --quick    without the steps that take minutes
#
# With CI=true neither the tests in a real kernel may be skipped nor those in Go and Python programs
# and in a browser.
# What each step printed is kept in target/test-logs. The last line counts tests; a step that failed
# without a test counts as one.
set -uo pipefail
# shellcheck source=scripts/setup.sh
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

case "$#:${1:-}" in
0:) quick=false ;;
1:--quick) quick=true ;;
*)
    sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2
    exit 2
    ;;
esac

cd "$repository" || exit
logs=${CARGO_TARGET_DIR:-target}/test-logs
# What is off unless asked for. The step with the oldest Rust builds without.
features=(--features "longshore/vfio-user longshore/vhost-user longshore/vm-memory longshore/tracing")
locked=()
bounded=()
if [[ ${CI:-} == true ]]; then
    export LONGSHORE_REQUIRE_GUEST=1 CARGO_INCREMENTAL=0 CARGO_TERM_PROGRESS_WHEN=never
    # What is committed is what is tested, and nobody is there to stop what hangs.
    locked=(--locked)
    bounded=(timeout --kill-after=10 30m)
fi
export CARGO_TERM_COLOR=never

# --- The steps --------------------------------------------------------------------------------

format() { cargo fmt --all --check; }

# The scripts are all that is not Rust.
shell_scripts() { shellcheck --external-sources scripts/*.sh bindings/*/*.sh .ci/*; }

lints() {
    local status=0 wing
    local -r deny=(-- --deny warnings)
    cargo clippy --workspace --all-targets "${features[@]}" "${locked[@]}" "${deny[@]}" || status=1
    # Each wing also without the other.
    for wing in models devices; do
        cargo clippy --package longshore --no-default-features --features "$wing" \
            "${locked[@]}" "${deny[@]}" || status=1
    done
    return "$status"
}

rules() { cargo xtask check; }

# All but the guest tests, also of the package that has them. A test that finds no ground to run on
# says SKIPPED, which is seen only with --show-output.
unit_tests() {
    local status=0
    "${bounded[@]}" cargo test --workspace --exclude longshore-vm-tests --no-fail-fast \
        "${features[@]}" "${locked[@]}" -- --show-output || status=1
    "${bounded[@]}" cargo test --release --package longshore-access --test stress "${locked[@]}" -- \
        --ignored --show-output || status=1
    # For a minute, or LONGSHORE_STRESS_SECONDS.
    "${bounded[@]}" cargo test --package longshore-serve --test stress "${locked[@]}" -- \
        --ignored --show-output || status=1
    "${bounded[@]}" cargo test --package longshore-vm-tests --lib -- --show-output || status=1
    "${bounded[@]}" cargo test --package longshore-vm-tests --doc || status=1
    return "$status"
}

# Every interleaving of threads that change one page table, access what is unmapped, write beside a
# harvest of a dirty log, wait for what comes over a connection, or want what another one keeps.
loom_tests() {
    local status=0
    local -x RUSTFLAGS='--cfg loom' CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/loom
    local loom=("${bounded[@]}" cargo test --release "${locked[@]}")
    "${loom[@]}" --package longshore-pagetable --test loom || status=1
    "${loom[@]}" --package longshore-sync --test loom_grace --test loom_biased || status=1
    "${loom[@]}" --package longshore-access --test loom_dirty || status=1
    "${loom[@]}" --package longshore-vfio-user --test loom_mailbox || status=1
    "${loom[@]}" --package longshore-domain --test loom || status=1
    return "$status"
}

# Copies, checksums and digests with one instruction set, also where tests leave the choice to
# the machine.
scalar_tests() { tests_with scalar; }
avx2_tests() { tests_with avx2; }
avx512_tests() { tests_with avx512; }

tests_with() {
    LONGSHORE_ISA=$1 "${bounded[@]}" cargo test --package longshore-mem --package longshore-iov \
        --package longshore-pagetable --tests --no-fail-fast "${locked[@]}" -- --show-output
}

# Whether the machine has the instruction set $1, by what the tests themselves find.
has_isa() {
    cargo test --package longshore-mem --lib "${locked[@]}" -- isa:: --show-output 2>/dev/null |
        grep --ignore-case --word-regexp "instruction sets of this machine: .*$1"
}

# Miri has no memfd, no madvise and no io_uring, so what asks the kernel for memory cannot run under
# it. The modules named here do not, and every test in them passes. Miri is of one processor, so the
# packages run side by side, those that take longest first; what they said is shown when all are done.
miri_tests() {
    local status=0 running=0 at_once package
    # The clock and the current folder are asked for by proptest; its cases take seconds each. Why
    # Tree Borrows: crates/memory/mem/src/copy/bytewise.rs.
    local -x MIRIFLAGS='-Zmiri-disable-isolation -Zmiri-tree-borrows' PROPTEST_CASES=8
    local packages=(access vm_memory iov_tests iov mem pagetable load serve counts domain sync heap)
    at_once=$(nproc)
    cargo "+$rust_nightly" miri --version
    for package in "${packages[@]}"; do
        if [[ $running -ge $at_once ]]; then
            wait -n || status=1
            running=$((running - 1))
        fi
        printf '    %s\n' "$package"
        "miri_of_$package" >"$logs/miri_$package.log" 2>&1 &
        running=$((running + 1))
    done
    while [[ $running -gt 0 ]]; do
        wait -n || status=1
        running=$((running - 1))
    done
    for package in "${packages[@]}"; do cat "$logs/miri_$package.log"; done
    return "$status"
}

# Filters are modules. One that names none any more, after a move, is an error.
miri() {
    local output status=0 argument filters=false
    output=$("${bounded[@]}" cargo "+$rust_nightly" miri test "${locked[@]}" "$@" 2>&1) || status=1
    printf '%s\n' "$output"
    for argument; do
        if $filters && ! grep --quiet "^test $argument" <<<"$output"; then
            printf 'error: no test is in %s\n' "$argument"
            status=1
        fi
        [[ $argument != -- ]] || filters=true
    done
    return "$status"
}

# With slices of atomics looked at whole, not entry by entry, which takes far longer.
miri_of_tables() {
    local -x MIRIFLAGS="$MIRIFLAGS -Zmiri-tree-borrows-no-precise-interior-mut"
    miri "$@"
}

miri_of_mem() { miri --package longshore-mem --lib; }
miri_of_iov() { miri --package longshore-iov --lib; }
miri_of_iov_tests() {
    miri --package longshore-iov --test model --test bad_input --test concurrent --test places
}
miri_of_access() { miri --package longshore-access --lib -- dirty:: tlb:: words::; }
miri_of_pagetable() { miri_of_tables --package longshore-pagetable --test miri; }
miri_of_vm_memory() {
    miri_of_tables --package longshore-access --features vm-memory --test vm_memory
}
# Words of several sizes in one place, as rings have them, are too much for Miri's memory of old
# stores. And addresses in page tables are numbers.
miri_of_counts() {
    local -x MIRIFLAGS="$MIRIFLAGS -Zmiri-disable-weak-memory-emulation"
    MIRIFLAGS+=' -Zmiri-permissive-provenance'
    miri_of_tables --package longshore-access --test counts
}
miri_of_domain() { miri --package longshore-domain --lib -- pool:: dma_pool:: iova::ranges::; }
miri_of_sync() { miri --package longshore-sync --lib; }
# The protocol alone: all else asks the kernel for sockets.
miri_of_serve() { miri --package longshore-serve --lib -- protocol::; }
miri_of_heap() { miri_of_tables --package longshore-heap --lib -- heap:: page_report:: error::; }
miri_of_load() {
    miri_of_tables --package longshore-load --lib -- budget:: fill::piece:: fill::route::
}

# The assembly for AArch64, emulated. Faults of memory are delivered as a kernel would, but the
# emulator is of one process: a test that starts another of its kind cannot. The scenarios of signal
# handlers, which those tests start, are run one by one, but for those that end in death and the one
# that sends signals, of which the emulator dies. Go and Python programs would load a library of this
# machine's own architecture.
aarch64_tests() {
    local status=0
    local -x CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
    local -x CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER='qemu-aarch64 -L /usr/aarch64-linux-gnu'
    # Emulating what is not optimised takes minutes.
    local -x CARGO_PROFILE_DEV_OPT_LEVEL=1
    local tests=("${bounded[@]}" cargo test --target aarch64-unknown-linux-gnu "${locked[@]}")
    "${tests[@]}" --package longshore-mem --package longshore-iov --package longshore-pagetable \
        --tests --no-fail-fast -- \
        --show-output --skip processes:: --skip what_is_not_a_copy_dies \
        --skip keeps_its_handlers --skip a_table_that_cannot_be_had_is_not_in_use || status=1
    # The emulator takes any length for memory, and another process's addresses for the machine's.
    "${tests[@]}" --package longshore-access --lib --test faults --test counts --test model \
        --test logs --no-fail-fast -- --show-output --skip memory_of_another_process \
        --skip writes_to_remote_regions_are_logged \
        --skip a_client_that_has_exited_is_disconnected \
        --skip words_are_zero_and_what_does_not_fit_is_refused || status=1
    local scenario
    for scenario in 'below ours' 'calls ours' 'restores ours' 'ignores ours' \
        'comes back above ours' many 'own handler' masks stacks 'one argument'; do
        LONGSHORE_HANDLERS_TEST=$scenario "${tests[@]}" --package longshore-mem --test handlers -- \
            --exact scenario || status=1
    done
    return "$status"
}

documentation() {
    RUSTDOCFLAGS='--deny warnings' cargo doc --workspace --no-deps "${features[@]}" "${locked[@]}"
}

# Whether a change of a crate's public API was meant.
public_api() { cargo xtask api; }

# Each published crate is built from its package alone. Cargo keeps what it unpacks by the path of the
# folder it builds in, and never looks at it again, so that folder is a new one each time.
packages() {
    local manifest names=() status=0
    local -x CARGO_TARGET_DIR
    CARGO_TARGET_DIR=$(realpath "$(mktemp --directory --tmpdir="${logs%/*}" packages.XXXXXX)")
    for manifest in crates/{memory/*,models/*,devices/*,longshore}/Cargo.toml; do
        names+=(--package "$(sed -n '/^name = /{s/^name = "\(.*\)"$/\1/p;q}' "$manifest")")
    done
    cargo package --allow-dirty "${names[@]}" "${locked[@]}" || status=1
    rm -rf "$CARGO_TARGET_DIR"
    return "$status"
}

oldest_rust() { cargo "+$rust_oldest" check --workspace --all-targets "${locked[@]}"; }

# A workspace of its own. libFuzzer itself, which is C++, is built only to fuzz.
fuzz_targets() {
    export CUSTOM_LIBFUZZER_PATH=/not/built/libfuzzer.a
    cargo fmt --manifest-path fuzz/Cargo.toml --check &&
        cargo clippy --manifest-path fuzz/Cargo.toml --target-dir "${logs%/*}/fuzz" \
            "${locked[@]}" -- --deny warnings
}

# The command that the README begins with, on a small model of its own.
load_a_model() {
    local cache status=0
    cache=$(mktemp -d) || return
    LONGSHORE_CACHE=$cache LONGSHORE_MODEL_SIZE=64MiB scripts/load-a-model.sh || status=1
    rm -rf "$cache"
    return "$status"
}

# The C library, as those use it who install it.
c_tests() { "${bounded[@]}" bindings/c/test.sh; }

# So the Python package.
python_tests() { "${bounded[@]}" bindings/python/test.sh; }

guest_tests() {
    "${bounded[@]}" cargo test --package longshore-vm-tests --test '*' --no-fail-fast "${locked[@]}"
}

bench() {
    local status=0 run=(cargo run --release --package longshore-bench "${locked[@]}" --)
    "${bounded[@]}" "${run[@]}" load --quick --json || status=1
    "${bounded[@]}" "${run[@]}" iov --quick --json || status=1
    "${bounded[@]}" "${run[@]}" pagetable --quick --json || status=1
    "${bounded[@]}" "${run[@]}" access --quick --json || status=1
    "${bounded[@]}" "${run[@]}" bounce --quick --json || status=1
    return "$status"
}

# --- Running and counting them ----------------------------------------------------------------

table=()
skips=()
failures=()
passed=0 failed=0 skipped=0

# Prints how many tests the log names as $2: passed, failed or ignored.
count() {
    awk -v word="$2" '
        /^ *test result:/ { for (i = 2; i <= NF; i++) if ($i ~ "^" word) sum += $(i - 1) }
        END { print sum + 0 }' "$1"
}

# Prints the parts of the log $1 that say which tests failed and why: of Rust's test runner the names and
# its sections of failures, which leave out the panics that tests expect; else lines of errors; else the end.
what_failed() {
    awk '/^test .* FAILED$/
        /^failures:$/ { on = 1 }
        /^test result:/ { on = 0 }
        on && NF && !/^ +([0-9]+:|at) / && ++lines <= 60' "$1" | grep . ||
        grep --extended-regexp --max-count=30 '^ *(error|FAILED|E  )|panicked at' "$1" ||
        tail --lines=10 "$1"
}

# Runs the function $1 as a step.
run() {
    local name=$1 log=$logs/$1.log began=$SECONDS status line
    printf '\n==> %s\n' "${name//_/ }"
    "$name" 2>&1 </dev/null | tee "$log"
    status=${PIPESTATUS[0]}
    local here_passed here_failed here_skipped=()
    here_passed=$(count "$log" passed)
    here_failed=$(count "$log" failed)
    mapfile -t here_skipped < <(grep '^ *SKIPPED' "$log")
    for line in "${here_skipped[@]}"; do
        skips+=("${name//_/ }: $line")
    done
    # A test that skipped itself was counted as passed.
    local unfounded=$((${#here_skipped[@]} < here_passed ? ${#here_skipped[@]} : here_passed))
    passed=$((passed + here_passed - unfounded))
    skipped=$((skipped + ${#here_skipped[@]} + $(count "$log" ignored)))
    local verdict=ok
    [[ $here_passed -gt 0 || ${#here_skipped[@]} -eq 0 ]] || verdict=skipped
    if [[ $status -ne 0 || $here_failed -gt 0 ]]; then
        verdict=FAILED
        failed=$((failed + (here_failed > 0 ? here_failed : 1)))
        mapfile -t -O ${#failures[@]} failures < <(what_failed "$log" | sed "s/^/${name//_/ }: /")
    fi
    table+=("$(printf '%-16s %-8s %5d s' "${name//_/ }" "$verdict" $((SECONDS - began)))")
    printf '==> %s: %s after %d s\n' "${name//_/ }" "$verdict" $((SECONDS - began))
}

# Notes that the step $1 is not run, and why.
skip() {
    local line
    line=$(printf '%-16s %-8s' "${1//_/ }" skipped)
    printf '\n==> %s: SKIPPED: %s\n' "${1//_/ }" "$2"
    table+=("$line")
    skips+=("${1//_/ }: $2")
    skipped=$((skipped + 1))
}

# Runs the step $1 where the command that follows it succeeds; skips it with the reason $2 else.
run_if() {
    local name=$1 reason=$2
    shift 2
    if "$@" >/dev/null 2>&1; then run "$name"; else skip "$name" "$reason"; fi
}

finish() {
    local status=$?
    # Leaving before the end is a failure of its own.
    [[ $status -eq 0 ]] || failed=$((failed + 1))
    printf '\n'
    if [[ ${#table[@]} -gt 0 ]]; then printf '%s\n' "${table[@]}"; fi
    if [[ ${#skips[@]} -gt 0 ]]; then printf '\nNot run:\n' && printf '  %s\n' "${skips[@]}"; fi
    if [[ ${#failures[@]} -gt 0 ]]; then
        printf '\nFailed:\n' && printf '  %s\n' "${failures[@]}"
    fi
    printf '\n%d s; logs in %s\n' "$SECONDS" "$logs"
    printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
    [[ $failed -eq 0 ]] || exit 1
}
trap finish EXIT

rm -rf "$logs"
mkdir -p "$logs" || exit
printf '==> setup\n'
setup_test || exit
table+=("$(printf '%-16s %-8s %5d s' setup ok "$SECONDS")")

run format
run_if shell_scripts "shellcheck is not installed" has_program shellcheck
run lints
run rules
run unit_tests
if $quick; then
    for step in loom_tests scalar_tests avx2_tests avx512_tests miri_tests aarch64_tests documentation \
        public_api packages \
        oldest_rust fuzz_targets load_a_model c_tests python_tests guest_tests bench; do
        skip "$step" "--quick"
    done
else
    run loom_tests
    run scalar_tests
    run_if avx2_tests "this machine has no AVX2, or not all that goes with it" has_isa avx2
    run_if avx512_tests "this machine has no AVX-512, or not all that goes with it" has_isa avx512
    run_if miri_tests "there is no $rust_nightly with Miri" cargo "+$rust_nightly" miri --version
    run_if aarch64_tests "nothing here builds and runs programs for AArch64" has_aarch64
    run documentation
    run_if public_api "there is no $rust_nightly" cargo "+$rust_nightly" --version
    run packages
    run_if oldest_rust "there is no Rust $rust_oldest" cargo "+$rust_oldest" --version
    run fuzz_targets
    run load_a_model
    run c_tests
    if [[ ${CI:-} == true ]]; then
        run python_tests
    else
        run_if python_tests "there is no Python 3.11 or newer with venv" has_python
    fi
    run guest_tests
    run bench
fi
