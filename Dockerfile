# A static binary, built from source, and nothing else: `docker build -t tollgate .`
FROM rust:1.95-alpine AS build
# The C compiler is for ring, which TLS uses, and with make for the allocator.
RUN apk add --no-cache musl-dev gcc make
WORKDIR /source
COPY . .
RUN cargo build --release --locked --package tollgate-cli \
    && cp target/release/tollgate /tollgate \
    # A binary that is not static would not start below.
    && ! ldd /tollgate 2>/dev/null | grep -q '=>'

FROM scratch
COPY --from=build /tollgate /usr/bin/tollgate
USER 65532:65532
# HTTP, gRPC, admin, Redis protocol. A policy must name addresses that are not on loopback.
EXPOSE 8080 8081 8082 6380
ENTRYPOINT ["/usr/bin/tollgate"]
CMD ["serve", "-c", "/etc/tollgate/policy.yaml"]
