package ontology

import (
	"errors"
	"io"
	"testing"
)

func TestAReasonIsToldOnce(t *testing.T) {
	refused, other := errors.New("refused"), io.ErrUnexpectedEOF
	got := once(errors.Join(refused, errors.New("refused"), other, other))
	if got.Error() != "refused; unexpected EOF" || !errors.Is(got, refused) || !errors.Is(got, other) {
		t.Errorf("%v", got)
	}
	if got := once(refused); !errors.Is(got, refused) || got.Error() != "refused" {
		t.Errorf("%v", got)
	}
}
