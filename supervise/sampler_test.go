//go:build linux

package supervise

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"memroom/event"
	"memroom/meter"
)

// TestDetailOnceASecond: slow figures are read once a second, at every rate of readings.
func TestDetailOnceASecond(t *testing.T) {
	for _, interval := range []time.Duration{50, 100, 250, 400, 1000} {
		r := sampler{last: event.Sample{Processes: 1}}
		interval *= time.Millisecond
		begin, detailed := time.Unix(1000, 0), 0
		for at := time.Duration(0); at < 10*time.Second; at += interval {
			if r.dueForDetail(begin.Add(at)) {
				detailed++
			}
		}
		if want := int(10 * time.Second / max(time.Second,
			(time.Second+interval-1)/interval*interval)); detailed < want || detailed > want+1 {
			t.Errorf("every %v: %d detailed readings in 10 s, want %d", interval, detailed, want)
		}
	}
	r := sampler{}
	now := time.Unix(1000, 0)
	if first, second := r.dueForDetail(now), r.dueForDetail(now); !first || !second {
		t.Error("before the first process is seen every reading is a detailed one")
	}
}

// someCards answers for the cards that work, and with an error for one that does not.
type someCards []Device

func (c someCards) Read() ([]Device, error) { return c, errors.New("card 1: fallen off the bus") }

// TestOneFailingCard: the readings of the other cards stay, and the failure is noted.
func TestOneFailingCard(t *testing.T) {
	var notes []string
	r := sampler{proc: meter.NewProc("/proc"), tree: &meter.Tree{},
		note:    func(_, text string) { notes = append(notes, text) },
		devices: someCards{{DeviceSample: event.DeviceSample{UUID: "GPU-a", Used: 7, Total: 10}}},
		before:  map[string]event.Bytes{"GPU-a": 3}}
	var s event.Sample
	r.readDevices(&s)
	want := []event.DeviceSample{{UUID: "GPU-a", Used: 7, Total: 10, Ours: 4, Others: 3,
		Guessed: true}}
	if diff := cmp.Diff(want, s.Devices); diff != "" {
		t.Error(diff)
	}
	if len(notes) == 0 || notes[0] != "a card cannot be read: card 1: fallen off the bus" {
		t.Errorf("notes %q", notes)
	}
}

// TestDivideCard: processes that the driver names are counted apart. Without names, or with names
// from another namespace, what was used before the run counts as the neighbours'.
func TestDivideCard(t *testing.T) {
	me := os.Getpid()
	r := sampler{proc: meter.NewProc("/proc"), before: map[string]event.Bytes{"u": 30}}
	for name, c := range map[string]struct {
		processes    map[int]event.Bytes
		used         event.Bytes
		named        bool
		ours, others event.Bytes
	}{
		"named":                 {map[int]event.Bytes{1: 40, me: 5}, 50, true, 5, 40},
		"nobody named":          {nil, 50, false, 20, 30},
		"another namespace":     {map[int]event.Bytes{1 << 30: 45}, 50, false, 20, 30},
		"less than was before":  {nil, 20, false, 0, 20},
		"named, and nobody's":   {map[int]event.Bytes{}, 50, true, 0, 0},
		"one of two is unknown": {map[int]event.Bytes{1: 40, 1 << 30: 5}, 50, false, 20, 30},
	} {
		d := Device{DeviceSample: event.DeviceSample{UUID: "u", Used: c.used},
			Processes: c.processes}
		named := r.divide(&d, map[int]bool{me: true})
		if named != c.named || d.Ours != c.ours || d.Others != c.others {
			t.Errorf("%s: named %v, ours %v, others %v", name, named, d.Ours, d.Others)
		}
	}
}

// TestHeld: what cannot be dropped, each page once, from the best source there is.
func TestHeld(t *testing.T) {
	own := &event.CgroupSample{Own: true, Current: 100, File: 40, Shmem: 10}
	around := &event.CgroupSample{Current: 100, File: 40, Shmem: 10}
	for name, c := range map[string]struct {
		sharing float64
		s       event.Sample
		want    event.Bytes
	}{
		"own cgroup": {0, event.Sample{Processes: 5, Anonymous: 900, Cgroup: own},
			70},
		"a process alone": {0.5, event.Sample{Processes: 1, Anonymous: 900}, 0},
		"as the sum": {0, event.Sample{Processes: 2, Anonymous: 60, Shared: 5},
			0},
		"half of it is shared": {0.5, event.Sample{Processes: 2, Anonymous: 60, Shared: 20},
			40},
		"bounded by the cgroup around": {0, event.Sample{Processes: 2, Anonymous: 90,
			Cgroup: around}, 70},
		"bounded by the machine": {0, event.Sample{Processes: 2, Anonymous: 90,
			Machine: &event.MachineSample{Total: 100, Available: 50}}, 50},
	} {
		r := sampler{pss: proportional{sharing: c.sharing}}
		if got := r.held(c.s); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}
