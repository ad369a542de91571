package event

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestParseBytes(t *testing.T) {
	for text, want := range map[string]Bytes{
		"10GiB": 10 * GiB, "512MiB": 512 * MiB, "24g": 24 * GiB, "1.5 GB": 3 * GiB / 2,
		"4096": 4096, "0": 0,
		" 7 kib ": 7 * KiB, "2T": 2 * TiB, "12b": 12, "80Gi": 80 * GiB, "0.5m": 512 * KiB,
		".5g": 512 * MiB,
	} {
		got, err := ParseBytes(text)
		if err != nil || got != want {
			t.Errorf("ParseBytes(%q) = %d, %v; want %d", text, got, err, want)
		}
	}
}

func TestParseBytesRefuses(t *testing.T) {
	for text, say := range map[string]string{
		"": "empty", "GiB": "number", "-1g": "number", "10 parsecs": "parsecs",
		"1.2.3g":         "not a number",
		"9999999999999g": "too large", "1e9": "unit", "99999999999999999999999": "too large",
		"10GiB extra": "unit", "١GiB": "number",
	} {
		_, err := ParseBytes(text)
		if err == nil || !strings.Contains(err.Error(), say) {
			t.Errorf("ParseBytes(%q) error = %v; want it to mention %q", text, err, say)
		}
	}
}

func TestBytesPrintsAndReadsBack(t *testing.T) {
	for size, want := range map[Bytes]string{
		0: "0B", 1023: "1023B", 1024: "1KiB", 3 * GiB / 2: "1.5GiB", 10 * GiB: "10GiB",
		-512 * MiB: "-512MiB", 20971520: "20MiB",
	} {
		if got := size.String(); got != want {
			t.Errorf("%d prints %q, want %q", int64(size), got, want)
		}
		if size < 0 {
			continue
		}
		if back, err := ParseBytes(size.String()); err != nil || back != size {
			t.Errorf("%q reads back as %d, %v", size.String(), back, err)
		}
	}
}

func TestBytesInJSON(t *testing.T) {
	var v struct{ A, B Bytes }
	if err := json.Unmarshal([]byte(`{"A": 12, "B": "3MiB"}`), &v); err != nil || v.A != 12 || v.B != 3*MiB {
		t.Fatalf("got %+v, %v", v, err)
	}
	out, err := json.Marshal(v)
	if err != nil || string(out) != `{"A":12,"B":3145728}` {
		t.Fatalf("wrote %s, %v", out, err)
	}
	if err := json.Unmarshal([]byte(`{"A": 1.5}`), &v); err == nil {
		t.Fatal("half a byte was accepted")
	}
}
