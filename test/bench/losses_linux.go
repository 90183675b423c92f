package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/unstale/unstale/test/apiserver"
)

const (
	// lossConnections are in the table all the time; podConnections of each of the node's pods.
	lossConnections = 100_000
	podConnections  = 20
	// conntrackDestroyGroup and conntrackDestroyed are NFNLGRP_CONNTRACK_DESTROY and IPCTNL_MSG_CT_DELETE of linux/netfilter.
	conntrackDestroyGroup = 3
	conntrackDestroyed    = 1<<8 | 2
)

var connectionLoss = benchmark{
	name: "connection-losses",
	about: fmt.Sprintf("from a pod's status without its address to the last of its %d connections among %d gone, less grace, with %d pods and %d updates a second; as root",
		podConnections, lossConnections, nodePods, podUpdates),
	// The agent, the API server and this program have one network, of their own: so all of it is another process.
	run: func(ctx context.Context, s *session) error {
		self, err := os.Executable()
		if err != nil {
			return err
		}
		out, err := s.tool(ctx, "measure in a network of its own", "unshare", "--net", "sh", "-c", `ip link set lo up && exec "$0" "$@"`, self, connectionLossMode, s.unstale, s.scratch)
		if err != nil {
			return err
		}
		var figures map[string]samples
		if err := json.Unmarshal([]byte(out), &figures); err != nil {
			return fmt.Errorf("read what was measured: %w", err)
		}
		for _, name := range []string{"P50", "P99", ""} {
			s.add("connection-losses/latency"+name, "ms", figures["connection-losses/latency"+name])
		}
		return nil
	},
}

// connectionLosses measures, and writes the figures as JSON.
func connectionLosses(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	if len(args) != 2 {
		return errors.New("usage: " + connectionLossMode + " UNSTALE FOLDER")
	}
	s := &session{options: options{unstale: args[0]}, scratch: args[1], log: stderr}
	c, err := s.startCluster(ctx, "--disable-admission-plugins=ServiceAccount") // nobody makes the accounts here
	if err != nil {
		return err
	}
	defer c.closing(&err)
	node := nodeName(0)
	if err := c.createNodes(ctx, newNodes([]string{node})); err != nil {
		return err
	}
	k := &podBench{session: s, cluster: c, node: node, pods: c.client.Resource(apiserver.Pods).Namespace(namespace)}
	if err := k.fillNode(ctx); err != nil {
		return err
	}
	// Before they are made: the kernel tells of the ends of those only that began while somebody listened.
	destroyed, err := nl.Subscribe(unix.NETLINK_NETFILTER, conntrackDestroyGroup)
	if err != nil {
		return fmt.Errorf("listen for the ends of connections: %w", err)
	}
	defer destroyed.Close()
	if err := destroyed.SetReceiveTimeout(&unix.Timeval{Sec: 60}); err != nil {
		return err
	}
	k.logf("make %d connections", lossConnections)
	for i := range nodePods {
		for n := range podConnections {
			if err := makeConnectionOf(podAddress(i), uint16(4000+n)); err != nil {
				return err
			}
		}
	}
	for i := range lossConnections - nodePods*podConnections {
		if err := makeConnection(i); err != nil {
			return err
		}
	}
	err = k.latency(ctx, "connection-losses/latency", map[string]any{"neighbors": map[string]any{"enabled": false}}, func(i int) (time.Time, error) {
		for ended := 0; ended < podConnections; {
			messages, _, err := destroyed.Receive()
			if err != nil {
				return time.Time{}, fmt.Errorf("wait for the ends of the connections of %s: %w", podName(i), err)
			}
			for _, m := range messages {
				if m.Header.Type == conntrackDestroyed && bytes.Contains(m.Data, podAddress(i)) {
					ended++
				}
			}
		}
		return time.Now(), nil
	})
	if err != nil {
		return err
	}
	figures := map[string]samples{}
	for _, f := range s.figures {
		figures[f.name] = slices.Clone(f.values)
	}
	return json.NewEncoder(stdout).Encode(figures)
}
