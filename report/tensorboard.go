package report

import (
	"encoding/binary"
	"hash/crc32"
	"io"
	"math"
)

// TensorBoard writes an event file that TensorBoard reads: records of a length, its checksum, a
// message and its checksum. The messages are few, so they are written by hand.
type TensorBoard struct {
	out io.Writer
	err error
}

// NewTensorBoard begins an event file. at is seconds since 1970.
func NewTensorBoard(out io.Writer, at float64) *TensorBoard {
	t := &TensorBoard{out: out}
	t.record(append(doubleField(nil, 1, at), bytesField(nil, 3, []byte("brain.Event:2"))...))
	return t
}

// Scalar adds a value of a series. step is what TensorBoard puts on the axis.
func (t *TensorBoard) Scalar(name string, step int64, at, value float64) {
	v := bytesField(nil, 1, []byte(name))
	v = binary.LittleEndian.AppendUint32(append(v, 2<<3|5), math.Float32bits(float32(value)))
	t.summary(step, at, v)
}

// Text adds a sentence.
func (t *TensorBoard) Text(name string, step int64, at float64, text string) {
	const stringType = 7
	tensor := append([]byte{1 << 3, stringType}, bytesField(nil, 2, bytesField(nil, 2,
		varintField(nil, 1, 1)))...) // one dimension of size 1
	tensor = bytesField(tensor, 8, []byte(text))
	plugin := bytesField(nil, 1, bytesField(nil, 1, []byte("text")))
	v := bytesField(nil, 1, []byte(name))
	v = bytesField(v, 9, plugin)
	v = bytesField(v, 8, tensor)
	t.summary(step, at, v)
}

// Err is the first error of writing.
func (t *TensorBoard) Err() error { return t.err }

func (t *TensorBoard) summary(step int64, at float64, value []byte) {
	e := doubleField(nil, 1, at)
	e = varintField(e, 2, uint64(step))
	e = bytesField(e, 5, bytesField(nil, 1, value))
	t.record(e)
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// masked is the checksum as TensorFlow stores it.
func masked(data []byte) uint32 {
	sum := crc32.Checksum(data, castagnoli)
	return (sum>>15 | sum<<17) + 0xa282ead8
}

func (t *TensorBoard) record(message []byte) {
	if t.err != nil {
		return
	}
	head := binary.LittleEndian.AppendUint64(nil, uint64(len(message)))
	head = binary.LittleEndian.AppendUint32(head, masked(head))
	foot := binary.LittleEndian.AppendUint32(nil, masked(message))
	for _, part := range [][]byte{head, message, foot} {
		if _, err := t.out.Write(part); err != nil {
			t.err = err
			return
		}
	}
}

func varintField(b []byte, field int, v uint64) []byte {
	return binary.AppendUvarint(binary.AppendUvarint(b, uint64(field)<<3), v)
}

func doubleField(b []byte, field int, v float64) []byte {
	return binary.LittleEndian.AppendUint64(binary.AppendUvarint(b, uint64(field)<<3|1),
		math.Float64bits(v))
}

func bytesField(b []byte, field int, data []byte) []byte {
	b = binary.AppendUvarint(b, uint64(field)<<3|2)
	return append(binary.AppendUvarint(b, uint64(len(data))), data...)
}
