package gen

import (
	"bytes"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"garboard/tools/conformance/internal/watch"
)

func (g *Generator) reopen(stream int) Step {
	return watchCall("reopen", func(t *watch.Tracker) {
		t.Barrier(g.world.Revision)
		t.Reopen(stream)
	})
}

func (g *Generator) create(stream int, req *pb.WatchCreateRequest) Step {
	return watchCall("create", func(t *watch.Tracker) { t.Create(stream, req, g.world.Revision, g.world.Compacted) })
}

func (g *Generator) cancel(stream int, id int64) Step {
	return watchCall("cancel", func(t *watch.Tracker) { t.Cancel(stream, id, g.world.Revision, true) })
}

func all() *pb.WatchCreateRequest {
	return &pb.WatchCreateRequest{Key: []byte{0}, RangeEnd: []byte{0}, PrevKv: true}
}

func (g *Generator) watchRules() []func() Step {
	w := func(change func(*pb.WatchCreateRequest)) func() Step {
		return func() Step {
			req := &pb.WatchCreateRequest{Key: []byte("w/"), RangeEnd: []byte("w0"), PrevKv: true}
			change(req)
			return g.create(0, req)
		}
	}
	steps := []func() Step{
		func() Step { return g.reopen(0) },
		w(func(*pb.WatchCreateRequest) {}),
		w(func(r *pb.WatchCreateRequest) { r.WatchId = 1 }),
		w(func(r *pb.WatchCreateRequest) { r.WatchId = 1 }),
		w(func(*pb.WatchCreateRequest) {}),
		w(func(r *pb.WatchCreateRequest) { r.WatchId = -7 }),
		w(func(r *pb.WatchCreateRequest) { r.StartRevision = -1 }),
		w(func(r *pb.WatchCreateRequest) { r.StartRevision, r.WatchId = -1, 1 }),
		w(func(r *pb.WatchCreateRequest) { r.RangeEnd = []byte("v") }),
		w(func(r *pb.WatchCreateRequest) { r.RangeEnd = []byte("w/") }),
		w(func(r *pb.WatchCreateRequest) { r.Key, r.RangeEnd = nil, nil }),
		w(func(r *pb.WatchCreateRequest) { r.Key, r.RangeEnd = nil, []byte{0} }),
		w(func(r *pb.WatchCreateRequest) { r.StartRevision = g.world.Revision + 3 }),
		w(func(r *pb.WatchCreateRequest) { r.Filters = []pb.WatchCreateRequest_FilterType{0, 1} }),
		w(func(r *pb.WatchCreateRequest) { r.Filters = []pb.WatchCreateRequest_FilterType{0} }),
		w(func(r *pb.WatchCreateRequest) { r.Filters = []pb.WatchCreateRequest_FilterType{1, 9} }),
	}
	steps = append(steps, fixed(
		put(putKey("w/1", "1")), put(putKey("w/1", "2")), del(delKey("w/1")),
		put(&pb.PutRequest{Key: []byte{0}, Value: []byte("zero")}), put(putKey("w/2", "")),
		txn(&pb.TxnRequest{Success: []*pb.RequestOp{opPut(putKey("w/3", "a")), opPut(putKey("w/1", "b")), opDelete(delKey("w/2"))}}),
	)...)
	return append(steps,
		g.barrier,
		func() Step { return g.cancel(0, 1) },
		func() Step { return g.cancel(0, 1) },
		w(func(r *pb.WatchCreateRequest) { r.WatchId, r.StartRevision = 1, g.world.Revision }),
		w(func(r *pb.WatchCreateRequest) { r.StartRevision = g.world.Revision - 2 }),
		g.barrier,
		func() Step {
			return g.create(0, &pb.WatchCreateRequest{Key: []byte("w/"), RangeEnd: []byte("w0"), ProgressNotify: true})
		},
		func() Step { return g.reopen(0) },
	)
}

func (g *Generator) watchCompacted() []func() Step {
	return append(append([]func() Step{
		func() Step { return g.reopen(1) },
	}, fixed(
		put(putKey("w/c", "1")), put(putKey("w/c", "2")), put(putKey("w/c", "3")), put(putKey("w/c", "4")),
	)...),
		func() Step { return call("KV/Compact", &pb.CompactionRequest{Revision: g.world.Revision - 1}) },
		func() Step {
			req := all()
			req.StartRevision, req.WatchId = g.world.Compacted-1, 5
			return g.create(1, req)
		},
		func() Step {
			req := all()
			req.WatchId = 5
			return g.create(1, req)
		},
		func() Step { return watchCall("progress", func(t *watch.Tracker) { t.Progress(1, g.world.Revision) }) },
		func() Step {
			req := all()
			req.StartRevision = g.world.Compacted
			return g.create(1, req)
		},
		g.barrier,
		func() Step { return g.cancel(1, 5) },
		func() Step { return watchCall("progress", func(t *watch.Tracker) { t.Progress(1, g.world.Revision) }) },
		func() Step {
			req := all()
			req.StartRevision = 1
			return g.create(1, req)
		},
		g.barrier,
		func() Step { return g.reopen(1) },
	)
}

// bigValue makes three events exceed the size at which a response is cut.
const bigValue = 800 * 1024

func (g *Generator) fragments() []func() Step {
	var from int64
	value := bytes.Repeat([]byte("f"), bigValue)
	big := func(key string) Step { return put(&pb.PutRequest{Key: []byte(key), Value: value}) }
	return append(append([]func() Step{
		func() Step { return g.reopen(2) },
		func() Step { from = g.world.Revision + 1; return big("big/0") },
	}, fixed(big("big/1"), big("big/2"), big("big/3"), put(putKey("big/4", "small")))...),
		func() Step {
			return g.create(2, &pb.WatchCreateRequest{
				Key: []byte("big/"), RangeEnd: []byte("big0"), StartRevision: from, Fragment: true})
		},
		func() Step {
			return g.create(2, &pb.WatchCreateRequest{Key: []byte("big/"), RangeEnd: []byte("big0"), StartRevision: from})
		},
		g.barrier,
		func() Step { return g.reopen(2) },
		// One revision that is over the size by the old values alone is cut for certain.
		func() Step {
			return g.create(2, &pb.WatchCreateRequest{
				Key: []byte("big/"), RangeEnd: []byte("big0"), Fragment: true, PrevKv: true})
		},
		g.barrier,
		func() Step { return del(&pb.DeleteRangeRequest{Key: []byte("big/"), RangeEnd: []byte("big0")}) },
		g.barrier,
		func() Step { return g.reopen(2) },
		func() Step {
			return call("KV/Compact", &pb.CompactionRequest{Revision: g.world.Revision, Physical: true})
		},
	)
}

func (g *Generator) progress() []func() Step {
	ask := func() Step { return watchCall("progress", func(t *watch.Tracker) { t.Progress(0, g.world.Revision) }) }
	return []func() Step{
		func() Step { return g.reopen(0) },
		ask,
		func() Step { return g.create(0, all()) },
		ask,
		func() Step { return put(putKey("w/p", "1")) },
		ask,
		func() Step {
			req := all()
			req.StartRevision = g.world.Revision + 2
			return g.create(0, req)
		},
		ask,
		func() Step { return put(putKey("w/p", "2")) },
		func() Step { return put(putKey("w/p", "3")) },
		ask,
		g.barrier,
	}
}

func (g *Generator) halfClosed() []func() Step {
	return []func() Step{
		func() Step { return g.reopen(1) },
		func() Step { return g.create(1, all()) },
		func() Step { return watchCall("half-close", func(t *watch.Tracker) { t.HalfClose(1) }) },
		func() Step { return put(putKey("w/h", "1")) },
		func() Step { return put(putKey("w/h", "2")) },
		func() Step {
			return watchCall("half-closed", func(t *watch.Tracker) {
				t.Barrier(g.world.Revision)
				t.HalfClosedDelivered(1)
			})
		},
		func() Step { return g.reopen(1) },
	}
}
