// Package apiserver gives tests a real kube-apiserver with a real etcd behind it: the program in test/controlplane,
// which `make controlplane` builds. Tests against it never skip: without the program they fail and say how to build it.
//
// A package starts at most one server for all its tests, on first use, and ends it in TestMain:
//
//	func TestMain(m *testing.M) { os.Exit(apiserver.Run(m)) }
//
//	func TestSweep(t *testing.T) {
//		s := apiserver.Shared(t)
//		s.Install(t, apiserver.TopologyAwarePolicyCRD)
//		ns := s.Namespace(t)
//		...
//	}
//
// What tests share they must not fight over: Namespace and Unique give each test names of its own, and Nodes made with
// CreateNodes are deleted when the test ends. A test that needs a server to itself (because it stops it, lists all Nodes,
// or needs other flags) calls Start.
//
// No controller manager runs. So nothing collects garbage, finishes the deletion of a namespace, or binds a pod:
// CreatePod binds it, SetStatus plays the kubelet.
//
// A Proxy stands between a client and the server, counts and remembers every request, and fails those that a test
// chooses: see SetFault.
package apiserver
