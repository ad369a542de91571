package ray

import (
	"archive/zip"
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"memroom/trial/remote"
)

func TestAddresses(t *testing.T) {
	for given, want := range map[string][]string{
		"ray://head:10001":     {"http://head:10001", "http://head:8265"},
		"ray://head:8265":      {"http://head:8265"},
		"ray://head":           {"http://head:8265"},
		"https://head:443/":    {"https://head:443", "https://head:8265"},
		"10.0.0.1:6379":        {"http://10.0.0.1:6379", "http://10.0.0.1:8265"},
		"ray://[::1]:8265":     {"http://[::1]:8265"},
		"auto":                 {"http://127.0.0.1:8265"},
		"ray://no where?x":     nil,
		"ray://127.0.0.1:8265": {"http://127.0.0.1:8265"},
	} {
		got, err := addresses(given)
		if !slices.Equal(got, want) || (err != nil) != (want == nil) {
			t.Errorf("%s: %v, %v", given, got, err)
		}
	}
}

func TestStatesOfRay(t *testing.T) {
	code := func(n int) *int { return &n }
	for name, c := range map[string]struct {
		job  job
		want remote.Status
	}{
		"its own end": {job{Status: "FAILED", Code: code(3), Message: "x\nlast"},
			remote.Status{Phase: remote.Ended, Cause: remote.Exited, Code: 3, Text: "last"}},
		"text about memory with an exit code": {job{Status: "FAILED", Code: code(1),
			Message: "out of memory"}, remote.Status{Phase: remote.Ended, Cause: remote.Exited,
			Code: 1, Text: "out of memory"}},
		"the memory monitor": {job{Status: "FAILED",
			Message: "The actor died: Task was killed due to the node running low on memory."},
			remote.Status{Phase: remote.Ended, Cause: remote.NodeMemory,
				Text: "The actor died: Task was killed due to the node running low on memory."}},
		"the node": {job{Status: "FAILED", Message: "actor died"},
			remote.Status{Phase: remote.Ended, Cause: remote.NodeFailure, Text: "actor died"}},
		"no environment": {job{Status: "FAILED", Error: "RUNTIME_ENV_SETUP_FAILURE", Message: "pip"},
			remote.Status{Phase: remote.Ended, Cause: remote.NeverRan, Text: "pip"}},
		"waits": {job{Status: "PENDING"}, remote.Status{Phase: remote.Queued}},
	} {
		if got := statusOf(c.job); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

// TestPackDependsOnContentAlone: the same folder is sent once.
func TestPackDependsOnContentAlone(t *testing.T) {
	make := func() []byte {
		dir := t.TempDir()
		for _, name := range []string{"train.py", "pkg/a.py", ".git/HEAD", "pkg/__pycache__/a.pyc"} {
			path := filepath.Join(dir, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(name), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		data, err := pack(dir)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	first := make()
	if !bytes.Equal(first, make()) {
		t.Error("two equal folders give two packages")
	}
	archive, err := zip.NewReader(bytes.NewReader(first), int64(len(first)))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range archive.File {
		names = append(names, f.Name)
	}
	if !slices.Equal(names, []string{"pkg/a.py", "train.py"}) {
		t.Error(names)
	}
}
