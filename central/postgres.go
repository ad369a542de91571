package central

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"memroom/relay"
)

// postgres is one connection, made again when it has broken.
type postgres struct {
	config *pgconn.Config
	conn   *pgconn.PgConn
}

// answerWithin bounds one exchange with the server.
const answerWithin = 20 * time.Second

// serveLock is the number of the advisory lock that the one memroom serve of a database holds.
const serveLock = 7226667 // no meaning: any number that others are unlikely to use

func openPostgres(address string) (*postgres, error) {
	config, err := pgconn.ParseConfig(address)
	if err != nil {
		// The driver's words quote the address, and a password with it.
		return nil, errors.New("--db: this is not a PostgreSQL address: write " +
			"postgres://USER@HOST:5432/NAME, and put the password in PGPASSWORD or ~/.pgpass")
	}
	config.RuntimeParams["application_name"] = "memroom serve"
	p := &postgres{config: config}
	return p, p.connect()
}

// name is for the folder of copies: another database has another one.
func (p *postgres) name() string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %d %s", p.config.Host, p.config.Port,
		p.config.Database))
	return hex.EncodeToString(sum[:4])
}

func (p *postgres) connect() error {
	ctx, stop := context.WithTimeout(context.Background(), answerWithin)
	defer stop()
	conn, err := pgconn.ConnectConfig(ctx, p.config)
	if err != nil {
		return fmt.Errorf("%w: %v", ErrAway, err)
	}
	p.conn = conn
	if err = p.lock(); err == nil {
		err = p.prepare()
	}
	if err != nil {
		p.drop()
	}
	return err
}

// lock makes sure that no other memroom serve has the database. The server notices a little late
// that one has gone.
func (p *postgres) lock() error {
	for try := range 15 {
		locked := false
		err := p.query(func(c [][]byte) error { locked = string(c[0]) == "t"; return nil },
			"SELECT pg_try_advisory_lock($1)", strconv.Itoa(serveLock))
		if err != nil || locked {
			return err
		}
		time.Sleep(time.Duration(try) * 20 * time.Millisecond)
	}
	return fmt.Errorf("%w: another memroom serve has this database open: end that one first",
		ErrAway)
}

func (p *postgres) prepare() error {
	ctx, stop := context.WithTimeout(context.Background(), answerWithin)
	defer stop()
	if _, err := p.conn.Exec(ctx, fmt.Sprintf(tables, "BYTEA")).ReadAll(); err != nil {
		return p.meaning(err)
	}
	version := int64(0)
	err := p.query(func(c [][]byte) (err error) {
		version, err = strconv.ParseInt(string(c[0]), 10, 64)
		return err
	}, "SELECT version FROM memroom_meta")
	switch {
	case err != nil:
		return err
	case version > tablesVersion:
		return newerTables(version)
	case version == 0:
		return p.query(nil, "INSERT INTO memroom_meta VALUES ($1)", strconv.Itoa(tablesVersion))
	}
	return nil
}

// ready connects again where the connection has broken.
func (p *postgres) ready() error {
	if p.conn != nil && !p.conn.IsClosed() {
		return nil
	}
	return p.connect()
}

func (p *postgres) drop() {
	if p.conn != nil {
		ctx, stop := context.WithTimeout(context.Background(), time.Second)
		defer stop()
		_ = p.conn.Close(ctx)
		p.conn = nil
	}
}

// query runs one statement; arguments are texts, or bytes for bytea.
func (p *postgres) query(each func(columns [][]byte) error, text string, args ...any) error {
	ctx, stop := context.WithTimeout(context.Background(), answerWithin)
	defer stop()
	values, formats := make([][]byte, len(args)), make([]int16, len(args))
	for i, a := range args {
		switch v := a.(type) {
		case string: // a text of PostgreSQL holds no zero byte
			values[i] = []byte(strings.ReplaceAll(v, "\x00", ""))
		case []byte:
			values[i], formats[i] = v, 1
		}
	}
	reader := p.conn.ExecParams(ctx, text, values, nil, formats, nil)
	var failed error
	for reader.NextRow() {
		if failed == nil && each != nil {
			failed = each(reader.Values())
		}
	}
	if _, err := reader.Close(); err != nil {
		return p.meaning(err)
	}
	return failed
}

// within runs statements in a transaction.
func (p *postgres) within(work func() error) error {
	if err := p.ready(); err != nil {
		return err
	}
	if err := p.query(nil, "BEGIN"); err != nil {
		return err
	}
	err := work()
	if err == nil {
		err = p.query(nil, "COMMIT")
	}
	if err != nil {
		// After a failure the state of the connection is unknown; a new one is clean. Whether a
		// COMMIT got through shows when the sender comes again: pieces are put in by their place.
		p.drop()
	}
	return err
}

func (p *postgres) load() (rows []row, files map[string]map[string]int64, err error) {
	files = map[string]map[string]int64{}
	err = p.within(func() error {
		err := p.query(func(c [][]byte) error {
			ahead, err1 := strconv.ParseInt(string(c[4]), 10, 64)
			first, err2 := strconv.ParseInt(string(c[5]), 10, 64)
			rows = append(rows, row{string(c[0]), string(c[1]), string(c[2]), string(c[3]), ahead,
				time.UnixMilli(first)})
			return errors.Join(err1, err2)
		}, "SELECT key, id, sent, host, ahead_ms, first_ms FROM memroom_runs")
		if err != nil {
			return err
		}
		return p.query(func(c [][]byte) error {
			size, err := strconv.ParseInt(string(c[2]), 10, 64)
			addFile(files, string(c[0]), string(c[1]), size)
			return err
		}, "SELECT key, name, size FROM memroom_files")
	})
	return rows, files, err
}

func (p *postgres) create(r row) error {
	return p.within(func() error {
		return p.query(nil, "INSERT INTO memroom_runs VALUES ($1, $2, $3, $4, $5, $6) "+
			"ON CONFLICT (key) DO NOTHING", r.Key, r.ID, r.Sent, r.Host,
			strconv.FormatInt(r.Ahead, 10), strconv.FormatInt(r.First.UnixMilli(), 10))
	})
}

func (p *postgres) add(key string, frames []relay.Frame, sizes map[string]int64) error {
	return p.within(func() error {
		for _, f := range frames {
			data, err := pack(f.Data)
			if err != nil {
				return err
			}
			if err := p.query(nil, "INSERT INTO memroom_pieces VALUES ($1, $2, $3, $4) "+
				"ON CONFLICT (key, name, at) DO UPDATE SET data = excluded.data", key, f.File,
				strconv.FormatInt(f.At, 10), data); err != nil {
				return err
			}
		}
		for name, size := range sizes {
			if err := p.query(nil, "INSERT INTO memroom_files VALUES ($1, $2, $3) "+
				"ON CONFLICT (key, name) DO UPDATE SET size = excluded.size", key, name,
				strconv.FormatInt(size, 10)); err != nil {
				return err
			}
		}
		return nil
	})
}

func (p *postgres) pieces(key, file string, yield func([]byte) error) error {
	return p.within(func() error {
		ctx, stop := context.WithTimeout(context.Background(), 10*answerWithin)
		defer stop()
		reader := p.conn.ExecParams(ctx, "SELECT data FROM memroom_pieces WHERE key = $1 AND "+
			"name = $2 ORDER BY at", [][]byte{[]byte(key), []byte(file)}, nil, nil, []int16{1})
		var failed error
		for reader.NextRow() {
			if failed != nil {
				continue
			}
			var data []byte
			if data, failed = unpack(reader.Values()[0]); failed == nil {
				failed = yield(data)
			}
		}
		if _, err := reader.Close(); err != nil {
			return p.meaning(err)
		}
		return failed
	})
}

func (p *postgres) remove(key string) error {
	return p.within(func() error {
		for _, table := range keyed {
			if err := p.query(nil, "DELETE FROM "+table+" WHERE key = $1", key); err != nil {
				return err
			}
		}
		return nil
	})
}

func (p *postgres) close() error {
	p.drop()
	return nil
}

// meaning turns an error of PostgreSQL into one that a sender can act on.
func (p *postgres) meaning(err error) error {
	var said *pgconn.PgError
	if !errors.As(err, &said) {
		return fmt.Errorf("%w: %v", ErrAway, err)
	}
	switch {
	case said.Code == "53100":
		return fmt.Errorf("%w: %s", ErrFull, said.Message)
	case strings.HasPrefix(said.Code, "53"), strings.HasPrefix(said.Code, "57"),
		strings.HasPrefix(said.Code, "08"), said.Code == "25006": // no room, shutting down, read only
		return fmt.Errorf("%w: %s", ErrAway, said.Message)
	}
	return err
}
