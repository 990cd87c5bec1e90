//go:build strom_next

package state

// NewestFormat is one more than that of the real build: tests of a rolling
// upgrade run a build with this tag beside it.
const NewestFormat = FormatOldest + 1

// upgrade puts in what a format has beyond the one before.
func (p *Progress) upgrade(f Format) {
	p.Next = ""
	if f > FormatOldest {
		p.Next = "a field of the next format"
	}
}
