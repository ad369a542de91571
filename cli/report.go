package cli

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	"memroom/api"
	"memroom/relay"
	"memroom/store"
)

// reportFlags say where a run's record goes.
type reportFlags struct {
	ReportTo        string `group:"Records and reports" help:"Send the record, as it grows, to the memroom serve at this address. What cannot be sent is kept on this disk (memroom report sends it later)." env:"MEMROOM_REPORT_TO" placeholder:"URL"`
	ReportTokenFile string `group:"Records and reports" help:"Read the token of that server from this file; MEMROOM_REPORT_TOKEN holds it otherwise." placeholder:"PATH"`
}

// check refuses an address that cannot be one before anything is started.
func (c reportFlags) check() error {
	if c.ReportTo == "" {
		return nil
	}
	if err := relay.CheckURL(c.ReportTo); err != nil {
		return exitWith(exitUsage, "--report-to: %w", err)
	}
	if _, err := reportToken(c.ReportTokenFile); err != nil {
		return exitWith(exitUsage, "--report-token-file: %w", err)
	}
	return nil
}

// reportToken reads the token for a server; none is needed on this machine.
func reportToken(file string) (string, error) {
	if file == "" {
		return os.Getenv("MEMROOM_REPORT_TOKEN"), nil
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	token := strings.TrimSpace(string(data))
	if token == "" {
		return "", fmt.Errorf("%s holds no token: write the server's into it", file)
	}
	return token, nil
}

// plainText reports whether an address sends the token over the network as it is.
func plainText(address string) bool {
	u, err := url.Parse(address)
	return err == nil && u.Scheme == "http" && !api.Loopback(u.Host)
}

type reportCmd struct {
	Runs      []string `arg:"" optional:"" name:"run" help:"Runs to send: ID, name or last; without any, those that wait for a server."`
	To        string   `help:"Send them to the memroom serve at this address; without it, to the one that each waits for." env:"MEMROOM_REPORT_TO" placeholder:"URL"`
	TokenFile string   `help:"Read the token from this file; MEMROOM_REPORT_TOKEN holds it otherwise." placeholder:"PATH"`
	JSON      bool     `name:"json" help:"Print what was sent as JSON."`
}

func (reportCmd) Help() string {
	return "`memroom run --report-to URL` does this by itself while a run goes on. What the server " +
		"did not get, because it was away or full, waits in the run's folder, is never tidied away, " +
		"and goes with the next `memroom run --report-to` or with this command. A run that goes on " +
		"is sent up to now."
}

func (reportCmd) examples() []example { return []example{{line: "memroom report"}} }

// reportLine is what became of one run.
type reportLine struct {
	Run   string `json:"run"`
	To    string `json:"to"`
	ID    string `json:"id,omitempty"` // at the server
	Done  bool   `json:"done"`
	Error string `json:"error,omitempty"`
}

// Run sends what waits.
func (c *reportCmd) Run(s *session) error {
	kept, err := openStore()
	if err != nil {
		return err
	}
	if c.To != "" {
		if err := relay.CheckURL(c.To); err != nil {
			return exitWith(exitUsage, "--to: %w", err)
		}
	}
	folders, err := c.choose(kept)
	if err != nil {
		return exitWith(exitUsage, "%w", err)
	}
	lines := []reportLine{}
	failures := 0
	for _, folder := range folders {
		line := c.send(s.ctx, folder)
		lines = append(lines, line)
		if !line.Done {
			failures++
		}
		if !c.JSON {
			printReported(s, line)
		}
	}
	if c.JSON {
		if err := s.printJSON(lines); err != nil {
			return err
		}
	} else if len(lines) == 0 {
		fmt.Fprintln(s.Out, "no record waits for a server")
	}
	if failures > 0 {
		return exitQuietly(exitNotWritten)
	}
	return nil
}

func printReported(s *session, line reportLine) {
	if line.Done {
		fmt.Fprintf(s.Out, "%s is at %s as %s\n", line.Run, line.To, line.ID)
		return
	}
	fmt.Fprintf(s.Out, "%s waits for %s: %s\n", line.Run, line.To, line.Error)
}

func (c *reportCmd) choose(kept *store.Store) ([]*store.Folder, error) {
	if len(c.Runs) == 0 {
		return kept.Unsent()
	}
	var folders []*store.Folder
	for _, name := range c.Runs {
		folder, err := kept.Find(name)
		if err != nil {
			return nil, err
		}
		folders = append(folders, folder)
	}
	return folders, nil
}

// send sends one run up to now.
func (c *reportCmd) send(ctx context.Context, folder *store.Folder) reportLine {
	line := reportLine{Run: folder.ID, To: c.To}
	state, err := relay.ReadState(folder.Dir)
	tokenFile := c.TokenFile
	if err == nil {
		line.To = firstOf(c.To, state.URL)
		tokenFile = firstOf(c.TokenFile, state.TokenFile)
	}
	if line.To == "" {
		line.Error = "it was never sent: --to URL names the server"
		return line
	}
	token, err := reportToken(tokenFile)
	if err == nil {
		err = relay.Prepare(folder.Dir, line.To, tokenFile)
	}
	if err != nil {
		line.Error = err.Error()
		return line
	}
	sender := relay.Sender{Dir: folder.Dir, ID: folder.ID, URL: line.To, Token: token,
		Over: func() bool { return true }, Patience: 5 * time.Second}
	err = sender.Run(ctx)
	state, _ = relay.ReadState(folder.Dir)
	line.ID, line.Done = state.ID, err == nil
	switch {
	case errors.Is(err, context.Canceled):
		line.Error = "interrupted"
	case err != nil:
		line.Error = err.Error()
	}
	return line
}
