package agent

import "testing"

// TestValidAtTheEdges: what lies just inside the bounds is taken. What lies outside is in testdata/errors.
func TestValidAtTheEdges(t *testing.T) {
	const target = "statusKeys:\n- name: a\n  resource: {version: v1, resource: things}\n  paths: [{path: status.nodes}]\n"
	const bpf = "kernel: {bpfMaps: [{name: a, pin: /x, scope: node, "
	for _, text := range []string{
		"grace: 1s\nsweepInterval: 1s\nmaxRemovals: 1",
		"grace: 1h\nsweepInterval: 24h\nmaxRemovals: 4500",
		"report: {pods: {labelSelector: 'app in (a, b),!c'}}",
		"gossip: {port: 1, bindAddress: '::', advertiseAddress: '2001:db8::1', insecure: true}",
		"gossip: {port: 65535, bindAddress: 0.0.0.0, peers: ['[2001:db8::1]:1', 'Host.example.com:65535']}",
		"gossip: {service: {namespace: a, name: b}, keyFile: keys}",
		"http: {debugAddress: '127.0.0.1:0', metricsAddress: '127.0.0.1:0'}",
		"http: {debugAddress: '', metricsAddress: ''}",
		"http: {debugAddress: ':65535', metricsAddress: '[::1]:1', profiling: true}",
		target + "  timestampPath: a[example.com/b].c\n  nodeUIDPath: uid\n  onStop: Never\n  unknownKeys: Remove",
		target + "  livesWith: {}\n  names: [a.b]\n  namespace: a",
		target + "  livesWith: {pods: {labelSelector: app}}",
		"statusKeys: [{name: a, resource: {version: v1, resource: things}, timestampPath: at, paths: [{path: status.a, listKey: '.'}, {path: status.ab, listKey: node_name}]}]",
		"nodeObjects: [{name: a, resource: {version: v1, resource: things}, nodeName: {field: spec.nodeName}, keepIf: {annotation: example.com/a, value: b}}]",
		"nodeObjects: [{name: a, resource: {group: example.com, version: v1, resource: nodes}, nodeName: {name: {}}, keepIf: {annotation: example.com/a}}]",
		"kernel: {grace: 1s, maxRemovals: 1, stateDir: 'C:\\unstale', runtimeEndpoint: 'npipe:////./pipe/containerd-containerd'}",
		"kernel: {grace: 1h, maxRemovals: 4096, runtimeEndpoint: 'unix:///run/containerd/containerd.sock', hns: {enabled: false, aclPrefix: ''}}",
		bpf + "addresses: [{offset: 4, size: 16, family: {offset: 3, ipv4: 0, ipv6: 255}}, {offset: 0, size: 4}], expect: {keySize: 20, name: fifteen_letters}}]}",
		bpf + "addresses: [{offset: 0, size: 16, family: {offset: 16, ipv4: 1, ipv6: 2}}], expect: {type: LRUHash, keySize: 17, valueSize: 8}, ownerInterface: {offset: 4}, keepIf: [{in: value, offset: 7, size: 1, mask: 0xff, equals: 0xff}, {in: key, offset: 9, size: 8}]}]}",
		bpf + "addresses: [{offset: 8, size: 16}], expect: {type: LPMTrie, keySize: 24}, prefixLength: {offset: 0, baseBits: 32}}]}",
		bpf + "addresses: [{offset: 4, size: 4}], expect: {type: LPMTrie}, prefixLength: {offset: 0, baseBits: 640}}]}",
		"nodeRecovery: {taint: {after: 1s, confirm: Label, nodeSelector: {a: ''}}, prune: {after: 2s, minReadyEtcdMembers: 0, maxUnhealthy: 100%, interval: 1s}}",
		"nodeRecovery: {taint: {after: 10m}, prune: {maxUnhealthy: 1%, interval: 24h}, infrastructure: [{name: a, resource: {version: v1, resource: things}, match: {annotation: example.com/a}}]}",
		"report: {name: ''}",
	} {
		mustParse(t, text)
	}
}

// TestOutsideTheEdges is the other side of TestValidAtTheEdges, where only the bound differs.
func TestOutsideTheEdges(t *testing.T) {
	for text, path := range map[string]string{
		"grace: 999ms":                                             "grace",
		"grace: 1h1s":                                              "grace",
		"sweepInterval: 999ms":                                     "sweepInterval",
		"sweepInterval: 24h1s":                                     "sweepInterval",
		"maxRemovals: 4501":                                        "maxRemovals",
		"maxRemovals: -1":                                          "maxRemovals",
		"gossip: {port: 65536}":                                    "gossip.port",
		"gossip: {advertiseAddress: '::'}":                         "gossip.advertiseAddress",
		"gossip: {peers: ['a:65536']}":                             "gossip.peers[0]",
		"http: {debugAddress: '::1:80'}":                           "http.debugAddress",
		"http: {metricsAddress: localhost}":                        "http.metricsAddress",
		"kernel: {grace: 999ms}":                                   "kernel.grace",
		"kernel: {maxRemovals: 4097}":                              "kernel.maxRemovals",
		"kernel: {hns: {aclPrefix: ''}}":                           "kernel.hns.aclPrefix",
		"nodeRecovery: {taint: {after: 60s}, prune: {after: 60s}}": "nodeRecovery.prune.after",
		"nodeRecovery: {prune: {maxUnhealthy: 101%}}":              "nodeRecovery.prune.maxUnhealthy",
		"nodeRecovery: {prune: {interval: 24h1s}}":                 "nodeRecovery.prune.interval",
		"report: {name: ''}\nnodeRecovery: {}":                     "report.name",
		"statusKeys: [{name: nodeRecovery, resource: {version: v1, resource: a}, paths: [{path: status.a}]}]": "statusKeys[0].name",
		"statusKeys: [{name: hns, resource: {version: v1, resource: a}, paths: [{path: status.a}]}]":          "statusKeys[0].name",
	} {
		_, err := parse([]byte(header+text), validate)
		errs, _ := err.(Errors)
		if len(errs) != 1 || errs[0].Path != path {
			t.Errorf("%s: got %v, want one error at %s", text, err, path)
		}
	}
}
