package serve

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"memroom/event"
	"memroom/feed"
	"memroom/feed/table"
)

// writeRows writes a .npy file of rows of 16 float32 whose first number is the row's own.
func writeRows(t *testing.T, path string, rows int) {
	t.Helper()
	head := fmt.Sprintf("{'descr': '<f4', 'fortran_order': False, 'shape': (%d, 16), }", rows)
	for (len(head)+11)%64 != 0 {
		head += " "
	}
	head += "\n"
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	out := bufio.NewWriterSize(file, 1<<20)
	_, _ = out.WriteString("\x93NUMPY\x01\x00")
	_ = binary.Write(out, binary.LittleEndian, uint16(len(head)))
	_, _ = out.WriteString(head)
	row := make([]float32, 16)
	for i := range rows {
		row[0] = float32(i)
		if err := binary.Write(out, binary.LittleEndian, row); err != nil {
			t.Fatal(err)
		}
	}
	if err := out.Flush(); err != nil {
		t.Fatal(err)
	}
}

// readEpoch reads one epoch through the socket and returns a hash of all batches and the report.
// between is called before each batch is given back.
func readEpoch(t *testing.T, socket string, window int64, between func(batch uint64)) (
	uint64, Report) {
	t.Helper()
	conn, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	line, _ := json.Marshal(request{Version: 1, Spec: feed.Spec{Shuffle: true, Seed: 3,
		Window: window, Batch: 1024}, Stride: 1, Transport: "copy"})
	if _, err := conn.Write(append(line, '\n')); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReaderSize(conn, 1<<20)
	var first answer
	for line = []byte("\n"); err == nil && len(line) == 1; { // empty lines: it is still indexing
		line, err = in.ReadBytes('\n')
	}
	if err == nil {
		err = json.Unmarshal(line, &first)
	}
	if err != nil || first.Error != "" {
		t.Fatal(err, first.Error)
	}
	sum := fnv.New64()
	for {
		var h header
		if err := binary.Read(in, binary.LittleEndian, &h); err != nil {
			t.Fatal(err)
		}
		content := make([]byte, uint64(h.Spans)*16+h.Size)
		if _, err := io.ReadFull(in, content); err != nil {
			t.Fatal(err)
		}
		switch h.Kind {
		case kindEnd:
			var report Report
			if err := json.Unmarshal(content, &report); err != nil {
				t.Fatal(err)
			}
			return sum.Sum64(), report
		case kindError:
			t.Fatal(string(content))
		}
		_, _ = sum.Write(content)
		between(h.Batch)
		if err := binary.Write(conn, binary.LittleEndian, h.Slot); err != nil {
			t.Fatal(err)
		}
	}
}

// TestBudgetFollowsTheHost reads an epoch from a server whose host is short of memory half-way: the
// budget goes down to what one window needs, and the rows come in the same order.
func TestBudgetFollowsTheHost(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.npy")
	writeRows(t, path, 1<<20) // 64 MiB
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	const budget, window = 256 << 20, 8 << 20
	var short atomic.Bool
	var looks atomic.Int64
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	socket := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		ended <- Serve(ctx, Config{Sources: []string{path}, Budget: budget, Log: t.Logf,
			Host: func() Pressure {
				looks.Add(1)
				return Pressure{High: short.Load(), Why: "the test says so"}
			}}, listener)
	}()
	calm, report := readEpoch(t, socket, window, func(uint64) {})
	if report.ShrunkTo != 0 {
		t.Errorf("without pressure the budget went down to %s", report.ShrunkTo)
	}
	pressed, report := readEpoch(t, socket, window, func(batch uint64) {
		if batch != 500 {
			return
		}
		short.Store(true)
		for from := looks.Load(); looks.Load() < from+12; {
			time.Sleep(20 * time.Millisecond)
		}
	})
	if pressed != calm {
		t.Error("under pressure the rows came in another order")
	}
	want := event.Bytes(window/rowsShare + fixedReserve)
	if report.ShrunkTo != want || report.ShrunkBy != "the test says so" {
		t.Errorf("the budget went down to %s (%s), want %s", report.ShrunkTo, report.ShrunkBy, want)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestResize looks at the parts of a budget that goes down and up again.
func TestResize(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.npy")
	writeRows(t, path, 1<<19) // 32 MiB
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	const whole = 128 << 20
	s := &Server{config: Config{Sources: []string{path}, Budget: whole},
		peak: newPeakMeter(t.Context())}
	s.now.Store(whole)
	s.batches = newAccount(int64(float64(s.spare()) * batchesShare))
	from, err := s.take()
	if err != nil {
		t.Fatal(err)
	}
	defer from.data.Close()
	spec := feed.Spec{Shuffle: true, Window: 4 << 20, Batch: 1024}
	if err := s.fits(from.data, spec); err != nil {
		t.Fatal(err)
	}
	cursor := feed.NewCursor(from.data, from.pool, spec, 0)
	read := func(from, to int64) {
		for k := from; k < to; k++ {
			err := cursor.Fill(t.Context(), k, k+1, func(_ int, _ []table.Span, size int64) ([]byte, error) {
				return make([]byte, size), nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	read(0, cursor.Batches())
	full := from.pool.Held()
	if !s.batches.reserve(20<<20, false) {
		t.Fatal("20 MiB do not fit into a quarter of 104 MiB")
	}
	for range 20 {
		s.shrink("a test")
	}
	if now := s.now.Load(); now != fixedReserve+8<<20 {
		t.Errorf("the budget went down to %d MiB", now>>20)
	}
	// One window may stay, with what describes it.
	if held := from.pool.Held(); held >= full || held > 5<<20 {
		t.Errorf("of %d bytes of rows %d are still held", full, held)
	}
	if !s.batches.over() || s.batches.reserve(1, false) {
		t.Error("batches may still grow")
	}
	if !s.batches.reserve(1<<20, true) {
		t.Error("a consumer cannot have its first batch")
	}
	read(0, cursor.Batches()/2) // one window at a time
	if held := from.pool.Held(); held > 8<<20 {
		t.Errorf("%d bytes of rows are held", held)
	}
	s.resize(whole)
	if s.batches.over() || s.spare() != whole-fixedReserve {
		t.Error("the budget did not come back")
	}
}

// eventually waits for something that other processes do. How long that takes is the machine's
// business: only a hang ends it, at half of what the test binary has left.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	began, limit := time.Now(), 10*time.Minute
	if end, set := t.Deadline(); set {
		limit = time.Until(end) / 2
	}
	for ; !holds(); time.Sleep(20 * time.Millisecond) {
		if time.Since(began) > limit {
			t.Fatalf("never: %s", what)
		}
	}
}
