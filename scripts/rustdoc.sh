#!/usr/bin/env bash
# Runs rustdoc and has it check the error codes of `compile_fail` tests. Without the variable, the rustdoc
# of a stable compiler ignores the codes, and a test passes that fails to compile for another reason.
# Cargo's RUSTDOC names this program, because Cargo would pass the variable to the compiler as well and
# build everything again.
RUSTC_BOOTSTRAP=1 exec rustdoc "$@"
