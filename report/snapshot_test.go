package report

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"strings"
	"testing"

	"github.com/google/pprof/profile"

	"memroom/diagnose"
	"memroom/event"
)

var evil = []string{
	"</script><script>window.pwned=1</script>", "<img src=x onerror=alert(1)>",
	"\x1b]0;pwned\x07\x1b[31mred\x1b[0m", "\u202egpj.exe", "a\nb\tc\r",
	strings.Repeat("long", 1000), "",
}

// snapshotOf makes a device whose call stacks carry the given names.
func snapshotOf(names []string, allocs int) Device {
	frames := func(id event.StackID) []event.Frame {
		if id == 0 || len(names) == 0 {
			return nil
		}
		name := names[int(id)%len(names)]
		return []event.Frame{{File: name, Name: name, Line: int(id)},
			{File: "/x/train.py", Name: "forward", Line: 1}}
	}
	b := diagnose.NewLedger(1, frames, nil)
	b.Add(event.Entry{Kind: event.KindSegmentAlloc, Addr: 1 << 40, Size: 1 << 40,
		TimeUS: 1_000_000}, 0)
	for i := range allocs {
		e := event.Entry{Kind: event.KindAlloc, Addr: 1<<40 + uint64(i)<<20, Size: int64(512 + i),
			TimeUS: 1_000_001 + int64(i), Stack: event.StackID(i)}
		b.Add(e, 0)
		if i%3 == 2 {
			e.Kind = event.KindFreeRequested
			b.Add(e, 0)
		}
	}
	return Device{Snapshot: diagnose.AnalyseSnapshot(b.Finish())}
}

func htmlOf(t *testing.T, devices ...Device) string {
	t.Helper()
	var page bytes.Buffer
	if err := SnapshotHTML(&page, evil[0], []string{evil[1]}, devices); err != nil {
		t.Fatal(err)
	}
	return page.String()
}

func TestPageHasNothingOfTheSnapshotInItsMarkup(t *testing.T) {
	page := htmlOf(t, snapshotOf(evil, 50))
	for _, raw := range []string{"pwned", "onerror", "\x1b", "\u202e"} {
		if strings.Contains(strings.Replace(page,
			"&lt;/script&gt;&lt;script&gt;window.pwned=1&lt;/script&gt;", "", 1), raw) {
			t.Errorf("the page contains %q outside its data", raw)
		}
	}
	if n := strings.Count(page, "<script"); n != 2 {
		t.Errorf("%d scripts, want the data and the page's own", n)
	}
}

// TestPolicyAllowsThePagesScriptAndNoOther: a wrong hash would switch the page off, a scheme or a
// keyword next to it would let others in.
func TestPolicyAllowsThePagesScriptAndNoOther(t *testing.T) {
	page := htmlOf(t, snapshotOf(nil, 5))
	script := regexp.MustCompile(`(?s)<script type="module">(.*?)</script>`).FindStringSubmatch(page)
	if script == nil {
		t.Fatal("no module script")
	}
	sum := sha256.Sum256([]byte(script[1]))
	want := "default-src 'none'; script-src 'sha256-" +
		base64.StdEncoding.EncodeToString(sum[:]) + "';"
	if policy := regexp.MustCompile(`Security-Policy" content="(.*?)"`).FindStringSubmatch(page); policy ==
		nil || !strings.HasPrefix(policy[1], want) {
		t.Errorf("the policy is %q, want it to begin %q", policy, want)
	}
	if regexp.MustCompile(`https?://`).MatchString(page) {
		t.Error("the page names an address on a network")
	}
}

// payload is the page's data, decoded.
type payload struct {
	File    string
	Devices []struct {
		Entries  int
		Omitted  int
		Smallest int64
		Stacks   [][]uint32
		Arrays   map[string]pageArray
	}
	data []byte
}

func decodePayload(t *testing.T, page string) (p payload) {
	t.Helper()
	text := regexp.MustCompile(`(?s)id="data">(.*?)</script>`).FindStringSubmatch(page)[1]
	unpacked, err := gzip.NewReader(base64.NewDecoder(base64.StdEncoding, strings.NewReader(text)))
	if err != nil {
		t.Fatal(err)
	}
	all, err := io.ReadAll(unpacked)
	if err != nil {
		t.Fatal(err)
	}
	n := int(binary.LittleEndian.Uint32(all))
	if err := json.Unmarshal(all[4:4+n], &p); err != nil {
		t.Fatal(err)
	}
	p.data = all[(4+n+7)/8*8:]
	return p
}

func TestPageListsEveryBlockOfASmallRecording(t *testing.T) {
	p := decodePayload(t, htmlOf(t, snapshotOf(evil, 300)))
	d := p.Devices[0]
	if d.Omitted != 0 || d.Arrays["start"].Length != 300 || d.Arrays["kind"].Length != 300 {
		t.Errorf("%d omitted, %d listed of 300", d.Omitted, d.Arrays["start"].Length)
	}
	for name, a := range d.Arrays {
		size := map[string]int{"f64": 8, "i32": 4, "u32": 4, "u8": 1}[a.Type]
		if a.Offset%8 != 0 || size == 0 || a.Offset+a.Length*size > len(p.data) {
			t.Errorf("array %s: %+v does not fit %d bytes", name, a, len(p.data))
		}
	}
}

func TestPageOfALargeRecordingIsBounded(t *testing.T) {
	d := decodePayload(t, htmlOf(t, snapshotOf(nil, pageBlocks+50_000))).Devices[0]
	if listed := d.Arrays["start"].Length; listed > pageBlocks || listed < pageBlocks/2 ||
		d.Omitted != pageBlocks+50_000-listed {
		t.Errorf("%d listed, %d omitted", listed, d.Omitted)
	}
	if d.Smallest == 0 || d.Arrays["restWhen"].Length == 0 ||
		d.Arrays["restWhen"].Length > 2*pagePoints {
		t.Errorf("smallest %d, %d points of the rest", d.Smallest, d.Arrays["restWhen"].Length)
	}
}

func TestTextIsSafeToPrint(t *testing.T) {
	var out bytes.Buffer
	text := NewText(&out, false)
	SnapshotText(text, "/some/"+evil[2], []string{evil[2]}, []Device{snapshotOf(evil, 60)}, 100)
	if text.Err() != nil {
		t.Fatal(text.Err())
	}
	for _, r := range out.String() {
		if r != '\n' && (r < ' ' || r == 0x7f || r == '\u202e') {
			t.Fatalf("the report contains %q", r)
		}
	}
	var colored bytes.Buffer
	SnapshotText(NewText(&colored, true), "x", nil, []Device{snapshotOf(nil, 3)}, 5)
	if !strings.Contains(colored.String(), "\x1b[1m") {
		t.Error("no colours when they are wanted")
	}
}

type brokenDisk struct{ left int }

func (b *brokenDisk) Write(p []byte) (int, error) {
	if b.left -= len(p); b.left < 0 {
		return 0, fmt.Errorf("no space left on device")
	}
	return len(p), nil
}

func TestWritersReportAFullDisk(t *testing.T) {
	d := []Device{snapshotOf(evil, 2000)}
	for name, write := range map[string]func(io.Writer) error{
		"html":     func(w io.Writer) error { return SnapshotHTML(w, "x", nil, d) },
		"pprof":    func(w io.Writer) error { return SnapshotPprof(w, d) },
		"perfetto": func(w io.Writer) error { return SnapshotPerfetto(w, d) },
		"text": func(w io.Writer) error {
			t := NewText(w, false)
			SnapshotText(t, "x", nil, d,
				9)
			return t.Err()
		},
	} {
		for _, left := range []int{0, 300} {
			if err := write(&brokenDisk{left}); err == nil {
				t.Errorf("%s: a disk with room for %d bytes is not noticed", name, left)
			}
		}
	}
}

func TestProfileAddsUpToThePeak(t *testing.T) {
	for name, d := range map[string]Device{"names": snapshotOf(evil, 500),
		"no stacks": snapshotOf(nil, 50),
		"nothing": {Snapshot: diagnose.AnalyseSnapshot(diagnose.NewLedger(0, nil,
			nil).Finish())}} {
		var out bytes.Buffer
		if err := SnapshotPprof(&out, []Device{d}); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		p, err := profile.Parse(&out)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var live, made int64
		for _, s := range p.Sample {
			live += s.Value[1]
			made += s.Value[2]
		}
		if live != int64(d.Snapshot.AllocatedPeak) || made != int64(d.Snapshot.Allocs) {
			t.Errorf("%s: %d bytes in use and %d allocations, the snapshot has %d and %d", name,
				live, made, d.Snapshot.AllocatedPeak, d.Snapshot.Allocs)
		}
	}
}

func TestPerfettoShowsThePeak(t *testing.T) {
	for name, d := range map[string]Device{"small": snapshotOf(evil, 400),
		"thinned": snapshotOf(nil, 80_000),
		"nothing": {Snapshot: diagnose.AnalyseSnapshot(diagnose.NewLedger(0, nil, nil).Finish())}} {
		var out bytes.Buffer
		if err := SnapshotPerfetto(&out, []Device{d}); err != nil {
			t.Fatal(err)
		}
		var file struct{ TraceEvents []chromeEvent }
		if err := json.Unmarshal(out.Bytes(), &file); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var peak float64
		open := map[string]bool{}
		last := -1.0
		for _, e := range file.TraceEvents {
			switch {
			case e.Phase == "C" && e.Name == "allocated":
				var sum float64
				for _, v := range e.Args {
					sum += v.(float64)
				}
				peak = max(peak, sum)
				if e.Time < last {
					t.Errorf("%s: the counter goes back in time", name)
				}
				last = e.Time
			case e.Phase == "b":
				open[e.ID] = true
			case e.Phase == "e" && !open[e.ID]:
				t.Errorf("%s: block %s ends before it begins", name, e.ID)
			}
		}
		if peak != float64(d.Snapshot.AllocatedPeak) || len(open) > perfettoBlocks {
			t.Errorf("%s: the counter's peak is %v, the snapshot's %d; %d blocks", name, peak,
				d.Snapshot.AllocatedPeak, len(open))
		}
	}
}
