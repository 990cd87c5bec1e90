package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/forge-platform/strom/event"
	"github.com/forge-platform/strom/mapping"
	"github.com/forge-platform/strom/processors"
)

// EndedError says that another generation has taken the place of this one.
type EndedError struct {
	Pipeline         string
	Generation, Next event.Generation
	Savepoint        string
}

// Error says what to do as well.
func (e *EndedError) Error() string {
	return fmt.Sprintf("generation %s of pipeline %q has ended: savepoint %s was restored as generation %s; start this replica again, to run that one (if it says this once more, the restore was interrupted: run strom checkpoints restore again)",
		e.Generation, e.Pipeline, e.Savepoint, e.Next)
}

func (e *Engine) ended(r *controlRecord) error {
	return &EndedError{Pipeline: e.topology.Plan.Pipeline, Generation: e.topology.Generation, Next: r.Generation, Savepoint: r.Savepoint}
}

// origin is what a generation begins with that was restored from a savepoint.
type origin struct {
	// from is the generation before.
	from event.Generation
	// applied is the last epoch that the ontology has from it, repeats the last
	// that is repeated: the same, or one more that it had committed in part.
	applied, repeats event.Epoch
}

// UnknownGenerationError says that a generation does not begin as one does.
type UnknownGenerationError struct {
	Pipeline   string
	Generation event.Generation
	Topic      string
}

// Error says what to do as well.
func (e *UnknownGenerationError) Error() string {
	return fmt.Sprintf("the ontology says that pipeline %q is at generation %s, but topic %q does not begin with what that was restored from: it was deleted, or this is another Kafka; restore the pipeline's topics, or restore a savepoint again",
		e.Pipeline, e.Generation, e.Topic)
}

// findOrigin refuses a generation that has ended, and finds out what this one
// begins with.
func (e *Engine) findOrigin(ctx context.Context, log *controlLog) error {
	// A restore that was interrupted has left an end that leads nowhere.
	for _, r := range slices.Backward(log.pending) {
		if r.Kind == kindEnded {
			return e.ended(&r)
		}
	}
	if e.topology.Generation <= 1 {
		return nil
	}
	r, err := e.firstControlRecord(ctx)
	switch {
	case err != nil:
		return err
	case r == nil:
		return nil // it is trimmed: long past what was repeated
	case r.Kind != kindOrigin:
		return &UnknownGenerationError{Pipeline: e.topology.Plan.Pipeline, Generation: e.topology.Generation, Topic: e.topology.ControlTopic()}
	}
	e.origin = origin{from: r.Generation, applied: r.Applied, repeats: r.Repeats}
	return nil
}

// firstControlRecord gives the record at offset 0 of the control topic; nil
// where the topic begins later.
func (e *Engine) firstControlRecord(ctx context.Context) (*controlRecord, error) {
	b, err := partitionBounds(ctx, kadm.NewClient(e.client), e.topology.ControlTopic(), 0)
	if err != nil {
		return nil, err
	}
	switch {
	case b.start > 0:
		return nil, nil //nolint:nilnil // documented
	case b.stable == 0:
		return &controlRecord{}, nil
	}
	log, err := e.controlFrom(0)
	if err != nil {
		return nil, err
	}
	defer log.close()
	recs, err := log.read(ctx)
	if err != nil {
		return nil, err
	}
	return &recs[0], nil
}

// repeats reads the barriers that a restored generation repeats, one by one:
// there may be many.
type repeats struct {
	log   *controlLog
	queue []controlRecord
}

// openRepeats opens them at the beginning of the control topic.
func (e *Engine) openRepeats() (*repeats, error) {
	if e.origin.repeats == 0 {
		return &repeats{}, nil
	}
	log, err := e.controlFrom(0)
	return &repeats{log: log}, err
}

func (r *repeats) close() {
	if r.log != nil {
		r.log.close()
	}
}

// feed gives the coordinator the barrier that it repeats next, if any is left.
func (r *repeats) feed(ctx context.Context, c *processors.Coordinator) error {
	n, repeating := c.Repeating()
	if c.Last().Epoch == 0 {
		return nil // it has not heard yet where the log stands
	}
	for repeating {
		for len(r.queue) == 0 {
			recs, err := r.log.read(ctx)
			if err != nil {
				return err
			}
			r.queue = recs
		}
		first := &r.queue[0]
		switch {
		case first.Kind == kindOrigin, first.Kind == kindRepeat && first.Epoch < n:
			r.queue = r.queue[1:]
		case first.Kind == kindRepeat && first.Epoch == n:
			c.Repeat(first.announcement())
			return nil
		default:
			return fmt.Errorf("%w: %s does not hold barrier %s, which is to be repeated", event.ErrCorrupt, r.log.topic, n)
		}
	}
	return nil
}

// generations lists the generations of a pipeline that have a control topic.
func generations(topics kadm.TopicDetails, pipeline string) []event.Generation {
	var out []event.Generation
	for name := range topics {
		rest, ours := strings.CutPrefix(name, "strom."+pipeline+".g")
		number, control := strings.CutSuffix(rest, ".control")
		if g, err := strconv.ParseInt(number, 10, 32); ours && control && err == nil {
			out = append(out, event.Generation(g))
		}
	}
	slices.Sort(out)
	return out
}

// CurrentGeneration gives the generation that a pipeline is at as Kafka has it:
// the first whose control topic is there, or the last of those that follow it,
// each named by the end of the one before. 0 where there is none. What counts is
// what the ontology has registered; this is for where that cannot be asked.
func CurrentGeneration(ctx context.Context, k mapping.Kafka, pipeline string, log *slog.Logger) (event.Generation, error) {
	plan := &mapping.Plan{Pipeline: pipeline}
	e := New(Config{Topology: processors.NewTopology(plan, 1), Kafka: k, Log: log})
	if err := e.connect(ctx); err != nil {
		return 0, err
	}
	defer e.client.Close()
	topics, err := kadm.NewClient(e.client).ListTopics(ctx)
	if err != nil {
		return 0, fmt.Errorf("list topics: %w", err)
	}
	there := generations(topics, pipeline)
	if len(there) == 0 {
		return 0, nil
	}
	for g := there[0]; ; {
		e.topology = processors.NewTopology(plan, g)
		next, err := e.successor(ctx)
		if err != nil || next <= g || !slices.Contains(there, next) {
			return g, err
		}
		g = next
	}
}

// successor gives the generation that has taken the place of this one, 0 if none.
func (e *Engine) successor(ctx context.Context) (event.Generation, error) {
	log, err := e.openControlLog(ctx, false)
	if err != nil {
		return 0, err
	}
	defer log.close()
	err = e.findOrigin(ctx, log)
	if ended, ok := errors.AsType[*EndedError](err); ok {
		return ended.Next, nil
	}
	return 0, nil
}
