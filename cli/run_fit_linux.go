package cli

import (
	"strings"

	"memroom/event"
	"memroom/fit/driver"
	"memroom/store"
)

// prepareFit returns the first attempt what is forced or remembered, and the monitor its policy.
func (c *runCmd) prepareFit(s *session, home *store.Store, r *prepared,
	command []string) (*driver.Spec, error) {
	if !c.fitFlags.wanted() {
		return nil, nil
	}
	spec, err := c.fitFlags.describe(home.Home, command, openCards().names(), c.GPUMem)
	if err != nil {
		return nil, err
	}
	if r.args, r.env, err = driver.Begin(*spec, r.folder.Dir, command, r.env); err != nil {
		return nil, err
	}
	if spec.Remembered {
		s.note("memroom: this run begins with the remedies that an earlier one needed to fit (memroom forget " +
			"drops them)")
	}
	return spec, nil
}

// used returns the bytes in use on each card.
func (c *cards) used() map[string]event.Bytes {
	used := map[string]event.Bytes{}
	devices, _ := c.Read() // those that answer
	for _, d := range devices {
		used[d.UUID] = d.Used
	}
	return used
}

// names of the cards, for the memory of what worked.
func (c *cards) names() string {
	if c == nil {
		return ""
	}
	devices, _ := c.Read() // those that answer
	var names []string
	for _, d := range devices {
		names = append(names, d.Name)
	}
	return strings.Join(names, ", ")
}
