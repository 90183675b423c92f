#!/bin/sh
# Sets the Kubernetes version of this module, with every staging module that follows from it:  set-version.sh v1.37.2
set -eu
version=${1:?usage: set-version.sh vX.Y.Z}
cd "$(dirname "$0")"
staging=v0.${version#v1.}
go mod edit -require "k8s.io/kubernetes@$version"
upstream=$(go mod download -json "k8s.io/kubernetes@$version" | sed -n 's/^\t"GoMod": "\(.*\)",$/\1/p')
for module in $(sed -n 's/^\t\(k8s\.io\/[a-z-]*\) => \.\/staging.*/\1/p' "$upstream"); do
	go mod edit -replace "$module=$module@$staging"
done
go mod tidy
