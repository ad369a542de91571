package attack

import (
	"encoding/binary"
	"fmt"
)

// kv is a pair of a dict.
type kv struct {
	key   string
	value any
}

// dict and list are the parts of a snapshot, in order.
type (
	dict []kv
	list []any
)

// pickled writes a value in protocol 2, as plainly as possible.
func pickled(value any) []byte { return append(appendPickle([]byte("\x80\x02"), value), '.') }

func appendPickle(b []byte, value any) []byte {
	switch v := value.(type) {
	case nil:
		return append(b, 'N')
	case []byte: // opcodes as they are
		return append(b, v...)
	case int:
		return appendPickle(b, int64(v))
	case int64:
		b = append(b, 0x8a, 8)
		return binary.LittleEndian.AppendUint64(b, uint64(v))
	case string:
		b = binary.LittleEndian.AppendUint32(append(b, 'X'), uint32(len(v)))
		return append(b, v...)
	case list:
		b = append(b, ']', '(')
		for _, item := range v {
			b = appendPickle(b, item)
		}
		return append(b, 'e')
	case dict:
		b = append(b, '}', '(')
		for _, pair := range v {
			b = appendPickle(appendPickle(b, pair.key), pair.value)
		}
		return append(b, 'u')
	}
	panic(fmt.Sprintf("%T", value))
}

// event is an entry of a history.
func event(action string, addr, size int64, more ...kv) dict {
	return append(dict{{"action", action}, {"addr", addr}, {"size", size}, {"stream", 0},
		{"time_us", int64(1_790_000_000_000_000)}, {"frames", list{}}}, more...)
}

// block and segment are parts of the state at the end.
func block(addr, size int64, state string) dict {
	return dict{{"address", addr}, {"size", size}, {"requested_size", size}, {"state", state},
		{"frames", list{}}}
}

func segment(addr, size int64, expandable int, blocks ...any) dict {
	return dict{{"device", 0}, {"address", addr}, {"total_size", size}, {"stream", 0},
		{"segment_type", "large"}, {"is_expandable", expandable}, {"blocks", list(blocks)}}
}

// snapshot is a whole file with one device.
func snapshot(segments, events list, settings dict) []byte {
	if settings == nil {
		settings = dict{{"max_split_size", -1}, {"PYTORCH_CUDA_ALLOC_CONF", ""}}
	}
	return pickled(dict{{"segments", segments}, {"device_traces", list{events}},
		{"allocator_settings", settings}})
}
