package feed

import (
	"context"
	"fmt"
	"slices"

	"memroom/feed/order"
	"memroom/feed/table"
)

// Picker reads rows by their numbers, in the order of the files.
type Picker struct {
	d      *Dataset
	part   *order.Part
	starts []int64 // first row of each block, and the number of rows
}

// NewPicker returns a picker of all rows, or of those in a part.
func NewPicker(d *Dataset, part *order.Part) *Picker {
	sizes := d.sizes
	if part != nil {
		sizes = d.partSizes(*part)
	}
	p := &Picker{d: d, part: part, starts: make([]int64, 1, len(sizes)+1)}
	for b, size := range sizes {
		p.starts = append(p.starts, p.starts[b]+size.Rows)
	}
	return p
}

// Rows is how many there are.
func (p *Picker) Rows() int64 { return p.starts[len(p.starts)-1] }

// Fill asks room for these rows and copies them there. Each block that has some of them is read
// once, and only its rows are kept.
func (p *Picker) Fill(ctx context.Context, numbers []int64,
	room func(rows int, spans []table.Span, size int64) ([]byte, error)) error {
	sorted := slices.Compact(slices.Sorted(slices.Values(numbers)))
	if len(sorted) > 0 && (sorted[0] < 0 || sorted[len(sorted)-1] >= p.Rows()) {
		return fmt.Errorf("rows %d to %d were asked for, there are %d", sorted[0],
			sorted[len(sorted)-1], p.Rows())
	}
	var blocks []*table.Rows
	place := map[int64]table.Pick{}
	for len(sorted) > 0 && ctx.Err() == nil {
		b, exact := slices.BinarySearch(p.starts, sorted[0])
		if !exact {
			b--
		}
		for p.starts[b+1] <= sorted[0] { // blocks without rows
			b++
		}
		end, _ := slices.BinarySearch(sorted, p.starts[b+1])
		rows, err := p.read(int32(b), sorted[:end])
		if err != nil {
			return err
		}
		for i, number := range sorted[:end] {
			place[number] = table.Pick{Block: int32(len(blocks)), Row: int32(i)}
		}
		blocks, sorted = append(blocks, rows), sorted[end:]
	}
	picks := make([]table.Pick, len(numbers))
	for i, number := range numbers {
		picks[i] = place[number]
	}
	spans, size := table.Layout(p.d.Columns, blocks, picks)
	out, err := room(len(picks), spans, size)
	if err == nil {
		table.Gather(p.d.Columns, blocks, picks, spans, out)
	}
	return err
}

// read returns the rows with these numbers, all of one block.
func (p *Picker) read(b int32, numbers []int64) (*table.Rows, error) {
	want := make([]int32, len(numbers))
	var within []int32
	if p.part != nil {
		within = p.d.partRows(*p.part, b, nil)
	}
	for i, number := range numbers {
		want[i] = int32(number - p.starts[b])
		if within != nil {
			want[i] = within[want[i]]
		}
	}
	if rows, err := p.d.decodeSome(b, want); err == nil {
		return rows, nil
	}
	whole, err := p.d.decode(b)
	if err != nil {
		return nil, err
	}
	defer whole.Recycle()
	picks := make([]table.Pick, len(want))
	for i, row := range want {
		picks[i].Row = row
	}
	return table.Extract(p.d.Columns, []*table.Rows{whole}, picks), nil
}
