#!/bin/sh
# Builds staticcheck once, into a cache outside the checkout, and prints the program's path (nothing else) on standard output.
set -eu
cd "$(dirname "$0")"
cache=${UNSTALE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/unstale}
program=$cache/staticcheck-$(go env GOVERSION)-$(cat go.mod go.sum | cksum | cut -d' ' -f1)
if [ ! -x "$program" ]; then
	echo "Building staticcheck into $cache: a minute or two the first time." >&2
	mkdir -p "$cache"
	trap 'rm -f "$program.$$"' EXIT
	trap 'exit 1' INT TERM
	CGO_ENABLED=0 go build -trimpath -o "$program.$$" honnef.co/go/tools/cmd/staticcheck >&2
	mv "$program.$$" "$program"
fi
echo "$program"
