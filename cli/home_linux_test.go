package cli

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"memroom/testenv"
)

// nobody is a user that owns nothing.
const nobody = 65534

// asNobody returns a function that runs memroom as another user, and a folder that is that user's.
func asNobody(t *testing.T) (run func(home string, args ...string) (string, error), dir string) {
	t.Helper()
	if os.Geteuid() != 0 {
		testenv.Needs(t, "root", "to act as a second user")
	}
	dir = t.TempDir()
	binary := filepath.Join(filepath.Dir(dir), "memroom") // the checkout may be closed to others
	text := testenv.Read(t, testenv.Binary(t))
	if err := errors.Join(os.Chmod(filepath.Dir(dir), 0o755), os.Chmod(dir, 0o755),
		os.WriteFile(binary, text, 0o755)); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(dir, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	return func(home string, args ...string) (string, error) {
		cmd := exec.Command(binary, args...)
		cmd.Dir = dir
		cmd.Env = []string{"MEMROOM_HOME=" + home, "TMPDIR=" + dir, "HOME=" + dir,
			"PATH=" + os.Getenv("PATH")}
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		out, err := cmd.CombinedOutput()
		return string(out), err
	}, dir
}

// listing names everything below a folder, with its mode and time.
func listing(t *testing.T, dir string) string {
	t.Helper()
	out, err := exec.Command("find", dir, "-printf", "%p %m %u %T@ %s\n").Output()
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(out), "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// TestReadOnlyHome: reading commands work where nothing can be written, and change nothing.
func TestReadOnlyHome(t *testing.T) {
	run, dir := asNobody(t)
	home := filepath.Join(dir, "home")
	for range 2 {
		if out, err := run(home, "run", "--name", "tiny", "--", "sh", "-c",
			"echo hello; exit 3"); err == nil {
			t.Fatalf("exit 3 became 0: %s", out)
		}
	}
	if out, err := exec.Command("chmod", "-R", "a-w", home).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Cleanup(func() { _ = exec.Command("chmod", "-R", "u+w", home).Run() })
	before := listing(t, home)
	for _, c := range []struct{ args, says string }{
		{"runs", "tiny"}, {"runs --json", `"name": "tiny"`}, {"runs --failed", "exit 3"},
		{"show", "echo hello"}, {"show --output", "hello"}, {"show tiny --share --json", `"id"`},
		{"show --events", ""}, {"top --once", "exit 3"}, {"explain", ""}, {"forget", "nothing yet"},
		{"doctor --quick", "host memory"},
	} {
		out, err := run(home, strings.Fields(c.args)...)
		var exit *exec.ExitError
		// explain finds nothing about memory in it: exit 4
		if errors.As(err, &exit) && !(c.args == "explain" && exit.ExitCode() == exitNotRecognised) {
			t.Errorf("memroom %s: %v\n%s", c.args, err, out)
		}
		if !strings.Contains(out, c.says) {
			t.Errorf("memroom %s: no %q in\n%s", c.args, c.says, out)
		}
	}
	if after := listing(t, home); before != after {
		t.Errorf("changed\n%s\nto\n%s", before, after)
	}
	if out, err := run(home, "rm", "last"); err == nil {
		t.Errorf("rm in a home that cannot be written: %s", out)
	}
	// the training runs all the same, and its record is kept elsewhere
	out, err := run(home, "run", "--", "echo", "trained")
	if err != nil || !strings.Contains(out, "trained") || !strings.Contains(out,
		"this run is kept in") {
		t.Errorf("run: %v\n%s", err, out)
	}
}

// TestHomeOfAnotherUser: it is refused with the reason, and the run goes on.
func TestHomeOfAnotherUser(t *testing.T) {
	run, _ := asNobody(t)
	home := t.TempDir()
	if err := os.Chmod(filepath.Dir(home), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, mode := range []os.FileMode{0o755, 0o777, 0o777 | os.ModeSticky} {
		if err := os.Chmod(home, mode); err != nil {
			t.Fatal(err)
		}
		before := listing(t, home)
		out, err := run(home, "run", "--", "echo", "trained")
		if err != nil || !strings.Contains(out, "trained") ||
			!strings.Contains(out, "belongs to user 0") ||
			!strings.Contains(out, "set MEMROOM_HOME") {
			t.Errorf("%v: %v\n%s", mode, err, out)
		}
		if after := listing(t, home); before != after {
			t.Errorf("%v: changed\n%s\nto\n%s", mode, before, after)
		}
	}
}
