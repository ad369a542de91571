package cli

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"memroom/api"
	"memroom/central"
	"memroom/event"
	"memroom/store"
)

type serveCmd struct {
	Port        int         `help:"Port to listen on; 0 takes any free one." default:"8722" placeholder:"N"`
	Listen      string      `help:"Address to listen on. On this machine's own (127.0.0.1, localhost, ::1) you and root may look without a token; on any other nobody." default:"127.0.0.1" placeholder:"ADDR"`
	Token       string      `help:"Token that every request must carry. Without it memroom makes one and prints it in the address; what is sent to the server needs it, and from this user's own browser on this machine looking does not. Others on this machine can read command lines: better set MEMROOM_SERVE_TOKEN or --token-file." env:"MEMROOM_SERVE_TOKEN" placeholder:"TEXT"`
	TokenFile   string      `help:"Read the token from this file." placeholder:"PATH"`
	AllowHost   []string    `help:"A name by which browsers may call this server, beside its addresses and localhost; may be repeated." placeholder:"NAME"`
	TLSCert     string      `name:"tls-cert" help:"Serve HTTPS with this certificate." placeholder:"PATH"`
	TLSKey      string      `name:"tls-key" help:"Key of --tls-cert." placeholder:"PATH"`
	UploadLimit event.Bytes `help:"Largest snapshot that may be uploaded." default:"8GiB" placeholder:"SIZE"`
	DB          string      `name:"db" help:"Keep the records that other machines send (memroom run --report-to) in this PostgreSQL, postgres://USER@HOST/NAME; without it in SQLite in MEMROOM_HOME. Passwords: PGPASSWORD or ~/.pgpass." env:"MEMROOM_SERVE_DB" placeholder:"ADDRESS"`
	Keep        string      `help:"Delete old records of other machines. Keep those updated within this time, or this many bytes in all, or both: 30d, 50GiB or 30d,50GiB." default:"all" env:"MEMROOM_SERVE_KEEP" placeholder:"HOW-MUCH"`
	For         string      `help:"End after this time, such as 10m; without it, at Ctrl-C." placeholder:"TIME"`
	JSON        bool        `name:"json" help:"Print the address as JSON, once it answers."`
}

func (serveCmd) examples() []example {
	return []example{{line: "memroom serve --port 0 --for 1s"},
		{line: "memroom serve --port 0 --for 1s --json"}}
}

// served is what --json prints.
type served struct {
	URL   string `json:"url"`
	Token string `json:"token,omitempty"`
	Home  string `json:"home"`
}

func (c *serveCmd) Run(s *session) error {
	span, err := c.check()
	if err != nil {
		return err
	}
	kept, err := openStore()
	if err != nil {
		return err
	}
	keep, err := readRetention(c.Keep)
	if err != nil {
		return exitWith(exitUsage, "--keep: %v", err)
	}
	address := net.JoinHostPort(strings.Trim(c.Listen, "[]"), strconv.Itoa(c.Port))
	local := api.Loopback(address)
	token, err := c.token()
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(s.ctx, endSignals()...)
	defer stop()
	temporary, remove, err := temporaryFolder("serve")
	if err != nil {
		return fmt.Errorf("no folder for uploads can be made (%w): set TMPDIR to one that takes "+
			"files", err)
	}
	defer remove()
	peers := local && api.KnowsPeers(strings.Trim(c.Listen, "[]")) && !c.givenToken()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return c.notListening(address, err)
	}
	defer listener.Close()
	return withinOf(ctx, endWithin, func() error {
		reports, err := c.openReports(s, kept)
		if err != nil || ctx.Err() != nil {
			return err
		}
		defer reports.close()
		go reports.tidy(ctx, s, keep)
		site := api.New(api.Options{Store: kept, Reported: reports.copies, Receive: reports.receive,
			Version: readVersion().Version, End: endOf, Explain: reasonOf, Left: leftOf,
			Token: token, Peers: peers, Local: local, Hosts: c.hosts(local), UploadLimit: c.UploadLimit,
			Temporary: temporary, Log: log.New(s.Err, "memroom serve: ", 0)})
		defer site.Close()
		c.announce(s, kept, listener, local, token)
		return c.serve(ctx, site, listener, span)
	})
}

// endWithin is how long the server may take to end once it is asked to. What it has acknowledged
// is in the database by then; requests that still run are cut off.
const endWithin = 1500 * time.Millisecond

// withinOf runs work, and waits no longer than a while for it once ctx has ended.
func withinOf(ctx context.Context, while time.Duration, work func() error) error {
	done := make(chan error, 1)
	go func() { done <- work() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-done:
		return err
	case <-time.After(while):
		return nil
	}
}

// notListening returns why the server cannot have an address, and what to do.
func (c *serveCmd) notListening(address string, err error) error {
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("port %d is in use, by another memroom serve or another program: give "+
			"another one with --port, or --port 0 for any free one", c.Port)
	}
	return fmt.Errorf("listen on %s: %w; --listen takes an address of this machine, --port 0 any "+
		"free port", address, plainCause(err))
}

// reports opens what keeps the records of other machines, at the first one that comes.
type reports struct {
	home    string
	address string
	copies  *store.Store

	mu   sync.Mutex
	kept *central.Central
	own  *store.Store
}

// openReports opens a database that was named or is there already. One that cannot be opened ends
// the server only where it was named.
func (c *serveCmd) openReports(s *session, kept *store.Store) (*reports, error) {
	r := &reports{home: kept.Home, address: c.DB, own: kept}
	if c.DB == "" && !central.Exists(kept.Home) {
		var err error
		r.copies, err = store.Read(central.CopyOf(kept.Home))
		return r, err
	}
	opened, err := r.receive()
	if err == nil {
		r.copies = opened.Copy
		c.nameDamaged(s, opened.Aside)
		return r, nil
	}
	if c.DB != "" {
		return nil, err
	}
	s.note("memroom serve: no reports are taken: %v", err)
	r.copies, err = store.Read(central.CopyOf(kept.Home))
	return r, err
}

// mostNamed bounds how many damaged records are named at the start.
const mostNamed = 10

// nameDamaged prints which records of other machines cannot be shown as a whole.
func (c *serveCmd) nameDamaged(s *session, aside []string) {
	for _, one := range aside[:min(len(aside), mostNamed)] {
		s.note("memroom serve: a record is damaged and set aside, the others are shown: %s", one)
	}
	if more := len(aside) - mostNamed; more > 0 {
		s.note("memroom serve: and %d more", more)
	}
}

func (r *reports) receive() (*central.Central, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.kept != nil {
		return r.kept, nil
	}
	if _, err := store.Open(r.home); err != nil { // private, and ours
		return nil, err
	}
	kept, err := central.Open(r.home, r.address)
	if err != nil {
		return nil, err
	}
	kept.Taken = func(id string) bool {
		_, taken := r.own.Lookup(id)
		return taken
	}
	r.kept = kept
	return kept, nil
}

// tidyEvery is how often old records of other machines are looked for.
const tidyEvery = time.Hour

// tidy drops records that are too old or too many, at once and then every hour.
func (r *reports) tidy(ctx context.Context, s *session, keep store.Retention) {
	if keep.Age == 0 && keep.Size == 0 {
		return
	}
	defer func() {
		if p := recover(); p != nil {
			s.note("memroom serve: a bug in memroom: old records stay from now on: %v\n%s", p,
				debug.Stack())
		}
	}()
	for {
		r.mu.Lock()
		kept := r.kept
		r.mu.Unlock()
		if kept != nil {
			dropped, err := kept.Tidy(keep, time.Now())
			if len(dropped) > 0 {
				s.note("memroom serve: deleted %d old records of other machines (--keep)", len(dropped))
			}
			if err != nil {
				s.note("memroom serve: old records stay: %v", err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(tidyEvery):
		}
	}
}

func (r *reports) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.kept != nil {
		_ = r.kept.Close()
	}
}

// check rejects flags that make no sense, and returns how long to serve.
func (c *serveCmd) check() (time.Duration, error) {
	if host, port, err := net.SplitHostPort(c.Listen); err == nil && host != "" {
		return 0, exitWith(exitUsage, "--listen %s: the port has a flag of its own: --listen %s "+
			"--port %s", c.Listen, host, port)
	}
	if c.Port < 0 || c.Port > 65535 {
		return 0, exitWith(exitUsage, "--port %d: a port is between 0 and 65535", c.Port)
	}
	if (c.TLSCert == "") != (c.TLSKey == "") {
		return 0, exitWith(exitUsage, "--tls-cert and --tls-key belong together: give both or "+
			"neither")
	}
	if c.UploadLimit < event.KiB {
		return 0, exitWith(exitUsage, "--upload-limit %s: at least 1KiB", c.UploadLimit)
	}
	if c.For == "" {
		return 0, nil
	}
	span, err := time.ParseDuration(c.For)
	if err != nil || span <= 0 {
		return 0, exitWith(exitUsage, "--for %s: a time such as 30s, 10m or 8h", c.For)
	}
	return span, nil
}

// givenToken reports whether the user chose a token: then everybody must have it.
func (c *serveCmd) givenToken() bool { return c.Token != "" || c.TokenFile != "" }

// token is the one given, or a new one.
func (c *serveCmd) token() (string, error) {
	token := c.Token
	if c.TokenFile != "" {
		data, err := os.ReadFile(c.TokenFile)
		if err != nil {
			return "", err
		}
		if token = strings.TrimSpace(string(data)); token == "" {
			return "", exitWith(exitUsage, "%s holds no token: write one of at least 8 "+
				"characters into it", c.TokenFile)
		}
	}
	if token != "" && len(token) < 8 {
		return "", exitWith(exitUsage, "the token is too short to keep anybody out: at least 8 "+
			"characters, or leave it out and memroom makes one")
	}
	if token != "" {
		return token, nil
	}
	var random [18]byte
	if _, err := rand.Read(random[:]); err != nil {
		return "", err
	}
	return hex.EncodeToString(random[:]), nil
}

// hosts are the names that this machine has, where others can reach it.
func (c *serveCmd) hosts(local bool) []string {
	names := append([]string{}, c.AllowHost...)
	if name, err := os.Hostname(); err == nil && !local {
		names = append(names, name)
	}
	return names
}

// announce prints where the page is, and what is unsafe about it.
func (c *serveCmd) announce(s *session, kept *store.Store, listener net.Listener, local bool,
	token string) {
	scheme := "http"
	if c.TLSCert != "" {
		scheme = "https"
	}
	host, port, _ := net.SplitHostPort(listener.Addr().String())
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		if host = "127.0.0.1"; !local {
			if name, err := os.Hostname(); err == nil {
				host = name
			}
		}
	}
	at := scheme + "://" + net.JoinHostPort(host, port) + "/"
	if !c.givenToken() {
		at += "?token=" + token
	}
	if !local && c.TLSCert == "" {
		s.note("memroom serve: others on the network can reach this, and nothing is encrypted: token " +
			"and data can be read on the way. Use --tls-cert and --tls-key, or --listen 127.0.0.1 and " +
			"ssh -L " + port + ":localhost:" + port + " HOST")
	}
	if c.JSON {
		_ = s.printJSON(served{URL: at, Token: token, Home: kept.Home})
		return
	}
	fmt.Fprintf(s.Out, "memroom serve: %s\n", at)
	s.note("showing the runs in %s; Ctrl-C ends it", kept.Home)
}

// serve answers until the user interrupts or the time is over.
func (c *serveCmd) serve(ctx context.Context, site *api.Server, listener net.Listener,
	span time.Duration) error {
	if span > 0 {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeout(ctx, span)
		defer stop()
	}
	server := &http.Server{Handler: site, ConnContext: site.ConnContext,
		ReadHeaderTimeout: 10 * time.Second,
		WriteTimeout:      10 * time.Minute, // a viewer who takes nothing; streams have their own
		IdleTimeout:       2 * time.Minute, MaxHeaderBytes: 64 << 10,
		ErrorLog: log.New(discard{}, "", 0)}
	ended := make(chan error, 1)
	go func() {
		if c.TLSCert != "" {
			ended <- server.ServeTLS(listener, c.TLSCert, c.TLSKey)
			return
		}
		ended <- server.Serve(listener)
	}()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	site.Close() // streams end, so that the rest can
	wait, stop := context.WithTimeout(context.Background(), time.Second)
	defer stop()
	if err := server.Shutdown(wait); err != nil {
		_ = server.Close()
	}
	<-ended
	return nil
}

// discard keeps broken connections of strangers out of the terminal.
type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }

// plainCause leaves out the address that the message has already.
func plainCause(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	return err
}

// leftOf describes what is left of a run whose keeper was killed, and returns the process id of its
// command.
func leftOf(folder *store.Folder) (string, int) {
	words, process, _ := orphanOf(folder)
	return words, process
}
