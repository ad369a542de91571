package trace

import (
	"bytes"
	"os"
	"strings"
	"testing"
)

func TestBFCDumpOfRealTensorFlow(t *testing.T) {
	data, err := os.ReadFile("testdata/bfc-exhaust.dump")
	if err != nil {
		t.Fatal(err)
	}
	d, err := ReadBFCDump(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	pool, free, largest := d.Pool()
	if d.Allocator != "bfc_cpu_allocator_for_gpu" || pool != 32<<20 || pool-free != d.InUse {
		t.Errorf("allocator %q, pool %d, free %d, in use %d: want 32 MiB in all", d.Allocator, pool,
			free, d.InUse)
	}
	if want := float64(free-largest) / float64(free); d.Fragmentation < want-1e-6 ||
		d.Fragmentation > want+1e-6 {
		t.Errorf("TensorFlow says fragmentation %v, its chunks say %v", d.Fragmentation, want)
	}
}

func TestBFCDumpRefusesOtherFiles(t *testing.T) {
	real, err := os.ReadFile("testdata/bfc-exhaust.dump")
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{
		"empty": nil, "text": []byte("CUDA out of memory"), "pickle": []byte("\x80\x04\x95\x00"),
		"cut":         real[:len(real)-3],
		"huge length": {0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f},
	} {
		if _, err := ReadBFCDump(bytes.NewReader(data)); err == nil ||
			!strings.Contains(err.Error(), "TF_BFC_MEMORY_DUMP") {
			t.Errorf("%s: got %v, want a clear refusal", name, err)
		}
	}
}

func FuzzBFCDump(f *testing.F) {
	if data, err := os.ReadFile("testdata/bfc-exhaust.dump"); err == nil {
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if d, err := ReadBFCDump(bytes.NewReader(data)); err == nil && len(d.Chunks) > len(data) {
			t.Errorf("%d chunks out of %d bytes", len(d.Chunks), len(data))
		}
	})
}
