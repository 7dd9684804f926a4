package rows

import (
	"bytes"
	"fmt"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/codes"

	"garboard/tools/conformance/internal/ops"
	"garboard/tools/conformance/internal/world"
)

// Classify counts the rows that one operation and the oracle's answer have shown. The world already knows the answer.
func (t *Table) Classify(w *world.World, op ops.Op, out *ops.Outcome) {
	t.classifyError(op, out)
	switch o := op.(type) {
	case *ops.RangeStream:
		t.rangeStream(w, o.Req, out)
	case *ops.KeepAlive:
		if out.OK() {
			resp := out.Replies[0].(*pb.LeaseKeepAliveResponse)
			t.HitIf(resp.TTL == 0, "M8/keepalive-unknown")
			t.HitIf(resp.TTL > 0, "M8/keepalive")
		}
	case *ops.Unary:
		t.unary(w, o, out)
	}
}

// errorPrefixes are cut off an error text before it is looked up.
var errorPrefixes = []string{"etcdserver: ", "mvcc: "}

func (t *Table) classifyError(op ops.Op, out *ops.Outcome) {
	if out.OK() {
		return
	}
	text := out.Text
	for _, p := range errorPrefixes {
		text = strings.TrimPrefix(text, p)
	}
	switch {
	case out.Code == codes.Unimplemented && strings.HasPrefix(text, "unknown service"):
		text = "unknown service"
	case out.Code == codes.Unimplemented && strings.HasPrefix(text, "unknown method"):
		text = "unknown method"
	case out.Code == codes.Internal && strings.Contains(text, "unmarshal"):
		text = "unmarshalling"
	case out.Code == codes.ResourceExhausted && strings.HasPrefix(text, "grpc: received message larger"):
		t.Hit("M2/grpc-cap")
		return
	}
	row := fmt.Sprintf("M1/%v/%s", out.Code, text)
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.counts[row]; ok {
		t.counts[row]++
	}
}

func (t *Table) unary(w *world.World, u *ops.Unary, out *ops.Outcome) {
	switch req := u.Req.(type) {
	case *pb.PutRequest:
		t.put(w, req, out)
	case *pb.RangeRequest:
		t.rangeRequest(w, req, out)
	case *pb.DeleteRangeRequest:
		t.deleteRange(w, out)
	case *pb.TxnRequest:
		t.txn(w, req, out)
	case *pb.CompactionRequest:
		t.compact(w, req, out)
	case *pb.HashKVRequest:
		t.hashKV(w, req, out)
	case *pb.LeaseGrantRequest, *pb.LeaseRevokeRequest, *pb.LeaseTimeToLiveRequest, *pb.LeaseLeasesRequest:
		t.lease(w, u, out)
	default:
		t.maintenance(u, out)
	}
}

func (t *Table) put(w *world.World, req *pb.PutRequest, out *ops.Outcome) {
	switch {
	case strings.Contains(out.Text, "request is too large"):
		t.Hit("M2/size-refused")
	case strings.Contains(out.Text, "key is not provided"):
		t.Hit("M2/put-empty-key")
	case strings.Contains(out.Text, "value is provided"):
		t.Hit("M2/put-ignore-value-with-value")
	case strings.Contains(out.Text, "lease is provided"):
		t.Hit("M2/put-ignore-lease-with-lease")
	case strings.Contains(out.Text, "key not found"):
		t.Hit("M2/put-ignore-absent")
	case strings.Contains(out.Text, "lease not found"):
		t.Hit("M2/put-unknown-lease")
	case strings.Contains(out.Text, "space exceeded") && w.NoSpace:
		t.Hit("M2/nospace-put-refused")
	case strings.Contains(out.Text, "corrupt"):
		t.Hit("M2/corrupt-write-refused")
	}
	if !out.OK() {
		return
	}
	resp := out.Replies[0].(*pb.PutResponse)
	t.HitIf(resp.Header.Revision == w.PreviousRevision+1, "M3/put-header-new-revision")
	t.HitIf(resp.Header.ClusterId != 0 && resp.Header.MemberId != 0 && resp.Header.RaftTerm != 0, "M3/header-filled")
	t.HitIf(len(req.Value) > 1<<20, "M2/size-large-ok")
	t.HitIf(req.IgnoreValue, "M2/put-ignore-value-ok")
	t.HitIf(req.IgnoreLease, "M2/put-ignore-lease-ok")
	if prev := resp.PrevKv; prev != nil && prev.Lease != 0 && !req.IgnoreLease {
		t.HitIf(req.Lease == 0, "M8/put-detaches-lease")
		t.HitIf(req.Lease != 0 && req.Lease != prev.Lease, "M8/put-moves-lease")
	}
}

func (t *Table) deleteRange(w *world.World, out *ops.Outcome) {
	t.HitIf(strings.Contains(out.Text, "corrupt"), "M2/corrupt-write-refused")
	if !out.OK() {
		return
	}
	resp := out.Replies[0].(*pb.DeleteRangeResponse)
	t.HitIf(w.NoSpace && resp.Deleted > 0, "M2/nospace-delete-ok")
	t.HitIf(resp.Deleted == 0 && w.Revision == w.PreviousRevision, "M3/delete-nothing-no-bump")
}

func (t *Table) compact(w *world.World, req *pb.CompactionRequest, out *ops.Outcome) {
	switch {
	case strings.Contains(out.Text, "has been compacted"):
		t.Hit("M6/already-compacted")
	case strings.Contains(out.Text, "future revision"):
		t.Hit("M6/future")
	case strings.Contains(out.Text, "corrupt"):
		t.Hit("M2/corrupt-compact-refused")
	case out.OK() && req.Physical:
		t.Hit("M6/compact-physical-ok")
	case out.OK():
		t.Hit("M6/compact-ok")
	}
	t.HitIf(out.OK() && w.NoSpace, "M2/nospace-compact-ok")
}

func (t *Table) hashKV(w *world.World, req *pb.HashKVRequest, out *ops.Outcome) {
	switch {
	case strings.Contains(out.Text, "has been compacted"):
		t.Hit("M6/hashkv-below-compacted")
	case strings.Contains(out.Text, "future revision"):
		t.Hit("M6/hashkv-future")
	}
	if !out.OK() {
		return
	}
	resp := out.Replies[0].(*pb.HashKVResponse)
	t.Hit("M6/hashkv")
	t.HitIf(resp.Header.Revision == w.Revision, "M3/hashkv-revision")
	t.HitIf(req.Revision == w.Compacted, "M6/hashkv-at-compacted")
	t.HitIf(req.Revision > 0 && resp.CompactRevision != w.Compacted, "M6/hashkv-stored")
}

func (t *Table) lease(w *world.World, u *ops.Unary, out *ops.Outcome) {
	switch req := u.Req.(type) {
	case *pb.LeaseGrantRequest:
		t.grant(w, req, out)
	case *pb.LeaseRevokeRequest:
		t.HitIf(strings.Contains(out.Text, "lease not found"), "M8/revoke-unknown")
		t.HitIf(strings.Contains(out.Text, "corrupt"), "M2/corrupt-lease-refused")
		if out.OK() {
			t.Hit("M8/revoke")
			t.HitIf(w.NoSpace, "M2/nospace-revoke-ok")
			t.HitIf(w.Revision == w.PreviousRevision+1, "M8/revoke-deletes-in-one-revision")
			t.HitIf(w.Revision == w.PreviousRevision, "M8/revoke-without-keys-no-bump")
		}
	case *pb.LeaseTimeToLiveRequest:
		if out.OK() {
			resp := out.Replies[0].(*pb.LeaseTimeToLiveResponse)
			t.HitIf(resp.TTL == -1, "M8/timetolive-unknown")
			t.HitIf(resp.TTL > 0, "M8/timetolive")
			t.HitIf(req.Keys && len(resp.Keys) > 0, "M8/timetolive-keys")
		}
	case *pb.LeaseLeasesRequest:
		if out.OK() {
			resp := out.Replies[0].(*pb.LeaseLeasesResponse)
			t.HitIf(len(resp.Leases) > 1, "M8/leases")
			t.HitIf(resp.Header.Revision == w.Revision, "M3/lease-header-current")
		}
	}
}

func (t *Table) grant(w *world.World, req *pb.LeaseGrantRequest, out *ops.Outcome) {
	t.HitIf(strings.Contains(out.Text, "already exists"), "M8/grant-existing-id")
	t.HitIf(strings.Contains(out.Text, "too large lease"), "M8/grant-ttl-too-large")
	t.HitIf(strings.Contains(out.Text, "space exceeded") && w.NoSpace, "M2/nospace-grant-refused")
	t.HitIf(strings.Contains(out.Text, "corrupt"), "M2/corrupt-lease-refused")
	if !out.OK() {
		return
	}
	resp := out.Replies[0].(*pb.LeaseGrantResponse)
	t.HitIf(req.ID == 0 && resp.ID > 0, "M8/grant-picked-id")
	t.HitIf(req.ID > 0, "M8/grant-explicit-id")
	t.HitIf(req.ID < 0, "M8/grant-negative-id")
	t.HitIf(req.TTL < 2 && resp.TTL == 2, "M8/grant-below-minimum")
}

func (t *Table) maintenance(u *ops.Unary, out *ops.Outcome) {
	if !out.OK() {
		return
	}
	switch resp := out.Replies[0].(type) {
	case *pb.StatusResponse:
		t.HitIf(resp.Header.GetRevision() > 0, "M3/status-revision")
	case *pb.DefragmentResponse:
		t.HitIf(resp.Header == nil, "M3/defragment-no-header")
	case *pb.MoveLeaderResponse:
		t.HitIf(resp.Header == nil, "M3/move-leader-no-header")
	case *pb.MemberListResponse:
		t.HitIf(resp.Header != nil && resp.Header.Revision == 0, "M3/cluster-header-without-revision")
	}
}

func sameKey(a, b []byte) bool { return bytes.Equal(a, b) }
