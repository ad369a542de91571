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

// example is a command line and the exit code it gives. Files named in it are in examples/, seen
// from the root of a clone.
type example struct {
	line string
	code int
}

// helpWithExamples prints kong's help and below it the command's examples and the exit codes.
func helpWithExamples(options kong.HelpOptions, ctx *kong.Context) error {
	if err := kong.DefaultHelpPrinter(options, ctx); err != nil {
		return err
	}
	var text strings.Builder
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
