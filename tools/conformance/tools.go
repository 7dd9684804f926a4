//go:build tools

// Package conformance pins the real etcd, its clients and the protocol stubs that the programs below use.
package conformance

import (
	_ "go.etcd.io/etcd/etcdctl/v3"
	_ "go.etcd.io/etcd/etcdutl/v3"
	_ "go.etcd.io/etcd/server/v3"
)
