// Package node starts the parts of a real node for tests: containerd with pods' networks, and a kubelet. It needs root, Linux, and Debian's packages
// containerd, runc and containernetworking-plugins.
package node
