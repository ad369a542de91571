package central

import (
	"cmp"
	"os"
	"slices"
	"time"

	"memroom/store"
)

// stillHeard is how long after its last word a record is never dropped: its run may go on.
const stillHeard = time.Hour

// Tidy drops records that were last heard longer ago than keep.Age, and the oldest while all
// together have more than keep.Size. Ages are by this machine's clock, whatever the senders' say.
// A sender that comes back after its record was dropped sends it again as a whole.
func (c *Central) Tidy(keep store.Retention, now time.Time) (dropped []string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := make([]*run, 0, len(c.runs))
	var all int64
	for _, one := range c.runs {
		list = append(list, one)
		all += one.size()
	}
	slices.SortFunc(list, func(a, b *run) int {
		return cmp.Or(a.last().Compare(b.last()), cmp.Compare(a.ID, b.ID))
	})
	for _, one := range list {
		age := now.Sub(one.last())
		old := keep.Age > 0 && age > keep.Age
		if age < stillHeard || !old && (keep.Size == 0 || all <= int64(keep.Size)) {
			continue
		}
		if err := c.db.remove(one.Key); err != nil {
			return dropped, err
		}
		all -= one.size()
		delete(c.runs, one.Key)
		delete(c.ids, one.ID)
		dropped = append(dropped, one.ID)
		// a copy that stays is removed when the database is opened the next time
		_ = os.RemoveAll(c.Copy.Folder(one.ID).Dir)
	}
	if len(dropped) > 0 {
		_, _ = c.Copy.Refresh(indexedAtOnce)
	}
	return dropped, nil
}

// last is when the sender was heard last.
func (r *run) last() time.Time {
	if r.wrote.IsZero() {
		return r.First
	}
	return r.wrote
}

func (r *run) size() (total int64) {
	for _, n := range r.files {
		total += n
	}
	return total
}
