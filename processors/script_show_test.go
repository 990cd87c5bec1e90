package processors

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/event/wire"
	"github.com/forge-platform/strom/state"
)

// seconds reads a time: seconds, or RFC 3339. It gives microseconds.
func seconds(text string) int64 {
	if at, err := time.Parse(time.RFC3339, text); err == nil {
		return at.UnixMicro()
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return math.MinInt64
	}
	return int64(math.Round(f * 1e6))
}

func watermark(text string) event.Watermark {
	if text == "end" {
		return event.WatermarkEnd
	}
	return event.Watermark(seconds(text)) // "unknown" is WatermarkUnknown
}

// showTime prints a time near 1970 in seconds, others as RFC 3339.
func showTime(micros int64) string {
	switch {
	case micros == math.MinInt64:
		return "unknown"
	case micros == math.MaxInt64:
		return "end"
	case micros > -1e13 && micros < 1e13:
		return strconv.FormatFloat(float64(micros)/1e6, 'f', -1, 64)
	}
	return event.EventTime(micros).String()
}

func showEpoch(n event.Epoch) string {
	if n == math.MaxInt64 {
		return "any"
	}
	return n.String()
}

// parseRecord reads TIMESTAMP JSON, TIMESTAMP null or TIMESTAMP FIELD=VALUE...
func parseRecord(line string) (Record, error) {
	stamp, body, _ := strings.Cut(line, " ")
	r := Record{Timestamp: NoTimestamp}
	if stamp != "-" {
		r.Timestamp = event.EventTime(seconds(stamp))
	}
	switch body = strings.TrimSpace(body); {
	case body == "null":
		return r, nil
	case strings.HasPrefix(body, "{"):
		r.Value = []byte(body)
		return r, nil
	}
	var fields []string
	for f := range strings.FieldsSeq(body) {
		name, text, ok := strings.Cut(f, "=")
		if !ok {
			return r, fmt.Errorf("%q is not FIELD=VALUE", f)
		}
		if _, err := strconv.ParseFloat(text, 64); err != nil {
			text = strconv.Quote(text)
		}
		fields = append(fields, strconv.Quote(name)+":"+text)
	}
	r.Value = []byte("{" + strings.Join(fields, ",") + "}")
	return r, nil
}

// parseAnswer reads NUMBER unknown, or NUMBER version=N VALUE=X...
func parseAnswer(line string) (Answer, error) {
	var a Answer
	words := strings.Fields(line)
	n, err := strconv.ParseUint(words[0], 10, 64)
	if err != nil {
		return a, err
	}
	a.Number = n
	for _, w := range words[1:] {
		name, text, found := strings.Cut(w, "=")
		a.Found = a.Found || found
		switch {
		case name == "version":
			v, err := strconv.ParseUint(text, 10, 32)
			if err != nil {
				return a, err
			}
			a.Version = uint32(v)
		case found:
			a.Properties = append(a.Properties, event.Property{Name: name, Value: event.Value{Text: text}})
		}
	}
	return a, nil
}

func showWindow(id string, from, to event.EventTime) string {
	return fmt.Sprintf("%s [%s, %s)", id, showTime(int64(from)), showTime(int64(to)))
}

func showProperties(ps []event.Property) string {
	var out strings.Builder
	for _, p := range ps {
		fmt.Fprintf(&out, " %s=%s", p.Name, p.Value)
	}
	return out.String()
}

func showResult(r *event.Result) string {
	from := fmt.Sprintf("by %s/%s", r.Place.Partition, r.Place.Offset)
	if r.Lateness != 0 {
		from += fmt.Sprintf(", %s late", showTime(r.Lateness))
	}
	if r.Kind == event.RowPut {
		return fmt.Sprintf("put %s from %s:%s (%s)\n", r.ID, showTime(int64(r.ValidFrom)), showProperties(r.Properties), from)
	}
	return fmt.Sprintf("%s %s version %d %s:%s (%s)\n", r.Aggregate, showWindow(r.ID, r.ValidFrom, r.ValidTo),
		r.Version, r.Cause, showProperties(r.Properties), from)
}

func showReadBack(rb ReadBack) string {
	return fmt.Sprintf("read-back %d: %s %s after epoch %s\n", rb.Number, rb.Aggregate, showWindow(rb.ID, rb.Start, rb.End), rb.After)
}

func showNext(n Next) string {
	switch {
	case !n.Known:
		return "unknown"
	case n.None:
		return "none"
	}
	return showTime(int64(n.Timestamp))
}

func showCounters(c Counters) string {
	raw, err := json.Marshal(c)
	if err != nil {
		return err.Error()
	}
	var m map[string]int64
	if err := json.Unmarshal(raw, &m); err != nil {
		return err.Error()
	}
	var out []string
	for name, n := range m {
		if n != 0 {
			out = append(out, fmt.Sprintf("%s=%d", name, n))
		}
	}
	sort.Strings(out)
	return "counted " + strings.Join(out, " ")
}

func flags(words ...any) string {
	var out strings.Builder
	for i := 0; i+1 < len(words); i += 2 {
		if set, ok := words[i+1].(bool); ok && set {
			fmt.Fprintf(&out, ", %s", words[i])
		}
	}
	return out.String()
}

func showAck(a *Ack) string {
	out := fmt.Sprintf("acknowledges %s: watermark %s, next %s%s", a.Epoch, showTime(int64(a.Watermark)), showNext(a.Next),
		flags("at end", a.AtEnd, "idle", a.Idle, "quiet", a.Quiet, "halted", a.Halted != ""))
	if a.Waiting > 0 {
		out += fmt.Sprintf(", %d wait, answered up to %s", a.Waiting, a.Answered)
	}
	return out + "\n"
}

func showAnnouncement(a *Announcement) string {
	out := fmt.Sprintf("barrier %s at %s", a.Epoch, showTime(int64(a.Recorded)))
	var names []string
	for s := range a.Watermarks {
		names = append(names, s)
	}
	sort.Strings(names)
	for _, s := range names {
		out += fmt.Sprintf(", %s complete to %s", s, showTime(int64(a.Watermarks[s])))
	}
	for _, t := range a.Idle {
		out += fmt.Sprintf(", %s/%s idle", t.Stage, t.Partition)
	}
	return out + fmt.Sprintf(", granted up to %s%s\n", a.Granted, flags("hold", a.Hold, "end", a.End))
}

// showReached prints what a task hands over, and what it streams.
func (s *script) showReached(t *scripted, tombstones [][]byte) (string, error) {
	r := t.handed
	var out strings.Builder
	fmt.Fprintf(&out, "barrier %s at %s: read to %s, watermark %s, next %s%s\n", r.Barrier.Epoch, showTime(int64(r.Barrier.Recorded)),
		r.Offsets[0], showTime(int64(r.Watermark)), showNext(r.Next),
		flags("at end", r.AtEnd, "idle", r.Idle, "quiet", r.Quiet))
	if r.Halted != "" {
		fmt.Fprintf(&out, "  halted: %s\n", r.Halted)
	}
	for _, o := range t.outputs {
		text, err := s.showOutput(t, o)
		if err != nil {
			return "", err
		}
		out.WriteString("  " + text)
	}
	for _, d := range r.DeadLetters {
		fmt.Fprintf(&out, "  dead letter %s: %s %q\n", d.Place.Offset, d.Reject.Reason, d.Record.Value)
	}
	for _, rb := range r.ReadBacks {
		out.WriteString("  " + showReadBack(rb))
	}
	for _, c := range r.Layer.Changes() {
		text, err := s.showEntry(c.Key, c.Value)
		if err != nil {
			return "", err
		}
		out.WriteString("  state: " + text)
	}
	for _, k := range tombstones {
		text, err := s.showEntry(k, nil)
		if err != nil {
			return "", err
		}
		out.WriteString("  expired: " + text)
	}
	return out.String(), nil
}

func (s *script) showOutput(t *scripted, o Output) (string, error) {
	if o.Topic == 0 {
		r, err := event.DecodeResult(o.Value)
		if err != nil {
			return "", err
		}
		return showResult(&r), nil
	}
	c, err := event.DecodeContribution(o.Key, o.Value)
	if err != nil {
		return "", err
	}
	topic := t.stage.Outputs[o.Topic]
	below := topic[strings.Index(topic, ".aggregate.")+1:]
	return fmt.Sprintf("row to %s/%s: %s at %s\n", strings.TrimSuffix(below, "-repartition"),
		event.PartitionOf(o.Key, s.below(topic)), c.ID, showTime(int64(c.Time))), nil
}

// showEntry prints an entry of a store or changelog; a nil value is a tombstone.
func (s *script) showEntry(key, value []byte) (string, error) {
	gone := ""
	if value == nil {
		gone = " gone"
	}
	switch key[0] {
	case state.KeyProgress:
		return "", nil // tests of their own
	case state.KeyIDBlock:
		return fmt.Sprintf("ids of bucket %d, epoch %d%s\n", state.BucketOf(key), wire.Ordered64(key[9:]), gone), nil
	case state.KeyID:
		return fmt.Sprintf("id %s in bucket %d\n", key[9:], state.BucketOf(key)), nil
	case state.KeyParked:
		return s.showParked(key, value)
	case state.KeyPane:
		return s.showPane(key, value, gone)
	}
	return fmt.Sprintf("%q = %q\n", key, value), nil
}

func (s *script) showPane(key, value []byte, gone string) (string, error) {
	for _, a := range s.topology.Plan.Aggregates {
		keys := newPaneKeys(a)
		if !bytes.HasPrefix(key, keys.prefix) {
			continue
		}
		w, id, err := keys.parse(key)
		if err != nil {
			return "", err
		}
		out := fmt.Sprintf("%s %s%s", a.Name, showWindow(id, w.Start, w.End), gone)
		if value != nil {
			p := pane{acc: a.Layout.New()}
			if err := p.decode(a.Layout, value); err != nil {
				return "", err
			}
			out += fmt.Sprintf(" %d events", p.acc.Events())
			if p.version > 0 {
				out += fmt.Sprintf(", published %d", p.version)
			}
		}
		return out + "\n", nil
	}
	return "", fmt.Errorf("a pane of no aggregate: %q", key)
}

func (s *script) showParked(key, value []byte) (string, error) {
	n := wire.Ordered64(key[1:])
	if value == nil {
		return fmt.Sprintf("parked %d gone\n", n), nil
	}
	p, err := decodeParked(key, value, func(name string) *aggregator {
		for _, a := range s.topology.Plan.Aggregates {
			if a.StageName() == name {
				return &aggregator{agg: a}
			}
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("parked %d: %s of epoch %s, after %s, %d events\n", n, showWindow(p.id, p.window.Start, p.window.End),
		p.epoch, p.after, p.acc.Events()), nil
}
