package gen

import (
	"bytes"
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// prefixKeys is how many keys share the prefix k/.
const prefixKeys = 20

// keyPool is small, so that operations meet: neighbours, prefixes of each other, binary and long keys.
var keyPool = func() [][]byte {
	pool := [][]byte{
		{0}, {0, 0}, {0xff}, {0xff, 0xff}, []byte("k"), []byte("k/"), []byte("k0"), []byte("k/00\x00"), []byte("é"),
		[]byte("long/" + string(bytes.Repeat([]byte("x"), 900))),
		[]byte("long/" + string(bytes.Repeat([]byte("x"), 901))),
	}
	for c := 'a'; c <= 'e'; c++ {
		pool = append(pool, []byte(string(c)))
	}
	for i := range prefixKeys {
		pool = append(pool, []byte(fmt.Sprintf("k/%02d", i)))
	}
	return pool
}()

func (g *Generator) key() []byte { return pick(g, keyPool) }

// interval is a key and a range end: a point, a prefix, two keys in any order, from a key on, or everything.
func (g *Generator) interval() (key, end []byte) {
	switch n := g.dice.IntN(100); {
	case n < 30:
		return g.key(), nil
	case n < 55:
		return []byte("k/"), []byte("k0")
	case n < 60:
		return []byte("long/"), []byte("long0")
	case n < 85:
		return g.key(), g.key()
	case n < 93:
		return g.key(), []byte{0}
	case n < 96:
		return []byte("missing/"), []byte("missing0")
	default:
		return []byte{0}, []byte{0}
	}
}

func (g *Generator) value() []byte {
	switch n := g.dice.IntN(100); {
	case n < 10:
		return nil
	case n < 60:
		return []byte{byte('a' + g.dice.IntN(4))}
	case n < 97:
		return []byte(fmt.Sprintf("value-%d", g.dice.IntN(1000)))
	default:
		return bytes.Repeat([]byte{byte(g.dice.IntN(256))}, 1+g.dice.IntN(20000))
	}
}

// unknownLease is never granted.
const unknownLease = 424242

func (g *Generator) leaseForPut() int64 {
	switch n := g.dice.IntN(100); {
	case n < 70 || len(g.world.Leases) == 0 && n < 97:
		return 0
	case n < 97:
		return pick(g, g.world.Leases)
	default:
		return unknownLease
	}
}

func (g *Generator) put() *pb.PutRequest {
	req := &pb.PutRequest{Key: g.key(), Value: g.value(), Lease: g.leaseForPut(), PrevKv: g.chance(40)}
	if g.chance(8) {
		req.IgnoreValue = true
		if !g.chance(15) {
			req.Value = nil
		}
	}
	if g.chance(8) {
		req.IgnoreLease = true
		if !g.chance(15) {
			req.Lease = 0
		}
	}
	if g.chance(1) {
		req.Key = nil
	}
	return req
}

func (g *Generator) deleteRange() *pb.DeleteRangeRequest {
	req := &pb.DeleteRangeRequest{Key: g.key(), PrevKv: g.chance(50)}
	if g.chance(35) {
		req.Key, req.RangeEnd = g.interval()
		// Wide deletes are rare, so that ranges have something to find.
		if len(req.RangeEnd) > 0 && g.chance(70) {
			req.RangeEnd = append(bytes.Clone(req.Key), 0xff)
		}
	}
	if g.chance(1) {
		req.Key = nil
	}
	return req
}

func (g *Generator) limit() int64 {
	switch n := g.dice.IntN(100); {
	case n < 55:
		return 0
	case n < 97:
		return g.between(1, 12)
	case n < 99:
		return -g.between(1, 3)
	default:
		return 1<<63 - 1
	}
}

func (g *Generator) rangeRequest() *pb.RangeRequest {
	req := &pb.RangeRequest{
		Limit: g.limit(), Revision: g.revision(), Serializable: g.chance(30),
		KeysOnly: g.chance(15), CountOnly: g.chance(8),
	}
	req.Key, req.RangeEnd = g.interval()
	if g.chance(45) {
		req.SortOrder = pb.RangeRequest_SortOrder(g.dice.IntN(3))
		req.SortTarget = pb.RangeRequest_SortTarget(g.dice.IntN(5))
	}
	if g.chance(2) {
		req.SortOrder = pb.RangeRequest_SortOrder(pick(g, []int32{3, -1, 99}))
	}
	if g.chance(2) {
		req.SortTarget = pb.RangeRequest_SortTarget(pick(g, []int32{5, -1, 99}))
	}
	if g.chance(25) {
		g.filters(req)
	}
	if g.chance(1) {
		req.Key = nil
	}
	return req
}

func (g *Generator) filters(req *pb.RangeRequest) {
	near := func() int64 { return g.between(max(g.world.Revision-80, -2), g.world.Revision+2) }
	for _, f := range []*int64{&req.MaxModRevision, &req.MinModRevision, &req.MaxCreateRevision, &req.MinCreateRevision} {
		if g.chance(35) {
			*f = near()
		}
	}
}

// streamRequest is like a range but for what etcd's stream answers with repeated rows: a sort target other than the key
// without an order, which nothing asks for and no server should copy.
func (g *Generator) streamRequest() *pb.RangeRequest {
	req := g.rangeRequest()
	if req.SortOrder == pb.RangeRequest_NONE {
		req.SortTarget = pb.RangeRequest_KEY
	}
	if g.chance(70) {
		req.SortOrder, req.SortTarget = pb.RangeRequest_NONE, pb.RangeRequest_KEY
		req.MaxModRevision, req.MinModRevision, req.MaxCreateRevision, req.MinCreateRevision = 0, 0, 0, 0
	}
	return req
}
