package status_test

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/unstale/unstale/status"
)

// What this agent says of its node. The time makes every entry a new one.
type paint struct {
	Colour string    `json:"colour"`
	Time   time.Time `json:"time"`
}

// The agent of another project keeps what it says of its node in a shared resource: it publishes its key, again when something
// changes, and takes it away when it stops.
func ExampleOwnKey() {
	config, namespace, show := cluster() // of a program of yours: rest.InClusterConfig(), and where its resource is
	client, err := status.NewClient(config, "painter")
	if err != nil {
		panic(err)
	}
	key, err := status.NewOwnKey(client, "node-1", status.KeyPlace{
		Resource:  schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "paintings"},
		Namespace: namespace,
		Name:      "default",
		Paths:     []status.KeyPath{{Path: status.FieldPath{"status", "nodes"}}},
	})
	if err != nil {
		panic(err)
	}

	// While the agent runs. A context with a time-out bounds how long it tries while the API server does not answer.
	running, stop := context.WithCancel(context.Background())
	for _, colour := range []string{"red", "blue"} {
		if err := key.Publish(running, paint{colour, time.Now()}); err != nil {
			fmt.Println(err) // says what is wrong, and what to do
		}
		show()
	}

	// When it stops. The context of the work has ended by then; this one bounds the stop.
	stop()
	stopping, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := key.Clear(stopping); err != nil {
		fmt.Println(err) // the key may be left behind
	}
	show()

	// An event that was under way adds nothing again.
	fmt.Println(key.Publish(context.Background(), paint{"green", time.Now()}) != nil)

	// Output:
	// node-1 is red
	// node-1 is blue
	// nothing
	// true
}
