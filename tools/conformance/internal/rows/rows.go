// Package rows counts how often each row of the table of etcd's semantics was exercised.
package rows

import (
	"fmt"
	"sort"
	"strings"
	"sync"
)

// Table counts hits by row name, `M4/sort-quirk`.
type Table struct {
	mu     sync.Mutex
	counts map[string]int
}

// New has every known row at zero.
func New() *Table {
	t := &Table{counts: map[string]int{}}
	for _, row := range known {
		t.counts[row] = 0
	}
	return t
}

// Hit counts one row. A row that is not in the list is a mistake in this program.
func (t *Table) Hit(row string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.counts[row]; !ok {
		panic("unknown row " + row)
	}
	t.counts[row]++
}

// HitIf counts a row under a condition.
func (t *Table) HitIf(holds bool, row string) {
	if holds {
		t.Hit(row)
	}
}

// Missed lists the rows at zero.
func (t *Table) Missed() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var missed []string
	for row, n := range t.counts {
		if n == 0 {
			missed = append(missed, row)
		}
	}
	sort.Strings(missed)
	return missed
}

// String is the table, one row a line.
func (t *Table) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var names []string
	width := 0
	for row := range t.counts {
		names = append(names, row)
		width = max(width, len(row))
	}
	sort.Strings(names)
	var b strings.Builder
	for _, row := range names {
		fmt.Fprintf(&b, "%-*s %8d\n", width, row, t.counts[row])
	}
	return b.String()
}
