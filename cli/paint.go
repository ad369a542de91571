package cli

// The few colours we use, as SGR codes. Meaning is never in the colour alone.
const (
	dim    = "2"
	red    = "31"
	green  = "32"
	yellow = "33"
	bold   = "1"
)

// paint colours text where the session has colours.
func (s *session) paint(code, text string) string {
	if !s.color || text == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}
