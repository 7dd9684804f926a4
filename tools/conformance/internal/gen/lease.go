package gen

import (
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"garboard/tools/conformance/internal/ops"
)

// leaseIDs are what explicit grants choose from.
var leaseIDs = []int64{1, 2, 3, 1000, 7777, 123456789, 1<<63 - 1, -1, -5, -1 << 63}

// ttls are far apart, so that the order by expiry never depends on milliseconds, and long, so that nothing expires.
var ttls = []int64{100000, 200000, 300000, 400000, 500000, 9000000000}

func (g *Generator) anyLease() int64 {
	switch n := g.dice.IntN(100); {
	case n < 60 && len(g.world.Leases) > 0:
		return pick(g, g.world.Leases)
	case n < 80 && len(g.world.Picked) > 0:
		return pick(g, g.world.Picked)
	case n < 90:
		return pick(g, leaseIDs)
	default:
		return pick(g, []int64{unknownLease, 0, -99})
	}
}

func (g *Generator) lease() Step {
	switch n := g.dice.IntN(100); {
	case n < 30:
		return g.grant()
	case n < 40:
		return call("Lease/LeaseRevoke", &pb.LeaseRevokeRequest{ID: g.anyLease()})
	case n < 65:
		return call("Lease/LeaseTimeToLive", &pb.LeaseTimeToLiveRequest{ID: g.anyLease(), Keys: g.chance(60)})
	case n < 75:
		return call("Lease/LeaseLeases", &pb.LeaseLeasesRequest{})
	default:
		return Step{Op: &ops.KeepAlive{ID: g.anyLease()}}
	}
}

func (g *Generator) grant() Step {
	switch n := g.dice.IntN(100); {
	case n < 10:
		return call("Lease/LeaseGrant", &pb.LeaseGrantRequest{TTL: 9000000001 + g.between(0, 5), ID: pick(g, leaseIDs)})
	case n < 20 && len(g.world.Picked) < 4:
		return call("Lease/LeaseGrant", &pb.LeaseGrantRequest{TTL: pick(g, ttls)})
	case n < 25:
		return g.shortLease(pick(g, []int64{1, 0, -1, -1 << 63, 2}))
	default:
		return call("Lease/LeaseGrant", &pb.LeaseGrantRequest{TTL: pick(g, ttls), ID: pick(g, leaseIDs)})
	}
}

// shortLeaseID is granted with the shortest terms and revoked at once, before it could expire.
const shortLeaseID = 55555

func (g *Generator) shortLease(ttl int64) Step {
	g.queue = append([]func() Step{
		func() Step { return call("Lease/LeaseRevoke", &pb.LeaseRevokeRequest{ID: shortLeaseID}) },
	}, g.queue...)
	return call("Lease/LeaseGrant", &pb.LeaseGrantRequest{TTL: ttl, ID: shortLeaseID})
}
