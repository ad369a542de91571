package supervise

import (
	"bufio"
	"encoding/json"
	"net"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// client is a connected front end or monitor. What it is told waits in a queue, so that a slow one
// holds up nobody; "there is more in the file" messages merge while they wait, which keeps the
// queue short.
type client struct {
	conn  *net.UnixConn
	wants bool // to see output
	role  string
	next  [3]int64 // where the news of each stream goes on

	mu       sync.Mutex
	changed  *sync.Cond
	queue    []message
	waiting  int // bytes of inline output in the queue
	progress time.Time
	gone     bool
	sending  bool
}

type message struct {
	kind    kind
	payload []byte
	more    more
}

func newClient(conn *net.UnixConn) *client {
	c := &client{conn: conn, progress: time.Now()}
	c.changed = sync.NewCond(&c.mu)
	return c
}

func (c *client) tell(k kind, payload []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.queue = append(c.queue, message{kind: k, payload: payload})
	c.changed.Broadcast()
}

func (c *client) tellJSON(k kind, v any) {
	if payload, err := json.Marshal(v); err == nil {
		c.tell(k, payload)
	}
}

// more queues news of recorded output, joined to news that still waits.
func (c *client) more(m more) {
	if !c.wants {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	m.From = max(m.From, c.next[m.Stream]) // the greeting may have told it already
	if m.From >= m.To {
		return
	}
	c.next[m.Stream] = m.To
	defer c.changed.Broadcast()
	for i := len(c.queue) - 1; i >= 0; i-- {
		if q := &c.queue[i]; q.kind == tellMore && q.more.Stream == m.Stream {
			if q.more.To == m.From {
				q.more.To = m.To
				return
			}
			break
		} else if q.kind == inlineKind(m.Stream) {
			break
		}
	}
	c.queue = append(c.queue, message{kind: tellMore, more: m})
}

func inlineKind(stream int) kind {
	if stream == 2 {
		return tellErr
	}
	return tellOut
}

// inline queues output itself and waits while too much of it is under way. It gives up on a client
// that takes nothing.
func (c *client) inline(stream int, data []byte) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.waiting >= inlineRoom && !c.gone {
		if time.Since(c.progress) > inlinePatience {
			return false
		}
		c.mu.Unlock()
		time.Sleep(5 * time.Millisecond)
		c.mu.Lock()
	}
	if c.gone {
		return false
	}
	if c.waiting == 0 {
		c.progress = time.Now()
	}
	c.waiting += len(data)
	c.queue = append(c.queue, message{kind: inlineKind(stream),
		payload: append([]byte(nil), data...)})
	c.changed.Broadcast()
	return true
}

// send writes the queue to the socket until the client goes.
func (c *client) send() {
	for {
		c.mu.Lock()
		c.sending = false
		for len(c.queue) == 0 && !c.gone {
			c.changed.Wait()
		}
		if c.gone {
			c.mu.Unlock()
			return
		}
		m := c.queue[0]
		c.queue = c.queue[1:]
		c.sending = true
		c.mu.Unlock()
		if m.kind == tellMore {
			m.payload = m.more.encode()
		}
		if err := writeMessage(c.conn, m.kind, m.payload); err != nil {
			c.leave()
			return
		}
		c.mu.Lock()
		c.progress = time.Now()
		if m.kind == tellOut || m.kind == tellErr {
			c.waiting -= len(m.payload)
		}
		c.mu.Unlock()
	}
}

func (c *client) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gone = true
	c.conn.Close()
	c.changed.Broadcast()
}

// flush waits until the client has been told everything, as long as it keeps taking.
func (c *client) flush(patience time.Duration) {
	for {
		c.mu.Lock()
		over := c.gone || (len(c.queue) == 0 && !c.sending) || time.Since(c.progress) > patience
		c.mu.Unlock()
		if over {
			return
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// accept serves clients until the listener is closed.
func (k *keeper) accept() {
	for {
		conn, err := k.listener.AcceptUnix()
		if err != nil {
			return
		}
		if sameUser(conn) != nil {
			conn.Close()
			continue
		}
		go k.serve(newClient(conn))
	}
}

// serve hears one client until it goes.
func (k *keeper) serve(c *client) {
	defer k.drop(c)
	r := bufio.NewReaderSize(c.conn, 4096)
	what, payload, err := readMessage(r)
	var greeting hello
	if err != nil || what != sayHello || json.Unmarshal(payload, &greeting) != nil {
		return
	}
	k.welcome(c, greeting)
	go c.send()
	for {
		what, payload, err := readMessage(r)
		if err != nil {
			return
		}
		k.hear(what, payload)
	}
}

// welcome greets a client with the state, and a front end with the output recorded so far.
func (k *keeper) welcome(c *client, greeting hello) {
	// Output locks come before the keeper's; holding both, nothing can be written between what is
	// said here and the first news the client gets as a member.
	for _, o := range k.outputs[1:] {
		o.mu.Lock()
		defer o.mu.Unlock()
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	c.role, c.wants = greeting.Role, greeting.Role == "front" || greeting.Role == "attach"
	state, _ := json.Marshal(k.state)
	if c.role == "monitor" {
		c.tellJSON(tellLaunch, k.launch)
	}
	c.tell(tellState, state)
	for i, from := range []int64{greeting.Out, greeting.Err} {
		o := k.outputs[i+1]
		if from < 0 {
			from = o.end
		}
		c.next[i+1] = from
		c.more(more{Stream: i + 1, From: from, To: o.end})
	}
	if k.state.Exit != nil {
		exit, _ := json.Marshal(k.state.Exit)
		c.tell(tellExited, exit)
	}
	if k.state.Finished {
		c.tell(tellFinished, state)
	}
	k.clients[c] = true
}

func (k *keeper) drop(c *client) {
	k.mu.Lock()
	delete(k.clients, c)
	k.mu.Unlock()
	c.leave()
}

// hear acts on one message. Malformed ones are ignored: they can only come from the user's own
// processes.
func (k *keeper) hear(what kind, payload []byte) {
	switch what {
	case sayLaunch:
		var launch Launch
		if json.Unmarshal(payload, &launch) == nil {
			select {
			case k.launches <- launch:
			default:
			}
		}
	case sayInput:
		select {
		case k.typed <- payload:
		default:
			k.say("input",
				"what was typed is lost from here on: the command has not read the last %d MiB",
				waitingKeys*4>>10)
		}
	case sayEnd:
		if stream, err := strconv.Atoi(string(payload)); err == nil &&
			(stream == 1 || stream == 2) {
			k.outputs[stream].closed()
		}
	case saySize:
		var size Size
		if json.Unmarshal(payload, &size) == nil {
			k.resize(size)
		}
	case saySignal:
		var r signalRequest
		if json.Unmarshal(payload, &r) == nil {
			k.signal(r)
		}
	case sayFinding:
		k.mu.Lock()
		k.broadcast(tellFinding, payload)
		k.mu.Unlock()
	case sayContinue:
		k.signal(signalRequest{Number: int(syscall.SIGCONT), Group: true})
	case sayDone:
		select {
		case k.done <- struct{}{}:
		default:
		}
	}
}

func (k *keeper) resize(size Size) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.launch.Size = size
	if k.pty != nil {
		k.pty.resize(size)
	}
}

// broadcast tells every client; the caller holds the lock.
func (k *keeper) broadcast(what kind, payload []byte) {
	for c := range k.clients {
		c.tell(what, payload)
	}
}

func (k *keeper) broadcastJSON(what kind, v any) {
	payload, err := json.Marshal(v)
	if err == nil {
		k.broadcast(what, payload)
	}
}

// startMonitor starts the process that watches. Its words go to a file in the run's folder.
func (k *keeper) startMonitor(args []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(args) == 0 {
		k.noMonitor = true
		return
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		k.noMonitor = true
		return
	}
	defer null.Close()
	log := null
	if f, err := os.OpenFile(k.files.Dir+"/monitor.log", os.O_WRONLY|os.O_CREATE|os.O_APPEND,
		0o600); err == nil {
		log = f
		defer f.Close()
	}
	pid, err := syscall.ForkExec("/proc/self/exe", args, &syscall.ProcAttr{Env: os.Environ(),
		Files: []uintptr{null.Fd(), null.Fd(), log.Fd()}, Sys: &syscall.SysProcAttr{Setpgid: true}})
	if err != nil {
		k.state.Notes = append(k.state.Notes, "monitor: "+err.Error())
		k.noMonitor = true
		return
	}
	k.state.Monitor, k.monitorBorn = pid, time.Now()
}

// monitorEnded starts another one, later each time when they do not live; after the command's end
// it tries a few times and no more. The caller holds the lock.
func (k *keeper) monitorEnded() {
	k.state.Monitor = 0
	if time.Since(k.monitorBorn) > 10*time.Second {
		k.monitorPause = 0
	}
	k.monitorPause = min(max(50*time.Millisecond, 2*k.monitorPause), 5*time.Second)
	if k.state.Exit != nil {
		k.monitorDeaths++
	}
	if k.state.Finished || k.monitorDeaths > 3 {
		k.noMonitor = true
		return
	}
	args, pause := k.monitorArgs(), k.monitorPause
	time.AfterFunc(pause, func() {
		if !k.nothingToCome() {
			k.startMonitor(args)
		}
	})
}

func (k *keeper) monitorArgs() []string { return k.launch.Monitor }

// awaitMonitor gives the monitor a moment to come up, so that it hears the probe from the command's
// first line on.
func (k *keeper) awaitMonitor() {
	for range 200 {
		k.mu.Lock()
		ready := k.noMonitor
		for c := range k.clients {
			ready = ready || c.role == "monitor"
		}
		k.mu.Unlock()
		if ready {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
}
