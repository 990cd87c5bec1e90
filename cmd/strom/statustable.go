package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/forge-platform/strom/cmd/strom/internal/ui"
)

// printStatus writes a status for people.
func (a *app) printStatus(s *statusJSON) error {
	st := a.style()
	fmt.Fprintf(a.stdout, "pipeline %s: %s\n", st.Bold(s.Pipeline), epochText(s))
	for _, stream := range slices.Sorted(maps.Keys(s.Watermarks)) {
		fmt.Fprintf(a.stdout, "watermark of %s: %s\n", stream, s.Watermarks[stream])
	}
	fmt.Fprintf(a.stdout, "since it began: %s; %s\n", ui.Number(s.Totals.Events, "event"), countersText(s.total))
	fmt.Fprintf(a.stdout, "lag of the input topics: %s\n\n", ui.Number(s.Lag, "offset"))
	t := &ui.Table{Style: st, Heads: []string{"STAGE", ">PARTITION", ">EPOCH", "WATERMARK", "STATE", ">PARKED", ">EVENTS", ">DEAD LETTERS", ">LAG", "INPUT"}}
	for i := range s.Tasks {
		j := &s.Tasks[i]
		watermark, lag := "", int64(0)
		if j.Watermark != nil {
			watermark = *j.Watermark
		}
		for _, in := range j.Inputs {
			lag += in.Lag
		}
		t.Row(j.Stage, j.Partition.String(), j.Epoch.String(), watermark, taskState(s, j), ui.Count(j.Parked),
			ui.Count(j.Counters.Events), ui.Count(j.Counters.DeadLetters), ui.Count(lag), inputsText(j.Inputs))
	}
	if err := t.Write(a.stdout); err != nil {
		return err
	}
	fmt.Fprintln(a.stdout)
	if s.OntologyError != "" {
		_, err := fmt.Fprintln(a.stdout, "ontology: no answer, see the error")
		return err
	}
	return a.printHorizon(s.Ontology)
}

func epochText(s *statusJSON) string {
	if s.Recorded == nil {
		return "no epoch has been announced yet"
	}
	text := fmt.Sprintf("epoch %s, recorded time %s", s.Epoch, *s.Recorded)
	if s.Ended {
		text += ", which ended its input"
	}
	if s.Holding {
		text += "; its sources wait until late events that are parked have been read back"
	}
	return text
}

func taskState(s *statusJSON, t *taskStatusJSON) string {
	switch {
	case s.Ended && t.Epoch == s.Epoch:
		return "ended"
	case t.Halted != "":
		return "halted: " + t.Halted
	case t.Idle:
		return "idle"
	case t.AtEnd && t.Source:
		return "at the end"
	}
	return "running"
}

func (a *app) printHorizon(o *ontologyStatus) error {
	switch {
	case o == nil:
		fmt.Fprintln(a.stdout, "ontology: not asked (no --postgres, no STROM_POSTGRES, none in a mapping)")
		return nil
	case !o.Registered:
		fmt.Fprintln(a.stdout, "ontology: this pipeline has not written to it")
		return nil
	case o.Horizon == nil:
		fmt.Fprintln(a.stdout, "safe horizon: none yet, no epoch is complete")
	default:
		fmt.Fprintf(a.stdout, "safe horizon: %s\n", *o.Horizon)
	}
	if o.Behind == 0 {
		fmt.Fprintln(a.stdout, "the ontology has every epoch")
	} else {
		names := make([]string, len(o.HeldBackBy))
		for i, p := range o.HeldBackBy {
			names[i] = p.String()
		}
		fmt.Fprintf(a.stdout, "the ontology is %s behind: held back by results partition %s\n", ui.Number(o.Behind, "epoch"), strings.Join(names, ", "))
	}
	t := &ui.Table{Style: a.style(), Heads: []string{">RESULTS PARTITION", ">EPOCH", "RECORDED", ">NEXT OFFSET"}}
	for _, p := range o.Partitions {
		recorded := ""
		if p.Recorded != nil {
			recorded = *p.Recorded
		}
		t.Row(p.Partition.String(), p.Epoch.String(), recorded, p.Offset.String())
	}
	return t.Write(a.stdout)
}
