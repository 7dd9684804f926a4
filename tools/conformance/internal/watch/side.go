// Package watch keeps the same watches on both servers and compares what arrives.
//
// How events are cut into responses is each server's own choice and is not compared. What every response must keep to
// (one revision is never split without fragments, nothing arrives at or below an announced progress, fragments are
// contiguous) is checked on each server by itself.
package watch

import (
	"context"
	"fmt"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"garboard/tools/conformance/internal/client"
)

// anyWatch is the watch id of what is said on behalf of a whole stream.
const anyWatch = -1

// instance is one watch on one server, from its created response on.
type instance struct {
	id       int64
	fragment bool
	events   []*mvccpb.Event
	// cancels are the responses with canceled set, the server's own first.
	cancels []*pb.WatchResponse
	// progressRevision is the last one announced for this watch alone.
	progressRevision int64
	progressCount    int
	fragmentedCount  int
	lastRevision     int64
	openFragment     bool
	// progressBefore counts the stream's announcements before this watch, which say nothing about it.
	progressBefore int
}

// sideStream is one watch stream of one server.
type sideStream struct {
	side   *client.Side
	stream pb.Watch_WatchClient
	cancel context.CancelFunc

	mu      sync.Mutex
	changed *sync.Cond
	byID    map[int64]*instance
	// created holds the created responses in order, with the instance each one began.
	created []createdReply
	// progress holds the revisions announced for the whole stream.
	progress []int64
	// fragmentOf is the instance whose fragments have not ended, if any.
	fragmentOf *instance
	// asksFragments is whether the watch that is being created asked for fragments.
	asksFragments bool
	// broken lists rules that a response broke.
	broken []string
	err    error
}

type createdReply struct {
	resp *pb.WatchResponse
	inst *instance
}

func openSide(side *client.Side) (*sideStream, error) {
	ctx, cancel := context.WithCancel(context.Background())
	stream, err := pb.NewWatchClient(side.Conn).Watch(ctx)
	if err != nil {
		cancel()
		return nil, err
	}
	s := &sideStream{side: side, stream: stream, cancel: cancel, byID: map[int64]*instance{}}
	s.changed = sync.NewCond(&s.mu)
	go s.receive()
	return s, nil
}

func (s *sideStream) receive() {
	for {
		resp, err := s.stream.Recv()
		s.mu.Lock()
		if err != nil {
			s.err = err
			s.changed.Broadcast()
			s.mu.Unlock()
			return
		}
		s.take(resp)
		s.changed.Broadcast()
		s.mu.Unlock()
	}
}

func (s *sideStream) breaks(format string, args ...any) {
	s.broken = append(s.broken, fmt.Sprintf(format, args...))
}

// take files one response. The caller holds the lock.
func (s *sideStream) take(resp *pb.WatchResponse) {
	if resp.Header == nil {
		s.breaks("a response without a header: watch %d", resp.WatchId)
	}
	if s.fragmentOf != nil && s.fragmentOf.id != resp.WatchId {
		s.breaks("a response of watch %d stands between the fragments of watch %d", resp.WatchId, s.fragmentOf.id)
	}
	switch {
	case resp.Created:
		s.takeCreated(resp)
	case resp.WatchId == anyWatch && !resp.Canceled && len(resp.Events) == 0:
		s.progress = append(s.progress, resp.GetHeader().GetRevision())
	default:
		inst := s.byID[resp.WatchId]
		if inst == nil {
			s.breaks("a response for watch %d, which does not exist", resp.WatchId)
			return
		}
		s.takeFor(inst, resp)
	}
}

func (s *sideStream) takeCreated(resp *pb.WatchResponse) {
	reply := createdReply{resp: resp}
	if !resp.Canceled {
		reply.inst = &instance{id: resp.WatchId, progressBefore: len(s.progress), fragment: s.asksFragments}
		s.byID[resp.WatchId] = reply.inst
	}
	s.created = append(s.created, reply)
}

func (s *sideStream) takeFor(inst *instance, resp *pb.WatchResponse) {
	switch {
	case resp.Canceled:
		inst.cancels = append(inst.cancels, resp)
		if len(resp.Events) != 0 {
			s.breaks("watch %d: a cancel response with events", inst.id)
		}
	case len(resp.Events) == 0:
		inst.progressCount++
		inst.progressRevision = max(inst.progressRevision, resp.GetHeader().GetRevision())
	default:
		s.takeEvents(inst, resp)
	}
}

func (s *sideStream) takeEvents(inst *instance, resp *pb.WatchResponse) {
	first := resp.Events[0].GetKv().GetModRevision()
	last := inst.lastRevision
	for _, ev := range resp.Events {
		rev := ev.GetKv().GetModRevision()
		if rev < last {
			s.breaks("watch %d: an event of revision %d follows one of %d", inst.id, rev, last)
		}
		last = rev
	}
	if first == inst.lastRevision && !inst.openFragment {
		s.breaks("watch %d: revision %d is split without a fragment", inst.id, first)
	}
	announced := inst.progressRevision
	if n := len(s.progress); n > inst.progressBefore {
		announced = max(announced, s.progress[n-1])
	}
	if first <= announced {
		s.breaks("watch %d: an event of revision %d follows the announced progress %d", inst.id, first, announced)
	}
	if resp.GetHeader().GetRevision() < last {
		s.breaks("watch %d: header revision %d is below the event's %d", inst.id, resp.Header.Revision, last)
	}
	if resp.Fragment {
		inst.fragmentedCount++
		s.fragmentOf = inst
		if !inst.fragment {
			s.breaks("watch %d did not ask for fragments", inst.id)
		}
	} else {
		s.fragmentOf = nil
	}
	// etcd sends what a new watch finds before its created response is out in one piece.
	opening := len(inst.events) == 0 && inst.lastRevision == 0
	if inst.fragment && !opening && len(resp.Events) > 1 && proto.Size(resp) > fragmentLimit {
		s.breaks("watch %d: a fragment of %d bytes with %d events", inst.id, proto.Size(resp), len(resp.Events))
	}
	inst.openFragment = resp.Fragment
	inst.lastRevision = last
	inst.events = append(inst.events, resp.Events...)
}

// fragmentLimit is etcd's default request limit with its gRPC overhead: a response of more than one event stays below.
const fragmentLimit = 1572864 + 512*1024

// await waits until the predicate holds; it runs under the lock.
func (s *sideStream) await(limit time.Duration, holds func() bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if holds() {
		return true
	}
	deadline := time.Now().Add(limit)
	timer := time.AfterFunc(limit, func() {
		s.mu.Lock()
		s.changed.Broadcast()
		s.mu.Unlock()
	})
	defer timer.Stop()
	for !holds() {
		if s.err != nil || !time.Now().Before(deadline) {
			return false
		}
		s.changed.Wait()
	}
	return true
}

func (s *sideStream) with(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (s *sideStream) failure() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		return ""
	}
	st, _ := status.FromError(s.err)
	return fmt.Sprintf("%v: %s", st.Code(), st.Message())
}

func (s *sideStream) send(req *pb.WatchRequest) error { return s.stream.Send(req) }
