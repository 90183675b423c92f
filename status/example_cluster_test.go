package status_test

import (
	"context"
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"

	"github.com/unstale/unstale/test/apiserver"
)

// cluster is what the examples run on: the tests' API server, with a shared resource, and a function that shows its keys.
func cluster() (config *rest.Config, namespace string, show func()) {
	server := apiserver.Shared(example{})
	crd := apiserver.CRD{Group: "example.com", Plural: "paintings", Kind: "Painting"}
	server.Install(example{}, crd.YAML())
	namespace = server.Namespace(example{})
	server.Apply(example{}, namespace, "apiVersion: example.com/v1\nkind: Painting\nmetadata: {name: default}\n")
	return server.Config(), namespace, func() {
		object, err := server.Dynamic().Resource(crd.GVR()).Namespace(namespace).Get(context.Background(), "default", metav1.GetOptions{})
		if err != nil {
			panic(err)
		}
		nodes, _, _ := unstructured.NestedMap(object.Object, "status", "nodes")
		for node, entry := range nodes {
			fmt.Println(node, "is", entry.(map[string]any)["colour"])
		}
		if len(nodes) == 0 {
			fmt.Println("nothing")
		}
	}
}

// An example stands for the test that an example does not have: it gives up by a panic.
type example struct{ testing.TB }

func (example) Helper()                         {}
func (example) Name() string                    { return "example" }
func (example) Fatal(args ...any)               { panic(fmt.Sprint(args...)) }
func (example) Fatalf(text string, args ...any) { panic(fmt.Sprintf(text, args...)) }
