// Command kubelet is Kubernetes' own, built for the tests that need a real node.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	"k8s.io/kubernetes/cmd/kubelet/app"

	"context"
)

func main() {
	os.Exit(cli.Run(app.NewKubeletCommand(context.Background())))
}
