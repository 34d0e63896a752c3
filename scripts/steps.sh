# Sourced by scripts that run tests in steps. Runs each step, counts its tests, and prints a table at the
# end. The caller sets `logs`, the folder for the output of each step. A step that takes longer than
# `step_seconds`, or longer than what is left of `all_seconds`, is ended and has failed.
# shellcheck shell=bash
# shellcheck disable=SC2154 # `logs` is the caller's.

step_seconds=infinity
all_seconds=infinity

table=()
skips=()
failures=()
passed=0 failed=0 skipped=0 tests=0 cpu_seconds=0
# The process group of the step that runs, and the mark in the environment of its processes.
step='' mark=''

# --- Rust tests ---------------------------------------------------------------------------------

# Makes Rust's test programs print how long each test took. The option is unstable, and a test program
# from a stable compiler accepts it only if this variable is set. Cargo's runner setting sets it for
# those programs alone, because a compiler would obey it too.
export CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER='env RUSTC_BOOTSTRAP=1'

# Runs `cargo $@`, where $1 is `test`. Also fails if no test ran, or if a filter after `--`, or a
# `--skip` there, matches no test: a renamed test would otherwise drop out unnoticed.
cargo_tests() {
    local output status=0 argument place=before exact=false
    local ours=() theirs=(-Zunstable-options --report-time) filters=() skipping=()
    for argument; do
        case $place:$argument in
        before:--) place=behind && continue ;;
        # rustdoc runs documentation tests and does not take these options.
        before:--doc) theirs=() ;;
        skip:*) skipping+=("$argument") && place=behind ;;
        behind:--skip) place=skip ;;
        behind:--exact) exact=true ;;
        behind:[!-]*) filters+=("$argument") ;;
        esac
        if [[ $place == before ]]; then ours+=("$argument"); else theirs+=("$argument"); fi
    done
    output=$(mktemp "$logs/output.XXXXXX") || return
    cargo "${ours[@]}" -- "${theirs[@]}" 2>&1 | tee "$output"
    [[ ${PIPESTATUS[0]} -eq 0 ]] || status=1
    if [[ $(count "$output" passed) -eq 0 && $(count "$output" failed) -eq 0 ]]; then
        printf 'error: no test ran: cargo %s\n' "$*"
        status=1
    fi
    for argument in "${filters[@]}"; do
        if $exact; then argument+=' '; fi
        if ! grep --quiet "^test .*$argument" "$output"; then
            printf 'error: no test is called %s\n' "$argument"
            status=1
        fi
    done
    if [[ ${#skipping[@]} -gt 0 ]]; then
        cargo "${ours[@]}" -- --list >"$output" 2>/dev/null || status=1
        for argument in "${skipping[@]}"; do
            if ! grep --quiet "$argument.*: test$" "$output"; then
                printf 'error: no test is called %s, which is to be skipped\n' "$argument"
                status=1
            fi
        done
    fi
    rm -f "$output"
    return "$status"
}

# --- Steps --------------------------------------------------------------------------------------

# Prints the number of tests that the log $1 reports as $2: passed, failed or ignored.
count() {
    awk -v word="$2" '
        /^ *test result:/ { for (i = 2; i <= NF; i++) if ($i ~ "^" word) sum += $(i - 1) }
        END { print sum + 0 }' "$1"
}

# Prints which tests failed and why, from the log $1: the names, and the `failures:` sections of Rust's
# test runner, which leave out panics that tests expect. Without those it prints lines with errors, and
# without such lines the end of the log.
what_failed() {
    awk '/^test / { after = 0 }
        /^test result:/ { on = 0; next }
        /^test .* FAILED/ { print; after = 20; next }
        /^failures:$/ { on = 1 }
        (on || after-- > 0) && NF && !/^ +([0-9]+:|at) / && ++lines <= 60' "$1" | grep . ||
        grep --extended-regexp --max-count=30 '^ *(error|FAILED|E  )|panicked at' "$1" ||
        tail --lines=10 "$1"
}

# Prints the tests that had not ended when the step with the log $1 was ended.
unfinished() {
    awk '/has been running for over/ { slow[$2] }
        /^test .* \.\.\. (ok|FAILED|ignored)/ { delete slow[$2] }
        END { for (test in slow) print "error: " test " did not end" }' "$1"
}

# Prints the ten slowest tests, with their steps, from lines that name a test and end in seconds in angle
# brackets.
slowest() {
    local log name
    for log in "$logs"/*.log; do
        [[ -e $log ]] || return
        name=${log##*/}
        sed -n "s/^test \(.*\) \.\.\. .*<\([0-9.]*\)s>.*/\2 ${name%.log}: \1/p" "$log"
    done | sort --numeric-sort --reverse | head -n 10 |
        awk '{ seconds = $1; sub(/^[^ ]* /, ""); gsub(/_tests:/, ":"); printf "  %7.1f s  %s\n", seconds, $0 }'
}

# Adds a line to the table: step, verdict, seconds, CPU seconds, tests.
add_line() {
    local line
    printf -v line '%-16s %-8s %6s %6s %7s' "$@"
    table+=("$line")
}

# Prints the ids of the processes of the step that runs, also of those that left its process group. They
# have `$mark` in their environment.
processes_of_step() {
    local file
    # A process that waits for a file system can make this wait, too.
    timeout --signal=KILL 10 grep --files-with-matches --no-messages --null-data --line-regexp \
        "LONGSHORE_TEST_STEP=$mark" /proc/[0-9]*/environ | while IFS=/ read -r _ _ file _; do
        printf '%s\n' "$file"
    done
}

# Kills all processes of the step. New ones may start meanwhile, hence the rounds.
end_step() {
    local left
    for _ in {1..20}; do
        if [[ -n $step ]]; then kill -KILL -- "-$step" 2>/dev/null; fi
        mapfile -t left < <(processes_of_step)
        [[ ${#left[@]} -gt 0 ]] || return 0
        kill -KILL "${left[@]}" 2>/dev/null
        sleep 0.1
    done
    printf 'error: processes that cannot be killed: %s\n' "${left[*]}"
    return 1
}

# Runs the function $1 with its output in the file $2, and shows it, for at most $3 seconds. The step is a
# process group of its own, which can be killed as a whole.
run_within() {
    local name=$1 log=$2 limit=$3 ended status=0 shown clock left abort
    mark=$name-$$
    set -m
    (export LONGSHORE_TEST_STEP=$mark && "$name") >>"$log" 2>&1 </dev/null &
    step=$!
    set +m
    tail --follow --lines=+1 --sleep-interval=0.2 --pid="$step" "$log" &
    shown=$!
    sleep "$limit" &
    clock=$!
    wait -n -p ended "$step" "$clock" || status=$?
    if [[ $ended == "$clock" ]]; then
        status=1
        # A test that serves a FUSE mount can hang in it, and cannot be killed then.
        if [[ ${CI:-} == true ]]; then
            for abort in /sys/fs/fuse/connections/*/abort; do
                [[ ! -w $abort ]] || echo 1 >"$abort"
            done
            sleep 1
        fi
        # shellcheck disable=SC2094 # `unfinished` has read the log when it prints.
        {
            printf 'error: the step was ended after %s s\n' "$limit"
            unfinished "$log"
            mapfile -t left < <(processes_of_step)
            if [[ ${#left[@]} -gt 0 ]]; then
                timeout --signal=KILL 10 ps -o pid,ppid,stat,etime,wchan:24,args --pid "$(IFS=, && echo "${left[*]}")" | cut -c -160
            fi
        } >>"$log" 2>&1
    fi
    kill "$clock" 2>/dev/null
    # Processes that the step left behind would disturb the next ones.
    end_step >>"$log" 2>&1
    step=
    # The exit status of the step is known. These two waits collect what was killed.
    wait "$clock" "$shown" 2>/dev/null
    return "$status"
}

# Prints the seconds that the next step may take.
seconds_left() {
    local seconds=$all_seconds
    if [[ $seconds != infinity ]]; then seconds=$((seconds - SECONDS)); fi
    if [[ $seconds == infinity || ($step_seconds != infinity && $step_seconds -lt $seconds) ]]; then
        seconds=$step_seconds
    fi
    printf '%s\n' "$seconds"
}

# Runs the function $1 as a step.
run() {
    local name=$1 log=$logs/$1.log began=$SECONDS status=0 line cpu limit TIMEFORMAT='%U %S'
    printf '\n==> %s\n' "${name//_/ }"
    : >"$log"
    limit=$(seconds_left)
    if [[ $limit != infinity && $limit -le 0 ]]; then
        printf 'error: not run, because all steps together took %s s\n' "$all_seconds" | tee "$log"
        status=1 && printf '0 0\n' >"$logs/time"
    else
        { time run_within "$name" "$log" "$limit" || status=$?; } 2>"$logs/time"
    fi
    cpu=$(awk '{ print int($1 + $2 + 0.5) }' "$logs/time")
    cpu_seconds=$((cpu_seconds + cpu))
    local here_passed here_failed here_skipped=()
    here_passed=$(count "$log" passed)
    here_failed=$(count "$log" failed)
    mapfile -t here_skipped < <(grep '^ *SKIPPED' "$log")
    for line in "${here_skipped[@]}"; do
        skips+=("${name//_/ }: $line")
    done
    # The test runner counted a test that skipped itself as passed.
    local unfounded=$((${#here_skipped[@]} < here_passed ? ${#here_skipped[@]} : here_passed))
    passed=$((passed + here_passed - unfounded))
    skipped=$((skipped + ${#here_skipped[@]} + $(count "$log" ignored)))
    local verdict=ok
    [[ $here_passed -gt 0 || ${#here_skipped[@]} -eq 0 ]] || verdict=skipped
    if [[ $status -eq 0 && $name == *_tests && $here_passed -eq 0 && $verdict == ok ]]; then
        printf 'error: the step ran no test\n' | tee --append "$log"
        status=1
    fi
    if [[ $status -ne 0 || $here_failed -gt 0 ]]; then
        verdict=FAILED
        failed=$((failed + (here_failed > 0 ? here_failed : 1)))
        mapfile -t -O ${#failures[@]} failures < <(what_failed "$log" | sed "s/^/${name//_/ }: /")
    fi
    local here_tests=$((here_passed - unfounded + here_failed))
    tests=$((tests + here_tests))
    [[ $here_tests -gt 0 ]] || here_tests=
    add_line "${name//_/ }" "$verdict" $((SECONDS - began)) "$cpu" "$here_tests"
    printf '==> %s: %s after %d s\n' "${name//_/ }" "$verdict" $((SECONDS - began))
}

# Records that the step $1 is not run, with the reason $2.
skip() {
    printf '\n==> %s: SKIPPED: %s\n' "${1//_/ }" "$2"
    add_line "${1//_/ }" skipped '' '' ''
    skips+=("${1//_/ }: $2")
    skipped=$((skipped + 1))
}

# Prints the table, the skipped and the slowest tests, the failures, and the sum. It is the exit trap.
finish() {
    local status=$? line
    # A signal that ended this script did not end the step.
    if [[ -n $step ]]; then
        end_step
        line=${mark%-*}
        add_line "${line//_/ }" ended '' '' ''
    fi
    # An early exit is a failure too.
    [[ $status -eq 0 ]] || failed=$((failed + 1))
    printf '\n%-16s %-8s %6s %6s %7s\n' step '' s 'cpu s' tests
    if [[ ${#table[@]} -gt 0 ]]; then printf '%s\n' "${table[@]}"; fi
    printf '%-16s %-8s %6d %6d %7d\n' all '' "$SECONDS" "$cpu_seconds" "$tests"
    if [[ ${#skips[@]} -gt 0 ]]; then printf '\nNot run:\n' && printf '  %s\n' "${skips[@]}"; fi
    printf '\nThe ten slowest tests:\n'
    slowest
    if [[ ${#failures[@]} -gt 0 ]]; then
        printf '\nFailed:\n' && printf '  %s\n' "${failures[@]}"
    fi
    printf '\n%d s; logs in %s\n' "$SECONDS" "$logs"
    printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
    [[ $failed -eq 0 ]] || exit 1
}

# Creates an empty folder for the logs, and sets `finish` as the exit trap.
begin_steps() {
    trap finish EXIT
    trap 'exit 130' INT TERM
    rm -rf "$logs"
    mkdir -p "$logs"
}
