"""What the rehearsal of the image needs to know of Dockerfile and manifest, one fact a call.

usage: rehearsal.py packages DOCKERFILE STAGE    of its apt-get install; stages count from 1
       rehearsal.py sources DOCKERIGNORE         what is copied
       rehearsal.py build DOCKERFILE             the shell command of the build
       rehearsal.py user|entrypoint DOCKERFILE   of the image
       rehearsal.py flags MANIFEST MODEL         of the container, with this model
       rehearsal.py address FLAG...              of gRPC, from this machine
"""

import json
import re
import sys

import yaml


def instructions(path):
    """[stage][instruction], with continued lines joined; comments left out."""
    with open(path, encoding="utf-8") as file:
        lines = [line for line in file.read().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines()
    stages = []
    for instruction in filter(str.strip, joined):
        if instruction.startswith("FROM "):
            stages.append([])
        if stages:
            stages[-1].append(instruction)
    return stages


def only(path, prefix, stage=-1):
    (found,) = [i for i in instructions(path)[stage] if i.startswith(prefix)]
    return found.removeprefix(prefix).strip()


def packages(path, stage):
    command = only(path, "RUN apt-get update", int(stage) - 1)
    return re.search(r"--no-install-recommends (.*?)&&", command)[1].strip()


def sources(path):
    with open(path, encoding="utf-8") as file:
        return " ".join(line[1:].strip() for line in file if line.startswith("!"))


def flags(path, model):
    with open(path, encoding="utf-8") as file:
        (container,) = yaml.safe_load(file)["spec"]["template"]["spec"]["containers"]
    return "\n".join(f"--model={model}" if a.startswith("--model=") else a
                     for a in container["args"])


def address(*arguments):
    (listen,) = [a.split("=")[1] for a in arguments if a.startswith("--listen=")]
    return "127.0.0.1:" + listen.rsplit(":", 1)[1]


FACTS = {
    "packages": packages,
    "sources": sources,
    "build": lambda path: only(path, "RUN cmake", 0) and "cmake " + only(path, "RUN cmake", 0),
    "user": lambda path: only(path, "USER").split(":")[0],
    "entrypoint": lambda path: json.loads(only(path, "ENTRYPOINT"))[0],
    "flags": flags,
    "address": address,
}

if __name__ == "__main__":
    print(FACTS[sys.argv[1]](*sys.argv[2:]))
