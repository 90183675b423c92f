package node

import (
	"context"
	"fmt"
	"os"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A Pod is what a kubelet tells the container runtime of one.
type Pod struct {
	Namespace, Name, UID string
	HostNetwork          bool
}

// RunPod gives the pod a sandbox, as a kubelet does, and returns its id and addresses.
func (c *Containerd) RunPod(ctx context.Context, p Pod) (id string, addresses []string, err error) {
	err = c.ask(func(client cri.RuntimeServiceClient) error {
		logs, err := os.MkdirTemp(c.dir, "logs")
		if err != nil {
			return err
		}
		network := cri.NamespaceMode_POD
		if p.HostNetwork {
			network = cri.NamespaceMode_NODE
		}
		run, err := client.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: &cri.PodSandboxConfig{
			Metadata: &cri.PodSandboxMetadata{Namespace: p.Namespace, Name: p.Name, Uid: p.UID}, LogDirectory: logs,
			Linux: &cri.LinuxPodSandboxConfig{SecurityContext: &cri.LinuxSandboxSecurityContext{NamespaceOptions: &cri.NamespaceOption{Network: network}}},
		}})
		if err != nil {
			return fmt.Errorf("run the sandbox of pod %s: %w", p.Name, err)
		}
		id = run.PodSandboxId
		status, err := client.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: id})
		if err != nil {
			return err
		}
		if network := status.Status.Network; network.GetIp() != "" {
			addresses = append(addresses, network.Ip)
			for _, ip := range network.AdditionalIps {
				addresses = append(addresses, ip.Ip)
			}
		}
		return nil
	})
	return id, addresses, err
}

// StopPod ends what runs in a sandbox and takes its network away. The runtime still lists it.
func (c *Containerd) StopPod(ctx context.Context, id string) error {
	return c.ask(func(client cri.RuntimeServiceClient) error {
		_, err := client.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: id})
		return err
	})
}

// RemovePod removes a sandbox that was stopped.
func (c *Containerd) RemovePod(ctx context.Context, id string) error {
	return c.ask(func(client cri.RuntimeServiceClient) error {
		_, err := client.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: id})
		return err
	})
}

func (c *Containerd) ask(do func(cri.RuntimeServiceClient) error) error {
	connection, err := grpc.NewClient("unix:"+c.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	return do(cri.NewRuntimeServiceClient(connection))
}
