package trace

import "fmt"

// Version is the torch release that wrote a snapshot, as far as its keys show. The zero value is
// unknown.
type Version struct {
	From string // the oldest release that writes these keys, such as "2.10"
	To   string // the newest one, empty if it may be any later
}

// Use names the release whose rules to replay with.
func (v Version) Use() string {
	if v.To != "" {
		return v.To
	}
	return v.From
}

func (v Version) String() string {
	switch {
	case v.From == "" && v.To == "":
		return "unknown"
	case v.From == "":
		return v.To + " or older"
	case v.To == "":
		return v.From + " or newer"
	case v.From == v.To:
		return v.From
	}
	return fmt.Sprintf("%s to %s", v.From, v.To)
}

// inferVersion reads the release from the keys: each was new in some release.
func inferVersion(seen *keysSeen) Version {
	switch {
	case seen.maxRound:
		return Version{From: "2.13"}
	case seen.poolID:
		return Version{"2.12", "2.12"}
	case seen.forwardFrames:
		return Version{"2.11", "2.11"}
	case seen.userMetadata:
		return Version{"2.10", "2.11"} // ordinary recordings of the two look alike
	case seen.graphReuse && !seen.compileContext:
		return Version{"2.9", "2.11"} // without events
	case seen.graphReuse:
		return Version{"2.9", "2.9"}
	case seen.compileContext:
		return Version{"2.8", "2.8"}
	case seen.annotations:
		return Version{"2.5", "2.8"}
	case seen.settings:
		return Version{"2.3", "2.4"}
	case seen.timeUS:
		return Version{"2.2", "2.2"}
	case seen.isExpandable:
		return Version{"2.1", "2.2"}
	case seen.history || seen.traces || seen.requestedSize:
		return Version{"2.0", "2.0"}
	}
	return Version{"", "1.13"}
}
