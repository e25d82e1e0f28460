# syntax=docker/dockerfile:1

FROM rust:1.95-slim-bookworm AS build
# The image's own toolchain is the pinned one; without this rustup would fetch clippy and rustfmt too.
ENV RUSTUP_TOOLCHAIN=1.95.0
WORKDIR /build
COPY . .
# The caches outlive the build; the binary must be copied out of them in the same step.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/build/target \
    cargo build --locked --release --bin blindpipe \
    && cp target/release/blindpipe /usr/local/bin/blindpipe
RUN mkdir -p /objects

# The C runtime and the certificate authorities, no shell, no package manager; runs as user 65532.
FROM gcr.io/distroless/cc-debian12:nonroot
COPY --from=build /usr/local/bin/blindpipe /usr/local/bin/blindpipe
# Files, unless OBJECT_STORE_URL names a bucket. Several nodes must share this volume.
COPY --from=build --chown=65532:65532 /objects /var/lib/blindpipe/objects
VOLUME /var/lib/blindpipe/objects
# A container's own loopback is out of reach for probes. Publish 8443 only: 9090 has metrics and no authentication.
ENV LISTEN_ADDR=0.0.0.0:8443 \
    ADMIN_ADDR=0.0.0.0:9090
EXPOSE 8443
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s CMD ["/usr/local/bin/blindpipe", "healthcheck"]
ENTRYPOINT ["/usr/local/bin/blindpipe"]
CMD ["serve"]
