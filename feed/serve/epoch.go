package serve

import (
	"context"

	"memroom/feed"
	"memroom/feed/table"
)

// Epoch reads one epoch in this process, as a server would for one consumer. start is called once
// the files are indexed, and batch for every batch, whose bytes are overwritten by the next.
func Epoch(ctx context.Context, config Config, spec feed.Spec, start func(*feed.Dataset) error,
	batch func(rows int, spans []table.Span, data []byte) error) (Report, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s := &Server{config: config, peak: newPeakMeter(ctx), batches: newAccount(0)}
	s.now.Store(int64(config.Budget))
	s.setLimit()
	from, err := s.take()
	if err != nil {
		return Report{}, err
	}
	defer from.data.Close()
	if err := s.fits(from.data, spec); err != nil {
		return Report{}, err
	}
	if err := start(from.data); err != nil {
		return Report{}, err
	}
	cursor := feed.NewCursor(from.data, from.pool, spec, 0)
	var out []byte
	for k := int64(0); k < cursor.Batches(); k++ {
		var count int
		var layout []table.Span
		var data []byte
		room := func(rows int, spans []table.Span, size int64) ([]byte, error) {
			if int64(len(out)) < size {
				out = make([]byte, size)
			}
			count, layout, data = rows, spans, out[:size]
			return data, nil
		}
		if err := cursor.Fill(ctx, k, k+1, room); err != nil {
			return Report{}, err
		}
		s.served++
		if err := batch(count, layout, data); err != nil {
			return Report{}, err
		}
	}
	return s.report(from.pool), nil
}
