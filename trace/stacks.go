package trace

import (
	"slices"

	"memroom/event"
)

// Stacks are the call stacks of a snapshot, each kept once. Stack 0 is the empty one.
type Stacks struct {
	strings []string
	frames  []frame
	flat    []uint32 // frames of all stacks, one after the other
	ends    []uint32 // end of each stack in flat; stack 0 is empty
}

// frame refers to its strings by index.
type frame struct {
	file, name uint32
	line       int32
}

// Len returns the number of different stacks, the empty one included. StackIDs are below it.
func (s *Stacks) Len() int { return len(s.ends) }

// Frames returns a stack, innermost frame first. The slice is new; the strings are shared.
func (s *Stacks) Frames(id event.StackID) []event.Frame {
	var frames []event.Frame
	for _, f := range s.refs(id) {
		frames = append(frames, s.frame(f))
	}
	return frames
}

// Each calls f for the frames of a stack, from the innermost outwards, until f returns false. It
// allocates nothing.
func (s *Stacks) Each(id event.StackID, f func(event.Frame) bool) {
	for _, ref := range s.refs(id) {
		if !f(s.frame(ref)) {
			return
		}
	}
}

func (s *Stacks) frame(ref uint32) event.Frame {
	f := s.frames[ref]
	return event.Frame{File: s.strings[f.file], Name: s.strings[f.name], Line: int(f.line)}
}

func (s *Stacks) refs(id event.StackID) []uint32 {
	if id == 0 || int(id) >= len(s.ends) {
		return nil
	}
	return s.flat[s.ends[id-1]:s.ends[id]]
}

// interner builds Stacks: equal strings, frames and stacks get the same number.
type interner struct {
	Stacks
	stringIDs map[string]uint32
	frameIDs  map[frame]uint32
	stackIDs  map[uint64]event.StackID // by hash of the frames
	scratch   []uint32
	bytes     int   // in strings
	read      int64 // bytes of the file so far
	walked    int64 // frames of stacks that were lengthened
	lost      int   // strings over the limit, taken as empty
	lastText  uint32

	guesses [1 << 13]guess // by a hash of the stacks before
	past    uint32         // of the last four stacks
}

// guess is a stack as it was written in the file the last time.
type guess struct {
	raw []byte
	id  event.StackID
}

// next returns what followed the last four stacks, and what followed the last two, the last time.
func (in *interner) next() [2]*guess {
	const half = uint32(len(in.guesses) / 2)
	return [2]*guess{&in.guesses[in.past*0x9e3779b1>>20%half],
		&in.guesses[half+(in.past&0xffff)*0x9e3779b1>>20%half]}
}

// remember notes the stack that came: how it was written, if no guess was right, and that it came.
func (in *interner) remember(wrong [2]*guess, raw []byte, id event.StackID) {
	if len(raw) > maxGuess {
		return // long stacks are rare
	}
	for _, g := range wrong {
		g.raw, g.id = append(g.raw[:0], raw...), id
	}
}

// came shifts the context of the next guess.
func (in *interner) came(id event.StackID) { in.past = in.past<<8 | uint32(id)&0xff }

const maxGuess = 1 << 10 // bytes

// Bounds on what a file can make us keep. Real snapshots have some ten thousand names. A frame of
// a stack takes at least two bytes in the file, so the frames kept follow what was read: a list
// that is lengthened one by one would otherwise grow with the square of its length. So would the
// time, hence the bound on frames walked.
const (
	maxStrings     = 1 << 20
	maxStringBytes = 256 << 20
	maxStackFrames = int64(256 << 20)
	freeFrames     = int64(1 << 20)
	freeWalk       = int64(1 << 26)
	walkPerByte    = int64(16)
)

func newInterner(known []string) *interner {
	in := &interner{stringIDs: map[string]uint32{}, frameIDs: map[frame]uint32{},
		stackIDs: map[uint64]event.StackID{}}
	in.ends = []uint32{0}
	for _, s := range known {
		in.add(s)
	}
	return in
}

func (in *interner) add(s string) uint32 {
	id := uint32(len(in.strings))
	in.strings = append(in.strings, s)
	in.stringIDs[s] = id
	in.bytes += len(s)
	return id
}

// text returns the number of a string. Beyond the limits new strings are the empty one.
func (in *interner) text(b []byte) uint32 {
	if string(b) == in.strings[in.lastText] {
		return in.lastText // "N/A" comes once an event
	}
	if id, ok := in.stringIDs[string(b)]; ok {
		in.lastText = id
		return id
	}
	if len(in.strings) >= maxStrings || in.bytes+len(b) > maxStringBytes {
		in.lost++
		return 0
	}
	return in.add(string(b))
}

func (in *interner) addFrame(f frame) uint32 {
	if id, ok := in.frameIDs[f]; ok {
		return id
	}
	id := uint32(len(in.frames))
	in.frames = append(in.frames, f)
	in.frameIDs[f] = id
	return id
}

// stack returns the number of a stack made of the frames of base followed by those named by the
// values; ok is false if some of these are no frames.
func (in *interner) stack(base event.StackID, values []value) (id event.StackID, ok bool) {
	key := append(in.scratch[:0], in.refs(base)...)
	in.walked += int64(len(key))
	for i := range values {
		if values[i].tag != tagFrame {
			return 0, false
		}
		key = append(key, uint32(values[i].n))
	}
	in.scratch = key
	return in.stackOf(key), true
}

// stackOf returns the number of a stack of frames.
func (in *interner) stackOf(frames []uint32) event.StackID {
	hash := hashFrames(frames)
	for ; ; hash++ {
		id, taken := in.stackIDs[hash]
		if !taken {
			break
		}
		if slices.Equal(in.refs(id), frames) {
			return id
		}
	}
	if most := min(maxStackFrames, freeFrames+in.read); int64(len(in.flat)+len(frames)) > most {
		in.lost++
		return 0
	}
	in.flat = append(in.flat, frames...)
	in.ends = append(in.ends, uint32(len(in.flat)))
	id := event.StackID(len(in.ends) - 1)
	in.stackIDs[hash] = id
	return id
}

// hashFrames mixes frame numbers. Stacks that collide are distinguished by comparing them.
func hashFrames(frames []uint32) uint64 {
	h := uint64(len(frames)) + 0x9e3779b97f4a7c15
	for _, f := range frames {
		h = (h ^ uint64(f)) * 0xff51afd7ed558ccd
	}
	return h ^ h>>32
}
