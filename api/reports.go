package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"memroom/central"
	"memroom/relay"
)

// mostPacked bounds one request of a sender as it travels.
const mostPacked = 8 << 20

// receiver opens the database of reports at the first one: a server that gets none writes nothing.
func (s *Server) receiver() (*central.Central, error) {
	if s.options.Receive == nil {
		return nil, failed(http.StatusNotImplemented, "this server takes no reports")
	}
	c, err := s.options.Receive()
	if err != nil {
		return nil, reportFailure(err)
	}
	return c, nil
}

// takeHello returns a run of another machine its place here.
func (s *Server) takeHello(w http.ResponseWriter, r *http.Request) error {
	body, err := readBody(w, r, 64<<10)
	if err != nil {
		return err
	}
	var hello relay.Hello
	if err := json.Unmarshal(body, &hello); err != nil {
		return failed(http.StatusBadRequest, "a report begins with key, id, host and now_ms as JSON")
	}
	if !relay.ValidKey(hello.Key) {
		return failed(http.StatusBadRequest, "key: 32 hexadecimal digits that the sender makes up")
	}
	if folder, ok := s.options.Store.Lookup(hello.ID); ok {
		if state, err := relay.ReadState(folder.Dir); err == nil && state.Key == hello.Key {
			return answer(w, relay.Welcome{ID: folder.ID, Own: true, Files: map[string]int64{}})
		}
	}
	if !s.guard.carried(r) {
		return s.guard.unknown(w, "reports need a token")
	}
	c, err := s.receiver()
	if err != nil {
		return err
	}
	welcome, err := c.Hello(hello, time.Now())
	if err != nil {
		return reportFailure(err)
	}
	return answer(w, welcome)
}

// takeFrames stores pieces of a record. The answer holds how much of each file is stored.
func (s *Server) takeFrames(w http.ResponseWriter, r *http.Request) error {
	c, err := s.receiver()
	if err != nil {
		return err
	}
	body, err := readBody(w, r, mostPacked)
	if err != nil {
		return err
	}
	frames, err := relay.Unpack(bytes.NewReader(body))
	if err != nil {
		return failed(http.StatusBadRequest, "%v", err)
	}
	files, err := c.Add(r.PathValue("key"), frames, time.Now())
	var place *central.PlaceError
	if errors.As(err, &place) {
		return answerStatus(w, http.StatusConflict, map[string]any{"error": place.Error(),
			"status": http.StatusConflict, "files": place.Files})
	}
	var large *central.LargeError
	if errors.As(err, &large) {
		return answerStatus(w, http.StatusRequestEntityTooLarge, map[string]any{
			"error": large.Error(), "status": http.StatusRequestEntityTooLarge, "file": large.File})
	}
	var damaged *central.FileError
	if errors.As(err, &damaged) {
		return answerStatus(w, http.StatusUnprocessableEntity, map[string]any{
			"error": damaged.Error(), "status": http.StatusUnprocessableEntity, "file": damaged.File})
	}
	if err != nil {
		return reportFailure(err)
	}
	s.reported.Add(1)
	return answer(w, map[string]any{"files": files})
}

// reportFailure reports whether coming again helps: a sender keeps what it has until it does.
func reportFailure(err error) error {
	switch {
	case errors.Is(err, central.ErrFull):
		return failed(http.StatusInsufficientStorage, "%v: the sender keeps the record and tries again",
			err)
	case errors.Is(err, central.ErrAway):
		return failed(http.StatusServiceUnavailable, "%v: the sender keeps the record and tries again",
			err)
	case errors.Is(err, central.ErrUnknown):
		return failed(http.StatusGone, "%v: begin with POST /api/reports", err)
	case errors.Is(err, central.ErrBad):
		return failed(http.StatusBadRequest, "%v", err)
	}
	return err
}

func answerStatus(w http.ResponseWriter, status int, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Content-Length", strconv.Itoa(len(data)))
	w.WriteHeader(status)
	_, _ = w.Write(data)
	return nil
}
