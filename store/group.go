package store

import (
	"time"

	"memroom/event"
)

// Companions are the other runs of a group, looked for again and again while one of them goes on.
type Companions struct {
	store *Store
	own   event.Run
	known map[string]bool // runs that were looked at: true for those of the group
}

// startedApart is how far apart the runs of one group may begin: nodes wait in queues, and the
// names of folders are in local time.
const startedApart = 48 * time.Hour

// Companions begins to look for the others of a run's group.
func (s *Store) Companions(own event.Run) *Companions {
	return &Companions{store: s, own: own, known: map[string]bool{own.ID: false}}
}

// Ended returns the records of those that have ended since this run began. A group's name may have
// been used before.
func (c *Companions) Ended() []event.Summary {
	ids, err := c.store.IDs()
	if err != nil {
		return nil
	}
	oldest := c.own.Started.Add(-startedApart).Format("20060102-150405")
	var ended []event.Summary
	for _, id := range ids {
		if id < oldest || !c.member(id) {
			continue
		}
		if summary, err := c.store.Folder(id).Summary(); err == nil && summary.Exit != nil &&
			summary.Exit.At.After(c.own.Started) {
			ended = append(ended, summary)
		}
	}
	return ended
}

func (c *Companions) member(id string) bool {
	yes, looked := c.known[id]
	if !looked {
		run, err := c.store.Folder(id).Run()
		if err != nil {
			return false // it is being written
		}
		yes = run.Group == c.own.Group
		c.known[id] = yes
	}
	return yes
}
