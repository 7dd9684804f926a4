package rows

import (
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"garboard/tools/conformance/internal/ops"
	"garboard/tools/conformance/internal/world"
)

func isZero(key []byte) bool { return len(key) == 1 && key[0] == 0 }

func filtered(req *pb.RangeRequest) bool {
	return req.MinModRevision != 0 || req.MaxModRevision != 0 || req.MinCreateRevision != 0 || req.MaxCreateRevision != 0
}

func (t *Table) rangeRequest(w *world.World, req *pb.RangeRequest, out *ops.Outcome) {
	switch {
	case strings.Contains(out.Text, "invalid sort option"):
		t.Hit("M2/range-bad-sort")
	case strings.Contains(out.Text, "future revision"):
		t.Hit("M4/future-revision")
	case strings.Contains(out.Text, "has been compacted"):
		t.Hit("M4/compacted-revision")
	}
	if !out.OK() {
		return
	}
	resp := out.Replies[0].(*pb.RangeResponse)
	t.HitIf(w.NoSpace, "M2/nospace-range-ok")
	t.HitIf(w.Corrupt, "M2/corrupt-range-ok")
	t.rangeInterval(req, resp)
	t.rangeRevision(w, req, resp)
	t.rangeOptions(req, resp)
	t.rangeSort(req, resp)
	for _, kv := range resp.Kvs {
		t.HitIf(w.Deleted[string(kv.Key)] && kv.Version == 1 && kv.CreateRevision == kv.ModRevision && req.Revision == 0,
			"M3/version-restarts-after-delete")
	}
}

func (t *Table) rangeInterval(req *pb.RangeRequest, resp *pb.RangeResponse) {
	if resp.Count == 0 {
		return
	}
	switch {
	case len(req.RangeEnd) == 0:
		t.Hit("M4/single-key")
	case isZero(req.RangeEnd) && isZero(req.Key):
		t.Hit("M4/all-keys")
	case isZero(req.RangeEnd):
		t.Hit("M4/from-key")
	default:
		t.Hit("M4/interval")
	}
}

func (t *Table) rangeRevision(w *world.World, req *pb.RangeRequest, resp *pb.RangeResponse) {
	switch {
	case req.Revision < 0:
		t.HitIf(resp.Count > 0, "M4/negative-revision-latest")
	case req.Revision == 0 || req.Revision == w.Revision:
	case req.Revision == w.Compacted:
		t.Hit("M4/at-compacted-revision-ok")
	default:
		t.Hit("M4/old-revision-ok")
		t.HitIf(resp.Header.Revision == w.Revision, "M3/range-header-current-at-old-revision")
	}
}

func (t *Table) rangeOptions(req *pb.RangeRequest, resp *pb.RangeResponse) {
	rows := int64(len(resp.Kvs))
	t.HitIf(req.CountOnly && resp.Count > 0, "M4/count-only")
	t.HitIf(req.KeysOnly && rows > 0 && req.SortTarget != pb.RangeRequest_VALUE, "M4/keys-only")
	t.HitIf(req.KeysOnly && rows > 1 && req.SortTarget == pb.RangeRequest_VALUE, "M4/keys-only-value-sort")
	t.HitIf(req.Serializable && rows > 0, "M4/serializable")
	t.HitIf(resp.More, "M4/more")
	t.HitIf(req.Limit > 0 && resp.Count > req.Limit && !req.CountOnly, "M4/count-ignores-limit")
	if !filtered(req) || req.CountOnly {
		return
	}
	t.HitIf(resp.Count > rows && !resp.More && rows > 0, "M4/count-ignores-filters")
	t.HitIf(req.MaxModRevision != 0 && rows > 0, "M4/filter-max-mod")
	t.HitIf(req.MinModRevision != 0 && rows > 0, "M4/filter-min-mod")
	t.HitIf(req.MaxCreateRevision != 0 && rows > 0, "M4/filter-max-create")
	t.HitIf(req.MinCreateRevision != 0 && rows > 0, "M4/filter-min-create")
	t.HitIf(req.Limit > 0 && resp.More, "M4/filter-with-limit")
}

func (t *Table) rangeSort(req *pb.RangeRequest, resp *pb.RangeResponse) {
	if len(resp.Kvs) < 2 {
		return
	}
	switch req.SortTarget {
	case pb.RangeRequest_KEY:
		t.HitIf(req.SortOrder == pb.RangeRequest_DESCEND, "M4/sort-key-descend")
	case pb.RangeRequest_VERSION:
		t.Hit("M4/sort-version")
	case pb.RangeRequest_CREATE:
		t.Hit("M4/sort-create")
	case pb.RangeRequest_MOD:
		t.Hit("M4/sort-mod")
	case pb.RangeRequest_VALUE:
		t.Hit("M4/sort-value")
	}
	quirk := req.SortTarget != pb.RangeRequest_KEY && req.SortOrder == pb.RangeRequest_NONE
	t.HitIf(quirk && resp.More && resp.Count > req.Limit+1 && !filtered(req), "M4/sort-quirk")
}

func (t *Table) rangeStream(w *world.World, req *pb.RangeRequest, out *ops.Outcome) {
	t.HitIf(strings.Contains(out.Text, "custom sort orders"), "M4/stream-sort-unimplemented")
	t.HitIf(strings.Contains(out.Text, "revision filters"), "M4/stream-filter-unimplemented")
	if !out.OK() {
		return
	}
	resp := out.Replies[0].(*pb.RangeResponse)
	rows := int64(len(resp.Kvs))
	t.HitIf(rows > 0, "M4/stream")
	// The first chunk of etcd has ten keys.
	t.HitIf(rows > 10, "M4/stream-many-chunks")
	t.HitIf(resp.More && resp.Count > rows, "M4/stream-limit-exact-count")
	t.HitIf(req.CountOnly && resp.Count > 0, "M4/stream-count-only")
	t.HitIf(req.Revision > 0 && req.Revision < w.Revision && rows > 0, "M4/stream-old-revision")
}
