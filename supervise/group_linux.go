package supervise

import (
	"fmt"
	"time"

	"memroom/event"
)

// Companions tells how the other runs of a group ended, those of other nodes among them.
type Companions interface {
	Ended() []event.Summary
}

// companionsEvery is how often they are looked for: in a folder that is likely on a network.
const companionsEvery = 2 * time.Second

// checkCompanions ends the run when another of its group has run out of memory: its ranks wait for
// those for ever. This one did not run out itself, and its verdict does not say so.
func (m *Monitor) checkCompanions(now time.Time) {
	if m.Companions == nil || m.said.Ended != nil ||
		now.Sub(m.limiter.companionsAt) < companionsEvery {
		return
	}
	m.limiter.companionsAt = now
	for _, other := range m.Companions.Ended() {
		v := other.Verdict
		if v == nil || !v.IsOOM {
			continue
		}
		who := fmt.Sprintf("node %d of group %s (%s, run %s)", other.Run.NodeRank, m.Run.Group,
			other.Run.Host, other.Run.ID)
		if m.limiter.companionGone.IsZero() {
			m.limiter.companionGone = now
			m.happened(event.Happened{Kind: "action", Rank: v.Rank,
				Text: fmt.Sprintf("%s ran out of memory; this one has %v to end", who,
					m.Options.Grace)})
		}
		if now.Sub(m.limiter.companionGone) >= m.Options.Grace {
			m.found([]event.Finding{{Kind: "group", Severity: event.SeverityError, Confidence: 1,
				Evidence: v.Evidence,
				Title: fmt.Sprintf("This run was ended because %s ran out of memory; memroom explain %s says "+
					"why", who, other.Run.ID)}})
			m.end(Ending{Rank: v.Rank,
				Why: fmt.Sprintf("memroom ended the run: %s had run out of memory, and this node was still going "+
					"after %v", who, m.Options.Grace)})
		}
		return
	}
}
