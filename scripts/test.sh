#!/usr/bin/env bash
# Installs what is missing and runs every test, the cheap ones first.
#
#   scripts/test.sh             everything
#   scripts/test.sh --quick     without the steps that take minutes
#   scripts/test.sh STEP...     these steps, such as miri_tests; CONTRIBUTING.md lists them
#
# With CI=true, the tests in a real kernel, in Go and Python programs and in a browser fail if they
# cannot run. Without it they are skipped. The output of each step is kept in target/test-logs. At the
# end a table lists the steps with seconds, CPU seconds and tests, followed by the ten slowest tests. The
# last line counts tests; a step that failed without a failed test counts as one failed test.
set -uo pipefail
# shellcheck source=scripts/setup.sh
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
# shellcheck source=scripts/steps.sh
. "$(dirname "${BASH_SOURCE[0]}")/steps.sh"

quick_steps=(format shell_scripts lints rules unit_tests)
long_steps=(stress_tests loom_tests isa_tests miri_tests aarch64_tests documentation public_api packages
    oldest_rust fuzz_targets load_a_model c_tests candle_tests python_tests guest_tests bench)
# Too long for every run; .ci/run-more runs them.
longer_steps=(fuzzing store_tests engine_tests llama_tests whole_programs)

steps=()
not_run=()
case "$#:${1:-}" in
0:) steps=("${quick_steps[@]}" "${long_steps[@]}") ;;
1:--quick) steps=("${quick_steps[@]}") not_run=("${long_steps[@]}") ;;
*) steps=("$@") ;;
esac
for step in "${steps[@]}"; do
    if [[ " ${quick_steps[*]} ${long_steps[*]} ${longer_steps[*]} " != *" $step "* ]]; then
        sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2
        printf '\nsteps: %s\n' "${quick_steps[*]} ${long_steps[*]} ${longer_steps[*]}" >&2
        exit 2
    fi
done

cd "$repository" || exit
logs=${CARGO_TARGET_DIR:-target}/test-logs
# The optional features. The step with the oldest Rust builds without them.
features=(--features "longshore/vfio-user longshore/vhost-user longshore/vm-memory longshore/tracing")
locked=()
if [[ ${CI:-} == true ]]; then
    # Without line numbers of backtraces, test programs have a third of their size.
    export LONGSHORE_REQUIRE_GUEST=1 CARGO_INCREMENTAL=0 CARGO_TERM_PROGRESS_WHEN=never CARGO_PROFILE_DEV_DEBUG=0
    # CI tests the committed lock file.
    locked=(--locked)
    # A test that hangs must not hide what the others found.
    step_seconds=${LONGSHORE_STEP_SECONDS:-1500} all_seconds=${LONGSHORE_ALL_SECONDS:-5100}
fi
export CARGO_TERM_COLOR=never

# --- The steps --------------------------------------------------------------------------------

format() { cargo fmt --all --check; }

shell_scripts() {
    shellcheck --external-sources scripts/*.sh bindings/*/*.sh bindings/*/*/*.sh .ci/run* && scripts/test-steps.sh
}

lints() {
    local status=0 wing
    local -r deny=(-- --deny warnings)
    cargo clippy --workspace --all-targets "${features[@]}" "${locked[@]}" "${deny[@]}" || status=1
    # Each wing also builds without the other.
    for wing in models devices; do
        cargo clippy --package longshore --no-default-features --features "$wing" \
            "${locked[@]}" "${deny[@]}" || status=1
    done
    return "$status"
}

rules() { cargo xtask check; }

# All tests except the guest tests; the library tests of their package are included. A test that lacks
# what it needs prints SKIPPED, which cargo shows only with --show-output.
unit_tests() {
    local status=0
    cargo_tests test --workspace --exclude longshore-vm-tests --lib --bins --tests --examples \
        --no-fail-fast "${features[@]}" "${locked[@]}" -- --show-output || status=1
    cargo_tests test --package longshore-vm-tests --lib "${locked[@]}" -- --show-output || status=1
    # A `compile_fail` test that fails for another reason than the one it shows is to fail the step.
    RUSTDOC=$PWD/scripts/rustdoc.sh cargo_tests test --workspace --doc --no-fail-fast \
        "${features[@]}" "${locked[@]}" -- --show-output || status=1
    return "$status"
}

# Stress tests with many processes and threads, for 20 seconds or LONGSHORE_STRESS_SECONDS.
stress_tests() {
    local -x LONGSHORE_STRESS_SECONDS=${LONGSHORE_STRESS_SECONDS:-20}
    cargo_tests test --workspace --exclude longshore-vm-tests --test stress --no-fail-fast \
        "${features[@]}" "${locked[@]}" -- --ignored --show-output
}

# Model checks of all interleavings of threads that change one page table, access memory while it is
# unmapped, write while a dirty log is collected, wait for replies over one connection, or want a
# resource that another thread keeps.
loom_tests() {
    local -x RUSTFLAGS='--cfg loom' CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/loom
    # Link-time optimisation of several small programs takes longer than they run.
    local -x CARGO_PROFILE_RELEASE_LTO=off
    cargo_tests test --release --package longshore-pagetable --package longshore-sync \
        --package longshore-access --package longshore-vfio-user --package longshore-domain \
        --test loom --test loom_grace --test loom_biased --test loom_dirty --test loom_mailbox \
        --no-fail-fast "${locked[@]}" --
}

# Copies, checksums, digests and page tables with each instruction set of the machine except the last
# one, which is the default and is covered by the unit tests. Three page-table formats are enough: they
# have the three widths of entry and block, and the rest is the same code.
isa_tests() {
    local status=0 here
    local tests=(cargo_tests test "${locked[@]}" --no-fail-fast)
    here=$(cargo test --package longshore-mem --lib "${locked[@]}" -- isa:: --show-output |
        sed -n 's/^instruction sets of this machine: \[\(.*\)\]$/\L\1/p')
    if [[ $here != scalar* ]]; then
        printf 'error: the tests did not print the instruction sets of this machine\n'
        return 1
    fi
    read -ra here <<<"${here//,/}"
    for LONGSHORE_ISA in "${here[@]:0:${#here[@]}-1}"; do
        export LONGSHORE_ISA
        printf '    %s\n' "$LONGSHORE_ISA"
        "${tests[@]}" --package longshore-mem --package longshore-iov --tests -- --show-output ||
            status=1
        "${tests[@]}" --package longshore-pagetable --lib -- simd:: || status=1
        "${tests[@]}" --package longshore-pagetable --test conformance -- vtd_second_48:: \
            stage1_16k_40:: x86_64_5_levels:: || status=1
    done
    unset LONGSHORE_ISA
    return "$status"
}

# Miri has no memfd, no madvise and no io_uring, so code that asks the kernel for memory cannot run under
# it. The modules named here do not, and every test in them passes. Miri uses one processor, so the
# packages run side by side, the longest first. Their output is printed when all have ended.
miri_tests() {
    local status=0 running=0 at_once package
    # Miri runs the programs itself.
    unset CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER
    # proptest reads the clock and the current folder, hence no isolation; its cases take seconds each.
    # crates/memory/mem/src/copy/bytewise.rs gives the reason for Tree Borrows.
    local -x MIRIFLAGS='-Zmiri-disable-isolation -Zmiri-tree-borrows'
    local -x PROPTEST_CASES=${LONGSHORE_MIRI_CASES:-3}
    local packages=(access vm_memory iov_tests iov mem pagetable load serve counts domain sync heap)
    at_once=$(nproc)
    cargo "+$rust_nightly" miri --version
    mkdir -p "$logs/miri"
    for package in "${packages[@]}"; do
        if [[ $running -ge $at_once ]]; then
            wait -n || status=1
            running=$((running - 1))
        fi
        printf '    %s\n' "$package"
        "miri_of_$package" >"$logs/miri/$package.log" 2>&1 &
        running=$((running + 1))
    done
    while [[ $running -gt 0 ]]; do
        wait -n || status=1
        running=$((running - 1))
    done
    for package in "${packages[@]}"; do cat "$logs/miri/$package.log"; done
    return "$status"
}

miri() { cargo_tests "+$rust_nightly" miri test "${locked[@]}" "$@"; }

# Tracks a slice of atomics as a whole; tracking each entry takes far longer.
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
# Miri's weak-memory emulation does not support accesses of several sizes to one place, as in rings.
# Addresses in page tables are integers, hence permissive provenance.
miri_of_counts() {
    local -x MIRIFLAGS="$MIRIFLAGS -Zmiri-disable-weak-memory-emulation"
    MIRIFLAGS+=' -Zmiri-permissive-provenance'
    miri_of_tables --package longshore-access --test counts
}
miri_of_domain() { miri --package longshore-domain --lib -- pool:: dma_pool:: iova::ranges::; }
miri_of_sync() { miri --package longshore-sync --lib; }
# Only the protocol: the other modules need sockets.
miri_of_serve() { miri --package longshore-serve --lib -- protocol::; }
miri_of_heap() { miri_of_tables --package longshore-heap --lib -- heap:: page_report:: error::; }
miri_of_load() {
    miri_of_tables --package longshore-load --lib -- budget:: fill::piece:: fill::route::
}

# The assembly for AArch64, emulated. QEMU delivers memory faults as a kernel would, but it emulates one
# process, so tests that start a second process of their own program cannot run. Those tests would start
# the scenarios of signal handlers; here the scenarios run one by one, except those that end in a fatal
# signal and the one that sends signals, which crashes the emulator. The tests in Go and Python programs
# would load a library for this machine's own architecture.
aarch64_tests() {
    local status=0
    local -x CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
    local -x CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER='env RUSTC_BOOTSTRAP=1 qemu-aarch64 -L /usr/aarch64-linux-gnu'
    # Without optimisation the emulated tests take minutes.
    local -x CARGO_PROFILE_DEV_OPT_LEVEL=1
    local tests=(cargo_tests test --target aarch64-unknown-linux-gnu "${locked[@]}")
    "${tests[@]}" --package longshore-mem --package longshore-iov --package longshore-pagetable \
        --tests --no-fail-fast -- \
        --show-output --skip processes:: --skip faults_outside_of_copies \
        --skip keeps_its_handlers --skip a_failed_allocation_is_not_counted_as_used || status=1
    # The emulator accepts mappings of any length, and treats another process's addresses as the host's.
    # Its /proc/PID/stat has another start of the process for each thread.
    "${tests[@]}" --package longshore-access --lib --test faults --test counts --test model \
        --test logs --no-fail-fast -- --show-output \
        --skip memory_of_another_process --skip writes_to_remote_regions_are_logged \
        --skip a_client_that_has_exited_is_disconnected \
        --skip a_socket_that_the_kernel_keeps_for_a_killed_server_is_replaced \
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

# Fails if a crate's public API differs from its `api.txt`.
public_api() { cargo xtask api; }

# Builds each published crate from its package alone. Cargo caches what it unpacks by the path of the
# target folder and never checks it again, so each run uses a new folder.
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

# Checks the crates that users build, without this project's tests and tools.
oldest_rust() {
    cargo "+$rust_oldest" check --workspace --exclude longshore-bench --exclude longshore-vm-tests \
        --exclude longshore-guest --exclude xtask --lib --bins --examples "${locked[@]}"
}

# A workspace of its own. libFuzzer itself, which is C++, is built only for fuzzing.
fuzz_targets() {
    export CUSTOM_LIBFUZZER_PATH=/not/built/libfuzzer.a
    cargo fmt --manifest-path fuzz/Cargo.toml --check &&
        cargo clippy --manifest-path fuzz/Cargo.toml --target-dir "${logs%/*}/fuzz" \
            "${locked[@]}" -- --deny warnings
}

# Runs the first command of the README on a small model.
load_a_model() {
    local cache status=0
    cache=$(mktemp -d) || return
    LONGSHORE_CACHE=$cache LONGSHORE_MODEL_SIZE=64MiB scripts/load-a-model.sh || status=1
    rm -rf "$cache"
    return "$status"
}

# The C library, tested as its users install it.
c_tests() { bindings/c/test.sh; }

# The backend for candle, a workspace of its own.
candle_tests() {
    local -x CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$repository/target}/candle
    bindings/candle/test.sh
}

# The Python package, likewise.
python_tests() { bindings/python/test.sh; }

guest_tests() {
    cargo_tests test --package longshore-vm-tests --test '*' --no-fail-fast "${locked[@]}"
}

# Built like the unit tests, because a release build takes minutes. The figures mean nothing.
bench() {
    local status=0 bench
    for bench in load programs node remote iov pagetable access bounce; do
        cargo run --package longshore-bench "${locked[@]}" -- \
            "$bench" --quick --json || status=1
    done
    return "$status"
}

# Runs each target for a minute, or LONGSHORE_FUZZ_SECONDS, on a copy of its corpus.
fuzzing() {
    local status=0 target corpus
    local -x CARGO_TARGET_DIR=${logs%/*}/fuzz
    local -x LSAN_OPTIONS=suppressions=$repository/fuzz/suppressions.txt:print_suppressions=0
    cargo fuzz --version >/dev/null 2>&1 || cargo install --quiet --locked cargo-fuzz || return
    corpus=$(mktemp -d) || return
    for target in fuzz/fuzz_targets/*.rs; do
        target=$(basename "$target" .rs)
        mkdir "$corpus/$target"
        if [[ -d fuzz/corpus/$target ]]; then cp -r "fuzz/corpus/$target" "$corpus"; fi
        printf '    %s\n' "$target"
        # Leaks are looked for at the end only: after each input, a thread of a server that is just
        # starting or ending would be taken for one.
        cargo "+$rust_nightly" fuzz run "$target" "$corpus/$target" -- -verbosity=0 \
            -max_total_time="${LONGSHORE_FUZZ_SECONDS:-60}" -print_final_stats=1 -detect_leaks=0 ||
            status=1
    done
    rm -rf "$corpus"
    return "$status"
}

# The Python package, also with emulators of other object stores.
store_tests() { bindings/python/stores.sh; }

engine_tests() { bindings/python/engines/test.sh; }

# llama.cpp with published models.
llama_tests() {
    local programs
    programs=$(scripts/llama-cpp.sh) || return
    LONGSHORE_LLAMA_CPP=$programs cargo_tests test --package longshore-cli --test llama_cpp "${locked[@]}"
}

# Compares the command with other programs, each from its start to its end.
whole_programs() {
    cargo run --release --package longshore-bench "${locked[@]}" -- programs
}

# Prints the reason if the step $1 cannot run here.
why_not() {
    case $1 in
    shell_scripts) has_program shellcheck || echo "shellcheck is not installed" ;;
    miri_tests) cargo "+$rust_nightly" miri --version >/dev/null 2>&1 ||
        echo "there is no $rust_nightly with Miri" ;;
    aarch64_tests) has_aarch64 || echo "there is no AArch64 linker, library or emulator" ;;
    public_api | fuzzing) cargo "+$rust_nightly" --version >/dev/null 2>&1 ||
        echo "there is no $rust_nightly" ;;
    oldest_rust) cargo "+$rust_oldest" --version >/dev/null 2>&1 ||
        echo "there is no Rust $rust_oldest" ;;
    python_tests) [[ ${CI:-} == true ]] || has_python 2>/dev/null ||
        echo "there is no Python 3.11 or newer with venv" ;;
    esac
}

begin_steps || exit
printf '==> setup\n'
setup_test || exit
add_line setup ok "$SECONDS" '' ''
for step in "${steps[@]}"; do
    reason=$(why_not "$step")
    if [[ -z $reason ]]; then run "$step"; else skip "$step" "$reason"; fi
done
for step in "${not_run[@]}"; do skip "$step" --quick; done
