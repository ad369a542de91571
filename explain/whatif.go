package explain

import (
	"memroom/allocsim"
	"memroom/event"
	"memroom/remedy"
	"memroom/trace"
)

// RecordedSaving returns a function that computes what a remedy would have saved in a recording. It
// is nil if the recording cannot be replayed.
func RecordedSaving(s *trace.Snapshot) Saving {
	r := fullest([]*trace.Snapshot{s})
	if r == nil {
		return nil
	}
	return r.saving()
}

// saving runs the engine on the recording as it was and as a remedy would have made it. The
// interval is as wide as the categories are doubtful; allocator settings depend on no category and
// are exact.
func (s *recorded) saving() Saving {
	before, ok := s.reserved(s.timeline, s.conf)
	if !ok {
		return nil
	}
	sure := s.categoryConfidence()
	return func(r *remedy.Remedy) (low, high event.Bytes, ok bool) {
		if conf, changes := r.RewriteConf(s.conf); changes {
			after, ok := s.reserved(s.timeline, conf)
			return before - after, before - after, ok
		}
		rewritten, changes := r.RewriteTimeline(s.timeline)
		if !changes {
			return 0, 0, false
		}
		after, ok := s.reserved(rewritten, s.conf)
		saved := before - after
		return event.Bytes(float64(saved) * sure), saved, ok
	}
}

func (s *recorded) reserved(t *event.Timeline, conf string) (event.Bytes, bool) {
	config, err := allocsim.ParseConf(conf)
	if err != nil {
		return 0, false
	}
	result, err := allocsim.Run(t, allocsim.Options{Config: config, Version: s.version})
	if err != nil {
		return 0, false
	}
	return result.ReservedPeak, true
}

// categoryConfidence is how sure the analysis is of what the blocks at the peak are for, by bytes.
func (s *recorded) categoryConfidence() float64 {
	var sum, total float64
	for _, c := range s.Categories {
		sum += c.Confidence * float64(c.Bytes)
		total += float64(c.Bytes)
	}
	if total == 0 {
		return 0
	}
	return sum / total
}

// confOn lists the allocator settings that a string has already.
func confOn(conf string) map[remedy.ID]string {
	on := map[remedy.ID]string{}
	if conf == "" {
		return on
	}
	for _, r := range remedy.Catalogue() {
		if _, changes := r.RewriteConf(conf); changes {
			continue
		}
		if _, setting := r.RewriteConf(""); setting {
			on[r.ID] = conf
		}
	}
	return on
}
