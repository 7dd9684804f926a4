package compare

import (
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"garboard/tools/conformance/internal/client"
	"garboard/tools/conformance/internal/ops"
)

func sides() (*client.Side, *client.Side) {
	return client.NewSide("oracle", 10, 11), client.NewSide("subject", 20, 21)
}

func same(t *testing.T, op ops.Op, o, u ops.Outcome) bool {
	t.Helper()
	oracle, subject := sides()
	_, ok := Outcomes(op, oracle, &o, subject, &u)
	return ok
}

func reply(m proto.Message) ops.Outcome { return ops.Outcome{Replies: []proto.Message{m}} }

func put(cluster, member, term uint64, revision int64) ops.Outcome {
	return reply(&pb.PutResponse{
		Header: &pb.ResponseHeader{ClusterId: cluster, MemberId: member, RaftTerm: term, Revision: revision}})
}

func TestOwnIDsAndTermsAreNoDifference(t *testing.T) {
	if !same(t, &ops.Unary{}, put(10, 11, 2, 5), put(20, 21, 9, 5)) {
		t.Error("only ids and terms differ")
	}
}

func TestMissingIDsAndTermsAreADifference(t *testing.T) {
	for _, bad := range []ops.Outcome{put(0, 21, 2, 5), put(20, 0, 2, 5), put(20, 21, 0, 5), put(10, 21, 2, 5)} {
		if same(t, &ops.Unary{}, put(10, 11, 2, 5), bad) {
			t.Errorf("not noticed: %v", bad.Replies[0])
		}
	}
}

func TestARevisionIsADifference(t *testing.T) {
	if same(t, &ops.Unary{}, put(10, 11, 2, 5), put(20, 21, 2, 6)) {
		t.Error("not noticed")
	}
}

func TestCodeAndTextAreDifferences(t *testing.T) {
	o := ops.Outcome{Code: codes.InvalidArgument, Text: "etcdserver: key is not provided"}
	if same(t, &ops.Unary{}, o, ops.Outcome{Code: codes.Unknown, Text: o.Text}) {
		t.Error("code not noticed")
	}
	if same(t, &ops.Unary{}, o, ops.Outcome{Code: o.Code, Text: "key is not provided"}) {
		t.Error("text not noticed")
	}
}

func TestGoVariesTheBlankInItsProtobufErrors(t *testing.T) {
	o := ops.Outcome{Code: codes.Internal, Text: "proto:\u00a0cannot parse"}
	if !same(t, &ops.Unary{}, o, ops.Outcome{Code: codes.Internal, Text: "proto: cannot parse"}) {
		t.Error("a hard blank counts as a difference")
	}
}

func TestABrokenRuleIsADifference(t *testing.T) {
	bad := put(20, 21, 2, 5)
	bad.Notes = []string{"two headers"}
	if same(t, &ops.Unary{}, put(10, 11, 2, 5), bad) {
		t.Error("not noticed")
	}
}

func rows(count int64, keys ...string) ops.Outcome {
	r := &pb.RangeResponse{Header: &pb.ResponseHeader{}, Count: count}
	for _, k := range keys {
		r.Kvs = append(r.Kvs, &mvccpb.KeyValue{Key: []byte(k), Version: int64(k[0])})
	}
	return reply(r)
}

func byVersion() ops.Op {
	return &ops.Unary{Req: &pb.RangeRequest{SortTarget: pb.RangeRequest_VERSION, SortOrder: pb.RangeRequest_ASCEND}}
}

func TestTiesMayComeInAnyOrderWhenManyRowsWereSorted(t *testing.T) {
	if !same(t, byVersion(), rows(13, "a1", "a2", "b1"), rows(13, "a2", "a1", "b1")) {
		t.Error("the order of ties counts")
	}
	if same(t, byVersion(), rows(13, "a1", "a2", "b1"), rows(13, "a1", "b1", "a2")) {
		t.Error("a wrong order of different rows is not noticed")
	}
	if same(t, byVersion(), rows(13, "a1", "a2"), rows(13, "a1", "a3")) {
		t.Error("another row is not noticed")
	}
}

func TestTiesComeInKeyOrderWhenFewRowsWereSorted(t *testing.T) {
	if same(t, byVersion(), rows(12, "a1", "a2"), rows(12, "a2", "a1")) {
		t.Error("not noticed")
	}
}

func TestRemainingTTLMayDifferByASecond(t *testing.T) {
	ttl := func(v int64) ops.Outcome { return reply(&pb.LeaseTimeToLiveResponse{ID: 1, TTL: v, GrantedTTL: 100}) }
	if !same(t, &ops.Unary{}, ttl(99), ttl(98)) {
		t.Error("a second counts")
	}
	if same(t, &ops.Unary{}, ttl(99), ttl(97)) || same(t, &ops.Unary{}, ttl(1), ttl(0)) || same(t, &ops.Unary{}, ttl(-1), ttl(0)) {
		t.Error("not noticed")
	}
}

func TestPickedLeaseIDsAreTranslated(t *testing.T) {
	oracle, subject := sides()
	subject.AddAlias(777, 555)
	o, u := &pb.LeaseLeasesResponse{Leases: []*pb.LeaseStatus{{ID: 555}}}, &pb.LeaseLeasesResponse{Leases: []*pb.LeaseStatus{{ID: 777}}}
	if diff, ok := Messages(oracle, o, subject, u); !ok {
		t.Error(diff)
	}
}
