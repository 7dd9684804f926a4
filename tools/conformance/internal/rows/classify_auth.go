package rows

import (
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/codes"

	"garboard/tools/conformance/internal/ops"
)

// ClassifyAuth counts what a request under a user's token, or under none, has shown.
func (t *Table) ClassifyAuth(op ops.Op, out *ops.Outcome) {
	t.classifyError(op, out)
	denied := out.Code == codes.PermissionDenied
	plain := func(user string) bool { return user != "" && user != "root" && user != ops.BadToken }
	switch o := op.(type) {
	case *ops.WatchOnce:
		reason := ""
		if out.OK() {
			reason = out.Replies[0].(*pb.WatchResponse).CancelReason
		}
		t.HitIf(strings.Contains(reason, "permission denied"), "M10/watch-denied")
		t.HitIf(strings.Contains(reason, "invalid auth token"), "M10/watch-bad-token")
		t.HitIf(out.OK() && reason == "" && plain(o.User), "M10/watch-allowed")
	case *ops.LoneKeepAlive:
		t.HitIf(denied, "M10/keepalive-denied")
		t.HitIf(o.User == "" && strings.Contains(out.Text, "user name is empty"), "M10/keepalive-needs-user")
	case *ops.RangeStream:
		t.HitIf(denied, "M10/stream-denied")
		t.HitIf(out.OK() && plain(o.User), "M10/stream-allowed")
	case *ops.Unary:
		t.authUnary(o, out, denied, plain(o.User))
	}
}

func (t *Table) authUnary(u *ops.Unary, out *ops.Outcome, denied, plain bool) {
	allowed := plain && out.OK()
	switch req := u.Req.(type) {
	case *pb.RangeRequest:
		t.HitIf(denied, "M10/range-denied")
		t.HitIf(allowed, "M10/range-allowed")
	case *pb.PutRequest:
		t.HitIf(denied, "M10/put-denied")
		t.HitIf(allowed, "M10/put-allowed")
	case *pb.DeleteRangeRequest:
		t.HitIf(denied, "M10/delete-denied")
		t.HitIf(allowed, "M10/delete-allowed")
	case *pb.TxnRequest:
		t.HitIf(denied, "M10/txn-denied")
		t.HitIf(allowed, "M10/txn-allowed")
	case *pb.CompactionRequest, *pb.HashRequest, *pb.MoveLeaderRequest, *pb.DefragmentRequest, *pb.MemberRemoveRequest:
		t.HitIf(denied, "M10/root-only-denied")
	case *pb.LeaseRevokeRequest, *pb.LeaseTimeToLiveRequest, *pb.LeaseLeasesRequest:
		t.HitIf(denied, "M10/lease-denied")
	case *pb.AlarmRequest:
		t.HitIf(denied && req.Action != pb.AlarmRequest_GET, "M10/alarm-change-denied")
		t.HitIf(allowed && req.Action == pb.AlarmRequest_GET, "M10/alarm-list-allowed")
	case *pb.StatusRequest:
		t.HitIf(allowed, "M10/status-allowed")
	case *pb.AuthStatusRequest:
		t.HitIf(out.OK() && u.User == "", "M10/auth-status-open")
	case *pb.AuthUserGetRequest:
		t.HitIf(allowed && req.Name == u.User, "M10/user-get-self")
		t.HitIf(denied, "M10/user-get-denied")
	case *pb.AuthRoleGetRequest:
		t.HitIf(allowed, "M10/role-get-own")
		t.HitIf(denied, "M10/role-get-denied")
	case *pb.AuthUserAddRequest, *pb.AuthRoleAddRequest, *pb.AuthUserListRequest, *pb.AuthRoleListRequest:
		t.HitIf(denied, "M10/management-denied")
	case *pb.AuthenticateRequest:
		t.HitIf(out.OK(), "M10/authenticate")
	}
}
