package report

import (
	"bufio"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
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
// text. The content security policy allows only the two scripts written here, by their hashes, and
// the modules.
func SnapshotHTML(out io.Writer, file string, warnings []string, devices []Device) error {
	imports := map[string]string{}
	for _, name := range web.Modules() {
		imports["memroom/"+name] = "data:text/javascript;base64," +
			base64.StdEncoding.EncodeToString([]byte(web.Text(name)))
	}
	importMap, err := json.Marshal(map[string]any{"imports": imports})
	if err != nil {
		return err
	}
	const start = `import { decode } from "memroom/payload.js";
import { showSnapshot } from "memroom/snapshot.js";
showSnapshot(await decode(document.getElementById("data").textContent));`
	policy := fmt.Sprintf("default-src 'none'; script-src %s %s data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'",
		scriptHash(string(importMap)), scriptHash(start))

	w := bufio.NewWriterSize(out, 1<<16)
	fmt.Fprintf(w,
		"<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta http-equiv=\"Content-Security-Policy\" content=%q>\n", policy)
	fmt.Fprintf(w,
		"<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>%s · memroom snapshot</title>\n", html.EscapeString(cleanText(file)))
	fmt.Fprintf(w,
		"<style>\n%s</style>\n<script type=\"importmap\">%s</script>\n</head>\n<body>\n%s",
		web.Text("memroom.css"), importMap, web.Text("snapshot.html"))
	fmt.Fprint(w, "<script type=\"application/octet-stream\" id=\"data\">")
	if err := writePayload(w, cleanText(file), warnings, devices); err != nil {
		return err
	}
	fmt.Fprintf(w, "</script>\n<script type=\"module\">%s</script>\n</body>\n</html>\n", start)
	return w.Flush()
}

func scriptHash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}
