# syntax=docker/dockerfile:1
# `make image` builds it. The build is reproducible as far as its bases are: the toolchain and all dependencies are
# pinned, and no path or time of the builder is in the binary. The bases are named by the digest of their index, which
# has all platforms. Other bases: make image BUILD_BASE=… RUNTIME_BASE=…
ARG BUILD_BASE=rust:1.95-slim-bookworm@sha256:d7482085ff5b415f84dba5647ae71606650bdef00db7aeb69f4b3d170c3e4082
# The C runtime and the certificate authorities, no shell, no package manager; runs as user 65532.
ARG RUNTIME_BASE=gcr.io/distroless/cc-debian12:nonroot@sha256:9dac0a79194e45a7da0158a9c6da57b217585af0786db3845d1f0ec1a0dd182f

FROM ${BUILD_BASE} AS build
# The image's own toolchain is the pinned one; without this rustup would fetch clippy and rustfmt too.
ENV RUSTUP_TOOLCHAIN=1.95.0 \
    CARGO_INCREMENTAL=0 \
    RUSTFLAGS="--remap-path-prefix=/build=/ --remap-path-prefix=/usr/local/cargo=/cargo"
WORKDIR /build
COPY . .
# The caches outlive the build; the binary must be copied out of them in the same step.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/build/target \
    cargo build --locked --release --bin blindpipe \
    && install -D --strip target/release/blindpipe /image/usr/local/bin/blindpipe \
    && install -d -o 65532 -g 65532 /image/var/lib/blindpipe/objects
# The web app, as `make image` has built it before. Without that build, the image has an empty folder.
RUN install -d /image/usr/local/share/blindpipe/app clients/web/dist \
    && cp -r clients/web/dist/. /image/usr/local/share/blindpipe/app

# The load generator, for the chart's load test: `make image-loadtest`.
FROM build AS build-loadtest
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/build/target \
    cargo build --locked --release --bin loadtest --package loadtest \
    && install -D --strip target/release/loadtest /image/usr/local/bin/loadtest

FROM ${RUNTIME_BASE} AS loadtest
LABEL org.opencontainers.image.title="blindpipe-loadtest" \
      org.opencontainers.image.description="The load generator of Blindpipe" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="0.1.0"
COPY --from=build-loadtest /image/usr/local/bin/loadtest /usr/local/bin/loadtest
USER 65532:65532
ENTRYPOINT ["/usr/local/bin/loadtest"]

FROM ${RUNTIME_BASE}
LABEL org.opencontainers.image.title="blindpipe" \
      org.opencontainers.image.description="A messaging backend for people and agents" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="0.1.0"
COPY --from=build /image/usr/local/bin/blindpipe /usr/local/bin/blindpipe
# Served if APP_DIR names it.
COPY --from=build /image/usr/local/share/blindpipe/app /usr/local/share/blindpipe/app
# Files, unless OBJECT_STORE_URL names a bucket. Several nodes must share this volume. The rest may be read-only.
COPY --from=build --chown=65532:65532 /image/var/lib/blindpipe/objects /var/lib/blindpipe/objects
VOLUME /var/lib/blindpipe/objects
# A container's own loopback is out of reach for probes. Publish 8443 only: 9090 has metrics and no authentication.
ENV LISTEN_ADDR=0.0.0.0:8443 \
    ADMIN_ADDR=0.0.0.0:9090
EXPOSE 8443
USER 65532:65532
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s CMD ["/usr/local/bin/blindpipe", "healthcheck"]
ENTRYPOINT ["/usr/local/bin/blindpipe"]
CMD ["serve"]
