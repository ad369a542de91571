package trace

import (
	"bufio"
	"io"
)

// Sniff detects by its first bytes whether a user's file is packed, and whether it is a pickled
// snapshot or text. It returns the unpacked content from its beginning.
func (l Limits) Sniff(r io.Reader) (content io.Reader, snapshot bool, err error) {
	plain, err := l.unpack(r)
	if plain == nil {
		return nil, false, err
	}
	buffered := bufio.NewReaderSize(plain, 64<<10)
	head, _ := buffered.Peek(2)
	return buffered, len(head) == 2 && head[0] == opProto && head[1] >= 2 && head[1] <= 5, nil
}
