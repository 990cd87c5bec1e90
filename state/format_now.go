//go:build !strom_next

package state

// NewestFormat is the newest format that this build reads and can write.
const NewestFormat = FormatOldest

// upgrade puts in what a format has beyond the one before.
func (p *Progress) upgrade(Format) {}
