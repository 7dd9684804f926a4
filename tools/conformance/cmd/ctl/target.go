package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"

	"garboard/tools/conformance/internal/client"
)

const (
	// commandLimit is how long a command may take.
	commandLimit = 20 * time.Second
	longLimit    = 5 * time.Minute
	pollInterval = 20 * time.Millisecond
)

// target is one server with what its commands have printed for later ones to use.
type target struct {
	ctl  string
	home string
	side *client.Side
	vars map[string]string
}

func newTarget(ctl, dir string, side *client.Side) *target {
	return &target{ctl: ctl, home: filepath.Join(dir, side.Name), side: side, vars: map[string]string{
		"ENDPOINT": strings.TrimPrefix(side.ClientURL, "http://"),
		"HOME":     filepath.Join(dir, side.Name),
	}}
}

// testCase is one etcdctl command. `$NAME` in it stands for what an earlier case captured.
type testCase struct {
	args  []string
	stdin string
	// want must be in the output of both servers.
	want string
	// capture stores the first group of each expression's match under a name, and masks it from then on.
	capture map[string]string
	// until lets a command that never ends run until its output contains this many lines; then it is interrupted.
	untilLines int
	// meanwhile are commands to run once the endless one has printed its first afterLines lines.
	meanwhile  [][]string
	afterLines int
	// awaitKey is a key that must appear before the endless command is interrupted.
	awaitKey string
	// ignoreOutput compares only the exit code.
	ignoreOutput bool
	sortLines    bool
	long         bool
}

func (t *target) expand(s string) string {
	for name, value := range t.vars {
		s = strings.ReplaceAll(s, "$"+name, value)
	}
	return s
}

func (t *target) command(ctx context.Context, args []string, stdin string) *exec.Cmd {
	full := []string{"--endpoints", t.vars["ENDPOINT"]}
	for _, arg := range args {
		full = append(full, t.expand(arg))
	}
	cmd := exec.CommandContext(ctx, t.ctl, full...)
	cmd.Dir = t.home
	cmd.Stdin = strings.NewReader(t.expand(stdin))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// run runs a case and gives back its masked output and exit code.
func (t *target) run(ctx context.Context, c testCase) string {
	limit := commandLimit
	if c.long {
		limit = longLimit
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var stdout, stderr output
	cmd := t.command(ctx, c.args, c.stdin)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	var err error
	if endless := c.untilLines > 0 || c.awaitKey != ""; endless {
		err = t.runEndless(ctx, cmd, c, &stdout)
	} else {
		err = cmd.Run()
	}
	code := 0
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		code = exit.ExitCode()
	case err != nil:
		return err.Error()
	}
	for name, expression := range c.capture {
		if m := regexp.MustCompile(expression).FindStringSubmatch(stdout.String()); m != nil {
			t.vars[name] = m[1]
		}
	}
	if c.ignoreOutput {
		return fmt.Sprintf("exit code %d", code)
	}
	return fmt.Sprintf("%s%sexit code %d", t.mask(c, stdout.String()), t.mask(c, stderr.String()), code)
}

// runEndless interrupts a command when it has printed or done what is due.
func (t *target) runEndless(ctx context.Context, cmd *exec.Cmd, c testCase, stdout *output) error {
	// An open input keeps interactive commands alive.
	reader, writer, err := os.Pipe()
	if err != nil {
		return err
	}
	defer writer.Close()
	cmd.Stdin = reader
	if err := cmd.Start(); err != nil {
		return err
	}
	reader.Close()
	fmt.Fprint(writer, t.expand(c.stdin))
	t.await(ctx, func() bool { return stdout.lines() >= c.afterLines })
	if c.awaitKey != "" {
		time.Sleep(pollInterval)
	}
	for _, args := range c.meanwhile {
		if out, err := t.command(ctx, args, "").CombinedOutput(); err != nil {
			cmd.Process.Kill()
			cmd.Wait()
			return fmt.Errorf("%v: %w: %s", args, err, out)
		}
	}
	if c.awaitKey != "" {
		t.await(ctx, func() bool {
			out, _ := t.command(ctx, []string{"get", "--print-value-only", c.awaitKey}, "").Output()
			return len(bytes.TrimSpace(out)) > 0
		})
	}
	t.await(ctx, func() bool { return stdout.lines() >= c.untilLines })
	cmd.Process.Signal(syscall.SIGINT)
	return cmd.Wait()
}

func (t *target) await(ctx context.Context, holds func() bool) {
	for !holds() && ctx.Err() == nil {
		time.Sleep(pollInterval)
	}
}

// output is what a command has printed so far.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

func (o *output) lines() int { return strings.Count(o.String(), "\n") }
