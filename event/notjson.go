package event

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// NotJSON returns why a file of somebody's was not read as JSON: the place, and what to mend.
func NotJSON(data []byte, err error) error {
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF),
		err.Error() == "unexpected end of JSON input":
		return errors.New("it is not JSON: it ends too early; is a bracket or a quote missing?")
	case errors.As(err, &syntax):
		return fmt.Errorf("it is not JSON: %s has %q where something else belongs; is a comma, a quote "+
			"or a value missing, or one too many?", place(data, syntax.Offset),
			data[max(0, syntax.Offset-1)])
	case errors.As(err, &kind) && kind.Field == "":
		return fmt.Errorf("it is JSON, but not an object (%s): write {\"name\": value, ...}", kind.Value)
	case errors.As(err, &kind):
		return fmt.Errorf("%s has a %s for %q, which takes another kind of value",
			place(data, kind.Offset), kind.Value, kind.Field)
	}
	return err
}

// place returns the line and the column of the last of so many bytes.
func place(data []byte, count int64) string {
	before := data[:min(max(count, 0), int64(len(data)))]
	return fmt.Sprintf("line %d, column %d", 1+bytes.Count(before, []byte("\n")),
		len(before)-1-bytes.LastIndexByte(before, '\n'))
}
