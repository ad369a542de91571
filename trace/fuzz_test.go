package trace

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/ulikunitz/xz"
)

// FuzzSniff unpacks input that looks packed. The limit is low, so that a bomb is a quick one.
func FuzzSniff(f *testing.F) {
	plain := snapshotWith(newPickler(4, false), 3)
	f.Add(gzipped(plain))
	f.Add(zstded(plain))
	f.Add(xzed(f, xz.WriterConfig{}, plain))
	f.Add(xzed(f, xz.WriterConfig{BlockSize: 100, CheckSum: xz.SHA256}, plain))
	f.Add(withDictionary(xzed(f, xz.WriterConfig{}, plain), 40))
	f.Add(plain)
	f.Fuzz(func(t *testing.T, data []byte) {
		const most = 4 << 20
		content, _, err := Limits{Unpacked: most}.Sniff(bytes.NewReader(data))
		if err == nil {
			var n int64
			n, err = io.Copy(io.Discard, content)
			if n > most && n > int64(len(data)) {
				t.Errorf("%d bytes out of %d, the limit is %d", n, len(data), most)
			}
		}
		if err != nil && strings.Contains(err.Error(), "\n") {
			t.Errorf("an error of several lines: %q", err)
		}
	})
}
