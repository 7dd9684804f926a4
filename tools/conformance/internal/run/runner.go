package run

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"

	"garboard/tools/conformance/internal/compare"
	"garboard/tools/conformance/internal/gen"
	"garboard/tools/conformance/internal/notyet"
	"garboard/tools/conformance/internal/ops"
	"garboard/tools/conformance/internal/rows"
	"garboard/tools/conformance/internal/watch"
	"garboard/tools/conformance/internal/world"
)

const (
	// callLimit is how long one call may take: etcd's own limit is 7 s.
	callLimit = 12 * time.Second
	// watchStreams is how many watch streams are open at a time.
	watchStreams = 3
	// barrierEvery is how many operations pass at most before all watches are awaited and compared.
	barrierEvery = 300
	// lostLimit is how many calls in a row may find no server before a run gives up.
	lostLimit = 10
	// readsAtOnce bounds how many reads run at the same time.
	readsAtOnce = 8
)

// Runner applies steps to a pair.
type Runner struct {
	pair    *Pair
	world   *world.World
	table   *rows.Table
	results *Results
	tracker *watch.Tracker
	// Phase names the run in reports.
	Phase string
	// KeepGoing counts differences instead of ending at the first.
	KeepGoing bool
	notYet    *notyet.List
	// restarted is set once leases have been renewed by a restart: their order by expiry is chance from then on.
	restarted bool
	// auth is set where requests run under users.
	auth bool
	// revisionsDiffer is set when the servers have come to different revisions for a reason.
	revisionsDiffer bool
	// unsettled is set after a compaction that may still be at work.
	unsettled    bool
	lost         int
	operation    int
	sinceBarrier int
}

// NewRunner is ready to run on an empty pair.
func NewRunner(pair *Pair, table *rows.Table, results *Results, notYet *notyet.List) (*Runner, error) {
	r := &Runner{pair: pair, world: world.New(), table: table, results: results, notYet: notYet}
	return r, r.openWatches()
}

func (r *Runner) openWatches() error {
	from := max(r.world.Compacted, 1)
	tracker, err := watch.New(r.pair.Oracle, r.pair.Subject, from, watchStreams, r.table.Hit, func(d watch.Difference) {
		r.results.Differ(d.What, d.Oracle, d.Subject)
	})
	r.tracker = tracker
	return err
}

// Restart stops both servers, or kills them, and starts them again; watches end with their streams.
func (r *Runner) Restart(ctx context.Context, kill bool) error {
	r.settle(ctx)
	r.tracker.Close()
	if err := r.pair.Restart(ctx, kill); err != nil {
		return err
	}
	r.restarted = true
	return r.openWatches()
}

// Close ends the watch streams.
func (r *Runner) Close() { r.tracker.Close() }

// Random applies n generated operations and ends with a barrier. Reads that follow each other run at the same time:
// nothing changes meanwhile, so their answers do not depend on their order.
func (r *Runner) Random(ctx context.Context, seed uint64, n int, progress func(done int)) error {
	g := gen.New(seed, n, r.world, watchStreams)
	var reads []ops.Op
	for i := range n {
		if err := ctx.Err(); err != nil {
			return err
		}
		progress(i + 1)
		step := g.Next()
		if step.Op != nil && readOnly(step.Op) {
			r.prepare(ctx, step.Op)
			if reads = append(reads, step.Op); len(reads) < readsAtOnce {
				continue
			}
		}
		if err := r.reads(ctx, reads); err != nil {
			return err
		}
		if reads = reads[:0]; step.Op == nil || !readOnly(step.Op) {
			if err := r.Step(ctx, step); err != nil {
				return err
			}
		}
		r.table.HitIf(g.TombstoneAtCompacted(), "M6/tombstone-at-compacted")
	}
	if err := r.reads(ctx, reads); err != nil {
		return err
	}
	return r.Step(ctx, gen.Step{Name: "last barrier", Watch: func(t *watch.Tracker) { t.Barrier(r.world.Revision) }})
}

// readOnly tells whether an operation changes nothing and reads nothing that passes by itself.
func readOnly(op ops.Op) bool {
	switch o := op.(type) {
	case *ops.RangeStream, *ops.Health:
		return true
	case *ops.Unary:
		switch o.Req.(type) {
		case *pb.RangeRequest, *pb.HashKVRequest, *pb.HashRequest, *pb.StatusRequest, *pb.MemberListRequest,
			*pb.LeaseTimeToLiveRequest, *pb.LeaseLeasesRequest:
			return true
		}
	}
	return false
}

// reads runs read-only operations at the same time and compares their answers in order.
func (r *Runner) reads(ctx context.Context, list []ops.Op) error {
	type answers struct{ oracle, subject ops.Outcome }
	got := make([]answers, len(list))
	var wait sync.WaitGroup
	for i, op := range list {
		wait.Go(func() { got[i].oracle, got[i].subject = r.both(ctx, op) })
	}
	wait.Wait()
	for i, op := range list {
		r.begin()
		r.judge(op, got[i].oracle, got[i].subject)
		if err := r.end(); err != nil {
			return err
		}
	}
	return nil
}

// Step applies one step to both servers.
func (r *Runner) Step(ctx context.Context, step gen.Step) error {
	if step.Op != nil && r.notYet.Method(ops.MethodOf(step.Op)) {
		return r.absent(ctx, step.Op)
	}
	r.begin()
	if step.Op != nil {
		r.prepare(ctx, step.Op)
		oracle, subject := r.both(ctx, step.Op)
		r.judge(step.Op, oracle, subject)
	} else {
		step.Watch(r.tracker)
	}
	return r.end()
}

// AbsentMethods calls each method that is not there yet, so that none comes to life unseen.
func (r *Runner) AbsentMethods(ctx context.Context) error {
	for _, method := range r.notYet.Methods() {
		if err := r.absent(ctx, &ops.Raw{Method: method, Label: "empty", Stream: true}); err != nil {
			return err
		}
	}
	return nil
}

// absent calls what is not there yet on the subject alone: the oracle would change where the subject cannot follow.
func (r *Runner) absent(ctx context.Context, op ops.Op) error {
	r.begin()
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	out := op.Run(ctx, r.pair.Subject)
	if !notyet.Absent(out.Code) {
		r.results.Differ(op.Describe()+"\nis listed as not there yet, but it answers: remove the entry",
			"(not asked)", show(&out))
	}
	failed := r.results.FailedNow()
	r.results.EndAbsent()
	if failed && !r.KeepGoing {
		return fmt.Errorf("%s operation %d is there", r.Phase, r.operation)
	}
	return nil
}

func (r *Runner) begin() {
	r.operation++
	r.results.Begin(r.Phase, r.operation)
}

// end counts the operation and tells whether to stop.
func (r *Runner) end() error {
	if r.sinceBarrier++; r.sinceBarrier >= barrierEvery {
		r.sinceBarrier = 0
		r.tracker.Barrier(r.world.Revision)
	}
	failed := r.results.FailedNow()
	r.results.End()
	switch {
	case failed && !r.KeepGoing:
		return fmt.Errorf("%s operation %d differs", r.Phase, r.operation)
	case r.lost >= lostLimit:
		return fmt.Errorf("operation %d: no server for %d calls in a row %s", r.operation, r.lost, r.pair.Crashed())
	}
	return nil
}

// prepare waits for what would make the answer depend on time: watches that a compaction would overtake, and
// compactions that are still at work when their result shows.
func (r *Runner) prepare(ctx context.Context, op ops.Op) {
	switch o := op.(type) {
	case *ops.Unary:
		switch o.Req.(type) {
		case *pb.CompactionRequest:
			r.tracker.Barrier(r.world.Revision)
			r.sinceBarrier = 0
			r.settle(ctx)
		case *pb.HashKVRequest, *pb.HashRequest, *pb.DefragmentRequest:
			r.settle(ctx)
		}
	case *ops.Raw:
		if strings.HasSuffix(o.Method, "/HashKV") {
			r.settle(ctx)
		}
	case ops.Snapshot:
		r.settle(ctx)
	}
}

// settle waits until the last compaction is done: a physical one at the same revision is refused, but only after the
// scheduled one has ended.
func (r *Runner) settle(ctx context.Context) {
	if !r.unsettled {
		return
	}
	r.unsettled = false
	op := &ops.Unary{
		Method: "/etcdserverpb.KV/Compact", Req: &pb.CompactionRequest{Revision: r.world.Compacted, Physical: true},
	}
	r.both(ctx, op)
}

func (r *Runner) both(ctx context.Context, op ops.Op) (ops.Outcome, ops.Outcome) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	done := make(chan ops.Outcome, 1)
	go func() { done <- op.Run(ctx, r.pair.Subject) }()
	oracle := op.Run(ctx, r.pair.Oracle)
	return oracle, <-done
}

// judge learns from the oracle's answer and compares the subject's with it.
func (r *Runner) judge(op ops.Op, oracle, subject ops.Outcome) {
	if compare.IsLost(subject.Code) || compare.IsLost(oracle.Code) {
		r.lost++
	} else {
		r.lost = 0
	}
	r.alias(op, &oracle, &subject)
	r.world.Observe(op, &oracle)
	if unary, ok := op.(*ops.Unary); ok && oracle.OK() {
		if compaction, ok := unary.Req.(*pb.CompactionRequest); ok && !compaction.Physical {
			r.unsettled = true
		}
	}
	if r.auth {
		r.table.ClassifyAuth(op, &oracle)
	} else {
		r.table.Classify(r.world, op, &oracle)
	}
	if r.results.Trace != nil {
		r.results.Note(op.Describe(), show(&oracle))
	}
	if r.revisionsDiffer {
		compare.DropRevision(&oracle)
		compare.DropRevision(&subject)
	}
	if r.restarted {
		r.pairLeases(&oracle, &subject)
	}
	if diff, same := compare.Outcomes(op, r.pair.Oracle, &oracle, r.pair.Subject, &subject); !same {
		r.results.Differ(op.Describe()+diff, show(&oracle), show(&subject))
	}
}

// pairLeases sorts lists of leases by the oracle's ids.
func (r *Runner) pairLeases(oracle, subject *ops.Outcome) {
	for _, reply := range subject.Replies {
		if list, ok := reply.(*pb.LeaseLeasesResponse); ok {
			for _, l := range list.Leases {
				l.ID = r.pair.Subject.Alias(l.ID)
			}
		}
	}
	compare.SortLeases(oracle)
	compare.SortLeases(subject)
}

// alias records which ids the servers picked for the same request.
func (r *Runner) alias(op ops.Op, oracle, subject *ops.Outcome) {
	unary, ok := op.(*ops.Unary)
	if !ok || !oracle.OK() || !subject.OK() {
		return
	}
	switch req := unary.Req.(type) {
	case *pb.LeaseGrantRequest:
		if req.ID == 0 {
			r.pair.Subject.AddAlias(subject.Replies[0].(*pb.LeaseGrantResponse).ID,
				oracle.Replies[0].(*pb.LeaseGrantResponse).ID)
		}
	case *pb.MemberAddRequest:
		learner := ops.LearnerMember
		r.pair.Oracle.AddAlias(int64(oracle.Replies[0].(*pb.MemberAddResponse).GetMember().GetID()), int64(learner))
		r.pair.Subject.AddAlias(int64(subject.Replies[0].(*pb.MemberAddResponse).GetMember().GetID()), int64(learner))
	}
}

func show(o *ops.Outcome) string {
	lines := []string{fmt.Sprintf("%v %s", o.Code, o.Text)}
	for _, note := range o.Notes {
		lines = append(lines, "broken rule: "+note)
	}
	for _, reply := range o.Replies {
		lines = append(lines, string(proto.MessageName(reply)))
		lines = append(lines, ops.ShowLines(reply)...)
	}
	return strings.Join(lines, "\n")
}
