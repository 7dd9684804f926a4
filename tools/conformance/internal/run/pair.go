// Package run starts the two servers, applies every step to both and collects what differs.
package run

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"garboard/tools/conformance/internal/client"
	"garboard/tools/conformance/internal/server"
)

// Target says what a server is: a program to start, or an endpoint that already runs.
type Target struct {
	Binary   string
	Args     []string
	Endpoint string
}

// Pair is an oracle and a subject, both empty at first.
type Pair struct {
	Oracle, Subject *client.Side
	processes       []*server.Process
}

// StartPair starts both servers in dir, with extra flags for both.
func StartPair(ctx context.Context, dir string, oracle, subject Target, flags ...string) (*Pair, error) {
	p := &Pair{}
	var err error
	if p.Oracle, err = p.start(ctx, dir, "oracle", oracle, flags); err == nil {
		p.Subject, err = p.start(ctx, dir, "subject", subject, flags)
	}
	if err != nil {
		p.Stop()
		return nil, err
	}
	return p, nil
}

func (p *Pair) start(ctx context.Context, dir, name string, target Target, flags []string) (*client.Side, error) {
	if target.Endpoint != "" {
		side, err := client.Dial(ctx, name, target.Endpoint)
		if err != nil {
			return nil, err
		}
		return side, nil
	}
	home := filepath.Join(dir, name)
	if err := os.Mkdir(home, 0o700); err != nil {
		return nil, err
	}
	process, err := server.Start(ctx, server.Config{
		Binary: target.Binary, ExtraArgs: append(append([]string(nil), target.Args...), flags...), Dir: home, Name: name,
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	p.processes = append(p.processes, process)
	side, err := client.Dial(ctx, name, process.ClientAddr)
	if err != nil {
		return nil, err
	}
	side.ClientURL, side.PeerURL, side.MemberName = process.ClientURL, process.PeerURL, name
	return side, nil
}

// Restart ends both servers, by SIGKILL if kill is set, and starts them again on their data.
func (p *Pair) Restart(ctx context.Context, kill bool) error {
	sides := []*client.Side{p.Oracle, p.Subject}
	problems := make([]error, len(sides))
	var wait sync.WaitGroup
	for i, side := range sides {
		wait.Go(func() {
			process := p.processes[i]
			if err := process.Restart(ctx, kill); err != nil {
				problems[i] = fmt.Errorf("%s after a restart (log %s): %w", side.Name, process.LogPath, err)
			} else if err := side.Redial(ctx, process.ClientAddr); err != nil {
				problems[i] = fmt.Errorf("%s after a restart: %w", side.Name, err)
			}
		})
	}
	wait.Wait()
	return errors.Join(problems...)
}

// Crashed names a server that ended by itself.
func (p *Pair) Crashed() string {
	for _, process := range p.processes {
		if process.Exited() {
			return process.LogPath
		}
	}
	return ""
}

// Stop ends both servers.
func (p *Pair) Stop() error {
	var problems []error
	for _, side := range []*client.Side{p.Oracle, p.Subject} {
		if side != nil {
			side.Close()
		}
	}
	for _, process := range p.processes {
		if err := process.Stop(); err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", process.LogPath, err))
		}
	}
	return errors.Join(problems...)
}
