# The image of unstale: one static program and nothing else.
#   docker build --build-arg VERSION=$(git describe --tags --always) -t unstale .
FROM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=dev COMMIT=unknown DATE=unknown
RUN CGO_ENABLED=0 go build -tags=grpcnotrace -trimpath -buildvcs=false \
    -ldflags "-s -w -X main.version=$VERSION -X main.commit=$COMMIT -X main.date=$DATE" -o /unstale ./cmd/unstale

FROM scratch
# For API servers whose certificate is signed by a public authority.
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build /unstale /unstale
USER 65532:65532
ENTRYPOINT ["/unstale"]
