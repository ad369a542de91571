package trace

import (
	"math"

	"memroom/event"
)

// Numbers of the strings that mean something, in the order of knownTexts.
const (
	txtNone uint32 = iota
	txtAction
	txtAddr
	txtSize
	txtStream
	txtTimeUS
	txtFrames
	txtPoolID
	txtDeviceFree
	txtCompileContext
	txtUserMetadata
	txtForwardFrames
	txtFilename
	txtName
	txtLine
	txtSegmentType
	txtDevice
	txtAddress
	txtTotalSize
	txtSegmentPoolID
	txtIsExpandable
	txtBlocks
	txtState
	txtRequestedSize
	txtHistory
	txtRealSize
	txtStage
	txtSegments
	txtDeviceTraces
	txtAllocatorSettings
	txtExternalAnnotations
	txtConf
	txtMaxSplit
	txtGC
	txtExpandable
	txtDivisions
	txtGraphReuse
	txtMaxRound
	txtSmall
	txtInactive
	txtActive
	txtPending
	txtAwaiting
	txtFirstAction // the actions follow, numbered as event.Kind from KindAlloc on
)

var knownTexts = [...]string{
	txtNone: "", txtAction: "action", txtAddr: "addr", txtSize: "size", txtStream: "stream",
	txtTimeUS: "time_us", txtFrames: "frames",
	txtPoolID: "pool_id", txtDeviceFree: "device_free", txtCompileContext: "compile_context",
	txtUserMetadata:  "user_metadata",
	txtForwardFrames: "forward_frames", txtFilename: "filename", txtName: "name", txtLine: "line",
	txtSegmentType: "segment_type",
	txtDevice:      "device", txtAddress: "address", txtTotalSize: "total_size",
	txtSegmentPoolID: "segment_pool_id",
	txtIsExpandable:  "is_expandable", txtBlocks: "blocks", txtState: "state",
	txtRequestedSize: "requested_size", txtHistory: "history",
	txtRealSize: "real_size", txtStage: "stage", txtSegments: "segments",
	txtDeviceTraces:      "device_traces",
	txtAllocatorSettings: "allocator_settings", txtExternalAnnotations: "external_annotations",
	txtConf:     "PYTORCH_CUDA_ALLOC_CONF",
	txtMaxSplit: "max_split_size", txtGC: "garbage_collection_threshold",
	txtExpandable: "expandable_segments",
	txtDivisions:  "roundup_power2_divisions", txtGraphReuse: "graph_capture_record_stream_reuse",
	txtMaxRound: "max_round_threshold",
	txtSmall:    "small", txtInactive: "inactive", txtActive: "active_allocated",
	txtPending:     "active_pending_free",
	txtAwaiting:    "active_awaiting_free",
	txtFirstAction: "alloc", "free_requested", "free_completed", "segment_alloc", "segment_free",
	"segment_map", "segment_unmap", "snapshot", "oom",
}

// keysSeen are the keys by which torch's version is recognised.
type keysSeen struct {
	poolID, forwardFrames, userMetadata, compileContext, timeUS, isExpandable, history,
	requestedSize bool
	settings, annotations, traces, graphReuse,
	maxRound bool
}

// shape is what a dict turns out to be.
type shape uint8

const (
	shapeOther shape = iota
	shapeEntry
	shapeFrame
	shapeSegment
	shapeBlock
	shapePast
	shapeNote
)

// shapeOf returns the kind of a dict, by a key that only that kind has.
func shapeOf(items []value) shape {
	for i := 0; i < len(items); i += 2 {
		if items[i].tag != tagText {
			continue
		}
		switch uint32(items[i].n) {
		case txtAction:
			return shapeEntry
		case txtFilename:
			return shapeFrame
		case txtSegmentType:
			return shapeSegment
		case txtState:
			return shapeBlock
		case txtRealSize:
			return shapePast
		case txtStage:
			return shapeNote
		}
	}
	return shapeOther
}

// setItems fills the dict below the mark with the pairs above it.
func (m *machine) setItems() error {
	mark, err := m.popMark()
	if err != nil {
		return err
	}
	if mark == 0 || mark-1 < m.floorHeight() || (len(m.stack)-mark)%2 != 0 {
		return m.underflow()
	}
	return m.fill(mark)
}

// setItem fills the dict below the top pair.
func (m *machine) setItem() error {
	from := len(m.stack) - 2
	if from-1 < m.floorHeight() {
		return m.underflow()
	}
	return m.fill(from)
}

// fill makes a value of the dict below from, with the pairs from there on.
func (m *machine) fill(from int) error {
	target, items := &m.stack[from-1], m.stack[from:]
	if target.tag == tagDict {
		return m.fillOther(from)
	}
	if target.tag != tagEmptyDict {
		return m.fail("items for something that is not a new dict")
	}
	if len(items) == 0 {
		return nil
	}
	aux := target.aux
	switch shapeOf(items) {
	case shapeEntry:
		e := m.entry(items)
		m.stack = m.stack[:from-1]
		return m.placeEntry(&e, aux)
	case shapeFrame:
		known := len(m.names.frames)
		*target = value{tag: tagFrame, n: int64(m.names.addFrame(m.frame(items)))}
		if len(m.names.frames) == known {
			m.items -= 4 // written out again with every event, and kept once
		}
	case shapeSegment:
		*target = value{tag: tagSegment, n: m.segment(items)}
	case shapeBlock:
		*target = value{tag: tagBlock, n: m.block(items)}
	case shapePast:
		*target = value{tag: tagPast, n: m.past(items)}
	case shapeNote:
		*target = value{tag: tagNote, n: m.note(items)}
	default:
		*target = value{tag: tagDict, n: int64(len(m.dicts))}
		m.dicts = append(m.dicts, map[uint32]value{})
		target.aux = aux
		m.settle(target)
		return m.fillOther(from)
	}
	if m.items += 4; m.items > maxItems {
		return m.fail("more than %d blocks, segments and other objects", maxItems/4)
	}
	target.aux = aux
	m.settle(target)
	m.stack = m.stack[:from]
	return nil
}

// fillOther keeps the pairs of a dict that is none of the known shapes.
func (m *machine) fillOther(from int) error {
	d := m.dicts[m.stack[from-1].n]
	items := m.stack[from:]
	for i := 0; i < len(items); i += 2 {
		if items[i].tag == tagText {
			d[uint32(items[i].n)] = items[i+1]
		}
	}
	m.items += len(items) + 8
	if m.items > maxItems {
		return m.fail("more than %d values in objects that a memory snapshot does not have",
			maxItems)
	}
	m.stack = m.stack[:from]
	return nil
}

// number returns an integer and takes everything else as 0.
func (v *value) number() int64 {
	switch v.tag {
	case tagInt:
		return v.n
	case tagFloat:
		if f := math.Float64frombits(uint64(v.n)); f > -9e18 && f < 9e18 {
			return int64(f)
		}
	}
	return 0
}

func (v *value) stackID() event.StackID {
	if v.tag == tagStack {
		return event.StackID(v.n)
	}
	return 0
}

func (m *machine) textOf(v *value) uint32 {
	if v.tag == tagText {
		return uint32(v.n)
	}
	return txtNone
}

func (m *machine) poolOf(v *value) event.PoolID {
	if v.tag == tagPool {
		return m.pools[v.n]
	}
	return event.PoolID{}
}

// entry reads an event of the history.
func (m *machine) entry(items []value) event.Entry {
	var e event.Entry
	for i := 0; i < len(items); i += 2 {
		if items[i].tag != tagText {
			continue
		}
		v := &items[i+1]
		switch uint32(items[i].n) {
		case txtAction:
			if a := m.textOf(v); a >= txtFirstAction && a < uint32(len(knownTexts)) {
				e.Kind = event.KindAlloc + event.Kind(a-txtFirstAction)
			} else {
				m.unknown++
			}
		case txtAddr:
			e.Addr = uint64(v.number())
		case txtSize:
			e.Size = v.number()
		case txtStream:
			e.Stream = uint64(v.number())
		case txtTimeUS:
			e.TimeUS = v.number()
			m.seen.timeUS = true
		case txtFrames:
			e.Stack = v.stackID()
		case txtPoolID:
			e.Pool = m.poolOf(v)
			m.seen.poolID = true
		case txtDeviceFree:
			e.DeviceFree = v.number()
		case txtCompileContext:
			m.seen.compileContext = true
		case txtUserMetadata:
			m.seen.userMetadata = true
		case txtForwardFrames:
			m.seen.forwardFrames = true
		}
	}
	return e
}

func (m *machine) frame(items []value) frame {
	var f frame
	for i := 0; i < len(items); i += 2 {
		switch v := &items[i+1]; m.textOf(&items[i]) {
		case txtFilename:
			f.file = m.textOf(v)
		case txtName:
			f.name = m.textOf(v)
		case txtLine:
			f.line = int32(v.number())
		}
	}
	return f
}

func (m *machine) segment(items []value) int64 {
	var s event.Segment
	device := 0
	for i := 0; i < len(items); i += 2 {
		switch v := &items[i+1]; m.textOf(&items[i]) {
		case txtDevice:
			device = int(v.number())
		case txtAddress:
			s.Addr = uint64(v.number())
		case txtTotalSize:
			s.Size = v.number()
		case txtStream:
			s.Stream = uint64(v.number())
		case txtSegmentType:
			s.Small = m.textOf(v) == txtSmall
		case txtSegmentPoolID:
			s.Pool = m.poolOf(v)
		case txtIsExpandable:
			s.Expandable = v.number() != 0
			m.seen.isExpandable = true
		case txtFrames:
			s.Stack = v.stackID()
		case txtBlocks:
			s.Blocks = m.blocksOf(v)
		case txtRequestedSize:
			m.seen.requestedSize = true
		}
	}
	addr := s.Addr
	for i := range s.Blocks { // up to 2.0 blocks have no address
		if s.Blocks[i].Addr == 0 {
			s.Blocks[i].Addr = addr
		}
		addr = s.Blocks[i].Addr + uint64(s.Blocks[i].Size)
	}
	m.segments = append(m.segments, s)
	m.devices = append(m.devices, device)
	return int64(len(m.segments) - 1)
}

// blocksOf returns a segment with its own copy of the blocks in a list.
func (m *machine) blocksOf(v *value) []event.Block {
	if v.tag != tagList {
		return nil
	}
	var blocks []event.Block
	m.items += len(m.lists[v.n]) // many segments may name one list
	if m.items > maxItems {
		return nil // fill complains
	}
	for _, item := range m.lists[v.n] {
		if item.tag == tagBlock {
			blocks = append(blocks, m.blocks[item.n])
		}
	}
	return blocks
}

func (m *machine) block(items []value) int64 {
	var b event.Block
	var old *past
	for i := 0; i < len(items); i += 2 {
		switch v := &items[i+1]; m.textOf(&items[i]) {
		case txtAddress:
			b.Addr = uint64(v.number())
		case txtSize:
			b.Size = v.number()
		case txtRequestedSize:
			b.Requested = v.number()
		case txtFrames:
			b.Stack = v.stackID()
		case txtState:
			switch m.textOf(v) {
			case txtActive:
				b.State = event.BlockActive
			case txtPending, txtAwaiting:
				b.State = event.BlockPending
			}
		case txtHistory:
			m.seen.history = true
			old = m.newestPast(v)
		}
	}
	if old != nil && b.State != event.BlockFree {
		b.Requested, b.Stack = old.size, old.stack
	}
	m.blocks = append(m.blocks, b)
	return int64(len(m.blocks) - 1)
}

// newestPast returns the first element of a block's history: the allocation that holds it.
func (m *machine) newestPast(v *value) *past {
	if v.tag == tagList && len(m.lists[v.n]) > 0 && m.lists[v.n][0].tag == tagPast {
		return &m.pasts[m.lists[v.n][0].n]
	}
	return nil
}

func (m *machine) past(items []value) int64 {
	var p past
	for i := 0; i < len(items); i += 2 {
		switch v := &items[i+1]; m.textOf(&items[i]) {
		case txtAddr:
			p.addr = uint64(v.number())
		case txtRealSize:
			p.size = v.number()
		case txtFrames:
			p.stack = v.stackID()
		}
	}
	m.pasts = append(m.pasts, p)
	return int64(len(m.pasts) - 1)
}

func (m *machine) note(items []value) int64 {
	var a Annotation
	for i := 0; i < len(items); i += 2 {
		switch v := &items[i+1]; m.textOf(&items[i]) {
		case txtName:
			a.Name = m.names.strings[m.textOf(v)]
		case txtStage:
			a.Stage = m.names.strings[m.textOf(v)]
		case txtDevice:
			a.Device = int(v.number())
		case txtTimeUS:
			a.TimeUS = v.number()
		}
	}
	m.notes = append(m.notes, a)
	return int64(len(m.notes) - 1)
}
