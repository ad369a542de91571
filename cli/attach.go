package cli

type attachCmd struct {
	Record string `arg:"" optional:"" name:"run" help:"ID, beginning or end of one, or name; the last run if left out."`
	All    bool   `help:"Show the output from the beginning, not only its end."`
}

func (attachCmd) examples() []example {
	return []example{{line: "memroom attach $(memroom run --detach -- sh -c 'sleep 0.2; exit 4')",
		code: 4}}
}
