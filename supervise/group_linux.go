package supervise

import (
	"fmt"
	"time"

	"memroom/event"
)

// Companions returns how the other runs of a group ended, those of other nodes among them.
type Companions interface {
	Ended() []event.Summary
}

// companionsEvery is how often they are looked for: in a folder that is likely on a network.
const companionsEvery = 2 * time.Second

// group ends a run when another run of its group has run out of memory.
type group struct {
	job     *job
	record  *record
	limiter *limiter
	others  Companions // nil: it has none

	looked time.Time // when the others were last looked for
	gone   time.Time // when one was first seen to have run out
}

// check ends the run when another of its group has run out of memory: its ranks wait for
// those for ever. This one did not run out itself, and its verdict does not say so.
func (g *group) check(now time.Time) {
	if g.others == nil || g.limiter.ending() ||
		now.Sub(g.looked) < companionsEvery {
		return
	}
	g.looked = now
	for _, other := range g.others.Ended() {
		v := other.Verdict
		if v == nil || !v.IsOOM {
			continue
		}
		who := fmt.Sprintf("node %d of group %s (%s, run %s)", other.Run.NodeRank, g.job.run.Group,
			other.Run.Host, other.Run.ID)
		if g.gone.IsZero() {
			g.gone = now
			g.record.happened(event.Happened{Kind: "action", Rank: v.Rank,
				Text: fmt.Sprintf("%s ran out of memory; this one has %v to end", who,
					g.job.options.Grace)})
		}
		if now.Sub(g.gone) >= g.job.options.Grace {
			g.record.found([]event.Finding{{Kind: "group", Severity: event.SeverityError, Confidence: 1,
				Evidence: v.Evidence,
				Title: fmt.Sprintf("This run was ended because %s ran out of memory; memroom explain %s shows "+
					"why", who, other.Run.ID)}})
			g.limiter.end(Ending{Rank: v.Rank,
				Why: fmt.Sprintf("memroom ended the run: %s had run out of memory, and this node was still going "+
					"after %v", who, g.job.options.Grace)})
		}
		return
	}
}
