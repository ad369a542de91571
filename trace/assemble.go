package trace

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"memroom/event"
)

// snapshot assembles the snapshot from everything that was read, even if reading stopped early. It
// returns nil if the file is not a snapshot.
func (m *machine) snapshot() *Snapshot {
	s := &Snapshot{Stacks: &m.names.Stacks, Annotations: m.notes}
	if top, ok := m.topDict(); ok {
		m.seen.annotations = has(top, txtExternalAnnotations)
		m.seen.traces = has(top, txtDeviceTraces)
		if !has(top, txtSegments) && !m.seen.traces {
			return nil
		}
		s.Settings = m.settings(top)
	} else if len(m.segments) == 0 && len(m.histories) == 0 {
		return nil
	}
	s.Recordings = m.recordings()
	s.Version = inferVersion(&m.seen)
	for i := range s.Recordings {
		r := &s.Recordings[i]
		r.Settings, r.Version, r.CutOff = s.Settings, s.Version.Use(),
			!m.done && r.History.Len() > 0
	}
	if m.unknown > 0 {
		s.Warnings = append(s.Warnings,
			fmt.Sprintf("%d events have an action that is not known and were ignored", m.unknown))
	}
	if m.unknownDevices > 0 {
		s.Warnings = append(s.Warnings, fmt.Sprintf("%d segments belong to a device whose number "+
			"is not from 0 to %d and were ignored", m.unknownDevices, maxRecorders-1))
	}
	if m.names.lost > 0 {
		s.Warnings = append(s.Warnings,
			fmt.Sprintf("%d names were dropped: there are too many different ones", m.names.lost))
	}
	return s
}

// topDict returns the outermost dict once it is complete.
func (m *machine) topDict() (map[uint32]value, bool) {
	if m.done && len(m.stack) > 0 && m.top().tag == tagDict {
		return m.dicts[m.top().n], true
	}
	return nil, false
}

func has(d map[uint32]value, key uint32) bool { _, ok := d[key]; return ok }

// topLevel describes a pickle that is something else.
func (m *machine) topLevel() string {
	top, ok := m.topDict()
	if !ok {
		return "the pickle has no dict with segments at its top"
	}
	var keys []string
	for k := range top {
		keys = append(keys, fmt.Sprintf("%.60q", m.names.strings[k]))
	}
	slices.Sort(keys)
	if len(keys) > 5 {
		keys = append(keys[:5], "...")
	}
	return "the pickle's top level has neither segments nor device_traces, but " +
		strings.Join(keys, ", ")
}

// recordings sorts histories and segments by device. Histories come in the order of devices, those
// of devices without events are empty lists.
func (m *machine) recordings() []event.Recording {
	byDevice := map[int]*event.Recording{}
	of := func(device int) *event.Recording {
		if byDevice[device] == nil {
			byDevice[device] = &event.Recording{Device: device}
		}
		return byDevice[device]
	}
	for device, h := range m.deviceHistories() {
		of(device).History = *h
	}
	for i := range m.segments {
		if m.devices[i] < 0 || m.devices[i] >= maxRecorders {
			m.unknownDevices++
			continue
		}
		r := of(m.devices[i])
		r.Segments = append(r.Segments, m.segments[i])
	}
	var all []event.Recording
	for _, r := range byDevice {
		slices.SortStableFunc(r.Segments, func(a, b event.Segment) int {
			return cmp.Compare(a.Addr, b.Addr)
		})
		all = append(all, *r)
	}
	slices.SortFunc(all, func(a, b event.Recording) int {
		return cmp.Compare(a.Device, b.Device)
	})
	return all
}

// deviceHistories finds the device of each history: its place in device_traces, or the
// order in which they came where that list was never finished.
func (m *machine) deviceHistories() map[int]*event.History {
	found := map[int]*event.History{}
	if top, ok := m.topDict(); ok {
		if v := top[txtDeviceTraces]; v.tag == tagList {
			for device, item := range m.lists[v.n] {
				if item.tag == tagHistory {
					found[device] = m.histories[item.n]
				}
			}
			return found
		}
	}
	for device, h := range m.histories {
		found[device] = h
	}
	return found
}

// settings reads allocator_settings.
func (m *machine) settings(top map[uint32]value) event.AllocatorSettings {
	v := top[txtAllocatorSettings]
	if v.tag != tagDict {
		return event.AllocatorSettings{MaxSplit: -1}
	}
	m.seen.settings = true
	d := m.dicts[v.n]
	item := func(key uint32) *value { v := d[key]; return &v }
	m.seen.graphReuse, m.seen.maxRound = has(d, txtGraphReuse), has(d, txtMaxRound)
	s := event.AllocatorSettings{Known: true, Conf: m.names.strings[m.textOf(item(txtConf))],
		MaxSplit:   item(txtMaxSplit).number(),
		Expandable: item(txtExpandable).number() != 0}
	if gc := item(txtGC); gc.tag == tagFloat {
		s.GCThreshold = math.Float64frombits(uint64(gc.n))
	}
	if div := item(txtDivisions); div.tag == tagDict {
		s.Divisions = map[int]int{}
		for key, v := range m.dicts[div.n] {
			if mib, err := strconv.Atoi(m.names.strings[key]); err == nil {
				s.Divisions[mib] = int(v.number())
			}
		}
	}
	return s
}
