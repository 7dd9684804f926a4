// Package notyet reads the list of what the server under test does not offer yet by design. What is on the list is not
// compared; instead it must be absent, so that whatever comes to life fails the run until its entry is removed.
package notyet

import (
	"bufio"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
)

// List is what is not there yet. The zero value is an empty list.
type List struct {
	methods, phases, rows, commands, paths map[string]bool
}

// phaseNeeds names the methods of which one must be absent for a phase to be left out.
var phaseNeeds = map[string]string{
	"learner": "/etcdserverpb.Cluster/",
	"auth":    "/etcdserverpb.Auth/",
}

// Read reads a list; no name is an empty list. Each line is `KIND NAME # REASON`, blank ones and comments aside:
//
//	method  a full gRPC method name, which must answer Unimplemented
//	phase   a phase of `differential` that is not played while a method that it needs is absent
//	row     a row of semantics that cannot be hit without them, and must not be
//	command a group of `ctl`, or `GROUP: COMMAND`, of which the first, or the only, command must fail as Unimplemented
//	path    the beginning of HTTP paths that `gateway` must find absent
func Read(name string) (*List, error) {
	l := &List{
		methods: map[string]bool{}, phases: map[string]bool{}, rows: map[string]bool{}, commands: map[string]bool{},
		paths: map[string]bool{},
	}
	if name == "" {
		return l, nil
	}
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	for number := 1; lines.Scan(); number++ {
		if err := l.add(strings.TrimSpace(lines.Text())); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", name, number, err)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	return l, l.check(name)
}

func (l *List) add(line string) error {
	entry, reason, _ := strings.Cut(line, "#")
	entry = strings.TrimSpace(entry)
	if entry == "" {
		return nil
	}
	if strings.TrimSpace(reason) == "" {
		return fmt.Errorf("%q has no reason", entry)
	}
	kind, name, _ := strings.Cut(entry, " ")
	into := map[string]map[string]bool{
		"method": l.methods, "phase": l.phases, "row": l.rows, "command": l.commands, "path": l.paths,
	}[kind]
	name = strings.TrimSpace(name)
	switch {
	case into == nil:
		return fmt.Errorf("%q is no kind of entry", kind)
	case name == "":
		return fmt.Errorf("an entry of kind %q without a name", kind)
	case into[name]:
		return fmt.Errorf("%q is there twice", entry)
	}
	into[name] = true
	return nil
}

// check finds phases that nothing excuses any more.
func (l *List) check(name string) error {
	for phase := range l.phases {
		needs, known := phaseNeeds[phase]
		if !known {
			return fmt.Errorf("%s: no phase %q can be left out", name, phase)
		}
		absent := func(method string) bool { return strings.HasPrefix(method, needs) }
		if !slices.ContainsFunc(l.Methods(), absent) {
			return fmt.Errorf("%s: the phase %q needs no absent method any more: remove it", name, phase)
		}
	}
	return nil
}

// Methods lists the absent methods.
func (l *List) Methods() []string { return slices.Sorted(maps.Keys(l.methods)) }

// Method tells whether a gRPC method is absent.
func (l *List) Method(name string) bool { return l.methods[name] }

// Phase tells whether a phase is left out.
func (l *List) Phase(name string) bool { return l.phases[name] }

// Row tells whether a row cannot be hit.
func (l *List) Row(name string) bool { return l.rows[name] }

// Rows lists the rows that cannot be hit.
func (l *List) Rows() []string { return slices.Sorted(maps.Keys(l.rows)) }

// Group tells whether a whole group of commands is left out.
func (l *List) Group(name string) bool { return l.commands[name] }

// Command tells whether one command of a group is left out.
func (l *List) Command(group, command string) bool { return l.commands[group+": "+command] }

// Path tells whether an HTTP path is absent.
func (l *List) Path(path string) bool {
	for prefix := range l.paths {
		if strings.HasPrefix(path, prefix) {
			return true
		}
	}
	return false
}

// Absent tells whether a gRPC status is that of a method which is not there.
func Absent(code codes.Code) bool { return code == codes.Unimplemented }
