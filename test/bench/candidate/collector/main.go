// Command collector stands beside unstale's agents in the benchmarks of objects: a garbage collector for NodeFeatures, built around an informer as such
// programs usually are. The metadata of all Nodes is watched. At the start, every hour, and when a Node is deleted all objects are listed as
// metadata, and those whose Node the informer does not know are deleted by name, at once.
//
//	collector -kubeconfig FILE
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	interval  = time.Hour
	nodeLabel = "nfd.node.kubernetes.io/node-name"
)

var (
	nodesResource    = schema.GroupVersionResource{Version: "v1", Resource: "nodes"}
	featuresResource = schema.GroupVersionResource{Group: "nfd.k8s-sigs.io", Version: "v1alpha1", Resource: "nodefeatures"}
)

func main() {
	kubeconfig := flag.String("kubeconfig", "", "kubeconfig `file`")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	log := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	if err := run(ctx, *kubeconfig, log); err != nil {
		log.Error("the collector cannot go on", "error", err)
		os.Exit(1)
	}
}

// run collects until ctx ends.
func run(ctx context.Context, kubeconfig string, log *slog.Logger) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return fmt.Errorf("read the kubeconfig: %w", err)
	}
	config.QPS, config.Burst = 100, 200 // as much as unstale has
	client, err := metadata.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	factory := metadatainformer.NewSharedInformerFactory(client, 0)
	nodes := factory.ForResource(nodesResource)
	deleted := make(chan struct{}, 1)
	if _, err := nodes.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{DeleteFunc: func(any) {
		select {
		case deleted <- struct{}{}:
		default:
		}
	}}); err != nil {
		return fmt.Errorf("watch the Nodes: %w", err)
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	hourly := time.NewTicker(interval)
	defer hourly.Stop()
	for ctx.Err() == nil {
		if err := collect(ctx, client.Resource(featuresResource), nodes.Lister()); err != nil && ctx.Err() == nil {
			return err
		}
		log.Info("looked")
		select {
		case <-ctx.Done():
		case <-deleted:
		case <-hourly.C:
		}
	}
	return nil
}

// collect lists all objects and deletes those whose Node is not known.
func collect(ctx context.Context, objects metadata.Getter, nodes cache.GenericLister) error {
	list, err := objects.List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list the objects: %w", err)
	}
	for i := range list.Items {
		o := &list.Items[i]
		if _, err := nodes.Get(o.Labels[nodeLabel]); err == nil {
			continue
		}
		if err := objects.Namespace(o.Namespace).Delete(ctx, o.Name, metav1.DeleteOptions{}); err != nil {
			return fmt.Errorf("delete %s: %w", o.Name, err)
		}
	}
	return nil
}
