#!/usr/bin/env bash
# Tests the counts of steps.sh, and that a filter without a test is an error. A function replaces cargo
# and prints the output of a test program. At the end, tests that rustdoc.sh checks the codes of errors.
set -uo pipefail
work=$(mktemp -d) || exit
trap 'rm -rf "$work"' EXIT
checked=0 wrong=0

# Runs the steps that are defined in $1, and keeps their output.
steps() {
    # shellcheck disable=SC2016 # The inner shell expands it.
    env -i PATH="$PATH" logs="$work/logs" bash -c '
        set -uo pipefail
        . scripts/steps.sh
        cargo() { printf "%s\n" "test a::one ... ok <1.500s>" "test b::two ... ok <0.250s>" \
            "test result: ok. 2 passed; 0 failed; 0 ignored"; }
        begin_steps || exit
        eval "$1"' steps "$1" >"$work/said" 2>&1
}

# Checks that the steps defined in $2 end with the status $1, and that the output matches each pattern in
# the other arguments.
check() {
    local expected=$1 script=$2 status=0 pattern
    shift 2
    checked=$((checked + 1))
    steps "$script" || status=$?
    for pattern; do
        if [[ $status -ne $expected ]] || ! grep --quiet --extended-regexp "$pattern" "$work/said"; then
            printf 'error: status %d, expected %d and "%s", of: %s\n' \
                "$status" "$expected" "$pattern" "$script"
            sed 's/^/  | /' "$work/said"
            wrong=$((wrong + 1))
            return
        fi
    done
}

check 0 'a_tests() { cargo_tests test -- a:: && cargo_tests test -- --exact b::two; }; run a_tests' \
    '^a tests +ok +[0-9]+ +[0-9]+ +4$' '^4 passed, 0 failed, 0 skipped$'
check 0 'a_tests() { cargo_tests test; }; run a_tests' '^ +1\.5 s  a: a::one$'
check 1 'a_tests() { cargo_tests test -- a:: c::; }; run a_tests' \
    '^a tests +FAILED' '^  a tests: error: no test is called c::$' '^2 passed, 1 failed'
check 1 'a_tests() { cargo_tests test -- --exact a::on; }; run a_tests' 'no test is called a::on '
check 1 'a_tests() { cargo_tests test -- --skip c; }; run a_tests' 'called c, which is to be skipped'
check 1 'cargo() { echo "test result: ok. 0 passed; 0 failed"; }
    a_tests() { cargo_tests test -- --ignored; }; run a_tests' 'error: no test ran: cargo test'
check 1 'a_tests() { true; }; run a_tests' 'the step ran no test'
check 0 'a_step() { true; }; run a_step' '^a step +ok +[0-9]+ +[0-9]+ +$'
check 1 'a_step() { false; }; run a_step' '^a step +FAILED' '^0 passed, 1 failed, 0 skipped$'
check 0 'a_tests() { echo "SKIPPED: no disk"; cargo_tests test; }; run a_tests' \
    '^  a tests: SKIPPED: no disk$' '^1 passed, 0 failed, 1 skipped$'
check 0 'skip a_step "no disk"' '^a step +skipped' '^  a step: no disk$'
check 1 'a_tests() { printf "%s\n" "test x ... FAILED: gcc" "  and why" "test y ... ok" \
    "test result: FAILED. 1 passed; 1 failed; 0 ignored"; }; run a_tests' \
    '^  a tests: test x ... FAILED: gcc$' '^  a tests:   and why$'
check 1 'step_seconds=1; a_tests() { echo "test a has been running for over 60 seconds"
    setsid sleep 61 & sleep 62; }; run a_tests; pgrep -f "^sleep 6[12]$" && echo "still runs"
    a_step() { echo "after it"; }; run a_step' '^  a tests: error: the step was ended after 1 s$' \
    '^  a tests: error: a did not end$' '^  a tests: .* setsid sleep 61$|sleep 61$' '^after it$'
check 0 'a_step() { setsid sleep 63 & }; run a_step; pgrep -f "^sleep 63$" || echo "nothing is left"' \
    '^nothing is left$'
check 1 'all_seconds=0; a_step() { echo "it runs"; }; run a_step' 'not run, because all steps together'
check 1 'a_step() { kill $$; sleep 64; }; run a_step' '^a step +ended' '^0 passed, 1 failed'
check 1 'exit 3' '^0 passed, 1 failed'

# Whether the `compile_fail` test of a program with the error E0425 passes that names the error $1.
expects() {
    # shellcheck disable=SC2016 # These are no commands.
    printf '//! ```compile_fail,%s\n//! absent();\n//! ```\n' "$1" >"$work/lib.rs"
    scripts/rustdoc.sh --test "$work/lib.rs" >"$work/said" 2>&1
}

checked=$((checked + 1))
if ! expects E0425 || expects E0277 || ! grep --quiet 'codes were not found.*E0277' "$work/said"; then
    printf 'error: rustdoc.sh does not check the codes of errors:\n'
    sed 's/^/  | /' "$work/said"
    wrong=$((wrong + 1))
fi

printf 'test result: %s. %d passed; %d failed; 0 ignored\n' \
    "$([[ $wrong -eq 0 ]] && echo ok || echo FAILED)" $((checked - wrong)) "$wrong"
[[ $wrong -eq 0 ]]
