package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"memroom/testenv"
)

// TestRelease: every file of a release is in the checksums and in the provenance, recipes have no
// blank left, and the source distribution says what it needs where there is no Go.
func TestRelease(t *testing.T) {
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		testenv.Needs(t, "Linux on x86-64", "the test builds the wheel of that machine")
	}
	root, dir := testenv.Root(t), t.TempDir()
	built, err := os.ReadFile(testenv.Binary(t))
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range platforms {
		if i > 0 {
			built = []byte("another machine's")
		}
		if err := os.WriteFile(filepath.Join(dir, p.binary), built, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(root)
	if err := release("0.1.0", dir, "https://example.org"); err == nil ||
		!strings.Contains(err.Error(), "make wheel") {
		t.Errorf("without wheels: %v", err)
	}
	if err := build("0.1.0", dir, ""); err != nil {
		t.Fatal(err)
	}
	if err := release("0.1.0", dir, "https://example.org"); err != nil {
		t.Fatal(err)
	}
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	sums, provenance := read("SHA256SUMS"), read("memroom-0.1.0.intoto.json")
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		name := e.Name()
		if name == "SHA256SUMS" || name == "memroom-0.1.0.intoto.json" {
			continue
		}
		if !strings.Contains(sums, "  "+name+"\n") || !strings.Contains(provenance, name) {
			t.Errorf("%s is not in the checksums or not in the provenance", name)
		}
	}
	do(t, dir, "sha256sum", "--check", "--quiet", "SHA256SUMS")
	for _, name := range []string{"memroom.rb", "recipe.yaml", "Containerfile"} {
		if blank.MatchString(read(name)) {
			t.Errorf("%s has a blank left", name)
		}
	}
	if !strings.Contains(read("memroom-0.1.0.cdx.json"), "pkg:golang/github.com/alecthomas/kong@v") {
		t.Error("a module that is built in is not in the list")
	}
	python := strings.TrimSpace(do(t, dir, testenv.Python(t), "-c",
		"import sys; print(sys.executable)"))
	t.Setenv("PATH", "/nowhere")
	out, err := exec.Command(python, "-c", "import sys; sys.path[:0] = ['packaging']; "+
		"import backend; backend.build_wheel('.')").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "needs Go 1.26") {
		t.Errorf("without Go the source distribution says %v: %s", err, out)
	}
}
