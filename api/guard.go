package api

import (
	"crypto/sha256"
	"crypto/subtle"
	"net"
	"net/http"
	"net/url"
	"strings"
)

// guard decides whose requests are answered. It defends against four attacks: a foreign page that
// makes the user's browser send requests (CSRF; Origin and Sec-Fetch-Site reveal it), a foreign
// name that points at this address (DNS rebinding; Host reveals it), another user of this machine
// (the kernel knows the owner of a connection) and a stranger on the network (the token).
type guard struct {
	token [sha256.Size]byte
	set   bool
	// peers: the owner of a connection decides whether it may look. Otherwise only the token
	// counts.
	peers bool
	local bool // only this machine can reach the server: so it has only a local address
	hosts []string
}

func newGuard(o Options) guard {
	return guard{token: sha256.Sum256([]byte(o.Token)), set: o.Token != "", peers: o.Peers,
		local: o.Local, hosts: o.Hosts}
}

// policy allows only what this server itself sends.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; " +
	"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

func setHeaders(h http.Header) {
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Permissions-Policy", "camera=(), microphone=(), geolocation=()")
}

// cookieOf names what keeps the token in a browser once it has come by address. Browsers send the
// cookies of one port to all others.
func cookieOf(r *http.Request) string {
	_, port, _ := net.SplitHostPort(r.Host)
	return "memroom_token" + port
}

// check refuses a request with an error. A request that brings the token in its address is answered
// by a redirect to the same address without it, so that it is in no history.
func (g guard) check(w http.ResponseWriter, r *http.Request) (redirected bool, err error) {
	if !g.knows(r.Host) {
		return false, failed(http.StatusForbidden,
			"this server is not called %q: use its address or localhost, or start it with "+
				"--allow-host", clip(r.Host, 80))
	}
	if err := sameOrigin(r); err != nil {
		return false, err
	}
	if given := r.URL.Query().Get("token"); given != "" && r.Method == http.MethodGet {
		return g.enter(w, r, given)
	}
	if g.carried(r) || r.URL.Path == "/healthz" && !g.peers {
		return false, nil
	}
	// What one may see and what a plan is needs no token of the user's own connections. A sender's
	// first word may be about a run of this home: the answer to it asks again.
	looks := r.Method == http.MethodGet || r.Method == http.MethodHead ||
		r.URL.Path == "/api/plan" || r.URL.Path == "/api/reports"
	if ours, alien := peerOf(r.Context()); g.peers && ours && looks {
		return false, nil
	} else if g.peers && alien {
		return false, g.unknown(w, "another user of this machine started this server")
	}
	if looks {
		return false, g.unknown(w, "this address needs a token")
	}
	return false, g.unknown(w, "what is sent here needs a token")
}

func (g guard) unknown(w http.ResponseWriter, why string) error {
	w.Header().Set("WWW-Authenticate", `Bearer realm="memroom"`)
	return failed(http.StatusUnauthorized, "%s: open the address that memroom serve printed, or "+
		"send Authorization: Bearer TOKEN (senders: MEMROOM_REPORT_TOKEN)", why)
}

// enter takes the token out of an address and keeps it in the browser.
func (g guard) enter(w http.ResponseWriter, r *http.Request, given string) (bool, error) {
	if !g.matches(given) {
		return false, failed(http.StatusUnauthorized, "wrong token: memroom serve printed the "+
			"right one when it started")
	}
	http.SetCookie(w, &http.Cookie{Name: cookieOf(r), Value: given, Path: "/", HttpOnly: true,
		SameSite: http.SameSiteStrictMode, Secure: r.TLS != nil})
	query := r.URL.Query()
	query.Del("token")
	to := url.URL{Path: r.URL.Path, RawQuery: query.Encode()}
	if strings.HasPrefix(to.Path, "//") || strings.HasPrefix(to.Path, "/\\") {
		to.Path = "/" // would be an address of another server
	}
	w.Header().Set("Cache-Control", "no-store")
	http.Redirect(w, r, to.String(), http.StatusSeeOther)
	return true, nil
}

// carried reports whether a request brings the token.
func (g guard) carried(r *http.Request) bool {
	if bearer, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); ok &&
		g.matches(bearer) {
		return true
	}
	cookie, err := r.Cookie(cookieOf(r))
	return err == nil && g.matches(cookie.Value)
}

// matches compares hashes, so that neither length nor content can be learnt from the time it takes.
func (g guard) matches(given string) bool {
	sum := sha256.Sum256([]byte(given))
	return subtle.ConstantTimeCompare(sum[:], g.token[:]) == 1 && g.set
}

// knows reports whether a Host is us: an address, which no name service can bend, localhost, or a
// name that the user gave.
func (g guard) knows(host string) bool {
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	name = strings.TrimSuffix(strings.ToLower(strings.Trim(name, "[]")), ".")
	if ip := net.ParseIP(name); name == "localhost" || ip != nil && (!g.local || ip.IsLoopback()) {
		return true
	}
	for _, h := range g.hosts {
		if name == strings.TrimSuffix(strings.ToLower(h), ".") {
			return true
		}
	}
	return false
}

// sameOrigin refuses what a page of another origin asks for. Opening the page by a link is no harm:
// it answers with the page itself and no data.
func sameOrigin(r *http.Request) error {
	const text = "a page of another origin asked for this: memroom answers only its own page"
	if origin := r.Header.Get("Origin"); origin != "" {
		u, err := url.Parse(origin)
		if err != nil || !strings.EqualFold(u.Host, r.Host) || u.Host == "" {
			return failed(http.StatusForbidden, text)
		}
	}
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "same-origin", "none":
		return nil
	}
	page := !strings.HasPrefix(r.URL.Path, "/api/") && r.URL.Path != "/metrics"
	if page && r.Method == http.MethodGet && r.Header.Get("Sec-Fetch-Mode") == "navigate" &&
		r.Header.Get("Sec-Fetch-Dest") == "document" {
		return nil
	}
	return failed(http.StatusForbidden, text)
}
