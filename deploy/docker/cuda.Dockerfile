# The server with its CUDA kernels, and the command line client. The kernels' runtime is linked in:
# the image needs no toolkit, only the driver that the NVIDIA container runtime brings. Without a
# GPU it serves from the CPU (--device=cpu), as the other image does.
#
#   docker build -f deploy/docker/cuda.Dockerfile -t strata:cuda \
#     --build-arg REVISION="$(git rev-parse --short=12 HEAD)" .
ARG BASE=debian:bookworm-slim
ARG TOOLKIT=nvidia/cuda:13.0.1-devel-ubuntu22.04

# hadolint ignore=DL3006
FROM ${TOOLKIT} AS toolkit

# hadolint ignore=DL3006
FROM ${BASE} AS build
# Versions are Debian 12's, which change for security alone.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends \
        build-essential \
        cmake \
        libabsl-dev \
        libcli11-dev \
        libcpp-httplib-dev \
        libgrpc++-dev \
        libpcre2-dev \
        libprotobuf-dev \
        libspdlog-dev \
        libssl-dev \
        liburing-dev \
        libyaml-cpp-dev \
        ninja-build \
        nlohmann-json3-dev \
        pkg-config \
        prometheus-cpp-dev \
        protobuf-compiler \
        protobuf-compiler-grpc \
    && rm -rf /var/lib/apt/lists/*
# Through the link, the toolkit's versioned folder.
COPY --from=toolkit /usr/local/cuda/ /usr/local/cuda/
WORKDIR /src
COPY . .
ARG REVISION=unknown
RUN cmake --preset release -DSTRATA_BUILD_TESTS=OFF -DSTRATA_COMMIT=${REVISION} -DSTRATA_CUDA=ON \
    && cmake --build build/release --target strata-server strata \
    && strip build/release/strata-server build/release/strata

# hadolint ignore=DL3006
FROM ${BASE}
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends \
        ca-certificates \
        libabsl20220623 \
        libcpp-httplib0.11 \
        libgrpc++1.51 \
        libpcre2-8-0 \
        libprometheus-cpp-core1.0 \
        libprotobuf32 \
        libspdlog1.10 \
        libssl3 \
        liburing2 \
        libyaml-cpp0.7 \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /src/build/release/strata-server /src/build/release/strata /usr/local/bin/
ARG REVISION=unknown
LABEL org.opencontainers.image.title="strata" \
      org.opencontainers.image.description="Inference server with its KV cache on a ladder of precisions" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.revision="${REVISION}"
# What the NVIDIA container runtime brings in: the driver's compute library.
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 65532:65532
EXPOSE 50051 50052 9464
STOPSIGNAL SIGTERM
ENTRYPOINT ["/usr/local/bin/strata-server"]
CMD ["--help"]
