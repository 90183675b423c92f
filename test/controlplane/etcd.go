package main

import (
	"fmt"
	"net/url"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
)

// startEtcd starts a one-member etcd on free ports of 127.0.0.1 with its data in dir and waits until it serves.
func startEtcd(dir string) (*embed.Etcd, error) {
	anyPort := url.URL{Scheme: "http", Host: "127.0.0.1:0"}
	cfg := embed.NewConfig()
	cfg.Dir = dir
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{anyPort}, []url.URL{anyPort}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{anyPort}, []url.URL{anyPort}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	cfg.UnsafeNoFsync = true
	cfg.LogLevel = "panic" // its errors are returned; its log would add stack traces, at every clean end too
	// The load tests write 5,000 objects of 130 KB, more than etcd's 2 GiB default holds with their history.
	cfg.QuotaBackendBytes = 8 << 30
	cfg.AutoCompactionMode, cfg.AutoCompactionRetention = "periodic", "5m"

	etcd, err := embed.StartEtcd(cfg)
	if err != nil {
		return nil, fmt.Errorf("start etcd in %s: %w", dir, err)
	}
	select {
	case <-etcd.Server.ReadyNotify():
		return etcd, nil
	case err := <-etcd.Err():
		etcd.Close()
		return nil, fmt.Errorf("start etcd in %s: %w", dir, err)
	case <-time.After(time.Minute):
		etcd.Close()
		return nil, fmt.Errorf("start etcd in %s: not ready after a minute", dir)
	}
}
