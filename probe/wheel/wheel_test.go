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

// wheel makes the wheel of this machine in a folder.
func wheel(t *testing.T, dir string) string {
	t.Helper()
	if runtime.GOOS != "linux" {
		testenv.Needs(t, "Linux", "the test installs the wheel of a Linux binary")
	}
	binary := "memroom-linux-" + runtime.GOARCH
	if built, err := os.ReadFile(testenv.Binary(t)); err != nil {
		t.Fatal(err)
	} else if err := os.WriteFile(filepath.Join(dir, binary), built, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Chdir(testenv.Root(t))
	if err := build("0.1.0", dir, binary); err != nil {
		t.Fatal(err)
	}
	wheels, _ := filepath.Glob(filepath.Join(dir, "*.whl"))
	if len(wheels) != 1 {
		t.Fatalf("wheels: %v", wheels)
	}
	return wheels[0]
}

// install makes an environment with a wheel, as a user would, and returns the folder of its
// programs.
func install(t *testing.T, python, wheel string) string {
	t.Helper()
	dir := filepath.Dir(wheel)
	do(t, dir, python, "-m", "venv", "env")
	programs := filepath.Join(dir, "env", "bin")
	do(t, dir, filepath.Join(programs, "python"), "-m", "pip", "install", "-q", "--no-index",
		"--find-links", dir, "memroom")
	return programs
}

// TestInstalledWheel does in an environment without frameworks what the demonstration does in its
// first minute.
func TestInstalledWheel(t *testing.T) {
	root, dir := testenv.Root(t), t.TempDir()
	made := wheel(t, dir)
	again, err := os.ReadFile(made)
	if err != nil {
		t.Fatal(err)
	}
	programs := install(t, testenv.Python(t), made)
	inside := func(name string) string { return filepath.Join(programs, name) }
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
		{"fine-tuning", []string{"memroom", "check", "--config", filepath.Join(root,
			"examples/files/memroom.toml")}},
		{"out of memory", []string{"memroom", "explain", filepath.Join(root,
			"cli/testdata/train.log")}},
	} {
		out := do(t, dir, inside(c.line[0]), c.line[1:]...)
		if !strings.Contains(strings.ToLower(out), strings.ToLower(c.want)) {
			t.Errorf("%q: %q is not in\n%s", c.line, c.want, out)
		}
	}
	wheel(t, dir)
	if now, err := os.ReadFile(made); err != nil || !bytes.Equal(now, again) {
		t.Errorf("the same binary gave another wheel (%v)", err)
	}
}

// installAt is install, in an environment that sees the packages of python's. Nothing of the
// checkout is on its paths.
func installAt(t *testing.T, python, wheel string) string {
	t.Helper()
	programs := install(t, python, wheel)
	const packages = "import sys; print('\\n'.join(p for p in sys.path if p.endswith('site-packages')))"
	seen := do(t, programs, python, "-c", packages)
	own := strings.TrimSpace(do(t, programs, filepath.Join(programs, "python"), "-c",
		"import sysconfig; print(sysconfig.get_path('purelib'))"))
	if err := os.WriteFile(filepath.Join(own, "seen.pth"), []byte(seen), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{"MEMROOM_HOME": filepath.Join(t.TempDir(), "home"),
		"PATH": programs + ":" + os.Getenv("PATH"), "PYTHONPATH": "", "MEMROOM_BINARY": ""} {
		t.Setenv(name, value)
	}
	return programs
}

const checkedTraining = `import torch

model = torch.nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.SGD(model.parameters())
for _ in range(3):
    model(torch.zeros(64, 1024).cuda()).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
`

// TestCheckOfTheWheel rehearses training at two revisions.
func TestCheckOfTheWheel(t *testing.T) {
	python := testenv.Python(t, "torch")
	programs := installAt(t, python, wheel(t, t.TempDir()))
	dir := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("train.py", checkedTraining)
	write("memroom.toml", "[[check]]\nname = \"train\"\ncommand = \"python train.py\"\n"+
		"gpu = \"RTX4090\"\n")
	do(t, dir, "git", "init", "-q")
	do(t, dir, "git", "add", "-A")
	do(t, dir, "git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "first")
	write("train.py", strings.Replace(checkedTraining, "SGD", "AdamW", 1))
	out := do(t, dir, filepath.Join(programs, "memroom"), "check", "--against", "HEAD")
	for _, want := range []string{"RTX4090", "optimizer", "train.py:"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in\n%s", want, out)
		}
	}
}

// TestGuardInPython runs the tests of memroom.estimate and of the pytest plugin, which pytest finds
// by itself.
func TestGuardInPython(t *testing.T) {
	programs := installAt(t, testenv.Pytest(t), wheel(t, t.TempDir()))
	t.Setenv("PYTHONDONTWRITEBYTECODE", "1")
	do(t, t.TempDir(), filepath.Join(programs, "python"), "-m", "pytest", "-q", "-p",
		"no:cacheprovider", filepath.Join(testenv.Root(t), "python", "pytests", "test_guard.py"))
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
