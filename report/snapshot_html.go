package report

import (
	"bufio"
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
// Nothing from the snapshot is ever parsed as HTML or script: it travels as base64 and is shown as
// text. The content security policy allows the one script written here, by its hash, and no other
// from anywhere.
func SnapshotHTML(out io.Writer, file string, warnings []string, devices []Device) error {
	const start = `const data = document.getElementById("data").textContent;
modules["snapshot.js"].showSnapshot(await modules["payload.js"].decode(data));`
	script := "\n" + web.Script(start, "payload.js", "snapshot.js")
	policy := fmt.Sprintf("default-src 'none'; script-src %s; style-src 'unsafe-inline'; "+
		"base-uri 'none'; form-action 'none'", scriptHash(script))

	w := bufio.NewWriterSize(out, 1<<16)
	fmt.Fprintf(w,
		"<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta "+
			"http-equiv=\"Content-Security-Policy\" content=%q>\n", policy)
	fmt.Fprintf(w,
		"<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>%s · memroom "+
			"snapshot</title>\n", html.EscapeString(cleanText(file)))
	fmt.Fprintf(w,
		"<style>\n%s</style>\n</head>\n<body>\n%s", web.Text("memroom.css"),
		web.Text("snapshot.html"))
	fmt.Fprint(w, "<script type=\"application/octet-stream\" id=\"data\">")
	if err := writePayload(w, cleanText(file), warnings, devices); err != nil {
		return err
	}
	fmt.Fprintf(w, "</script>\n<script type=\"module\">%s</script>\n</body>\n</html>\n", script)
	return w.Flush()
}

func scriptHash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}
