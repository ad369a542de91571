package probe

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"memroom/event"
)

func goldenLines(t *testing.T, name string) [][]byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return bytes.SplitAfter(bytes.TrimSuffix(data, []byte("\n")), []byte("\n"))
}

func TestDecodeGolden(t *testing.T) {
	one, zero, two := 1, 0, 2
	at := func(us int64) time.Time { return time.UnixMicro(us).UTC() }
	want := []Message{
		&Hello{Protocol: 1, PID: 4242, PPID: 17, Python: "3.12.4", Program: "train.py", Rank: &one,
			LocalRank: &zero, World: &two, Run: "r7"},
		&Framework{Name: "torch", Version: "2.11.0+cu130", CUDA: "13.0"},
		&Steps{Spent: 120 * time.Microsecond, Elapsed: 103 * time.Millisecond, Rows: []event.Step{
			{Step: 1, Device: 0, End: at(1700000000000000), Duration: 52 * time.Millisecond,
				Wait: time.Millisecond, Backward: 30 * time.Millisecond,
				Optimizer: 4 * time.Millisecond, MicroBatches: 2, Allocated: event.MiB,
				Reserved: 2 * event.MiB, PeakAllocated: 3 * event.MiB,
				AtBackward: 2621440, InactiveSplit: 512, Retries: 1, Resident: 700 * event.MiB,
				Anonymous: 500 * event.MiB, Heap: 250 * event.MiB},
			{Step: 2, Device: event.HostDevice, End: at(1700000000052000),
				Duration: 51 * time.Millisecond, Wait: 900 * time.Microsecond,
				Resident: 700 * event.MiB, Anonymous: 500 * event.MiB, Heap: 250 * event.MiB},
		}},
		&Phase{Phase: "eval", Begin: true, Step: 2, AtUS: 1700000000060000, Allocated: event.MiB,
			Reserved: 2 * event.MiB, Peak: 3 * event.MiB},
		&OOM{Step: 3, Requested: 384 * event.MiB, Total: 150109880320, Free: 132580900864,
			Allocated: 16761093120, Reserved: 16802381824,
			Split: 41288704, Phase: "forward", Frames: []event.Frame{{File: "träin.py",
				Name: "step", Line: 31}}},
		&Died{Type: "OutOfMemoryError", Text: "CUDA out of memory. Tried \"384.00 MiB\"\n",
			Where: event.WhereGPU, Frames: []event.Frame{}},
		&Report{Step: 4, Values: map[string]*float64{"loss": new(0.125), "lr": nil}},
		&Said{Kind: "declined", Text: "torch 1.13 does not know expandable_segments (since 2.1)",
			ID: "expandable_segments"},
		&Done{ID: 9, OK: true, Said: "freed 41288704 bytes"},
		&GivenUp{Part: "caches", Share: 0.0125},
		&Forked{PID: 4712, By: "loader"},
		&Exit{SpentUS: 120, ElapsedUS: 103000},
	}
	lines := goldenLines(t, "messages.jsonl")
	if len(lines) != len(want) {
		t.Fatalf("%d golden lines, %d expectations", len(lines), len(want))
	}
	for i, line := range lines {
		got, err := Decode(line)
		if err != nil {
			t.Errorf("line %d: %v", i+1, err)
			continue
		}
		if diff := cmp.Diff(want[i], got); diff != "" {
			t.Errorf("line %d (-want +got):\n%s", i+1, diff)
		}
	}
}

func TestEncodeGoldenCommands(t *testing.T) {
	commands := []Command{{ID: 1, Do: DoCollect}, {ID: 2, Do: DoRecordStacks, Steps: 12},
		{ID: 3, Do: DoSnapshot}}
	var got []byte
	for _, c := range commands {
		got = append(got, c.encode()...)
	}
	want, err := os.ReadFile("testdata/commands.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestDecodeNewerAndBroken(t *testing.T) {
	got, err := Decode([]byte(`{"t":"dream","x":[1,{"y":2}]}`))
	if u, ok := got.(*Unknown); err != nil || !ok || u.Type != "dream" {
		t.Errorf("a newer message gave %#v, %v", got, err)
	}
	for _, line := range []string{"", "{", "null", "[]", `{"t":3}`, `{"t":"hello","pid":"x"}`, `{"t":"steps","rows":[[1,2]]}`, `{"t":"steps","rows":[["a"]]}`} {
		if m, err := Decode([]byte(line)); err == nil || !strings.Contains(err.Error(),
			"probe message") {
			t.Errorf("%s gave %#v, %v", line, m, err)
		}
	}
}

func FuzzDecode(f *testing.F) {
	data, err := os.ReadFile("testdata/messages.jsonl")
	if err != nil {
		f.Fatal(err)
	}
	for _, line := range bytes.Split(data, []byte("\n")) {
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		if m, err := Decode(line); (m == nil) == (err == nil) {
			t.Errorf("message %v and error %v", m, err)
		}
	})
}
