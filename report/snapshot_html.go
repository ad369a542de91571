package report

import (
	"bufio"
	"compress/gzip"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"html"
	"io"

	"memroom/allocsim"
	"memroom/diagnose"
	"memroom/web"
)

// Device is one device's part of a report.
type Device struct {
	Snapshot *diagnose.Snapshot
	WhatIf   *allocsim.Table // the same requests under other settings; nil when it was not computed
}

// SnapshotHTML writes one self-contained page: no network, no other file, usable from file://.
func SnapshotHTML(out io.Writer, file string, warnings []string, devices []Device) error {
	return Page{Title: cleanText(file) + " · memroom snapshot", Body: web.Text("snapshot.html"),
		Modules: []string{"payload.js", "snapshot.js"},
		Start: `const data = document.getElementById("data").textContent;
modules["snapshot.js"].showSnapshot(await modules["payload.js"].decode(data));`,
		Data: func(w io.Writer) error { return SnapshotData(w, file, warnings, devices) }}.Write(out)
}

// Page is a page in one file.
type Page struct {
	Title   string
	Body    string   // HTML of ours
	Modules []string // of package web
	Start   string   // script that runs last
	Data    func(io.Writer) error
}

// Write writes the page. Nothing of the data is ever parsed as HTML or script: it travels packed,
// as base64, and is shown as text. The content security policy allows the one script written here,
// by its hash, and no other from anywhere.
func (p Page) Write(out io.Writer) error {
	script := "\n" + web.Script(p.Start, p.Modules...)
	policy := fmt.Sprintf("default-src 'none'; script-src %s; style-src 'unsafe-inline'; "+
		"base-uri 'none'; form-action 'none'", scriptHash(script))
	w := bufio.NewWriterSize(out, 1<<16)
	fmt.Fprintf(w,
		"<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta "+
			"http-equiv=\"Content-Security-Policy\" content=%q>\n", policy)
	fmt.Fprintf(w, "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"+
		"<title>%s</title>\n", html.EscapeString(p.Title))
	fmt.Fprintf(w, "<style>\n%s</style>\n</head>\n<body>\n%s", web.Text("memroom.css"), p.Body)
	fmt.Fprint(w, "<script type=\"application/octet-stream\" id=\"data\">")
	encoded := base64.NewEncoder(base64.StdEncoding, w)
	packed := gzip.NewWriter(encoded)
	for _, step := range []func() error{func() error { return p.Data(packed) }, packed.Close,
		encoded.Close} {
		if err := step(); err != nil {
			return err
		}
	}
	fmt.Fprintf(w, "</script>\n<script type=\"module\">%s</script>\n</body>\n</html>\n", script)
	return w.Flush()
}

func scriptHash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}
