package report

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"memroom/allocsim"
	"memroom/diagnose"
	"memroom/event"
	"memroom/fit"
	"memroom/testenv"
	"memroom/trace"
)

// golden compares a text with testdata; -update writes it anew, to be read afterwards.
func golden(t *testing.T, name, text string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if flag.Lookup("update").Value.String() == "true" {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), text); diff != "" {
		t.Error(diff)
	}
}

// TestTextsOfRealRecordings: a small training and one that ran out of memory, recorded by PyTorch,
// and a dump of TensorFlow's allocator, as people read them.
func TestTextsOfRealRecordings(t *testing.T) {
	data := filepath.Join(testenv.Root(t), "cli", "testdata")
	for _, name := range []string{"mlp", "oom"} {
		t.Run(name, func(t *testing.T) {
			read, err := trace.Open(filepath.Join(data, name+".pickle.gz"))
			if err != nil {
				t.Fatal(err)
			}
			rec := &read.Recordings[0]
			analysed, _ := diagnose.ReplaySnapshot(read, rec)
			verified, err := allocsim.Replay(rec, allocsim.ReplayOptions{Timeline: true})
			if err != nil {
				t.Fatal(err)
			}
			table, err := verified.WhatIf(allocsim.Options{}, rec.Settings.Conf)
			if err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			SnapshotText(NewText(&out, false), name+".pickle.gz", []string{"a note"},
				[]Device{{Snapshot: analysed, WhatIf: &table}}, 4)
			golden(t, "texts/"+name+".txt", out.String())
		})
	}
	t.Run("bfc", func(t *testing.T) {
		file, err := os.Open(filepath.Join(data, "tensorflow.bfcdump"))
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		dump, err := trace.ReadBFCDump(file)
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		BFCText(NewText(&out, false), diagnose.AnalyseBFC(dump), 3)
		golden(t, "texts/bfc.txt", out.String())
	})
}

// TestWordsForHowSure: the limits between the three words.
func TestWordsForHowSure(t *testing.T) {
	for confidence, want := range map[float64]string{0.85: "sure", 0.84: "likely", 0.65: "likely",
		0.64: "a guess", 0: "a guess"} {
		if got := sureness(event.CategoryWeights, confidence); got != want {
			t.Errorf("%v: %q, want %q", confidence, got, want)
		}
	}
	if got := sureness(event.CategoryUnknown, 1); got != "" {
		t.Errorf("what is unknown is %q", got)
	}
}

// TestSentencesAboutFailures: each way in which a recorded request can fail, and each reason for
// which a run can end.
func TestSentencesAboutFailures(t *testing.T) {
	const gib, mib = event.GiB, event.MiB
	var out strings.Builder
	say := func(name, text string) { out.WriteString(name + ": " + text + "\n") }
	short := diagnose.OOMEvent{At: 12345, Request: 2 * gib, Allocated: 5 * gib, Reserved: 6 * gib,
		LargestFree: 512 * mib}
	say("plain", oomSentence(short))
	named := short
	named.Category, named.Missing = event.CategoryActivations, gib
	say("short", oomSentence(named))
	split := short
	split.Fragmented, split.Room = true, 100*mib
	say("fragmented", oomSentence(split))
	limited := short
	limited.Limited, limited.DeviceFree = true, 40*gib
	limited.LimitLow, limited.LimitHigh = 7*gib, 8*gib
	say("limited", oomSentence(limited))

	ended := func(change func(*End)) End {
		e := End{Summary: event.Summary{Verdict: &event.Verdict{IsOOM: true,
			Where: event.WhereHost}}}
		e.Peaks.Unreclaimable, e.Peaks.Resident = 3*gib, 4*gib
		change(&e)
		return e
	}
	for _, c := range []struct {
		name   string
		change func(*End)
	}{
		{"machine", func(*End) {}},
		{"--host-mem", func(e *End) { e.Run.HostMem = 2 * gib }},
		{"slurm", func(e *End) { e.Verdict.KilledBy, e.Peaks.HostLimit = "slurm", 5*gib }},
		{"slurm, unknown limit", func(e *End) { e.Verdict.KilledBy = "slurm" }},
		{"cgroup", func(e *End) { e.Verdict.KilledBy, e.Peaks.HostLimit = "cgroup", gib }},
		{"in a cgroup", func(e *End) { e.Verdict.Where = event.WhereCgroup }},
		{"ray", func(e *End) { e.Verdict.KilledBy = "ray" }},
		{"itself", func(e *End) { e.Verdict.KilledBy = "itself" }},
	} {
		say(c.name, ended(c.change).hostWhy())
	}
	capped := ended(func(e *End) { e.Run.GPUMem = 8 * gib })
	for _, c := range []struct {
		name  string
		end   End
		tried fit.Tried
	}{
		{"full card", capped, fit.Tried{Requested: 2 * gib, CardFree: gib, Held: 6 * gib,
			Allocated: 5 * gib}},
		{"cap of the card", capped, fit.Tried{Requested: 2 * gib, CardFree: 40 * gib,
			Allocated: 5 * gib}},
		{"no figure of the card", ended(func(*End) {}), fit.Tried{Requested: gib, Allocated: gib}},
		{"/dev/shm", capped, fit.Tried{OutOf: event.WhereShm}},
		{"card without figures", capped, fit.Tried{OutOf: event.WhereGPU}},
		{"MPS", capped, fit.Tried{OutOf: event.WhereMPS}},
		{"host cap", ended(func(e *End) { e.Run.HostMem = gib }), fit.Tried{OutOf: event.WhereHost}},
		{"host limit", capped, fit.Tried{OutOf: event.WhereHost, HostLimit: 3 * gib}},
		{"host", capped, fit.Tried{OutOf: event.WhereHost}},
	} {
		say("attempt, "+c.name, c.end.triedWhy(c.tried))
	}
	for _, c := range []struct {
		name string
		diagnose.BFCState
	}{
		{"full pool", diagnose.BFCState{Pool: 100 * mib, Free: 4 * mib, LargestFree: mib,
			Fragmentation: 0.9}},
		{"fragmented pool", diagnose.BFCState{Pool: 100 * mib, Free: 50 * mib, LargestFree: mib,
			Fragmentation: 0.98}},
		{"roomy pool", diagnose.BFCState{Pool: 100 * mib, Free: 5 * mib, LargestFree: 3 * mib,
			Fragmentation: 0.5}},
	} {
		say(c.name, bfcVerdict(&c.BFCState))
	}
	golden(t, "texts/failures.txt", out.String())
}
