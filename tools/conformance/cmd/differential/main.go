// Command differential applies the same operations to a real etcd and to the server under test, and compares every
// answer, event, code and error text.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"garboard/tools/conformance/internal/notyet"
	"garboard/tools/conformance/internal/rows"
	"garboard/tools/conformance/internal/run"
)

type options struct {
	ops             int
	seed            uint64
	oracle, subject run.Target
	keepGoing       bool
	show            int
	report, trace   string
	dir             string
	keepDir         bool
	noPhases        bool
	notYetFile      string
	notYet          *notyet.List
}

// list is a flag that may be given several times, each holding arguments separated by spaces.
type list struct{ values *[]string }

func (l list) String() string { return "" }

func (l list) Set(value string) error {
	*l.values = append(*l.values, strings.Fields(value)...)
	return nil
}

func parse() options {
	var o options
	flag.IntVar(&o.ops, "ops", 3000, "number of operations")
	flag.Uint64Var(&o.seed, "seed", uint64(time.Now().UnixNano()), "seed of the random choices")
	flag.StringVar(&o.oracle.Binary, "oracle", "bin/etcd", "the real etcd")
	flag.StringVar(&o.subject.Binary, "subject", "bin/etcd", "the server under test")
	flag.StringVar(&o.oracle.Endpoint, "oracle-endpoint", "", "an empty running etcd to use, as host:port")
	flag.StringVar(&o.subject.Endpoint, "subject-endpoint", "", "an empty running server to use, as host:port")
	flag.Var(list{&o.subject.Args}, "subject-args", "more arguments for the server under test")
	flag.Var(list{&o.oracle.Args}, "oracle-args", "more arguments for the real etcd")
	flag.BoolVar(&o.keepGoing, "keep-going", false, "count differences instead of stopping at the first")
	flag.IntVar(&o.show, "show", 20, "how many differences to print")
	flag.StringVar(&o.report, "report", "", "file that receives the differences and the table of rows as well")
	flag.StringVar(&o.trace, "trace", "", "file that receives every operation with the real etcd's answer")
	flag.StringVar(&o.dir, "dir", "", "parent of the servers' folders (a temporary one by default)")
	flag.BoolVar(&o.keepDir, "keep-dir", false, "leave the servers' folders")
	flag.BoolVar(&o.noPhases, "no-phases", false, "skip the phases that need servers with special flags or seconds of time")
	flag.StringVar(&o.notYetFile, "not-yet", "", "list of what the server under test does not offer yet")
	flag.Parse()
	return o
}

func main() {
	o := parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ok, err := differential(ctx, o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "differential:", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

func differential(ctx context.Context, o options) (bool, error) {
	out := io.Writer(os.Stdout)
	if o.report != "" {
		file, err := os.Create(o.report)
		if err != nil {
			return false, err
		}
		defer file.Close()
		out = io.MultiWriter(os.Stdout, file)
	}
	notYet, err := notyet.Read(o.notYetFile)
	if err != nil {
		return false, err
	}
	o.notYet = notYet
	dir, err := os.MkdirTemp(o.dir, "differential-")
	if err != nil {
		return false, err
	}
	if !o.keepDir {
		defer os.RemoveAll(dir)
	}
	// The oracle's durability is not what is tested.
	o.oracle.Args = append(o.oracle.Args, "--unsafe-no-fsync")

	table := rows.New()
	results := run.NewResults(out, o.seed, o.show)
	if o.trace != "" {
		file, err := os.Create(o.trace)
		if err != nil {
			return false, err
		}
		defer file.Close()
		results.Trace = file
	}
	fmt.Fprintf(out, "seed %d, %d operations\n", o.seed, o.ops)
	err = phases(ctx, o, dir, table, results, out)
	missed := finish(o, table, err, out)
	if err != nil {
		fmt.Fprintln(out, "stopped:", err)
	}
	if kinds := results.Kinds(); kinds != "" {
		fmt.Fprintf(out, "differences by kind:\n%s\n", kinds)
	}
	if results.Absent > 0 {
		fmt.Fprintf(out, "%d calls to what is not there yet were not compared\n", results.Absent)
	}
	failed := results.Failed + missed
	fmt.Fprintf(out, "%d passed, %d failed\n", results.Passed, failed)
	return failed == 0 && err == nil, nil
}

func phases(ctx context.Context, o options, dir string, table *rows.Table, results *run.Results, out io.Writer) error {
	start := time.Now()
	if err := mainPhase(ctx, o, dir, table, results, out); err != nil {
		return err
	}
	if o.noPhases || o.oracle.Endpoint != "" || o.subject.Endpoint != "" {
		return nil
	}
	home, err := subdir(dir, "timed")
	if err != nil {
		return err
	}
	if err := run.TimedPhases(ctx, home, o.oracle, o.subject, table, results, o.notYet, o.keepGoing); err != nil {
		return err
	}
	if !o.notYet.Phase("auth") {
		if err := authPhase(ctx, o, dir, table, results); err != nil {
			return err
		}
	}
	fmt.Fprintf(out, "all phases in %v\n", time.Since(start).Round(time.Millisecond))
	return nil
}

// The auth phase has a share of the operations, but at least so many that every row is met.
const (
	authShare  = 5
	minAuthOps = 1500
)

func authPhase(ctx context.Context, o options, dir string, table *rows.Table, results *run.Results) error {
	home, err := subdir(dir, "auth")
	if err != nil {
		return err
	}
	authOps := max(o.ops/authShare, minAuthOps)
	return run.AuthPhase(ctx, home, o.oracle, o.subject, table, results, o.notYet, o.seed, authOps, o.keepGoing)
}

func subdir(dir, name string) (string, error) {
	path := filepath.Join(dir, name)
	return path, os.Mkdir(path, 0o700)
}

func mainPhase(ctx context.Context, o options, dir string, table *rows.Table, results *run.Results,
	out io.Writer) (err error) {
	home, err := subdir(dir, "main")
	if err != nil {
		return err
	}
	pair, err := run.StartPair(ctx, home, o.oracle, o.subject)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pair.Stop()) }()
	runner, err := run.NewRunner(pair, table, results, o.notYet)
	if err != nil {
		return err
	}
	defer runner.Close()
	runner.KeepGoing, runner.Phase = o.keepGoing, "absent"
	if err := runner.AbsentMethods(ctx); err != nil {
		return err
	}
	runner.Phase = "random"
	start := time.Now()
	if err := runner.Random(ctx, o.seed, o.ops, progress(o.ops)); err != nil {
		return err
	}
	took := time.Since(start)
	fmt.Fprintf(out, "%d operations in %v: %.0f/s\n", o.ops, took.Round(time.Millisecond), float64(o.ops)/took.Seconds())
	if !o.notYet.Phase("learner") {
		if err := runner.Learner(ctx); err != nil {
			return err
		}
	}
	if o.noPhases || o.oracle.Endpoint != "" || o.subject.Endpoint != "" {
		return nil
	}
	return runner.Restarts(ctx, o.seed)
}

// progress prints a line now and then to a terminal's error output.
func progress(total int) func(int) {
	every := max(total/10, 1000)
	start := time.Now()
	return func(done int) {
		if done%every == 0 {
			fmt.Fprintf(os.Stderr, "%d of %d, %.0f/s\n", done, total, float64(done)/time.Since(start).Seconds())
		}
	}
}

// enoughOps is the length from which on a run must have hit every row.
const enoughOps = 3000

// finish prints the table and gives back how many rows were missed, or hit although they are listed as out of reach.
func finish(o options, table *rows.Table, err error, out io.Writer) int {
	fmt.Fprintf(out, "\nrows hit:\n%s\n", table)
	if err != nil || o.noPhases || o.ops < enoughOps || o.oracle.Endpoint != "" || o.subject.Endpoint != "" {
		return 0
	}
	missed := table.Missed()
	wrong := 0
	for _, row := range missed {
		if !o.notYet.Row(row) {
			fmt.Fprintln(out, "never hit:", row)
			wrong++
		}
	}
	for _, row := range o.notYet.Rows() {
		if !slices.Contains(missed, row) {
			fmt.Fprintln(out, "listed as not there yet, but hit or unknown:", row)
			wrong++
		}
	}
	return wrong
}
