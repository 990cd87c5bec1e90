package mapping

import (
	"fmt"
	"sort"
	"strings"
)

// suggest gives "did you mean x?" for the nearest of the known words, or
// nothing where none is near.
func suggest(word string, known []string) string {
	if near := nearest(word, known); near != "" {
		return fmt.Sprintf("did you mean %s?", near)
	}
	return ""
}

func nearest(word string, known []string) string {
	best, least := "", max(1, len(word)/3)+1
	for _, k := range known {
		if len(word) > 3 && strings.HasPrefix(k, word) {
			return k
		}
		if d := editDistance(strings.ToLower(word), strings.ToLower(k)); d < least {
			best, least = k, d
		}
	}
	return best
}

// The bounds of the search for a near word: a file of a megabyte with a fault
// in every line is answered at once all the same.
const (
	maxSuggested = 200  // words that are compared
	maxAdvised   = 1000 // faults that get advice
)

// adviseOneOf gives the nearest word, or the list of what is allowed.
func (r *reader) adviseOneOf(word string, known []string) string {
	if len(r.faults) > maxAdvised {
		return ""
	}
	known = known[:min(len(known), maxSuggested)]
	if s := suggest(word, known); s != "" {
		return s
	}
	sorted := append([]string(nil), known...)
	sort.Strings(sorted)
	return "one of " + strings.Join(sorted, ", ")
}

// editDistance counts the insertions, deletions, replacements and swaps of
// neighbours that make b of a (optimal string alignment).
func editDistance(a, b string) int {
	const longest = 64
	if len(a) > longest || len(b) > longest {
		return longest
	}
	before, prev, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(prev[j]+1, row[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, prev, row = prev, row, before
	}
	return prev[len(b)]
}
