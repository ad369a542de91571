module memroom

go 1.26.0

require (
	github.com/alecthomas/kong v1.16.1 // indirect
	github.com/ebitengine/purego v0.11.2 // indirect
	golang.org/x/sys v0.49.0 // indirect
	golang.org/x/term v0.47.0 // indirect
)
