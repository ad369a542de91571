package trace

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"io"
	"runtime"
	"strings"
	"testing"
)

// repeated returns a reader of a prefix followed by the same bytes again and again: a file of any
// size.
func repeated(prefix, again string, times int) io.Reader {
	return io.MultiReader(strings.NewReader(prefix), &loop{data: []byte(again),
		left: len(again) * times})
}

type loop struct {
	data []byte
	at   int
	left int
}

func (l *loop) Read(b []byte) (int, error) {
	if l.left == 0 {
		return 0, io.EOF
	}
	n := 0
	for n < len(b) && l.left > 0 {
		c := copy(b[n:min(len(b), n+l.left)], l.data[l.at:])
		l.at = (l.at + c) % len(l.data)
		n += c
		l.left -= c
	}
	return n, nil
}

func le32(v uint32) string { return string(binary.LittleEndian.AppendUint32(nil, v)) }

// TestHostilePicklesAreRefused feeds files that would make a naive reader run out of memory or
// time, or run code. Each must end in one line, with memory bounded by a constant or a small
// multiple of the file.
func TestHostilePicklesAreRefused(t *testing.T) {
	const million = 1 << 20
	for name, c := range map[string]struct {
		file   io.Reader
		say    string
		budget uint64 // bytes allocated in total
	}{
		"lists in lists in lists": {repeated("\x80\x04", "]", 8*million), "nested too deeply",
			400 << 20},
		"marks on marks": {repeated("\x80\x04", "(", million), "nested too deeply",
			8 << 20},
		"string of 4 GiB": {strings.NewReader("\x80\x04X\xff\xff\xff\xffabc"),
			"a string of", 8 << 20},
		"string of 2^63": {strings.NewReader("\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7fabc"),
			"a string of", 8 << 20},
		"short string, file ends": {strings.NewReader("\x80\x04X\xff\xff\xff\x00abc"),
			"ends early", 32 << 20},
		"integer of 2 GiB": {strings.NewReader("\x80\x04\x8b\xff\xff\xff\x7f"),
			"an integer of", 8 << 20},
		"memo slot far away": {strings.NewReader("\x80\x02}r" + le32(4e9)), "out of order",
			8 << 20},
		"memo of one object": {repeated("\x80\x04}", "\x94", 16*million), "ends early",
			200 << 20},
		"numbers without end": {repeated("\x80\x04", "K\x01", 16*million),
			"nested too deeply", 400 << 20},
		"ever new strings": {newStrings(3 * million / 2), "ends early", 500 << 20},
		"doubling lists":   {doublingLists(60), "no dict", 8 << 20},
		"dicts that mean nothing": {repeated("\x80\x04](", "}(K\x01K\x02K\x03K\x04u", million),
			"values in objects", 600 << 20},
		"a zip bomb": {zipped(200 * million), "0x00", 16 << 20},
		"GLOBAL": {strings.NewReader("\x80\x02cposix\nsystem\nX\x02\x00\x00\x00ls\x85R."),
			"GLOBAL", 8 << 20},
		"INST": {strings.NewReader("\x80\x02(iposix\nsystem\n."), "INST",
			8 << 20},
		"PERSID": {strings.NewReader("\x80\x02Pabc\n."), "PERSID", 8 << 20},
		"EXT1":   {strings.NewReader("\x80\x02\x82\x01."), "EXT1", 8 << 20},
		"a list that contains itself": {strings.NewReader("\x80\x02]q\x00h\x00a."), "no dict",
			8 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := ReadSnapshot(c.file)
			runtime.ReadMemStats(&after)
			if err == nil || !strings.Contains(err.Error(), c.say) ||
				strings.Contains(err.Error(), "\n") {
				t.Errorf("error %v; want one line with %q", err, c.say)
			}
			if used := after.TotalAlloc - before.TotalAlloc; used > c.budget {
				t.Errorf("allocated %d MiB, budget %d MiB", used>>20, c.budget>>20)
			}
		})
	}
}

// newStrings is a file of strings that are all different.
func newStrings(n int) io.Reader {
	var b bytes.Buffer
	b.WriteString("\x80\x04](")
	for i := range n {
		b.WriteString("\x8c\x04" + le32(uint32(i)))
		if i%1000 == 999 {
			b.WriteString("e(")
		}
	}
	return &b
}

// doublingLists describes a list of two lists of two lists ...: 2^n elements in a tree, n in the
// file.
func doublingLists(n int) io.Reader {
	var b bytes.Buffer
	b.WriteString("\x80\x02]q\x00")
	for i := range n {
		b.WriteString("](" + "h" + string(rune(i)) + "h" + string(rune(i)) + "eq" +
			string(rune(i+1)))
	}
	b.WriteString(".")
	return &b
}

func zipped(zeroes int) io.Reader {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	w.Write([]byte("\x80\x04"))
	io.Copy(w, &loop{data: make([]byte, 4096), left: zeroes})
	w.Close()
	return &b
}

// FuzzReadSnapshot looks for input that makes the reader panic, hang or contradict itself.
func FuzzReadSnapshot(f *testing.F) {
	f.Add(snapshotWith(newPickler(4, false), 3))
	f.Add(snapshotWith(newPickler(2, true), 3))
	f.Add(snapshotWith(newPickler(2, false), 3))
	f.Add([]byte("\x80\x02cos\nsystem\n."))
	f.Add([]byte("\x80\x04](}(\x8c\x06action\x94\x8c\x05alloc\x94ue."))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := ReadSnapshot(bytes.NewReader(data))
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("the error has several lines: %q", err)
			}
			return
		}
		for i := range s.Recordings {
			r := &s.Recordings[i]
			n := 0
			for _, e := range r.History.All() {
				n++
				s.Stacks.Frames(e.Stack)
			}
			if n != r.History.Len() {
				t.Errorf("%d events of %d", n, r.History.Len())
			}
		}
	})
}
