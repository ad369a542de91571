package explain

import (
	"slices"

	"memroom/event"
	"memroom/lazyregexp"
	"memroom/trace"
)

// source is a place of a log in which the evidence for a claim can stand.
type source func(*trace.Crash, *trace.Hints) bool

// rule makes the row of a claim: the evidence in words, what takes the claim back, and where the
// evidence may stand. One source is enough. A row without sources claims nothing.
func rule(needs string, unless []doubt, shown ...source) claim {
	return claim{needs: needs, unless: unless, shown: shown}
}

// watched makes the row of a claim that only a run makes, which saw it happen. No log shows it.
func watched(needs string) claim { return claim{needs: needs, run: true} }

// proven reports whether a log shows what the row of a claim asks for.
func proven(j judged, c *trace.Crash, h *trace.Hints) bool {
	row := ruleOf(j)
	return len(row.shown) == 0 && !row.run ||
		slices.ContainsFunc(row.shown, func(s source) bool { return s(c, h) })
}

// stageOf: a frame, or a sign of the same, of one of these stages of work.
func stageOf(details ...string) source {
	return func(c *trace.Crash, _ *trace.Hints) bool {
		for _, list := range [][]stage{ownStages, trainingStages, hostStages} {
			for i := range list {
				if !slices.Contains(details, list[i].detail) {
					continue
				}
				if _, ok := list[i].judge(c); ok {
					return true
				}
			}
		}
		return false
	}
}

// inStage: a frame of a stage that stands in no list.
func inStage(s *stage) source {
	return func(c *trace.Crash, _ *trace.Hints) bool { _, ok := s.in(c); return ok }
}

// sign: one of these circumstances stands around the message or in the log.
func sign(names ...string) source {
	return func(c *trace.Crash, h *trace.Hints) bool {
		return slices.ContainsFunc(names, func(n string) bool { return seen(c, h, n) })
	}
}

// kind: the message itself is of one of these kinds.
func kind(names ...string) source {
	return func(c *trace.Crash, _ *trace.Hints) bool { return slices.Contains(names, c.Kind) }
}

// worded: the message, or the operation that it names, has such words.
func worded(is *lazyregexp.Regexp) source {
	return func(c *trace.Crash, _ *trace.Hints) bool {
		return is.MatchString(c.Text) || is.MatchString(c.Node) || is.MatchString(c.What)
	}
}

// namedCause: people name that cause in the text around the message.
func namedCause(cause Cause) source {
	return func(_ *trace.Crash, h *trace.Hints) bool { return slices.Contains(h.Says, string(cause)) }
}

// phase: that is the last thing the log announced.
func phase(name string) source {
	return func(_ *trace.Crash, h *trace.Hints) bool { return h.Phase == name }
}

// passed: so many steps had been made.
func passed(steps int64) source {
	return func(c *trace.Crash, _ *trace.Hints) bool { return c.Steps >= steps }
}

// together: each of these.
func together(sources ...source) source {
	return func(c *trace.Crash, h *trace.Hints) bool {
		return !slices.ContainsFunc(sources, func(s source) bool { return !s(c, h) })
	}
}

// figure: the message has these sizes.
func figure(sizes ...func(*trace.Crash) *event.Bytes) source {
	return func(c *trace.Crash, _ *trace.Hints) bool {
		return !slices.ContainsFunc(sizes, func(of func(*trace.Crash) *event.Bytes) bool {
			return of(c) == nil
		})
	}
}

func requested(c *trace.Crash) *event.Bytes { return c.Requested }
func capacity(c *trace.Crash) *event.Bytes  { return c.Capacity }
func free(c *trace.Crash) *event.Bytes      { return c.Free }
func allocated(c *trace.Crash) *event.Bytes { return c.Allocated }
func idle(c *trace.Crash) *event.Bytes      { return c.Idle }
func private(c *trace.Crash) *event.Bytes   { return c.Private }
func inProcess(c *trace.Crash) *event.Bytes { return c.InProcess }
func over(c *trace.Crash) *event.Bytes      { return c.Over }
func elsewhere(c *trace.Crash) *event.Bytes { return c.Elsewhere }

// listed: the message or a table lists other processes.
func listed(c *trace.Crash, _ *trace.Hints) bool { return len(c.Neighbours) > 0 }

// notOurs: the figures leave a part of the card that this program does not hold.
func notOurs(c *trace.Crash, _ *trace.Hints) bool { return unlisted(c) >= unlistedFloor }

// largeAsk: the request is of an activation's size.
func largeAsk(c *trace.Crash, _ *trace.Hints) bool { return large(c) }

// evaluates: frames, a bar or words of an evaluation or prediction.
func evaluates(c *trace.Crash, h *trace.Hints) bool {
	_, in := evaluationIn(c)
	_, joins := gatheredOnly.in(c)
	return in || joins || predicting.MatchString(c.Text) || h.Phase == "eval" ||
		seen(c, h, trace.SignEvalLast) || seen(c, h, trace.SignEvalBar) ||
		seen(c, h, trace.SignEvalSaid) || seen(c, h, trace.SignEvaluating)
}

// keepsOutputs: frames that join or collect what batches give, a setting that gathers, or a rise.
func keepsOutputs(c *trace.Crash, h *trace.Hints) bool {
	_, joins := joinsBatches(c)
	_, only := gatheredOnly.in(c)
	at, evaluating := evaluationIn(c)
	return joins || only || evaluating && collects(c, at) || seen(c, h, trace.SignGrowth) ||
		slices.Contains(h.Says, string(CauseLeak)) || seen(c, h, trace.SignEvalToHost)
}

// batchNamed: a batch size, or a tensor with several samples in front.
func batchNamed(c *trace.Crash, h *trace.Hints) bool {
	return h.Batch > 0 || leadingShape.MatchString(c.Text)
}

// severalRanks: several ranks run, or processes of one name that hold about as much.
func severalRanks(c *trace.Crash, h *trace.Hints) bool {
	return max(c.Ranks, h.Ranks) > 1 || c.Alike > 1 || c.Rank > 0
}

// hostKill: host memory ran out, or a limit on it.
func hostKill(c *trace.Crash, _ *trace.Hints) bool { return onHost(c) }
