package cli

import (
	"fmt"
	"regexp"
	"runtime"
	"runtime/debug"
	"strings"
)

type versionCmd struct {
	JSON bool `name:"json" help:"Print JSON."`
}

func (versionCmd) examples() []example { return []example{{line: "memroom version --json"}} }

// release is the version this source tree is or will become; CHANGELOG.md has an entry for it. A
// build from a tag carries the tag's own version.
const release = "0.1.0"

// buildVersion is the release, and what the build recorded about the commit it was made from.
type buildVersion struct {
	Version  string `json:"version"`
	Commit   string `json:"commit,omitempty"`
	Modified bool   `json:"modified,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// tagged matches a release's tag; the go command makes up pseudo-versions for other commits.
var tagged = regexp.MustCompile(`^v\d+\.\d+\.\d+$`)

func (c *versionCmd) Run(s *session) error {
	v := readVersion()
	if c.JSON {
		return s.printJSON(v)
	}
	commit := ""
	if v.Commit != "" {
		commit = " " + v.Commit
		if v.Modified {
			commit += "+dirty"
		}
	}
	_, err := fmt.Fprintf(s.Out, "memroom %s%s (%s, %s)\n", v.Version, commit, v.Go, v.Platform)
	return err
}

func readVersion() buildVersion {
	v := buildVersion{Version: release, Go: runtime.Version(),
		Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	if tag := info.Main.Version; tagged.MatchString(tag) {
		v.Version = strings.TrimPrefix(tag, "v")
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Commit = s.Value[:min(12, len(s.Value))]
		case "vcs.modified":
			v.Modified = s.Value == "true"
		}
	}
	return v
}
