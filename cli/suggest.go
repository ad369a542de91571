package cli

import (
	"strings"

	"github.com/alecthomas/kong"
)

// commandFlags returns the flags of a command, with their dashes.
func commandFlags(model *kong.Application, command string) []string {
	var names []string
	for _, node := range model.Leaves(true) {
		if node.Name != command {
			continue
		}
		for _, flag := range node.Flags {
			names = append(names, "--"+flag.Name)
		}
	}
	return names
}

// flagName is a flag as it was typed, without its value.
func flagName(typed string) string {
	name, _, _ := strings.Cut(typed, "=")
	return name
}

// usageProblem words a wrong command line: kong calls an unknown command an unexpected argument.
func usageProblem(parse *kong.ParseError) string {
	message := parse.Error()
	if word, ok := strings.CutPrefix(message, "unexpected argument "); ok &&
		parse.Context.Selected() == nil {
		return "there is no command " + word
	}
	return message
}

// helpFor is the command that shows the help that a wrong command line needs.
func helpFor(parse *kong.ParseError) string {
	path := "--help"
	for node := parse.Context.Selected(); node != nil && node.Parent != nil; node = node.Parent {
		path = node.Name + " " + path
	}
	return "memroom " + path
}
