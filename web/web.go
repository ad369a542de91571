// Package web holds the files of memroom's pages: plain ES modules and a style sheet, without
// network and without tools to build them. The modules import each other as "memroom/NAME.js". A
// served page maps these names to the files next to it; a self-contained page holds all of them in
// one script, which [Script] makes.
package web

import (
	"embed"
	"strings"
)

//go:embed *.js *.css *.html *.svg
var files embed.FS

// Modules lists the names of the ES modules in alphabetical order.
func Modules() []string {
	entries, err := files.ReadDir(".")
	if err != nil {
		panic(err) // the folder is compiled in
	}
	var names []string
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".js") {
			names = append(names, e.Name())
		}
	}
	return names
}

// Text returns one file; it panics on a name that is not compiled in.
func Text(name string) string {
	data, err := files.ReadFile(name)
	if err != nil {
		panic(err)
	}
	return string(data)
}

// Page is the served page: the frame, with the views that are written as HTML as templates in it.
func Page() string {
	return strings.NewReplacer("SNAPSHOT", Text("snapshot.html"), "RUN", Text("run.html")).
		Replace(Text("index.html"))
}
