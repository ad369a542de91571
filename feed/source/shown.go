package source

import (
	"regexp"
	"strings"
	"sync"
)

// hidden stands for what is not shown.
const hidden = "***"

// Shown returns a name as it may be printed. Of an address, everything that can carry a secret is
// hidden: who asks (user:password@, token@), every value of the query, and the fragment. Names of
// parameters stay. It goes by place, because services call their signatures what they like.
func Shown(name string) string {
	scheme, rest, is := strings.Cut(name, "://")
	if !is {
		return name
	}
	place, tail := rest, ""
	if scheme != "s3" { // in whose keys ? is a part of a pattern
		if at := strings.IndexAny(rest, "?#"); at >= 0 {
			place, tail = rest[:at], hiddenTail(rest[at:])
		}
	}
	authority, path, _ := strings.Cut(place, "/")
	_, port, _ := strings.Cut(authority, ":")
	whole := strings.Trim(port, "0123456789") != "" // a password with a slash in it
	if at := strings.LastIndexByte(place, '@'); at >= 0 && (at < len(authority) || whole) {
		place = hidden + place[at:]
		_, path, _ = strings.Cut(place, "/")
	}
	if strings.Contains(path, "://") { // an address as a part of another
		inside := strings.Index(place, path) + strings.Index(path, "://")
		place = place[:inside] + strings.TrimPrefix(Shown("x"+place[inside:]), "x")
	}
	return scheme + "://" + place + tail
}

// hiddenTail hides the values of a query, and the fragment behind it.
func hiddenTail(tail string) string {
	query, _, fragment := strings.Cut(tail, "#")
	if strings.HasPrefix(query, "?") && len(query) > 1 {
		parts := strings.FieldsFunc(query[1:], func(r rune) bool { return r == '&' || r == ';' })
		for i, part := range parts {
			key, _, is := strings.Cut(part, "=")
			if parts[i] = hidden; is {
				parts[i] = key + "=" + hidden
			}
		}
		query = "?" + strings.Join(parts, "&")
	}
	if fragment {
		query += "#" + hidden
	}
	return query
}

var addressPattern = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`[A-Za-z][A-Za-z0-9+.-]*://[^\s"'<>]*[^\s"'<>:,;.()]`)
})

// ShownText returns a text with all addresses in it as Shown returns them. Errors of libraries name
// addresses too, also those that a server has sent us on to.
func ShownText(text string) string {
	if !strings.Contains(text, "://") {
		return text
	}
	return addressPattern().ReplaceAllStringFunc(text, Shown)
}
