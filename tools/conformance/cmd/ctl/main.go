// Command ctl runs the real etcdctl against a real etcd and against the server under test, and compares what it prints
// and how it exits, with ids, sizes and times masked.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"garboard/tools/conformance/internal/notyet"
	"garboard/tools/conformance/internal/run"
)

func main() {
	oracle := flag.String("oracle", "bin/etcd", "the real etcd")
	subject := flag.String("subject", "bin/etcd", "the server under test")
	subjectArgs := flag.String("subject-args", "", "more arguments for the server under test")
	ctl := flag.String("etcdctl", "bin/etcdctl", "the real etcdctl")
	long := flag.Bool("long", false, "also run check perf and check datascale, about two minutes")
	only := flag.String("only", "", "run only the cases whose group has this name")
	notYetFile := flag.String("not-yet", "", "list of what the server under test does not offer yet")
	verbose := flag.Bool("v", false, "print every command and its output")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	notYet, err := notyet.Read(*notYetFile)
	if err != nil {
		fmt.Fprintln(os.Stderr, "ctl:", err)
		os.Exit(1)
	}
	passed, failed, err := smoke(ctx, settings{
		oracle: run.Target{Binary: *oracle, Args: []string{"--unsafe-no-fsync"}},
		subject: run.Target{
			Binary: *subject, Args: strings.Fields(*subjectArgs),
		},
		ctl: *ctl, long: *long, only: *only, verbose: *verbose, notYet: notYet,
	})
	if err != nil {
		fmt.Println("stopped:", err)
		failed++
	}
	fmt.Printf("%d passed, %d failed\n", passed, failed)
	if failed > 0 {
		os.Exit(1)
	}
}

type settings struct {
	oracle, subject run.Target
	ctl, only       string
	long, verbose   bool
	notYet          *notyet.List
}

func smoke(ctx context.Context, s settings) (passed, failed int, err error) {
	ctl, err := filepath.Abs(s.ctl)
	if err != nil {
		return 0, 0, err
	}
	dir, err := os.MkdirTemp("", "ctl-")
	if err != nil {
		return 0, 0, err
	}
	defer os.RemoveAll(dir)
	for _, group := range groups {
		if s.only != "" && s.only != group.name || group.long && !s.long {
			continue
		}
		p, f, err := smokeGroup(ctx, s, ctl, filepath.Join(dir, group.name), group)
		if passed, failed = passed+p, failed+f; err != nil {
			return passed, failed, err
		}
	}
	return passed, failed, nil
}

// smokeGroup runs a group on fresh servers, so that what differs in one does not spoil the next.
func smokeGroup(ctx context.Context, s settings, ctl, dir string, group caseGroup) (passed, failed int, err error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return 0, 0, err
	}
	pair, err := run.StartPair(ctx, dir, s.oracle, s.subject)
	if err != nil {
		return 0, 0, err
	}
	defer pair.Stop()
	sides := [2]*target{newTarget(ctl, dir, pair.Oracle), newTarget(ctl, dir, pair.Subject)}
	for _, c := range group.cases {
		if err := ctx.Err(); err != nil {
			return passed, failed, err
		}
		wholeGroup := s.notYet.Group(group.name)
		listed := wholeGroup || s.notYet.Command(group.name, strings.Join(c.args, " "))
		switch {
		case listed && !absent(ctx, sides[1], group.name, c):
			failed++
		case listed:
		case compareCase(ctx, sides, group.name, c, s.verbose):
			passed++
		default:
			failed++
		}
		if wholeGroup {
			// What follows stands on the first command.
			break
		}
	}
	return passed, failed, nil
}

// absentSigns are what etcdctl prints where a gRPC method, or the path of the metrics, is not there.
var absentSigns = []string{"code = Unimplemented", "Could not read process_resident_memory_bytes"}

// absent runs a command that is not there yet on the subject alone.
func absent(ctx context.Context, subject *target, group string, c testCase) bool {
	c.ignoreOutput = false
	result := subject.run(ctx, c)
	for _, sign := range absentSigns {
		if strings.Contains(result, sign) {
			return true
		}
	}
	fmt.Printf("== %s: etcdctl %s: listed as not there yet, but it answers: remove the entry\n-- subject\n%s\n",
		group, strings.Join(c.args, " "), result)
	return false
}

// compareCase runs one case on both servers at once.
func compareCase(ctx context.Context, sides [2]*target, group string, c testCase, verbose bool) bool {
	var results [2]string
	done := make(chan int, len(sides))
	for i, side := range sides {
		go func() {
			results[i] = side.run(ctx, c)
			done <- i
		}()
	}
	for range sides {
		<-done
	}
	same := results[0] == results[1] && (c.want == "" || strings.Contains(results[0], c.want))
	if !same || verbose {
		verdict := "same"
		if !same {
			verdict = "DIFFERENT"
		}
		fmt.Printf("== %s: etcdctl %s: %s\n-- etcd\n%s\n", group, strings.Join(c.args, " "), verdict, results[0])
		if !same {
			fmt.Printf("-- subject\n%s\n", results[1])
			if c.want != "" {
				fmt.Printf("-- both must contain %q\n", c.want)
			}
		}
	}
	return same
}
