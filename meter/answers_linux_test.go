package meter

import (
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"memroom/event"
	"memroom/testenv"
)

// TestSharedMemoryInBytes: as the file system counts, in bytes.
func TestSharedMemoryInBytes(t *testing.T) {
	dir := t.TempDir()
	total, used, err := SharedMemory(dir)
	if err != nil {
		t.Fatal(err)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		t.Fatal(err)
	}
	if want := event.Bytes(st.Blocks) * event.Bytes(st.Bsize); total != want {
		t.Errorf("total %d, want %d", total, want)
	}
	// others write meanwhile: a hundredth of the whole is enough to tell bytes from blocks
	if want := event.Bytes(st.Blocks-st.Bfree) * event.Bytes(st.Bsize); used < want-total/100 ||
		used > want+total/100 {
		t.Errorf("used %d, want about %d", used, want)
	}
}

// TestMounts: the memory controller's mount among those of version 1, and the unified one.
func TestMounts(t *testing.T) {
	info := strings.Join([]string{
		`25 1 0:22 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct`,
		`26 1 0:23 /docker/x /sys/fs/cgroup/memory rw shared:1 - cgroup none rw,memory`,
		`27 1 0:24 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids`,
		`28 1 0:25 /user\040slice /sys/fs/cgroup/uni\040fied rw - cgroup2 none rw,nsdelegate`,
		`29 1 8:1 / / rw - ext4 /dev/sda1 rw`,
		`short line`, `30 1 0:26 / - cgroup2 x rw`, `31 1 0:27 / /y rw - cgroup2 x`,
	}, "\n")
	got := cgroupMounts(info)
	memory := cgroupMount{root: "/docker/x", point: "/sys/fs/cgroup/memory"}
	if len(got) != 2 || got["memory"] != memory ||
		got["unified"].point != "/sys/fs/cgroup/uni fied" {
		t.Errorf("%+v", got)
	}
}

// TestPressureLines: the ten-second averages; lines that say something else are left out.
func TestPressureLines(t *testing.T) {
	for text, want := range map[string][2]float64{
		"some avg10=1.50 avg60=9 avg300=9 total=9\nfull avg10=0.25 avg60=9 avg300=9 total=9\n": {1.5, 0.25},
		"some avg10=7.00 avg60=9\n": {7, 0},
		"full avg10=x avg60=9\nsome avg10=3 avg60=9\nfull avg10=4 avg60=1\n": {3, 4},
		"some avg10=x avg60=1\n":  {0, 0},
		"other avg10=5 avg60=1\n": {0, 0},
		"":                        {0, 0},
	} {
		if some, full := parsePressure(text); some != want[0] || full != want[1] {
			t.Errorf("%q: %v, %v, want %v", text, some, full, want)
		}
	}
}

// TestReadingLongFiles: a file that outgrows its buffer is read whole, one without end is refused.
func TestReadingLongFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "long")
	for _, size := range []int{0, 1, 7, 8, 9, 4096, 100_000} {
		text := strings.Repeat("x", size)
		testenv.Write(t, path, []byte(text))
		if got, err := readInto(make([]byte, 8), path); err != nil || string(got) != text {
			t.Errorf("%d bytes: %d, %v", size, len(got), err)
		}
	}
	for size, fits := range map[int]bool{4 << 20: true, 4<<20 + 1: false} {
		testenv.Write(t, path, make([]byte, size))
		for _, begin := range []int{0, 8, 16 << 10} {
			data, err := readInto(make([]byte, begin), path)
			if fits && (err != nil || len(data) != size) ||
				!fits && (err == nil || data != nil || !strings.Contains(err.Error(), "4 MiB")) {
				t.Errorf("%d bytes into %d: %d, %v", size, begin, len(data), err)
			}
		}
	}
	if _, err := readInto(nil, filepath.Join(path, "none")); err == nil {
		t.Error("a file that is not there was read")
	}
}

// TestStatmIsDecimal: ten times the pages are ten times the bytes.
func TestStatmIsDecimal(t *testing.T) {
	proc := NewProc(tree(t, join(process(10, 10, 1, ""), process(11, 100, 10, ""))))
	small, err1 := proc.Statm(10)
	large, err2 := proc.Statm(11)
	if err1 != nil || err2 != nil || small.Resident == 0 || large.Resident != 10*small.Resident {
		t.Errorf("%+v, %+v, %v, %v", small, large, err1, err2)
	}
}
