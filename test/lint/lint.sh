#!/bin/sh
# Runs every check, also when one found something, and ends with status 1 then.
set -u
cd "$(dirname "$0")/../.."
# As the programs are built, so that the checks find their packages in the build cache.
export CGO_ENABLED=0
export GOFLAGS="${GOFLAGS-} -trimpath"
failed=

check() {
	name=$1
	shift
	start=$(date +%s)
	if "$@"; then
		echo "ok      $name ($(($(date +%s) - start)) s)"
	else
		echo "FAILED  $name ($(($(date +%s) - start)) s)"
		failed="$failed, $name"
	fi
}

formatted() {
	list=$(gofmt -l .) || return
	[ -z "$list" ] && return
	echo "$list" | sed 's/^/not formatted: /'
	return 1
}

# With the tests that need root.
vet() { GOOS=$1 go vet -tags=kernel ./...; }

static() {
	program=$(test/lint/build.sh) || return
	GOOS=$1 "$program" -tags=kernel ./...
}

tidy() (cd "$1" && go mod tidy -diff)

check "gofmt" formatted
# Not in test/controlplane: to vet its four files Go would first look through all of Kubernetes, 5 minutes of CPU time.
for os in linux windows darwin; do
	check "go vet for $os" vet $os
done
for os in linux windows; do
	check "staticcheck for $os" static $os
done
for mod in $(find . -name go.mod | sort); do
	check "go mod tidy in $(dirname "$mod")" tidy "$(dirname "$mod")"
done

if [ -n "$failed" ]; then
	echo "lint failed: ${failed#, }" >&2
	exit 1
fi
