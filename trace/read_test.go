package trace

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"

	"memroom/event"
	"memroom/testenv"
)

// snapshotWith writes a snapshot with events that share stacks and names, some segments, settings
// and an annotation.
func snapshotWith(p *pickler, events int) []byte {
	frame := func(i int) {
		key := fmt.Sprint("frame", i)
		if slot, ok := p.frames[key]; ok {
			p.get(slot)
			return
		}
		slot := p.next // the Python writer memoizes the empty dict
		p.dict(p.str("name", fmt.Sprint("f", i)), p.str("filename", "train.py"),
			p.num("line", int64(i)))
		if p.cpp {
			slot = p.next - 1
		}
		p.frames[key] = slot
	}
	stack := func(i int) pair {
		return pair{"frames", func() { p.list(1+i%3, func(j int) { frame(i%5 + j) }) }}
	}
	segment := func(addr int64, expandable int64) {
		p.dict(p.num("device", 0), p.num("address", addr), p.num("total_size", 2<<20),
			p.num("stream", 0), p.str("segment_type", "small"),
			pair{"segment_pool_id", func() { p.integer(0); p.integer(0); p.op(opTuple2); p.put() }},
			p.num("is_expandable", expandable), stack(1),
			pair{"blocks", func() {
				p.list(2, func(i int) {
					p.dict(p.num("address", addr+int64(i)*512),
						p.num("size", []int64{512, 2<<20 - 512}[i]), p.num("requested_size", 100),
						p.str("state", []string{"active_allocated", "inactive"}[i]), stack(2))
				})
			}})
	}
	const base = 0x7f5c_0000_0000
	p.dict(
		pair{"segments", func() { p.list(2, func(i int) { segment(base+int64(i)<<21, 0) }) }},
		pair{"device_traces", func() {
			p.list(2, func(device int) {
				p.list(events*(1-device), func(i int) {
					p.dict(p.str("action", []string{"alloc", "free_requested", "free_completed",
						"something_new"}[i%4]), p.num("addr", base+int64(i%7)*512),
						p.num("size", int64(100+i)), p.num("stream", 0),
						p.num("time_us", 1_790_000_000_000_000+int64(i)),
						p.str("compile_context", "N/A"),
						p.str("user_metadata", ""), stack(i))
				})
			})
		}},
		pair{"allocator_settings", func() {
			p.dict(p.str("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64"),
				p.num("max_split_size", 64<<20), p.num("expandable_segments", 0),
				pair{"garbage_collection_threshold", func() {
					p.op(opBinFloat, 0x3f, 0xe9, 0x99,
						0x99, 0x99, 0x99, 0x99, 0x9a)
				}},
				pair{"roundup_power2_divisions", func() { p.dict(p.num("1", 4), p.num("2", 8)) }})
		}},
		pair{"external_annotations", func() {
			p.list(1, func(int) {
				p.dict(p.str("name", "step"), p.str("stage", "START"), p.num("device", 0),
					p.num("time_us", 5))
			})
		}},
	)
	return p.stop()
}

// entriesOf lists a history.
func entriesOf(h *event.History) (all []event.Entry) {
	for _, e := range h.All() {
		all = append(all, *e)
	}
	return all
}

func TestEveryWriterIsReadAlike(t *testing.T) {
	const events = 2501 // two whole batches, one of 501
	var first *Snapshot
	for _, w := range []struct {
		proto byte
		cpp   bool
	}{{4, false}, {5, false}, {2, false}, {2, true}} {
		name := fmt.Sprintf("protocol %d, C++ %v", w.proto, w.cpp)
		got, err := ReadSnapshot(bytes.NewReader(snapshotWith(newPickler(w.proto, w.cpp), events)))
		if err != nil || got.Truncated {
			t.Fatalf("%s: %v %+v", name, err, got)
		}
		if first == nil {
			first = got
			checkFirst(t, got, events)
			continue
		}
		if diff := cmp.Diff(entriesOf(&first.Recordings[0].History),
			entriesOf(&got.Recordings[0].History)); diff != "" {
			t.Errorf("%s: events differ: %s", name, diff)
		}
		if diff := cmp.Diff(first.Recordings[0].Segments, got.Recordings[0].Segments); diff != "" {
			t.Errorf("%s: segments differ: %s", name, diff)
		}
		if diff := cmp.Diff([]any{first.Settings, first.Annotations, first.Version, first.Warnings},
			[]any{got.Settings, got.Annotations, got.Version, got.Warnings}); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func checkFirst(t *testing.T, s *Snapshot, events int) {
	t.Helper()
	rec := &s.Recordings[0]
	if rec.History.Len() != events || len(rec.Segments) != 2 || len(rec.Segments[0].Blocks) != 2 {
		t.Fatalf("%d events, segments %+v", rec.History.Len(), rec.Segments)
	}
	want := event.Entry{Kind: event.KindFreeCompleted, Addr: 0x7f5c_0000_0000 + 6*512, Size: 106,
		TimeUS: 1_790_000_000_000_006, Stack: rec.History.At(6).Stack}
	if got := rec.History.At(6); got != want {
		t.Errorf("event 6 is %+v, want %+v", got, want)
	}
	frames := []event.Frame{{File: "train.py", Name: "f2", Line: 2},
		{File: "train.py", Name: "f3", Line: 3}, {File: "train.py", Name: "f4", Line: 4}}
	if diff := cmp.Diff(frames, s.Stacks.Frames(rec.History.At(2).Stack)); diff != "" {
		t.Errorf("stack of event 2: %s", diff)
	}
	if s.Stacks.Len() != 16 {
		t.Errorf("%d stacks, want 15 different ones and the empty one", s.Stacks.Len())
	}
	settings := event.AllocatorSettings{Known: true, Conf: "max_split_size_mb:64",
		MaxSplit: 64 << 20, GCThreshold: 0.8, Divisions: map[int]int{1: 4, 2: 8}}
	if diff := cmp.Diff(settings, s.Settings); diff != "" {
		t.Errorf("settings: %s", diff)
	}
	if len(s.Annotations) != 1 || s.Annotations[0].Name != "step" || len(s.Warnings) != 1 ||
		!strings.Contains(s.Warnings[0], "action") {
		t.Errorf("annotations %v, warnings %v", s.Annotations, s.Warnings)
	}
}

func TestPackedFilesAreUnpackedByContent(t *testing.T) {
	plain := snapshotWith(newPickler(4, false), 50)
	var gz, zs, xzed bytes.Buffer
	w := gzip.NewWriter(&gz)
	w.Write(plain)
	w.Close()
	z, _ := zstd.NewWriter(&zs)
	z.Write(plain)
	z.Close()
	x, _ := xz.NewWriter(&xzed)
	x.Write(plain)
	x.Close()
	for name, data := range map[string][]byte{"plain": plain, "gzip": gz.Bytes(),
		"zstd": zs.Bytes(), "xz": xzed.Bytes()} {
		s, err := ReadSnapshot(bytes.NewReader(data))
		if err != nil || s.Truncated || s.Recordings[0].History.Len() != 50 {
			t.Errorf("%s: %v", name, err)
		}
		s, err = ReadSnapshot(bytes.NewReader(data[:len(data)*2/3]))
		if err == nil && !s.Truncated {
			t.Errorf("%s cut off was not noticed", name)
		}
	}
}

func TestEventsNamedTwiceAreReadTwice(t *testing.T) {
	p := newPickler(4, false)
	p.dict(pair{"device_traces", func() {
		p.list(1, func(int) {
			p.list(3, func(i int) {
				if i == 2 {
					p.get(4) // top dict, its key, two lists: the first event is the fifth object
					return
				}
				p.dict(p.num("size", int64(i+1)), p.str("action", "alloc"))
			})
		})
	}})
	s, err := ReadSnapshot(bytes.NewReader(p.stop()))
	if err != nil || s.Truncated {
		t.Fatal(err, s)
	}
	var sizes []int64
	for _, e := range s.Recordings[0].History.All() {
		sizes = append(sizes, e.Size)
	}
	if diff := cmp.Diff([]int64{1, 2, 1}, sizes); diff != "" {
		t.Error(diff)
	}
}

// TestOldSnapshots reads what torch 2.0 and 1.13 wrote: blocks without addresses, with a history; a
// bare list of segments.
func TestOldSnapshots(t *testing.T) {
	p := newPickler(4, false)
	p.list(1, func(int) {
		p.dict(p.num("device", 1), p.num("address", 1<<30), p.num("total_size", 2<<20),
			p.num("stream", 7), p.str("segment_type", "small"),
			pair{"blocks", func() {
				p.list(2, func(i int) {
					p.dict(p.num("size", []int64{1024, 2<<20 - 1024}[i]),
						p.str("state", []string{"active_allocated", "inactive"}[i]),
						pair{"history", func() {
							p.list(1, func(int) {
								p.dict(p.num("addr", 1<<30), p.num("real_size", 777),
									pair{"frames", func() {
										p.list(1, func(int) {
											p.dict(p.str("name", "f"),
												p.str("filename", "a.py"), p.num("line", 3))
										})
									}})
							})
						}})
				})
			}})
	})
	s, err := ReadSnapshot(bytes.NewReader(p.stop()))
	if err != nil || s.Truncated {
		t.Fatal(err, s)
	}
	want := []event.Block{{Addr: 1 << 30, Size: 1024, Requested: 777, State: event.BlockActive,
		Stack: 1}, {Addr: 1<<30 + 1024, Size: 2<<20 - 1024}}
	if diff := cmp.Diff(want, s.Recordings[0].Segments[0].Blocks); diff != "" ||
		s.Recordings[0].Device != 1 {
		t.Error(diff, s.Recordings[0].Device)
	}
	if s.Version.Use() != "2.0" {
		t.Errorf("version %s", s.Version)
	}
}

func TestTruncatedFilesGiveWhatWasRead(t *testing.T) {
	whole := snapshotWith(newPickler(4, false), 2000)
	for cut := 1; cut < len(whole); cut += 37 {
		s, err := ReadSnapshot(bytes.NewReader(whole[:cut]))
		if err != nil {
			if !strings.Contains(err.Error(), "ends early") {
				t.Fatalf("cut at %d: %v", cut, err)
			}
			continue
		}
		if !s.Truncated || s.Offset > int64(cut) || !strings.Contains(s.Reason, "ends early") {
			t.Fatalf("cut at %d: truncated %v at %d: %s", cut, s.Truncated, s.Offset, s.Reason)
		}
	}
	s, err := ReadSnapshot(bytes.NewReader(whole[:len(whole)/2]))
	if err != nil || s.Recordings[0].History.Len() < 500 || !s.Recordings[0].CutOff {
		t.Errorf("half a file: %v, %+v", err, s)
	}
}

// TestPythonsOwnProtocols has the real pickle module write a real trace in every protocol.
func TestPythonsOwnProtocols(t *testing.T) {
	python := testenv.Python(t)
	source := filepath.Join(testenv.Root(t), "cli", "testdata", "mlp.pickle.gz")
	want, err := Open(source)
	if err != nil {
		t.Fatal(err)
	}
	for proto := 2; proto <= 5; proto++ {
		path := filepath.Join(t.TempDir(), "p.pickle")
		script := fmt.Sprintf("import gzip, pickle; pickle.dump(pickle.load(gzip.open(%q)), open(%q, "+
			"'wb'), protocol=%d)", source, path, proto)
		if out, err := exec.Command(python, "-c", script).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		got, err := Open(path)
		if err != nil || got.Truncated {
			t.Fatal(err, got)
		}
		if diff := cmp.Diff(entriesOf(&want.Recordings[0].History),
			entriesOf(&got.Recordings[0].History)); diff != "" {
			t.Errorf("protocol %d: %s", proto, diff)
		}
		if diff := cmp.Diff(want.Recordings[0].Segments, got.Recordings[0].Segments); diff != "" {
			t.Errorf("protocol %d: %s", proto, diff)
		}
	}
}

func TestOpenSaysWhatIsWrong(t *testing.T) {
	dir := t.TempDir()
	for name, c := range map[string]struct{ content, say string }{
		"empty":      {"", "empty"},
		"json":       {`{"segments": []}`, "JSON"},
		"checkpoint": {"PK\x03\x04data.pkl", "checkpoint"},
		"text":       {"step 1 loss 0.5", "0x80"},
		"protocol 0": {"(dp0\nS'a'\np1\nI1\ns.", "protocol 0"},
		"gzip junk":  {"\x1f\x8bjunk", "gzip"},
		"global": {"\x80\x04\x8c\x02os\x8c\x06system\x93.",
			"offset 14: the opcode STACK_GLOBAL"},
		"reduce":    {"\x80\x02cos\nsystem\n.", "offset 2: the opcode GLOBAL"},
		"other":     {"\x80\x04}\x94(\x8c\x05model\x94K\x01\x8c\x04step\x94K\x02u.", `neither segments nor device_traces, but "model", "step"`},
		"a number":  {"\x80\x04K\x01.", "no dict"},
		"underflow": {"\x80\x04u.", "offset 3"},
		"memo":      {"\x80\x04h\x05.", "memo slot 5 is empty"},
	} {
		path := filepath.Join(dir, strings.ReplaceAll(name, " ", "-"))
		if err := os.WriteFile(path, []byte(c.content), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Open(path)
		if err == nil || !strings.Contains(err.Error(), c.say) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v; want it to say %q in one line", name, err, c.say)
		}
	}
	if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), "folder") {
		t.Errorf("a folder: %v", err)
	}
}
