// Package gen chooses the operations: random ones, and between them scenarios that lead to the rare rows.
package gen

import (
	"math/rand/v2"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"

	"garboard/tools/conformance/internal/ops"
	"garboard/tools/conformance/internal/watch"
	"garboard/tools/conformance/internal/world"
)

// Step is the next thing to do on both servers.
type Step struct {
	// Op is a call whose answers are compared; nil for a step on watches.
	Op ops.Op
	// Watch works on the watches.
	Watch func(*watch.Tracker)
	// Name describes a watch step.
	Name string
}

// Generator chooses steps by its own seeded dice and by the world.
type Generator struct {
	dice  *rand.Rand
	world *world.World
	// queue holds the rest of a scenario. Each step is made when its turn comes, from the world of that moment.
	queue []func() Step
	// scenarios are played in a shuffled order, one each scenarioEvery steps.
	scenarios     []scenario
	nextScenario  int
	scenarioEvery int
	untilScenario int
	watchStreams  int
	// tombstoneAtCompacted is set when a scenario has placed a compaction on a delete.
	tombstoneAtCompacted bool
	// revisionNow is set where there is no world.
	revisionNow func() int64
}

// scenarioRounds is how often a run plays each scenario at least.
const scenarioRounds = 2

// scenarioSpacing bounds how rare scenarios get in a long run.
const scenarioSpacing = 80

// New makes a generator whose choices follow from the seed and the world alone.
func New(seed uint64, steps int, w *world.World, watchStreams int) *Generator {
	g := &Generator{dice: rand.New(rand.NewPCG(seed, seed^0x9e3779b97f4a7c15)), world: w, watchStreams: watchStreams}
	g.scenarios = g.allScenarios()
	g.dice.Shuffle(len(g.scenarios), func(i, j int) {
		g.scenarios[i], g.scenarios[j] = g.scenarios[j], g.scenarios[i]
	})
	total := 0
	for _, s := range g.scenarios {
		total += s.length
	}
	free := max(steps-scenarioRounds*total, 0)
	g.scenarioEvery = min(max(free/(scenarioRounds*len(g.scenarios)+1), 0), scenarioSpacing)
	g.untilScenario = g.scenarioEvery
	return g
}

// Next is the next step.
func (g *Generator) Next() Step {
	if len(g.queue) > 0 {
		// A step may put another in front, so this one leaves the queue first.
		step := g.queue[0]
		g.queue = g.queue[1:]
		return step()
	}
	if g.untilScenario <= 0 {
		g.untilScenario = g.scenarioEvery
		s := g.scenarios[g.nextScenario]
		g.nextScenario = (g.nextScenario + 1) % len(g.scenarios)
		g.queue = s.steps()
		return g.Next()
	}
	g.untilScenario--
	return g.random()
}

func (g *Generator) random() Step {
	switch n := g.dice.IntN(1000); {
	case n < 270:
		return call("KV/Put", g.put())
	case n < 500:
		return call("KV/Range", g.rangeRequest())
	case n < 560:
		return Step{Op: &ops.RangeStream{Req: g.streamRequest()}}
	case n < 640:
		return call("KV/DeleteRange", g.deleteRange())
	case n < 800:
		return call("KV/Txn", g.txn(0, g.revision()))
	case n < 806:
		return g.compact()
	case n < 870:
		return g.lease()
	case n < 940:
		return g.watchStep()
	case n < 980:
		return call("Maintenance/HashKV", &pb.HashKVRequest{Revision: g.hashRevision()})
	default:
		return g.other()
	}
}

func (g *Generator) other() Step {
	switch g.dice.IntN(8) {
	case 0:
		return call("Maintenance/Status", &pb.StatusRequest{})
	case 1:
		return call("Cluster/MemberList", &pb.MemberListRequest{Linearizable: g.chance(50)})
	case 2:
		return call("Maintenance/Hash", &pb.HashRequest{})
	case 3:
		return call("Maintenance/Alarm", &pb.AlarmRequest{Action: pb.AlarmRequest_GET, Alarm: pb.AlarmType(g.dice.IntN(3))})
	case 4:
		return Step{Op: &ops.Health{Service: pick(g, []string{"", "", "etcdserverpb.KV", "no.such"})}}
	case 5:
		return g.fuzz()
	case 6:
		if g.chance(10) {
			return call("Maintenance/Defragment", &pb.DefragmentRequest{})
		}
		return g.fuzz()
	default:
		if g.chance(10) {
			return Step{Op: ops.Snapshot{}}
		}
		return g.fuzz()
	}
}

// call is a well-formed unary call to an etcd service.
func call(method string, req proto.Message) Step {
	return Step{Op: &ops.Unary{Method: "/etcdserverpb." + method, Req: req}}
}

func (g *Generator) chance(percent int) bool { return g.dice.IntN(100) < percent }

func pick[T any](g *Generator, from []T) T { return from[g.dice.IntN(len(from))] }

func (g *Generator) between(low, high int64) int64 {
	if high <= low {
		return low
	}
	return low + g.dice.Int64N(high-low+1)
}

// revision is a revision to read at: mostly the newest, else past, compacted, future or negative.
func (g *Generator) revision() int64 {
	w := g.world
	switch n := g.dice.IntN(100); {
	case n < 55:
		return 0
	case n < 80:
		return g.between(max(w.Compacted, 1), w.Revision)
	case n < 84:
		return max(w.Compacted, 0)
	case n < 88:
		return g.between(1, max(w.Compacted, 1))
	case n < 91:
		return w.Revision
	case n < 95:
		return w.Revision + g.between(1, 50)
	case n < 97:
		return -g.between(1, 3)
	default:
		return pick(g, []int64{1, 2, 1<<63 - 1, -1 << 63})
	}
}

// hashRevision prefers revisions where HashKV has something to say.
func (g *Generator) hashRevision() int64 {
	if g.chance(30) {
		return g.between(max(g.world.Compacted, 1), g.world.Revision)
	}
	return g.revision()
}

// compact never asks for revision 0 before the first compaction: etcd takes it and from then on answers HashKV at 0,
// which stands for the newest revision, with the hash of nothing.
func (g *Generator) compact() Step {
	w := g.world
	revision := g.between(max(w.Compacted, 0)+1, w.Revision)
	switch n := g.dice.IntN(10); {
	case n < 1 && w.Compacted > 0:
		revision = g.between(0, w.Compacted)
	case n < 2:
		revision = w.Revision + g.between(1, 10)
	case n < 4:
		revision = w.Revision
	}
	return call("KV/Compact", &pb.CompactionRequest{Revision: revision, Physical: g.chance(40)})
}

func watchCall(name string, f func(*watch.Tracker)) Step { return Step{Watch: f, Name: name} }

// Barrier waits for all watches.
func (g *Generator) barrier() Step {
	return watchCall("barrier", func(t *watch.Tracker) { t.Barrier(g.world.Revision) })
}
