package event

import (
	"encoding/json"
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"
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

func TestLimitsAreWrittenAsSet(t *testing.T) {
	for size, want := range map[Bytes]string{1500 * MiB: "1500MiB", 2 * GiB: "2GiB",
		25275125760: "23.54GiB", 700*MiB + KiB: "700MiB", 0: "0B", 10_000 * MiB: "9.77GiB"} {
		if got := size.AsSet(); got != want {
			t.Errorf("%d is written %q, want %q", int64(size), got, want)
		}
	}
}

// TestBesideALimit: two figures of one sentence have one unit, that of the limit as a person set
// it.
func TestBesideALimit(t *testing.T) {
	for want, c := range map[string][2]Bytes{
		"1198.5MiB of 1200MiB": {1198*MiB + 512*KiB, 1200 * MiB}, "1.17GiB of 2GiB": {1198 * MiB, 2 * GiB},
		"0.5GiB of 4GiB": {512 * MiB, 4 * GiB}, "8MiB of 4GiB": {8 * MiB, 4 * GiB},
		"0B of 4GiB": {0, 4 * GiB}, "1.5GiB of 0B": {1536 * MiB, 0}, "-1MiB of 2GiB": {-MiB, 2 * GiB},
		"23.5GiB of 23.54GiB": {23*GiB + 512*MiB, 25275125760},
	} {
		if got := c[0].Of(c[1]); got != want {
			t.Errorf("%d of %d is written %q, want %q", int64(c[0]), int64(c[1]), got, want)
		}
	}
}

func TestBytesPrintsAndReadsBack(t *testing.T) {
	for size, want := range map[Bytes]string{
		0: "0B", 1023: "1023B", 1024: "1KiB", 3 * GiB / 2: "1.5GiB", 10 * GiB: "10GiB",
		-512 * MiB: "-512MiB", 20971520: "20MiB", 1: "1B", -1: "-1B", GiB - 1: "1GiB",
		MiB - 1: "1MiB", 1<<50 - 1: "1PiB", 1000 * KiB: "1000KiB", GiB / 4 * -1: "-256MiB",
		math.MaxInt64: "8192PiB", math.MinInt64: "-8192PiB", KiB + 5: "1KiB", KiB + 6: "1.01KiB",
		1023 * GiB: "1023GiB", TiB: "1TiB",
	} {
		if got := size.String(); got != want {
			t.Errorf("%d prints %q, want %q", int64(size), got, want)
		}
		if size < 0 || size%KiB != 0 || size == math.MaxInt64 {
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

var printed = regexp.MustCompile(`^(-?)(\d+(?:\.\d{1,2})?)(B|KiB|MiB|GiB|TiB|PiB)$`)

// TestBytesProperties: any size prints as a short number with a unit, close to what it is; its
// negative prints alike; larger sizes never print as less.
func TestBytesProperties(t *testing.T) {
	size := rapid.OneOf(rapid.Int64(), rapid.Int64Range(-4096, 4096), rapid.Custom(
		func(t *rapid.T) int64 { // around the units
			return 1<<rapid.IntRange(0, 62).Draw(t, "power") + rapid.Int64Range(-3, 3).Draw(t, "by")
		}))
	rapid.Check(t, func(t *rapid.T) {
		a := Bytes(size.Draw(t, "size"))
		m := printed.FindStringSubmatch(a.String())
		if m == nil {
			t.Fatalf("%d prints %q", int64(a), a)
		}
		number, _ := strconv.ParseFloat(m[2], 64)
		if (number >= 1024 && m[3] != "PiB") || (number < 1 && a != 0) ||
			(m[1] == "-") != (a < 0) ||
			strings.HasSuffix(m[2], ".0") || strings.Contains(m[2], ".") &&
			strings.HasSuffix(m[2], "0") {
			t.Fatalf("%d prints %q", int64(a), a)
		}
		if back := math.Copysign(number*float64(unitFactor[strings.ToLower(m[3])]),
			float64(a)); math.Abs(back-float64(a)) > 0.0051*float64(unitFactor[strings.ToLower(m[3])]) {
			t.Fatalf("%d prints %q, which is %g", int64(a), a, back)
		}
		if a != math.MinInt64 && a > 0 && (-a).String() != "-"+a.String() {
			t.Fatalf("%q and %q", a, -a)
		}
		if a >= 0 && a < 8000*PiB {
			back, err := ParseBytes(a.String())
			if err != nil || back.String() != a.String() {
				t.Fatalf("%q reads back as %q, %v", a, back, err)
			}
		}
	})
}

// TestWhatIsWrongWithASize: each mistake has its own sentence, which repeats what was written.
func TestWhatIsWrongWithASize(t *testing.T) {
	for text, want := range map[string]string{
		"":                       "size is empty",
		"  ":                     "size is empty",
		"GiB":                    `size "GiB" does not start with a number`,
		"-1GiB":                  `size "-1GiB" does not start with a number`,
		"1XiB":                   `size "1XiB" has the unknown unit "XiB"`,
		"1 2":                    `size "1 2" has the unknown unit "2"`,
		"1.2.3":                  `size "1.2.3" is not a number with a unit`,
		".":                      `size "." is not a number with a unit`,
		"8192PiB":                `size "8192PiB" is too large`,
		"8192.5PiB":              `size "8192.5PiB" is too large`,
		"9223372036854775808":    `size "9223372036854775808" is too large`,
		"99999999999999999999.5": "is too large",
	} {
		if _, err := ParseBytes(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
	for _, text := range []string{"", "x", `"`, "1.5", `"x"`} {
		var b Bytes
		if err := b.UnmarshalJSON([]byte(text)); err == nil {
			t.Errorf("%q was read as %s", text, b)
		}
	}
	if b, err := ParseBytes("8191PiB"); err != nil || b != 8191*PiB {
		t.Errorf("the largest whole one: %d %v", b, err)
	}
}
