// Package browsertest opens memroom's pages in a real, headless Chromium. It is a module of its
// own, so that the browser's protocol does not become a dependency of memroom: run `go test .` in
// this folder.
package browsertest
