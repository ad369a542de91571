package remote

import (
	"sync"

	"memroom/trial"
)

// serial lets one at a time ask an engine: a resumed study asks at the same time as the loop.
type serial struct {
	mu     sync.Mutex
	engine Engine
}

func (s *serial) Name() string { return s.engine.Name() }

func (s *serial) Capacity() (trial.Capacity, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.engine.Capacity()
}

func (s *serial) Submit(jobs []Job) map[string]error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.engine.Submit(jobs)
}

func (s *serial) Look(ids []string) (map[string]Status, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.engine.Look(ids)
}

func (s *serial) Output(id string, from int64) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.engine.Output(id, from)
}

func (s *serial) Stop(id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.engine.Stop(id)
}
