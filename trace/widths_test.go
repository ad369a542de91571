package trace

import (
	"fmt"
	"strings"
	"testing"

	"memroom/event"
)

// TestBytesOfTensorFlowsTypes: the bytes of a 1000 x 1000 tensor, for every type that a message
// names, by TensorFlow's own widths.
func TestBytesOfTensorFlowsTypes(t *testing.T) {
	for kind, width := range map[string]event.Bytes{"float": 4, "float32": 4, "half": 2,
		"float16": 2, "bfloat16": 2, "double": 8, "float64": 8, "int8": 1, "uint8": 1, "bool": 1,
		"int16": 2, "uint16": 2, "int32": 4, "uint32": 4, "int64": 8, "uint64": 8, "complex64": 8,
		"complex128": 16} {
		text := fmt.Sprintf("ResourceExhaustedError: OOM when allocating tensor with shape"+
			"[1000,1000] and type %s on /job:localhost/replica:0/task:0/device:GPU:0 by allocator "+
			"GPU_0_bfc [Op:MatMul]\n", kind)
		log, err := ReadLog(strings.NewReader(text))
		if err != nil || len(log.Crashes) != 1 {
			t.Fatalf("%s: %d crashes, %v", kind, len(log.Crashes), err)
		}
		if got := log.Crashes[0].Requested; got == nil || *got != width*1_000_000 {
			t.Errorf("%s: requested %v, want %d bytes", kind, got, width*1_000_000)
		}
	}
}

// TestWhatMayBeUnpacked: what was said, else a multiple of the packed bytes, and never less than a
// small file may need.
func TestWhatMayBeUnpacked(t *testing.T) {
	for _, c := range []struct {
		said   event.Bytes
		packed int64
		want   event.Bytes
	}{{0, 0, UnpackedAtLeast}, {0, 1, UnpackedAtLeast},
		{0, int64(UnpackedAtLeast), UnpackedRatio * UnpackedAtLeast},
		{1, int64(UnpackedAtLeast), 1}, {7, 0, 7}} {
		if got := (Limits{Unpacked: c.said}).unpacked(c.packed); got != c.want {
			t.Errorf("%d said, %d packed: %s, want %s", c.said, c.packed, got, c.want)
		}
	}
}
