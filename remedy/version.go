package remedy

import (
	"strconv"
	"strings"
)

// atLeast compares dotted versions by their first two numbers. An unknown version is not known to
// be at least anything.
func atLeast(version, floor string) bool {
	have, ok := majorMinor(version)
	want, _ := majorMinor(floor)
	return ok && (have[0] > want[0] || have[0] == want[0] && have[1] >= want[1])
}

func majorMinor(version string) (parts [2]int, ok bool) {
	fields := strings.SplitN(version, ".", 3)
	if len(fields) < 2 {
		return parts, false
	}
	major, err := strconv.Atoi(fields[0])
	minor, err2 := strconv.Atoi(fields[1])
	return [2]int{major, minor}, err == nil && err2 == nil
}
