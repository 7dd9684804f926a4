package main

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// rule replaces what varies between two servers, or two runs of one.
type rule struct {
	expression  *regexp.Regexp
	replacement string
}

var rules = []rule{
	{regexp.MustCompile(`"(raft_term|raftTerm|raftIndex|raftAppliedIndex|dbSize|dbSizeInUse)":\d+`), `"$1":N`},
	{regexp.MustCompile(`"(RaftTerm|RaftIndex|RaftAppliedIndex|DBSize|DBSizeInUse|DB Size|DB Size In Use)" : \d+`), `"$1" : N`},
	{regexp.MustCompile(`"StorageVersion" : "[^"]*"`), `"StorageVersion" : V`},
	{regexp.MustCompile(`"storageVersion":"[^"]*",?`), ``},
	{regexp.MustCompile(`[\d.]+(ns|µs|ms|s)\b`), `TIME`},
	{regexp.MustCompile(`\b\d+(\.\d+)? (kB|MB|GB|B)\b`), `SIZE`},
	{regexp.MustCompile(`remaining\(\d+s\)`), `remaining(N)`},
	{regexp.MustCompile(`"ttl":\d+`), `"ttl":N`},
	{regexp.MustCompile(`0x[0-9a-f]+`), `0xADDRESS`},
}

// mask removes what is a server's own from an output.
func (t *target) mask(c testCase, text string) string {
	for _, name := range t.names() {
		text = t.maskID(text, name, t.vars[name])
	}
	text = maskNumber(text, t.side.MemberID, "MEMBER")
	text = maskNumber(text, t.side.ClusterID, "CLUSTER")
	text = strings.ReplaceAll(text, t.side.ClientURL, "CLIENT_URL")
	text = strings.ReplaceAll(text, t.side.PeerURL, "PEER_URL")
	text = strings.ReplaceAll(text, t.vars["ENDPOINT"], "ENDPOINT")
	text = strings.ReplaceAll(text, t.home, "HOME")
	text = regexp.MustCompile(`\b`+t.side.MemberName+`\b`).ReplaceAllString(text, "NAME")
	for _, r := range rules {
		text = r.expression.ReplaceAllString(text, r.replacement)
	}
	// The client's own log tells of its retries, which are a matter of time.
	lines := slices.DeleteFunc(strings.Split(text, "\n"), func(line string) bool {
		return strings.HasPrefix(line, `{"level":`)
	})
	for i, line := range lines {
		if strings.HasPrefix(line, "|") || strings.HasPrefix(line, "+") || strings.ContainsAny(line, "│┌├└") {
			line = tableLine(line)
		}
		if cluster, ok := strings.CutPrefix(line, "ETCD_INITIAL_CLUSTER="); ok {
			members := strings.Split(strings.Trim(cluster, `"`), ",")
			slices.Sort(members)
			line = strings.Join(members, ",")
		}
		lines[i] = strings.TrimRight(line, " ")
	}
	if c.sortLines {
		slices.Sort(lines)
	}
	return strings.Join(lines, "\n")
}

// names has the longest values first, so that none is cut by a shorter one inside it.
func (t *target) names() []string {
	var names []string
	for name := range t.vars {
		if name != "ENDPOINT" && name != "HOME" {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, func(a, b string) int { return len(t.vars[b]) - len(t.vars[a]) })
	return names
}

// maskID replaces an id in hexadecimal and decimal form.
func (t *target) maskID(text, name, value string) string {
	text = strings.ReplaceAll(text, value, name)
	if id, err := strconv.ParseUint(value, 16, 64); err == nil {
		text = strings.ReplaceAll(text, strconv.FormatUint(id, 10), name)
	}
	return text
}

func maskNumber(text string, id uint64, name string) string {
	text = strings.ReplaceAll(text, strconv.FormatUint(id, 10), name)
	return strings.ReplaceAll(text, fmt.Sprintf("%x", id), name)
}

var rulers = regexp.MustCompile(`[-─]{2,}`)

// tableLine forgets the widths of a table's columns, and its numbers that are each server's own.
func tableLine(line string) string {
	line = rulers.ReplaceAllString(line, "-")
	return strings.Join(strings.Fields(line), " ")
}
