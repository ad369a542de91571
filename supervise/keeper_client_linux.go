package supervise

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"memroom/event"
)

// client is a connected front end or monitor. Messages to it wait in a queue, so that a slow one
// holds up nobody; "there is more in the file" messages merge while they wait, which keeps the
// queue short.
type client struct {
	conn  *net.UnixConn
	wants bool     // to see output
	role  role     // empty until it has said hello
	next  [3]int64 // where the news of each stream goes on

	mu       sync.Mutex
	changed  *sync.Cond
	queue    []message
	waiting  int // bytes of inline output in the queue
	progress time.Time
	dropped  int64 // bytes of output it did not get since the last note
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
	m.From = max(m.From, c.next[m.Stream]) // the greeting may have had it already
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

// inline queues output itself and waits while more than the room is under way. It drops the output
// of a client that takes nothing. When the client goes on, a note stands where output is missing.
func (c *client) inline(stream int, data []byte, room func() int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.waiting >= room() && !c.gone {
		if time.Since(c.progress) > inlinePatience {
			c.dropped += int64(len(data))
			return false
		}
		c.mu.Unlock()
		time.Sleep(5 * time.Millisecond)
		c.mu.Lock()
	}
	if c.gone {
		return false
	}
	c.tellDropped()
	if c.waiting == 0 {
		c.progress = time.Now()
	}
	c.waiting += len(data)
	c.queue = append(c.queue, message{kind: inlineKind(stream),
		payload: append([]byte(nil), data...)})
	c.changed.Broadcast()
	return true
}

// tellDropped queues a note about output that the client did not get. The caller holds the lock.
func (c *client) tellDropped() {
	if c.dropped == 0 {
		return
	}
	text := fmt.Sprintf("%s of output are missing here: the disk is full, and nothing was read "+
		"from memroom for %v", event.Bytes(c.dropped), inlinePatience)
	c.dropped = 0
	c.queue = append(c.queue, message{kind: tellNote, payload: []byte(text)})
	c.changed.Broadcast()
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

// flush waits until the client has received everything. The front end that started the run may take
// its time: the command has ended, and nobody else waits. flush stops waiting for others when they
// take nothing for a while.
func (c *client) flush() {
	for {
		c.mu.Lock()
		over := c.gone || len(c.queue) == 0 && !c.sending ||
			c.role != roleFront && time.Since(c.progress) > inlinePatience
		c.mu.Unlock()
		if over {
			return
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// accept serves those who attach until the listener is closed. The kernel names their user: a
// socket without a file has no permissions, and those of a file may have been changed.
func (k *keeper) accept() {
	for {
		conn, err := k.listener.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(100 * time.Millisecond) // out of descriptors, for instance
			continue
		}
		if checkPeer(conn, os.Geteuid()) != nil {
			conn.Close()
			continue
		}
		go k.serve(newClient(conn), roleAttach)
	}
}

// serve hears one client until it goes. How the client came decides which role it may have.
func (k *keeper) serve(c *client, granted role) {
	defer k.drop(c)
	r := bufio.NewReaderSize(c.conn, 4096)
	what, payload, err := readMessage(r)
	var greeting hello
	if err != nil || what != sayHello || json.Unmarshal(payload, &greeting) != nil ||
		greeting.Role != granted {
		return
	}
	k.welcome(c, greeting)
	go c.send()
	for {
		what, payload, err := readMessage(r)
		if err != nil {
			return
		}
		k.hear(c.role, what, payload)
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
	c.role, c.wants = greeting.Role, greeting.Role != roleMonitor
	state, _ := json.Marshal(k.state)
	if c.role == roleMonitor {
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

// hear acts on one message. Malformed ones are ignored, and those that the client's role does not
// allow: they can only come from the user's own processes.
func (k *keeper) hear(from role, what kind, payload []byte) {
	switch what {
	case sayLaunch:
		k.hearLaunch(from, payload)
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
		if json.Unmarshal(payload, &r) == nil && (!r.All || from == roleMonitor) {
			k.signal(r)
		}
	case sayFinding:
		if from == roleMonitor {
			k.mu.Lock()
			k.broadcast(tellFinding, payload)
			k.mu.Unlock()
		}
	case sayContinue:
		k.signal(signalRequest{Number: int(syscall.SIGCONT), Group: true})
	case sayDone:
		if from == roleMonitor {
			select {
			case k.done <- struct{}{}:
			default:
			}
		}
	}
}

// hearLaunch takes the first launch from the front end, and further ones from the monitor where
// its policy decides. Nobody else may start a command.
func (k *keeper) hearLaunch(from role, payload []byte) {
	var launch Launch
	if json.Unmarshal(payload, &launch) != nil {
		return
	}
	k.mu.Lock()
	allowed := from == roleFront && !k.launched || from == roleMonitor && k.launch.Policy
	k.launched = k.launched || allowed
	k.mu.Unlock()
	if !allowed {
		return
	}
	select {
	case k.launches <- launch:
	default:
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

// broadcast sends a message to every client; the caller holds the lock.
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

// startMonitor starts the process that watches, with a link to us. What it prints goes to a file
// in the run's folder.
func (k *keeper) startMonitor() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.launch.Monitor) == 0 {
		k.noMonitor = true
		return
	}
	pid, link, err := k.forkMonitor(k.launch.Monitor)
	if err != nil {
		k.state.Notes = append(k.state.Notes, "memroom could not start to watch: "+err.Error())
		k.noMonitor = true
		return
	}
	k.state.Monitor, k.monitorBorn = pid, time.Now()
	settings := k.launch.Settings
	go func() {
		c := newClient(link.conn)
		if writeMessage(link.conn, tellSettings, settings) != nil {
			c.leave()
			return
		}
		k.serve(c, roleMonitor)
	}()
}

func (k *keeper) forkMonitor(args []string) (pid int, link *Link, err error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return 0, nil, err
	}
	defer null.Close()
	log := null
	if f, err := os.OpenFile(k.files.Dir+"/monitor.log", os.O_WRONLY|os.O_CREATE|os.O_APPEND,
		0o600); err == nil {
		log = f
		defer f.Close()
	}
	link, theirs, err := newLink()
	if err != nil {
		return 0, nil, err
	}
	defer theirs.Close()
	pid, err = syscall.ForkExec("/proc/self/exe", args, &syscall.ProcAttr{Env: os.Environ(),
		Files: []uintptr{null.Fd(), null.Fd(), log.Fd(), theirs.Fd()},
		Sys:   &syscall.SysProcAttr{Setpgid: true}})
	if err != nil {
		link.Close()
	}
	return pid, link, err
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
	time.AfterFunc(k.monitorPause, func() {
		if !k.nothingToCome() {
			k.startMonitor()
		}
	})
}

// monitorPatience bounds how long the command waits for its monitor. A monitor needs a tenth of a
// second; on a machine with a hundred busy processes it needs several.
const monitorPatience = 20 * time.Second

// awaitMonitor waits until the monitor listens, so that it hears the probe from the command's first
// line on. A monitor that ended is not waited for.
func (k *keeper) awaitMonitor() {
	for began := time.Now(); time.Since(began) < monitorPatience; {
		k.mu.Lock()
		ready := k.noMonitor || k.monitorPause > 0
		for c := range k.clients {
			ready = ready || c.role == roleMonitor
		}
		k.mu.Unlock()
		if ready {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
}
