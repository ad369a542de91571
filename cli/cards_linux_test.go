//go:build !nogpu && (amd64 || arm64)

package cli

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"memroom/event"
	"memroom/testenv"
)

// TestOneLostCard: of two cards one has fallen off the bus. The other is still read, by the monitor
// and by what waits for memory to be given back.
func TestOneLostCard(t *testing.T) {
	cc, err := exec.LookPath("cc")
	if err != nil {
		testenv.Needs(t, "a C compiler", "cc is not on PATH")
	}
	path := filepath.Join(t.TempDir(), "libnvidia-ml.so.1")
	source := filepath.Join(testenv.Root(t), "meter", "nvml", "testdata", "driver.c")
	if out, err := exec.Command(cc, "-shared", "-fPIC", "-o", path,
		source).CombinedOutput(); err != nil {
		t.Fatalf("cc: %v\n%s", err, out)
	}
	t.Setenv("MEMROOM_NVML", path)
	cards := openCards()
	if cards == nil {
		t.Fatal("the driver was not opened")
	}
	devices, err := cards.Read()
	if err == nil || !strings.Contains(err.Error(), "fallen off the bus") {
		t.Errorf("the lost card is not named: %v", err)
	}
	if len(devices) != 1 || devices[0].Used != 600*event.MiB ||
		devices[0].Processes[1001] != 5*event.MiB {
		t.Errorf("read %+v", devices)
	}
	if used := cards.used(); used["GPU-1234"] != 600*event.MiB || cards.names() != "Test Card" {
		t.Errorf("used %v, names %q", used, cards.names())
	}
}
