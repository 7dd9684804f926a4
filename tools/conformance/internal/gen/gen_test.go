package gen

import (
	"testing"

	"garboard/tools/conformance/internal/world"
)

// play runs a generator without servers and counts how often each scenario begins.
func play(seed uint64, steps int) map[string]int {
	g := New(seed, steps, world.New(), 3)
	begun := map[string]int{}
	for i := range g.scenarios {
		original := g.scenarios[i].steps
		name := g.scenarios[i].name
		g.scenarios[i].steps = func() []func() Step {
			begun[name]++
			return original()
		}
	}
	for range steps {
		g.Next()
	}
	return begun
}

func TestEveryScenarioIsPlayedInThreeThousandSteps(t *testing.T) {
	for seed := range uint64(20) {
		begun := play(seed, 3000)
		for _, s := range New(seed, 3000, world.New(), 3).scenarios {
			if begun[s.name] == 0 {
				t.Errorf("seed %d: %q was never played", seed, s.name)
			}
		}
	}
}

func TestTheSameSeedChoosesTheSameOperations(t *testing.T) {
	a, b := New(7, 2000, world.New(), 3), New(7, 2000, world.New(), 3)
	for i := range 2000 {
		x, y := a.Next(), b.Next()
		if (x.Op == nil) != (y.Op == nil) || x.Name != y.Name {
			t.Fatalf("step %d differs in kind", i)
		}
		if x.Op != nil && x.Op.Describe() != y.Op.Describe() {
			t.Fatalf("step %d: %s and %s", i, x.Op.Describe(), y.Op.Describe())
		}
	}
}
