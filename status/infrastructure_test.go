package status

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/unstale/unstale/test/apiserver"
)

// A capiScene is a recoverScene with Cluster API's Machines and their infrastructure in the same cluster. dead is the Node of Machine m-dead, worker-0 that of
// m-live.
type capiScene struct {
	*recoverScene
	namespace       string
	machines, infra apiserver.CRD
	contract        string // how a Machine names its infrastructure
}

func newCAPIScene(t *testing.T, contract string) *capiScene {
	t.Helper()
	versions := []string{"v1beta1", "v1beta2"}
	s := &capiScene{recoverScene: newRecoverScene(t), machines: apiserver.CRD{Group: machineGroup, Plural: "machines", Kind: "Machine", Versions: versions}, contract: contract}
	s.infra = apiserver.CRD{Group: "infrastructure.cluster.x-k8s.io", Plural: "testmachines", Kind: "TestMachine", Versions: versions}
	s.server.Install(t, s.machines.YAML())
	s.server.Install(t, s.infra.YAML())
	s.namespace = s.server.Namespace(t)
	s.options.Policy.PruneAfter, s.options.Policy.TaintAfter = 5*time.Minute, 0
	s.restart()
	s.object("TestMachine", "i-dead", "")
	s.object("TestMachine", "i-live", "")
	s.machine("m-dead", "i-dead", "dead")
	s.machine("m-live", "i-live", "worker-0")
	s.node("dead", "Unknown", time.Hour, removable+"=true")
	s.belongs("dead", "m-dead")
	s.belongs("worker-0", "m-live")
	return s
}

// object makes an object of one of the two kinds.
func (s *capiScene) object(kind, name, more string) {
	s.Helper()
	crd := s.infra
	if kind == "Machine" {
		crd = s.machines
	}
	s.server.Apply(s, s.namespace, fmt.Sprintf("apiVersion: %s/%s\nkind: %s\nmetadata: {name: %s, finalizers: [example.com/f]}\n%s\n", crd.Group, crd.Versions[0], kind, name, more))
	s.Cleanup(func() { s.finalized(crd, name) })
}

// machine makes a Machine that names its infrastructure as its version does.
func (s *capiScene) machine(name, infrastructure, node string) {
	s.Helper()
	ref := fmt.Sprintf("{apiVersion: %s/%s, kind: TestMachine, name: %s, namespace: %s}", s.infra.Group, s.infra.Versions[0], infrastructure, s.namespace)
	if s.contract == "v1beta2" {
		ref = fmt.Sprintf("{apiGroup: %s, kind: TestMachine, name: %s}", s.infra.Group, infrastructure)
	}
	s.object("Machine", name, fmt.Sprintf("spec: {infrastructureRef: %s}\nstatus: {nodeRef: {name: %s}}", ref, node))
}

func (s *capiScene) belongs(node, machine string) {
	s.Helper()
	s.server.Apply(s, "", fmt.Sprintf("apiVersion: v1\nkind: Node\nmetadata: {name: %s, labels: {%s: \"true\"}, annotations: {%s: %s, %s: %s}}\n",
		node, removable, machineAnnotation, machine, namespaceAnnotation, s.namespace))
}

// deleted deletes an object, which its finalizer keeps; finalized lets it go.
func (s *capiScene) deleted(crd apiserver.CRD, name string) {
	s.Helper()
	if err := s.server.Dynamic().Resource(crd.GVR()).Namespace(s.namespace).Delete(s.Context(), name, metav1.DeleteOptions{}); err != nil {
		s.Fatal(err)
	}
}

func (s *capiScene) finalized(crd apiserver.CRD, name string) {
	resource := s.server.Dynamic().Resource(crd.GVR()).Namespace(s.namespace)
	_, _ = resource.Patch(context.Background(), name, "application/merge-patch+json", []byte(`{"metadata": {"finalizers": null}}`), metav1.PatchOptions{})
	_ = resource.Delete(context.Background(), name, metav1.DeleteOptions{})
}

// In the right order: the Machine is deleted and its infrastructure is still there: the Node stays; the infrastructure is gone: it goes.
func TestClusterAPIInOrder(t *testing.T) {
	for _, contract := range []string{"v1beta1", "v1beta2"} {
		t.Run(contract, func(t *testing.T) {
			s := newCAPIScene(t, contract)
			report := s.pass(6 * time.Minute)
			s.want(report, "dead", "Refuse/MachineExists", "infrastructure TestMachine i-dead of Machine", "is there")
			s.deleted(s.machines, "m-dead")
			s.want(s.pass(6*time.Minute), "dead", "Refuse/MachineExists", "still there")
			s.deleted(s.infra, "i-dead")
			s.want(s.pass(6*time.Minute), "dead", "Refuse/MachineExists", "still there")
			s.finalized(s.infra, "i-dead")
			s.pass(6 * time.Minute)
			if s.exists("dead") {
				t.Error("the Node stays")
			}
		})
	}
}

// Whether the machine is gone, as far as anybody can tell.
func TestClusterAPIConfirmsOrNot(t *testing.T) {
	for name, test := range map[string]struct {
		first func(*capiScene) // before the first look
		then  func(*capiScene) // after the first
		want  string           // "": it goes
		words string
	}{
		"a Machine that is going, whose infrastructure was never seen": {func(s *capiScene) {
			s.deleted(s.machines, "m-dead")
			s.finalized(s.infra, "i-dead")
		}, nil, "", ""},
		"a Machine that is not, whose infrastructure was never seen": {func(s *capiScene) { s.finalized(s.infra, "i-dead") }, nil, "Refuse/MachineUnconfirmed", "not being deleted"},
		"a Machine that is not, whose infrastructure was seen":       {nil, func(s *capiScene) { s.finalized(s.infra, "i-dead") }, "", ""},
		"all is gone before the first look": {func(s *capiScene) {
			s.finalized(s.infra, "i-dead")
			s.finalized(s.machines, "m-dead")
		}, nil, "", ""},
		"the Machine is gone, and its infrastructure is not": {nil, func(s *capiScene) { s.finalized(s.machines, "m-dead") }, "Refuse/MachineExists", "still there"},
		"no Machine at all": {func(s *capiScene) {
			s.finalized(s.machines, "m-dead")
			s.finalized(s.machines, "m-live")
		}, nil, "Refuse/MachineUnconfirmed", "nothing shows that this is the management cluster"},
		"another Node's Machine": {func(s *capiScene) {
			s.finalized(s.machines, "m-dead")
			s.machine("m-dead", "i-dead", "worker-3")
		}, nil, "Refuse/MachineUnconfirmed", "its Node is worker-3"},
		"no name of a Machine":    {func(s *capiScene) { s.belongs("dead", `"../x"`) }, nil, "Refuse/MachineUnconfirmed", "no name of a Machine"},
		"no infrastructure named": {func(s *capiScene) { s.object("Machine", "m-dead", "spec: {infrastructureRef: null}") }, nil, "Refuse/MachineUnconfirmed", "names no infrastructure"},
		"the CRD of it is gone": {nil, func(s *capiScene) {
			s.finalized(s.infra, "i-live")
			s.finalized(s.infra, "i-dead")
			s.server.Uninstall(s, s.infra.GVR())
		}, "Refuse/MachineUnconfirmed", ""},
		"Cluster API's CRD is gone": {nil, func(s *capiScene) {
			s.finalized(s.machines, "m-live")
			s.finalized(s.machines, "m-dead")
			s.server.Uninstall(s, s.machines.GVR())
		}, "Refuse/MachineUnconfirmed", ""},
		"no answer for the Machine": {nil, func(s *capiScene) {
			s.proxy.SetFault(apiserver.On("GET machines.cluster.x-k8s.io", &apiserver.Fault{Drop: true}))
		}, "Refuse/MachineUnconfirmed", "no answer"},
		"no answer for its infrastructure": {nil, func(s *capiScene) {
			s.proxy.SetFault(apiserver.On("GET testmachines.infrastructure.cluster.x-k8s.io", apiserver.HTMLNotFound))
		}, "Refuse/MachineUnconfirmed", ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := newCAPIScene(t, "v1beta1")
			if test.first != nil {
				test.first(s)
			}
			s.pass(time.Second)
			if test.then != nil {
				test.then(s)
			}
			report := s.pass(6 * time.Minute)
			if test.want != "" {
				s.want(report, "dead", test.want, test.words)
			}
			if exists := s.exists("dead"); exists != (test.want != "") {
				t.Errorf("exists: %v; %s %s; %s", exists, said(report, "dead"), message(report, "dead"), report.Message)
			}
		})
	}
}

// The Machine's own controller deletes the Node at the same moment: no fight and no error.
func TestClusterAPIDoesItItself(t *testing.T) {
	s := newCAPIScene(t, "v1beta1")
	s.deleted(s.machines, "m-dead")
	s.finalized(s.infra, "i-dead")
	s.proxy.SetFault(func(r *http.Request) *apiserver.Fault {
		if apiserver.Class(r) == "DELETE nodes" {
			s.server.DeleteNode(t, "dead")
			s.finalized(s.machines, "m-dead")
		}
		return nil
	})
	report := s.pass(6 * time.Minute)
	s.want(report, "dead", "Keep/BeingDeleted")
	if report.State != OK {
		t.Errorf("%s: %s", report.State, report.Message)
	}
	if report = s.pass(6 * time.Minute); report.State != OK || said(report, "dead") != "none" {
		t.Errorf("%s: %s", report.State, report.Message)
	}
}

// A management cluster that cannot be reached confirms nothing, and says why.
func TestManagementClusterOutOfReach(t *testing.T) {
	s := newCAPIScene(t, "v1beta1")
	s.options.Machines = func() (*Client, error) { return nil, errors.New("kubeconfig /etc/m: no such file") }
	s.restart()
	s.want(s.pass(6*time.Minute), "dead", "Refuse/MachineUnconfirmed", "kubeconfig /etc/m: no such file")
	closed := s.server.Proxy(t)
	closed.Close()
	config := closed.Config()
	s.options.Machines = func() (*Client, error) { return NewClient(config, "t") }
	s.restart()
	s.want(s.pass(6*time.Minute), "dead", "Refuse/MachineUnconfirmed", "no answer")
	if !s.exists("dead") {
		t.Error("it is gone")
	}
}

// Resources of the configuration, matched by providerID or by an annotation.
func TestInfrastructureSources(t *testing.T) {
	type host struct {
		*recoverScene
		crd       apiserver.CRD
		namespace string
	}
	set := func(h *host, name, id string) {
		h.server.Apply(h, h.namespace, fmt.Sprintf("apiVersion: %s/v1\nkind: Host\nmetadata: {name: %s}\nspec: {id: %q}\n", h.crd.Group, name, id))
	}
	del := func(h *host, name string) { h.server.Delete(h, h.crd.GVR(), h.namespace, name) }
	byID := func(h *host) InfrastructureSource {
		return InfrastructureSource{Name: "hosts", Resource: h.crd.GVR(), Namespace: h.namespace, ProviderID: FieldPath{"spec", "id"}}
	}
	byAnnotation := func(h *host) InfrastructureSource {
		return InfrastructureSource{Name: "hosts", Resource: h.crd.GVR(), Annotation: "example.com/host"}
	}
	for name, test := range map[string]struct {
		source  func(*host) InfrastructureSource
		first   func(*host)
		then    func(*host)
		tainted bool // the taint wants it confirmed gone
		want    string
		words   string
	}{
		"by providerID, there":                        {byID, nil, nil, false, "Refuse/MachineExists", "hosts "},
		"by providerID, gone":                         {byID, nil, func(h *host) { del(h, "a") }, true, "", ""},
		"by providerID, of another machine by now":    {byID, nil, func(h *host) { set(h, "a", "x://other") }, false, "Refuse/MachineUnconfirmed", "another machine"},
		"by providerID, the same in another object":   {byID, nil, func(h *host) { del(h, "a"); set(h, "c", "x://dead") }, false, "Refuse/MachineExists", ""},
		"by providerID, never there, others are":      {byID, func(h *host) { del(h, "a") }, nil, false, "", ""},
		"by providerID, never there, and for a taint": {byID, func(h *host) { del(h, "a") }, nil, true, "Refuse/NoInfrastructure", ""},
		"by providerID, no object is any Node's":      {byID, func(h *host) { del(h, "a"); set(h, "b", "y://b") }, nil, false, "Refuse/MachineUnconfirmed", "is match.providerID right?"},
		"by providerID, no object at all":             {byID, func(h *host) { del(h, "a"); del(h, "b") }, nil, false, "Refuse/MachineUnconfirmed", "no object at all"},
		"by providerID, another cluster by now":       {byID, nil, func(h *host) { del(h, "a"); del(h, "b") }, false, "Refuse/MachineUnconfirmed", "the cluster that had it"},
		"by providerID, the list fails": {byID, func(h *host) {
			h.proxy.SetFault(func(r *http.Request) *apiserver.Fault {
				if strings.HasPrefix(apiserver.Class(r), "LIST hosts") {
					return &apiserver.Fault{Drop: true}
				}
				return nil
			})
		}, nil, false, "Refuse/MachineUnconfirmed", "no answer"},
		"by providerID, the CRD is gone": {byID, nil, func(h *host) { h.server.Uninstall(h, h.crd.GVR()) }, false, "Refuse/MachineUnconfirmed", ""},
		"by annotation, there":           {byAnnotation, nil, nil, false, "Refuse/MachineExists", ""},
		"by annotation, gone":            {byAnnotation, nil, func(h *host) { del(h, "a") }, true, "", ""},
		"by annotation, made anew":       {byAnnotation, nil, func(h *host) { del(h, "a"); set(h, "a", "") }, false, "Refuse/MachineExists", ""},
		"by annotation, never there":     {byAnnotation, func(h *host) { del(h, "a") }, nil, false, "Refuse/MachineUnconfirmed", "never was"},
		"by annotation, no name": {byAnnotation, func(h *host) {
			h.server.Apply(h, "", "apiVersion: v1\nkind: Node\nmetadata: {name: dead, labels: {"+removable+": \"true\"}, annotations: {example.com/host: \"../../x\"}}\nspec: {providerID: \"x://dead\"}\n")
		}, nil, false, "Refuse/MachineUnconfirmed", "no namespace/name"},
	} {
		t.Run(name, func(t *testing.T) {
			h := &host{recoverScene: newRecoverScene(t), crd: apiserver.CRD{Group: apiserver.Unique("hosts") + ".example.com", Plural: "hosts", Kind: "Host"}}
			h.server.Install(t, h.crd.YAML())
			h.namespace = h.server.Namespace(t)
			set(h, "a", "x://dead")
			set(h, "b", "x://worker-0")
			h.node("dead", "Unknown", time.Hour, removable+"=true")
			for node, object := range map[string]string{"dead": "a", "worker-0": "b"} {
				h.server.Apply(h, "", fmt.Sprintf("apiVersion: v1\nkind: Node\nmetadata: {name: %s, labels: {%s: \"true\"}, annotations: {example.com/host: %s/%s}}\nspec: {providerID: \"x://%s\"}\n",
					node, removable, h.namespace, object, node))
			}
			h.options.Infrastructure = []InfrastructureSource{test.source(h)}
			if test.tainted {
				h.options.Policy.TaintAfter, h.options.Policy.PruneAfter = 5*time.Minute, 0
			} else {
				h.options.Policy.PruneAfter = 5 * time.Minute
			}
			if test.first != nil {
				test.first(h)
			}
			h.restart()
			h.pass(time.Second)
			if test.then != nil {
				test.then(h)
			}
			report := h.pass(6 * time.Minute)
			done := !h.exists("dead") || h.taintsOf("dead") == ourTaint
			if test.want != "" {
				h.want(report, "dead", test.want, test.words)
			}
			if done != (test.want == "") {
				t.Errorf("done: %v; %s: %s; %s", done, said(report, "dead"), message(report, "dead"), report.Message)
			}
		})
	}
}
