package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"memroom/testenv"
)

// TestInstalledWheel installs the wheel of this machine into an empty environment, as a user would,
// and does there what the demonstration does in its first minute.
func TestInstalledWheel(t *testing.T) {
	if runtime.GOOS != "linux" {
		testenv.Needs(t, "Linux", "the test installs the wheel of a Linux binary")
	}
	root, dir := testenv.Root(t), t.TempDir()
	binary := "memroom-linux-" + runtime.GOARCH
	if built, err := os.ReadFile(testenv.Binary(t)); err != nil {
		t.Fatal(err)
	} else if err := os.WriteFile(filepath.Join(dir, binary), built, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Chdir(root)
	if err := build("0.1.0", dir, binary); err != nil {
		t.Fatal(err)
	}
	wheels, _ := filepath.Glob(filepath.Join(dir, "*.whl"))
	if len(wheels) != 1 {
		t.Fatalf("wheels: %v", wheels)
	}
	again, err := os.ReadFile(wheels[0])
	if err != nil {
		t.Fatal(err)
	}
	python := testenv.Python(t)
	do(t, dir, python, "-m", "venv", "env")
	inside := func(name string) string { return filepath.Join(dir, "env", "bin", name) }
	do(t, dir, inside("python"), "-m", "pip", "install", "-q", "--no-index",
		"--find-links", filepath.Dir(wheels[0]), "memroom")
	t.Setenv("MEMROOM_HOME", filepath.Join(dir, "home"))

	const program = "import memroom; print(memroom.__version__, memroom.active())"
	for _, c := range []struct {
		want string
		line []string
	}{
		{"memroom 0.1.0", []string{"memroom", "version"}},
		{"memroom 0.1.0", []string{"python", "-m", "memroom", "version"}},
		{"0.1.0 False", []string{"python", "-c", program}},
		{"share", []string{"python", "-c", "import memroom; print(dir(memroom))"}},
		{"stream", []string{"python", "-c", "import memroom; print(dir(memroom))"}},
		{"0.1.0 True", []string{"memroom", "run", "--", inside("python"), "-c", program}},
		{"peak", []string{"memroom", "plan", "--preset", "gpt2", "--batch", "8", "--seq", "512"}},
		{"out of memory", []string{"memroom", "explain", filepath.Join(root,
			"cli/testdata/train.log")}},
	} {
		out := do(t, dir, inside(c.line[0]), c.line[1:]...)
		if !strings.Contains(strings.ToLower(out), strings.ToLower(c.want)) {
			t.Errorf("%q: %q is not in\n%s", c.line, c.want, out)
		}
	}
	if err := build("0.1.0", dir, binary); err != nil {
		t.Fatal(err)
	}
	if now, err := os.ReadFile(wheels[0]); err != nil || !bytes.Equal(now, again) {
		t.Errorf("the same binary gave another wheel (%v)", err)
	}
}

func TestWheelNeedsABinary(t *testing.T) {
	if err := build("0.1.0", t.TempDir(), ""); err == nil ||
		!strings.Contains(err.Error(), "make dist") {
		t.Errorf("without binaries: %v", err)
	}
	if build("", t.TempDir(), "") == nil || build("0.1.0", t.TempDir(), "memroom-plan9") == nil {
		t.Error("a missing version or an unknown binary was accepted")
	}
}

func do(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}
