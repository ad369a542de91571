package event

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Bytes is a number of bytes. It is signed because differences are as common as sizes.
type Bytes int64

// The units people write. Sizes are binary throughout: GPU vendors, PyTorch and the kernel all
// count in powers of 1024.
const (
	KiB Bytes = 1 << (10 * (iota + 1))
	MiB
	GiB
	TiB
	PiB
)

// unitFactor knows every spelling we accept, lower-cased. "gb" and "g" mean GiB, as in every tool
// that our users pair us with (docker, slurm, systemd, nvidia-smi): a decimal reading would promise
// 7 % less than the user meant.
var unitFactor = map[string]Bytes{
	"": 1, "b": 1, "byte": 1, "bytes": 1,
	"k": KiB, "kb": KiB, "ki": KiB, "kib": KiB,
	"m": MiB, "mb": MiB, "mi": MiB, "mib": MiB,
	"g": GiB, "gb": GiB, "gi": GiB, "gib": GiB,
	"t": TiB, "tb": TiB, "ti": TiB, "tib": TiB,
	"p": PiB, "pb": PiB, "pi": PiB, "pib": PiB,
}

// ParseBytes reads a size such as 10GiB, 512MiB, 24g, 1.5 GB or 4096. It refuses negative sizes,
// unknown units and anything that does not fit in 63 bits.
func ParseBytes(s string) (Bytes, error) {
	text := strings.TrimSpace(s)
	if text == "" {
		return 0, fmt.Errorf("size is empty: write it like 10GiB or 512MiB")
	}
	split := strings.IndexFunc(text, func(r rune) bool { return (r < '0' || r > '9') && r != '.' })
	if split < 0 {
		split = len(text)
	}
	number, unit := text[:split], strings.ToLower(strings.TrimSpace(text[split:]))
	if number == "" {
		return 0, fmt.Errorf("size %q does not start with a number: write it like 10GiB or 512MiB",
			s)
	}
	factor, ok := unitFactor[unit]
	if !ok {
		return 0, fmt.Errorf("size %q has the unknown unit %q: use B, KiB, MiB, GiB or TiB", s,
			strings.TrimSpace(text[split:]))
	}
	if whole, err := strconv.ParseInt(number, 10, 64); err == nil {
		if whole > math.MaxInt64/int64(factor) {
			return 0, fmt.Errorf("size %q is too large: at most 8 EiB", s)
		}
		return Bytes(whole) * factor, nil
	}
	value, err := strconv.ParseFloat(number, 64)
	if err != nil {
		return 0, fmt.Errorf("size %q is not a number with a unit: write it like 10GiB or 512MiB",
			s)
	}
	exact := value * float64(factor)
	if exact >= math.MaxInt64 {
		return 0, fmt.Errorf("size %q is too large: at most 8 EiB", s)
	}
	return Bytes(math.Round(exact)), nil
}

// String prints the size to at most two decimals, with the largest unit that keeps the number at or
// above one: 512MiB, 1.5GiB, -2MiB. The number stays below 1024 (PiB excepted): what would be
// rounded to 1024MiB is 1GiB.
func (b Bytes) String() string {
	size := uint64(b)
	sign := ""
	if b < 0 {
		sign, size = "-", -size // of the smallest number too: its negative fits without a sign
	}
	unit := len(units) - 1
	for unit > 0 && size < units[unit].size {
		unit--
	}
	text := inUnit(size, unit)
	if unit < len(units)-1 && text == "1024" {
		unit++
		text = "1"
	}
	return sign + text + units[unit].name
}

type sizeUnit struct {
	name string
	size uint64
}

var units = []sizeUnit{{"B", 1}, {"KiB", uint64(KiB)}, {"MiB", uint64(MiB)},
	{"GiB", uint64(GiB)}, {"TiB", uint64(TiB)}, {"PiB", uint64(PiB)}}

// inUnit writes a size as a number of units, rounded to two decimals, without zeros at its end.
func inUnit(size uint64, unit int) string {
	if unit == 0 {
		return strconv.FormatUint(size, 10)
	}
	text := strconv.FormatFloat(float64(size)/float64(units[unit].size), 'f', 2, 64)
	return strings.TrimSuffix(strings.TrimRight(text, "0"), ".")
}

// AsSet writes a limit as a person sets it: 1500MiB, where String rounds to 1.46GiB. A size that
// nobody would type is written as String does.
func (b Bytes) AsSet() string {
	const longest = 10_000 // of a unit
	for unit := len(units) - 1; unit >= 2 && b > 0; unit-- {
		if size := Bytes(units[unit].size); b%size == 0 && b/size < longest {
			return strconv.FormatInt(int64(b/size), 10) + units[unit].name
		}
	}
	return b.String()
}

// Of writes a size and the limit that it is a part of, both in one unit: 1198.5MiB of 1200MiB.
func (b Bytes) Of(limit Bytes) string { return b.Beside(limit) + " of " + limit.AsSet() }

// Beside writes a size in the unit of a limit that stands next to it, as long as that shows it.
func (b Bytes) Beside(limit Bytes) string {
	name := strings.TrimLeft(limit.AsSet(), "-0123456789.")
	unit := slices.IndexFunc(units, func(u sizeUnit) bool { return u.name == name })
	if b <= 0 || limit <= 0 || uint64(b) < units[unit].size/10 {
		return b.String()
	}
	return inUnit(uint64(b), unit) + name
}

// UnmarshalText lets Bytes be a flag or a config value.
func (b *Bytes) UnmarshalText(text []byte) error {
	v, err := ParseBytes(string(text))
	if err != nil {
		return err
	}
	*b = v
	return nil
}

// MarshalJSON writes a plain integer: programs want numbers.
func (b Bytes) MarshalJSON() ([]byte, error) { return strconv.AppendInt(nil, int64(b), 10), nil }

// UnmarshalJSON accepts an integer or a string such as "10GiB".
func (b *Bytes) UnmarshalJSON(data []byte) error {
	if len(data) > 0 && data[0] == '"' {
		var s string
		if err := json.Unmarshal(data, &s); err != nil {
			return err
		}
		return b.UnmarshalText([]byte(s))
	}
	v, err := strconv.ParseInt(string(data), 10, 64)
	if err != nil {
		return fmt.Errorf("size %s is not a whole number of bytes", data)
	}
	*b = Bytes(v)
	return nil
}
