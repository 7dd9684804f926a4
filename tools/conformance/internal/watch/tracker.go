package watch

import (
	"fmt"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"

	"garboard/tools/conformance/internal/client"
	"garboard/tools/conformance/internal/compare"
	"garboard/tools/conformance/internal/ops"
)

// waitLimit is how long a server may take to deliver what is due. Each time that one has kept silent for so long, the
// limit is halved down to leastWait, so that a server without watches does not take hours.
const (
	waitLimit = 10 * time.Second
	leastWait = 500 * time.Millisecond
)

// Difference is one disagreement, as readable text.
type Difference struct {
	What, Oracle, Subject string
	// Late is set when what was due did not come in time.
	Late bool
}

// pairWatch is the same watch on both servers.
type pairWatch struct {
	id              int64
	req             *pb.WatchCreateRequest
	oracle, subject *instance
	selector        selector
	// scanned is how much of the history has been looked at; expected are the events not yet compared.
	scanned  int
	expected []*mvccpb.Event
	// compacted is set when the watch began below the compacted revision: it gets a cancel and no events.
	compacted bool
	// cancelDue is set until that cancel has been compared.
	cancelDue bool
	compareAt int64
	dead      bool
}

// Stream is the same watch stream on both servers.
type Stream struct {
	oracle, subject *sideStream
	watches         map[int64]*pairWatch
	progressSent    int
}

// Tracker owns all streams.
type Tracker struct {
	oracle, subject *client.Side
	history         *history
	probe           *Stream
	streams         []*Stream
	// unsettled is set while a watch may still be catching up.
	unsettled bool
	// limit is the present wait limit.
	limit  time.Duration
	hit    func(row string)
	report func(Difference)
}

// New opens the streams; from is the oldest revision that watches can reach. Rows that are proved go to hit, disagreements to report.
func New(oracle, subject *client.Side, from int64, streams int, hit func(string), report func(Difference)) (*Tracker, error) {
	t := &Tracker{oracle: oracle, subject: subject, hit: hit, limit: waitLimit}
	t.report = func(d Difference) {
		if d.Late {
			t.limit = max(t.limit/2, leastWait)
		}
		report(d)
	}
	var err error
	if t.history, err = openHistory(oracle, from); err != nil {
		return nil, err
	}
	if t.probe, err = t.open(); err != nil {
		return nil, err
	}
	for range streams {
		s, err := t.open()
		if err != nil {
			return nil, err
		}
		t.streams = append(t.streams, s)
	}
	return t, nil
}

func (t *Tracker) open() (*Stream, error) {
	o, err := openSide(t.oracle)
	if err != nil {
		return nil, err
	}
	s, err := openSide(t.subject)
	if err != nil {
		return nil, err
	}
	return &Stream{oracle: o, subject: s, watches: map[int64]*pairWatch{}}, nil
}

// Close ends all streams.
func (t *Tracker) Close() {
	for _, s := range append(t.streams, t.probe) {
		s.oracle.cancel()
		s.subject.cancel()
	}
	t.history.stream.cancel()
}

// Unsettled tells whether a watch may still be catching up, which costs time to wait for.
func (t *Tracker) Unsettled() bool { return t.unsettled }

// IDs lists the ids in use on a stream, also those of compacted watches that were not cancelled.
func (t *Tracker) IDs(stream int) []int64 {
	var ids []int64
	for id := range t.streams[stream].watches {
		ids = append(ids, id)
	}
	return sorted(ids)
}

func (s *Stream) both(f func(*sideStream)) {
	f(s.oracle)
	f(s.subject)
}

func (s *Stream) send(req *pb.WatchRequest) string {
	var problem string
	s.both(func(side *sideStream) {
		if err := side.send(req); err != nil {
			problem = fmt.Sprintf("%s: send: %v %s", side.side.Name, err, side.failure())
		}
	})
	return problem
}

// Create starts a watch on both servers. Current and compacted are the store's revisions.
func (t *Tracker) Create(stream int, req *pb.WatchCreateRequest, current, compacted int64) {
	t.create(t.streams[stream], req, current, compacted)
}

func (t *Tracker) create(s *Stream, req *pb.WatchCreateRequest, current, compacted int64) *pairWatch {
	what := "Watch create " + ops.Show(req)
	wire := &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: req}}
	var before [2]int
	s.oracle.with(func() { before[0], s.oracle.asksFragments = len(s.oracle.created), req.Fragment })
	s.subject.with(func() { before[1], s.subject.asksFragments = len(s.subject.created), req.Fragment })
	if problem := s.send(wire); problem != "" {
		t.report(Difference{What: what, Oracle: s.oracle.failure(), Subject: s.subject.failure()})
		return nil
	}
	o, okO := s.oracle.nextCreated(t.limit, before[0])
	u, okU := s.subject.nextCreated(t.limit, before[1])
	if !okO || !okU {
		t.report(Difference{
			Late: true, What: what + ": no created response in time",
			Oracle:  describeReply(o.resp, okO, s.oracle),
			Subject: describeReply(u.resp, okU, s.subject),
		})
		return nil
	}
	t.compareResponses(what, o.resp, u.resp)
	t.countCreate(req, o.resp, current, compacted)
	if o.inst == nil || u.inst == nil {
		return nil
	}
	w := &pairWatch{
		id: o.resp.WatchId, req: req, oracle: o.inst, subject: u.inst,
		selector: newSelector(req, o.resp.Header.Revision), scanned: 0,
		compacted: req.StartRevision > 0 && req.StartRevision < compacted,
		compareAt: compacted,
	}
	w.scanned = t.skipBefore(w.selector.start)
	s.watches[w.id] = w
	if req.StartRevision > 0 && req.StartRevision <= current {
		t.unsettled = true
	}
	w.cancelDue = w.compacted
	return w
}

// skipBefore finds where in the history a revision begins.
func (t *Tracker) skipBefore(revision int64) int {
	low, high := 0, len(t.history.events)
	for low < high {
		mid := (low + high) / 2
		if t.history.events[mid].Kv.ModRevision < revision {
			low = mid + 1
		} else {
			high = mid
		}
	}
	return low
}

func (s *sideStream) nextCreated(limit time.Duration, before int) (createdReply, bool) {
	var reply createdReply
	ok := s.await(limit, func() bool {
		if len(s.created) <= before {
			return false
		}
		reply = s.created[before]
		return true
	})
	return reply, ok
}

func (t *Tracker) compareResponses(what string, o, u *pb.WatchResponse) {
	o, u = proto.Clone(o).(*pb.WatchResponse), proto.Clone(u).(*pb.WatchResponse)
	if diff, same := compare.Messages(t.oracle, o, t.subject, u); !same {
		t.report(Difference{What: what + diff, Oracle: show(o), Subject: show(u)})
	}
}

func (t *Tracker) countCreate(req *pb.WatchCreateRequest, resp *pb.WatchResponse, current, compacted int64) {
	switch {
	case resp.Canceled && req.StartRevision < 0:
		t.hit("M7/negative-start")
	case resp.Canceled && strings.Contains(resp.CancelReason, "duplicate watch ID"):
		t.hit("M7/duplicate-id")
	case resp.Canceled && strings.Contains(resp.CancelReason, "range is empty"):
		t.hit("M7/empty-range")
	case resp.Canceled:
	case req.StartRevision == compacted && compacted > 0:
		t.hit("M7/start-at-compacted")
	case req.StartRevision > current:
		t.hit("M7/future-start")
	case req.StartRevision > 0 && req.StartRevision > compacted:
		t.hit("M7/catch-up")
	}
	if resp.Canceled {
		return
	}
	t.hit("M7/created-first")
	if len(req.Key) == 0 {
		t.hit("M7/empty-key")
	}
	if len(req.RangeEnd) == 1 && req.RangeEnd[0] == 0 {
		t.hit("M7/from-key")
	}
	switch {
	case req.WatchId == 0:
		t.hit("M7/auto-id")
	case req.WatchId < 0:
		t.hit("M7/negative-id")
	default:
		t.hit("M7/explicit-id")
	}
}

// awaitCompacted compares the cancel that a watch from below the compacted revision gets.
func (t *Tracker) awaitCompacted(s *Stream, w *pairWatch) {
	if !w.cancelDue {
		return
	}
	w.cancelDue = false
	what := "Watch from a compacted revision " + ops.Show(w.req)
	o, okO := s.oracle.nextCancel(t.limit, w.oracle, 0)
	u, okU := s.subject.nextCancel(t.limit, w.subject, 0)
	if !okO || !okU {
		t.report(Difference{
			Late: true, What: what + ": no cancel in time",
			Oracle:  describeReply(o, okO, s.oracle),
			Subject: describeReply(u, okU, s.subject),
		})
		return
	}
	t.compareResponses(what, o, u)
	t.hit("M7/compacted-start")
}

func (s *sideStream) nextCancel(limit time.Duration, inst *instance, before int) (*pb.WatchResponse, bool) {
	var resp *pb.WatchResponse
	ok := s.await(limit, func() bool {
		if len(inst.cancels) <= before {
			return false
		}
		resp = inst.cancels[before]
		return true
	})
	return resp, ok
}

// Cancel ends a watch by id. An unknown id must be met with silence, which a later response out of turn would break.
func (t *Tracker) Cancel(stream int, id int64, current int64, settle bool) {
	s := t.streams[stream]
	w := s.watches[id]
	// etcd hands what a cancelled watch still had to deliver to the next watch of the same id: only ids that are never
	// used again may be cancelled while events are on their way.
	settle = settle || w != nil && w.req.WatchId != 0
	if w != nil && settle {
		t.settleWatch(s, w, current)
	}
	t.cancel(s, id, settle)
}

func (t *Tracker) cancel(s *Stream, id int64, settled bool) {
	what := fmt.Sprintf("Watch cancel %d", id)
	w := s.watches[id]
	var before [2]int
	if w != nil {
		t.awaitCompacted(s, w)
		s.oracle.with(func() { before[0] = len(w.oracle.cancels) })
		s.subject.with(func() { before[1] = len(w.subject.cancels) })
	}
	wire := &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CancelRequest{
		CancelRequest: &pb.WatchCancelRequest{WatchId: id}}}
	if problem := s.send(wire); problem != "" {
		t.report(Difference{What: what, Oracle: s.oracle.failure(), Subject: s.subject.failure()})
		return
	}
	if w == nil {
		t.hit("M7/cancel-unknown")
		return
	}
	delete(s.watches, id)
	o, okO := s.oracle.nextCancel(t.limit, w.oracle, before[0])
	u, okU := s.subject.nextCancel(t.limit, w.subject, before[1])
	if !okO || !okU {
		t.report(Difference{
			Late: true, What: what + ": no canceled response in time",
			Oracle:  describeReply(o, okO, s.oracle),
			Subject: describeReply(u, okU, s.subject),
		})
		return
	}
	t.compareResponses(what, o, u)
	t.hit("M7/cancel")
	if w.compacted {
		t.hit("M7/cancel-after-compacted")
	}
	if !settled && !w.dead {
		t.comparePrefix(s, w)
	}
}

// comparePrefix compares what both servers delivered before an unannounced cancel: each may have stopped earlier.
func (t *Tracker) comparePrefix(s *Stream, w *pairWatch) {
	var o, u []*mvccpb.Event
	s.oracle.with(func() { o = append(o, w.oracle.events...) })
	s.subject.with(func() { u = append(u, w.subject.events...) })
	for i := range min(len(o), len(u)) {
		t.compareEvent(w, o[i], u[i])
	}
}

// Progress asks for progress on a stream. When an answer is due it is awaited and compared; else silence is due.
func (t *Tracker) Progress(stream int, current int64) {
	s := t.streams[stream]
	due := t.progressDue(s, current)
	if due {
		t.Barrier(current)
	}
	var before [2]int
	s.oracle.with(func() { before[0] = len(s.oracle.progress) })
	s.subject.with(func() { before[1] = len(s.subject.progress) })
	wire := &pb.WatchRequest{RequestUnion: &pb.WatchRequest_ProgressRequest{
		ProgressRequest: &pb.WatchProgressRequest{}}}
	if problem := s.send(wire); problem != "" {
		t.report(Difference{What: "Watch progress", Oracle: s.oracle.failure(), Subject: s.subject.failure()})
		return
	}
	if !due {
		t.hit("M7/progress-silent")
		return
	}
	o, okO := s.oracle.nextProgress(t.limit, before[0])
	u, okU := s.subject.nextProgress(t.limit, before[1])
	if o != u || okO != okU || o != current {
		t.report(Difference{
			Late:    !okO || !okU,
			What:    fmt.Sprintf("Watch progress on stream %d at revision %d", stream, current),
			Oracle:  fmt.Sprintf("answered %v, header revision %d", okO, o),
			Subject: fmt.Sprintf("answered %v, header revision %d", okU, u),
		})
		return
	}
	s.progressSent++
	t.hit("M7/progress")
}

// progressDue tells whether etcd answers: with at least one watch, none of a future start, none left over by a
// compaction.
func (t *Tracker) progressDue(s *Stream, current int64) bool {
	if len(s.watches) == 0 {
		return false
	}
	for _, w := range s.watches {
		if w.compacted || w.dead || w.req.StartRevision > current {
			return false
		}
	}
	return true
}

func (s *sideStream) nextProgress(limit time.Duration, before int) (int64, bool) {
	var revision int64
	ok := s.await(limit, func() bool {
		if len(s.progress) <= before {
			return false
		}
		revision = s.progress[before]
		return true
	})
	return revision, ok
}

// Barrier waits until every watch on both servers has delivered all events up to a revision, and compares them.
func (t *Tracker) Barrier(current int64) {
	if !t.history.upTo(current, t.limit) {
		t.report(Difference{
			What:   fmt.Sprintf("the oracle's own watch over all keys did not reach revision %d", current),
			Oracle: t.history.stream.failure(),
		})
		return
	}
	if t.unsettled && current > 1 {
		t.probeCatchUp(current)
		t.unsettled = false
	}
	for n, s := range t.streams {
		for _, id := range t.IDs(n) {
			t.settleWatch(s, s.watches[id], current)
		}
		t.checkStream(n, s)
	}
}

// probeCatchUp starts a watch that has one revision to catch up on. etcd serves all watches that are behind in one pass,
// so when the probe has its event, those that had nothing to deliver are caught up too.
func (t *Tracker) probeCatchUp(current int64) {
	req := &pb.WatchCreateRequest{Key: []byte{0}, RangeEnd: []byte{0}, StartRevision: current}
	w := t.create(t.probe, req, current, 0)
	if w == nil {
		return
	}
	t.settleWatch(t.probe, w, current)
	t.cancel(t.probe, w.id, true)
}

func (t *Tracker) settleWatch(s *Stream, w *pairWatch, current int64) {
	t.awaitCompacted(s, w)
	if w.compacted || w.dead {
		return
	}
	if !t.history.upTo(current, t.limit) {
		return
	}
	for ; w.scanned < len(t.history.events); w.scanned++ {
		if ev := t.history.events[w.scanned]; w.selector.wants(ev) {
			w.expected = append(w.expected, ev)
		}
	}
	want := len(w.expected)
	okO := s.oracle.await(t.limit, func() bool { return len(w.oracle.events) >= want })
	okU := s.subject.await(t.limit, func() bool { return len(w.subject.events) >= want })
	var o, u []*mvccpb.Event
	s.oracle.with(func() { o, w.oracle.events = w.oracle.events, nil })
	s.subject.with(func() { u, w.subject.events = w.subject.events, nil })
	expected := w.expected
	w.expected = nil
	if !okO || !okU || len(o) != want || len(u) != want {
		w.dead = true
		t.report(Difference{
			Late:    !okO || !okU,
			What:    fmt.Sprintf("watch %d (%s) up to revision %d: %d events are due", w.id, ops.Show(w.req), current, want),
			Oracle:  showEvents(o, s.oracle),
			Subject: showEvents(u, s.subject),
		})
		return
	}
	for i := range want {
		if !t.compareEvent(w, o[i], u[i]) {
			w.dead = true
			return
		}
		if o[i].Type != expected[i].Type || o[i].Kv.ModRevision != expected[i].Kv.ModRevision {
			t.report(Difference{What: "the oracle's watches disagree with each other", Oracle: ops.Show(o[i])})
		}
	}
	if want > 0 && len(w.req.Filters) > 0 {
		t.hit("M7/filters")
	}
	if len(w.req.Filters) > 1 && w.selector.noPuts && w.selector.noDeletes {
		t.hit("M7/all-filtered")
	}
	if w.subject.fragmentedCount > 0 && w.oracle.fragmentedCount > 0 {
		t.hit("M7/fragments")
	}
}

func (t *Tracker) compareEvent(w *pairWatch, o, u *mvccpb.Event) bool {
	if !proto.Equal(o, u) {
		t.report(Difference{
			What:    fmt.Sprintf("an event of watch %d (%s)", w.id, ops.Show(w.req)),
			Oracle:  show(o),
			Subject: show(u),
		})
		return false
	}
	t.countEvent(w, o)
	return true
}

func (t *Tracker) countEvent(w *pairWatch, ev *mvccpb.Event) {
	switch {
	case ev.Type == mvccpb.Event_DELETE && ev.Kv.CreateRevision == 0 && len(ev.Kv.Value) == 0:
		t.hit("M7/delete-event")
	case ev.Type == mvccpb.Event_PUT:
		t.hit("M7/put-event")
	}
	if !w.req.PrevKv {
		return
	}
	created := ev.Type == mvccpb.Event_PUT && ev.Kv.CreateRevision == ev.Kv.ModRevision
	switch {
	case ev.PrevKv != nil:
		t.hit("M7/prev-kv")
	case created:
		t.hit("M7/prev-kv-none-for-create")
	case ev.Kv.ModRevision == w.compareAt:
		t.hit("M7/prev-kv-compacted")
	}
}

// checkStream reports rules that either server broke, and an ended stream.
func (t *Tracker) checkStream(n int, s *Stream) {
	what := fmt.Sprintf("watch stream %d", n)
	var o, u []string
	var progress [2]int
	s.oracle.with(func() { o, s.oracle.broken = s.oracle.broken, nil; progress[0] = len(s.oracle.progress) })
	s.subject.with(func() { u, s.subject.broken = s.subject.broken, nil; progress[1] = len(s.subject.progress) })
	if len(o)+len(u) > 0 {
		t.report(Difference{What: what + ": broken rules", Oracle: strings.Join(o, "\n"), Subject: strings.Join(u, "\n")})
	}
	if a, b := s.oracle.failure(), s.subject.failure(); a != "" || b != "" {
		t.report(Difference{What: what + " ended", Oracle: a, Subject: b})
		t.replace(n)
		return
	}
	if progress[0] != progress[1] || progress[0] != s.progressSent {
		t.report(Difference{
			What:    fmt.Sprintf("%s: %d progress responses are due", what, s.progressSent),
			Oracle:  fmt.Sprintf("%d", progress[0]),
			Subject: fmt.Sprintf("%d", progress[1]),
		})
		s.progressSent = progress[0]
		s.subject.with(func() { s.subject.progress = append([]int64(nil), s.oracle.progress...) })
	} else {
		t.hit("M7/progress-silence-kept")
	}
}

func (t *Tracker) replace(n int) {
	t.streams[n].both(func(side *sideStream) { side.cancel() })
	if s, err := t.open(); err == nil {
		t.streams[n] = s
	}
}

// HalfClose ends the client's side of a stream: the server must go on delivering.
func (t *Tracker) HalfClose(stream int) {
	t.streams[stream].both(func(side *sideStream) { side.stream.CloseSend() })
}

// HalfClosedDelivered counts that a half-closed stream has passed the last barrier.
func (t *Tracker) HalfClosedDelivered(stream int) {
	for _, w := range t.streams[stream].watches {
		if !w.dead && w.oracle.lastRevision > 0 {
			t.hit("M7/half-closed-stream")
			return
		}
	}
}

// Reopen ends a stream and begins another in its place.
func (t *Tracker) Reopen(stream int) { t.replace(stream) }

// AwaitPeriodicProgress waits until each watch on a stream that asked for it has heard of progress up to a revision,
// on both servers, and checks that no other has.
func (t *Tracker) AwaitPeriodicProgress(stream int, revision int64) {
	s := t.streams[stream]
	for _, id := range t.IDs(stream) {
		w := s.watches[id]
		if !w.req.ProgressNotify {
			continue
		}
		okO := s.oracle.await(t.limit, func() bool { return w.oracle.progressRevision >= revision })
		okU := s.subject.await(t.limit, func() bool { return w.subject.progressRevision >= revision })
		if !okO || !okU {
			t.report(Difference{
				What:    fmt.Sprintf("watch %d: periodic progress up to revision %d is due", id, revision),
				Oracle:  fmt.Sprintf("%v, %d", okO, w.oracle.progressRevision),
				Subject: fmt.Sprintf("%v, %d", okU, w.subject.progressRevision),
			})
			return
		}
		t.hit("M7/progress-periodic")
	}
	for _, id := range t.IDs(stream) {
		if w := s.watches[id]; !w.req.ProgressNotify && w.subject.progressCount+w.oracle.progressCount > 0 {
			t.report(Difference{What: fmt.Sprintf("watch %d heard of progress without asking", id)})
		}
	}
}
