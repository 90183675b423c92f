#!/bin/sh
# Builds a program of the Kubernetes version that go.mod names, once, into the cache that build.sh uses, and prints its path (nothing else) on standard
# output. After build.sh most of kubectl is compiled already; a kubelet takes about 3 minutes the first time.
#
#   program.sh kubectl|kubelet          builds it unless it is there
#   program.sh --path kubectl|kubelet   only prints the path, built or not
set -eu
only=
if [ "${1-}" = --path ]; then
	only=1
	shift
fi
name=${1:?usage: program.sh [--path] kubectl|kubelet}
here=$(cd "$(dirname "$0")" && pwd)
cache=${UNSTALE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/unstale}

version=$(awk '$1 == "k8s.io/kubernetes" { print $2; exit }' "$here/go.mod")
sum=$(cksum <"$here/program.sh" | cut -d' ' -f1)
program=$cache/$name-$version-$(go env GOVERSION)-$sum
if [ -x "$program" ] || [ "$only" ]; then
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

echo "Building $name $version into $cache." >&2
start=$(date +%s)
CGO_ENABLED=0 go build -mod=mod -trimpath -ldflags "$flags" -o "$part" "k8s.io/kubernetes/cmd/$name" >&2
mv "$part" "$program"
echo "Built in $(($(date +%s) - start)) s." >&2
echo "$program"
