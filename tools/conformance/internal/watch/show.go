package watch

import (
	"fmt"
	"slices"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"

	"garboard/tools/conformance/internal/ops"
)

func show(m proto.Message) string { return strings.Join(ops.ShowLines(m), "\n") }

func describeReply(resp *pb.WatchResponse, ok bool, s *sideStream) string {
	if ok {
		return show(resp)
	}
	return "nothing " + s.failure()
}

func showEvents(events []*mvccpb.Event, s *sideStream) string {
	const shown = 10
	lines := []string{fmt.Sprintf("%d events %s", len(events), s.failure())}
	for i, ev := range events {
		if i == shown {
			lines = append(lines, "…")
			break
		}
		lines = append(lines, ops.Show(ev))
	}
	return strings.Join(lines, "\n")
}

func sorted(ids []int64) []int64 {
	slices.Sort(ids)
	return ids
}
