package watch

import (
	"bytes"
	"fmt"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"garboard/tools/conformance/internal/client"
)

// history is every event of the oracle, in order: what each watch must deliver is a filtered piece of it.
type history struct {
	stream *sideStream
	inst   *instance

	mu     sync.Mutex
	events []*mvccpb.Event
}

func openHistory(oracle *client.Side, from int64) (*history, error) {
	stream, err := openSide(oracle)
	if err != nil {
		return nil, err
	}
	req := &pb.WatchCreateRequest{Key: []byte{0}, RangeEnd: []byte{0}, StartRevision: from}
	if err := stream.send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: req}}); err != nil {
		return nil, err
	}
	h := &history{stream: stream}
	if !stream.await(waitLimit, func() bool { return len(stream.created) == 1 }) {
		return nil, fmt.Errorf("the oracle created no watch: %s", stream.failure())
	}
	stream.with(func() { h.inst = stream.created[0].inst })
	return h, nil
}

// upTo waits until the history reaches a revision.
func (h *history) upTo(revision int64, limit time.Duration) bool {
	ok := h.stream.await(limit, func() bool { return revision <= 1 || h.inst.lastRevision >= revision })
	h.stream.with(func() {
		h.events = append(h.events, h.inst.events...)
		h.inst.events = nil
	})
	return ok
}

// selector says which events a watch wants.
type selector struct {
	key, end          []byte
	start             int64
	noPuts, noDeletes bool
}

func newSelector(req *pb.WatchCreateRequest, created int64) selector {
	s := selector{key: req.Key, end: req.RangeEnd, start: req.StartRevision}
	if len(s.key) == 0 {
		s.key = []byte{0}
	}
	if s.start == 0 {
		s.start = created + 1
	}
	for _, f := range req.Filters {
		switch f {
		case pb.WatchCreateRequest_NOPUT:
			s.noPuts = true
		case pb.WatchCreateRequest_NODELETE:
			s.noDeletes = true
		}
	}
	return s
}

func (s *selector) wants(ev *mvccpb.Event) bool {
	if ev.Kv.ModRevision < s.start {
		return false
	}
	if ev.Type == mvccpb.Event_PUT && s.noPuts || ev.Type == mvccpb.Event_DELETE && s.noDeletes {
		return false
	}
	return s.covers(ev.Kv.Key)
}

func (s *selector) covers(key []byte) bool {
	switch {
	case len(s.end) == 0:
		return bytes.Equal(key, s.key)
	case len(s.end) == 1 && s.end[0] == 0:
		return bytes.Compare(key, s.key) >= 0
	default:
		return bytes.Compare(key, s.key) >= 0 && bytes.Compare(key, s.end) < 0
	}
}
