package diagnose

import (
	"fmt"

	"memroom/allocsim"
	"memroom/event"
)

// CompareSettings replays a recording's requests under other allocator settings; nil where there
// is nothing to compare, and a warning on the snapshot says why. A recording that ends in a failure
// is compared under the memory it had then, so that the table says which settings would have
// passed. limit caps reserved bytes; 0: what the recording tells.
func CompareSettings(rec *event.Recording, s *Snapshot, replayed *allocsim.Replayed,
	limit event.Bytes) *allocsim.Table {
	if replayed == nil || s.Allocs == 0 {
		return nil
	}
	if replayed.Timeline == nil {
		s.Warnings = append(s.Warnings, "too long to compare settings here: `memroom replay --what-if` "+
			"does it")
		return nil
	}
	under := "with at most %s reserved"
	if n := len(s.OOMs); limit == 0 && n > 0 {
		limit, under = s.OOMs[n-1].Capacity(),
			"up to the request that failed, where the recording ends, and with at most %s reserved"
	}
	table, err := replayed.WhatIf(allocsim.Options{Limit: limit}, rec.Settings.Conf)
	if err != nil {
		s.Warnings = append(s.Warnings, fmt.Sprintf("settings could not be compared: %v", err))
		return nil
	}
	if limit > 0 && table.Reason != "" {
		table.Reason += fmt.Sprintf(" ("+under+")", limit)
	}
	return &table
}
