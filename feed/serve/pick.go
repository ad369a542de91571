package serve

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"io"
	"net"

	"memroom/feed"
	"memroom/feed/source"
	"memroom/feed/table"
)

// mostPicked is how many rows a consumer may ask for at once.
const mostPicked = 1 << 20

// readNumbers hands on the lists of rows that a consumer sends, until it closes its end or breaks
// the rules.
func readNumbers(ctx context.Context, in *bufio.Reader, asked chan<- []int64) {
	for {
		var count uint32
		if binary.Read(in, binary.LittleEndian, &count) != nil || count > mostPicked {
			return
		}
		numbers := make([]int64, count)
		if binary.Read(io.LimitReader(in, 8*int64(count)), binary.LittleEndian, numbers) != nil {
			return
		}
		select {
		case asked <- numbers:
		case <-ctx.Done():
			return
		}
	}
}

// pick sends the rows that a consumer names. They lie in its only slot, which it has read when it
// asks again.
func (s *Server) pick(ctx context.Context, conn *net.UnixConn, asked <-chan []int64, r request,
	from *opened) error {
	picker := feed.NewPicker(from.data, r.Spec.Part)
	line, _ := json.Marshal(answer{Columns: from.data.Columns, Rows: picker.Rows(),
		Data: from.fingerprint, Skipped: from.data.Skipped, BadFiles: from.data.BadFiles})
	if _, err := conn.Write(append(line, '\n')); err != nil {
		return errGone
	}
	var own slot
	defer s.drop(&own)
	for {
		var numbers []int64
		select {
		case numbers = <-asked:
		case <-ctx.Done():
			return errGone
		}
		fill := func(room func(int, []table.Span, int64) ([]byte, error)) error {
			return picker.Fill(ctx, numbers, room)
		}
		if err := s.send(conn, header{Kind: kindBatch}, r, from.data.Columns, &own, true,
			fill); err != nil {
			if ctx.Err() != nil {
				return errGone
			}
			text := []byte(source.ShownText(err.Error()))
			_ = write(conn, header{Kind: kindError, Size: uint64(len(text))}, nil, text, -1)
			return err
		}
	}
}
