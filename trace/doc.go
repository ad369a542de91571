// Package trace reads what other programs write about memory into the types of package event:
// PyTorch's allocator snapshots, framework logs, out-of-memory messages, TensorFlow's dumps. Every
// reader is safe for untrusted files: it never runs code that a file names, bounds its memory, and
// reports where a file is broken.
//
// # Snapshots
//
// [Open] and [ReadSnapshot] read what torch.cuda.memory._dump_snapshot and its relatives write,
// from torch 1.13 to today, plain or packed:
//
//	s, err := trace.Open("dump.pickle.gz")
//	for _, rec := range s.Recordings { // one a device
//		for i, e := range rec.History.All() {
//			fmt.Println(i, e.Kind, e.Addr, e.Size, s.Stacks.Frames(e.Stack))
//		}
//	}
//
// For a truncated file they return a Snapshot with Truncated set, not an error. [Snapshot.Settings]
// holds the allocator's settings, [Snapshot.Version] what the keys show about torch's release;
// package allocsim replays a recording.
//
// The file is executed by a small pickle machine (machine.go) that knows only the opcodes a
// snapshot contains. It never builds the tree the file describes: a dict becomes the frame, event,
// block or segment it is as soon as it is complete (shapes.go, lists.go), equal names, frames and
// stacks become one (stacks.go), and events go into an [event.History] at about ten bytes each. The
// memo, which grows with the file, is packed (memo.go).
//
// # Logs
//
// [ReadLog] finds every crash in a log of any size, whatever wraps it: other encodings, colours,
// progress bars, prefixes, quotes, JSON strings. A window of constant size slides over the log
// (oomtext_scan.go); where one of some hundred telling words stands (oomtext_vocabulary.go), the
// readers of a family look at the passage around it (oomtext_torch.go and its siblings). What no
// single line can decide is settled at the end (oomtext_settle.go): refusals that were survived,
// limits that stand apart from the kill. [Log.First] is the cause.
package trace
