package feed

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"memroom/feed/format"
	"memroom/feed/source"
)

// namesOf returns the files that the user named, in a fixed order. A folder stands for the files
// below it whose names imply their format, where that is one format.
func namesOf(sources []string, o format.Options) ([]string, error) {
	var patterns []string
	for _, s := range sources {
		inside, is, err := source.Folder(s)
		switch {
		case err != nil:
			return nil, err
		case !is:
			patterns = append(patterns, s)
			continue
		}
		known, err := ofOneFormat(s, inside, o)
		if err != nil {
			return nil, err
		}
		patterns = append(patterns, known...)
	}
	return source.Expand(patterns)
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
