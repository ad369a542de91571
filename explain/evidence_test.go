package explain

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"memroom/event"
	"memroom/trace"
)

// TestEveryClaimHasARule: what may be claimed, and what takes it back, stands in one table.
func TestEveryClaimHasARule(t *testing.T) {
	for detail, s := range situations {
		row, ok := claims[detail]
		if !ok || row.needs == "" {
			t.Errorf("the situation %q has no rule", detail)
		}
		if s.reason != "" && len(row.shown) == 0 && !row.run {
			t.Errorf("the clause %q of %q asks for no evidence", s.reason, detail)
		}
	}
	for detail := range claims {
		if _, ok := situations[detail]; !ok && detail != "limit" {
			t.Errorf("the rule %q is about no situation", detail)
		}
	}
	for cause := range cures {
		if row, ok := causeClaims[cause]; cause != CauseUnknown && (!ok || row.needs == "") {
			t.Errorf("the cause %q has no rule", cause)
		}
	}
}

// told is a log with the explanation of its end.
type told struct {
	file   string
	crash  trace.Crash
	hints  trace.Hints
	judged judged
}

// clause returns the verdict's words for the cause.
func (s told) clause() string { return reason(&s.crash, s.judged) }

// row returns the name of the claim's row in the table.
func (s told) row() string { return first(s.judged.detail, string(s.judged.cause)) }

// toldLogs explains every log of the samples in which memory ran out.
func toldLogs(t *testing.T) []told {
	t.Helper()
	all, err := readLogs()
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 100 {
		t.Fatalf("only %d logs were read", len(all))
	}
	return slices.Clone(all)
}

// readLogs reads them once for all tests, which change copies only.
var readLogs = sync.OnceValues(func() (all []told, err error) {
	files, err := filepath.Glob(filepath.Join("testdata", "*", "*.*"))
	if err != nil {
		return nil, err
	}
	for _, path := range files {
		if ext := filepath.Ext(path); ext != ".log" && ext != ".txt" {
			continue
		}
		file, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		log, err := trace.ReadLog(file)
		file.Close()
		if err != nil || log.First() < 0 || log.Crashes[log.First()].Class != trace.Exhausted {
			continue
		}
		s := told{file: path, crash: log.Crashes[log.First()], hints: log.Hints}
		s.judged = judgeOf(&s.crash, &s.hints)
		all = append(all, s)
	}
	return all, nil
})

// bare keeps of a crash only which memory ran out and in what framework.
func bare(c *trace.Crash) *trace.Crash {
	return &trace.Crash{Where: c.Where, Framework: c.Framework, Class: c.Class, Sure: c.Sure, Rank: -1}
}

// without are the places of a log, taken away one at a time.
var without = map[string]func(*trace.Crash, *trace.Hints){
	"frames": func(c *trace.Crash, _ *trace.Hints) { c.Frames, c.Code = nil, nil },
	"signs":  func(c *trace.Crash, h *trace.Hints) { c.Signs, h.Signs = nil, nil },
	"words": func(c *trace.Crash, h *trace.Hints) {
		c.Text, c.What, c.Node, c.Kind, h.Says, h.Phase = "", "", "", "", nil, ""
	},
	"figures": func(c *trace.Crash, _ *trace.Hints) {
		c.Requested, c.Capacity, c.Free, c.Allocated, c.Idle = nil, nil, nil, nil, nil
		c.InProcess, c.Private, c.Elsewhere, c.Available, c.Neighbours = nil, nil, nil, nil, nil
	},
	"course": func(c *trace.Crash, _ *trace.Hints) { c.Steps, c.Ranks, c.Alike = 0, 0, 0 },
}

// TestNoClauseWithoutItsEvidence: a clause is gone when its evidence is taken out of the log, and
// whatever is printed after one place of a log is missing has evidence of its own.
func TestNoClauseWithoutItsEvidence(t *testing.T) {
	rows := map[string]bool{}
	for _, s := range toldLogs(t) {
		rule := ruleOf(s.judged)
		if s.clause() == "" || len(rule.shown) == 0 {
			continue
		}
		rows[s.row()] = true
		none, nothing := bare(&s.crash), &trace.Hints{}
		if s.crash.Where != event.WhereShm && s.crash.Framework != "ray" {
			if proven(s.judged, none, nothing) {
				t.Errorf("%s: the row %q is met by nothing", s.file, s.row())
			}
			if said := verdict(none, judgeOf(none, nothing)); strings.Contains(said, s.clause()) {
				t.Errorf("%s: %q is said of a log that shows nothing", s.file, s.clause())
			}
		}
		for place, take := range without {
			c, h := s.crash, s.hints
			take(&c, &h)
			if j := judgeOf(&c, &h); !proven(j, &c, &h) && reason(&c, j) != "" {
				t.Errorf("%s without %s: %q is said without evidence", s.file, place, reason(&c, j))
			}
		}
	}
	if len(rows) < 50 {
		t.Errorf("only %d rows were printed by the samples", len(rows))
	}
}

// TestRowsAreRefusedWithoutEvidence goes over the table itself, whether a sample prints a row or
// not.
func TestRowsAreRefusedWithoutEvidence(t *testing.T) {
	check := func(name string, j judged, row claim) {
		if len(row.shown) == 0 && !row.run {
			return
		}
		for _, where := range []event.Where{event.WhereGPU, event.WhereHost, event.WhereMPS} {
			c := &trace.Crash{Where: where, Framework: "pytorch", Class: trace.Exhausted, Rank: -1}
			if proven(j, c, &trace.Hints{}) {
				t.Errorf("%s: the row of %q is met by nothing", where, name)
			}
		}
	}
	for detail, row := range claims {
		check(detail, judged{cause: CauseModel, detail: detail}, row)
	}
	for cause, row := range causeClaims {
		check(string(cause), judged{cause: cause}, row)
	}
}

func size(b event.Bytes) *event.Bytes { return &b }

// against are contradictions as logs have them. Each is put into a log that prints a clause.
var against = map[string]func(*trace.Crash, *trace.Hints){
	"whole epochs": func(c *trace.Crash, _ *trace.Hints) {
		c.Signs[trace.SignEpochs], c.Steps, c.Requested = "epoch 7", 500, size(event.MiB)
	},
	"a rise": func(c *trace.Crash, _ *trace.Hints) { c.Signs[trace.SignGrowth] = "1GiB to 3GiB" },
	"one sample": func(c *trace.Crash, h *trace.Hints) {
		h.Batch, h.Seq, c.Requested = 1, 0, size(event.MiB)
	},
	"many steps":   func(c *trace.Crash, _ *trace.Hints) { c.Steps = 5000 },
	"little asked": func(c *trace.Crash, _ *trace.Hints) { c.Requested = size(event.MiB) },
	"JAX asks for little": func(c *trace.Crash, _ *trace.Hints) {
		c.Framework, c.Requested, c.Capacity, c.Free = "jax", size(event.MiB), nil, nil
	},
	"training": func(_ *trace.Crash, h *trace.Hints) { h.Phase = "train" },
	"serving": func(c *trace.Crash, h *trace.Hints) {
		c.Signs, c.Steps, h.Phase, h.Settings = trace.Signs{trace.SignServing: "vllm"}, 0, "", nil
		h.Accumulate = 0
	},
	"a pass inside": func(c *trace.Crash, _ *trace.Hints) {
		c.Frames = append([]event.Frame{{File: "net.py", Name: "forward"}}, c.Frames...)
		c.Code = append([]string{""}, c.Code...)
	},
	"an input pipeline": func(c *trace.Crash, _ *trace.Hints) {
		c.Where = event.WhereHost
		c.Frames = append(c.Frames, event.Frame{File: `C:\tensorflow\python\ops\script_ops.py`,
			Name: "__call__"})
	},
	"being set up": func(c *trace.Crash, _ *trace.Hints) {
		c.Steps, c.Frames = 0, []event.Frame{{File: "engine.py", Name: "__init__"}}
	},
	"much held": func(c *trace.Crash, _ *trace.Hints) {
		c.Allocated = size(4 * event.GiB)
		delete(c.Signs, trace.SignTaken)
	},
	"expandable segments": func(_ *trace.Crash, h *trace.Hints) {
		h.AllocConf = "expandable_segments:True"
	},
	"all of it ours": func(c *trace.Crash, _ *trace.Hints) {
		c.InProcess, c.Neighbours = c.Capacity, nil
	},
	"weights are read": func(c *trace.Crash, _ *trace.Hints) {
		c.Frames = append(c.Frames, event.Frame{File: "modeling_utils.py", Name: "from_pretrained"})
	},
}

// TestContradictionsTakeClausesBack: with any contradiction of its row in the log, a clause is not
// printed.
func TestContradictionsTakeClausesBack(t *testing.T) {
	tried := map[string]map[int]bool{}
	for _, s := range toldLogs(t) {
		row := ruleOf(s.judged)
		if s.clause() == "" || s.judged.cause == CauseUnknown || len(row.unless) == 0 {
			continue
		}
		if tried[s.row()] == nil {
			tried[s.row()] = map[int]bool{}
		}
		for name, put := range against {
			c, h := s.crash, s.hints
			c.Signs = maps.Clone(c.Signs)
			if c.Signs == nil {
				c.Signs = trace.Signs{}
			}
			put(&c, &h)
			j := s.judged
			j.frame = min(j.frame+max(0, len(c.Frames)-len(s.crash.Frames)), len(c.Frames))
			for i, d := range row.unless {
				if !d.is(&c, &h, j) {
					continue
				}
				tried[s.row()][i] = true
				got := judgeOf(&c, &h)
				if got.detail == s.judged.detail && got.cause == s.judged.cause &&
					strings.Contains(verdict(&c, got), s.clause()) && got.frame >= j.frame {
					t.Errorf("%s with %s: still says %q", s.file, name, s.clause())
				}
			}
		}
	}
	if names := slices.Collect(maps.Keys(tried)); len(names) < 12 {
		t.Errorf("only rows %v were contradicted", names)
	}
}

// judgeOf judges an end without a text around it.
func judgeOf(c *trace.Crash, h *trace.Hints) judged {
	f := &Facts{Crash: c, Hints: h}
	return judge(f, sumsOf(f))
}
