package cli

import (
	"os"
	"slices"

	"memroom/store"
	"memroom/supervise"
)

// orphanOf returns the remains of a run whose keeper was killed on this machine.
func orphanOf(folder *store.Folder) (words string, command int, yes bool) {
	if _, far := folder.Elsewhere(); far {
		return "", 0, false
	}
	orphan, yes := supervise.FindOrphan(runFiles(folder))
	if !yes {
		return "", 0, false
	}
	return orphan.String(), orphan.Command, true
}

// sweptRuns is how many of the newest runs are looked at for what a killed keeper left. Older ones
// are looked at where a socket of theirs is still there.
const sweptRuns = 100

// sweep removes what killed keepers left behind on this machine: sockets, empty cgroups, folders
// for sockets. Records stay as they are.
func sweep(kept *store.Store) {
	ids, err := kept.IDs()
	if err != nil {
		return
	}
	slices.Sort(ids)
	for i, id := range ids {
		folder := kept.Folder(id)
		if i < len(ids)-sweptRuns {
			if _, err := os.Lstat(folder.Path("keeper.sock")); err != nil {
				continue
			}
		}
		cleanUp(folder)
	}
}

// cleanUp removes what the killed keeper of one run left behind.
func cleanUp(folder *store.Folder) {
	if _, far := folder.Elsewhere(); !far {
		supervise.CleanUp(runFiles(folder))
	}
}
