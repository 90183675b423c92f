#!/bin/sh
# Says at once what is missing for a build, before one has run for minutes:  preflight.sh [go] [cc] [make] [ipset] [containerd]
# On a CI machine (CI=true, root, Debian) it installs what Debian has.
set -eu
cd "$(dirname "$0")/.."
missing=   # Debian's names
failed=

need_go() {
	want=$(awk '$1 == "go" { split($2, v, "."); print v[1] "." v[2]; exit }' go.mod)
	if ! command -v go >/dev/null; then
		echo "Go $want or newer is missing: see https://go.dev/doc/install." >&2
		failed=1
		return
	fi
	# In this folder an older Go may fetch the one that go.mod wants; then it names that one here.
	if ! have=$(go env GOVERSION 2>&1); then
		echo "Go $want or newer is needed, see https://go.dev/doc/install; this one says: $have" >&2
		failed=1
		return
	fi
	if ! echo "${have##*go} $want" | awk '{ split($1, h, "."); split($2, w, ".")
		exit !(h[1] + 0 > w[1] + 0 || (h[1] + 0 == w[1] + 0 && h[2] + 0 >= w[2] + 0)) }'; then
		echo "Go $want or newer is needed, and this is $have: see https://go.dev/doc/install." >&2
		failed=1
	fi
}

# The race detector needs cgo: a C compiler with the C library's headers.
need_cc() {
	cc=$(go env CC 2>/dev/null || echo gcc)
	printf '#include <stdlib.h>\nint main(void) { return 0; }\n' | $cc -x c -o /dev/null - 2>/dev/null ||
		missing="$missing gcc libc6-dev"
}

# The tests compare with what it prints.
need_ipset() {
	command -v ipset >/dev/null || missing="$missing ipset"
}

# The tests ask a real one about pods with a real network.
need_containerd() {
	for part in containerd:containerd runc:runc /usr/lib/cni/ptp:containernetworking-plugins; do
		command -v "${part%:*}" >/dev/null || missing="$missing ${part#*:}"
	done
}

need_make() {
	command -v make >/dev/null || missing="$missing make"
}

for what; do
	"need_$what"
done
if [ -n "$missing" ]; then
	install="apt-get install -y --no-install-recommends$missing"
	if [ "${CI-}" = true ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
		echo "Installing$missing." >&2
		export DEBIAN_FRONTEND=noninteractive
		apt-get update -q >&2
		$install >&2
	else
		echo "Missing:$missing. On Debian: $install" >&2
		failed=1
	fi
fi
[ -z "$failed" ]
