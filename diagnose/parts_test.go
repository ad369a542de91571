package diagnose

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"memroom/allocsim"
	"memroom/event"
)

// TestRisesThrough: evenly, by 64 MiB or a twentieth, without most of it in one part.
func TestRisesThrough(t *testing.T) {
	parts := func(level int, ups ...int) (held []event.Bytes) { // two readings a part, in MiB
		at := level
		for i := range 8 {
			if i > 1 && i-2 < len(ups) {
				at += ups[i-2]
			}
			held = append(held, event.Bytes(at)*event.MiB, event.Bytes(at+9)*event.MiB)
		}
		return held
	}
	for name, c := range map[string]struct {
		held  []event.Bytes
		grown event.Bytes // in MiB
		rises bool
	}{
		"evenly":                {parts(1000, 11, 11, 11, 11, 11, 9), 64, true},
		"a MiB too little":      {parts(1000, 11, 11, 11, 11, 11, 8), 63, false},
		"of a large program":    {parts(2000, 17, 17, 17, 17, 16, 16), 100, true},
		"too little of it":      {parts(2000, 17, 17, 17, 16, 16, 16), 99, false},
		"with one rest":         {parts(1000, 16, 16, 16, 16, 16, 0), 80, true},
		"with two":              {parts(1000, 20, 20, 20, 20, 0, 0), 80, false},
		"half of it at once":    {parts(1000, 10, 10, 50, 10, 10, 10), 100, true},
		"more than half":        {parts(1000, 10, 10, 52, 10, 10, 10), 102, false},
		"it falls":              {parts(1000, -10, -10, -10, -10, -10, -10), -60, false},
		"too few readings":      {parts(1000, 20, 20, 20, 20, 20, 20)[:15], 0, false},
		"level":                 {parts(1000), 0, false},
		"it falls back between": {parts(1000, 40, -20, 40, -20, 40, -10), 70, false},
	} {
		if grown, rises := risesThrough(c.held); rises != c.rises || grown != c.grown*event.MiB {
			t.Errorf("%s: %s, %v", name, grown, rises)
		}
	}
}

// TestWhoEvaluates: the phase lasts until the last process ends it; of several the one that keeps
// most is named.
func TestWhoEvaluates(t *testing.T) {
	w := NewWatch(DefaultThresholds(), 0)
	w.processes[place{7, 0}] = &process{}
	w.Phase(7, "save", true)
	if w.processes[place{7, 0}].spike.phase != "save" || len(w.eval.running) != 0 {
		t.Error("saving is taken for evaluation")
	}
	w.Phase(7, "eval", true)
	w.Phase(8, "eval", true)
	w.Evaluation(7, Evaluated{Kept: 100 * event.KiB, Holder: "a in x.py:1"})
	w.Evaluation(8, Evaluated{Kept: 200 * event.KiB, Holder: "b in x.py:2"})
	if got := w.eval.seen(); got.Holder != "b in x.py:2" {
		t.Errorf("%+v", got)
	}
	w.eval.rising[hostMemory] = []event.Bytes{3, 9, 5}
	w.Phase(9, "eval", false) // that never began
	w.Phase(7, "eval", false)
	if w.eval.ended != 0 || len(w.eval.running) != 1 {
		t.Errorf("ended at %d while one goes on", w.eval.ended)
	}
	if w.Phase(8, "eval", false); w.eval.ended != 9 {
		t.Errorf("its peak is %d", w.eval.ended)
	}
}

// TestPeaksOfEvaluations: a tenth and 256 MiB above training, on a host that trains, once it has
// fallen by half of that.
func TestPeaksOfEvaluations(t *testing.T) {
	for name, c := range map[string]struct {
		trained, peak, now event.Bytes // in MiB
		reads              int
		host               bool
		want               bool
	}{
		"enough":           {1000, 1256, 1128, 8, true, true},
		"a MiB less":       {1000, 1255, 1000, 8, true, false},
		"a tenth of more":  {4000, 4400, 4000, 8, true, true},
		"less than that":   {4000, 4399, 4000, 8, true, false},
		"not fallen":       {1000, 1256, 1129, 8, true, false},
		"known too little": {1000, 1256, 1000, 7, true, false},
		"on a card":        {1000, 1256, 1000, 8, false, false},
	} {
		e := newEvalWatch()
		e.reads, e.ended = c.reads, c.peak*event.MiB
		e.trained[hostMemory] = c.trained * event.MiB
		e.known[7] = Evaluated{Grad: true}
		found := e.fellBack(c.now*event.MiB, c.host)
		if (len(found) == 1) != c.want {
			t.Errorf("%s: %+v", name, found)
		}
		if c.want && (found[0].Bytes != c.peak*event.MiB || found[0].Remedies[0] != "no_grad") {
			t.Errorf("%s: %+v", name, found[0])
		}
		if again := e.fellBack(c.now*event.MiB, c.host); len(again) > 0 {
			t.Errorf("%s is said twice", name)
		}
	}
}

// TestFeedsOfEachKind: the situation and what helps, and a smaller figure of the same place is not
// news.
func TestFeedsOfEachKind(t *testing.T) {
	for _, c := range []struct {
		feed   event.Feed
		shm    bool
		detail string
		cures  string
	}{
		{event.Feed{Source: "DataLoader", Workers: 2}, true, "workers",
			"dataloader_workers shm_size pin_memory"},
		{event.Feed{Source: "DataLoader"}, false, "workers", "micro_batch stream_data"},
		{event.Feed{Source: "DataLoader", Workers: 2, Pinned: true}, false, "workers",
			"dataloader_workers pin_memory stream_data"},
		{event.Feed{Source: "DataLoader", Workers: 2}, false, "workers",
			"dataloader_workers stream_data"},
		{event.Feed{Source: "datasets map"}, false, "map_writer", "map_processes stream_data"},
		{event.Feed{Source: "tf.data shuffle"}, false, "shuffle_buffer",
			"shuffle_buffer tf_data_budget stream_data"},
	} {
		detail, cures := feedCures(c.feed, c.shm)
		if detail != c.detail || strings.Join(cures, " ") != c.cures {
			t.Errorf("%+v: %s %v", c.feed, detail, cures)
		}
	}
	w := NewWatch(DefaultThresholds(), 0)
	w.wall = 10 * event.GiB
	small := event.Feed{Source: "DataLoader", File: "a.py", Line: 3, Workers: 2, Total: event.GiB}
	larger, smaller := small, small
	larger.Total, smaller.Total = 2*event.GiB, 1
	if found := w.Feeding(7, small); len(found) != 0 {
		t.Errorf("a tenth: %+v", found)
	}
	if found := w.Feeding(7, smaller); len(found) != 0 || w.feeding.feeds["DataLoadera.py3"].Total !=
		event.GiB {
		t.Errorf("%+v", w.feeding.feeds)
	}
	if found := w.Feeding(7, larger); len(found) != 1 || found[0].Bytes != 2*event.GiB {
		t.Errorf("a fifth: %+v", found)
	}
}

// TestWorkersThatKeep: said once for each variable, with what all workers hold.
func TestWorkersThatKeep(t *testing.T) {
	w := NewWatch(DefaultThresholds(), 0)
	held := Holder{Name: "cache", Kind: "dict of 9", File: "/x/data.py", Line: 4, Host: event.MiB}
	for workers, who := range map[int]string{1: "the DataLoader worker keeps",
		4: "each of 4 DataLoader workers keeps its own"} {
		held.Name = fmt.Sprint("cache", workers)
		found := w.WorkerKeeps(held, workers, 50, 3*event.MiB)
		if len(found) != 1 || !strings.HasPrefix(found[0].Title, who) ||
			found[0].Bytes != event.Bytes(workers)*3*event.MiB || found[0].Detail != "worker_cache" {
			t.Errorf("%d workers: %+v", workers, found)
		}
		if again := w.WorkerKeeps(held, workers, 99, 9*event.MiB); again != nil {
			t.Errorf("said twice: %+v", again)
		}
	}
}

// TestNamesOfHolders: what is known of each stands in the name and in the evidence.
func TestNamesOfHolders(t *testing.T) {
	list := Holder{Name: "history", Kind: "list of 3", File: "/a/t.py", Line: 9, Host: event.MiB}
	graph := Holder{Name: "total", Nodes: 7, Card: 2 * event.MiB}
	for _, c := range []struct{ got, want string }{
		{list.String(), "`history` (list of 3, t.py:9)"},
		{graph.String(), "`total` (with its graph)"},
		{both([]Holder{list}), "`history` (list of 3, t.py:9)"},
		{both([]Holder{list, graph}), "`history` (list of 3, t.py:9) and `total` (with its graph)"},
		{list.evidence(), "the memory is held by history in /a/t.py:9: 1MiB in host memory more " +
			"between two looks"},
		{graph.evidence(), "the memory is held by total in :0: 2MiB on the card, 7 nodes of an " +
			"autograd graph more between two looks"},
		{shortHolder("logits in /home/me/eval.py:12"), "`logits` (eval.py:12)"},
		{shortHolder("logits"), "logits"},
		{memoryOf(event.HostDevice), "host memory"}, {memoryOf(2), "GPU 2 memory"},
		{phaseName("eval"), "evaluation"}, {phaseName("save"), "saving a checkpoint"},
	} {
		if c.got != c.want {
			t.Errorf("%q, want %q", c.got, c.want)
		}
	}
	p := &process{holders: []Holder{list, graph}}
	for device, want := range map[int]int{event.HostDevice: 2, 0: 1} {
		if got := p.holding(device); len(got) != want {
			t.Errorf("on %d: %v", device, got)
		}
	}
}

// TestCuresOfModels: by framework, and by who holds them.
func TestCuresOfModels(t *testing.T) {
	holder := Holder{Name: "folds"}
	for _, c := range []struct {
		m     Models
		cures string
		sure  float64
	}{
		{Models{Count: 8}, "release_models fresh_process", 0.8},
		{Models{Count: 8, Holder: holder}, "release_models fresh_process", 0.9},
		{Models{Count: 8, Framework: "keras"}, "clear_session fresh_process", 0.8},
		{Models{Count: 8, Framework: "keras", Holder: holder},
			"release_models clear_session fresh_process", 0.9},
		{Models{Count: 3, Waited: 4, Holder: holder}, "release_models fresh_process", 0.8},
		{Models{Count: 3, Waited: 4, Framework: "keras"}, "clear_session fresh_process", 0.8},
		{Models{Count: 4, Waited: 4, Holder: holder}, "release_models fresh_process", 0.9},
		{Models{Count: 4}, "release_models fresh_process", 0.8}, {Models{Count: 3}, "", 0},
		{Models{Count: 1, Waited: 3}, "release_models fresh_process", 0.8},
	} {
		c.m.Grown = 32 * event.MiB
		w := NewWatch(DefaultThresholds(), 0)
		found := w.Models(7, c.m)
		if c.cures == "" {
			if len(found) != 0 {
				t.Errorf("%+v: %+v", c.m, found)
			}
			continue
		}
		if len(found) != 1 || strings.Join(found[0].Remedies, " ") != c.cures ||
			found[0].Confidence != c.sure || found[0].Bytes != 32*event.MiB {
			t.Errorf("%+v: %+v", c.m, found)
		}
	}
	for wall, want := range map[event.Bytes]event.Bytes{0: 32 * event.MiB, event.GiB: event.GiB / 50,
		64 * event.GiB: 32 * event.MiB} {
		w := NewWatch(DefaultThresholds(), 0)
		w.wall = wall
		if got := w.worth(); got != want {
			t.Errorf("of %s: %s is worth a word, want %s", wall, got, want)
		}
	}
	w := NewWatch(DefaultThresholds(), 0) // of another process nothing is taken back
	w.processes[place{8, event.HostDevice}] = &process{leak: &Trend{Slope: 1e6}}
	if found := w.explained(7, "something"); len(found) != 0 {
		t.Errorf("%+v", found)
	}
}

// TestStepsToTheEnd: at a rate that stays, or grows; at the next spike where there are some.
func TestStepsToTheEnd(t *testing.T) {
	for _, c := range []struct {
		distance, rate, bend float64
		want                 int64
	}{{100, 10, 0, 11}, {99, 10, 0, 10}, {100, 10, -3, 11}, {1, 10, 0, 1}, {1e30, 1, 0, 1e12},
		{100, 0, 2, 11}, // s = t*t
		{100, 5, 2, 8}} {
		if got := stepsFor(c.distance, c.rate, c.bend); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
	}
	spiky := Trend{spike: 100, spikeGap: 10}
	for step, want := range map[int64]int64{50: 50, 100: 100, 101: 110, 110: 110, 111: 120} {
		if got := spiky.atSpike(step); got != want {
			t.Errorf("%d: at %d, want %d", step, got, want)
		}
	}
}

// TestQuarters: which growth outpaces another, and was more than one jump.
func TestQuarters(t *testing.T) {
	q := func(values ...float64) (all quarters) {
		for i, v := range values {
			all[i] = Point{int64(10 * i), v}
		}
		return all
	}
	for name, c := range map[string]struct {
		q            quarters
		pace, factor float64
		want         bool
	}{
		"as fast":                 {q(0, 10, 20, 30), 1, 1, true},
		"slower":                  {q(0, 10, 20, 29), 1, 1, false},
		"half as fast is asked":   {q(0, 5, 10, 15), 1, 0.5, true},
		"by one jump":             {q(0, 0, 0, 30), 1, 1, false},
		"at the beginning only":   {q(0, 15, 30, 30), 1, 1, true},
		"nothing in the end":      {q(0, 30, 30, 30), 1, 1, false},
		"the other does not grow": {q(0, 10, 20, 30), 0, 1, false},
		"the other shrinks":       {q(0, 10, 20, 30), -1, 1, false},
	} {
		if got := c.q.outpace(c.pace, c.factor); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	if got := q(5, 0, 0, 35).pace(); got != 1 {
		t.Errorf("pace %v", got)
	}
	points := course(9, func(step int) float64 { return float64(step * step) })
	middle := quartersOf(points)
	for i := 1; i < 4; i++ {
		if middle[i].Step <= middle[i-1].Step || middle[i].Value <= middle[i-1].Value {
			t.Errorf("%v", middle)
		}
	}
	for step, want := range map[int64]int{-1: 9, points[3].Step: 6, points[8].Step: 1, 1000: 0} {
		if got := since(points, step); len(got) != want {
			t.Errorf("since %d: %d points, want %d", step, len(got), want)
		}
	}
}

// TestWhatMattersOnHost: the heap by its growth, pages by growth and share.
func TestWhatMattersOnHost(t *testing.T) {
	limits := DefaultThresholds()
	for _, c := range []struct {
		growth, level event.Bytes
		heap, want    bool
	}{
		{128 * event.KiB, event.GiB, true, true}, {128*event.KiB - 1, event.GiB, true, false},
		{4 * event.MiB, 100 * event.MiB, false, true}, {4*event.MiB - 1, event.MiB, false, false},
		{20 * event.MiB, 1000 * event.MiB, false, true},
		{20*event.MiB - 1, 1000 * event.MiB, false, false},
	} {
		trend := Trend{Growth: float64(c.growth), Level: float64(c.level)}
		if got := trend.MattersOnHost(c.heap, limits); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

// TestOrderStatistics: quantiles, correlations and thinned courses by hand.
func TestOrderStatistics(t *testing.T) {
	for _, c := range []struct {
		values []float64
		q      float64
		want   float64
	}{{[]float64{3, 1, 2}, 0.5, 2}, {[]float64{4, 1, 2, 3}, 0.5, 2.5}, {[]float64{1, 2}, 0.25, 1.25},
		{[]float64{5}, 0.9, 5}, {[]float64{1, 2, 3}, 1, 3}, {[]float64{1, 2, 3}, 0, 1}} {
		if got := quantile(c.values, c.q); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
	if !math.IsNaN(median(nil)) {
		t.Error("the median of nothing is something")
	}
	for _, c := range []struct {
		values []float64
		want   float64
	}{{nil, 0}, {[]float64{0, 0}, 0}, {[]float64{1, -1}, -0.5}, {[]float64{1, 2}, 0.4},
		{slices.Repeat([]float64{1}, 100), 0.95}} {
		if got := correlation(c.values); math.Abs(got-c.want) > 1e-12 {
			t.Errorf("%v: %v", c.values, got)
		}
	}
	points := []Point{{1, 1}, {2, 9}, {3, 2}, {4, 4}, {5, 6}, {6, 5}}
	if got := thin(points, 6); len(got) != 6 {
		t.Errorf("%v", got)
	}
	if got := thin(points, 2); !slices.Equal(got, []Point{{2, 2}, {5, 5}}) {
		t.Errorf("%v", got)
	}
}

// TestCapacityOfAFailure: what was reserved and free, or the lowest limit that explains it.
func TestCapacityOfAFailure(t *testing.T) {
	for _, c := range []struct {
		o                  OOMEvent // sizes in MiB
		peak               event.Bytes
		capacity           event.Bytes
		limited, fragments bool
		missing            event.Bytes
	}{
		{OOMEvent{Request: 100, Reserved: 900, Allocated: 850, DeviceFree: 10}, 900, 910, false, false, 40},
		{OOMEvent{Request: 60, Reserved: 900, Allocated: 850, DeviceFree: 10}, 900, 910, false, true, 0},
		{OOMEvent{Request: 61, Reserved: 900, Allocated: 850, DeviceFree: 10}, 900, 910, false, false, 1},
		{OOMEvent{Request: 100, Reserved: 900, Allocated: 850, DeviceFree: 100}, 950, 950, true, true, 0},
		{OOMEvent{Request: 100, Reserved: 900, Allocated: 900, DeviceFree: 100}, 950, 950, true, false, 50},
		{OOMEvent{Request: 1, Reserved: 900, Allocated: 900, DeviceFree: 20}, 900, 900, true, false, 1},
		{OOMEvent{Request: 1, Reserved: 900, Allocated: 900, DeviceFree: 19}, 900, 919, false, true, 0},
	} {
		o := c.o
		for _, b := range []*event.Bytes{&o.Request, &o.Reserved, &o.Allocated, &o.DeviceFree} {
			*b *= event.MiB
		}
		o.judge(c.peak * event.MiB)
		if o.Limited != c.limited || o.Fragmented != c.fragments || o.Missing != c.missing*event.MiB ||
			o.Capacity() != c.capacity*event.MiB {
			t.Errorf("%+v: %+v, capacity %d", c.o, o, o.Capacity())
		}
	}
}

// TestComparedSettings: under the limit that is asked for, or what there was when a request failed.
func TestComparedSettings(t *testing.T) {
	rec := &event.Recording{Version: "2.11"}
	at := uint64(1 << 30)
	for _, kind := range []event.Kind{event.KindSegmentAlloc, event.KindAlloc} {
		rec.History.Append(&event.Entry{Kind: kind, Addr: at, Size: 30 << 20})
	}
	rec.CutOff = true
	replayed, err := allocsim.Replay(rec, allocsim.ReplayOptions{Timeline: true})
	if err != nil {
		t.Fatal(err)
	}
	oom := OOMEvent{Reserved: 30 * event.MiB, DeviceFree: 2 * event.MiB}
	for name, c := range map[string]struct {
		s     Snapshot
		limit event.Bytes
		say   string
	}{
		"no limit":         {Snapshot{}, 0, "as good as any"},
		"a limit":          {Snapshot{}, event.GiB, "(with at most 1GiB reserved)"},
		"a failure":        {Snapshot{OOMs: []OOMEvent{{}, oom}}, 0, "and with at most 32MiB reserved)"},
		"both":             {Snapshot{OOMs: []OOMEvent{oom}}, event.GiB, "(with at most 1GiB reserved)"},
		"nothing to do":    {Snapshot{}, 0, ""},
		"no requests kept": {Snapshot{}, 0, ""},
		"a wrong limit":    {Snapshot{}, -1, ""},
	} {
		s, r := c.s, *replayed
		s.Allocs = 1
		switch name {
		case "nothing to do":
			s.Allocs = 0
		case "no requests kept":
			r.Timeline = nil
		}
		table := CompareSettings(rec, &s, &r, allocsim.Options{Limit: c.limit})
		if c.say == "" {
			if table != nil || (len(s.Warnings) == 0) != (name == "nothing to do") {
				t.Errorf("%s: %+v, %q", name, table, s.Warnings)
			}
			continue
		}
		if table == nil || !strings.Contains(table.Reason, c.say) {
			t.Errorf("%s: %+v", name, table)
		} else if strings.Contains(table.Reason, "reserved)") != strings.Contains(c.say, "reserved)") {
			t.Errorf("%s: %s", name, table.Reason)
		}
	}
	if CompareSettings(rec, &Snapshot{Allocs: 1}, nil, allocsim.Options{}) != nil {
		t.Error("compared without a replay")
	}
}

// TestNumbersReadBack: out of our own titles.
func TestNumbersReadBack(t *testing.T) {
	for title, want := range map[string]int{"too many: 9 of x; 3 fit": 3, "a; b; 12 fit": 12,
		"too many": 0, "x; none fit": 0, "": 0} {
		if got := Fitting(title); got != want {
			t.Errorf("%q: %d", title, got)
		}
	}
}

// TestCallersOfALine: the outermost frame that is the program's own, where it is another one.
func TestCallersOfALine(t *testing.T) {
	library := event.Frame{File: "/usr/lib/python3.11/site-packages/torch/nn/modules/module.py",
		Line: 1}
	line := event.Frame{File: "/home/me/model.py", Line: 5}
	loop := event.Frame{File: "/home/me/train.py", Line: 9}
	for name, c := range map[string]struct {
		frames []event.Frame
		want   event.Frame
		other  bool
	}{
		"called from a loop": {[]event.Frame{line, library, loop}, loop, true},
		"below a library":    {[]event.Frame{line, loop, library}, loop, true},
		"the loop itself":    {[]event.Frame{library, line}, line, false},
		"libraries only":     {[]event.Frame{library}, event.Frame{}, false},
		"nothing":            {nil, event.Frame{}, false},
	} {
		if got, other := callerOf(line, c.frames); got != c.want || other != c.other {
			t.Errorf("%s: %+v %v", name, got, other)
		}
	}
	f := leakFinding("GPU 0 memory", Trend{Slope: 1000, Onset: 3, Steps: 40, Growth: 40000},
		[]event.Frame{library, line, loop})
	if f.Step != 43 ||
		!strings.HasSuffix(f.Title, "(allocated at model.py:5, called from train.py:9)") {
		t.Errorf("%+v", f)
	}
}
