#!/usr/bin/env bash
# Installs what Longshore needs and this machine lacks. Prints nothing if nothing is missing.
#
#   scripts/setup.sh build    the tools that build and load: a C linker and Rust
#   scripts/setup.sh test     also QEMU, file system tools, Go, Python, C and C++ compilers, valgrind,
#                             Chromium, Miri, the oldest supported Rust and an AArch64 toolchain; with
#                             LONGSHORE_VM_IOMMUFD=1 also the tools that build a kernel
#
# The other scripts source it and call its functions.

# The Rust version to install if there is none, or only an old one. A newer one builds Longshore too, but
# its new lints were not tried.
RUST_TO_INSTALL=1.95.0

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
rust_oldest=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' "$repository/Cargo.toml")
# The compiler for Miri and for the texts of the public API.
rust_nightly=nightly-2026-05-20

: "${HOME:=$(getent passwd "$(id -u)" | cut -d: -f6)}"
export HOME
# Checking for a toolchain must not install it.
export RUSTUP_AUTO_INSTALL=0

# Debian packages, each with a program or file that exists if the package is installed.
build_packages=(
    gcc:gcc
    libc6-dev:/usr/include/stdio.h
    ca-certificates:/etc/ssl/certs/ca-certificates.crt
)
test_packages=(
    git:git
    procps:kill
    qemu-system-x86:qemu-system-x86_64
    qemu-system-arm:qemu-system-aarch64
    kmod:depmod
    xz-utils:xz
    cpio:cpio
    e2fsprogs:mke2fs
    btrfs-progs:mkfs.btrfs
    xfsprogs:mkfs.xfs
    erofs-utils:mkfs.erofs
    fio:fio
    shellcheck:shellcheck
    golang-go:go
    python3:python3
    g++:g++
    clang:clang
    make:make
    pkg-config:pkg-config
    valgrind:valgrind
    chromium:chromium
    nginx-light:nginx
    openssl:openssl
)
kernel_packages=(
    make:make
    flex:flex
    bison:bison
    bc:bc
    libelf-dev:/usr/include/gelf.h
)
aarch64_packages=(
    qemu-user:qemu-aarch64
    gcc-aarch64-linux-gnu:aarch64-linux-gnu-gcc
    libc6-dev-arm64-cross:/usr/aarch64-linux-gnu/include/stdio.h
)

say() { printf 'setup: %s\n' "$*" >&2; }

# Returns success if Python is recent enough for the package and can create virtual environments.
has_python() { python3 -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))'; }

# Prints the folder of Python's standard library.
python_library() {
    python3 -c 'import sysconfig; print(sysconfig.get_path("stdlib"))' 2>/dev/null ||
        echo /usr/lib/python3
}

has_program() { PATH=$PATH:/usr/sbin:/sbin command -v "$1" >/dev/null; }

# Prints the missing packages among the arguments, which have the form PACKAGE:SIGN.
missing_packages() {
    local entry sign
    for entry in "$@"; do
        sign=${entry#*:}
        case $sign in
        /*) [[ -e $sign ]] || echo "${entry%%:*}" ;;
        *) has_program "$sign" || echo "${entry%%:*}" ;;
        esac
    done
}

# Installs the missing packages among the arguments, which have the form PACKAGE:SIGN.
ensure_packages() {
    local missing as_root=()
    mapfile -t missing < <(missing_packages "$@")
    [[ ${#missing[@]} -gt 0 ]] || return 0
    if ! has_program apt-get; then
        say "apt-get was not found: install the equivalents of these Debian packages: ${missing[*]}"
        return 1
    fi
    if [[ $(id -u) -ne 0 ]]; then
        if ! has_program sudo; then
            say "these packages are missing: ${missing[*]}"
            say "sudo was not found; run as root: apt-get install ${missing[*]}"
            return 1
        fi
        as_root=(sudo)
    fi
    say "installing ${missing[*]}"
    local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get
        -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 --quiet=2)
    "${apt[@]}" update >&2 &&
        "${apt[@]}" install --yes --no-install-recommends "${missing[@]}" >&2
}

# Returns success if the version $1 is $2 or newer.
is_at_least() { [[ $(printf '%s\n%s\n' "$1" "$2" | sort --version-sort | head -n 1) == "$2" ]]; }

cargo_is_recent() {
    local version
    version=$(cargo --version 2>/dev/null | cut -d ' ' -f 2) || return 1
    [[ -n $version ]] && is_at_least "$version" "$rust_oldest"
}

# Puts a recent enough cargo first in PATH, and installs it if necessary.
ensure_rust() {
    cargo_is_recent && return
    PATH=${CARGO_HOME:-$HOME/.cargo}/bin:$PATH
    export PATH
    cargo_is_recent && return
    if has_program rustup; then
        say "installing Rust $RUST_TO_INSTALL"
        rustup toolchain install "$RUST_TO_INSTALL" --profile minimal \
            --component rustfmt --component clippy --no-self-update || return
        export RUSTUP_TOOLCHAIN=$RUST_TO_INSTALL
    else
        say "installing rustup and Rust $RUST_TO_INSTALL in $HOME"
        ensure_packages curl:curl || return
        # The script that https://rustup.rs offers, from the host that Rust itself comes from.
        curl --proto '=https' --tlsv1.2 --silent --show-error --fail --retry 3 \
            https://static.rust-lang.org/rustup/rustup-init.sh |
            RUSTUP_INIT_SKIP_PATH_CHECK=yes sh -s -- -y --profile minimal \
                --default-toolchain "$RUST_TO_INSTALL" --component rustfmt --component clippy ||
            return
        say "new shells will find cargo; in this one, run: . $HOME/.cargo/env"
    fi
    cargo_is_recent
}

# Installs rustfmt and clippy if they are missing.
ensure_lints() {
    cargo fmt --version >/dev/null 2>&1 && cargo clippy --version >/dev/null 2>&1 && return
    if ! has_program rustup; then
        say "cargo fmt or cargo clippy is missing: install it in the same way as Rust"
        return 1
    fi
    rustup component add rustfmt clippy
}

# Installs Miri, as `cargo +$rust_nightly miri`.
ensure_miri() {
    cargo "+$rust_nightly" miri --version >/dev/null 2>&1 && return
    has_program rustup || return
    say "installing Miri"
    rustup toolchain install "$rust_nightly" --profile minimal --no-self-update \
        --component miri --component rust-src
}

# Installs the oldest supported Rust, as `cargo +VERSION`.
ensure_oldest_rust() {
    cargo "+$rust_oldest" --version >/dev/null 2>&1 && return
    has_program rustup || return
    say "installing Rust $rust_oldest"
    rustup toolchain install "$rust_oldest" --profile minimal --no-self-update
}

# Returns success if AArch64 programs can be built and run: with Rust's library, a linker and an
# emulator.
has_aarch64() {
    [[ -d $(rustc --print target-libdir --target aarch64-unknown-linux-gnu) ]] &&
        [[ -z $(missing_packages "${aarch64_packages[@]}") ]]
}

# Installs what AArch64 programs need to be built and run.
ensure_aarch64() {
    has_aarch64 && return
    ensure_packages "${aarch64_packages[@]}" || return
    has_aarch64 && return
    has_program rustup || return
    say "installing Rust's standard library for AArch64"
    rustup target add aarch64-unknown-linux-gnu
}

setup_build() {
    if ! ensure_packages "${build_packages[@]}" && ! has_program cc; then
        say "no C compiler was found or installed, so nothing can be linked"
        return 1
    fi
    if ! ensure_rust; then
        say "Rust $rust_oldest or newer could not be installed; see https://rustup.rs"
        return 1
    fi
}

# Some tools are needed by a few tests only. If one is missing, those tests are skipped and print the
# reason.
setup_test() {
    setup_build || return
    ensure_lints || return
    ensure_packages "${test_packages[@]}" || say "some tests will be skipped"
    # The kernel for the tests of iommufd is built from source.
    if [[ ${LONGSHORE_VM_IOMMUFD:-} == 1 ]]; then
        ensure_packages "${kernel_packages[@]}" || say "the tests of iommufd will fail"
    fi
    # Other packages also install the wheels that ensurepip unpacks.
    has_python 2>/dev/null || ensure_packages "python3-venv:$(python_library)/ensurepip" ||
        say "the tests of the Python package will be skipped"
    ensure_miri || say "Miri could not be installed"
    ensure_oldest_rust || say "Rust $rust_oldest could not be installed"
    ensure_aarch64 || say "the AArch64 toolchain or emulator could not be installed"
    return 0
}

# The script is executed, not sourced.
if [[ ${BASH_SOURCE[0]} == "$0" ]]; then
    set -uo pipefail
    case "$#:${1:-}" in
    0: | 1:test) setup_test ;;
    1:build) setup_build ;;
    *)
        echo "usage: scripts/setup.sh [build | test]" >&2
        exit 2
        ;;
    esac
fi
