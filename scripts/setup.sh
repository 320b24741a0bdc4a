# Finds what a build needs and installs what is missing. Sourced by quickstart and test, which then read:
#   with_mpi   yes or no
#   features   the cargo arguments that follow from it
# Says nothing when nothing is missing.

say() { printf '%s\n' "$*" >&2; }

have() { command -v "$1" >/dev/null 2>&1; }

# The oldest toolchain that works, as Cargo.toml states it.
minimum_rust() { sed -n 's/^rust-version = "\([^"]*\)".*/\1/p' Cargo.toml | head -n 1; }

find_toolchain() {
  have cargo || PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
  local minimum installed
  minimum=$(minimum_rust)
  if ! have cargo || ! have rustc; then
    say "Chorus is written in Rust and needs its toolchain, version $minimum or newer. Get it from https://rustup.rs:"
    say "    curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh"
    say "then open a new shell and run this script again."
    exit 5
  fi
  installed=$(rustc --version | awk '{ print $2 }')
  if [ "$(printf '%s\n' "$minimum" "${installed%%-*}" | sort -V | head -n 1)" != "$minimum" ]; then
    say "Rust $installed is too old, Chorus needs $minimum or newer: run \`rustup update stable\` and then this script again."
    exit 5
  fi
}

have_libclang() {
  [ -n "${LIBCLANG_PATH:-}" ] && return
  # The loader's cache is in /sbin, which is not on every user's path.
  { ldconfig -p || /sbin/ldconfig -p; } 2>/dev/null | grep 'libclang[-.]' >/dev/null && return
  compgen -G '/usr/lib/llvm-*/lib/libclang*.so*' >/dev/null || compgen -G '/usr/lib*/libclang*.so*' >/dev/null
}

have_clang_headers() {
  compgen -G '/usr/lib/llvm-*/lib/clang/*/include/stddef.h' >/dev/null ||
    compgen -G '/usr/lib*/clang/*/include/stddef.h' >/dev/null
}

# What is missing, as Debian packages.
missing_packages() {
  have cc || echo "gcc libc6-dev"
  have mpicc || echo libopenmpi-dev
  have mpirun || echo openmpi-bin
  if ! have_libclang; then
    # The version this distribution prefers, and of it only the library and its headers.
    local version
    version=$(apt-cache depends libclang-dev 2>/dev/null | sed -n 's/.*Depends: libclang-\([0-9]*\)-dev.*/\1/p' | head -n 1)
    if [ -n "$version" ]; then echo "libclang1-$version libclang-common-$version-dev"; else echo libclang-dev; fi
  fi
}

is_root() { [ "$(id -u)" = 0 ]; }

# Whether installing is worth a try: as root, or with a sudo that asks nothing or has somebody to ask.
can_install() { is_root || { have sudo && { sudo -n true 2>/dev/null || [ -t 0 ]; }; }; }

as_root() { if is_root; then "$@"; else sudo "$@"; fi; }

install_packages() {
  local quietly=(env DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends)
  say "installing: $*"
  # Lists may be missing or old; they are fetched only when the first try fails.
  as_root "${quietly[@]}" install "$@" >&2 || { as_root apt-get -qq update >&2 && as_root "${quietly[@]}" install "$@" >&2; }
}

can_build_mpi() { have cc && have mpicc && have mpirun && have_libclang; }

find_mpi() {
  local packages
  if ! can_build_mpi; then
    packages=$(missing_packages | tr '\n' ' ')
    packages=${packages% }
    if ! have apt-get; then
      say "This system has no apt. For runs over MPI install Open MPI with its development files and libclang with its headers"
      say "(Debian: openmpi-bin libopenmpi-dev libclang-dev; Fedora: openmpi-devel clang-devel; Arch: openmpi clang)."
    elif ! can_install; then
      say "For runs over MPI these packages are missing, and installing takes root or sudo: $packages"
    else
      # shellcheck disable=SC2086 # a list of packages
      install_packages $packages || say "apt-get could not install $packages; its own lines above say why"
    fi
  fi
  if can_build_mpi; then
    with_mpi=yes
    features=()
    # bindgen needs stddef.h: libclang's own, or else the C compiler's.
    if ! have_clang_headers && [ -z "${BINDGEN_EXTRA_CLANG_ARGS:-}" ]; then
      BINDGEN_EXTRA_CLANG_ARGS="-I$(cc -print-file-name=include)"
      export BINDGEN_EXTRA_CLANG_ARGS
    fi
  else
    with_mpi=no
    features=(--no-default-features)
    say "No MPI here: building without it; all ranks run in one process."
  fi
}

# What Open MPI asks for as root and with more ranks than cores. MPICH ignores all of it.
open_mpi_settings() {
  if [ "$(id -u)" = 0 ]; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  fi
  export OMPI_MCA_rmaps_base_oversubscribe=1
}

find_toolchain
if ! have cc && ! have apt-get; then
  say "No C compiler: Rust needs one to link. Install gcc (or clang) and run this script again."
  exit 5
fi
with_mpi=no
features=()
find_mpi
