#!/usr/bin/env bash
# Unpacks the llama.cpp of Debian sid into the user's cache, without installing it, and prints the folder
# with its programs: llama-bench, llama-completion, llama-perplexity, llama-quantize, llama-gguf-split.
#
#   scripts/llama-cpp.sh
#
# It needs apt-get and dpkg, and 100 MB. A folder that is complete is used again.
set -euo pipefail

cache=${XDG_CACHE_HOME:-$HOME/.cache}/longshore
place=$cache/llama.cpp-$(uname -m)
mkdir -p "$cache" && exec {lock}>"$place.lock" && flock "$lock"
if [[ ! -e $place/complete ]]; then
    rm -rf "$place"
    mkdir -p "$place"/{lists,archives}/partial "$place/files" "$place/bin"
    touch "$place/status"
    # The mirror that this machine uses.
    mirror=$(sed -nE 's/^URIs: *([^ ]+).*/\1/p; s/^deb (\[[^]]*\] )?([^ ]+) .*/\2/p' \
        /etc/apt/sources.list.d/*.sources /etc/apt/sources.list /etc/apt/sources.list.d/*.list \
        2>/dev/null | grep -v security | head -n 1) || true
    [[ -n $mirror ]] || { echo "no Debian mirror in /etc/apt" >&2 && exit 1; }
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror sid main" \
        >"$place/sources.list"
    options=(-o "Dir::Etc::sourcelist=$place/sources.list" -o Dir::Etc::sourceparts=-
        -o "Dir::State::lists=$place/lists" -o "Dir::State::status=$place/status"
        -o "Dir::Cache::archives=$place/archives" -o Debug::NoLocking=1
        -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache=)
    # Its libraries come with it, those of C and C++ among them.
    apt-get "${options[@]}" --quiet --quiet update >&2
    apt-get "${options[@]}" --quiet --quiet --yes --download-only --no-install-recommends \
        install llama.cpp-tools llama.cpp-tools-extra >&2
    for package in "$place"/archives/*.deb; do dpkg-deb --extract "$package" "$place/files"; done
    libraries=$(dirname "$(find "$place/files/usr/lib" -name 'libllama.so.0' | head -n 1)")
    loader=$(find "$place/files" -name 'ld-linux-*.so.*' | head -n 1)
    backends=$(dirname "$(find "$place/files/usr/lib" -path '*/ggml/*' -name 'libggml-cpu-*.so' | head -n 1)")
    for program in "$place"/files/usr/bin/llama-*; do
        # It looks for the code for this processor in the current folder, too.
        cat >"$place/bin/$(basename "$program")" <<SHELL
#!/bin/sh
cd '$backends' || exit 1
exec '$loader' --library-path '$libraries:$libraries/llama' '$program' "\$@"
SHELL
    done
    chmod +x "$place"/bin/*
    rm -rf "$place"/{lists,archives}
    "$place/bin/llama-bench" --version >&2
    touch "$place/complete"
fi
echo "$place/bin"
