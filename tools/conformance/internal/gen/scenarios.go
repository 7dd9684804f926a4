package gen

import (
	"bytes"
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"

	"garboard/tools/conformance/internal/ops"
)

// scenario is a sequence of steps that leads to rows which random operations seldom or never reach.
type scenario struct {
	name string
	// length is about how many steps it takes.
	length int
	steps  func() []func() Step
}

func (g *Generator) allScenarios() []scenario {
	return []scenario{
		{"sizes", 8, g.sizes},
		{"transaction limits", 6, g.txnLimits},
		{"duplicate keys", 12, g.duplicates},
		{"put rules", 16, g.putRules},
		{"range rules", 50, g.rangeRules},
		{"stream", 40, g.streamRules},
		{"compares", 14, g.compares},
		{"transaction reads", 10, g.txnReads},
		{"no space", 24, g.noSpace},
		{"corrupt", 18, g.corrupt},
		{"restart of versions", 6, g.versions},
		{"compaction", 30, g.compaction},
		{"leases", 36, g.leases},
		{"watch rules", 40, g.watchRules},
		{"watch over a compaction", 20, g.watchCompacted},
		{"fragments", 18, g.fragments},
		{"progress", 12, g.progress},
		{"half-closed stream", 8, g.halfClosed},
		{"members", 14, g.members},
		{"maintenance", 10, g.maintenance},
		{"malformed", 40, g.malformed},
	}
}

// fixed wraps steps that do not depend on the world.
func fixed(steps ...Step) []func() Step {
	var out []func() Step
	for _, s := range steps {
		out = append(out, func() Step { return s })
	}
	return out
}

func put(req *pb.PutRequest) Step         { return call("KV/Put", req) }
func get(req *pb.RangeRequest) Step       { return call("KV/Range", req) }
func del(req *pb.DeleteRangeRequest) Step { return call("KV/DeleteRange", req) }
func txn(req *pb.TxnRequest) Step         { return call("KV/Txn", req) }
func putKey(key, value string) *pb.PutRequest {
	return &pb.PutRequest{Key: []byte(key), Value: []byte(value)}
}
func getKey(key string) *pb.RangeRequest       { return &pb.RangeRequest{Key: []byte(key)} }
func delKey(key string) *pb.DeleteRangeRequest { return &pb.DeleteRangeRequest{Key: []byte(key)} }

// maxRequestBytes is etcd's default, and grpcOverhead what the transport accepts beyond it.
const (
	maxRequestBytes = 1572864
	grpcOverhead    = 512 * 1024
)

// putOfSize makes a put whose message has exactly the given size.
func putOfSize(size int) *pb.PutRequest {
	req := &pb.PutRequest{Key: []byte("big/size")}
	req.Value = make([]byte, size-64)
	req.Value = make([]byte, len(req.Value)+size-proto.Size(req))
	return req
}

func (g *Generator) sizes() []func() Step {
	// The limit is checked on the message with its internal header, whose length varies by some bytes.
	return fixed(
		put(putOfSize(maxRequestBytes-100)),
		put(putOfSize(maxRequestBytes+1)),
		txn(&pb.TxnRequest{Success: []*pb.RequestOp{opPut(putOfSize(maxRequestBytes + 1))}}),
		put(putOfSize(maxRequestBytes+grpcOverhead)),
		put(putOfSize(maxRequestBytes+grpcOverhead+1)),
		get(&pb.RangeRequest{Key: make([]byte, maxRequestBytes+100)}),
		del(delKey("big/size")),
		call("KV/Compact", &pb.CompactionRequest{Revision: g.world.Revision}),
	)
}

func (g *Generator) txnLimits() []func() Step {
	puts := func(n int) []*pb.RequestOp {
		var list []*pb.RequestOp
		for i := range n {
			list = append(list, opPut(putKey(fmt.Sprintf("many/%03d", i), "v")))
		}
		return list
	}
	gets := func(n int) (list []*pb.RequestOp) {
		for range n {
			list = append(list, opRange(getKey("a")))
		}
		return list
	}
	nested := func(outer, inner int) *pb.TxnRequest {
		return &pb.TxnRequest{Success: append(gets(outer-1), opTxn(&pb.TxnRequest{Success: gets(inner)}))}
	}
	var compares []*pb.Compare
	for range 129 {
		compares = append(compares, &pb.Compare{Key: []byte("a"), Target: pb.Compare_VERSION, Result: pb.Compare_GREATER})
	}
	return fixed(
		txn(&pb.TxnRequest{Success: puts(128)}),
		txn(&pb.TxnRequest{Success: puts(129)}),
		txn(&pb.TxnRequest{Failure: puts(129)}),
		txn(&pb.TxnRequest{Compare: compares}),
		txn(nested(100, 28)),
		txn(nested(100, 29)),
		del(&pb.DeleteRangeRequest{Key: []byte("many/"), RangeEnd: []byte("many0"), PrevKv: true}),
	)
}

func (g *Generator) duplicates() []func() Step {
	p := func(key string) *pb.RequestOp { return opPut(putKey(key, "v")) }
	d := func(key, end string) *pb.RequestOp {
		return opDelete(&pb.DeleteRangeRequest{Key: []byte(key), RangeEnd: []byte(end)})
	}
	in := func(ok, no []*pb.RequestOp) *pb.RequestOp { return opTxn(&pb.TxnRequest{Success: ok, Failure: no}) }
	list := func(list ...*pb.RequestOp) []*pb.RequestOp { return list }
	return fixed(
		txn(&pb.TxnRequest{Success: list(p("a"), p("a"))}),
		txn(&pb.TxnRequest{Success: list(p("a"), d("a", ""))}),
		txn(&pb.TxnRequest{Failure: list(d("a", "c"), p("b"))}),
		txn(&pb.TxnRequest{Success: list(p("a"), in(list(p("a")), nil))}),
		txn(&pb.TxnRequest{Success: list(in(list(p("a")), nil), in(nil, list(p("a"))))}),
		txn(&pb.TxnRequest{Success: list(in(list(p("a")), list(p("a"))), p("b"))}),
		txn(&pb.TxnRequest{Success: list(in(list(d("a", "c")), nil), p("b"))}),
		txn(&pb.TxnRequest{Success: list(in(list(p("b")), nil), d("a", "c"))}),
		txn(&pb.TxnRequest{Success: list(p("a"), d("b", "")), Failure: list(p("a"), p("b"))}),
		txn(&pb.TxnRequest{Success: list(d("c", ""), d("c", ""), d("b", "d"))}),
		txn(&pb.TxnRequest{Success: list(opRange(getKey("a")), p("a"), opRange(getKey("a")))}),
		txn(&pb.TxnRequest{Success: list(d("zzz", "\x00"), p("zzzz"))}),
		txn(&pb.TxnRequest{Success: list(p("zzzz"), d("zzz", "\x00"))}),
		txn(&pb.TxnRequest{Success: list(&pb.RequestOp{})}),
		txn(&pb.TxnRequest{Success: list(p("a")), Failure: list(&pb.RequestOp{})}),
	)
}

func (g *Generator) putRules() []func() Step {
	return fixed(
		del(delKey("rule")),
		put(&pb.PutRequest{}),
		put(&pb.PutRequest{Key: []byte("rule"), IgnoreValue: true, Value: []byte("v")}),
		put(&pb.PutRequest{Key: []byte("rule"), IgnoreLease: true, Lease: 1}),
		put(&pb.PutRequest{Key: []byte("rule"), IgnoreValue: true}),
		put(&pb.PutRequest{Key: []byte("rule"), IgnoreLease: true}),
		put(&pb.PutRequest{Key: []byte("rule"), Lease: unknownLease}),
		put(&pb.PutRequest{Key: []byte("rule"), Lease: unknownLease, IgnoreValue: true}),
		txn(&pb.TxnRequest{Success: []*pb.RequestOp{
			opPut(&pb.PutRequest{Key: []byte("rule"), Lease: unknownLease, IgnoreValue: true}),
		}}),
		put(putKey("rule", "first")),
		put(&pb.PutRequest{Key: []byte("rule"), IgnoreValue: true, PrevKv: true}),
		put(&pb.PutRequest{Key: []byte("rule"), IgnoreLease: true, Value: []byte("second"), PrevKv: true}),
		put(&pb.PutRequest{Key: []byte("rule"), IgnoreLease: true, IgnoreValue: true, PrevKv: true}),
		txn(&pb.TxnRequest{Success: []*pb.RequestOp{
			opPut(putKey("rule", "third")),
			opPut(&pb.PutRequest{Key: []byte("absent"), IgnoreValue: true}),
		}}),
		txn(&pb.TxnRequest{Success: []*pb.RequestOp{
			opPut(putKey("rule", "fourth")),
			opPut(&pb.PutRequest{Key: []byte("other"), Lease: unknownLease}),
		}}),
		get(getKey("rule")),
	)
}

func (g *Generator) rangeRules() []func() Step {
	var steps []func() Step
	// Versions, creations and values in an order that differs from the keys'.
	for _, n := range []int{3, 0, 4, 1, 2, 3, 3, 0} {
		steps = append(steps, fixed(put(putKey(fmt.Sprintf("k/%02d", n), fmt.Sprintf("%d", 9-n))))...)
	}
	prefix := func(change func(*pb.RangeRequest)) func() Step {
		return func() Step {
			req := &pb.RangeRequest{Key: []byte("k/"), RangeEnd: []byte("k0")}
			change(req)
			return get(req)
		}
	}
	for target := range 5 {
		for order := range 3 {
			for _, limit := range []int64{0, 2} {
				steps = append(steps, prefix(func(r *pb.RangeRequest) {
					r.SortTarget, r.SortOrder = pb.RangeRequest_SortTarget(target), pb.RangeRequest_SortOrder(order)
					r.Limit = limit
				}))
			}
		}
	}
	return append(steps,
		prefix(func(r *pb.RangeRequest) { r.SortOrder = 3 }),
		prefix(func(r *pb.RangeRequest) { r.SortTarget = 5 }),
		prefix(func(r *pb.RangeRequest) { r.KeysOnly, r.SortTarget, r.SortOrder = true, pb.RangeRequest_VALUE, 1 }),
		prefix(func(r *pb.RangeRequest) { r.KeysOnly, r.SortTarget, r.SortOrder = true, pb.RangeRequest_MOD, 2 }),
		prefix(func(r *pb.RangeRequest) { r.MinModRevision = g.world.Revision - 3 }),
		prefix(func(r *pb.RangeRequest) { r.MaxModRevision = g.world.Revision - 2 }),
		prefix(func(r *pb.RangeRequest) { r.MaxModRevision, r.Limit = g.world.Revision-1, 1 }),
		prefix(func(r *pb.RangeRequest) { r.MinCreateRevision = 1 }),
		prefix(func(r *pb.RangeRequest) { r.MaxCreateRevision = g.world.Revision }),
		prefix(func(r *pb.RangeRequest) { r.MaxCreateRevision, r.Limit = g.world.Revision, 2 }),
		prefix(func(r *pb.RangeRequest) { r.CountOnly, r.Limit, r.MinModRevision = true, 1, g.world.Revision }),
		prefix(func(r *pb.RangeRequest) { r.Revision = -1 }),
		prefix(func(r *pb.RangeRequest) { r.Revision = g.world.Revision - 4 }),
		prefix(func(r *pb.RangeRequest) { r.Serializable = true }),
	)
}

func (g *Generator) streamRules() []func() Step {
	var steps []func() Step
	for n := range prefixKeys {
		steps = append(steps, fixed(put(putKey(fmt.Sprintf("k/%02d", n), "s")))...)
	}
	stream := func(change func(*pb.RangeRequest)) func() Step {
		return func() Step {
			req := &pb.RangeRequest{Key: []byte("k/"), RangeEnd: []byte("k0")}
			change(req)
			return Step{Op: &ops.RangeStream{Req: req}}
		}
	}
	return append(steps,
		stream(func(*pb.RangeRequest) {}),
		stream(func(r *pb.RangeRequest) { r.Limit = 12 }),
		stream(func(r *pb.RangeRequest) { r.Limit = 10 }),
		stream(func(r *pb.RangeRequest) { r.Limit = prefixKeys }),
		stream(func(r *pb.RangeRequest) { r.Limit = -1 }),
		stream(func(r *pb.RangeRequest) { r.CountOnly = true }),
		stream(func(r *pb.RangeRequest) { r.KeysOnly = true }),
		stream(func(r *pb.RangeRequest) { r.Serializable = true }),
		stream(func(r *pb.RangeRequest) { r.SortOrder = pb.RangeRequest_ASCEND }),
		stream(func(r *pb.RangeRequest) { r.SortOrder = pb.RangeRequest_DESCEND }),
		stream(func(r *pb.RangeRequest) { r.SortOrder, r.SortTarget = 1, pb.RangeRequest_MOD }),
		stream(func(r *pb.RangeRequest) { r.MinModRevision = 1 }),
		stream(func(r *pb.RangeRequest) { r.Revision = g.world.Revision - 3 }),
		stream(func(r *pb.RangeRequest) { r.Revision = g.world.Revision + 3 }),
		stream(func(r *pb.RangeRequest) { r.Revision = -1 }),
		stream(func(r *pb.RangeRequest) { r.Key = nil }),
		stream(func(r *pb.RangeRequest) { r.Key, r.RangeEnd = []byte("missing"), nil }),
		stream(func(r *pb.RangeRequest) { r.Key, r.RangeEnd = []byte{0}, []byte{0} }),
	)
}

func (g *Generator) compares() []func() Step {
	with := func(c *pb.Compare) Step {
		return txn(&pb.TxnRequest{Compare: []*pb.Compare{c}, Success: []*pb.RequestOp{opRange(getKey("a"))}})
	}
	missing := []byte("missing/x")
	return fixed(
		with(&pb.Compare{Key: missing, Target: pb.Compare_VALUE, Result: pb.Compare_EQUAL,
			TargetUnion: &pb.Compare_Value{}}),
		with(&pb.Compare{Key: missing, Target: pb.Compare_VALUE, Result: pb.Compare_NOT_EQUAL,
			TargetUnion: &pb.Compare_Value{Value: []byte("v")}}),
		with(&pb.Compare{Key: missing, Target: pb.Compare_VERSION, Result: pb.Compare_EQUAL}),
		with(&pb.Compare{Key: missing, RangeEnd: []byte("missing0"), Target: pb.Compare_MOD, Result: pb.Compare_LESS,
			TargetUnion: &pb.Compare_ModRevision{ModRevision: 1}}),
		with(&pb.Compare{Key: missing, RangeEnd: []byte("missing0"), Target: pb.Compare_VALUE, Result: pb.Compare_NOT_EQUAL}),
		with(&pb.Compare{Key: []byte("k/"), RangeEnd: []byte("k0"), Target: pb.Compare_CREATE, Result: pb.Compare_GREATER}),
		with(&pb.Compare{Key: []byte{0}, RangeEnd: []byte{0}, Target: pb.Compare_LEASE, Result: pb.Compare_EQUAL}),
		with(&pb.Compare{Key: []byte("a"), Target: pb.Compare_LEASE, Result: pb.Compare_GREATER,
			TargetUnion: &pb.Compare_Lease{Lease: -1}}),
		with(&pb.Compare{Key: []byte("a"), Target: 9, Result: pb.Compare_EQUAL}),
		with(&pb.Compare{Key: []byte("a"), Target: pb.Compare_MOD, Result: 9}),
		with(&pb.Compare{Key: []byte("a"), Target: pb.Compare_MOD, TargetUnion: &pb.Compare_Version{Version: 3}}),
		with(&pb.Compare{}),
		txn(&pb.TxnRequest{}),
		txn(&pb.TxnRequest{Compare: []*pb.Compare{{Key: []byte("a"), Target: pb.Compare_VERSION, Result: pb.Compare_LESS}}}),
	)
}

func (g *Generator) txnReads() []func() Step {
	mine := func(extra ...*pb.RequestOp) *pb.TxnRequest {
		return &pb.TxnRequest{Success: append([]*pb.RequestOp{opPut(putKey("mine", "w"))}, extra...)}
	}
	at := func(revision int64) *pb.RequestOp {
		return opRange(&pb.RangeRequest{Key: []byte("mine"), Revision: revision})
	}
	compareMine := &pb.Compare{Key: []byte("mine"), Target: pb.Compare_VERSION, Result: pb.Compare_GREATER}
	return append(fixed(
		put(putKey("mine", "0")),
		txn(mine(opRange(getKey("mine")))),
		txn(mine(opDelete(&pb.DeleteRangeRequest{Key: []byte("minf"), PrevKv: true}), opPut(putKey("minf", "x")))),
		del(delKey("mine")),
		txn(mine(opTxn(&pb.TxnRequest{
			Compare: []*pb.Compare{compareMine},
			Success: []*pb.RequestOp{opRange(getKey("mine"))},
			Failure: []*pb.RequestOp{opPut(putKey("minf", "else")), opRange(getKey("mine"))},
		}))),
	),
		func() Step { return txn(mine(at(g.world.Revision - 2))) },
		func() Step { return txn(mine(at(g.world.Revision + 1))) },
		func() Step { return txn(mine(at(-5))) },
		func() Step { return txn(mine(at(-1))) },
		func() Step { return txn(&pb.TxnRequest{Success: []*pb.RequestOp{at(-2)}}) },
		func() Step {
			return txn(mine(opTxn(&pb.TxnRequest{Success: []*pb.RequestOp{at(g.world.Revision + 5)}})))
		},
		func() Step { return get(getKey("mine")) },
	)
}

func (g *Generator) versions() []func() Step {
	return fixed(
		put(putKey("a", "1")),
		put(putKey("a", "2")),
		del(&pb.DeleteRangeRequest{Key: []byte("a"), PrevKv: true}),
		del(&pb.DeleteRangeRequest{Key: []byte("a"), PrevKv: true}),
		put(&pb.PutRequest{Key: []byte("a"), Value: bytes.Repeat([]byte("3"), 3), PrevKv: true}),
		get(getKey("a")),
	)
}
