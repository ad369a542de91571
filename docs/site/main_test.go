package main

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"memroom/lint"
	"memroom/remedy"
)

var (
	anyLink = regexp.MustCompile(`\]\(([^)#\s]*)(#[^)\s]*)?\)`)
	code    = regexp.MustCompile("(?s)```.*?```|`[^`\n]*`")
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	noWord  = regexp.MustCompile(`[^\w\- ]`)
)

// TestLinks follows every relative link of the documents, where they lie, and of the pages that are
// made from them and from the catalogues.
func TestLinks(t *testing.T) {
	site := t.TempDir()
	if err := write(os.DirFS("../.."), site); err != nil {
		t.Fatal(err)
	}
	pages := 0
	for _, dir := range []string{"../..", site} {
		for _, dead := range deadLinks(t, os.DirFS(dir), &pages) {
			t.Error(dead)
		}
	}
	if least := len(lint.Rules()) + len(remedy.Catalogue()) + 40; pages < least {
		t.Errorf("%d pages were read, fewer than %d", pages, least)
	}
	broken := t.TempDir()
	text := "# A title\n[good](a.md) [good](#a-title) [bad](b.md) [bad](a.md#none) ```[x](y)```\n"
	if err := os.WriteFile(filepath.Join(broken, "a.md"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if dead := deadLinks(t, os.DirFS(broken), &pages); len(dead) != 2 {
		t.Errorf("two links are dead, found %q", dead)
	}
}

// deadLinks returns the relative links below root that lead nowhere, and counts the pages.
func deadLinks(t *testing.T, root fs.FS, pages *int) (dead []string) {
	err := fs.WalkDir(root, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && (name == "bench" || entry.Name() == "testdata" || entry.Name() == "dist" ||
			len(name) > 1 && strings.HasPrefix(entry.Name(), ".")) {
			return fs.SkipDir
		}
		if path.Ext(name) != ".md" {
			return nil
		}
		*pages++
		text, err := fs.ReadFile(root, name)
		if err != nil {
			return err
		}
		for _, found := range anyLink.FindAllStringSubmatch(prose(string(text)), -1) {
			if !strings.Contains(found[1], ":") && !leads(root, name, found[1], found[2]) {
				dead = append(dead, name+" has a dead link: "+found[1]+found[2])
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return dead
}

// prose returns a document without its code.
func prose(text string) string { return code.ReplaceAllString(text, "") }

// leads reports whether a link in the page name leads to a file, and to a heading of it.
func leads(root fs.FS, name, target, anchor string) bool {
	file := name
	if target != "" {
		file = path.Join(path.Dir(name), target)
	}
	if _, err := fs.Stat(root, file); err != nil || anchor == "" {
		return err == nil
	}
	text, err := fs.ReadFile(root, file)
	for _, h := range heading.FindAllStringSubmatch(string(text), -1) {
		words := noWord.ReplaceAllString(strings.ToLower(strings.TrimSpace(h[1])), "")
		if err == nil && "#"+strings.ReplaceAll(words, " ", "-") == anchor {
			return true
		}
	}
	return false
}
