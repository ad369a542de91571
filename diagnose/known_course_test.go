package diagnose

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"memroom/event"
)

// TestHostMemoryRunsOutWhenItIsSaid: memory that rises by the same amount every second meets the
// nearest wall at a time that anybody can reckon: a limit that was set, the cgroup's, or what the
// machine still has. Where nothing is near, or nothing rises, nothing is said.
func TestHostMemoryRunsOutWhenItIsSaid(t *testing.T) {
	const start = 2 * event.GiB
	for name, c := range map[string]struct {
		set, cgroup, machine event.Bytes // where the walls are; 0: there is none
		perSecond            event.Bytes
		wall                 event.Bytes // the one that is met; 0: nothing is said
	}{
		"the limit that was set": {40 * event.GiB, 0, 0, 10 * event.MiB, 40 * event.GiB},
		"the cgroup's":           {0, 30 * event.GiB, 0, 10 * event.MiB, 30 * event.GiB},
		"the machine's":          {0, 0, 20 * event.GiB, 10 * event.MiB, 20 * event.GiB},
		"the cgroup is nearer": {40 * event.GiB, 30 * event.GiB, 60 * event.GiB, 10 * event.MiB,
			30 * event.GiB},
		"the set one is nearer": {25 * event.GiB, 30 * event.GiB, 60 * event.GiB, 10 * event.MiB,
			25 * event.GiB},
		"the machine is nearest": {40 * event.GiB, 30 * event.GiB, 15 * event.GiB, 10 * event.MiB,
			15 * event.GiB},
		"faster":  {0, 30 * event.GiB, 0, 20 * event.MiB, 30 * event.GiB},
		"no wall": {0, 0, 0, 10 * event.MiB, 0},
		"level":   {0, 30 * event.GiB, 0, 0, 0},
	} {
		w := NewWatch(DefaultThresholds(), c.set)
		said := 0
		for second := int64(0); second <= 400; second++ {
			held := start + event.Bytes(second)*c.perSecond
			s := event.Sample{AtMS: second * 1000, Processes: 2, Anonymous: held, Resident: held}
			if c.cgroup > 0 {
				s.Cgroup = &event.CgroupSample{Limit: c.cgroup, Current: held}
			}
			if c.machine > 0 {
				s.Machine = &event.MachineSample{Total: 64 * event.GiB, Available: c.machine - held}
			}
			for _, f := range w.Sample(s) {
				sound(t, f)
				if f.Kind != "forecast" {
					continue
				}
				said++
				left := c.wall - held
				want := time.Duration(left/c.perSecond) * time.Second
				checkForecast(t, name, f, left, want)
			}
		}
		if expected := map[bool]int{true: 1, false: 0}[c.wall > 0]; said != expected {
			t.Errorf("%s: said %d times, want %d", name, said, expected)
		}
	}
}

// checkForecast compares a forecast with when memory will really be out: to within a twentieth, and
// the time that it names from the earliest to the latest holds the real one.
func checkForecast(t *testing.T, name string, f event.Finding, left event.Bytes,
	want time.Duration) {
	t.Helper()
	_, words, found := strings.Cut(f.Title, "will run out in about ")
	got, err := durationOf(words)
	if !found || err != nil || got < want*19/20-30*time.Second || got > want*21/20+30*time.Second {
		t.Errorf("%s: %q (%v), want about %v", name, f.Title, err, want)
	}
	if f.Bytes < left*9/10 || f.Bytes > left*11/10 {
		t.Errorf("%s: %s are left, said %s", name, left, f.Bytes)
	}
	between, grew, _ := strings.Cut(f.Evidence[0], " from now; it grew by ")
	low, high, _ := strings.Cut(strings.TrimPrefix(between, "between "), " and ")
	first, err1 := durationOf(low)
	last, err2 := durationOf(high)
	if err1 != nil || err2 != nil || first > want+30*time.Second || last < want-30*time.Second {
		t.Errorf("%s: %q, want %v in it", name, f.Evidence[0], want)
	}
	if _, took, ok := strings.Cut(grew, " in "); !ok {
		t.Errorf("%s: %q", name, grew)
	} else if d, err := durationOf(took); err != nil || d < 20*time.Second || d > 400*time.Second {
		t.Errorf("%s: it grew in %q, of at most 400 seconds", name, took)
	}
}

// durationOf reads what inWords wrote.
func durationOf(words string) (time.Duration, error) {
	var a, b int
	if n, _ := fmt.Sscanf(words, "%d h %d min", &a, &b); n == 2 {
		return time.Duration(a)*time.Hour + time.Duration(b)*time.Minute, nil
	}
	var unit string
	if _, err := fmt.Sscanf(words, "%d %s", &a, &unit); err != nil {
		return 0, fmt.Errorf("%q: %w", words, err)
	}
	units := map[string]time.Duration{"s": time.Second, "min": time.Minute, "days": 24 * time.Hour}
	if units[unit] == 0 {
		return 0, fmt.Errorf("%q has no unit", words)
	}
	return time.Duration(a) * units[unit], nil
}

func TestDurationsInWords(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0 s", 400 * time.Millisecond: "0 s", 40 * time.Second: "40 s", 89 * time.Second: "89 s",
		90 * time.Second: "2 min", 150 * time.Second: "3 min", 89 * time.Minute: "89 min",
		90 * time.Minute: "1 h 30 min", 130 * time.Minute: "2 h 10 min", 134 * time.Minute: "2 h 10 min",
		47*time.Hour + 59*time.Minute: "48 h 00 min", 48 * time.Hour: "2 days", 80 * time.Hour: "3 days",
	} {
		if got := inWords(d); got != want {
			t.Errorf("%v is %q, want %q", d, got, want)
		}
	}
	for in, want := range map[time.Duration]event.Severity{time.Hour - 1: event.SeverityError,
		time.Hour: event.SeverityWarning} {
		if got := severityOf(in); got != want {
			t.Errorf("in %v: %v", in, got)
		}
	}
}

// TestPeaksNeedTraining: the peak of training is known after two seconds of it; a peak in
// evaluation is one only where it is a tenth and 256 MiB above, and falls by half of that again.
func TestPeaksNeedTraining(t *testing.T) {
	const held = 4 * event.GiB
	for name, c := range map[string]struct {
		readings int
		more     event.Bytes
		after    event.Bytes
		said     bool
	}{
		"seven readings":           {7, event.GiB, held, false},
		"eight":                    {8, event.GiB, held, true},
		"just a tenth":             {20, held/10 + 1, held, true},
		"less than a tenth":        {20, held/10 - event.MiB, held, false},
		"it falls by half":         {20, event.GiB, held + event.GiB/2, true},
		"it falls by less":         {20, event.GiB, held + event.GiB/2 + event.MiB, false},
		"it falls below the start": {20, event.GiB, held / 2, true},
	} {
		e := NewWatch(DefaultThresholds(), 0)
		e.Steps(1, nil, []event.Step{{Step: 1, Device: event.HostDevice}})
		at := int64(0)
		read := func(held event.Bytes) (found []event.Finding) {
			at += 250
			for _, f := range e.Sample(event.Sample{AtMS: at, Processes: 1, Anonymous: held}) {
				if f.Kind == "evaluation" {
					found = append(found, f)
				}
			}
			return found
		}
		for range c.readings {
			read(held)
		}
		e.Phase(1, "eval", true)
		var found []event.Finding
		for range 4 {
			found = append(found, read(held+c.more)...)
		}
		e.Phase(1, "eval", false)
		for range 8 {
			found = append(found, read(c.after)...)
		}
		if (len(found) == 1) != c.said || len(found) > 1 {
			t.Errorf("%s: %+v", name, found)
			continue
		}
		if c.said && (found[0].Bytes != held+c.more || !strings.Contains(found[0].Title,
			fmt.Sprintf("%s; training held at most %s", held+c.more, held)) ||
			!strings.Contains(found[0].Evidence[0], c.after.String())) {
			t.Errorf("%s: %+v", name, found[0])
		}
	}
}

// TestAnyAccountAddsUp: whatever the meters said, at whatever moments, the lines of an account add
// up to its limit, and none is negative.
func TestAnyAccountAddsUp(t *testing.T) {
	random := rand.New(rand.NewPCG(11, 12))
	size := func() event.Bytes {
		if random.IntN(4) == 0 {
			return 0
		}
		return event.Bytes(random.IntN(1 << (1 + random.IntN(30))))
	}
	check := func(what string, a Account, given any) {
		t.Helper()
		if a.Sum() != a.Limit {
			t.Fatalf("%s %+v: lines of %d, limit %d: %+v", what, given, a.Sum(), a.Limit, a)
		}
		for _, line := range a.Lines {
			if line.Bytes < 0 {
				t.Fatalf("%s %+v: %+v", what, given, a)
			}
		}
		if a.Overlap < 0 || a.Over < 0 {
			t.Fatalf("%s %+v: overlap %d, over %d", what, given, a.Overlap, a.Over)
		}
	}
	for range 3000 {
		d := event.DeviceSample{Total: size(), Used: size(), Ours: size(), Others: size()}
		var holdings []Holding
		for range random.IntN(3) {
			holdings = append(holdings, Holding{Weights: size(), Gradients: size(), Optimizer: size(),
				Allocated: size(), Reserved: size(), Split: size()})
		}
		check("card", Card(d, holdings), []any{d, holdings})
		s := event.Sample{Anonymous: size(), Shared: size(), File: size(), Held: size()}
		if random.IntN(2) == 0 {
			s.Cgroup = &event.CgroupSample{Limit: size(), Current: size(), Anon: size(), File: size(),
				Shmem: size(), AtLimit: size(), Own: random.IntN(2) == 0}
		}
		if random.IntN(2) == 0 {
			s.Machine = &event.MachineSample{Total: size(), Available: size()}
		}
		check("host", Host(s, size()), s)
	}
	// What is known is where it belongs.
	d := event.DeviceSample{Total: 100, Used: 80, Ours: 70, Others: 10}
	a := Card(d, []Holding{{Weights: 10, Gradients: 5, Optimizer: 20, Allocated: 50, Reserved: 60,
		Split: 4}})
	var got []string
	for _, line := range a.Lines {
		got = append(got, fmt.Sprint(line.Name, " ", int64(line.Bytes)))
	}
	if want := "weights 10, gradients 5, optimizer 20, activations 15, cache 6, fragmentation 4, " +
		"context and libraries 10, neighbours 10, unattributed 0, free 20"; strings.Join(got,
		", ") != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestWindows: growth over a while, as a rate, and whether it goes on.
func TestWindows(t *testing.T) {
	of := func(keep int64, values ...event.Bytes) *window {
		w := &window{}
		for i, v := range values {
			w.add(int64(i)*1000, v, keep)
		}
		return w
	}
	for name, c := range map[string]struct {
		w         *window
		growth    event.Bytes
		perMinute event.Bytes
		rises     bool
	}{
		"nothing":             {of(9000), 0, 0, false},
		"one reading":         {of(9000, 5), 0, 0, false},
		"steady":              {of(9000, 10, 20, 30, 40, 50), 40, 600, true},
		"short":               {of(9000, 10, 20, 30), 20, 600, false},
		"three seconds":       {of(9000, 10, 20, 30, 40), 30, 600, true},
		"at once, then level": {of(9000, 0, 100, 100, 100, 100), 100, 1500, false},
		"a quarter is late":   {of(9000, 0, 75, 75, 75, 100), 100, 1500, true},
		"what is kept":        {of(2000, 9, 9, 0, 10, 20, 30), 30, 600, true},
	} {
		if g, r, s := c.w.growth(), c.w.perMinute(), c.w.stillRises(); g != c.growth ||
			r != c.perMinute || s != c.rises {
			t.Errorf("%s: %d, %d a minute, rises %v", name, g, r, s)
		}
	}
}
