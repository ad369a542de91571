package allocsim

import (
	"fmt"
	"strconv"
	"strings"
)

// Version is a PyTorch release as far as the allocator is concerned, such as 2.11.
type Version struct{ Major, Minor int }

// LatestChecked is the release whose recordings the model was verified against.
var LatestChecked = Version{2, 11}

// OldestKnown and NewestKnown are the releases between which the rules are known; outside, those of
// the nearest are taken.
var (
	// rules of releases before 1.13, the first whose allocator records what it does, are its own
	OldestKnown = Version{1, 10}
	NewestKnown = Version{2, 13}
)

// ParseVersion reads "2.11", "2.11.0+cu130" or "v2.4.1". The empty string is [LatestChecked].
func ParseVersion(text string) (Version, error) {
	if text == "" {
		return LatestChecked, nil
	}
	major, rest, ok := strings.Cut(strings.TrimPrefix(text, "v"), ".")
	end := strings.IndexFunc(rest, func(r rune) bool { return r < '0' || r > '9' })
	if end < 0 {
		end = len(rest)
	}
	a, errA := strconv.Atoi(major)
	b, errB := strconv.Atoi(rest[:end])
	if !ok || errA != nil || errB != nil {
		return Version{}, fmt.Errorf("torch version %q is not of the form 2.11", text)
	}
	return Version{a, b}, nil
}

func (v Version) String() string { return fmt.Sprintf("%d.%d", v.Major, v.Minor) }

// Known reports whether the release is one whose rules were looked at.
func (v Version) Known() bool {
	return v.atLeast(OldestKnown.Major, OldestKnown.Minor) && NewestKnown.atLeast(v.Major, v.Minor)
}

// atLeast reports whether the release is major.minor or newer.
func (v Version) atLeast(major, minor int) bool {
	return v.Major > major || (v.Major == major && v.Minor >= minor)
}

// tieOrder is how the free set orders blocks of equal size on one stream.
type tieOrder uint8

const (
	byAddress  tieOrder = iota // up to 2.11
	byCreation                 // 2.12: a counter that every block object gets when it is made
	bySegment                  // since 2.13: older segment first, then lower address
)

func (v Version) ties() tieOrder {
	switch {
	case v.atLeast(2, 13):
		return bySegment
	case v.atLeast(2, 12):
		return byCreation
	default:
		return byAddress
	}
}
