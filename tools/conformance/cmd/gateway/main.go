// Command gateway sends the same HTTP requests to a real etcd and to the server under test and compares status, content
// type and body: the JSON gateway, health and version paths.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"garboard/tools/conformance/internal/client"
	"garboard/tools/conformance/internal/compare"
	"garboard/tools/conformance/internal/notyet"
	"garboard/tools/conformance/internal/run"
)

// requestLimit is how long a request may take.
const requestLimit = 10 * time.Second

func main() {
	oracle := flag.String("oracle", "bin/etcd", "the real etcd")
	subject := flag.String("subject", "bin/etcd", "the server under test")
	subjectArgs := flag.String("subject-args", "", "more arguments for the server under test")
	notYetFile := flag.String("not-yet", "", "list of what the server under test does not offer yet")
	verbose := flag.Bool("v", false, "print every request and answer")
	flag.Parse()
	// What is no HTTP/1 answer shows in the results; Go's library would tell of it as well.
	log.SetOutput(io.Discard)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	notYet, err := notyet.Read(*notYetFile)
	if err != nil {
		fmt.Fprintln(os.Stderr, "gateway:", err)
		os.Exit(1)
	}
	passed, failed, err := compareAll(ctx, notYet,
		run.Target{Binary: *oracle, Args: []string{"--unsafe-no-fsync"}},
		run.Target{Binary: *subject, Args: strings.Fields(*subjectArgs)}, *verbose)
	if err != nil {
		fmt.Println("stopped:", err)
		failed++
	}
	fmt.Printf("%d passed, %d failed\n", passed, failed)
	if failed > 0 {
		os.Exit(1)
	}
}

func compareAll(ctx context.Context, notYet *notyet.List, oracle, subject run.Target,
	verbose bool) (passed, failed int, err error) {
	dir, err := os.MkdirTemp("", "gateway-")
	if err != nil {
		return 0, 0, err
	}
	defer os.RemoveAll(dir)
	pair, err := run.StartPair(ctx, dir, oracle, subject)
	if err != nil {
		return 0, 0, err
	}
	defer pair.Stop()
	for _, r := range requests {
		if err := ctx.Err(); err != nil {
			return passed, failed, err
		}
		if notYet.Path(r.path) {
			if u := r.send(ctx, pair.Subject); !absent(u) {
				failed++
				fmt.Printf("== %s %s %s\nlisted as not there yet, but it answers: remove the entry\n-- subject\n%s\n",
					r.method(), r.path, r.body, u)
			}
			continue
		}
		o, u := r.send(ctx, pair.Oracle), r.send(ctx, pair.Subject)
		same := o == u
		if same {
			passed++
		} else {
			failed++
		}
		if !same || verbose {
			fmt.Printf("== %s %s %s\n-- etcd\n%s\n", r.method(), r.path, r.body, o)
		}
		if !same {
			fmt.Printf("-- subject\n%s\n", u)
		}
	}
	return passed, failed, nil
}

// requestFailed begins what is shown in place of an answer when there is none.
const requestFailed = "request failed: "

// absent tells whether an answer is that of a path which is not there yet: none, 404 or 501.
func absent(answer string) bool {
	for _, prefix := range []string{requestFailed, "404 ", "501 "} {
		if strings.HasPrefix(answer, prefix) {
			return true
		}
	}
	return false
}

// request is one HTTP request.
type request struct {
	path string
	// body makes it a POST.
	body string
	// lines is how many lines of an endless answer are read.
	lines int
	get   bool
	// verb is used in place of GET or POST.
	verb string
	// statusOnly compares no body.
	statusOnly bool
}

func (r request) method() string {
	switch {
	case r.verb != "":
		return r.verb
	case r.get:
		return http.MethodGet
	}
	return http.MethodPost
}

func (r request) send(ctx context.Context, side *client.Side) string {
	ctx, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, r.method(), side.ClientURL+r.path, strings.NewReader(r.body))
	if err != nil {
		return err.Error()
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return requestFailed + strings.ReplaceAll(err.Error(), side.ClientURL, "")
	}
	defer resp.Body.Close()
	head := fmt.Sprintf("%d %s\n", resp.StatusCode, resp.Header.Get("Content-Type"))
	if r.statusOnly {
		return head
	}
	var body []byte
	if r.lines > 0 {
		lines := bufio.NewReader(resp.Body)
		for range r.lines {
			line, err := lines.ReadBytes('\n')
			body = append(body, line...)
			if err != nil {
				break
			}
		}
	} else {
		body, _ = io.ReadAll(resp.Body)
	}
	return head + mask(side, body)
}

// mask writes each JSON value of a body with sorted keys, and without what is a server's own.
func mask(side *client.Side, body []byte) string {
	var out strings.Builder
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber()
	for {
		var value any
		if err := decoder.Decode(&value); err == io.EOF {
			return out.String()
		} else if err != nil {
			// etcd lists its checks in random order.
			lines := strings.Split(maskLines(side, string(body)), "\n")
			slices.Sort(lines)
			return strings.Join(lines, "\n")
		}
		text, _ := json.MarshalIndent(maskValue(side, "", value), "", "  ")
		out.Write(text)
		out.WriteByte('\n')
	}
}

// own are the fields whose values differ between servers and times; their kind still has to agree.
var own = map[string]bool{
	"cluster_id": true, "member_id": true, "raft_term": true, "raftTerm": true, "raftIndex": true, "ID": true,
	"raftAppliedIndex": true, "dbSize": true, "dbSizeInUse": true, "hash": true, "leader": true, "lease": true,
	"TTL": true, "token": true, "blob": true, "remaining_bytes": true, "storageVersion": true, "memberID": true,
}

func maskValue(side *client.Side, key string, value any) any {
	switch v := value.(type) {
	case map[string]any:
		if key == "result" || key == "" {
			delete(v, "storageVersion")
		}
		for k, inner := range v {
			v[k] = maskValue(side, k, inner)
		}
		return v
	case []any:
		for i, inner := range v {
			v[i] = maskValue(side, key, inner)
		}
		return v
	case string:
		if own[key] {
			return kind(v)
		}
		return maskText(side, v)
	case json.Number:
		if own[key] {
			return "a number"
		}
	}
	return value
}

func maskLines(side *client.Side, text string) string {
	var lines []string
	for _, line := range strings.Split(text, "\n") {
		lines = append(lines, maskText(side, line))
	}
	return strings.Join(lines, "\n")
}

func kind(v string) string {
	if _, err := strconv.ParseInt(v, 10, 64); err == nil {
		return "an integer as a string"
	}
	if _, err := strconv.ParseUint(v, 10, 64); err == nil {
		return "an integer as a string"
	}
	return "a string"
}

func maskText(side *client.Side, text string) string {
	text = strings.ReplaceAll(text, side.ClientURL, "CLIENT_URL")
	text = strings.ReplaceAll(text, side.PeerURL, "PEER_URL")
	if text == side.MemberName {
		text = "NAME"
	}
	return strings.TrimSpace(compare.Text(text))
}
