package bench

import (
	"strconv"
	"time"
)

// appendEvent appends event i as JSON, and gives its key. A bid has about 200
// bytes, a person 250, an auction 500.
func (n *nexmark) appendEvent(dst []byte, i int64) (key int64, json []byte) {
	switch k, before := kindOf(i); k {
	case persons:
		return firstID + before, n.appendPerson(dst, i, firstID+before)
	case auctions:
		return firstID + before, n.appendAuction(dst, i, firstID+before)
	case bids:
	}
	b, d := n.bid(i)
	return b.auction, appendBid(dst, &b, d)
}

func (n *nexmark) appendPerson(dst []byte, i, id int64) []byte {
	d := n.dice(i)
	dst = appendNumber(dst, `{"id":`, id)
	dst = append(dst, `,"name":"`...)
	dst = d.word(append(d.word(dst), ' '))
	dst = append(dst, `","emailAddress":"`...)
	dst = d.word(append(d.word(dst), '@'))
	dst = append(dst, `.example","creditCard":"`...)
	for part := range 4 {
		if part > 0 {
			dst = append(dst, ' ')
		}
		dst = appendDigits(dst, uint64(d.roll(10_000)), 4)
	}
	dst = d.word(append(dst, `","city":"`...))
	dst = d.letters(append(dst, `","state":"`...), 2)
	return d.extra(appendTime(append(dst, '"'), `,"dateTime":"`, n.at(i)), 40)
}

func (n *nexmark) appendAuction(dst []byte, i, id int64) []byte {
	d := n.dice(i)
	seller, expires := n.seller(i, &d), n.expires(i, &d)
	initial := d.price()
	dst = appendNumber(dst, `{"id":`, id)
	dst = d.word(append(dst, `,"itemName":"`...))
	dst = append(dst, `","description":"`...)
	for range 4 + d.roll(5) {
		dst = append(d.word(dst), ' ')
	}
	dst = d.word(dst)
	dst = appendNumber(append(dst, '"'), `,"initialBid":`, initial)
	dst = appendNumber(dst, `,"reserve":`, initial+d.price())
	dst = appendTime(dst, `,"dateTime":"`, n.at(i))
	dst = appendTime(dst, `,"expires":"`, expires)
	dst = appendNumber(dst, `,"seller":`, seller)
	dst = appendNumber(dst, `,"category":`, 10+d.roll(5))
	return d.extra(dst, 220)
}

func appendBid(dst []byte, b *bid, d dice) []byte {
	dst = appendNumber(dst, `{"auction":`, b.auction)
	dst = appendNumber(dst, `,"bidder":`, b.bidder)
	dst = appendNumber(dst, `,"price":`, b.price)
	channel := d.roll(10_000)
	dst = appendNumber(dst, `,"channel":"channel-`, channel)
	dst = d.word(append(dst, `","url":"https://`...))
	dst = appendNumber(dst, `.example/item?channel=`, channel)
	return d.extra(appendTime(append(dst, '"'), `,"dateTime":"`, b.at), 24)
}

func appendNumber(dst []byte, before string, v int64) []byte {
	return strconv.AppendInt(append(dst, before...), v, 10)
}

// appendTime appends a time in RFC 3339, with the quote behind it.
func appendTime(dst []byte, before string, at int64) []byte {
	dst = time.UnixMilli(at).UTC().AppendFormat(append(dst, before...), "2006-01-02T15:04:05.000Z")
	return append(dst, '"')
}

// extra appends what only makes an event as long as is usual, of n letters more or
// less, and ends the object.
func (d *dice) extra(dst []byte, n int64) []byte {
	dst = d.letters(append(dst, `,"extra":"`...), n/2+d.roll(n))
	return append(dst, `"}`...)
}

// letters appends n letters.
func (d *dice) letters(dst []byte, n int64) []byte {
	const most = 12 // that 64 bits give, evenly enough
	for n > 0 {
		bits := d.next()
		for range min(n, most) {
			dst = append(dst, byte('a'+bits%26))
			bits /= 26
		}
		n -= most
	}
	return dst
}

// syllables make words.
var syllables = [...]string{
	"ba", "dor", "fel", "gu", "hin", "ja", "ko", "lir", "mo", "nes", "pu", "ra", "sil", "ta", "vun", "ze",
}

// word appends two to four syllables.
func (d *dice) word(dst []byte) []byte {
	bits := d.next()
	for range 2 + bits>>62%3 {
		dst = append(dst, syllables[bits%uint64(len(syllables))]...)
		bits /= uint64(len(syllables))
	}
	return dst
}
