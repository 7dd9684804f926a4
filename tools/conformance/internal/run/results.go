package run

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
)

// Results counts operations and keeps the first differences.
type Results struct {
	mu             sync.Mutex
	out            io.Writer
	seed           uint64
	shown          int
	Passed, Failed int
	// Absent counts the calls to what is not there yet, which were not compared.
	Absent int
	// kinds counts differences by the first word of what differed.
	kinds map[string]int
	// failedNow is set when the operation in hand has differed.
	failedNow bool
	// Trace receives every operation with the oracle's answer, if it is set.
	Trace     io.Writer
	phase     string
	operation int
}

// NewResults prints at most shown differences to out.
func NewResults(out io.Writer, seed uint64, shown int) *Results {
	return &Results{out: out, seed: seed, shown: shown, kinds: map[string]int{}}
}

// Begin starts an operation of a phase.
func (r *Results) Begin(phase string, operation int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.phase, r.operation, r.failedNow = phase, operation, false
}

// End counts the operation.
func (r *Results) End() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failedNow {
		r.Failed++
	} else {
		r.Passed++
	}
}

// EndAbsent counts a call to what is not there yet: a failure only if it was there.
func (r *Results) EndAbsent() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failedNow {
		r.Failed++
	} else {
		r.Absent++
	}
}

// FailedNow tells whether the operation in hand has differed.
func (r *Results) FailedNow() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failedNow
}

// Differ reports a difference in the operation in hand.
func (r *Results) Differ(what, oracle, subject string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failedNow = true
	kind, _, _ := strings.Cut(what, " ")
	r.kinds[kind]++
	if r.shown == 0 {
		return
	}
	r.shown--
	fmt.Fprintf(r.out, "\n== difference: seed %d, %s operation %d\n%s\n-- oracle\n%s\n-- subject\n%s\n",
		r.seed, r.phase, r.operation, what, indent(oracle), indent(subject))
	if r.shown == 0 {
		fmt.Fprintf(r.out, "\n(further differences are only counted)\n")
	}
}

// Kinds lists how many differences there were by the first word of what differed.
func (r *Results) Kinds() string {
	var lines []string
	for _, kind := range slices.Sorted(maps.Keys(r.kinds)) {
		lines = append(lines, fmt.Sprintf("%-20s %8d\n", kind, r.kinds[kind]))
	}
	return strings.Join(lines, "")
}

// Note writes an operation and the oracle's answer to the trace.
func (r *Results) Note(what, answer string) {
	if r.Trace != nil {
		fmt.Fprintf(r.Trace, "%s %d: %s\n%s\n", r.phase, r.operation, what, indent(answer))
	}
}

func indent(text string) string {
	const maxLines = 60
	lines := strings.Split(text, "\n")
	if len(lines) > maxLines {
		lines = append(lines[:maxLines], fmt.Sprintf("… %d more lines", len(lines)-maxLines))
	}
	return "    " + strings.Join(lines, "\n    ")
}
