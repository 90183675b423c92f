// Command controlplane runs etcd and kube-apiserver in one process, for the demo, the tests and the benchmarks.
//
//	controlplane --dir DIR --kubeconfig FILE [--port N] [-- kube-apiserver flags]
//
// Everything it writes lies below DIR. FILE, a kubeconfig with every right, appears when /readyz answers; until then a
// file of that name is absent. SIGTERM or SIGINT ends it cleanly; the exit status is 0 then. Started again on the same
// DIR it continues with the same data and the same credentials. The log goes to standard error.
//
// Nothing here is for production: fsync is off, so a power loss loses data.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/fileutil"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends it at once
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "controlplane:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("controlplane", flag.ExitOnError)
	dir := flags.String("dir", "", "folder for data, certificates and keys; made when it is missing")
	kubeconfig := flags.String("kubeconfig", "", "file to write when the API server is ready")
	port := flags.Int("port", 0, "port of the API server on 127.0.0.1; 0 takes a free one")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *dir == "" || *kubeconfig == "" {
		return errors.New("--dir and --kubeconfig are required")
	}
	if err := os.Remove(*kubeconfig); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the kubeconfig of an earlier run: %w", err)
	}
	root, err := filepath.Abs(*dir)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(root, 0o700); err != nil {
		return err
	}
	// Without this lock a second one on the same folder would wait for etcd's own lock, silently and for ever.
	lock, err := fileutil.TryLockFile(filepath.Join(root, "lock"), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("lock %s, which another control plane may be using: %w", root, err)
	}
	defer lock.Close()
	creds, err := loadCredentials(root)
	if err != nil {
		return err
	}
	// The listener is opened here and handed over, so that no other process can take a port between its choice and its use.
	listener, err := net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", *port))
	if err != nil {
		return fmt.Errorf("listen for the API server: %w", err)
	}

	etcd, err := startEtcd(filepath.Join(root, "etcd"))
	if err != nil {
		return err
	}

	server := make(chan error, 1)
	// Not ctx: a kube-apiserver that is told to stop while it starts waits for its own hooks, then panics when they fail.
	serverCtx, stopServer := context.WithCancel(context.Background())
	defer stopServer()
	go func() {
		server <- runAPIServer(serverCtx, apiServerOptions{
			dir: root, listener: listener, etcd: etcd.Clients[0].Addr().String(), creds: creds, extra: flags.Args(),
		})
	}()

	// Whatever ends first ends the process, and so the rest. etcd is only closed when kube-apiserver has ended: it would
	// wait 7 s for such a client, and bears a sudden end.
	address := "https://" + listener.Addr().String()
	ready := make(chan error, 1)
	go func() { ready <- waitReady(serverCtx, address, creds, 2*time.Minute) }()
	select {
	case err := <-ready:
		if err != nil {
			return err
		}
	case <-ctx.Done():
		return nil // nobody has been told yet that it runs
	case err := <-etcd.Err():
		return fmt.Errorf("etcd stopped: %w", err)
	case err := <-server:
		return fmt.Errorf("kube-apiserver stopped: %w", err)
	}

	if err := writeKubeconfig(*kubeconfig, address, creds); err != nil {
		return fmt.Errorf("write the kubeconfig: %w", err)
	}
	fmt.Printf("ready: %s %s\n", address, *kubeconfig)
	select {
	case <-ctx.Done():
		stopServer()
		err := <-server
		etcd.Close()
		return err
	case err := <-etcd.Err():
		return fmt.Errorf("etcd stopped: %w", err)
	case err := <-server:
		return fmt.Errorf("kube-apiserver stopped: %w", err)
	}
}
