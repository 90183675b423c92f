package status

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/unstale/unstale/test/apiserver"
)

// newObjectScene is a scene with objects instead of keys: named after their nodes, unless names says otherwise. KEEP0 stands for an existing Node's name.
func newObjectScene(t *testing.T, n int, in NodeNameIn, objects ...string) *scene {
	t.Helper()
	s := newScene(t, n, "{}")
	s.server.Delete(t, s.target.Resource, s.target.Namespace, s.name)
	s.target.Paths, s.target.Objects = nil, &Objects{NodeName: in, KeepAnnotation: "example.com/keep", KeepValue: "yes"}
	s.object(objects...)
	s.restart()
	return s
}

// object makes objects, each as its name, or as its name and more of its YAML.
func (s *scene) object(objects ...string) {
	s.Helper()
	gvr := s.target.Resource
	for _, text := range objects {
		name, more, _ := strings.Cut(text, " ")
		text := fmt.Sprintf("apiVersion: %s/%s\nkind: Widget\nmetadata: {name: %s%s\n", gvr.Group, gvr.Version, name, more)
		if !strings.Contains(more, "}") {
			text = strings.TrimSpace(text) + "}\n"
		}
		for i, node := range s.existing {
			text = strings.ReplaceAll(text, fmt.Sprint("KEEP", i), node)
		}
		s.server.Apply(s, s.target.Namespace, text)
	}
}

// objects are the names of those that there are.
func (s *scene) objects() string {
	s.Helper()
	list, err := s.server.Dynamic().Resource(s.target.Resource).Namespace(s.target.Namespace).List(s.Context(), metav1.ListOptions{})
	if err != nil {
		s.Fatal(err)
	}
	var names []string
	for _, o := range list.Items {
		name := o.GetName()
		if i := slices.Index(s.existing, name); i >= 0 {
			name = fmt.Sprint("KEEP", i)
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// Orphans go, and nothing else, wherever the node's name stands.
func TestObjectsGo(t *testing.T) {
	for name, test := range map[string]struct {
		in      NodeNameIn
		objects []string
		left    string
	}{
		"by their name": {NodeNameIn{Name: true}, []string{"KEEP0", "gone-a", "gone-b"}, "KEEP0"},
		"by a label": {
			NodeNameIn{Label: "example.com/node"},
			[]string{"a , labels: {example.com/node: KEEP0}}", "b , labels: {example.com/node: gone-a}}", "c , labels: {example.com/node: gone-a}}", "d , labels: {other: gone-a}}", "e"},
			"a d e",
		},
		"by an annotation": {
			NodeNameIn{Field: FieldPath{"metadata", "annotations", "example.com/node"}},
			[]string{"a , annotations: {example.com/node: KEEP0}}", "b , annotations: {example.com/node: gone-a}}", "c"}, "a c",
		},
		"by a field": {
			NodeNameIn{Field: FieldPath{"spec", "nodeName"}},
			[]string{"a }\nspec: {nodeName: KEEP0}", "b }\nspec: {nodeName: gone-a}", "c }\nspec: {nodeName: {no: name}}", "d }\nspec: {}", "e"}, "a c d e",
		},
		"by their owner": {
			NodeNameIn{Field: OwnerNode},
			[]string{
				"a , ownerReferences: [{apiVersion: v1, kind: Node, name: KEEP0, uid: u}]}", "b , ownerReferences: [{apiVersion: v1, kind: Node, name: gone-a, uid: u}]}",
				"c , ownerReferences: [{apiVersion: v1, kind: Pod, name: gone-a, uid: u}]}",
			}, "a c",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newObjectScene(t, 1, test.in, test.objects...)
			s.state(s.sweeper.Plan(t.Context()), OK)
			if n := len(s.proxy.Matching("DELETE widgets." + s.target.Resource.Group)); n != 0 {
				t.Errorf("a plan deletes %d", n)
			}
			before := s.objects()
			report := s.sweep()
			s.state(report, OK)
			s.equal("left", s.objects(), test.left)
			if gone := len(strings.Fields(before)) - len(strings.Fields(test.left)); report.Removed() != gone || report.Kind != "nodeObjects" {
				t.Errorf("%d of %d removed: %+v", report.Removed(), gone, report)
			}
			if _, err := fmt.Sscan(s.objects(), new(string)); err != nil {
				t.Error("nothing is left")
			}
		})
	}
}

// What keeps an object whose node is gone.
func TestObjectsStay(t *testing.T) {
	owner := func(kind, name, uid string) string {
		return fmt.Sprintf(", ownerReferences: [{apiVersion: v1, kind: %s, name: %s, uid: %s}]}", kind, name, uid)
	}
	s := newObjectScene(t, 1, NodeNameIn{Name: true}, "KEEP0")
	s.server.Apply(t, s.target.Namespace, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: owner}\n")
	configMaps := s.target.Resource
	configMaps.Group, configMaps.Version, configMaps.Resource = "", "v1", "configmaps"
	uid := string(s.server.Get(t, configMaps, s.target.Namespace, "owner").GetUID())
	s.object(
		"gone-finalizer , finalizers: [example.com/f]}", "gone-kept , annotations: {example.com/keep: \"yes\"}}", "gone-not-kept , annotations: {example.com/keep: \"no\"}}",
		`gone-annotated , annotations: {unstale.dev/keep: "true"}}`, "gone-owned "+owner("ConfigMap", "owner", uid), "gone-owned-by-another "+owner("ConfigMap", "owner", "other"),
		"gone-orphan "+owner("ConfigMap", "nobody", "u"), "gone-strange "+owner("Nonsense", "x", "u"), "gone-forbidden "+owner("Secret", "x", "u"),
		"gone-daemon , ownerReferences: [{apiVersion: apps/v1, kind: DaemonSet, name: d, uid: u}]}",
	)
	s.proxy.SetFault(apiserver.On("GET secrets", apiserver.Refuse(403, metav1.StatusReasonForbidden, `User "u" cannot get resource "secrets"`)))
	report := s.sweep()
	s.equal("verdicts", s.verdicts(report), "gone-annotated=Keep/KeptByAnnotation gone-daemon=Remove/NodeGone gone-finalizer=Keep/Finalizers gone-forbidden=Keep/Unconfirmed gone-kept=Keep/KeptByOwner "+
		"gone-not-kept=Remove/NodeGone gone-orphan=Remove/NodeGone gone-owned=Keep/OwnerExists gone-owned-by-another=Remove/NodeGone gone-strange=Keep/Unconfirmed KEEP0=Keep/NodeExists")
	s.equal("left", s.objects(), "KEEP0 gone-annotated gone-finalizer gone-forbidden gone-kept gone-owned gone-strange")
	for _, r := range report.Resources {
		f := r.Findings[0]
		for name, words := range map[string]string{
			"gone-finalizer": "example.com/f", "gone-owned": "the object belongs to ConfigMap owner, which exists", "gone-strange": "v1 has no resource of kind Nonsense",
			"gone-forbidden": "cannot get resource", "gone-kept": `example.com/keep: "yes"`,
		} {
			if f.Key == name && !strings.Contains(f.Message, words) {
				t.Errorf("%s: %s", name, f.Message)
			}
		}
	}
	// One that somebody has deleted, and that a finalizer holds, is told of as such.
	s.server.Dynamic().Resource(s.target.Resource).Namespace(s.target.Namespace).Delete(t.Context(), "gone-finalizer", metav1.DeleteOptions{})
	if got := s.verdicts(s.sweeper.Sweep(t.Context())); !strings.Contains(got, "gone-finalizer=Keep/BeingDeleted") {
		t.Error(got)
	}
}

// What happens between the look and the deletion: nothing that lives is lost.
func TestObjectsInTheMiddle(t *testing.T) {
	const deleted = "DELETE widgets."
	for name, test := range map[string]struct {
		meanwhile func(*scene)
		verdict   string
		left      string
	}{
		"it is written again": {func(s *scene) {
			s.server.Apply(s, s.target.Namespace, fmt.Sprintf("apiVersion: %s/v1\nkind: Widget\nmetadata: {name: gone}\nspec: {n: 1}\n", s.target.Resource.Group))
		}, "Wait/Changed", "KEEP0 gone"},
		"it is deleted and made again": {func(s *scene) {
			s.server.Delete(s, s.target.Resource, s.target.Namespace, "gone")
			s.object("gone")
		}, "Wait/Changed", "KEEP0 gone"},
		"somebody else deletes it": {func(s *scene) { s.server.Delete(s, s.target.Resource, s.target.Namespace, "gone") }, "Keep/NodeGone", "KEEP0"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newObjectScene(t, 1, NodeNameIn{Name: true}, "KEEP0", "gone")
			s.proxy.SetFault(func(r *http.Request) *apiserver.Fault {
				if strings.HasPrefix(apiserver.Class(r), deleted) {
					test.meanwhile(s)
				}
				return nil
			})
			report := s.sweep()
			s.state(report, OK)
			s.equal("verdicts", s.verdicts(report), "gone="+test.verdict+" KEEP0=Keep/NodeExists")
			s.equal("left", s.objects(), test.left)
			if report.Removed() != 0 {
				t.Errorf("%d removed", report.Removed())
			}
		})
	}
	// A Node that comes back between two looks keeps its object; a changed object waits anew.
	s := newObjectScene(t, 1, NodeNameIn{Name: true}, "KEEP0", "gone", "changing")
	back := apiserver.Unique("back")
	s.object(back)
	report := s.sweep(func() {
		s.server.CreateNodes(t, back)
		s.server.Apply(t, s.target.Namespace, fmt.Sprintf("apiVersion: %s/v1\nkind: Widget\nmetadata: {name: changing}\nspec: {n: 1}\n", s.target.Resource.Group))
	})
	s.equal("verdicts", s.verdicts(report), fmt.Sprintf("%s=Keep/NodeExists changing=Wait/Changed gone=Remove/NodeGone KEEP0=Keep/NodeExists", back))
}

// A list that fails in the middle, whatever the reason, proves nothing; one that has expired is begun again.
func TestObjectListFails(t *testing.T) {
	s := newObjectScene(t, 1, NodeNameIn{Name: true}, "KEEP0")
	for i := range objectsPage + 20 {
		s.object(fmt.Sprint("gone-", i))
	}
	s.target.MaxRemovals = 5
	s.restart()
	second := func(f *apiserver.Fault) apiserver.FaultFunc {
		return func(r *http.Request) *apiserver.Fault {
			if r.URL.Query().Has("continue") && strings.HasPrefix(apiserver.Class(r), "LIST widgets") {
				return f
			}
			return nil
		}
	}
	expired := apiserver.Refuse(410, metav1.StatusReasonExpired, "the continue token is too old")
	for name, fault := range map[string]*apiserver.Fault{
		"expired for ever": expired, "cut short": {Cut: true, CutAfter: 100}, "500": apiserver.Refuse(500, metav1.StatusReasonInternalError, "down"), "HTML": apiserver.HTMLNotFound,
	} {
		s.proxy.SetFault(second(fault))
		report := s.sweep()
		if report.State != Unavailable && report.State != NotInstalled || len(report.Resources) != 0 || report.Removed() != 0 {
			t.Errorf("%s: %s (%s), %d objects", name, report.State, report.Message, len(report.Resources))
		}
	}
	s.proxy.Reset()
	s.proxy.SetFault(second(expired).Times(1))
	s.sweeper.Wait = func(context.Context, time.Duration) error { return context.Canceled }
	report := s.sweep()
	s.state(report, Unavailable, "stopped with 215 still to delete")
	if report.Removed() != 5 || len(report.Resources) != objectsPage+21 {
		t.Errorf("%d of %d removed", report.Removed(), len(report.Resources))
	}
}

// A batch is as large as the target says, and between two lies a pause in which an operator may stop it.
func TestObjectsInBatches(t *testing.T) {
	s := newObjectScene(t, 1, NodeNameIn{Name: true}, "KEEP0", "gone-a", "gone-b", "gone-c", "gone-d", "gone-e", "gone-f", "gone-g")
	s.target.MaxRemovals = 3
	s.restart()
	var left []string
	s.onWait = func() { left = append(left, s.objects()) }
	report := s.sweep()
	s.state(report, OK)
	s.equal("after the batches", strings.Join(left, "; "), "KEEP0 gone-d gone-e gone-f gone-g; KEEP0 gone-g")
	s.equal("left", s.objects(), "KEEP0")
	if report.Removed() != 7 {
		t.Errorf("%d removed", report.Removed())
	}
}

// With mode Report, and where no object belongs to an existing node, nothing is deleted.
func TestObjectsHeldAndReported(t *testing.T) {
	s := newObjectScene(t, 1, NodeNameIn{Name: true}, "gone-a", "gone-b")
	report := s.sweep()
	s.state(report, StateHeld)
	s.equal("verdicts", s.verdicts(report), "gone-a=Keep/Held gone-b=Keep/Held")
	s.object("KEEP0")
	s.target.Mode = Report
	s.restart()
	report = s.sweep()
	s.state(report, OK, "the mode is Report")
	s.equal("verdicts", s.verdicts(report), "gone-a=Remove/NodeGone gone-b=Remove/NodeGone KEEP0=Keep/NodeExists")
	s.target.Mode, s.target.UnknownKeys = Enforce, KeepUnknown
	s.restart()
	s.equal("verdicts", s.verdicts(s.sweep()), "gone-a=Keep/UnknownName gone-b=Keep/UnknownName KEEP0=Keep/NodeExists")
	s.equal("left", s.objects(), "KEEP0 gone-a gone-b")
}

// An owner's kind that may not be read is asked for once a pass, not once for each object; one that exists in another namespace is another.
func TestOwnersAreAskedForOnce(t *testing.T) {
	s := newObjectScene(t, 1, NodeNameIn{Name: true}, "KEEP0")
	for i := range 10 {
		s.object(fmt.Sprintf("gone-secret-%d , ownerReferences: [{apiVersion: v1, kind: Secret, name: x%d, uid: u%d}]}", i, i, i),
			fmt.Sprintf("gone-pod-%d , ownerReferences: [{apiVersion: v1, kind: Pod, name: p%d, uid: u}]}", i, i))
	}
	s.proxy.Reset()
	s.proxy.SetFault(apiserver.On("GET secrets", apiserver.Refuse(403, metav1.StatusReasonForbidden, `User "u" cannot get resource "secrets"`)))
	report := s.sweep()
	if report.Removed() != 10 || report.Count(Keep) != 11 {
		t.Errorf("%d removed, %d kept: %s", report.Removed(), report.Count(Keep), s.verdicts(report))
	}
	for class, want := range map[string]int{"GET secrets": 1, "GET pods": 10} {
		if n := len(s.proxy.Matching(class)); n != want {
			t.Errorf("%s: %d times, want %d", class, n, want)
		}
	}
	discovery := 0
	for _, r := range s.proxy.Requests() {
		if r.Path == "/api/v1" {
			discovery++
		}
	}
	if discovery > 2 {
		t.Errorf("/api/v1 was read %d times, for two kinds", discovery)
	}
}

// A deletion that fails is told of and the others go on, but where the server is busy; what was not deleted goes with the next pass, and what was, although
// nobody said so, is not told of twice.
func TestADeletionFails(t *testing.T) {
	for name, test := range map[string]struct {
		fault *apiserver.Fault
		state State
		left  string // after the pass
		tried int
		words string
	}{
		"429":             {apiserver.Refuse(429, metav1.StatusReasonTooManyRequests, "busy"), Unavailable, "KEEP0 gone-a gone-b", 1, "busy"},
		"403":             {apiserver.Refuse(403, metav1.StatusReasonForbidden, "a policy refuses"), Forbidden, "KEEP0 gone-a gone-b", 2, "a policy refuses"},
		"500":             {apiserver.Refuse(500, metav1.StatusReasonInternalError, "down"), Unavailable, "KEEP0 gone-a gone-b", 2, "perhaps deleted"},
		"dropped":         {&apiserver.Fault{Drop: true}, Unavailable, "KEEP0 gone-a gone-b", 2, "perhaps deleted"},
		"the answer lost": {&apiserver.Fault{Lose: true}, Unavailable, "KEEP0", 2, "perhaps deleted"},
		"the answer cut":  {&apiserver.Fault{Cut: true, CutAfter: 20}, Unavailable, "KEEP0", 2, "perhaps deleted"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newObjectScene(t, 1, NodeNameIn{Name: true}, "KEEP0", "gone-a", "gone-b")
			s.proxy.SetFault(apiserver.On("DELETE widgets."+s.target.Resource.Group, test.fault))
			report := s.sweep()
			s.state(report, test.state, test.words)
			if report.Removed() != 0 {
				t.Errorf("%d removed", report.Removed())
			}
			if n := len(s.proxy.Matching("DELETE widgets." + s.target.Resource.Group)); n != test.tried {
				t.Errorf("%d deletions were tried, want %d", n, test.tried)
			}
			s.equal("left", s.objects(), test.left)
			s.proxy.SetFault(nil)
			report = s.sweeper.Sweep(t.Context())
			s.state(report, OK)
			s.equal("left at the end", s.objects(), "KEEP0")
			if want := len(strings.Fields(test.left)) - 1; report.Removed() != want {
				t.Errorf("%d removed, want %d", report.Removed(), want)
			}
		})
	}
}

// Objects that cannot be deleted keep no others from it: a few in a row end the pass, and come last in the next.
func TestObjectsThatCannotBeDeleted(t *testing.T) {
	s := newObjectScene(t, 1, NodeNameIn{Name: true}, "KEEP0", "gone-x", "gone-y")
	for i := range maxDeleteFailures + 1 {
		s.object(fmt.Sprint("gone-refused-", i))
	}
	refuse := apiserver.Refuse(403, metav1.StatusReasonForbidden, "a policy refuses")
	s.proxy.SetFault(func(r *http.Request) *apiserver.Fault {
		if r.Method == http.MethodDelete && strings.Contains(r.URL.Path, "/gone-refused") {
			return refuse
		}
		return nil
	})
	report := s.sweep()
	s.state(report, Forbidden, "5 deletions in a row failed; the others were not tried", "a policy refuses")
	s.equal("left", s.objects(), "KEEP0 gone-refused-0 gone-refused-1 gone-refused-2 gone-refused-3 gone-refused-4 gone-refused-5 gone-x gone-y")
	report = s.sweeper.Sweep(t.Context())
	s.state(report, Forbidden)
	s.equal("verdicts", s.verdicts(report), "gone-refused-0=Keep/Unconfirmed gone-refused-1=Keep/Unconfirmed gone-refused-2=Keep/Unconfirmed gone-refused-3=Keep/Unconfirmed "+
		"gone-refused-4=Keep/Unconfirmed gone-refused-5=Keep/Unconfirmed gone-x=Remove/NodeGone gone-y=Remove/NodeGone KEEP0=Keep/NodeExists")
	s.equal("left", s.objects(), "KEEP0 gone-refused-0 gone-refused-1 gone-refused-2 gone-refused-3 gone-refused-4 gone-refused-5")
}

// Owners that are not answered for are not asked for one by one without end, and the target says so.
func TestOwnersThatAreNotAnswered(t *testing.T) {
	s := newObjectScene(t, 1, NodeNameIn{Name: true}, "KEEP0")
	for i := range 12 {
		s.object(fmt.Sprintf("gone-%d , ownerReferences: [{apiVersion: v1, kind: Secret, name: x%d, uid: u%d}]}", i, i, i))
	}
	s.proxy.Reset()
	s.proxy.SetFault(apiserver.On("GET secrets", apiserver.Refuse(503, metav1.StatusReasonServiceUnavailable, "down")))
	report := s.sweep()
	s.state(report, Unavailable, "get secrets", "down")
	if n := len(s.proxy.Matching("GET secrets")); n != askAttempts*maxReadFailures {
		t.Errorf("%d GETs of owners that fail, in one pass", n)
	}
	if n := report.Count(Keep); n != 13 || report.Removed() != 0 {
		t.Errorf("%d kept, %d removed", n, report.Removed())
	}
	s.proxy.SetFault(nil)
	s.state(s.sweeper.Sweep(t.Context()), OK)
	s.equal("left", s.objects(), "KEEP0")
}

// A node that lives keeps all that belongs to it, also what is named after one that is gone.
func TestObjectsThatBelongToNodes(t *testing.T) {
	belongs := func(s *scene, i int) string {
		node := s.existing[i]
		return fmt.Sprintf("{apiVersion: v1, kind: Node, name: %s, uid: %s}", node, s.server.Get(t, nodesResource, "", node).GetUID())
	}
	s := newObjectScene(t, 2, NodeNameIn{Name: true}, "KEEP0", "gone-a , ownerReferences: [{apiVersion: v1, kind: Node, name: gone-a, uid: u}]}",
		"gone-b , ownerReferences: [{apiVersion: v1, kind: Node, name: gone-a, uid: u}]}", "gone-c , ownerReferences: [{apiVersion: v1, kind: Node, name: KEEP1, uid: an-earlier-one}]}")
	s.object("gone-d , ownerReferences: [" + belongs(s, 1) + "]}")
	s.equal("verdicts", s.verdicts(s.sweep()), "gone-a=Remove/NodeGone gone-b=Remove/NodeGone gone-c=Remove/NodeGone gone-d=Keep/OwnerExists KEEP0=Keep/NodeExists")
	s.equal("left", s.objects(), "KEEP0 gone-d")

	s = newObjectScene(t, 2, NodeNameIn{Field: OwnerNode}, "a , ownerReferences: [{apiVersion: v1, kind: Node, name: KEEP0, uid: u}]}")
	s.object("b , ownerReferences: [{apiVersion: v1, kind: Node, name: gone, uid: u}, " + belongs(s, 1) + "]}")
	s.sweep()
	s.equal("left", s.objects(), "a b")
}

// A label holds 63 characters, so a name that fills it may be the first part of a longer one.
func TestObjectsWhoseLabelWasCut(t *testing.T) {
	s := newObjectScene(t, 1, NodeNameIn{Label: "example.com/node"}, "a , labels: {example.com/node: KEEP0}}", "c , labels: {example.com/node: gone}}")
	long := apiserver.Unique("ip-10-0-0-1") + "." + strings.Repeat("a", 30) + "." + strings.Repeat("b", 40)
	s.server.CreateNodes(t, long)
	s.object("b , labels: {example.com/node: " + long[:63] + "}}")
	report := s.sweep()
	s.state(report, OK)
	for _, f := range report.Resources[1].Findings {
		if f.Reason != UnknownName || !strings.Contains(f.Message, "first part") {
			t.Errorf("%+v", f)
		}
	}
	s.equal("left", s.objects(), "a b")
}
