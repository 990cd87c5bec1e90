package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/forge-platform/strom/cmd/strom/internal/ui"
	"github.com/forge-platform/strom/kafka"
)

// statusTable writes a status for people.
type statusTable struct {
	*statusJSON
	out   io.Writer
	style ui.Style
}

func (s *statusTable) print() error {
	generation := ""
	if s.Ontology != nil && s.Ontology.Generation > 1 {
		generation = ", generation " + s.Ontology.Generation.String()
	}
	s.line("pipeline %s%s: %s", s.style.Bold(s.Pipeline), generation, s.epochText())
	if s.MappingSince != "" {
		s.line("mapping version %s, in force since epoch %s, recorded time %s", s.Mapping, s.MappingSinceEpoch, s.MappingSince)
	}
	for _, stream := range slices.Sorted(maps.Keys(s.Watermarks)) {
		s.line("watermark of %s: %s", stream, s.Watermarks[stream])
	}
	for _, h := range s.WatermarksHeldBy {
		s.line("  %s: held by partition %s: %s", h.Stream, h.Partition, ui.Printable(h.Why))
	}
	s.line("since it began: %s; %s", ui.Number(s.Totals.Events, "event"), countersText(s.total))
	s.line("lag of the input topics: %s", ui.Number(s.Lag, "offset"))
	s.ownerless()
	s.line("")
	if err := s.tasks(); err != nil {
		return err
	}
	s.line("")
	return s.horizon()
}

func (s *statusTable) line(format string, args ...any) { fmt.Fprintf(s.out, format+"\n", args...) }

func (s *statusTable) epochText() string {
	if s.Recorded == nil {
		return "no epoch has been announced yet"
	}
	text := fmt.Sprintf("epoch %s, recorded time %s", s.Epoch, *s.Recorded)
	if s.Ended {
		return text + ", which ended its input"
	}
	text += fmt.Sprintf(", announced %s ago by %s", ageText(seconds(*s.Age)), *s.AnnouncedBy)
	switch {
	case s.idle():
	case s.Coordinator.State != kafka.OwnerHas.String():
		text += "; " + ownerText(s.Coordinator, "announces the next one")
	case s.Coordinator.Replica != *s.AnnouncedBy:
		text += fmt.Sprintf("; %s announces the next one", s.Coordinator.Replica)
	}
	if s.Holding {
		text += "; its sources wait until late events that are parked have been read back"
	}
	return text
}

// idle says that nobody has any task.
func (s *statusJSON) idle() bool {
	return !slices.ContainsFunc(s.Tasks, func(t taskStatusJSON) bool { return t.Owner.State != kafka.OwnerNobody.String() })
}

// ownerless names the tasks that nobody has, unless the pipeline has ended or is
// stopped as a whole.
func (s *statusTable) ownerless() {
	switch {
	case s.Ended || len(s.Tasks) == 0:
	case s.idle():
		s.line("%s", s.style.Bad("nobody runs this pipeline"))
	default:
		for i := range s.Tasks {
			if t := &s.Tasks[i]; t.Owner.State == kafka.OwnerNobody.String() {
				s.line("%s", s.style.Bad(fmt.Sprintf("stage %s partition %s: %s", t.Stage, t.Partition, taskOwner(t))))
			}
		}
	}
}

func (s *statusTable) tasks() error {
	t := &ui.Table{Style: s.style, Heads: []string{
		"STAGE", ">PARTITION", "OWNER", ">EPOCH", "WATERMARK", "STATE", ">PARKED", ">EVENTS", ">DEAD LETTERS", ">LAG", "INPUT",
	}}
	for i := range s.Tasks {
		j := &s.Tasks[i]
		watermark, lag := "", int64(0)
		if j.Watermark != nil {
			watermark = *j.Watermark
		}
		for _, in := range j.Inputs {
			lag += in.Lag
		}
		t.Row(j.Stage, j.Partition.String(), ownerCell(j.Owner), j.Epoch.String(), watermark, s.state(j), ui.Count(j.Parked),
			ui.Count(j.Counters.Events), ui.Count(j.Counters.DeadLetters), ui.Count(lag), inputsText(j.Inputs))
	}
	return t.Write(s.out)
}

func ownerCell(o ownerJSON) string {
	if o.State == kafka.OwnerHas.String() {
		return o.Replica
	}
	return o.State
}

func (s *statusTable) state(t *taskStatusJSON) string {
	switch {
	case s.Ended && t.Epoch == s.Epoch:
		return "ended"
	case t.Halted != "":
		return "halted: " + t.Halted
	case t.Owner.State == kafka.OwnerNobody.String():
		return "stopped"
	case t.Owner.State == kafka.OwnerRebalancing.String():
		return "waiting for an owner"
	case t.Owner.State == kafka.OwnerHas.String() && (t.AcknowledgedBy == nil || *t.AcknowledgedBy != t.Owner.Replica):
		return "being taken over"
	case t.Idle:
		return "idle"
	case t.AtEnd && t.Source:
		return "at the end"
	}
	return "running"
}

func inputsText(inputs []inputJSON) string {
	parts := make([]string, len(inputs))
	for i, in := range inputs {
		parts[i] = fmt.Sprintf("%s %s of %s", in.Topic, in.Offset, in.End)
	}
	return strings.Join(parts, ", ")
}

func (s *statusTable) horizon() error {
	o := s.Ontology
	switch {
	case s.OntologyError != "":
		s.line("ontology: no answer, see the error")
	case o == nil:
		s.line("ontology: not asked (no --postgres, no STROM_POSTGRES, none in a mapping)")
	case !o.Registered:
		s.line("ontology: this pipeline has not written to it")
	case o.Horizon == nil:
		s.line("safe horizon: none yet, no epoch is complete")
	case o.Age == nil || s.Ended:
		s.line("safe horizon: %s", *o.Horizon)
	default:
		s.line("safe horizon: %s, announced %s ago", *o.Horizon, ageText(seconds(*o.Age)))
	}
	for i := range s.HeldBy {
		s.line("  held back: %s", ui.Printable(s.heldText(&s.HeldBy[i])))
	}
	if o == nil || !o.Registered {
		return nil
	}
	if o.Behind == 0 {
		s.line("the ontology has every epoch")
	} else {
		s.line("the ontology is %s behind", ui.Number(o.Behind, "epoch"))
	}
	t := &ui.Table{Style: s.style, Heads: []string{">RESULTS PARTITION", "OWNER", ">EPOCH", "RECORDED", ">NEXT OFFSET"}}
	for _, p := range o.Partitions {
		recorded := ""
		if p.Recorded != nil {
			recorded = *p.Recorded
		}
		t.Row(p.Partition.String(), ownerCell(p.Owner), p.Epoch.String(), recorded, p.Offset.String())
	}
	return t.Write(s.out)
}

func (s *statusTable) heldText(h *holderJSON) string {
	text := h.Why
	if h.Stage == kafka.SinkName {
		text = "sink: " + text
	}
	if h.Since != nil {
		text += fmt.Sprintf(" (since %s)", *h.Since)
	}
	return text
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// ageText gives a length of time as precisely as anybody wants to know.
func ageText(d time.Duration) string {
	switch {
	case d < 10*time.Second:
		return fmt.Sprintf("%.1f s", max(0, d).Seconds())
	case d < 2*time.Minute:
		return fmt.Sprintf("%.0f s", d.Seconds())
	case d < 2*time.Hour:
		return fmt.Sprintf("%.0f min", d.Minutes())
	case d < 48*time.Hour:
		return fmt.Sprintf("%.0f h", d.Hours())
	}
	return ui.Number(int64(d.Hours()/24), "day")
}
