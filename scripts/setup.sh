#!/usr/bin/env bash
# Installs what Longshore needs and this machine lacks; says nothing where all is there.
#
#   scripts/setup.sh build    what building and loading need: a C linker and Rust
#   scripts/setup.sh test     that, and QEMU, file system tools, Go, Python, C and C++ compilers,
#                             valgrind, Chromium, Miri, the oldest Rust and AArch64; with
#                             LONGSHORE_VM_IOMMUFD=1 what building a kernel needs
#
# The other scripts source it and call its functions.

# The Rust that is installed where none is recent enough. A newer one builds Longshore too, but may
# bring lints that were never seen to pass.
RUST_TO_INSTALL=1.95.0

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
rust_oldest=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' "$repository/Cargo.toml")
# Miri and the texts of the public API come from this compiler.
rust_nightly=nightly-2026-05-20

: "${HOME:=$(getent passwd "$(id -u)" | cut -d: -f6)}"
export HOME
# Asking whether a toolchain is there must not install it.
export RUSTUP_AUTO_INSTALL=0

# Debian's packages, each with a program or file that shows that it is there.
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

# Whether Python is there, recent enough for the package and able to make virtual environments.
has_python() { python3 -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))'; }

# Where Python's own modules are.
python_library() {
    python3 -c 'import sysconfig; print(sysconfig.get_path("stdlib"))' 2>/dev/null ||
        echo /usr/lib/python3
}

has_program() { PATH=$PATH:/usr/sbin:/sbin command -v "$1" >/dev/null; }

# Prints those of the packages named as PACKAGE:SIGN that are not there.
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

# Installs those of the packages named as PACKAGE:SIGN that are not there.
ensure_packages() {
    local missing as_root=()
    mapfile -t missing < <(missing_packages "$@")
    [[ ${#missing[@]} -gt 0 ]] || return 0
    if ! has_program apt-get; then
        say "this system has no apt: install what Debian calls ${missing[*]} by its own means"
        return 1
    fi
    if [[ $(id -u) -ne 0 ]]; then
        if ! has_program sudo; then
            say "these packages are missing: ${missing[*]}"
            say "neither root nor sudo is here; as root run: apt-get install ${missing[*]}"
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

# Whether the version $1 is $2 or newer.
is_at_least() { [[ $(printf '%s\n%s\n' "$1" "$2" | sort --version-sort | head -n 1) == "$2" ]]; }

cargo_is_recent() {
    local version
    version=$(cargo --version 2>/dev/null | cut -d ' ' -f 2) || return 1
    [[ -n $version ]] && is_at_least "$version" "$rust_oldest"
}

# Makes a recent enough cargo the one that is called.
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
        # What https://rustup.rs offers, from the host that Rust itself comes from.
        curl --proto '=https' --tlsv1.2 --silent --show-error --fail --retry 3 \
            https://static.rust-lang.org/rustup/rustup-init.sh |
            RUSTUP_INIT_SKIP_PATH_CHECK=yes sh -s -- -y --profile minimal \
                --default-toolchain "$RUST_TO_INSTALL" --component rustfmt --component clippy ||
            return
        say "new shells find cargo by themselves; this one does after: . $HOME/.cargo/env"
    fi
    cargo_is_recent
}

# Makes rustfmt and clippy callable.
ensure_lints() {
    cargo fmt --version >/dev/null 2>&1 && cargo clippy --version >/dev/null 2>&1 && return
    if ! has_program rustup; then
        say "cargo fmt or cargo clippy is missing: install them by the means that Rust came by"
        return 1
    fi
    rustup component add rustfmt clippy
}

# Makes Miri callable as `cargo +$rust_nightly miri`.
ensure_miri() {
    cargo "+$rust_nightly" miri --version >/dev/null 2>&1 && return
    has_program rustup || return
    say "installing Miri"
    rustup toolchain install "$rust_nightly" --profile minimal --no-self-update \
        --component miri --component rust-src
}

# Makes the oldest Rust that Longshore promises to build with callable as `cargo +VERSION`.
ensure_oldest_rust() {
    cargo "+$rust_oldest" --version >/dev/null 2>&1 && return
    has_program rustup || return
    say "installing Rust $rust_oldest"
    rustup toolchain install "$rust_oldest" --profile minimal --no-self-update
}

# Whether programs for AArch64 can be built and run: Rust's library, a linker and an emulator.
has_aarch64() {
    [[ -d $(rustc --print target-libdir --target aarch64-unknown-linux-gnu) ]] &&
        [[ -z $(missing_packages "${aarch64_packages[@]}") ]]
}

# Makes programs for AArch64 buildable and runnable.
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
        say "without a C compiler nothing can be linked"
        return 1
    fi
    if ! ensure_rust; then
        say "no Rust $rust_oldest or newer could be had; see https://rustup.rs"
        return 1
    fi
}

# What only some tests need may stay missing: those say so when they are skipped.
setup_test() {
    setup_build || return
    ensure_lints || return
    ensure_packages "${test_packages[@]}" || say "some tests will be skipped"
    # The kernel of the tests of iommufd is built from source.
    if [[ ${LONGSHORE_VM_IOMMUFD:-} == 1 ]]; then
        ensure_packages "${kernel_packages[@]}" || say "the tests of iommufd will fail"
    fi
    # The wheels that it unpacks come with other packages, too.
    has_python 2>/dev/null || ensure_packages "python3-venv:$(python_library)/ensurepip" ||
        say "the tests of the Python package will be skipped"
    ensure_miri || say "Miri could not be installed"
    ensure_oldest_rust || say "Rust $rust_oldest could not be installed"
    ensure_aarch64 || say "what AArch64 needs could not be installed"
    return 0
}

# Called and not sourced.
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
