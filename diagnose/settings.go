package diagnose

import (
	"fmt"

	"memroom/allocsim"
	"memroom/event"
)

// CompareSettings replays a recording's requests under other allocator settings. It returns nil if
// there is nothing to compare; a warning on the snapshot then has the reason. A recording that ends
// in a failure is compared under the memory it had then, so that the table shows which settings
// would have passed. o has the limit or the card to compare under; without one, the recording's own
// applies.
func CompareSettings(rec *event.Recording, s *Snapshot, replayed *allocsim.Replayed,
	o allocsim.Options) *allocsim.Table {
	if replayed == nil || s.Allocs == 0 {
		return nil
	}
	if replayed.Timeline == nil {
		s.Warnings = append(s.Warnings, "too long to compare settings here: `memroom replay --what-if` "+
			"does it")
		return nil
	}
	under := "with at most %s reserved"
	if n := len(s.OOMs); o.Limit == 0 && o.DeviceTotal == 0 && n > 0 {
		o.Limit, under = s.OOMs[n-1].Capacity(),
			"up to the request that failed, where the recording ends, and with at most %s reserved"
	}
	table, err := replayed.WhatIf(o, rec.Settings.Conf)
	if err != nil {
		s.Warnings = append(s.Warnings, fmt.Sprintf("settings could not be compared: %v", err))
		return nil
	}
	if o.Limit > 0 && table.Reason != "" {
		table.Reason += fmt.Sprintf(" ("+under+")", o.Limit)
	}
	return &table
}
