#!/usr/bin/env bash
# Installs what is missing, builds Longshore and loads a model file into device-shareable memory.
#
#   scripts/load-a-model.sh FILE    loads this file
#   scripts/load-a-model.sh         creates a safetensors file of 1 GiB, keeps it, and loads it
#
# LONGSHORE_MODEL_SIZE sets the size of the created file: 4GiB, 64MiB.
set -euo pipefail
# shellcheck source=scripts/setup.sh
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

if [[ $# -gt 1 || ${1:-} == -* ]]; then
    sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2
    exit 2
fi
model=${1:+$(realpath -- "$1")}

setup_build
cd "$repository"
cargo build --release --package longshore-cli
longshore=${CARGO_TARGET_DIR:-target}/release/longshore

if [[ -z $model ]]; then
    size=${LONGSHORE_MODEL_SIZE:-1GiB}
    cache=${LONGSHORE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/longshore}
    model=$cache/model-$size.safetensors
    if [[ ! -e $model ]]; then
        mkdir -p "$cache"
        "$longshore" make-model --size "$size" "$model"
        echo "the file is kept for the next run"
    fi
    # Evict the new file from the page cache, so that it is read from the disk.
    sync "$model"
    dd if="$model" iflag=nocache count=0 status=none
fi

printf '\n$ longshore inspect %s\n' "$model"
# sed reads to the end; head would break the pipe.
"$longshore" inspect "$model" | sed -n '1,12p;13s/.*/…/p'

printf '\n$ longshore load --verify crc32c %s\n' "$model"
"$longshore" load --verify crc32c "$model"
