package gen

import (
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"garboard/tools/conformance/internal/watch"
)

// watchesPerStream bounds how many watches a stream carries.
const watchesPerStream = 7

func (g *Generator) watchStep() Step {
	stream := g.dice.IntN(g.watchStreams)
	switch n := g.dice.IntN(100); {
	case n < 55:
		return g.watchCreate(stream)
	case n < 80:
		return g.watchCancel(stream)
	case n < 98:
		return g.watchProgress(stream)
	default:
		return g.barrier()
	}
}

func (g *Generator) watchCancel(stream int) Step {
	chosen, unknown, settle := g.dice.IntN(1<<30), g.chance(10), g.chance(50)
	return watchCall("cancel", func(t *watch.Tracker) {
		ids := t.IDs(stream)
		if unknown || len(ids) == 0 {
			t.Cancel(stream, 5000+int64(chosen%100), g.world.Revision, false)
			return
		}
		t.Cancel(stream, ids[chosen%len(ids)], g.world.Revision, settle)
	})
}

// watchProgress mostly asks when all watches have caught up: otherwise it has to wait for them first.
func (g *Generator) watchProgress(stream int) Step {
	patient := g.chance(10)
	return watchCall("progress", func(t *watch.Tracker) {
		if t.Unsettled() && !patient {
			t.Cancel(stream, 4999, g.world.Revision, false)
			return
		}
		t.Progress(stream, g.world.Revision)
	})
}

func (g *Generator) watchCreate(stream int) Step {
	req := g.watchRequest()
	victim := g.dice.IntN(1 << 30)
	return g.createStep(stream, req, victim)
}

// createStep makes room on a full stream before it creates.
func (g *Generator) createStep(stream int, req *pb.WatchCreateRequest, victim int) Step {
	return watchCall("create", func(t *watch.Tracker) {
		if ids := t.IDs(stream); len(ids) >= watchesPerStream {
			t.Cancel(stream, ids[victim%len(ids)], g.world.Revision, true)
		}
		t.Create(stream, req, g.world.Revision, g.world.Compacted)
	})
}

func (g *Generator) watchRequest() *pb.WatchCreateRequest {
	w := g.world
	req := &pb.WatchCreateRequest{PrevKv: g.chance(50), Fragment: g.chance(30), ProgressNotify: g.chance(20)}
	req.Key, req.RangeEnd = g.interval()
	switch n := g.dice.IntN(100); {
	case n < 45:
	case n < 75:
		req.StartRevision = g.between(max(w.Compacted, 1), w.Revision)
	case n < 80:
		req.StartRevision = max(w.Compacted, 0)
	case n < 86:
		req.StartRevision = g.between(1, max(w.Compacted-1, 1))
	case n < 96:
		req.StartRevision = w.Revision + g.between(1, 30)
	default:
		req.StartRevision = -g.between(1, 9)
	}
	if g.chance(15) {
		req.Filters = append(req.Filters, pb.WatchCreateRequest_FilterType(g.dice.IntN(2)))
		if g.chance(20) {
			req.Filters = append(req.Filters, pb.WatchCreateRequest_FilterType(g.dice.IntN(3)))
		}
	}
	if g.chance(30) {
		req.WatchId = pick(g, []int64{1, 2, 3, 9, 100, -7, 1<<63 - 1})
	}
	if g.chance(3) {
		req.Key = nil
	}
	return req
}
