package source

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// mostSpelt is how many names the braces of one pattern may stand for.
const mostSpelt = 1_000_000

// spellOut replaces braces by what they stand for. A file that has braces in its name is itself.
func spellOut(patterns []string) ([]string, error) {
	var all []string
	for _, p := range patterns {
		p = strings.TrimPrefix(p, "file://")
		if _, err := os.Lstat(p); err == nil {
			all = append(all, p)
			continue
		}
		names := braces(p)
		if len(names) > mostSpelt {
			return nil, fmt.Errorf("%s stands for more than %d names: use * for a part of them", p,
				mostSpelt)
		}
		all = append(all, names...)
	}
	return all, nil
}

// braces returns the names that {a,b} and {000..127} stand for. Other braces stay as they are.
func braces(p string) []string {
	open := strings.IndexByte(p, '{')
	if open < 0 {
		return []string{p}
	}
	length := strings.IndexByte(p[open:], '}')
	if length < 0 {
		return []string{p}
	}
	words := choices(p[open+1 : open+length])
	rest := braces(p[open+length+1:])
	if words == nil {
		words = []string{p[open : open+length+1]}
	}
	var all []string
	for _, w := range words {
		for _, r := range rest {
			if all = append(all, p[:open]+w+r); len(all) > mostSpelt {
				return all
			}
		}
	}
	return all
}

// choices returns what one pair of braces stands for: words between commas, or numbers from one to
// another, as wide as they are written. Nil where it is neither.
func choices(inside string) []string {
	if strings.Contains(inside, ",") {
		return strings.Split(inside, ",")
	}
	from, to, is := strings.Cut(inside, "..")
	first, err := strconv.Atoi(from)
	last, err2 := strconv.Atoi(to)
	if !is || err != nil || err2 != nil || first < 0 || last < first {
		return nil
	}
	width := 0
	if from[0] == '0' || to[0] == '0' {
		width = max(len(from), len(to))
	}
	var all []string
	for n := first; n <= last && len(all) <= mostSpelt; n++ {
		all = append(all, fmt.Sprintf("%0*d", width, n))
	}
	return all
}

// glob returns the files that match a pattern, in which ** stands for any number of folders.
func glob(pattern string) ([]string, error) {
	if !strings.Contains(pattern, "**") {
		return filepath.Glob(pattern)
	}
	parts := strings.Split(filepath.ToSlash(pattern), "/")
	fixed := slices.IndexFunc(parts, func(p string) bool { return strings.ContainsAny(p, "*?[") })
	root := strings.Join(parts[:fixed], "/")
	if root == "" && fixed > 0 {
		root = "/"
	}
	if root == "" {
		root = "."
	}
	for _, p := range parts[fixed:] {
		if _, err := filepath.Match(p, ""); err != nil {
			return nil, err
		}
	}
	all, err := filesIn(root)
	return slices.DeleteFunc(all, func(name string) bool {
		within, err := filepath.Rel(root, name)
		return err != nil || !matches(parts[fixed:], strings.Split(filepath.ToSlash(within), "/"))
	}), err
}

// matches reports whether the parts of a path match those of a pattern.
func matches(pattern, path []string) bool {
	switch {
	case len(pattern) == 0:
		return len(path) == 0
	case pattern[0] == "**":
		return matches(pattern[1:], path) || len(path) > 0 && matches(pattern, path[1:])
	case len(path) == 0:
		return false
	}
	ok, _ := filepath.Match(pattern[0], path[0])
	return ok && matches(pattern[1:], path[1:])
}

// Folder returns the files below a folder, without those that begin with a dot or an underscore,
// which programs keep for themselves. It reports whether the name is a folder at all.
func Folder(name string) ([]string, bool, error) {
	name = strings.TrimPrefix(name, "file://")
	if info, err := os.Stat(name); err != nil || !info.IsDir() {
		return nil, false, nil
	}
	all, err := filesIn(name)
	return all, true, err
}

// filesIn walks through a folder, sorted; hidden files and folders are left out.
func filesIn(root string) ([]string, error) {
	var all []string
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		base := filepath.Base(name)
		hidden := name != root && (strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_"))
		switch {
		case hidden && entry.IsDir():
			return filepath.SkipDir
		case hidden || entry.IsDir():
			return nil
		}
		if info, err := os.Stat(name); err == nil && info.IsDir() {
			return nil // a link to a folder: it may lead back here
		}
		all = append(all, name)
		return nil
	})
	return all, err
}
