#!/bin/sh
# Builds the test control plane once, into a cache outside the checkout, and prints the program's path (nothing else)
# on standard output. Progress goes to standard error: the first build compiles most of Kubernetes.
#
#   build.sh              the version that go.mod names
#   build.sh --path       only prints the path, built or not
#   K8S=v1.36.1 build.sh  another version, in a copy of this module
set -eu
here=$(cd "$(dirname "$0")" && pwd)
cache=${UNSTALE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/unstale}

pinned=$(awk '$1 == "k8s.io/kubernetes" { print $2; exit }' "$here/go.mod")
version=${K8S:-$pinned}
sum=$(cat "$here"/*.go "$here/go.mod" "$here/go.sum" "$here/build.sh" | cksum | cut -d' ' -f1)
program=$cache/controlplane-$version-$(go env GOVERSION)-$sum
if [ -x "$program" ] || [ "${1-}" = --path ]; then
	echo "$program"
	exit 0
fi

mkdir -p "$cache"
part=$program.$$
work=
trap 'rm -rf "$part" "$part.log" ${work:+"$work"}' EXIT
trap 'exit 1' INT TERM
module=$here
if [ "$version" != "$pinned" ]; then
	work=$(mktemp -d)
	cp "$here"/*.go "$here"/*.sh "$here/go.mod" "$here/go.sum" "$work"
	module=$work
	(cd "$work" && ./set-version.sh "$version") >&2
fi
cd "$module"

minor=${version#v1.}
flags="-s -w"
for v in "gitVersion=$version" gitMajor=1 "gitMinor=${minor%%.*}" gitTreeState=clean; do
	flags="$flags -X k8s.io/component-base/version.$v"
done

echo "Building the test control plane (etcd and kube-apiserver $version) into $cache." >&2
echo "The first build compiles most of Kubernetes: about 10 minutes on 2 cores, 3 GB of build cache. Later ones take seconds." >&2
total=$(CGO_ENABLED=0 go list -deps . | wc -l)
start=$(date +%s)
# go build -v names each package when it has compiled it; what is in the build cache is not named.
{ CGO_ENABLED=0 go build -v -trimpath -buildvcs=false -ldflags "$flags" -o "$part" . 2>&1 || echo "BUILD FAILED"; } | tee "$part.log" |
	awk -v total="$total" -v start="$start" '
		BEGIN { step = 50 }
		/^[a-z0-9.]+[a-zA-Z0-9._\/-]*$/ { n++ }
		n >= next_at + step { next_at = n; "date +%s" | getline now; close("date +%s")
			printf "  %4d packages compiled, of %d at most, after %d s\n", n, total, now - start; fflush() }' >&2
if [ ! -x "$part" ] || grep -q '^BUILD FAILED$' "$part.log"; then
	echo "Building the test control plane failed:" >&2
	grep -v '^[a-z0-9.]*[a-zA-Z0-9._/-]*$' "$part.log" | tail -20 >&2
	exit 1
fi
mv "$part" "$program"
echo "Built in $(($(date +%s) - start)) s." >&2
echo "$program"
