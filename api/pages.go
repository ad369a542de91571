package api

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"net/http"
	"strconv"
	"strings"

	"memroom/web"
)

//go:embed openapi.json
var openAPI []byte

// asset is one file of the page, plain and packed.
type asset struct {
	kind   string
	plain  []byte
	packed []byte
	tag    string
}

// pageAssets are the files of the page: all modules as one script, so that the policy need allow
// nothing but our own files.
func pageAssets() map[string]asset {
	script := web.Script(`modules["app.js"].start();`, "app.js")
	return map[string]asset{
		"index.html":  newAsset("text/html; charset=utf-8", web.Page()),
		"app.js":      newAsset("text/javascript; charset=utf-8", script),
		"memroom.css": newAsset("text/css; charset=utf-8", web.Text("memroom.css")),
		"favicon.svg": newAsset("image/svg+xml", web.Text("favicon.svg")),
	}
}

// PageBytes is what a browser loads for the page, packed.
func PageBytes() int {
	n := 0
	for _, a := range pageAssets() {
		n += len(a.packed)
	}
	return n
}

func newAsset(kind, text string) asset {
	a := asset{kind: kind, plain: []byte(text)}
	var packed bytes.Buffer
	w, _ := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	_, _ = w.Write(a.plain) // a buffer does not fail
	_ = w.Close()
	a.packed = packed.Bytes()
	sum := sha256.Sum256(a.plain)
	a.tag = `"` + hex.EncodeToString(sum[:8]) + `"`
	return a
}

func (a asset) serve(w http.ResponseWriter, r *http.Request) error {
	h := w.Header()
	h.Set("ETag", a.tag)
	h.Set("Cache-Control", "no-cache") // asked again each time, and answered in a few bytes
	h.Set("Vary", "Accept-Encoding")
	if r.Header.Get("If-None-Match") == a.tag {
		w.WriteHeader(http.StatusNotModified)
		return nil
	}
	h.Set("Content-Type", a.kind)
	data := a.plain
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		h.Set("Content-Encoding", "gzip")
		data = a.packed
	}
	h.Set("Content-Length", strconv.Itoa(len(data)))
	_, _ = w.Write(data)
	return nil
}

func (s *Server) showOpenAPI(w http.ResponseWriter, _ *http.Request) error {
	return answerBytes(w, openAPI)
}
