package cli

import (
	"memroom/store"
	"memroom/supervise"
)

func (c *runCmd) view(s *session, front *supervise.Front, folder *store.Folder) error {
	state, err := front.Run()
	return c.conclude(s, folder, state, err)
}
