package cli

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"

	"memroom/event"
	"memroom/store"
)

// absolutePath finds paths in any text; the last element is what a reader needs.
var absolutePath = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?:/[\w.@+~-]+){2,}/?`) })

// address finds IPv4 addresses.
var address = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\b\d{1,3}(\.\d{1,3}){3}\b`) })

// hider returns a function that removes from a text what others should not see: secrets, and
// anything that identifies where a run was made (folders, the names of host and user, addresses).
func hider(run event.Run) func(string) string {
	return func(text string) string {
		text = store.MaskText(text)
		text = absolutePath().ReplaceAllStringFunc(text, func(path string) string {
			path = strings.TrimSuffix(path, "/")
			return ".../" + path[strings.LastIndexByte(path, '/')+1:]
		})
		text = address().ReplaceAllString(text, "ADDRESS")
		for secret, word := range map[string]string{run.Host: "HOST", run.User: "USER"} {
			if len(secret) > 1 {
				text = regexp.MustCompile(`(?i)\b`+regexp.QuoteMeta(secret)+`\b`).ReplaceAllString(text, word)
			}
		}
		return text
	}
}

// share strips a record. It is done on the JSON, so that a field added later cannot be forgotten.
func share(v shown) shown {
	hide := hider(v.Run)
	data, err := json.Marshal(v)
	if err != nil {
		return shown{}
	}
	var tree any
	if json.Unmarshal(data, &tree) != nil {
		return shown{}
	}
	data, err = json.Marshal(hideIn(tree, hide))
	if err != nil {
		return shown{}
	}
	var clean shown
	if json.Unmarshal(data, &clean) != nil {
		return shown{}
	}
	clean.Folder, clean.Row.Host = "", ""
	clean.Run.Host, clean.Run.User, clean.Run.Dir, clean.Run.Env = "", "", "", nil
	if clean.Summary != nil {
		clean.Summary.Run = clean.Run
	}
	return clean
}

// hiddenKeys are fields that tell where a run was made; a page without them is as good.
var hiddenKeys = []string{"host", "user", "dir", "env", "folder", "uuid"}

// sharer returns what takes out of a run's page what others should not see: over the tree of its
// data, and over a line of its output.
func sharer(folder *store.Folder) (tree func(any) any, line func(string) string) {
	run, _ := folder.Run()
	hide, keys := hider(run), store.LineMasker{}
	return func(v any) any { return withoutPlaces(hideIn(v, hide)) },
		func(text string) string { return hide(keys.Mask(text)) }
}

// withoutPlaces drops the hidden keys that hold a text or a table of texts.
func withoutPlaces(v any) any {
	switch v := v.(type) {
	case []any:
		for i := range v {
			v[i] = withoutPlaces(v[i])
		}
	case map[string]any:
		for k, inner := range v {
			_, text := inner.(string)
			if slices.Contains(hiddenKeys, k) && (text || k == "env") {
				delete(v, k)
				continue
			}
			v[k] = withoutPlaces(inner)
		}
	}
	return v
}

// shareOutput prints what the command wrote, line by line, without what others should not see.
func shareOutput(w io.Writer, folder *store.Folder, path string) error {
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // nothing was written
	}
	if err != nil {
		return err
	}
	defer file.Close()
	run, _ := folder.Run()
	hide, keys := hider(run), store.LineMasker{}
	lines := bufio.NewReaderSize(file, longestLine)
	for {
		line, err := lines.ReadSlice('\n')
		text := strings.TrimRight(string(line), "\r\n")
		if len(line) > 0 {
			if _, err := fmt.Fprintln(w, hide(keys.Mask(text))); err != nil {
				return err
			}
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) { // a longer line is shown in parts
			return nil
		}
	}
}

// longestLine bounds the memory for a line of output.
const longestLine = 1 << 20

func hideIn(v any, hide func(string) string) any {
	switch v := v.(type) {
	case string:
		return hide(v)
	case []any:
		v = maskList(v)
		for i := range v {
			v[i] = hideIn(v[i], hide)
		}
		return v
	case map[string]any:
		clean := make(map[string]any, len(v))
		for k := range v {
			clean[hide(k)] = hideIn(v[k], hide)
		}
		return clean
	}
	return v
}

// maskList masks a command line: a secret may be the value of the flag before it.
func maskList(list []any) []any {
	words := make([]string, len(list))
	for i, v := range list {
		text, ok := v.(string)
		if !ok {
			return list
		}
		words[i] = text
	}
	for i, word := range store.MaskArguments(words) {
		list[i] = word
	}
	return list
}
