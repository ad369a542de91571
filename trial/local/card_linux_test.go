package local

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"memroom/event"
)

// TestOnCardWithoutTheDriversWord: in a container the driver names no processes; what the
// allocators of the trial's own processes hold counts, not what others do meanwhile.
func TestOnCardWithoutTheDriversWord(t *testing.T) {
	dir := t.TempDir()
	r := &running{Job: Job{Samples: filepath.Join(dir, "samples"), Steps: filepath.Join(dir, "steps"),
		Limit: filepath.Join(dir, "limit")}}
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	at := time.Now()
	write(r.Samples, `{"gpus":[{"uuid":"a","total":100,"used":90,"ours":42949672960,"guessed":true}]}
`)
	if c := r.onCard(at); c.used != 0 || c.steps != 0 {
		t.Errorf("before the first step: %+v", c)
	}
	write(r.Steps, `{"pid":7,"step":2,"device":0,"reserved":1073741824}
`)
	at = at.Add(time.Second)
	want := event.GiB + contextMost
	if c := r.onCard(at); c.used != want || c.steps != 2 || c.rose != 2 {
		t.Errorf("after two steps: %+v, want %v", c, want)
	}
	write(r.Steps, `{"pid":7,"step":8,"device":0,"reserved":2147483648}
{"pid":8,"step":8,"device":0,"reserved":1073741824}
{"pid":8,"step":8,"device":-1,"reserved":0}
{"pid":7,"step":9,"device":0,"reserved":2147483648}
{"pid":9,"step":9,"device":1,"reserved":99
`)
	at = at.Add(time.Second)
	want = 3*event.GiB + contextMost
	if c := r.onCard(at); c.used != want || c.steps != 9 || c.rose != 9 {
		t.Errorf("two processes: %+v, want %v", c, want)
	}
	write(r.Samples, `{"gpus":[{"uuid":"a","total":100,"used":90,"ours":5368709120}]}
`)
	at = at.Add(time.Second)
	if c := r.onCard(at); c.used != 5*event.GiB || c.rose != 9 {
		t.Errorf("named by the driver: %+v", c)
	}
	b := &Backend{jobs: map[string]*running{"x": r}}
	if err := b.ResizeDevice("x", 6*event.GiB); err != nil {
		t.Fatal(err)
	}
	if data, _ := os.ReadFile(r.Limit); string(data) != "6442450944\n" {
		t.Errorf("the limit's file says %q", data)
	}
}
