package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/pflag"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/rest"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"
)

type apiServerOptions struct {
	dir      string
	listener net.Listener
	etcd     string // host:port
	creds    credentials
	extra    []string // flags of kube-apiserver that override those set here
}

// runAPIServer runs kube-apiserver until ctx ends or it fails.
func runAPIServer(ctx context.Context, o apiServerOptions) error {
	s := options.NewServerRunOptions()
	flags := pflag.NewFlagSet("kube-apiserver", pflag.ContinueOnError)
	for _, set := range s.Flags().FlagSets {
		flags.AddFlagSet(set)
	}
	args := append([]string{
		"--etcd-servers=http://" + o.etcd,
		"--cert-dir=" + filepath.Join(o.dir, "certs"),
		"--bind-address=127.0.0.1",
		"--advertise-address=127.0.0.1",
		"--endpoint-reconciler-type=none", // a loopback address may not stand in an Endpoints object
		"--service-cluster-ip-range=10.96.0.0/16",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + o.creds.signingKeyFile,
		"--service-account-signing-key-file=" + o.creds.signingKeyFile,
		"--authorization-mode=Node,RBAC",
		"--token-auth-file=" + o.creds.tokenFile,
		// Requests in flight are drained first, whatever this says. Without it the server then waits up to a minute for
		// clients that keep a connection open, as everyone with a watch does; with it, 2 s.
		"--shutdown-send-retry-after=true",
	}, o.extra...)
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("%q is not a flag", flags.Arg(0))
	}
	s.SecureServing.Listener = o.listener
	s.SecureServing.BindPort = o.listener.Addr().(*net.TCPAddr).Port

	if err := s.GenericServerRunOptions.ComponentGlobalsRegistry.Set(); err != nil {
		return err
	}
	rest.SetDefaultWarningHandler(rest.NoWarnings{}) // the server's requests to itself need no warnings
	if err := logsapi.ValidateAndApply(s.Logs, utilfeature.DefaultFeatureGate); err != nil {
		return err
	}
	completed, err := s.Complete(ctx)
	if err != nil {
		return err
	}
	if errs := completed.Validate(); len(errs) > 0 {
		return utilerrors.NewAggregate(errs)
	}
	return app.Run(ctx, completed)
}

// servingCertFile is where kube-apiserver writes the certificate it makes for itself.
func servingCertFile(dir string) string { return filepath.Join(dir, "certs", "apiserver.crt") }

// waitReady returns when /readyz at address answers 200, or with what it answered last.
func waitReady(ctx context.Context, address string, creds credentials, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	last := "no answer"
	for {
		answer, ok := probe(ctx, address, creds)
		if ok {
			return nil
		}
		if answer != "" {
			last = answer
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s/readyz: %w; last: %s", address, ctx.Err(), last)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func probe(ctx context.Context, address string, creds credentials) (string, bool) {
	ca, err := os.ReadFile(creds.caFile)
	if err != nil {
		return err.Error(), false
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	client := &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: pool}, DisableKeepAlives: true,
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address+"/readyz?verbose", nil)
	if err != nil {
		return err.Error(), false
	}
	req.Header.Set("Authorization", "Bearer "+creds.token)
	resp, err := client.Do(req)
	if err != nil {
		return err.Error(), false
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	return string(body), resp.StatusCode == http.StatusOK
}
