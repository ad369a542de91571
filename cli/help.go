package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// exampler is a command that shows how it is used. The examples are executed by a test, so they are
// always true.
type exampler interface{ examples() []example }

// example is a command line and its exit code. The files it names are in examples/, relative to the
// root of a clone.
type example struct {
	line string
	code int
}

// helpAll is what people type for every flag of a command; --help shows those that matter.
const helpAll = "--help-all"

// withoutHelpAll makes --help of --help-all, and reports whether it did.
func withoutHelpAll(args []string) ([]string, bool) {
	at := slices.Index(args, helpAll)
	if end := slices.Index(args, "--"); at < 0 || end >= 0 && end < at {
		return args, false
	}
	args = slices.Clone(args)
	args[at] = "--help"
	return args, true
}

// helpPrinter prints kong's help and below it the command's examples and the exit codes. Flags that
// belong to a group are shown only with all.
func helpPrinter(all bool) kong.HelpPrinter {
	return func(options kong.HelpOptions, ctx *kong.Context) error {
		groups := 0
		if node := ctx.Selected(); node != nil && !all {
			groups = hideGroups(node)
		}
		if err := kong.DefaultHelpPrinter(options, ctx); err != nil {
			return err
		}
		return printExamples(ctx, groups)
	}
}

// hideGroups hides the flags of groups and returns their number.
func hideGroups(node *kong.Node) int {
	n := 0
	for _, flag := range node.Flags {
		if flag.Group != nil && !flag.Hidden {
			flag.Hidden = true
			n++
		}
	}
	return n
}

func printExamples(ctx *kong.Context, hidden int) error {
	var text strings.Builder
	if hidden > 0 {
		fmt.Fprintf(&text, "\n%d more flags, in groups: %s %s\n", hidden,
			ctx.Selected().FullPath(), helpAll)
	}
	if node := ctx.Selected(); node != nil {
		if c, ok := node.Target.Addr().Interface().(exampler); ok {
			list := c.examples()
			needsClone := slices.ContainsFunc(list, func(e example) bool {
				return strings.Contains(e.line, "examples/")
			})
			text.WriteString("\nExamples")
			if needsClone {
				text.WriteString(" (examples/ is a folder of memroom's source)")
			}
			text.WriteString(":\n")
			for _, e := range list {
				fmt.Fprintf(&text, "  %s\n", e.line)
			}
		}
	}
	fmt.Fprintf(&text, "\n%s\n", exitHelp(ctx.Selected()))
	_, err := fmt.Fprint(ctx.Stdout, text.String())
	return err
}
