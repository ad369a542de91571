package serve

import (
	"context"

	"memroom/feed"
	"memroom/feed/table"
)

// Epoch reads one epoch in this process, as a server would for one consumer. visit is called once
// with 0 rows when the files are indexed, and then for every batch.
func Epoch(ctx context.Context, config Config, spec feed.Spec, visit func(rows int, size int64)) (
	Report, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s := &Server{config: config, peak: newPeakMeter(ctx), batches: &account{}}
	s.setLimit()
	from, err := s.take()
	if err != nil {
		return Report{}, err
	}
	defer from.data.Close()
	if err := s.fits(from.data, spec); err != nil {
		return Report{}, err
	}
	visit(0, 0)
	cursor := feed.NewCursor(from.data, from.pool, spec, 0)
	var out []byte
	for k := int64(0); k < cursor.Batches(); k++ {
		err := cursor.Fill(ctx, k, k+1, func(rows int, _ []table.Span, size int64) ([]byte, error) {
			if int64(len(out)) < size {
				out = make([]byte, size)
			}
			visit(rows, size)
			s.served++
			return out[:size], nil
		})
		if err != nil {
			return Report{}, err
		}
	}
	return s.report(from.pool), nil
}
