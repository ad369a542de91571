package diagnose

import (
	"fmt"
	"slices"

	"memroom/event"
)

// fragmentWatch sees an allocator that holds much more than the program ever needed at once: free
// bytes lie in pieces that no request fits into. What the cache holds between steps is no evidence,
// only what it holds beyond the peak. Where as much was never reserved at all, it harms nobody:
// there lie work spaces that a library tried in the first steps. Where the limit is not known, it
// says nothing.
type fragmentWatch struct {
	peak  event.Bytes // highest allocated ever seen: the program may reset its own
	steps int
	said  bool
}

// memoryOf names the memory that a row of a step is about.
func memoryOf(device int) string {
	if device == event.HostDevice {
		return "host memory"
	}
	return fmt.Sprintf("GPU %d memory", device)
}

// step returns a finding where memory lies idle that the program may need. limit: bytes that the
// allocator may reserve, 0 unknown.
func (f *fragmentWatch) step(row event.Step, limit event.Bytes, limits Thresholds) []event.Finding {
	f.peak = max(f.peak, row.PeakAllocated, row.AtBackward, row.Allocated)
	idle := row.Reserved - f.peak
	little := idle < limits.FragmentBytes || float64(idle) < limits.FragmentShare*float64(row.Reserved)
	if untouched := limit-row.Reserved > idle; limit == 0 || untouched || little {
		f.steps = 0
		return nil
	}
	if f.steps++; f.said || f.steps < limits.FragmentSteps {
		return nil
	}
	f.said = true
	return []event.Finding{{
		Kind: "fragmentation", Severity: event.SeverityWarning, Step: row.Step, Bytes: idle,
		Confidence: 0.8,
		Title: fmt.Sprintf(
			"%s is fragmented: %s are reserved, %s more than the program ever used at once",
			memoryOf(row.Device), row.Reserved, idle),
		Evidence: []string{fmt.Sprintf(
			"peak allocated %s, reserved %s, of which %s lie free in partly used segments",
			f.peak, row.Reserved, row.InactiveSplit)},
		Remedies: []string{"expandable_segments", "max_split_size", "roundup", "empty_cache"},
	}}
}

// thrashWatch sees an allocator that empties its cache again and again to serve requests: each time
// costs a synchronisation and all the mallocs anew.
type thrashWatch struct {
	seen []retry
	said bool
}

type retry struct{ step, total int64 }

func (t *thrashWatch) step(row event.Step, limits Thresholds) []event.Finding {
	if n := len(t.seen); n == 0 || t.seen[n-1].total != row.Retries {
		t.seen = append(t.seen, retry{row.Step, row.Retries})
	}
	for len(t.seen) > 1 && t.seen[1].step < row.Step-limits.ThrashSteps {
		t.seen = t.seen[1:]
	}
	count := row.Retries - t.seen[0].total
	if t.said || count < limits.ThrashRetries {
		return nil
	}
	t.said = true
	return []event.Finding{{
		Kind: "thrash", Severity: event.SeverityWarning, Step: row.Step, Bytes: row.Reserved,
		Confidence: 0.95,
		Title: fmt.Sprintf(
			"%s is full: the allocator emptied its cache %d times within %d steps, which slows training",
			memoryOf(row.Device), count, limits.ThrashSteps),
		Evidence: []string{fmt.Sprintf("num_alloc_retries rose from %d to %d, reserved %s",
			t.seen[0].total, row.Retries, row.Reserved)},
		Remedies: []string{"expandable_segments", "micro_batch", "checkpointing"},
	}}
}

// spikeWatch sees a step that needs far more than its neighbours, and a phase that lifts the peak
// above all steps.
type spikeWatch struct {
	key     string    // of the process and its device
	recent  []float64 // what was live when backward began, of the last steps
	peak    event.Bytes
	phase   string                 // that ran since the last step
	lastOne int64                  // step of the last spike that was said
	phases  map[string]event.Bytes // phase -> the peak that was said to be in it
	began   event.Bytes            // the allocator's peak when the phase began, 0 unknown
	ended   event.Bytes            // and when it ended
	seen    Evaluated              // of the last evaluation
}

const spikeWindow = 32

func (s *spikeWatch) step(row event.Step, limit event.Bytes, limits Thresholds) []event.Finding {
	found := append(s.phasePeak(row, limits), s.takenBack(row)...)
	s.phase, s.began, s.ended, s.peak = "", 0, 0, max(s.peak, row.PeakAllocated)
	at := float64(row.AtBackward)
	usual := median(s.recent)
	if len(s.recent) == spikeWindow && at > limits.SpikeFactor*usual &&
		at-usual > limits.SpikeShare*float64(limit) && limit > 0 &&
		(s.lastOne == 0 || row.Step > s.lastOne+100) {
		s.lastOne = row.Step
		found = append(found, event.Finding{
			Kind: "spike", Severity: event.SeverityInfo, Step: row.Step, Bytes: row.AtBackward,
			Confidence: 0.8,
			Title: fmt.Sprintf(
				"%s: the batch of step %d is much larger: %s in use before backward, usually %s",
				memoryOf(row.Device), row.Step, row.AtBackward, event.Bytes(usual)),
			Evidence: []string{fmt.Sprintf("median of the %d steps before: %s", spikeWindow,
				event.Bytes(usual))},
			Remedies: []string{"shorter_sequence", "micro_batch"},
		})
	}
	if row.AtBackward > 0 {
		if s.recent = append(s.recent, at); len(s.recent) > spikeWindow {
			s.recent = slices.Delete(s.recent, 0, 1)
		}
	}
	return found
}

// phaseMore is what a phase must take beyond the steps to be worth a word.
const phaseMore = 64 * event.MiB

// phasePeak attributes a new peak to the phase that ran since the last step, if one did.
func (s *spikeWatch) phasePeak(row event.Step, limits Thresholds) []event.Finding {
	before, peak := s.peak, row.PeakAllocated
	if s.began > 0 && s.ended > 0 { // the step that followed may have lifted it too
		before, peak = s.began, s.ended
	}
	more := peak - before
	if s.phase == "" || s.peak == 0 || float64(more) < 0.1*float64(before) || more < phaseMore ||
		s.phases[s.phase] > 0 {
		return nil
	}
	if s.phases == nil {
		s.phases = map[string]event.Bytes{}
	}
	s.phases[s.phase] = peak
	return []event.Finding{{
		Kind: "spike", Key: s.key + s.phase, Severity: event.SeverityWarning, Step: row.Step,
		Bytes:      peak,
		Confidence: 0.85,
		Title: fmt.Sprintf(
			"the peak of %s is in %s: %s; training steps need %s", memoryOf(row.Device),
			phaseName(s.phase), peak, before),
		Evidence: append([]string{fmt.Sprintf("the peak rose by %s in %s after step %d", more,
			phaseName(s.phase), row.Step-1)}, s.phaseEvidence()...),
		Remedies: s.phaseRemedies(),
	}}
}

// takenBack withdraws that the peak is in a phase, once training steps need as much: the first
// steps of a run need less than those that come.
func (s *spikeWatch) takenBack(row event.Step) []event.Finding {
	var found []event.Finding
	for phase, peak := range s.phases {
		steps := row.PeakAllocated > max(s.peak, s.ended) && row.PeakAllocated > peak
		if !steps || peak == withdrawn {
			continue
		}
		s.phases[phase] = withdrawn
		found = append(found, event.Finding{
			Kind: "spike", Key: s.key + phase, Severity: event.SeverityInfo, Step: row.Step,
			Bytes: row.PeakAllocated, Confidence: 0.85,
			Title: fmt.Sprintf("the peak of %s is in training, not in %s: %s, %s in %s",
				memoryOf(row.Device), phaseName(phase), row.PeakAllocated, peak, phaseName(phase)),
		})
	}
	return found
}

// withdrawn stands for the peak of a phase that was said and taken back.
const withdrawn event.Bytes = 1

// phaseRemedies are the cures for a peak in the phase that ran.
func (s *spikeWatch) phaseRemedies() []string {
	switch s.phase {
	case "eval":
		return s.seen.remedies()
	case "save":
		return []string{"optimizer_offload"}
	}
	return nil
}

func (s *spikeWatch) phaseEvidence() []string {
	if s.phase != "eval" {
		return nil
	}
	said := s.seen.evidence()
	if s.seen.Kept >= evalKept {
		said = append(said, fmt.Sprintf("%s gets %s longer with every batch", s.seen.Holder,
			s.seen.Kept))
	}
	return said
}

// phaseName returns the usual name of a phase.
func phaseName(phase string) string {
	switch phase {
	case "eval":
		return "evaluation"
	case "save":
		return "saving a checkpoint"
	}
	return fmt.Sprintf("the phase %q", phase)
}
