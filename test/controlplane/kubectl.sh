#!/bin/sh
# Builds the kubectl of the Kubernetes version that go.mod names, once, into the cache that build.sh uses, and prints the
# program's path (nothing else) on standard output. After build.sh most of it is compiled already.
#
#   kubectl.sh              builds it unless it is there
#   kubectl.sh --path       only prints the path, built or not
set -eu
here=$(cd "$(dirname "$0")" && pwd)
cache=${UNSTALE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/unstale}

version=$(awk '$1 == "k8s.io/kubernetes" { print $2; exit }' "$here/go.mod")
sum=$(cksum <"$here/kubectl.sh" | cut -d' ' -f1)
program=$cache/kubectl-$version-$(go env GOVERSION)-$sum
if [ -x "$program" ] || [ "${1-}" = --path ]; then
	echo "$program"
	exit 0
fi

mkdir -p "$cache"
part=$program.$$
work=$(mktemp -d)
trap 'rm -rf "$part" "$work"' EXIT
trap 'exit 1' INT TERM
# In a copy, because go.mod and go.sum name what the control plane needs and no more. The versions of the rest follow from
# k8s.io/kubernetes; their checksums are those of the checksum database.
cp "$here/go.mod" "$here/go.sum" "$work"
cd "$work"

minor=${version#v1.}
flags="-s -w"
for v in "gitVersion=$version" gitMajor=1 "gitMinor=${minor%%.*}" gitTreeState=clean; do
	flags="$flags -X k8s.io/component-base/version.$v"
done

echo "Building kubectl $version into $cache." >&2
start=$(date +%s)
CGO_ENABLED=0 go build -mod=mod -trimpath -ldflags "$flags" -o "$part" k8s.io/kubernetes/cmd/kubectl >&2
mv "$part" "$program"
echo "Built in $(($(date +%s) - start)) s." >&2
echo "$program"
