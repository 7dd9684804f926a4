package gen

import (
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"garboard/tools/conformance/internal/ops"
)

func alarm(action pb.AlarmRequest_AlarmAction, member uint64, kind pb.AlarmType) Step {
	return call("Maintenance/Alarm", &pb.AlarmRequest{Action: action, MemberID: member, Alarm: kind})
}

func (g *Generator) noSpace() []func() Step {
	const id = 31337
	on, off, list := pb.AlarmRequest_ACTIVATE, pb.AlarmRequest_DEACTIVATE, pb.AlarmRequest_GET
	deleting := &pb.TxnRequest{Success: []*pb.RequestOp{opDelete(delKey("b")), opRange(getKey("a"))}}
	putting := &pb.TxnRequest{Success: []*pb.RequestOp{opPut(putKey("b", "v"))}}
	notTaken := &pb.TxnRequest{Success: []*pb.RequestOp{opDelete(delKey("b"))}, Failure: putting.Success}
	return append(fixed(
		put(putKey("a", "v")), put(putKey("b", "v")), put(putKey("c", "v")),
		call("Lease/LeaseGrant", &pb.LeaseGrantRequest{TTL: ttls[0], ID: id}),
		alarm(on, ops.SelfMember, pb.AlarmType_NOSPACE),
		alarm(on, ops.SelfMember, pb.AlarmType_NOSPACE),
		alarm(list, 0, pb.AlarmType_NONE),
		alarm(list, 0, pb.AlarmType_CORRUPT),
		call("Maintenance/Status", &pb.StatusRequest{}),
		put(putKey("a", "w")),
		put(&pb.PutRequest{Key: []byte("a"), IgnoreValue: true}),
		get(getKey("a")),
		txn(putting), txn(notTaken), txn(deleting),
		txn(&pb.TxnRequest{Success: []*pb.RequestOp{opTxn(putting)}}),
		txn(&pb.TxnRequest{Success: []*pb.RequestOp{opRange(getKey("a"))}}),
		del(delKey("c")),
		call("Lease/LeaseGrant", &pb.LeaseGrantRequest{TTL: ttls[0], ID: id + 1}),
		Step{Op: &ops.KeepAlive{ID: id}},
		call("Lease/LeaseRevoke", &pb.LeaseRevokeRequest{ID: id}),
		call("Maintenance/Defragment", &pb.DefragmentRequest{}),
	),
		func() Step { return call("KV/Compact", &pb.CompactionRequest{Revision: g.world.Revision}) },
		func() Step { return alarm(off, ops.SelfMember, pb.AlarmType_NOSPACE) },
		func() Step { return alarm(off, ops.SelfMember, pb.AlarmType_NOSPACE) },
		func() Step { return alarm(off, 12345, pb.AlarmType_CORRUPT) },
		func() Step { return alarm(list, 0, pb.AlarmType_NONE) },
		func() Step { return put(putKey("a", "x")) },
	)
}

func (g *Generator) corrupt() []func() Step {
	on, off, list := pb.AlarmRequest_ACTIVATE, pb.AlarmRequest_DEACTIVATE, pb.AlarmRequest_GET
	reading := &pb.TxnRequest{Success: []*pb.RequestOp{opRange(getKey("a"))}}
	return append(fixed(
		put(putKey("a", "v")),
		alarm(on, ops.SelfMember, pb.AlarmType_CORRUPT),
		call("Maintenance/Status", &pb.StatusRequest{}),
		put(putKey("a", "w")),
		put(&pb.PutRequest{}),
		del(delKey("a")),
		txn(&pb.TxnRequest{Success: []*pb.RequestOp{opPut(putKey("a", "w"))}}),
		txn(&pb.TxnRequest{Success: []*pb.RequestOp{opTxn(reading)}}),
		txn(reading),
		get(getKey("a")),
		Step{Op: &ops.RangeStream{Req: getKey("a")}},
		call("Lease/LeaseGrant", &pb.LeaseGrantRequest{TTL: ttls[0], ID: 4242}),
		call("Lease/LeaseRevoke", &pb.LeaseRevokeRequest{ID: 4242}),
		call("Lease/LeaseLeases", &pb.LeaseLeasesRequest{}),
		call("Maintenance/HashKV", &pb.HashKVRequest{}),
	),
		func() Step { return call("KV/Compact", &pb.CompactionRequest{Revision: g.world.Revision}) },
		func() Step { return alarm(list, 0, pb.AlarmType_NONE) },
		func() Step { return alarm(off, ops.SelfMember, pb.AlarmType_CORRUPT) },
		func() Step { return put(putKey("a", "x")) },
	)
}

func (g *Generator) compaction() []func() Step {
	var old []int64
	compact := func(physical bool, back int64) func() Step {
		return func() Step {
			revision := g.world.Revision - back
			old = append(old, revision)
			return call("KV/Compact", &pb.CompactionRequest{Revision: revision, Physical: physical})
		}
	}
	hash := func(revision func() int64) func() Step {
		return func() Step { return call("Maintenance/HashKV", &pb.HashKVRequest{Revision: revision()}) }
	}
	steps := fixed(
		put(putKey("gone", "1")), put(putKey("gone", "2")), put(putKey("kept", "1")), put(putKey("kept", "2")),
		del(delKey("gone")),
	)
	// The store now ends in the tombstone: compacting exactly there keeps it for watches, and HashKV skips it.
	steps = append(steps,
		compact(false, 0),
		func() Step {
			g.tombstoneAtCompacted = true
			return call("Maintenance/HashKV", &pb.HashKVRequest{Revision: g.world.Compacted})
		},
		hash(func() int64 { return 0 }),
		func() Step { return get(&pb.RangeRequest{Key: []byte("gone"), Revision: g.world.Compacted}) },
		func() Step {
			return g.createStep(0, &pb.WatchCreateRequest{Key: []byte("gone"), StartRevision: g.world.Compacted, PrevKv: true}, 0)
		},
		g.barrier,
	)
	for range 3 {
		steps = append(steps, fixed(put(putKey("kept", "3")), put(putKey("more", "3")), del(delKey("more")),
			put(putKey("kept", "4")))...)
		steps = append(steps, compact(true, 1), hash(func() int64 { return g.world.Compacted }))
	}
	for i := range 3 {
		steps = append(steps, hash(func() int64 { return old[len(old)-1-i] }))
	}
	return append(steps,
		hash(func() int64 { return g.world.Compacted - 1 }),
		hash(func() int64 { return g.world.Revision + 1 }),
		hash(func() int64 { return -1 }),
		func() Step { return call("KV/Compact", &pb.CompactionRequest{Revision: g.world.Compacted}) },
		func() Step {
			return call("KV/Compact", &pb.CompactionRequest{Revision: g.world.Compacted, Physical: true})
		},
		func() Step { return call("KV/Compact", &pb.CompactionRequest{Revision: g.world.Revision + 1}) },
		func() Step { return call("KV/Compact", &pb.CompactionRequest{}) },
		func() Step { return call("KV/Compact", &pb.CompactionRequest{Revision: -1}) },
		func() Step { return get(&pb.RangeRequest{Key: []byte("kept"), Revision: g.world.Compacted - 1}) },
		func() Step { return get(&pb.RangeRequest{Key: []byte("kept"), Revision: g.world.Compacted}) },
	)
}

// TombstoneAtCompacted tells, once, that a compaction was placed exactly on a delete.
func (g *Generator) TombstoneAtCompacted() bool {
	placed := g.tombstoneAtCompacted
	g.tombstoneAtCompacted = false
	return placed
}

func (g *Generator) leases() []func() Step {
	const first, second = 60001, 60002
	grant := func(id, ttl int64) Step { return call("Lease/LeaseGrant", &pb.LeaseGrantRequest{ID: id, TTL: ttl}) }
	revoke := func(id int64) Step { return call("Lease/LeaseRevoke", &pb.LeaseRevokeRequest{ID: id}) }
	ttl := func(id int64) Step {
		return call("Lease/LeaseTimeToLive", &pb.LeaseTimeToLiveRequest{ID: id, Keys: true})
	}
	attach := func(key string, id int64) Step {
		return put(&pb.PutRequest{Key: []byte(key), Value: []byte("l"), Lease: id, PrevKv: true})
	}
	steps := fixed(
		grant(first, ttls[1]), grant(first, ttls[2]), grant(second, ttls[3]),
		attach("l/3", first), attach("l/1", first), attach("l/2", first), ttl(first),
		attach("l/2", second), ttl(first), ttl(second),
		attach("l/3", 0), ttl(first),
		put(&pb.PutRequest{Key: []byte("l/1"), Value: []byte("kept"), IgnoreLease: true, PrevKv: true}),
		put(&pb.PutRequest{Key: []byte("l/1"), IgnoreValue: true, Lease: second, PrevKv: true}), ttl(second),
		attach("l/4", second),
		get(&pb.RangeRequest{Key: []byte("l/"), RangeEnd: []byte("l0")}),
		Step{Op: &ops.KeepAlive{ID: second}},
		call("Lease/LeaseLeases", &pb.LeaseLeasesRequest{}),
		del(delKey("l/4")), ttl(second),
		revoke(first), revoke(first), revoke(second),
		get(&pb.RangeRequest{Key: []byte("l/"), RangeEnd: []byte("l0")}),
		call("Maintenance/HashKV", &pb.HashKVRequest{}),
		grant(-77, ttls[0]), ttl(-77), Step{Op: &ops.KeepAlive{ID: -77}}, revoke(-77),
		grant(0, ttls[4]), grant(70000, 9000000001),
		ttl(unknownLease), Step{Op: &ops.KeepAlive{ID: unknownLease}}, Step{Op: &ops.KeepAlive{}}, ttl(0),
		revoke(0),
	)
	return append(steps,
		func() Step { return g.shortLease(1) },
		func() Step { return g.shortLease(-1 << 63) },
	)
}

func (g *Generator) members() []func() Step {
	remove := func(id uint64) Step { return call("Cluster/MemberRemove", &pb.MemberRemoveRequest{ID: id}) }
	add := func(urls ...string) Step {
		return call("Cluster/MemberAdd", &pb.MemberAddRequest{PeerURLs: urls, IsLearner: true})
	}
	update := func(id uint64, urls ...string) Step {
		return call("Cluster/MemberUpdate", &pb.MemberUpdateRequest{ID: id, PeerURLs: urls})
	}
	promote := func(id uint64) Step { return call("Cluster/MemberPromote", &pb.MemberPromoteRequest{ID: id}) }
	return fixed(
		call("Cluster/MemberList", &pb.MemberListRequest{Linearizable: true}),
		call("Cluster/MemberList", &pb.MemberListRequest{}),
		add(ops.SelfPeerURL), add("http://"), add(),
		add("127.0.0.1:1"), add("ftp://127.0.0.1:1"), add("http://127.0.0.1:1/path"), add("http://127.0.0.1"),
		remove(12345), promote(12345), update(12345, "http://127.0.0.1:1"),
		promote(ops.SelfMember),
		update(ops.SelfMember, ops.SelfPeerURL),
		call("Maintenance/MoveLeader", &pb.MoveLeaderRequest{TargetID: ops.SelfMember}),
		call("Maintenance/MoveLeader", &pb.MoveLeaderRequest{TargetID: 12345}),
		call("Maintenance/MoveLeader", &pb.MoveLeaderRequest{}),
	)
}

func (g *Generator) maintenance() []func() Step {
	downgrade := func(action pb.DowngradeRequest_DowngradeAction, version string) Step {
		return call("Maintenance/Downgrade", &pb.DowngradeRequest{Action: action, Version: version})
	}
	validate := pb.DowngradeRequest_VALIDATE
	return fixed(
		call("Maintenance/Status", &pb.StatusRequest{}),
		call("Maintenance/Hash", &pb.HashRequest{}),
		Step{Op: ops.Snapshot{}},
		call("Maintenance/Defragment", &pb.DefragmentRequest{}),
		downgrade(validate, "three"), downgrade(validate, ""), downgrade(validate, "3.5.0"), downgrade(validate, "3.6.0"),
		downgrade(validate, "3.6"),
		downgrade(pb.DowngradeRequest_CANCEL, ""), downgrade(pb.DowngradeRequest_DowngradeAction(9), "3.6.0"),
		Step{Op: &ops.Health{}}, Step{Op: &ops.Health{Service: "no.such.Service"}},
	)
}

func (g *Generator) malformed() []func() Step {
	raw := func(method, label string, payload []byte) Step {
		return Step{Op: &ops.Raw{Method: method, Label: label, Payload: payload}}
	}
	stream := func(method, label string, payload []byte) Step {
		return Step{Op: &ops.Raw{Method: method, Label: label, Payload: payload, Stream: true}}
	}
	const rangeMethod = "/etcdserverpb.KV/Range"
	steps := fixed(
		raw("/etcdserverpb.KV/NoSuchMethod", "unknown method", nil),
		raw("/etcdserverpb.Nothing/Range", "unknown service", nil),
		raw("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", "no reflection", nil),
		raw("/etcdserverpb.KV/", "empty method", nil),
		raw("/etcdserverpb.KV", "no method", nil),
		raw("/", "nothing", nil),
		raw("//", "slashes", nil),
		stream("/etcdserverpb.Watch/NoSuchStream", "unknown stream method", nil),
		raw(rangeMethod, "truncated varint", []byte{0x20, 0xff}),
		raw(rangeMethod, "truncated bytes", []byte{0x0a, 0x05, 'a'}),
		raw(rangeMethod, "field number zero", []byte{0x02, 0x00}),
		raw(rangeMethod, "reserved wire type", []byte{0x0f}),
		raw(rangeMethod, "end of a group that never began", []byte{0x0c}),
		raw(rangeMethod, "overlong varint", []byte{0x20, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01}),
		raw(rangeMethod, "key as a varint", append(ops.Varint(1, 7), ops.Bytes(1, []byte("a"))...)),
		raw(rangeMethod, "unknown field", append(ops.Bytes(1, []byte("a")), ops.Bytes(900, []byte("x"))...)),
		raw(rangeMethod, "field twice", append(ops.Bytes(1, []byte("zz")), ops.Bytes(1, []byte("a"))...)),
		raw(rangeMethod, "balanced group", append(ops.Bytes(1, []byte("a")), 0xa3, 0x06, 0xa4, 0x06)),
		raw(rangeMethod, "limit beyond 64 bits", append(ops.Bytes(1, []byte("a")), ops.Varint(3, 1<<64-1)...)),
		raw(rangeMethod, "bool of two", append(ops.Bytes(1, []byte("a")), ops.Varint(8, 2)...)),
		raw(rangeMethod, "enum of 2^40", append(ops.Bytes(1, []byte("a")), ops.Varint(5, 1<<40)...)),
		raw("/etcdserverpb.KV/Put", "truncated", []byte{0x0a}),
		raw("/etcdserverpb.KV/Txn", "bad nested message", ops.Bytes(2, []byte{0x12, 0x09, 'x'})),
		raw("/etcdserverpb.KV/Txn", "two requests in one op",
			ops.Bytes(2, append(ops.Bytes(1, ops.Bytes(1, []byte("a"))), ops.Bytes(2, ops.Bytes(1, []byte("b")))...))),
		raw("/etcdserverpb.Cluster/MemberAdd", "string that is no UTF-8", ops.Bytes(1, []byte{0xff, 0xfe})),
		raw("/etcdserverpb.Auth/UserGet", "string that is no UTF-8", ops.Bytes(1, []byte{0xff, 0xfe})),
		stream("/etcdserverpb.KV/RangeStream", "truncated", []byte{0x0a}),
		stream("/etcdserverpb.KV/RangeStream", "empty key", nil),
		stream("/etcdserverpb.Lease/LeaseKeepAlive", "truncated", []byte{0x08}),
		stream("/etcdserverpb.Watch/Watch", "truncated", []byte{0x0a}),
		stream("/etcdserverpb.Maintenance/Snapshot", "truncated", []byte{0x0a}),
		Step{Op: &ops.Raw{Method: rangeMethod, Label: "no message", Stream: true, NoMessage: true}},
		Step{Op: &ops.Raw{Method: "/etcdserverpb.KV/RangeStream", Label: "no message", Stream: true, NoMessage: true}},
		Step{Op: &ops.Unary{Method: rangeMethod, Req: getKey("a"), Gzip: true}},
		Step{Op: &ops.Unary{Method: rangeMethod, Req: getKey("a"), Metadata: []string{"hasleader", "true"}}},
		Step{Op: &ops.Unary{Method: rangeMethod, Req: getKey("a"), Metadata: []string{"client-api-version", "3.7"}}},
		Step{Op: &ops.Unary{Method: rangeMethod, Req: getKey("a"), Metadata: []string{"token", "no.such"}}},
		Step{Op: &ops.Unary{Method: rangeMethod, Req: getKey("a"), Metadata: []string{"authorization", "Bearer no"}}},
	)
	for i := range 3 {
		steps = append(steps, fixed(raw(rangeMethod, fmt.Sprintf("%d zero bytes", i+1), make([]byte, i+1)))...)
	}
	return steps
}
