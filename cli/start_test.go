package cli

import (
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"testing"

	"memroom/testenv"
)

// mostAtStart is what one of our packages may allocate before main, in bytes. Three processes stand
// with each training, and each of them pays it.
const mostAtStart = 128 << 10

// TestPackagesStartSmall: tables and expressions are made when they are needed. Go itself prints
// what each package allocates while the program starts.
func TestPackagesStartSmall(t *testing.T) {
	cmd := exec.Command(testenv.Binary(t), "version")
	cmd.Env = append(os.Environ(), "GODEBUG=inittrace=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatal(err)
	}
	lines := regexp.MustCompile(`init memroom/(\S+) .* (\d+) bytes,`).FindAllSubmatch(out, -1)
	if len(lines) < 10 {
		t.Fatalf("only %d packages of ours in:\n%s", len(lines), out)
	}
	for _, line := range lines {
		if bytes, err := strconv.Atoi(string(line[2])); err != nil || bytes > mostAtStart {
			t.Errorf("package %s allocates %s bytes before main, at most %d are fine", line[1],
				line[2], mostAtStart)
		}
	}
}
