package supervise

import (
	"bytes"
	"testing"
)

// FuzzReadMessage reads what comes over the keeper's sockets.
func FuzzReadMessage(f *testing.F) {
	var good bytes.Buffer
	_ = writeMessage(&good, 1, more{Stream: 1, From: 2, To: 3}.encode())
	f.Add(good.Bytes())
	f.Add([]byte{1, 0xff, 0xff, 0xff, 0xff})
	f.Add([]byte{9, 0, 0, 0, 2, '{', '}'})
	f.Fuzz(func(t *testing.T, data []byte) {
		r := bytes.NewReader(data)
		for {
			_, payload, err := readMessage(r)
			if err != nil {
				return
			}
			if len(payload) > len(data) {
				t.Fatalf("%d bytes out of %d", len(payload), len(data))
			}
			if m, err := decodeMore(payload); err == nil && !bytes.Equal(m.encode(), payload) {
				t.Errorf("%v is not what was sent", m)
			}
		}
	})
}
