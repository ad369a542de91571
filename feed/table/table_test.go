package table

import "testing"

// TestFitKeepsTheRows: texts are the same after guessed room was given back, and take what they
// need.
func TestFitKeepsTheRows(t *testing.T) {
	columns := []Column{{Name: "a", Kind: Text}, {Name: "b", Kind: Binary}, FixedOf("c", "<f8", 8, "")}
	rows := NewRows(columns, 100, 1<<20)
	for i := range 100 {
		rows.Data[0].AddBytes([]byte("text"))
		if i%3 == 0 {
			rows.Data[1].AddNull()
		} else {
			rows.Data[1].AddBytes(make([]byte, i))
		}
		rows.Data[2].AddFloat(float64(i))
		rows.Count++
	}
	before := rows.Size()
	rows.Fit()
	if after := rows.Size(); after > before/50 {
		t.Errorf("%d bytes after, %d before", after, before)
	}
	if text, missing := rows.Data[0].row(99); string(text) != "text" || missing {
		t.Errorf("row 99 is %q", text)
	}
	if raw, missing := rows.Data[1].row(98); len(raw) != 98 || missing {
		t.Errorf("row 98 has %d bytes", len(raw))
	}
	if _, missing := rows.Data[1].row(99); !missing {
		t.Error("row 99 is not missing any more")
	}
}

// TestBuffersAreUsedAgain: a buffer that was given back is taken by the next of about its size,
// and by nobody else.
func TestBuffersAreUsedAgain(t *testing.T) {
	Trim(0)
	first := Take(100 << 10)[:100<<10]
	first[7] = 42
	Give(first)
	if small := Take(50 << 10); cap(small) != 50<<10 {
		t.Errorf("a buffer of %d bytes for half of them", cap(small))
	}
	again := Take(99 << 10)
	if len(again) != 0 || cap(again) != 100<<10 || again[:8][7] != 42 {
		t.Error("the buffer was not used again")
	}
	if other := Take(99 << 10); other[:8][7] == 42 {
		t.Error("one buffer was given to two")
	}
	Give(again)
	Trim(0)
	if after := Take(100 << 10); after[:8][7] == 42 {
		t.Error("a buffer was kept after Trim")
	}
}
