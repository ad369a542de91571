package feed

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"memroom/feed/format"
	"memroom/feed/source"
)

// namesOf returns the files that the user named, in a fixed order. A folder stands for the files
// below it whose names imply their format, where that is one format.
func namesOf(sources []string, o format.Options) ([]string, error) {
	var patterns, images []string
	for _, s := range sources {
		inside, is, err := source.Folder(s)
		switch {
		case err != nil:
			return nil, err
		case !is && imagesIn(s, o):
			images = append(images, absolute(s))
			continue
		case !is:
			patterns = append(patterns, s)
			continue
		}
		known, err := ofOneFormat(s, inside, o)
		if err != nil {
			return nil, err
		}
		if imagesIn(known[0], o) {
			images = append(images, absolute(s))
			continue
		}
		patterns = append(patterns, known...)
	}
	if len(images) > 0 && len(patterns) == 0 {
		return images, nil
	}
	names, err := source.Expand(patterns)
	return append(images, names...), err
}

// imagesIn reports whether a name stands for images, all of which are one source.
func imagesIn(name string, o format.Options) bool {
	if info, err := os.Stat(name); err == nil && info.IsDir() {
		return true // of other formats the files have been named
	}
	kind, err := format.Of(name, o)
	return err == nil && kind == "images" && !source.Remote(name)
}

func absolute(name string) string {
	if full, err := filepath.Abs(strings.TrimPrefix(name, "file://")); err == nil {
		return full
	}
	return name
}

// ofOneFormat returns the files of a folder that can be read.
func ofOneFormat(folder string, inside []string, o format.Options) ([]string, error) {
	found := map[string][]string{}
	for _, name := range inside {
		if f, err := format.Of(name, o); err == nil {
			found[f] = append(found[f], name)
		}
	}
	formats := slices.Sorted(maps.Keys(found))
	switch len(formats) {
	case 0:
		return nil, fmt.Errorf("%s is a folder whose files' names show no format: name the files, "+
			"such as %s, and say the format with --format (format= in Python)", folder,
			filepath.Join(folder, "*"))
	case 1:
		return found[formats[0]], nil
	}
	var counts []string
	for _, f := range formats {
		counts = append(counts, fmt.Sprintf("%d %s", len(found[f]), f))
	}
	example := filepath.Join(folder, "**", "*"+filepath.Ext(found[formats[0]][0]))
	return nil, fmt.Errorf("%s is a folder with files of several formats (%s): name those you mean, "+
		"such as %s", folder, strings.Join(counts, ", "), example)
}
