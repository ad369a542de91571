package allocsim_test

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"memroom/allocsim"
	"memroom/event"
	"memroom/testenv"
	"memroom/trace"
)

// bfcRecord is what testdata/record_bfc.py wrote about one program under a real TensorFlow.
type bfcRecord struct {
	TensorFlow, Program          string
	Limit, Current, Peak, Failed int64
	Regions                      [][2]int64 // address, bytes
	Events                       []bfcEvent
	refused, nextRegion          int
}

type bfcEvent struct {
	Free                        bool
	Requested, Addr, Chunk, Use int64
	Peak                        int64
	Fragmentation               *float64 // nil where nothing was free
}

func (e *bfcEvent) UnmarshalJSON(data []byte) error {
	var kind string
	err := json.Unmarshal(data, &[]any{&kind, &e.Requested, &e.Addr, &e.Chunk, &e.Use, &e.Peak,
		&e.Fragmentation})
	e.Free = kind == "f"
	return err
}

func readBFCRecord(t *testing.T, path string) *bfcRecord {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	unpacked, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	r := &bfcRecord{}
	if err := json.NewDecoder(unpacked).Decode(r); err != nil {
		t.Fatal(err)
	}
	return r
}

// driver hands out the recorded regions and refuses any other size: a model that asks for one byte
// more or less in its back-pedalling never gets its region.
func (r *bfcRecord) driver(size int64) (uint64, bool) {
	if r.nextRegion == len(r.Regions) || r.Regions[r.nextRegion][1] != size {
		r.refused++
		return 0, false
	}
	r.nextRegion++
	return uint64(r.Regions[r.nextRegion-1][0]), true
}

// replay puts every recorded request to the model and compares every answer.
func (r *bfcRecord) replay(t *testing.T, after func(*allocsim.BFC)) *allocsim.BFC {
	t.Helper()
	model := allocsim.NewBFC(allocsim.BFCOptions{Limit: event.Bytes(r.Limit), Growth: true,
		Region: r.driver})
	for i, e := range r.Events {
		if e.Free {
			if err := model.Free(uint64(e.Addr)); err != nil {
				t.Fatalf("event %d: %v", i, err)
			}
		} else if addr, err := model.Malloc(e.Requested); err != nil || addr != uint64(e.Addr) {
			t.Fatalf("event %d: %d bytes went to %#x (%v), TensorFlow put them at %#x", i,
				e.Requested, addr, err, e.Addr)
		}
		s := model.Stats()
		if int64(s.InUse) != e.Use || int64(s.PeakInUse) != e.Peak {
			t.Fatalf("event %d: in use %d, peak %d; TensorFlow says %d and %d", i, s.InUse,
				s.PeakInUse, e.Use, e.Peak)
		}
		if e.Fragmentation != nil &&
			math.Abs(s.Fragmentation-*e.Fragmentation) > 1e-5*math.Abs(*e.Fragmentation) {
			t.Fatalf("event %d: fragmentation %v, TensorFlow says %v", i, s.Fragmentation,
				*e.Fragmentation)
		}
		after(model)
	}
	if r.nextRegion != len(r.Regions) {
		t.Errorf("took %d regions, TensorFlow %d", r.nextRegion, len(r.Regions))
	}
	if s := model.Stats(); int64(s.InUse) != r.Current || int64(s.PeakInUse) != r.Peak {
		t.Errorf("ends with %d in use, peak %d; get_memory_info says %d and %d", s.InUse,
			s.PeakInUse, r.Current, r.Peak)
	}
	return model
}

func TestBFCReproducesRecordedTensorFlow(t *testing.T) {
	for _, program := range []string{"train", "shuffle", "exhaust", "pedal"} {
		t.Run(program, func(t *testing.T) {
			r := readBFCRecord(t, filepath.Join("testdata", "bfc-"+program+".json.gz"))
			r.replay(t, func(*allocsim.BFC) {})
			t.Logf("%d requests of TensorFlow %s placed as it did, %d regions, %d refusals",
				len(r.Events), r.TensorFlow, len(r.Regions), r.refused)
			if program == "pedal" && r.refused == 0 {
				t.Error("the recorded driver never refused: back-pedalling is untested")
			}
		})
	}
}

// TestBFCFailsWhereTensorFlowDid compares the state at the failing request with TensorFlow's own
// dump, chunk by chunk.
func TestBFCFailsWhereTensorFlowDid(t *testing.T) {
	f, err := os.Open(filepath.Join("..", "trace", "testdata", "bfc-exhaust.dump"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	dump, err := trace.ReadBFCDump(f)
	if err != nil {
		t.Fatal(err)
	}
	r := readBFCRecord(t, filepath.Join("testdata", "bfc-exhaust.json.gz"))
	compared := 0
	r.replay(t, func(model *allocsim.BFC) {
		if s := model.Stats(); s.Allocs != dump.Allocs || s.InUse != dump.InUse {
			return
		}
		compared++
		if got, want := describeModel(model), describeDump(dump); got != want {
			t.Errorf("chunks at the failure:\n%s\nTensorFlow dumped:\n%s", got, want)
		}
		if _, err := model.Malloc(r.Failed); !errors.Is(err, allocsim.ErrBFCFull) {
			t.Errorf("%d bytes: %v; TensorFlow was out of memory", r.Failed, err)
		}
	})
	if compared != 1 {
		t.Errorf("the dumped state was met %d times, want once", compared)
	}
}

func describeModel(model *allocsim.BFC) (text string) {
	for _, region := range model.Regions() {
		for _, c := range region.Chunks {
			text += fmt.Sprintln(c.Addr, int64(c.Size), c.InUse)
		}
	}
	return text
}

func describeDump(d *trace.BFCDump) (text string) {
	for _, c := range d.Chunks {
		text += fmt.Sprintln(c.Addr, int64(c.Size), c.InUse)
	}
	return text
}

// TestBFCReproducesTensorFlowHere records afresh with the TensorFlow that is installed.
func TestBFCReproducesTensorFlowHere(t *testing.T) {
	python := testenv.Python(t, "tensorflow")
	for program, limitMB := range map[string]string{"train": "256", "shuffle": "512",
		"pedal": "4096"} {
		t.Run(program, func(t *testing.T) {
			dir := t.TempDir()
			out := filepath.Join(dir, "record.json.gz")
			record := testenv.Program{Python: python,
				Args: []string{filepath.Join("testdata", "record_bfc.py"), out, limitMB, program},
				Env: []string{"TF_CPU_ALLOCATOR_USE_BFC=true",
					"TF_CPU_BFC_MEM_LIMIT_IN_MB=" + limitMB,
					"TF_CPP_VMODULE=bfc_allocator=1", "OMP_NUM_THREADS=1"},
				Rest:   []string{"MEMROOM_BFC_LOG=" + filepath.Join(dir, "log")},
				Stderr: filepath.Join(dir, "log"), File: out}.MustAsk(t).Out
			testenv.Write(t, out, record)
			r := readBFCRecord(t, out)
			r.replay(t, func(*allocsim.BFC) {})
			t.Logf("%d requests placed as TensorFlow %s did", len(r.Events), r.TensorFlow)
		})
	}
}

// checkBFC holds what must be true after every request: chunks tile their regions, free neighbours
// are joined, sums agree.
func checkBFC(t *testing.T, model *allocsim.BFC) {
	t.Helper()
	s := model.Stats()
	var pool, use, largest event.Bytes
	for _, region := range model.Regions() {
		at, wasFree := region.Addr, false
		for _, c := range region.Chunks {
			if c.Addr != at || c.Size <= 0 || c.Size%256 != 0 || wasFree && !c.InUse {
				t.Fatalf("chunk %+v does not follow %#x, or two free ones are neighbours", c, at)
			}
			at, wasFree = at+uint64(c.Size), !c.InUse
			if c.InUse {
				use += c.Size
			} else {
				largest = max(largest, c.Size)
			}
		}
		if at != region.Addr+uint64(region.Size) {
			t.Fatalf("chunks of the region at %#x end at %#x", region.Addr, at)
		}
		pool += region.Size
	}
	if pool != s.Pool || use != s.InUse || largest != s.LargestFree || s.Pool > s.Limit ||
		s.InUse > s.PeakInUse {
		t.Fatalf("chunks hold %d in use of %d, largest free %d; stats say %+v", use, pool, largest,
			s)
	}
}

func TestBFCHoldsItsInvariants(t *testing.T) {
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 1))
		model := allocsim.NewBFC(allocsim.BFCOptions{Limit: 64 * event.MiB, Growth: seed%2 == 0,
			CollectGarbage: seed%3 == 0, CoalesceRegions: seed%5 == 0})
		var held []uint64
		for range 400 {
			if len(held) > 0 && rng.IntN(100) < 45 {
				i := rng.IntN(len(held))
				if err := model.Free(held[i]); err != nil {
					t.Fatal(err)
				}
				held = append(held[:i], held[i+1:]...)
			} else if addr, err := model.Malloc(1 + rng.Int64N(1<<rng.IntN(24))); err == nil {
				held = append(held, addr)
			}
			checkBFC(t, model)
		}
		for _, addr := range held {
			if err := model.Free(addr); err != nil {
				t.Fatal(err)
			}
		}
		checkBFC(t, model)
		if s := model.Stats(); s.InUse != 0 {
			t.Fatalf("seed %d: %d bytes in use after freeing all", seed, s.InUse)
		}
	}
}

// TestBFCGivesIdleRegionsBack: three regions fill the limit; a request larger than each needs them
// all back.
func TestBFCGivesIdleRegionsBack(t *testing.T) {
	for _, collect := range []bool{false, true} {
		model := allocsim.NewBFC(allocsim.BFCOptions{Limit: 14 * event.MiB, Growth: true,
			CollectGarbage: collect})
		for _, size := range []int64{2 << 20, 4 << 20, 8 << 20} {
			if _, err := model.Malloc(size); err != nil {
				t.Fatal(err)
			}
		}
		for _, region := range model.Regions() {
			if err := model.Free(region.Addr); err != nil {
				t.Fatal(err)
			}
		}
		_, err := model.Malloc(12 << 20)
		if collect != (err == nil) {
			t.Errorf("garbage collection %v: 12 MiB out of 14 MiB idle: %v", collect, err)
		}
		checkBFC(t, model)
	}
}

func TestBFCWithoutGrowthTakesTheWholeLimit(t *testing.T) {
	model := allocsim.NewBFC(allocsim.BFCOptions{Limit: 10 * event.GiB})
	if _, err := model.Malloc(1); err != nil {
		t.Fatal(err)
	}
	if s := model.Stats(); s.Pool != 10*event.GiB || s.InUse != 256 {
		t.Errorf("pool %d, in use %d; want all 10 GiB and one quantum", s.Pool, s.InUse)
	}
	if err := model.Free(12345); err == nil {
		t.Error("freeing an address that was never given out is accepted")
	}
	if _, err := model.Malloc(0); err == nil {
		t.Error("a request for nothing is accepted")
	}
}

func TestRunBFCGivesPeaksAndTheFirstFailure(t *testing.T) {
	timeline := &event.Timeline{
		Ops: []event.Op{
			{Kind: event.OpAlloc, ID: 0, Size: 1 << 20}, {Kind: event.OpAlloc, ID: 1,
				Size: 3 << 20}, {Kind: event.OpFreePending, ID: 0},
			{Kind: event.OpAlloc, ID: 2, Size: 5 << 20}, {Kind: event.OpFreeDone, ID: 0},
			{Kind: event.OpFree, ID: 2}, {Kind: event.OpAlloc, ID: 3, Size: 1 << 30},
		},
		Marks: []event.Mark{{At: 0, Phase: "load"}, {At: 3, Step: 1, Phase: "forward"}},
	}
	got, err := allocsim.RunBFC(timeline, allocsim.BFCOptions{Limit: 64 * event.MiB, Growth: true})
	if err != nil {
		t.Fatal(err)
	}
	// 1 MiB cuts the first region of 2 MiB in half; 3 MiB and 5 MiB take their regions of 4 and 8
	// MiB whole.
	if got.AllocatedPeak != 13*event.MiB || got.AllocatedPeakAt != 3 ||
		got.ReservedPeak != 14*event.MiB || got.RequestedPeak != 9*event.MiB {
		t.Errorf("peaks %v at %d, pool %v, requested %v", got.AllocatedPeak, got.AllocatedPeakAt,
			got.ReservedPeak, got.RequestedPeak)
	}
	if got.OOM == nil || got.OOM.At != 6 || got.OOM.Allocated != 4*event.MiB || got.Ops != 6 ||
		len(got.Marks) != 2 || got.Marks[1].AllocatedPeak != 13*event.MiB {
		t.Errorf("failure %+v after %d operations, marks %+v", got.OOM, got.Ops, got.Marks)
	}
	if _, err := allocsim.RunBFC(&event.Timeline{Ops: []event.Op{{Kind: event.OpFree, ID: 9}}},
		allocsim.BFCOptions{}); err == nil {
		t.Error("a release of what was never made is accepted")
	}
}

// TestRequestedPeakCountsWhatIsLive: a request that was freed before the next is not in it.
func TestRequestedPeakCountsWhatIsLive(t *testing.T) {
	timeline := &event.Timeline{Ops: []event.Op{{Kind: event.OpAlloc, ID: 0, Size: 3 << 20},
		{Kind: event.OpFree, ID: 0}, {Kind: event.OpAlloc, ID: 1, Size: 1 << 20},
		{Kind: event.OpAlloc, ID: 2, Size: 1<<20 + 5}}}
	got, err := allocsim.RunBFC(timeline, allocsim.BFCOptions{Growth: true})
	if err != nil || got.RequestedPeak != 3*event.MiB || got.Allocs != 3 {
		t.Errorf("requested %s in %d requests, %v", got.RequestedPeak, got.Allocs, err)
	}
}
