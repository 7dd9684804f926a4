package run

import (
	"context"
	"errors"
	"fmt"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"garboard/tools/conformance/internal/gen"
	"garboard/tools/conformance/internal/notyet"
	"garboard/tools/conformance/internal/ops"
	"garboard/tools/conformance/internal/rows"
	"garboard/tools/conformance/internal/watch"
)

const (
	// progressInterval is how often the timed pair announces progress.
	progressInterval = 300 * time.Millisecond
	// quotaBytes is the timed pair's quota: a few large puts reach it.
	quotaBytes = 24 << 20
	// quotaPuts is how many puts of quotaValue must be enough.
	quotaPuts  = 40
	quotaValue = 1 << 20
)

// Learner adds a learner that never starts, and removes it: the rules around it need no second server.
func (r *Runner) Learner(ctx context.Context) error {
	learner := []string{"http://127.0.0.1:1"}
	steps := []ops.Op{
		clusterCall("MemberAdd", &pb.MemberAddRequest{PeerURLs: learner, IsLearner: true}),
		clusterCall("MemberAdd", &pb.MemberAddRequest{PeerURLs: learner, IsLearner: true}),
		clusterCall("MemberAdd", &pb.MemberAddRequest{PeerURLs: []string{"http://127.0.0.1:2"}, IsLearner: true}),
		clusterCall("MemberList", &pb.MemberListRequest{Linearizable: true}),
		clusterCall("MemberPromote", &pb.MemberPromoteRequest{ID: ops.LearnerMember}),
		clusterCall("MemberUpdate", &pb.MemberUpdateRequest{ID: ops.LearnerMember, PeerURLs: []string{"http://127.0.0.1:3"}}),
		clusterCall("MemberRemove", &pb.MemberRemoveRequest{ID: ops.LearnerMember}),
		clusterCall("MemberRemove", &pb.MemberRemoveRequest{ID: ops.LearnerMember}),
		clusterCall("MemberList", &pb.MemberListRequest{Linearizable: true}),
	}
	for _, op := range steps {
		if err := r.Step(ctx, gen.Step{Op: op}); err != nil {
			return err
		}
	}
	return nil
}

// Restarts kills and stops the servers, and compares what they have kept: keys at old and new revisions, hashes, leases
// with their keys, members and alarms, and what watches find in the past. A short random run follows each.
func (r *Runner) Restarts(ctx context.Context, seed uint64) error {
	for i, kill := range []bool{true, false} {
		// A compaction that is not written down as ended goes on after a restart, and its hash is kept where another's
		// would be forgotten. Only a physical one is written down before it is answered.
		if err := r.steps(ctx, kvCall("Put", &pb.PutRequest{Key: []byte("restart")})); err != nil {
			return err
		}
		if err := r.steps(ctx, kvCall("Compact", &pb.CompactionRequest{Revision: r.world.Revision, Physical: true})); err != nil {
			return err
		}
		raise := maintenanceCall("Alarm", &pb.AlarmRequest{
			Action: pb.AlarmRequest_ACTIVATE, MemberID: ops.SelfMember, Alarm: pb.AlarmType_NOSPACE})
		lower := maintenanceCall("Alarm", &pb.AlarmRequest{
			Action: pb.AlarmRequest_DEACTIVATE, MemberID: ops.SelfMember, Alarm: pb.AlarmType_NOSPACE})
		if err := r.Step(ctx, raise); err != nil {
			return err
		}
		r.Phase = fmt.Sprintf("restart-%d", i+1)
		if err := r.Restart(ctx, kill); err != nil {
			return err
		}
		if err := r.steps(ctx, append(r.kept(), lower)...); err != nil {
			return err
		}
		if kill {
			r.table.Hit("restart/after-kill")
		} else {
			r.table.Hit("restart/after-stop")
		}
		if err := r.Random(ctx, seed+uint64(i)+1, randomAfterRestart, func(int) {}); err != nil {
			return err
		}
	}
	return nil
}

// randomAfterRestart is how many random operations show that a server goes on as before.
const randomAfterRestart = 300

// kept asks for everything that a restart must not change.
func (r *Runner) kept() []gen.Step {
	all := func(revision int64) *pb.RangeRequest {
		return &pb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}, Revision: revision}
	}
	low := max(r.world.Compacted, 1)
	steps := []gen.Step{
		kvCall("Range", all(0)),
		maintenanceCall("Alarm", &pb.AlarmRequest{}),
		maintenanceCall("Status", &pb.StatusRequest{}),
		leaseCall("LeaseLeases", &pb.LeaseLeasesRequest{}),
		kvCall("Put", &pb.PutRequest{Key: []byte("refused")}),
		clusterStep("MemberList", &pb.MemberListRequest{Linearizable: true}),
		{Watch: func(t *watch.Tracker) {
			req := &pb.WatchCreateRequest{Key: []byte{0}, RangeEnd: []byte{0}, StartRevision: low, PrevKv: true}
			t.Create(0, req, r.world.Revision, r.world.Compacted)
			t.Barrier(r.world.Revision)
		}},
	}
	const samples = 7
	for i := range int64(samples) {
		revision := low + (r.world.Revision-low)*i/(samples-1)
		steps = append(steps, kvCall("Range", all(revision)),
			maintenanceCall("HashKV", &pb.HashKVRequest{Revision: revision}))
	}
	if low > 1 {
		steps = append(steps, kvCall("Range", all(low-1)))
	}
	for _, id := range append(append([]int64(nil), r.world.Leases...), r.world.Picked...) {
		steps = append(steps, leaseCall("LeaseTimeToLive", &pb.LeaseTimeToLiveRequest{ID: id, Keys: true}))
	}
	return steps
}

func clusterStep(method string, req ops.Message) gen.Step {
	return gen.Step{Op: clusterCall(method, req)}
}

func clusterCall(method string, req ops.Message) ops.Op {
	return &ops.Unary{Method: "/etcdserverpb.Cluster/" + method, Req: req}
}

// TimedPhases runs what takes seconds or special flags: expiry of leases, periodic progress, the quota.
func TimedPhases(ctx context.Context, dir string, oracle, subject Target, table *rows.Table, results *Results,
	notYet *notyet.List, keepGoing bool) (err error) {
	pair, err := StartPair(ctx, dir, oracle, subject,
		"--watch-progress-notify-interval="+progressInterval.String(),
		fmt.Sprintf("--quota-backend-bytes=%d", quotaBytes))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pair.Stop()) }()
	r, err := NewRunner(pair, table, results, notYet)
	if err != nil {
		return err
	}
	defer r.Close()
	r.KeepGoing, r.Phase = keepGoing, "timed"
	for _, phase := range []func(context.Context) error{r.periodicProgress, r.expiry, r.quota} {
		if err := phase(ctx); err != nil {
			return err
		}
	}
	return nil
}

// AuthPhase plays users, roles and permissions on a pair of its own.
func AuthPhase(ctx context.Context, dir string, oracle, subject Target, table *rows.Table, results *Results,
	notYet *notyet.List, seed uint64, n int, keepGoing bool) (err error) {
	// The least cost of bcrypt makes many logins possible.
	pair, err := StartPair(ctx, dir, oracle, subject, "--bcrypt-cost=4")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pair.Stop()) }()
	r, err := NewRunner(pair, table, results, notYet)
	if err != nil {
		return err
	}
	defer r.Close()
	r.KeepGoing, r.Phase, r.auth = keepGoing, "auth", true
	a := gen.NewAuth(seed, func() int64 { return r.world.Revision })
	for range n {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := r.Step(ctx, gen.Step{Op: a.Next()}); err != nil {
			return err
		}
	}
	return nil
}

func kvCall(method string, req ops.Message) gen.Step {
	return gen.Step{Op: &ops.Unary{Method: "/etcdserverpb.KV/" + method, Req: req}}
}

func leaseCall(method string, req ops.Message) gen.Step {
	return gen.Step{Op: &ops.Unary{Method: "/etcdserverpb.Lease/" + method, Req: req}}
}

func maintenanceCall(method string, req ops.Message) gen.Step {
	return gen.Step{Op: &ops.Unary{Method: "/etcdserverpb.Maintenance/" + method, Req: req}}
}

func (r *Runner) steps(ctx context.Context, steps ...gen.Step) error {
	for _, s := range steps {
		if err := r.Step(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

// periodicProgress expects that idle watches which ask for it hear of progress, and others do not.
func (r *Runner) periodicProgress(ctx context.Context) error {
	all := func(notify bool) *pb.WatchCreateRequest {
		return &pb.WatchCreateRequest{Key: []byte{0}, RangeEnd: []byte{0}, ProgressNotify: notify}
	}
	return r.steps(ctx,
		kvCall("Put", &pb.PutRequest{Key: []byte("a")}),
		gen.Step{Watch: func(t *watch.Tracker) { t.Create(0, all(true), r.world.Revision, -1) }},
		gen.Step{Watch: func(t *watch.Tracker) { t.Create(0, all(false), r.world.Revision, -1) }},
		kvCall("Put", &pb.PutRequest{Key: []byte("a")}),
		gen.Step{Watch: func(t *watch.Tracker) { t.AwaitPeriodicProgress(0, r.world.Revision) }},
		gen.Step{Watch: func(t *watch.Tracker) { t.Barrier(r.world.Revision) }},
	)
}

const (
	expiringLease = 90001
	renewedLease  = 90002
	// expiryLimit is when a lease of two seconds must be gone, with etcd's retry and revoke intervals.
	expiryLimit = 10 * time.Second
)

// expiry expects that the keys of a lease vanish together, in one revision, with delete events, and that another lease
// of the same term stays while it is renewed.
func (r *Runner) expiry(ctx context.Context) error {
	put := func(key string, lease int64) gen.Step {
		return kvCall("Put", &pb.PutRequest{Key: []byte(key), Value: []byte("v"), Lease: lease})
	}
	list := &pb.RangeRequest{Key: []byte("x/"), RangeEnd: []byte("x0")}
	err := r.steps(ctx,
		gen.Step{Watch: func(t *watch.Tracker) {
			t.Create(1, &pb.WatchCreateRequest{Key: []byte("x/"), RangeEnd: []byte("x0"), PrevKv: true}, r.world.Revision, -1)
		}},
		leaseCall("LeaseGrant", &pb.LeaseGrantRequest{ID: renewedLease, TTL: 3}),
		put("x/renewed", renewedLease),
		leaseCall("LeaseGrant", &pb.LeaseGrantRequest{ID: expiringLease, TTL: 2}),
		put("x/2", expiringLease), put("x/1", expiringLease), put("x/3", expiringLease),
		put("x/stays", expiringLease), put("x/stays", 0),
	)
	if err != nil {
		return err
	}
	before := r.world.Revision
	if err := r.awaitExpiry(ctx, list, before); err != nil {
		return err
	}
	r.table.Hit("M8/expiry")
	return r.steps(ctx,
		kvCall("Range", list),
		leaseCall("LeaseTimeToLive", &pb.LeaseTimeToLiveRequest{ID: expiringLease, Keys: true}),
		gen.Step{Op: &ops.KeepAlive{ID: expiringLease}},
		gen.Step{Op: &ops.KeepAlive{ID: renewedLease}},
		leaseCall("LeaseRevoke", &pb.LeaseRevokeRequest{ID: expiringLease}),
		leaseCall("LeaseRevoke", &pb.LeaseRevokeRequest{ID: renewedLease}),
		gen.Step{Watch: func(t *watch.Tracker) { t.Barrier(r.world.Revision) }},
		maintenanceCall("HashKV", &pb.HashKVRequest{}),
	)
}

// awaitExpiry polls both servers until the store has moved on, renewing the other lease meanwhile.
func (r *Runner) awaitExpiry(ctx context.Context, list *pb.RangeRequest, before int64) error {
	op := &ops.Unary{Method: "/etcdserverpb.KV/Range", Req: list}
	deadline := time.Now().Add(expiryLimit)
	for time.Now().Before(deadline) {
		oracle, subject := r.both(ctx, op)
		if !oracle.OK() || !subject.OK() {
			return fmt.Errorf("range while leases expire: %s, %s", oracle.Text, subject.Text)
		}
		a, b := oracle.Replies[0].(*pb.RangeResponse), subject.Replies[0].(*pb.RangeResponse)
		if a.Header.Revision > before && b.Header.Revision > before {
			r.world.Observe(op, &oracle)
			return nil
		}
		r.both(ctx, &ops.KeepAlive{ID: renewedLease})
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
	r.results.Differ("a lease of 2 s did not expire on both servers within "+expiryLimit.String(), "", "")
	return nil
}

// quota fills both servers until each refuses: when is each one's own, because size is. What follows is the same.
func (r *Runner) quota(ctx context.Context) error {
	for _, side := range []string{"oracle", "subject"} {
		if !r.fill(ctx, side) {
			r.results.Begin(r.Phase, r.operation)
			r.results.Differ(fmt.Sprintf("%s: %d puts of 1 MiB do not reach a quota of %d bytes", side, quotaPuts, quotaBytes), "", "")
			r.results.End()
			return nil
		}
	}
	r.table.Hit("M2/quota-reached")
	r.revisionsDiffer = true
	if err := r.awaitAlarm(ctx); err != nil {
		return err
	}
	probe := []byte("q/probe")
	return r.steps(ctx,
		maintenanceCall("Alarm", &pb.AlarmRequest{}),
		maintenanceCall("Status", &pb.StatusRequest{}),
		kvCall("Range", &pb.RangeRequest{Key: probe}),
		// Any write, however small, is refused now: the alarm is raised.
		kvCall("Put", &pb.PutRequest{Key: probe}),
		leaseCall("LeaseGrant", &pb.LeaseGrantRequest{ID: 1, TTL: 100}),
	)
}

// alarmLimit is how long the alarm of a reached quota may take: it goes through the log after the refusal is answered.
const alarmLimit = 5 * time.Second

// awaitAlarm waits until both servers have raised an alarm, or the limit has passed; what they have raised then is
// compared by the caller.
func (r *Runner) awaitAlarm(ctx context.Context) error {
	op := maintenanceCall("Alarm", &pb.AlarmRequest{}).Op
	raised := func(o ops.Outcome) bool {
		return o.OK() && len(o.Replies[0].(*pb.AlarmResponse).Alarms) > 0
	}
	for deadline := time.Now().Add(alarmLimit); time.Now().Before(deadline); {
		if oracle, subject := r.both(ctx, op); raised(oracle) && raised(subject) {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
	return nil
}

// fill puts until one server answers that there is no space.
func (r *Runner) fill(ctx context.Context, name string) bool {
	side := r.pair.Oracle
	if name == "subject" {
		side = r.pair.Subject
	}
	for i := range quotaPuts {
		value := make([]byte, quotaValue)
		// A store that compresses must not be able to.
		for j := range value {
			value[j] = byte(j*7919>>3) ^ byte(i*31+j>>8)
		}
		op := &ops.Unary{
			Method: "/etcdserverpb.KV/Put",
			Req:    &pb.PutRequest{Key: []byte(fmt.Sprintf("q/%d", i)), Value: value},
		}
		if out := op.Run(ctx, side); !out.OK() {
			return out.Text == "etcdserver: mvcc: database space exceeded"
		}
	}
	return false
}
