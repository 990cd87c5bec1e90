package embedded

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"
)

// sealID is the transactional id of the broker itself.
const sealID = "strom-embedded-restart"

// runningFile is there from Start to Stop, so that Start can tell a restart from
// the return after a kill.
const runningFile = "running"

// markRunning returns true if the last broker on this directory was killed.
func markRunning(dir string) (killed bool, err error) {
	path := filepath.Join(dir, runningFile)
	if _, err := os.Stat(path); err == nil {
		return true, nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	return false, os.WriteFile(path, nil, 0o600)
}

// seal ends the logs whose last batch belongs to a transaction that died with the
// broker.
//
// kfake remembers such a transaction as aborted but writes no marker. A consumer
// that reads committed records, and control records to know how far it has come,
// would then never see the log's last offset, and one that waits for that offset
// (a table that is being recovered) would wait for ever. A real broker always
// writes the marker. So we end each such log with an abort marker of our own: it
// belongs to a transaction without records and changes nothing else.
func (b *Broker) seal(ctx context.Context) error {
	versions := kversion.Stable()
	versions.SetMaxKeyVersion(int16(kmsg.AddPartitionsToTxn), 3) // the form of clients
	versions.SetMaxKeyVersion(int16(kmsg.EndTxn), 4)
	client, err := kgo.NewClient(kgo.SeedBrokers(b.addrs...), kgo.MaxVersions(versions), kgo.TransactionalID(sealID))
	if err != nil {
		return err
	}
	defer client.Close()
	dangling, err := b.dangling(ctx, kadm.NewClient(client))
	if err != nil || len(dangling) == 0 {
		return err
	}
	id, epoch, err := client.ProducerID(ctx)
	if err != nil {
		return err
	}
	add := kmsg.NewPtrAddPartitionsToTxnRequest()
	add.TransactionalID, add.ProducerID, add.ProducerEpoch = sealID, id, epoch
	for topic, partitions := range dangling {
		t := kmsg.NewAddPartitionsToTxnRequestTopic()
		t.Topic, t.Partitions = topic, partitions
		add.Topics = append(add.Topics, t)
	}
	added, err := add.RequestWith(ctx, client)
	if err != nil {
		return err
	}
	for _, t := range added.Topics {
		for _, p := range t.Partitions {
			if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
				return fmt.Errorf("%s partition %d: %w", t.Topic, p.Partition, err)
			}
		}
	}
	end := kmsg.NewPtrEndTxnRequest()
	end.TransactionalID, end.ProducerID, end.ProducerEpoch = sealID, id, epoch
	ended, err := end.RequestWith(ctx, client)
	if err != nil {
		return err
	}
	return kerr.ErrorForCode(ended.ErrorCode)
}

// dangling are the partitions that end in a transactional batch that no open
// transaction owns.
func (b *Broker) dangling(ctx context.Context, admin *kadm.Client) (map[string][]int32, error) {
	ends, err := admin.ListEndOffsets(ctx)
	if err != nil {
		return nil, err
	}
	stable, err := admin.ListCommittedOffsets(ctx)
	if err != nil {
		return nil, err
	}
	starts, err := admin.ListStartOffsets(ctx)
	if err != nil {
		return nil, err
	}
	last := make(map[string]map[int32]kgo.Offset)
	left := 0
	ends.Each(func(o kadm.ListedOffset) {
		start, _ := starts.Lookup(o.Topic, o.Partition)
		lso, _ := stable.Lookup(o.Topic, o.Partition)
		if o.Err != nil || o.Offset <= start.Offset || lso.Offset != o.Offset {
			return
		}
		if last[o.Topic] == nil {
			last[o.Topic] = make(map[int32]kgo.Offset)
		}
		last[o.Topic][o.Partition] = kgo.NewOffset().At(o.Offset - 1)
		left++
	})
	if left == 0 {
		return nil, nil
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(b.addrs...), kgo.ConsumePartitions(last), kgo.KeepControlRecords())
	if err != nil {
		return nil, err
	}
	defer client.Close()
	found := make(map[string][]int32)
	for left > 0 {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return nil, err
		}
		fetches.EachRecord(func(r *kgo.Record) {
			left--
			if r.Attrs.IsTransactional() && !r.Attrs.IsControl() && !slices.Contains(found[r.Topic], r.Partition) {
				found[r.Topic] = append(found[r.Topic], r.Partition)
			}
		})
	}
	return found, nil
}
