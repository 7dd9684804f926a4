// Package world is what the generator knows of the state of the servers, learnt from the oracle's answers.
package world

import (
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"garboard/tools/conformance/internal/ops"
)

// World is the state that operations are chosen by.
type World struct {
	// Revision and Compacted are the store's current and compacted revision.
	Revision, Compacted int64
	// PreviousRevision is the revision before the operation that was observed last.
	PreviousRevision int64
	// Leases were granted under an id that the generator chose: keys may be attached to them.
	Leases []int64
	// Picked were granted under an id that each server picked. No key is ever attached to them, because the id would
	// go into HashKV.
	Picked []int64
	// Alarms that the generator has raised.
	NoSpace, Corrupt bool
	// Deleted holds keys that a delete has removed, for rows about what comes back.
	Deleted map[string]bool
}

// New is an empty store.
func New() *World { return &World{Revision: 1, Compacted: -1, Deleted: map[string]bool{}} }

// Observe learns from an operation and the oracle's answer.
func (w *World) Observe(op ops.Op, out *ops.Outcome) {
	w.PreviousRevision = w.Revision
	if !out.OK() || len(out.Replies) == 0 {
		return
	}
	for _, reply := range out.Replies {
		if h, ok := reply.(interface{ GetHeader() *pb.ResponseHeader }); ok {
			w.Revision = max(w.Revision, h.GetHeader().GetRevision())
		}
	}
	unary, ok := op.(*ops.Unary)
	if !ok {
		return
	}
	switch req := unary.Req.(type) {
	case *pb.CompactionRequest:
		w.Compacted = max(w.Compacted, req.Revision)
	case *pb.LeaseGrantRequest:
		id := out.Replies[0].(*pb.LeaseGrantResponse).ID
		if req.ID == 0 {
			w.Picked = append(w.Picked, id)
		} else {
			w.Leases = append(w.Leases, id)
		}
	case *pb.LeaseRevokeRequest:
		w.Leases = without(w.Leases, req.ID)
		w.Picked = without(w.Picked, req.ID)
	case *pb.AlarmRequest:
		w.observeAlarm(req)
	case *pb.DeleteRangeRequest:
		if len(req.RangeEnd) == 0 && out.Replies[0].(*pb.DeleteRangeResponse).Deleted == 1 {
			w.Deleted[string(req.Key)] = true
		}
	}
}

func (w *World) observeAlarm(req *pb.AlarmRequest) {
	if req.Action == pb.AlarmRequest_GET || req.MemberID != ops.SelfMember {
		return
	}
	on := req.Action == pb.AlarmRequest_ACTIVATE
	switch req.Alarm {
	case pb.AlarmType_NOSPACE:
		w.NoSpace = on
	case pb.AlarmType_CORRUPT:
		w.Corrupt = on
	}
}

func without(ids []int64, id int64) []int64 {
	var kept []int64
	for _, other := range ids {
		if other != id {
			kept = append(kept, other)
		}
	}
	return kept
}
