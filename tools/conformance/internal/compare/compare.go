// Package compare tells whether two servers answered the same, apart from what is each server's own.
package compare

import (
	"bytes"
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"garboard/tools/conformance/internal/client"
	"garboard/tools/conformance/internal/ops"
)

// masked stands for an id that was the server's own.
const masked = 1

// Outcomes compares two answers to one operation. It changes both: what is masked is masked in place.
func Outcomes(op ops.Op, oracle *client.Side, o *ops.Outcome, subject *client.Side, u *ops.Outcome) (string, bool) {
	o.Text, u.Text = Text(o.Text), Text(u.Text)
	if o.Code != u.Code || o.Text != u.Text {
		return "", false
	}
	if len(o.Replies) != len(u.Replies) || len(o.Notes)+len(u.Notes) != 0 {
		return "", false
	}
	for i := range o.Replies {
		loosenTies(op, o.Replies[i], u.Replies[i])
		if diff, same := Messages(oracle, o.Replies[i], subject, u.Replies[i]); !same {
			return diff, false
		}
	}
	return "", true
}

// Text evens out what Go's protobuf library varies between builds: its errors begin with a plain or a hard space, and
// its text form doubles spaces.
func Text(text string) string {
	return strings.Join(strings.Fields(strings.ReplaceAll(text, "\u00a0", " ")), " ")
}

// Messages compares two replies after masking; the returned text says which lines differ.
func Messages(oracle *client.Side, o proto.Message, subject *client.Side, u proto.Message) (string, bool) {
	mask(oracle, o)
	mask(subject, u)
	loosen(o, u)
	if proto.Equal(o, u) {
		return "", true
	}
	return differingLines(ops.ShowLines(o), ops.ShowLines(u)), false
}

// mask replaces what is a server's own by what both have in common.
func mask(side *client.Side, m proto.Message) {
	if m == nil {
		return
	}
	maskHeader(side, m.ProtoReflect())
	switch r := m.(type) {
	case *pb.LeaseGrantResponse:
		r.ID = side.Alias(r.ID)
	case *pb.LeaseTimeToLiveResponse:
		r.ID = side.Alias(r.ID)
		// etcd keeps a lease's keys in a hash map: their order is random.
		slices.SortFunc(r.Keys, bytes.Compare)
	case *pb.LeaseKeepAliveResponse:
		r.ID = side.Alias(r.ID)
	case *pb.LeaseLeasesResponse:
		for _, l := range r.Leases {
			l.ID = side.Alias(l.ID)
		}
	case *pb.AlarmResponse:
		for _, a := range r.Alarms {
			a.MemberID = maskMember(side, a.MemberID)
		}
		sortAlarms(r.Alarms)
	case *pb.StatusResponse:
		maskStatus(side, r)
	case *pb.HashResponse:
		r.Hash = 0
	case *pb.AuthenticateResponse:
		if r.Token != "" {
			r.Token = "token"
		}
	default:
		maskMembers(side, m)
	}
}

func maskHeader(side *client.Side, m protoreflect.Message) {
	field := m.Descriptor().Fields().ByName("header")
	if field == nil || !m.Has(field) {
		return
	}
	header, ok := m.Get(field).Message().Interface().(*pb.ResponseHeader)
	if !ok {
		return
	}
	if header.ClusterId == side.ClusterID {
		header.ClusterId = masked
	}
	header.MemberId = maskMember(side, header.MemberId)
	if header.RaftTerm != 0 {
		header.RaftTerm = masked
	}
}

func maskMember(side *client.Side, id uint64) uint64 {
	if id == side.MemberID {
		return masked
	}
	return uint64(side.Alias(int64(id)))
}

func sortAlarms(alarms []*pb.AlarmMember) {
	sort.Slice(alarms, func(i, j int) bool {
		if alarms[i].Alarm != alarms[j].Alarm {
			return alarms[i].Alarm < alarms[j].Alarm
		}
		return alarms[i].MemberID < alarms[j].MemberID
	})
}

var memberInText = regexp.MustCompile(`memberID:\s*(\d+)`)

func maskStatus(side *client.Side, r *pb.StatusResponse) {
	parts := strings.SplitN(r.Version, ".", 3)
	if len(parts) == 3 && allNumbers(parts[0], parts[1], strings.SplitN(parts[2], "-", 2)[0]) {
		r.Version = parts[0] + "." + parts[1] + ".x"
	}
	r.Leader = maskMember(side, r.Leader)
	r.RaftTerm = present(r.RaftTerm)
	r.RaftIndex = present(r.RaftIndex)
	r.RaftAppliedIndex = present(r.RaftAppliedIndex)
	r.DbSize = int64(present(uint64(r.DbSize)))
	r.DbSizeInUse = int64(present(uint64(r.DbSizeInUse)))
	for i, text := range r.Errors {
		r.Errors[i] = Text(memberInText.ReplaceAllStringFunc(text, func(match string) string {
			digits := memberInText.FindStringSubmatch(match)[1]
			id, _ := strconv.ParseUint(digits, 10, 64)
			return fmt.Sprintf("memberID:%d", maskMember(side, id))
		}))
	}
	slices.Sort(r.Errors)
}

func allNumbers(parts ...string) bool {
	for _, p := range parts {
		if _, err := strconv.Atoi(p); err != nil {
			return false
		}
	}
	return true
}

func present(v uint64) uint64 {
	if v != 0 {
		return masked
	}
	return 0
}

func maskMembers(side *client.Side, m proto.Message) {
	var members, added []*pb.Member
	switch r := m.(type) {
	case *pb.MemberListResponse:
		members = r.Members
	case *pb.MemberAddResponse:
		members, added = r.Members, []*pb.Member{r.Member}
	case *pb.MemberRemoveResponse:
		members = r.Members
	case *pb.MemberUpdateResponse:
		members = r.Members
	case *pb.MemberPromoteResponse:
		members = r.Members
	}
	for _, member := range append(added, members...) {
		if member == nil {
			continue
		}
		member.ID = maskMember(side, member.ID)
		if member.Name == side.MemberName {
			member.Name = "self"
		}
		replace(member.ClientURLs, side.ClientURL)
		replace(member.PeerURLs, side.PeerURL)
	}
	// Members come in the order of their ids, which differ.
	sort.SliceStable(members, func(i, j int) bool { return members[i].GetID() < members[j].GetID() })
}

func replace(urls []string, own string) {
	for i := range urls {
		if urls[i] == own {
			urls[i] = "self"
		}
	}
}

// restartShare is which part of a long TTL may pass in a restart.
const restartShare = 10000

// loosen evens out what time alone may make differ.
func loosen(o, u proto.Message) {
	switch a := o.(type) {
	case *pb.LeaseTimeToLiveResponse:
		b, ok := u.(*pb.LeaseTimeToLiveResponse)
		// A restart renews leases, and two servers do not take the same time for it.
		slack := 1 + a.GrantedTTL/restartShare
		if ok && a.TTL > 0 && b.TTL > 0 && a.TTL-b.TTL <= slack && b.TTL-a.TTL <= slack {
			b.TTL = a.TTL
		}
	case *pb.StatusResponse:
		b, ok := u.(*pb.StatusResponse)
		// etcd sets the storage version some seconds after the first start. Before, it reads none from an empty file, and
		// the oldest that it knows from one without a mark.
		if ok && (a.StorageVersion == "" || b.StorageVersion == "" || a.StorageVersion == unmarkedStorage) {
			a.StorageVersion, b.StorageVersion = "", ""
		}
	}
}

// unmarkedStorage is the storage version that etcd tells of a file whose version it has not written yet.
const unmarkedStorage = "3.5.0"

// stableRows is how many rows Go's unstable sort still sorts by insertion, which keeps ties in key order.
const stableRows = 12

// loosenTies makes rows that tie under a custom sort compare as equal sets when more rows were sorted than Go sorts
// stably: their order, and which of them a limit cuts off, follows from Go's sort and from nothing else.
func loosenTies(op ops.Op, o, u proto.Message) {
	unary, ok := op.(*ops.Unary)
	if !ok {
		return
	}
	switch req := unary.Req.(type) {
	case *pb.RangeRequest:
		a, okA := o.(*pb.RangeResponse)
		b, okB := u.(*pb.RangeResponse)
		if okA && okB {
			loosenRange(req, a, b)
		}
	case *pb.TxnRequest:
		a, okA := o.(*pb.TxnResponse)
		b, okB := u.(*pb.TxnResponse)
		if okA && okB {
			loosenTxn(req, a, b)
		}
	}
}

func loosenTxn(req *pb.TxnRequest, a, b *pb.TxnResponse) {
	branch := req.Failure
	if a.Succeeded {
		branch = req.Success
	}
	if a.Succeeded != b.Succeeded || len(a.Responses) != len(branch) || len(b.Responses) != len(branch) {
		return
	}
	for i, op := range branch {
		switch {
		case op.GetRequestRange() != nil:
			if x, y := a.Responses[i].GetResponseRange(), b.Responses[i].GetResponseRange(); x != nil && y != nil {
				loosenRange(op.GetRequestRange(), x, y)
			}
		case op.GetRequestTxn() != nil:
			if x, y := a.Responses[i].GetResponseTxn(), b.Responses[i].GetResponseTxn(); x != nil && y != nil {
				loosenTxn(op.GetRequestTxn(), x, y)
			}
		}
	}
}

func loosenRange(req *pb.RangeRequest, a, b *pb.RangeResponse) {
	if req.SortTarget == pb.RangeRequest_KEY || a.Count <= stableRows || len(a.Kvs) != len(b.Kvs) {
		return
	}
	for from := 0; from < len(a.Kvs); {
		to := from + 1
		for to < len(a.Kvs) && tie(req.SortTarget, a.Kvs[from], a.Kvs[to]) {
			to++
		}
		groupA, groupB := a.Kvs[from:to], b.Kvs[from:to]
		for _, kv := range groupB {
			if !tie(req.SortTarget, groupA[0], kv) {
				return
			}
		}
		sortByKey(groupA)
		sortByKey(groupB)
		if cut := to == len(a.Kvs) && a.More; cut && to-from >= 1 {
			// A limit that cuts a group of ties keeps any of them.
			copy(groupB, groupA)
		}
		from = to
	}
}

func sortByKey(kvs []*mvccpb.KeyValue) {
	slices.SortFunc(kvs, func(x, y *mvccpb.KeyValue) int { return bytes.Compare(x.Key, y.Key) })
}

func tie(target pb.RangeRequest_SortTarget, a, b *mvccpb.KeyValue) bool {
	switch target {
	case pb.RangeRequest_VERSION:
		return a.Version == b.Version
	case pb.RangeRequest_CREATE:
		return a.CreateRevision == b.CreateRevision
	case pb.RangeRequest_MOD:
		return a.ModRevision == b.ModRevision
	case pb.RangeRequest_VALUE:
		return bytes.Equal(a.Value, b.Value)
	}
	return bytes.Equal(a.Key, b.Key)
}

// differingLines shows the lines that only one side has.
func differingLines(o, u []string) string {
	count := map[string]int{}
	for _, line := range o {
		count[line]++
	}
	for _, line := range u {
		count[line]--
	}
	var only []string
	for _, line := range o {
		if count[line] > 0 {
			count[line]--
			only = append(only, "oracle only: "+strings.TrimSpace(line))
		}
	}
	for _, line := range u {
		if count[line] < 0 {
			count[line]++
			only = append(only, "subject only: "+strings.TrimSpace(line))
		}
	}
	const shown = 12
	if len(only) > shown {
		only = append(only[:shown], "…")
	}
	return "\n    " + strings.Join(only, "\n    ")
}

// SortLeases forgets the order in which an answer lists leases.
func SortLeases(o *ops.Outcome) {
	for _, reply := range o.Replies {
		if list, ok := reply.(*pb.LeaseLeasesResponse); ok {
			slices.SortFunc(list.Leases, func(a, b *pb.LeaseStatus) int { return cmp.Compare(a.ID, b.ID) })
		}
	}
}

// DropRevision removes the revision from the headers of an answer.
func DropRevision(o *ops.Outcome) {
	for _, reply := range o.Replies {
		if h, ok := reply.(interface{ GetHeader() *pb.ResponseHeader }); ok && h.GetHeader() != nil {
			h.GetHeader().Revision = 0
		}
	}
}

// IsLost tells whether a code means that there is no server any more.
func IsLost(code codes.Code) bool { return code == codes.Unavailable }
