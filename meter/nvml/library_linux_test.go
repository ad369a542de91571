//go:build linux && !nogpu && (amd64 || arm64)

package nvml

import (
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"memroom/event"
	"memroom/testenv"
)

// buildDriver compiles testdata/driver.c, a library with NVML's calling convention that misbehaves
// on purpose.
func buildDriver(t *testing.T) string {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		testenv.Needs(t, "a C compiler", "cc is not on PATH")
	}
	path := filepath.Join(t.TempDir(), "libnvidia-ml.so.1")
	if out, err := exec.Command(cc, "-shared", "-fPIC", "-o", path,
		"testdata/driver.c").CombinedOutput(); err != nil {
		t.Fatalf("cc: %v\n%s", err, out)
	}
	return path
}

func TestReadsCardsOfATroubledDriver(t *testing.T) {
	lib, err := open([]string{"/nonexistent.so", buildDriver(t)}, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	devices, err := lib.Devices()
	if err == nil || !strings.Contains(err.Error(), "fallen off the bus") {
		t.Errorf("the lost card was not reported: %v", err)
	}
	if len(devices) != 1 {
		t.Fatalf("got %d cards, want the one that answers", len(devices))
	}
	d := devices[0]
	if d.Name != "Test Card" || d.UUID != "GPU-1234" || d.Compute != "9.0" || d.Utilisation != 42 ||
		d.MIG ||
		d.Total != 1000*event.MiB || d.Used != 600*event.MiB || d.Free != 400*event.MiB {
		t.Errorf("read %+v", d)
	}
	if len(d.Processes) != 70 || d.Processes[0].Used != -1 ||
		d.Processes[69] != (Process{1069, 5 * event.MiB}) {
		t.Errorf("processes: %d, first %+v", len(d.Processes), d.Processes[0])
	}
	if driver, err := lib.Driver(); err != nil || driver != (Driver{"580.1", "13.1"}) {
		t.Errorf("driver %+v, %v", driver, err)
	}
	if err := lib.Close(); err != nil {
		t.Error(err)
	}
}

func TestHungDriverCostsOneTimeout(t *testing.T) {
	t.Setenv("MEMROOM_TEST_HANG", "1")
	lib, err := open([]string{buildDriver(t)}, 100*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	devices, _ := lib.Devices()
	if len(devices) != 1 || devices[0].Utilisation != -1 || devices[0].Used != 600*event.MiB {
		t.Errorf("what was read before the hang is lost: %+v", devices)
	}
	if _, err := lib.Driver(); !errors.Is(err, ErrHung) {
		t.Errorf("a second call went into the hung driver: %v", err)
	}
}

func TestNoDriverSaysSo(t *testing.T) {
	if _, err := open([]string{"/nonexistent.so"}, time.Second); err == nil ||
		!strings.Contains(err.Error(), "libnvidia-ml") {
		t.Errorf("got %v", err)
	}
}

func TestRealCard(t *testing.T) {
	lib, err := Open()
	if err != nil {
		testenv.Needs(t, "an NVIDIA card", err.Error())
	}
	devices, err := lib.Devices()
	if err != nil || len(devices) == 0 {
		t.Fatalf("%d cards, %v", len(devices), err)
	}
	for _, d := range devices {
		if d.Name == "" || !strings.HasPrefix(d.UUID, "GPU-") || d.Total <= 0 ||
			d.Used+d.Free > d.Total {
			t.Errorf("reading makes no sense: %+v", d)
		}
	}
}
