package rows

import (
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"garboard/tools/conformance/internal/ops"
	"garboard/tools/conformance/internal/world"
)

func (t *Table) txn(w *world.World, req *pb.TxnRequest, out *ops.Outcome) {
	s := survey(req)
	t.txnRefused(w, req, out, s)
	if !out.OK() {
		return
	}
	resp := out.Replies[0].(*pb.TxnResponse)
	bumped := w.Revision != w.PreviousRevision
	t.HitIf(w.NoSpace && s.deletes > 0 && s.puts == 0 && bumped, "M2/nospace-deleting-txn-ok")
	t.HitIf(w.Corrupt && s.readOnly, "M2/corrupt-readonly-txn-ok")
	t.HitIf(s.readOnly && !bumped, "M3/readonly-txn-no-bump")
	t.HitIf(!resp.Succeeded && len(req.Failure) == 0 && s.puts > 0 && !bumped, "M3/failed-txn-no-bump")
	t.HitIf(len(req.Success)+len(req.Failure) == 0, "M5/no-operations")
	t.HitIf(max(len(req.Compare), len(req.Success), len(req.Failure)) == 128, "M2/txn-at-limit-ok")
	t.HitIf(repeatsAcrossBranches(req), "M2/then-else-repeat-ok")
	for _, c := range req.Compare {
		t.compare(c)
	}
	t.branch(w, taken(req, resp.Succeeded), resp, 0)
}

// census counts what a transaction asks for, nested ones included.
type census struct {
	puts, deletes, nested int
	// readOnly is etcd's own notion: nothing but ranges on the first level.
	readOnly bool
}

func survey(req *pb.TxnRequest) census {
	c := census{readOnly: true}
	for _, branch := range [][]*pb.RequestOp{req.Success, req.Failure} {
		for _, op := range branch {
			switch r := op.Request.(type) {
			case *pb.RequestOp_RequestRange:
				continue
			case *pb.RequestOp_RequestPut:
				c.puts++
			case *pb.RequestOp_RequestDeleteRange:
				c.deletes++
			case *pb.RequestOp_RequestTxn:
				inner := survey(r.RequestTxn)
				c.puts, c.deletes, c.nested = c.puts+inner.puts, c.deletes+inner.deletes, c.nested+inner.nested+1
			}
			c.readOnly = false
		}
	}
	return c
}

func (t *Table) txnRefused(w *world.World, req *pb.TxnRequest, out *ops.Outcome, s census) {
	longest := max(len(req.Compare), len(req.Success), len(req.Failure))
	switch {
	case strings.Contains(out.Text, "too many operations"):
		t.HitIf(longest > 128, "M2/txn-over-limit")
		t.HitIf(longest <= 128, "M2/txn-nested-budget")
	case strings.Contains(out.Text, "duplicate key"):
		t.duplicate(req, s)
	case strings.Contains(out.Text, "key not found"):
		t.HitIf(hasEmptyOp(req), "M2/txn-empty-op")
	case strings.Contains(out.Text, "space exceeded") && w.NoSpace:
		t.Hit("M2/nospace-putting-txn-refused")
	case strings.Contains(out.Text, "corrupt"):
		t.Hit("M2/corrupt-write-refused")
		t.HitIf(s.puts+s.deletes == 0 && s.nested > 0, "M2/corrupt-nested-readonly-txn-refused")
	case strings.Contains(out.Text, "has been compacted"), strings.Contains(out.Text, "future revision"):
		t.HitIf(s.puts > 0, "M5/range-revision-checked-first")
		t.HitIf(hasNegativeRevision(req), "M4/txn-negative-revision")
	}
}

func (t *Table) duplicate(req *pb.TxnRequest, s census) {
	switch {
	case s.nested > 0:
		t.Hit("M2/duplicate-nested")
	case s.deletes > 0:
		t.Hit("M2/duplicate-put-delete")
	default:
		t.Hit("M2/duplicate-put-put")
	}
}

func hasEmptyOp(req *pb.TxnRequest) bool {
	for _, op := range append(append([]*pb.RequestOp(nil), req.Success...), req.Failure...) {
		if op.Request == nil {
			return true
		}
	}
	return false
}

func hasNegativeRevision(req *pb.TxnRequest) bool {
	for _, op := range append(append([]*pb.RequestOp(nil), req.Success...), req.Failure...) {
		if op.GetRequestRange().GetRevision() < 0 {
			return true
		}
	}
	return false
}

func repeatsAcrossBranches(req *pb.TxnRequest) bool {
	for _, a := range req.Success {
		for _, b := range req.Failure {
			if a.GetRequestPut() != nil && b.GetRequestPut() != nil &&
				sameKey(a.GetRequestPut().Key, b.GetRequestPut().Key) {
				return true
			}
		}
	}
	return false
}

func taken(req *pb.TxnRequest, succeeded bool) []*pb.RequestOp {
	if succeeded {
		return req.Success
	}
	return req.Failure
}

func (t *Table) compare(c *pb.Compare) {
	targets := map[pb.Compare_CompareTarget]string{
		pb.Compare_VALUE: "M5/compare-value", pb.Compare_VERSION: "M5/compare-version",
		pb.Compare_CREATE: "M5/compare-create", pb.Compare_MOD: "M5/compare-mod", pb.Compare_LEASE: "M5/compare-lease",
	}
	operators := map[pb.Compare_CompareResult]string{
		pb.Compare_EQUAL: "M5/operator-equal", pb.Compare_GREATER: "M5/operator-greater",
		pb.Compare_LESS: "M5/operator-less", pb.Compare_NOT_EQUAL: "M5/operator-not-equal",
	}
	target, okTarget := targets[c.Target]
	operator, okOperator := operators[c.Result]
	if !okTarget || !okOperator {
		t.Hit("M5/compare-bad-enum")
		return
	}
	t.Hit(target)
	t.Hit(operator)
	t.HitIf(len(c.RangeEnd) > 0, "M5/compare-range-end")
	if missing := strings.HasPrefix(string(c.Key), "missing"); missing {
		t.HitIf(len(c.RangeEnd) > 0, "M5/compare-empty-range")
		t.HitIf(c.Target == pb.Compare_VALUE, "M5/compare-missing-value")
		t.HitIf(c.Target != pb.Compare_VALUE, "M5/compare-missing-other")
	}
}

// branch counts what the executed operations of one level show.
func (t *Table) branch(w *world.World, requests []*pb.RequestOp, resp *pb.TxnResponse, depth int) {
	written := map[string]bool{}
	var writes int
	for i, op := range requests {
		if i >= len(resp.Responses) {
			return
		}
		sub := resp.Responses[i]
		switch r := op.Request.(type) {
		case *pb.RequestOp_RequestPut:
			writes++
			written[string(r.RequestPut.Key)] = true
			h := sub.GetResponsePut().GetHeader()
			t.HitIf(h.GetRevision() > 0 && h.GetClusterId() == 0 && h.GetMemberId() == 0, "M3/txn-sub-header-revision-only")
			t.HitIf(rangedBefore(requests[:i], r.RequestPut.Key), "M2/put-after-range-ok")
			t.HitIf(deletedFromKeyBefore(requests[:i], r.RequestPut.Key), "M2/delete-from-key-with-put-ok")
		case *pb.RequestOp_RequestDeleteRange:
			t.HitIf(deletedBefore(requests[:i], r.RequestDeleteRange.Key), "M2/delete-delete-ok")
			if sub.GetResponseDeleteRange().GetDeleted() > 0 {
				writes++
			}
		case *pb.RequestOp_RequestRange:
			t.txnRange(w, r.RequestRange, sub.GetResponseRange(), written)
		case *pb.RequestOp_RequestTxn:
			inner := sub.GetResponseTxn()
			t.Hit("M5/nested")
			h := inner.GetHeader()
			t.HitIf(h != nil && h.Revision == 0 && h.ClusterId == 0, "M3/nested-txn-empty-header")
			for _, c := range r.RequestTxn.Compare {
				t.HitIf(written[string(c.Key)], "M5/nested-compare-before-writes")
			}
			t.branch(w, taken(r.RequestTxn, inner.GetSucceeded()), inner, depth+1)
		}
	}
	t.HitIf(depth == 0 && writes > 1 && w.Revision == w.PreviousRevision+1, "M3/txn-one-revision")
}

func (t *Table) txnRange(w *world.World, req *pb.RangeRequest, resp *pb.RangeResponse, written map[string]bool) {
	t.HitIf(req.Revision > 0 && req.Revision < w.PreviousRevision, "M5/range-at-old-revision")
	for _, kv := range resp.GetKvs() {
		t.HitIf(req.Revision == 0 && written[string(kv.Key)] && kv.ModRevision == w.Revision, "M5/range-sees-own-write")
	}
}

func rangedBefore(before []*pb.RequestOp, key []byte) bool {
	for _, op := range before {
		if r := op.GetRequestRange(); r != nil && sameKey(r.Key, key) {
			return true
		}
	}
	return false
}

func deletedBefore(before []*pb.RequestOp, key []byte) bool {
	for _, op := range before {
		if r := op.GetRequestDeleteRange(); r != nil && sameKey(r.Key, key) {
			return true
		}
	}
	return false
}

func deletedFromKeyBefore(before []*pb.RequestOp, key []byte) bool {
	for _, op := range before {
		if r := op.GetRequestDeleteRange(); r != nil && isZero(r.RangeEnd) && string(r.Key) <= string(key) {
			return true
		}
	}
	return false
}
