package cli

import (
	"fmt"
	"sort"
	"strings"

	"github.com/alecthomas/kong"
)

type completionCmd struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"bash, zsh or fish."`
}

func (completionCmd) Help() string {
	return `Prints a completion script for your shell. bash: add  source <(memroom completion bash)  to ~/.bashrc; zsh: the same with
zsh in ~/.zshrc, after compinit; fish: memroom completion fish > ~/.config/fish/completions/memroom.fish`
}

func (completionCmd) examples() []example {
	return []example{{line: "memroom completion bash"}, {line: "memroom completion fish"}}
}

// word is something that can be typed after a command.
type word struct{ text, help string }

// The scripts are made from the same command structs that parse the line, so they cannot go stale.
func (c *completionCmd) Run(s *session) error {
	commands, flags := completionWords(s.model)
	var text strings.Builder
	switch c.Shell {
	case "fish":
		fishCompletion(&text, commands, flags)
	default:
		bashCompletion(&text, c.Shell == "zsh", commands, flags)
	}
	_, err := fmt.Fprint(s.Out, text.String())
	return err
}

// completionWords returns the visible commands, and for each its flags ("" for the global ones).
func completionWords(app *kong.Application) (commands []word, flags map[string][]word) {
	flags = map[string][]word{"": flagWords(app.Node)}
	for _, node := range app.Children {
		if node.Hidden {
			continue
		}
		commands = append(commands, word{node.Name, node.Help})
		flags[node.Name] = append(flagWords(node), flags[""]...)
	}
	return commands, flags
}

func flagWords(node *kong.Node) []word {
	words := []word{{"--help", "Show help."}}
	for _, f := range node.Flags {
		if !f.Hidden && f.Name != "help" {
			words = append(words, word{"--" + f.Name, f.Help})
		}
	}
	sort.Slice(words, func(i, j int) bool { return words[i].text < words[j].text })
	return words
}

// bashCompletion serves zsh too, through its bash emulation. After `--` the child's command line is
// completed as files.
func bashCompletion(out *strings.Builder, zsh bool, commands []word, flags map[string][]word) {
	if zsh {
		out.WriteString("autoload -U +X bashcompinit && bashcompinit\n")
	}
	out.WriteString("_memroom() {\n  local cur=${COMP_WORDS[COMP_CWORD]} i words\n" +
		"  for ((i = 1; i < COMP_CWORD; i++)); do [ \"${COMP_WORDS[i]}\" = -- ] && { " +
		"COMPREPLY=($(compgen -f -- \"$cur\")); return; }; done\n" +
		"  if [ \"$COMP_CWORD\" -eq 1 ]; then COMPREPLY=($(compgen -W '" + joinWords(commands) +
		"' -- \"$cur\")); return; fi\n" +
		"  case \"${COMP_WORDS[1]}\" in\n")
	for _, c := range commands {
		fmt.Fprintf(out, "    %s) words='%s' ;;\n", c.text, joinWords(flags[c.text]))
	}
	fmt.Fprintf(out, "    *) words='%s' ;;\n  esac\n", joinWords(flags[""]))
	out.WriteString("  case \"$cur\" in -*) COMPREPLY=($(compgen -W \"$words\" -- \"$cur\")) ;; *) " +
		"COMPREPLY=($(compgen -f -- \"$cur\")) ;; esac\n}\n" +
		"complete -o filenames -F _memroom memroom\n")
}

func joinWords(words []word) string {
	var texts []string
	for _, w := range words {
		texts = append(texts, w.text)
	}
	return strings.Join(texts, " ")
}

func fishCompletion(out *strings.Builder, commands []word, flags map[string][]word) {
	quote := strings.NewReplacer(`\`, `\\`, `'`, `\'`, "\n", " ").Replace
	for _, c := range commands {
		fmt.Fprintf(out, "complete -c memroom -n __fish_use_subcommand -f -a %s -d '%s'\n", c.text,
			quote(c.help))
		for _, f := range flags[c.text] {
			fmt.Fprintf(out,
				"complete -c memroom -n '__fish_seen_subcommand_from %s' -l %s -d '%s'\n", c.text,
				strings.TrimPrefix(f.text, "--"), quote(f.help))
		}
	}
}
