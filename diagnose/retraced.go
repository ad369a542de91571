package diagnose

import (
	"fmt"
	"path"

	"memroom/event"
)

// Retraced is a function of TensorFlow that most of its calls trace anew.
type Retraced struct {
	Function string
	Traces   int64
	Grown    event.Bytes // the process's heap since the second trace
	Argument string      // that changes from trace to trace; empty: not known
	Change   string      // of it: value, shape, kind
	Type     string      // of it: float, list, tensor, ...
	File     string
	Line     int
}

// tracedBytes is the growth from which traces matter: a graph of a small function takes some
// hundred kilobytes.
const tracedBytes = 4 * event.MiB

// Retraced takes that a function is traced again and again. It is said once for each function.
func (w *Watch) Retraced(pid int, r Retraced) []event.Finding {
	where := fmt.Sprintf("%s:%d", path.Base(r.File), r.Line)
	if w.traced == nil {
		w.traced = map[string]bool{}
	}
	if w.traced[where] || r.Grown < tracedBytes {
		return nil
	}
	w.traced[where] = true
	f := event.Finding{Kind: "retraced", Detail: "retraced", Severity: event.SeverityWarning,
		Bytes: r.Grown, Confidence: 0.9,
		Title: fmt.Sprintf("the tf.function `%s` (%s) is traced at nearly every call: %d traces, and "+
			"host memory has grown by %s; %s", r.Function, where, r.Traces, r.Grown, r.why()),
		Evidence: []string{"each trace is a graph that stays as long as the function",
			fmt.Sprintf("process %d", pid)},
		Frames:   []event.Frame{{File: r.File, Line: r.Line, Name: r.Function}},
		Remedies: []string{"steady_traces"}}
	return append(w.explained(pid, "the traces of a tf.function"), f)
}

// why is the reason why the calls differ.
func (r Retraced) why() string {
	switch r.Change {
	case "value":
		return fmt.Sprintf("its argument `%s` is a Python %s that changes", r.Argument, r.Type)
	case "shape":
		return fmt.Sprintf("its argument `%s` has another shape each time", r.Argument)
	case "kind":
		return fmt.Sprintf("its argument `%s` changes its type", r.Argument)
	}
	return "no argument was seen to change, as when the function is made anew in a loop"
}
