package event

// PartitionOf returns the partition of key among n partitions, as Kafka's Java
// producers choose it: murmur2 of the key's bytes, without the sign, modulo n.
func PartitionOf(key []byte, n int32) Partition {
	if n <= 1 {
		return 0
	}
	return Partition(int32(murmur2(key)&0x7fffffff) % n)
}

// murmur2 is the 32-bit MurmurHash2 with the seed that Kafka uses
// (org.apache.kafka.common.utils.Utils.murmur2).
func murmur2(b []byte) uint32 {
	const (
		seed uint32 = 0x9747b28c
		m    uint32 = 0x5bd1e995
	)
	h := seed ^ uint32(len(b))
	for len(b) >= 4 {
		k := uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16 | uint32(b[3])<<24
		b = b[4:]
		k *= m
		k ^= k >> 24
		k *= m
		h *= m
		h ^= k
	}
	switch len(b) {
	case 3:
		h ^= uint32(b[2]) << 16
		fallthrough
	case 2:
		h ^= uint32(b[1]) << 8
		fallthrough
	case 1:
		h ^= uint32(b[0])
		h *= m
	}
	h ^= h >> 13
	h *= m
	h ^= h >> 15
	return h
}
