package cli

import (
	"fmt"
	"strings"

	"github.com/alecthomas/kong"

	"memroom/event"
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

// usageProblem words a wrong command line. The parser speaks of types and tokens; people are shown
// what is missing and how it is written.
func usageProblem(parse *kong.ParseError) string {
	message, node := parse.Error(), parse.Context.Selected()
	flag, problem, _ := strings.Cut(message, ": ")
	word, isArgument := strings.CutPrefix(message, "unexpected argument ")
	typed, isFlag := strings.CutPrefix(message, "unknown flag ")
	wanted, isMissing := strings.CutPrefix(message, "expected ")
	switch {
	case isArgument && node == nil:
		typed, _, _ := strings.Cut(word, ",")
		if ours := otherWords[typed]; ours != "" {
			return fmt.Sprintf("there is no command %s, did you mean %q?", typed, ours)
		}
		return "there is no command " + word
	case isArgument:
		return word + " is one word too many"
	case isFlag:
		return "unknown flag " + nearFlag(typed, parse.Context)
	case isMissing && node != nil && !strings.Contains(flag, " got "):
		return missingArgument(node, wanted)
	case strings.HasPrefix(problem, "expected ") && strings.Contains(problem, " value but got "):
		return flag + " needs a value, as in " + howWritten(flag, parse.Context)
	case strings.HasPrefix(problem, "expected a valid "):
		_, given, _ := strings.Cut(problem, " but got ")
		return flag + " takes a whole number, not " + given
	}
	return message
}

// otherWords are what other tools call our commands.
var otherWords = map[string]string{"list": "runs", "ls": "runs", "ps": "runs", "log": "show",
	"logs": "show", "predict": "plan", "estimate": "plan", "ui": "serve", "web": "serve",
	"dashboard": "serve", "why": "explain", "delete": "rm", "remove": "rm", "watch": "run",
	"profile": "run", "train": "run", "monitor": "top"}

// missingArgument returns what a command still needs, in the words of its help.
func missingArgument(node *kong.Node, wanted string) string {
	text := strings.TrimPrefix(node.Path(), "memroom ") + " needs " + strings.ReplaceAll(wanted,
		"\"", "")
	for _, p := range node.Positional {
		if strings.Contains(wanted, p.Summary()) && p.Help != "" {
			return text + ": " + strings.TrimSuffix(p.Help, ".")
		}
	}
	return text
}

// howWritten shows a flag with the kind of value it takes.
func howWritten(name string, c *kong.Context) string {
	for _, flag := range c.Flags() {
		if "--"+flag.Name == name {
			return name + "=" + flag.FormatPlaceHolder()
		}
	}
	return name + "=VALUE"
}

// nearFlag adds to an unknown flag the one that was probably meant. A single letter is near every
// other, so that the flag which begins with it is named instead.
func nearFlag(typed string, c *kong.Context) string {
	name, _, near := strings.Cut(typed, ",")
	if strings.HasPrefix(name, "--") {
		if c.Selected() == nil && !near {
			return name + event.DidYouMean(name, []string{"--help", "--version"})
		}
		return typed
	}
	for _, flag := range c.Flags() {
		if strings.HasPrefix(flag.Name, strings.TrimPrefix(name, "-")) && !flag.Hidden {
			return name + ", did you mean \"--" + flag.Name + "\"?"
		}
	}
	return name
}

// helpFor is the command that shows the help that a wrong command line needs.
func helpFor(parse *kong.ParseError) string {
	path := "--help"
	for node := parse.Context.Selected(); node != nil && node.Parent != nil; node = node.Parent {
		path = node.Name + " " + path
	}
	return "memroom " + path
}
