package store

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"time"

	"memroom/event"
)

// Decode reads one record: an object whose fields have the types of T and whose times are between
// the years that records can have. Everything that a run's folder holds is read by it, whoever
// wrote it.
func Decode[T any](data []byte) (v T, err error) {
	if data = bytes.TrimSpace(data); len(data) == 0 || data[0] != '{' {
		return v, errors.New("it is not an object of JSON")
	}
	if err := json.Unmarshal(data, &v); err != nil {
		var none T
		return none, err
	}
	if err := checkTimes(reflect.ValueOf(v)); err != nil {
		var none T
		return none, err
	}
	return v, nil
}

// Years of a record. Between them every time can be written in every zone, and the difference of
// any two is a time.Duration. A machine that has lost its clock is in 1970.
const (
	firstYear = 1970
	lastYear  = 2200
)

// ValidTime reports whether a record can hold a time. The zero time stands for none.
func ValidTime(t time.Time) bool {
	year := t.UTC().Year()
	return t.IsZero() || year >= firstYear && year <= lastYear
}

var timeType = reflect.TypeFor[time.Time]()

// checkTimes looks for a time that no record can hold.
func checkTimes(v reflect.Value) error {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			return checkTimes(v.Elem())
		}
	case reflect.Slice:
		if kind := v.Type().Elem().Kind(); kind != reflect.Struct && kind != reflect.Pointer {
			return nil
		}
		for i := range v.Len() {
			if err := checkTimes(v.Index(i)); err != nil {
				return err
			}
		}
	case reflect.Struct:
		if v.Type() == timeType {
			if t := v.Interface().(time.Time); !ValidTime(t) {
				return fmt.Errorf("a time in it is not between %d and %d", firstYear, lastYear)
			}
			return nil
		}
		for i := range v.NumField() {
			if !v.Type().Field(i).IsExported() {
				continue
			}
			if err := checkTimes(v.Field(i)); err != nil {
				return err
			}
		}
	}
	return nil
}

// deepest bounds how far the values of a record are nested. Ours have a tenth of it.
const deepest = 100

// Check reports what is wrong with a record that came from elsewhere and would be kept as the file
// of this name in the folder of a run: nothing that it lets pass is damaged to those who read it.
func Check(name string, data []byte) error {
	if !json.Valid(data) {
		return errors.New("it is not JSON")
	}
	if depth(data) > deepest {
		return fmt.Errorf("it is nested deeper than %d levels", deepest)
	}
	var err error
	switch name {
	case runFile:
		var run event.Run
		run, err = Decode[event.Run](data)
		switch {
		case err != nil:
		case !ValidID(run.ID):
			err = fmt.Errorf("%.40q is not the ID of a run", run.ID)
		case run.Started.IsZero():
			err = errors.New("it does not say when the run started")
		}
	case stateFile:
		_, err = Decode[keeperState](data)
	case exitFile:
		_, err = Decode[event.Exit](data)
	case verdictFile:
		_, err = Decode[event.Verdict](data)
	case summaryFile:
		_, err = Decode[event.Summary](data)
	default:
		_, err = Decode[map[string]any](data)
	}
	return err
}

// depth is how far the values of a valid JSON text are nested.
func depth(data []byte) (most int) {
	level, inText := 0, false
	for i := 0; i < len(data); i++ {
		switch c := data[i]; {
		case inText && c == '\\':
			i++
		case c == '"':
			inText = !inText
		case inText:
		case c == '{' || c == '[':
			level++
			most = max(most, level)
		case c == '}' || c == ']':
			level--
		}
	}
	return most
}
