package supervise

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
)

// A message on the keeper's socket is one byte of kind, four bytes of length (big endian) and that
// many bytes. The page docs/format/run.md describes them.
type kind byte

// From a client to the keeper.
const (
	sayHello    kind = 'h' // hello
	sayLaunch   kind = 'L' // Launch, over a link only
	sayInput    kind = 'i' // bytes typed at the terminal
	sayEnd      kind = 'q' // the front end's output is closed: payload is the stream
	saySize     kind = 'w' // Size
	saySignal   kind = 's' // signalRequest
	sayContinue kind = 'c' // the front end is in the foreground again
	sayDone     kind = 'd' // the monitor has judged the attempt and wants no other
	sayFinding  kind = 'F' // event.Finding of the monitor, handed on to the front ends
)

// From the keeper to its clients.
const (
	tellState    kind = 'H' // State
	tellMore     kind = 'n' // more: output that lies in the file
	tellOut      kind = 'o' // output itself, when the file cannot take it
	tellErr      kind = 'e'
	tellStopped  kind = 'S' // the command was stopped; payload is the signal's number
	tellExited   kind = 'x' // event.Exit of an attempt
	tellFinished kind = 'f' // State; nothing follows
	tellOver     kind = 'v' // to the monitor only: the launch that it asked for is not made
	tellNote     kind = 't' // text for the user
	tellLaunch   kind = 'l' // Launch, to the monitor only
	tellFinding  kind = 'F' // event.Finding
	tellSettings kind = 'm' // the monitor's settings, first on its link
)

// maxMessage bounds what is accepted: a launch with a full environment is the largest that is sent.
const maxMessage = 16 << 20

// role is the part a client plays, which decides what the keeper does for it.
type role string

const (
	roleFront   role = "front"   // started the keeper; only over the link that the keeper inherited
	roleMonitor role = "monitor" // was started by the keeper; only over the link that it inherited
	roleAttach  role = "attach"  // came later, over the named socket: it may not start commands
)

// hello is a client's first message.
type hello struct {
	Role role  `json:"role"`
	Out  int64 `json:"out"` // where in the output files to begin; -1: at their end
	Err  int64 `json:"err"`
}

// more asks to show the bytes From to To of a stream's file.
type more struct {
	Stream   int // 1 or 2
	From, To int64
}

// signalRequest asks the keeper to signal the command.
type signalRequest struct {
	Number int  `json:"number"`
	Group  bool `json:"group"` // its whole process group, as a terminal does
	All    bool `json:"all"`   // every process of the run
}

func (m more) encode() []byte {
	b := make([]byte, 17)
	b[0] = byte(m.Stream)
	binary.BigEndian.PutUint64(b[1:], uint64(m.From))
	binary.BigEndian.PutUint64(b[9:], uint64(m.To))
	return b
}

func decodeMore(b []byte) (more, error) {
	if len(b) != 17 {
		return more{}, fmt.Errorf("output message of %d bytes, want 17", len(b))
	}
	return more{Stream: int(b[0]), From: int64(binary.BigEndian.Uint64(b[1:])),
		To: int64(binary.BigEndian.Uint64(b[9:]))}, nil
}

func writeMessage(w io.Writer, k kind, payload []byte) error {
	frame := make([]byte, 5, 5+len(payload))
	frame[0] = byte(k)
	binary.BigEndian.PutUint32(frame[1:], uint32(len(payload)))
	_, err := w.Write(append(frame, payload...))
	return err
}

func writeJSON(w io.Writer, k kind, v any) error {
	payload, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return writeMessage(w, k, payload)
}

// readMessage reads one message into a fresh slice.
func readMessage(r io.Reader) (kind, []byte, error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	size := binary.BigEndian.Uint32(head[1:])
	if size > maxMessage {
		return 0, nil,
			fmt.Errorf("message of %d bytes on the keeper's socket, at most %d are accepted", size,
				maxMessage)
	}
	payload := make([]byte, size)
	_, err := io.ReadFull(r, payload)
	return kind(head[0]), payload, err
}
