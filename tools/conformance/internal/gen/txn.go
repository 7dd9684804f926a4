package gen

import (
	"bytes"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// txnDepth is how deep random transactions nest.
const txnDepth = 3

func opPut(req *pb.PutRequest) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: req}}
}

func opRange(req *pb.RangeRequest) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: req}}
}

func opDelete(req *pb.DeleteRangeRequest) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: req}}
}

func opTxn(req *pb.TxnRequest) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{RequestTxn: req}}
}

func (g *Generator) txn(depth int, revision int64) *pb.TxnRequest {
	req := &pb.TxnRequest{}
	for range g.dice.IntN(4) {
		req.Compare = append(req.Compare, g.compare())
	}
	used := map[string]bool{}
	for range g.dice.IntN(5) {
		req.Success = append(req.Success, g.txnOp(depth, revision, used))
	}
	used = map[string]bool{}
	for range g.dice.IntN(4) {
		req.Failure = append(req.Failure, g.txnOp(depth, revision, used))
	}
	return req
}

// txnOp mostly avoids writing a key twice in a branch, because that refuses the whole transaction.
func (g *Generator) txnOp(depth int, revision int64, used map[string]bool) *pb.RequestOp {
	switch n := g.dice.IntN(100); {
	case n < 45:
		put := g.put()
		for range 5 {
			if !used[string(put.Key)] && len(put.Key) > 0 || g.chance(4) {
				break
			}
			put.Key = g.key()
		}
		used[string(put.Key)] = true
		if len(put.Key) == 0 && g.chance(80) {
			put.Key = g.key()
		}
		return opPut(put)
	case n < 70:
		r := g.rangeRequest()
		if g.chance(70) {
			r.Revision = 0
		} else {
			r.Revision = revision
		}
		return opRange(r)
	case n < 85:
		d := g.deleteRange()
		if g.chance(60) {
			d.Key, d.RangeEnd = []byte("d/only-deleted"), nil
			if g.chance(60) {
				d.Key = pick(g, keyPool[:4])
			}
		}
		if bytes.Equal(d.RangeEnd, []byte{0}) {
			// etcd overlooks that a delete from a key on meets a put, and dies when that put ignores its value or lease.
			d.RangeEnd = nil
		}
		return opDelete(d)
	case n < 98 && depth < txnDepth:
		return opTxn(g.txn(depth+1, revision))
	case n < 99:
		return &pb.RequestOp{}
	default:
		return opRange(&pb.RangeRequest{Key: g.key()})
	}
}

func (g *Generator) compare() *pb.Compare {
	c := &pb.Compare{Key: g.key(), Result: pb.Compare_CompareResult(g.dice.IntN(4))}
	if g.chance(15) {
		c.Key = []byte("missing/" + string('a'+rune(g.dice.IntN(3))))
	}
	if g.chance(20) {
		c.Key, c.RangeEnd = g.interval()
	}
	near := g.between(max(g.world.Revision-60, 0), g.world.Revision)
	switch pb.Compare_CompareTarget(g.dice.IntN(5)) {
	case pb.Compare_VERSION:
		c.Target, c.TargetUnion = pb.Compare_VERSION, &pb.Compare_Version{Version: g.between(0, 3)}
	case pb.Compare_CREATE:
		c.Target, c.TargetUnion = pb.Compare_CREATE, &pb.Compare_CreateRevision{CreateRevision: pick(g, []int64{0, near})}
	case pb.Compare_MOD:
		c.Target, c.TargetUnion = pb.Compare_MOD, &pb.Compare_ModRevision{ModRevision: pick(g, []int64{0, near})}
	case pb.Compare_VALUE:
		c.Target, c.TargetUnion = pb.Compare_VALUE, &pb.Compare_Value{Value: g.value()}
	case pb.Compare_LEASE:
		c.Target, c.TargetUnion = pb.Compare_LEASE, &pb.Compare_Lease{Lease: g.leaseForPut()}
	}
	switch g.dice.IntN(60) {
	case 0:
		c.Result = pb.Compare_CompareResult(pick(g, []int32{4, 77, -1}))
	case 1:
		c.Target = pb.Compare_CompareTarget(pick(g, []int32{5, 77, -1}))
	case 2:
		c.TargetUnion = nil
	case 3:
		c.TargetUnion = &pb.Compare_Version{Version: 1}
	case 4:
		if g.chance(20) {
			c.Key = nil
		}
	}
	return c
}
