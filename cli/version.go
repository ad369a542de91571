package cli

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

type versionCmd struct {
	JSON bool `name:"json" help:"Print JSON."`
}

func (versionCmd) examples() []example { return []example{{line: "memroom version --json"}} }

// buildVersion is what the build recorded: a tag, a pseudo-version, or the commit with "+dirty".
type buildVersion struct {
	Version  string `json:"version"`
	Commit   string `json:"commit,omitempty"`
	Modified bool   `json:"modified,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

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
	v := buildVersion{Version: "devel", Go: runtime.Version(),
		Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	if info.Main.Version != "" && info.Main.Version != "(devel)" {
		v.Version = info.Main.Version
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
