module memroom

go 1.26.0

require (
	github.com/alecthomas/kong v1.16.1
	github.com/ebitengine/purego v0.11.2
	github.com/google/go-cmp v0.7.0
	github.com/google/pprof v0.0.0-20251114195745-4902fdda35c8
	github.com/klauspost/compress v1.20.3
	github.com/rogpeppe/go-internal v1.16.0
	github.com/ulikunitz/xz v0.5.15
	golang.org/x/sys v0.49.0
	golang.org/x/term v0.47.0
)

require golang.org/x/tools v0.26.0 // indirect
