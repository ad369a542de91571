// Package probe carries the Python that lives in the user's process, and speaks with it. The Python
// is under py/: it is embedded, written to a folder by [Install], and put in front of PYTHONPATH by
// [Setup.Environ]. Each Python of a job then connects to the socket of a [Listener], which hands
// over decoded messages ([Hello], [Steps], [OOM], ...) and takes commands ([Command]). The protocol
// is in docs/format/probe.md; golden lines hold both sides to it.
//
// Package supervise imports it, and cli for the rehearsal.
package probe
