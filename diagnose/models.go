package diagnose

import (
	"fmt"
	"path"

	"memroom/event"
)

// Models is what a probe counted: live models of one class that become more with each one built.
type Models struct {
	Framework string // torch, keras
	Class     string
	Count     int64       // alive, after garbage was collected
	Waited    int64       // that had only waited for the collector
	Bytes     event.Bytes // of their weights, gradients and optimizer state
	Grown     event.Bytes // the process's host memory since the second model
	File      string      // where they are built or trained
	Line      int
	Holder    Holder // the variable that holds most of them
}

const (
	modelsLeast = 4               // alive at once: an ensemble or a teacher is fewer
	modelsBytes = 32 * event.MiB  // that they take, before they matter
	modelsShare = event.Bytes(50) // or this part of the memory there is
)

// Models takes a count of models. It is said once for each class and process.
func (w *Watch) Models(pid int, m Models) []event.Finding {
	if w.models == nil {
		w.models = map[string]bool{}
	}
	key := fmt.Sprint(pid, m.Class)
	all := m.Count + m.Waited
	takes := max(m.Bytes, m.Grown)
	if w.models[key] || all < modelsLeast || takes < w.worth() {
		return nil
	}
	w.models[key] = true
	f := event.Finding{Kind: "models", Detail: "models_in_loop", Severity: event.SeverityWarning,
		Bytes: takes, Confidence: 0.9, Remedies: []string{"release_models", "fresh_process"},
		Frames: []event.Frame{{File: m.File, Line: m.Line}},
		Evidence: []string{fmt.Sprintf("weights, gradients and optimizer state of %d models: %s",
			m.Count, m.Bytes), fmt.Sprintf("process %d grew by %s since the second model", pid,
			m.Grown)},
	}
	if m.Framework == "keras" {
		f.Remedies = []string{"clear_session", "fresh_process"}
		if m.Holder.Name != "" {
			f.Remedies = []string{"release_models", "clear_session", "fresh_process"}
		}
	}
	each := takes / event.Bytes(all)
	switch {
	case m.Waited > m.Count:
		f.Confidence = 0.8
		f.Title = fmt.Sprintf("earlier models wait for the garbage collector: %d of class %s were "+
			"alive, %s each; collect before the next one is built", all, m.Class, each)
		f.Remedies = []string{"release_models", "fresh_process"}
		if m.Framework == "keras" {
			f.Remedies = []string{"clear_session", "fresh_process"}
		}
	case m.Holder.Name != "":
		f.Title = fmt.Sprintf("models built in a loop stay in memory: %d of class %s, %s each, "+
			"held by %s", m.Count, m.Class, each, m.Holder)
	default:
		f.Title = fmt.Sprintf("models built in a loop stay in memory: %d of class %s, %s each",
			m.Count, m.Class, each)
		f.Confidence = 0.8
	}
	f.Evidence = append(f.Evidence, fmt.Sprintf("they are built at %s:%d", path.Base(m.File),
		m.Line))
	return append(w.explained(pid, "models built in a loop"), f)
}

// explained takes back leaks of a process that are something else, such as its models: what each
// of them takes looks like growth at every step.
func (w *Watch) explained(pid int, what string) []event.Finding {
	var found []event.Finding
	for at, p := range w.processes {
		if at.pid != pid {
			continue
		}
		p.models = true
		if p.leak == nil || !p.maybeModels() {
			continue
		}
		f := p.leakFinding(*p.leak, at.device)
		f.Severity, f.Remedies, f.Confidence, f.Evidence = event.SeverityInfo, nil, 0.5, nil
		f.Title = fmt.Sprintf("the growth of %s since step %d is that of %s", p.name(at.device),
			p.leak.Onset, what)
		found = append(found, f)
	}
	return found
}

// maybeModels reports whether nothing else is known to hold what grows, or what was named already.
func (p *process) maybeModels() bool {
	return len(p.holders) == 0 || p.holders[0].Models > 0 || p.holders[0].Name == p.said
}

// worth is the memory from which something outside of steps matters.
func (w *Watch) worth() event.Bytes {
	if w.wall > 0 {
		return min(modelsBytes, w.wall/modelsShare)
	}
	return modelsBytes
}
