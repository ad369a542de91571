package trace

import (
	"bytes"
	"io"
	"strconv"
	"testing"
)

// TestFramesWrittenOutWithEveryEvent: some writers share no frame between events, so that the file
// holds millions of equal ones. They are kept once, and no limit on objects counts them.
func TestFramesWrittenOutWithEveryEvent(t *testing.T) {
	const events, depth = 75_000, 30 // more than two million frames
	text := func(s string) string { return "\x8c" + string([]byte{byte(len(s))}) + s }
	var entry bytes.Buffer
	entry.WriteString("}(" + text("action") + text("alloc") + text("addr") + "J\x00\x00\x00\x10" +
		text("size") + "J\x00\x02\x00\x00" + text("stream") + "K\x00" + text("frames") + "](")
	for i := range depth {
		entry.WriteString("}(" + text("name") + text("f"+strconv.Itoa(i)) + text("filename") +
			text("a.py") + text("line") + "K\x01u")
	}
	entry.WriteString("eu")
	readers := []io.Reader{bytes.NewReader([]byte("\x80\x04}(" + text("segments") + "]" +
		text("device_traces") + "]("))}
	readers = append(readers, bytes.NewReader([]byte("](")))
	for range events {
		readers = append(readers, bytes.NewReader(entry.Bytes()))
	}
	readers = append(readers, bytes.NewReader([]byte("eeu.")))
	read, err := ReadSnapshot(io.MultiReader(readers...))
	if err != nil {
		t.Fatal(err)
	}
	if n := read.Recordings[0].History.Len(); read.Truncated || n != events {
		t.Errorf("%d of %d events were read: %s", n, events, read.Reason)
	}
}
