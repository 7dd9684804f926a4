package notyet

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func read(t *testing.T, text string) (*List, error) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "list")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return Read(name)
}

func TestAnEntryLeavesOutExactlyWhatItNames(t *testing.T) {
	l, err := read(t, "# why\n\nmethod /s.Auth/A # one\ncommand auth # two\ncommand kv: put a # three\npath /v3/auth/ # four\nrow M1/x # five\n")
	if err != nil {
		t.Fatal(err)
	}
	if !l.Method("/s.Auth/A") || l.Method("/s.Auth/B") || l.Method("/s.Auth/") {
		t.Error("methods")
	}
	if !l.Group("auth") || l.Group("kv") || !l.Command("kv", "put a") || l.Command("kv", "put") {
		t.Error("commands")
	}
	if !l.Path("/v3/auth/status") || l.Path("/v3/kv/put") || !l.Row("M1/x") || l.Row("M1/y") {
		t.Error("paths and rows")
	}
}

func TestAMissingReasonAndStaleEntriesAreErrors(t *testing.T) {
	for text, want := range map[string]string{
		"method /a/b":                        "no reason",
		"thing x # y":                        "no kind",
		"method # y":                         "without a name",
		"row a # x\nrow a # x":               "twice",
		"phase random # x":                   "no phase",
		"phase auth # no method":             "remove it",
		"method /x/Auth # a\nphase auth # b": "remove it",
	} {
		if _, err := read(t, text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
	if _, err := read(t, "method /etcdserverpb.Auth/RoleAdd # a\nphase auth # b"); err != nil {
		t.Error(err)
	}
}

func TestNoNameIsAnEmptyList(t *testing.T) {
	l, err := Read("")
	if err != nil || len(l.Methods()) != 0 || l.Path("/") {
		t.Error(err)
	}
}
