package main

import (
	"fmt"
	"io"
	"path/filepath"

	"memroom/diagnose"
	"memroom/event"
	"memroom/explain"
	"memroom/remedy"
	"memroom/trace"
)

// settings are recordings of one program under several allocator settings: what the default one
// predicts for the others can be checked against them.
var settings = []struct {
	name   string
	remedy remedy.ID
}{{"expandable", remedy.ExpandableSegments}, {"split128", remedy.MaxSplitSize},
	{"pow2_4", remedy.Roundup}}

// recordedTable prints predicted and real savings of allocator settings, from recordings in a
// folder.
func recordedTable(folder string, out io.Writer) error {
	base, err := trace.Open(filepath.Join(folder, "dynseq-default.pickle.gz"))
	if err != nil {
		return err
	}
	saving, before := explain.RecordedSaving(base), reservedPeak(base)
	if saving == nil {
		return fmt.Errorf("%s: the recording cannot be replayed", folder)
	}
	fmt.Fprintln(out,
		"\nAllocator settings: one program (GPT-2, a random sequence length each step) recorded under "+
			"each, predicted from the default recording alone.")
	fmt.Fprintln(out,
		"\n| remedy | measured before | saved | predicted | off |\n|---|--:|--:|--:|--:|")
	for _, s := range settings {
		other, err := trace.Open(filepath.Join(folder, "dynseq-"+s.name+".pickle.gz"))
		if err != nil {
			return err
		}
		r, _ := remedy.Find(s.remedy)
		low, _, ok := saving(r)
		saved := before - reservedPeak(other)
		if !ok {
			fmt.Fprintf(out, "| `%s` | %s | %s | unknown | |\n", s.remedy, before, saved)
			continue
		}
		fmt.Fprintf(out, "| `%s` | %s | %s | %s | %s |\n", s.remedy, before, saved, low,
			relative(low, saved))
	}
	return nil
}

func relative(predicted, saved event.Bytes) string {
	if saved == 0 {
		return ""
	}
	return fmt.Sprintf("%+.1f %%", 100*float64(predicted-saved)/float64(max(saved, -saved)))
}

func reservedPeak(s *trace.Snapshot) event.Bytes {
	var most event.Bytes
	for i := range s.Recordings {
		most = max(most, diagnose.AnalyseSnapshot(diagnose.LedgerOf(s, &s.Recordings[i],
			nil)).ReservedPeak)
	}
	return most
}
