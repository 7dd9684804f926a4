// Package server starts, awaits and stops one server process that takes etcd's command line.
package server

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// readyText is what etcd prints once it serves; every tool that starts an etcd waits for it.
const readyText = "ready to serve client requests"

const (
	startTimeout = 30 * time.Second
	stopTimeout  = 15 * time.Second
)

// Config says which program to run and where it keeps its data.
type Config struct {
	// Binary is the program; it is run through a link named `etcd`.
	Binary string
	// ExtraArgs follow the fixed flags.
	ExtraArgs []string
	// Dir is an existing empty folder for the link, the data and the log.
	Dir string
	// Name is the member's name.
	Name string
}

// Process is a running server.
type Process struct {
	// ClientURL and PeerURL are the advertised URLs.
	ClientURL, PeerURL string
	// ClientAddr is host:port of the client listener.
	ClientAddr string
	// LogPath holds everything the process printed.
	LogPath string

	link string
	args []string
	dir  string

	cmd    *exec.Cmd
	exited chan struct{}
	err    error
}

// Start runs the program with a fresh data directory on free loopback ports and returns once it is ready.
func Start(ctx context.Context, config Config) (*Process, error) {
	binary, err := filepath.Abs(config.Binary)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(binary); err != nil {
		return nil, err
	}
	dir, err := filepath.Abs(config.Dir)
	if err != nil {
		return nil, err
	}
	link := filepath.Join(dir, "etcd")
	if err := os.Symlink(binary, link); err != nil {
		return nil, err
	}
	ports, err := freePorts(2)
	if err != nil {
		return nil, err
	}
	p := &Process{
		ClientAddr: fmt.Sprintf("127.0.0.1:%d", ports[0]),
		ClientURL:  fmt.Sprintf("http://127.0.0.1:%d", ports[0]),
		PeerURL:    fmt.Sprintf("http://127.0.0.1:%d", ports[1]),
		LogPath:    filepath.Join(dir, "log"),
		link:       link,
		dir:        dir,
	}
	p.args = []string{
		"--name", config.Name,
		"--data-dir", filepath.Join(dir, "data"),
		"--listen-client-urls", p.ClientURL,
		"--advertise-client-urls", p.ClientURL,
		"--listen-peer-urls", p.PeerURL,
		"--initial-advertise-peer-urls", p.PeerURL,
		"--initial-cluster", config.Name + "=" + p.PeerURL,
	}
	p.args = append(p.args, config.ExtraArgs...)
	if err := p.run(ctx); err != nil {
		return nil, fmt.Errorf("%s (log %s): %w", config.Binary, p.LogPath, err)
	}
	return p, nil
}

// Restart ends the process, by SIGKILL if kill is set, and starts it again on the same data and ports.
func (p *Process) Restart(ctx context.Context, kill bool) error {
	if kill {
		p.cmd.Process.Kill()
		<-p.exited
	} else if err := p.Stop(); err != nil {
		return err
	}
	return p.run(ctx)
}

func (p *Process) run(ctx context.Context) error {
	p.exited = make(chan struct{})
	logFile, err := os.OpenFile(p.LogPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	reader, writer, err := os.Pipe()
	if err != nil {
		return err
	}
	p.cmd = exec.Command(p.link, p.args...)
	p.cmd.Dir = p.dir
	p.cmd.Stdout, p.cmd.Stderr = writer, writer
	// A group of its own keeps a Ctrl-C for this program from reaching the server before the report is written.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		return err
	}
	writer.Close()

	ready := make(chan struct{})
	go copyLog(reader, logFile, ready)
	exited := p.exited
	go func() {
		p.err = p.cmd.Wait()
		close(exited)
	}()

	timer := time.NewTimer(startTimeout)
	defer timer.Stop()
	select {
	case <-ready:
		return nil
	case <-p.exited:
		return fmt.Errorf("ended before it was ready: %v", p.err)
	case <-timer.C:
		p.Stop()
		return fmt.Errorf("did not print %q within %v", readyText, startTimeout)
	case <-ctx.Done():
		p.Stop()
		return ctx.Err()
	}
}

// copyLog keeps the output and closes ready when the ready text passes by.
func copyLog(from io.ReadCloser, to io.WriteCloser, ready chan<- struct{}) {
	defer from.Close()
	defer to.Close()
	var seen atomic.Bool
	lines := bufio.NewReaderSize(from, 1<<20)
	for {
		line, err := lines.ReadString('\n')
		io.WriteString(to, line)
		if !seen.Load() && strings.Contains(line, readyText) {
			seen.Store(true)
			close(ready)
		}
		if err != nil {
			return
		}
	}
}

// Exited tells whether the process has ended.
func (p *Process) Exited() bool {
	select {
	case <-p.exited:
		return true
	default:
		return false
	}
}

// Stop asks the process to end and kills it if it does not.
func (p *Process) Stop() error {
	if p.Exited() {
		return nil
	}
	p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.exited:
		return nil
	case <-time.After(stopTimeout):
	}
	p.cmd.Process.Kill()
	<-p.exited
	return errors.New("had to be killed: it did not end on SIGTERM")
}

// freePorts finds distinct loopback ports that nothing listens on.
func freePorts(n int) ([]int, error) {
	var ports []int
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}
