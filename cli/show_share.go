package cli

import (
	"encoding/json"
	"regexp"
	"strings"
	"sync"

	"memroom/event"
)

// absolutePath finds paths in any text; the last element is what a reader needs.
var absolutePath = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?:/[\w.@+~-]+){2,}/?`) })

// address finds IPv4 addresses.
var address = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\b\d{1,3}(\.\d{1,3}){3}\b`) })

// hider gives a function that takes out of a text what tells where a run was made: folders, the
// host's name, the user's and addresses.
func hider(run event.Run) func(string) string {
	return func(text string) string {
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

func hideIn(v any, hide func(string) string) any {
	switch v := v.(type) {
	case string:
		return hide(v)
	case []any:
		for i := range v {
			v[i] = hideIn(v[i], hide)
		}
		return v
	case map[string]any:
		for k := range v {
			v[k] = hideIn(v[k], hide)
		}
		return v
	}
	return v
}
