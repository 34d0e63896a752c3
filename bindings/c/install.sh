#!/usr/bin/env bash
# Builds the C library and installs it: liblongshore.so, liblongshore.a, longshore.h and
# longshore.pc.
#
#   bindings/c/install.sh [--debug] PREFIX
#
# PREFIX is an absolute path, such as /usr/local. Files are written below DESTDIR if that is set; it
# does not appear in longshore.pc. The library is built in CARGO_TARGET_DIR if that is set.
# Only cargo and a C linker are needed.
set -euo pipefail

profile=release
if [[ ${1:-} == --debug ]]; then
    profile=dev
    shift
fi
if [[ $# -ne 1 || $1 != /* ]]; then
    sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2
    exit 2
fi
prefix=${1%/}
source=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$source/../.."

# path+file:///…/bindings/c#longshore-c@0.1.0
version=$(cargo pkgid --quiet --package longshore-c)
version=${version##*[@#]}
url=$(sed -n 's/^repository = "\(.*\)"$/\1/p' Cargo.toml)
# While the major version is 0, each minor version has its own ABI.
abi=${version%%.*}
if [[ $abi == 0 ]]; then
    abi=${version%.*}
fi

target=${CARGO_TARGET_DIR:-$PWD/target}
cargo rustc --package longshore-c --lib --profile "$profile" --locked --target-dir "$target" \
    --crate-type staticlib
built=$target/${profile/dev/debug}
# rustc would also export the functions for C of a dependency (crc-fast), which could replace those of a program.
exports=$built/liblongshore_c.map
printf '{ global: longshore_*; local: *; };\n' >"$exports"
"${CC:-cc}" -shared -o "$built/liblongshore_c.so" -Wl,-soname,"liblongshore.so.$abi" \
    -Wl,--version-script="$exports" -Wl,--gc-sections -Wl,--strip-debug -Wl,-z,relro,-z,now -Wl,--whole-archive \
    "$built/liblongshore_c.a" -Wl,--no-whole-archive -lgcc_s -lpthread -lm -ldl -lc

root=${DESTDIR:-}$prefix
mkdir -p "$root/lib/pkgconfig" "$root/include"
install -m 755 "$built/liblongshore_c.so" "$root/lib/liblongshore.so.$version"
ln -sf "liblongshore.so.$version" "$root/lib/liblongshore.so.$abi"
ln -sf "liblongshore.so.$abi" "$root/lib/liblongshore.so"
install -m 644 "$built/liblongshore_c.a" "$root/lib/liblongshore.a"
install -m 644 "$source/include/longshore.h" "$root/include/longshore.h"
sed -e "s|@PREFIX@|$prefix|" -e "s|@VERSION@|$version|" -e "s|@URL@|$url|" \
    "$source/longshore.pc.in" >"$root/lib/pkgconfig/longshore.pc"
chmod 644 "$root/lib/pkgconfig/longshore.pc"
echo "installed longshore $version in $root"
