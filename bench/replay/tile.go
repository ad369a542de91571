package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
)

// tileTo writes a snapshot with the events of another repeated until it has about the given size.
// The repeated bytes name the same memo slots as the original, so the result is a valid pickle of
// any size that nothing has to be held in memory for. Framing opcodes are dropped: their lengths
// would be wrong.
func tileTo(from, to string, size int64) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	data = dropFraming(data)
	begin, end, err := eventBatches(data)
	if err != nil {
		return err
	}
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	defer out.Close()
	w := bufio.NewWriterSize(out, 1<<20)
	w.Write(data[:begin])
	for written := int64(len(data) - (end - begin)); written < size; written += int64(end - begin) {
		w.Write(data[begin:end])
	}
	w.Write(data[end:])
	return w.Flush()
}

// opLength returns the length of the opcode at the beginning of b with its arguments.
func opLength(b []byte) (int, error) {
	switch b[0] {
	case 'K', 'h', 'q', 0x80:
		return 2, nil
	case 'M':
		return 3, nil
	case 'J', 'j', 'r':
		return 5, nil
	case 'G', 0x95:
		return 9, nil
	case 0x8a, 0x8c:
		return 2 + int(b[1]), nil
	case 'X':
		return 5 + int(binary.LittleEndian.Uint32(b[1:])), nil
	case '(', '.', '}', ']', ')', 's', 'u', 'a', 'e', 't', 0x85, 0x86, 0x87, 'N', 0x88, 0x89, 0x94:
		return 1, nil
	}
	return 0, fmt.Errorf("opcode %#x is not expected in a snapshot", b[0])
}

func dropFraming(data []byte) []byte {
	kept := make([]byte, 0, len(data))
	for at := 0; at < len(data); {
		n, err := opLength(data[at:])
		if err != nil || at+n > len(data) {
			return append(kept, data[at:]...)
		}
		if data[at] != 0x95 {
			kept = append(kept, data[at:at+n]...)
		}
		at += n
	}
	return kept
}

// eventBatches finds the batches of a thousand events, each a mark, the events and APPENDS, of the
// first device.
func eventBatches(data []byte) (begin, end int, err error) {
	key := append([]byte{0x8c, 13}, "device_traces"...)
	at := bytes.Index(data, key)
	if at < 0 {
		return 0, 0, fmt.Errorf("the snapshot has no device_traces")
	}
	at += len(key)
	for data[at] != '(' || data[at+1] != '}' { // up to the mark before the first event
		n, err := opLength(data[at:])
		if err != nil {
			return 0, 0, err
		}
		at += n
	}
	begin, end = at, at
	for depth := 0; ; {
		n, err := opLength(data[at:])
		if err != nil {
			return 0, 0, err
		}
		op := data[at]
		at += n
		switch op {
		case '(':
			depth++
		case 'u', 't':
			depth--
		case 'e':
			if depth--; depth == 0 {
				end = at
			}
		}
		if depth == 0 && op != 'e' {
			return begin, end, nil
		}
	}
}
