package watch

import (
	"strings"
	"sync"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
)

// newTestSide is a stream with one watch of id 0.
func newTestSide() (*sideStream, *instance) {
	s := &sideStream{byID: map[int64]*instance{}}
	s.changed = sync.NewCond(&s.mu)
	s.take(&pb.WatchResponse{Header: &pb.ResponseHeader{Revision: 1}, Created: true})
	return s, s.byID[0]
}

func events(header int64, fragment bool, revisions ...int64) *pb.WatchResponse {
	r := &pb.WatchResponse{Header: &pb.ResponseHeader{Revision: header}, Fragment: fragment}
	for _, rev := range revisions {
		r.Events = append(r.Events, &mvccpb.Event{Kv: &mvccpb.KeyValue{ModRevision: rev}})
	}
	return r
}

func mustBreak(t *testing.T, s *sideStream, text string) {
	t.Helper()
	if !strings.Contains(strings.Join(s.broken, "\n"), text) {
		t.Errorf("not noticed: %q in %q", text, s.broken)
	}
}

func TestOrderlyResponsesBreakNothing(t *testing.T) {
	s, inst := newTestSide()
	inst.fragment = true
	s.take(events(5, false, 2, 2, 3))
	s.take(events(5, true, 4, 4))
	s.take(events(5, false, 4, 5))
	s.take(&pb.WatchResponse{Header: &pb.ResponseHeader{Revision: 5}, WatchId: anyWatch})
	s.take(events(6, false, 6))
	if len(s.broken) != 0 {
		t.Error(s.broken)
	}
	if len(inst.events) != 8 {
		t.Errorf("%d events", len(inst.events))
	}
}

func TestASplitRevisionIsNoticed(t *testing.T) {
	s, _ := newTestSide()
	s.take(events(5, false, 2))
	s.take(events(5, false, 2))
	mustBreak(t, s, "split without a fragment")
}

func TestEventsOutOfOrderAreNoticed(t *testing.T) {
	s, _ := newTestSide()
	s.take(events(5, false, 3))
	s.take(events(5, false, 2))
	mustBreak(t, s, "follows one of")
}

func TestAnEventBelowAnnouncedProgressIsNoticed(t *testing.T) {
	s, _ := newTestSide()
	s.take(&pb.WatchResponse{Header: &pb.ResponseHeader{Revision: 5}, WatchId: anyWatch})
	s.take(events(5, false, 5))
	mustBreak(t, s, "announced progress")
}

func TestProgressBeforeAWatchSaysNothingAboutIt(t *testing.T) {
	s, _ := newTestSide()
	s.take(&pb.WatchResponse{Header: &pb.ResponseHeader{Revision: 5}, WatchId: anyWatch})
	s.take(&pb.WatchResponse{Header: &pb.ResponseHeader{Revision: 5}, WatchId: 1, Created: true})
	catchUp := events(5, false, 3)
	catchUp.WatchId = 1
	s.take(catchUp)
	if len(s.broken) != 0 {
		t.Error(s.broken)
	}
}

func TestAnotherWatchBetweenFragmentsIsNoticed(t *testing.T) {
	s, inst := newTestSide()
	inst.fragment = true
	s.take(events(5, true, 2))
	s.take(&pb.WatchResponse{Header: &pb.ResponseHeader{Revision: 5}, WatchId: 1, Created: true})
	mustBreak(t, s, "between the fragments")
}

func TestFragmentsThatNobodyAskedForAreNoticed(t *testing.T) {
	s, _ := newTestSide()
	s.take(events(5, true, 2))
	mustBreak(t, s, "did not ask")
}

func TestSelectorFollowsEtcdsRanges(t *testing.T) {
	for _, c := range []struct {
		key, end, probe string
		want            bool
	}{
		{"a", "", "a", true}, {"a", "", "aa", false},
		{"a", "c", "b", true}, {"a", "c", "c", false},
		{"b", "\x00", "z", true}, {"b", "\x00", "a", false},
		{"", "\x00", "a", true}, {"", "", "\x00", true},
	} {
		s := newSelector(&pb.WatchCreateRequest{Key: []byte(c.key), RangeEnd: []byte(c.end)}, 0)
		if got := s.covers([]byte(c.probe)); got != c.want {
			t.Errorf("[%q, %q) covers %q: %v", c.key, c.end, c.probe, got)
		}
	}
}
